{{/*
Names are fixed, not made from the release's: the controllers spell some of them (PriorityClasses), and one cluster has
one Stokehold. A second release in the same cluster is refused by Helm, because the cluster-wide names are taken.
*/}}

{{- /* Labels of everything. Takes (dict "root" $ "component" "operator"); the component may be left out. */}}
{{- define "stokehold.labels" -}}
{{ include "stokehold.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The labels that select a component's pods; they must not change between versions. */}}
{{- define "stokehold.selector" -}}
app.kubernetes.io/name: stokehold
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- /* Labels of a component's pods: (dict "root" $ "component" "operator" "labels" .podLabels). Those that select them cannot be changed. */}}
{{- define "stokehold.podLabels" -}}
{{ merge (include "stokehold.selector" . | fromYaml) .labels .root.Values.commonLabels | toYaml }}
{{- end }}

{{- define "stokehold.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{- /* As little as a process can have: no root unless asked for, nothing to gain, nothing to write to. Takes the user. */}}
{{- define "stokehold.podSecurity" -}}
runAsNonRoot: {{ ne (int64 .) 0 }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "stokehold.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

//! What a pod on a cluster may do: little, unless its template says otherwise.
//!
//! Invariant: nothing that the template says is changed.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, PodSpec, SeccompProfile, SecurityContext,
};

/// The group of volumes where a job asks not to be root and names no user or group of its own.
const NOBODYS_GROUP: i64 = 65_532;

pub fn harden(spec: &mut PodSpec) {
    own_what_is_written(spec);
    let pod = spec.security_context.get_or_insert_default();
    pod.seccomp_profile.get_or_insert_with(|| SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    });
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits) {
        restrain(container.security_context.get_or_insert_default());
    }
    spec.automount_service_account_token.get_or_insert(false);
}

fn restrain(context: &mut SecurityContext) {
    if context.privileged == Some(true) {
        return;
    }
    let added = context.capabilities.as_ref();
    let added = added.and_then(|capabilities| capabilities.add.as_ref());
    let is_admin = |name: &String| matches!(name.as_str(), "SYS_ADMIN" | "CAP_SYS_ADMIN" | "ALL");
    // Whoever may do anything may also become anyone; the API server refuses a pod that says otherwise.
    if !added.into_iter().flatten().any(is_admin) {
        context.allow_privilege_escalation.get_or_insert(false);
    }
    let capabilities: &mut Capabilities = context.capabilities.get_or_insert_default();
    capabilities
        .drop
        .get_or_insert_with(|| vec!["ALL".to_owned()]);
}

/// A job that asks not to be root must still be able to write to its volumes and to have a home. Images seldom see to that for a user
/// they do not know.
fn own_what_is_written(spec: &mut PodSpec) {
    let pod = spec.security_context.clone().unwrap_or_default();
    let Some(worker) = spec.containers.first_mut() else {
        return;
    };
    let own = worker.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(pod.run_as_user);
    let non_root = own.run_as_non_root.or(pod.run_as_non_root) == Some(true);
    if !non_root && user.is_none_or(|user| user == 0) {
        return;
    }
    if user.is_some() {
        give_home(worker);
    }
    let group = own.run_as_group.or(pod.run_as_group).or(user);
    let context = spec.security_context.get_or_insert_default();
    if context.fs_group.is_none() {
        context.fs_group = Some(group.unwrap_or(NOBODYS_GROUP));
        // Else every file of a large volume is touched at every start.
        context
            .fs_group_change_policy
            .get_or_insert_with(|| "OnRootMismatch".to_owned());
    }
}

fn give_home(worker: &mut Container) {
    let variables = worker.env.get_or_insert_default();
    if variables.iter().all(|variable| variable.name != "HOME") {
        variables.insert(
            0,
            EnvVar {
                name: "HOME".to_owned(),
                value: Some("/tmp".to_owned()),
                value_from: None,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The contexts of a pod, its first container and its variables, after hardening.
    fn hardened(pod: Value, container: Value) -> String {
        let spec = json!({"securityContext": pod, "containers": [{"name": "worker", "securityContext": container}]});
        let mut spec: PodSpec = serde_json::from_value(spec).expect("a spec");
        harden(&mut spec);
        let worker = &spec.containers[0];
        let say = |value: Value| serde_json::to_string(&value).expect("JSON");
        format!(
            "{}\n{}\n{}",
            say(json!(spec.security_context)),
            say(json!(worker.security_context)),
            say(json!(worker.env))
        )
    }

    #[test]
    fn little_is_allowed_and_what_is_said_stays() {
        insta::assert_snapshot!(hardened(json!({}), json!({})), @r#"
        {"seccompProfile":{"type":"RuntimeDefault"}}
        {"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}
        null
        "#);
        insta::assert_snapshot!(hardened(json!({"seccompProfile": {"type": "Unconfined"}}), json!({"capabilities": {"add": ["IPC_LOCK"]}})), @r#"
        {"seccompProfile":{"type":"Unconfined"}}
        {"allowPrivilegeEscalation":false,"capabilities":{"add":["IPC_LOCK"],"drop":["ALL"]}}
        null
        "#);
        insta::assert_snapshot!(hardened(json!({}), json!({"privileged": true})), @r#"
        {"seccompProfile":{"type":"RuntimeDefault"}}
        {"privileged":true}
        null
        "#);
        insta::assert_snapshot!(hardened(json!({}), json!({"capabilities": {"add": ["SYS_ADMIN"], "drop": []}})), @r#"
        {"seccompProfile":{"type":"RuntimeDefault"}}
        {"capabilities":{"add":["SYS_ADMIN"],"drop":[]}}
        null
        "#);
    }

    #[test]
    fn who_is_not_root_can_still_write() {
        insta::assert_snapshot!(hardened(json!({"runAsNonRoot": true}), json!({})), @r#"
        {"fsGroup":65532,"fsGroupChangePolicy":"OnRootMismatch","runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}
        {"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}
        null
        "#);
        insta::assert_snapshot!(hardened(json!({"runAsUser": 1000, "runAsGroup": 100}), json!({})), @r#"
        {"fsGroup":100,"fsGroupChangePolicy":"OnRootMismatch","runAsGroup":100,"runAsUser":1000,"seccompProfile":{"type":"RuntimeDefault"}}
        {"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}
        [{"name":"HOME","value":"/tmp"}]
        "#);
        insta::assert_snapshot!(hardened(json!({"fsGroup": 7}), json!({"runAsUser": 0})), @r#"
        {"fsGroup":7,"seccompProfile":{"type":"RuntimeDefault"}}
        {"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]},"runAsUser":0}
        null
        "#);
    }
}

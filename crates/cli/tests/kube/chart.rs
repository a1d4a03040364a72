//! The chart as it is written: linted and rendered by the real helm, and compared with what the binary says.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use crate::audit;
use crate::release::{self, chart, here, said, succeed};
use crate::support;

/// Every document of a YAML text.
fn documents(text: &str) -> Vec<Value> {
    let options = serde_saphyr::options! { budget: None };
    serde_saphyr::from_multiple_with_options::<Value>(text, options)
        .expect("YAML")
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(chart().join(path)).expect(path)
}

#[test]
fn its_definitions_are_what_stoke_prints() {
    let stoke = env!("CARGO_BIN_EXE_stoke");
    let printed = succeed(Command::new(stoke).arg("crds").stdin(Stdio::null()));
    assert!(
        printed == read("files/crds.yaml"),
        "the kinds have changed: stoke crds > charts/stokehold/files/crds.yaml"
    );
}

/// `a.b.c` of everything in the values; a map that the schema leaves open is one value.
fn keys(values: &Map<String, Value>, schema: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (key, value) in values {
        let path = format!("{prefix}{key}");
        let schema = &schema["properties"][key];
        match value {
            Value::Object(nested) if schema["properties"].is_object() => {
                keys(nested, schema, &format!("{path}."), found);
            }
            _ => {
                found.insert(path);
            }
        }
    }
}

fn schema_keys(schema: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{key}");
        if schema["properties"].is_object() {
            assert_eq!(
                schema["additionalProperties"],
                json!(false),
                "{path} takes what is misspelt"
            );
            schema_keys(schema, &format!("{path}."), found);
        } else {
            found.insert(path);
        }
    }
}

#[test]
fn every_value_is_described_and_checked() {
    let text = read("values.yaml");
    let values = documents(&text).remove(0);
    let schema: Value = serde_json::from_str(&read("values.schema.json")).expect("JSON");
    let (mut there, mut checked) = (BTreeSet::new(), BTreeSet::new());
    keys(values.as_object().expect("a map"), &schema, "", &mut there);
    schema_keys(&schema, "", &mut checked);
    // Helm puts it there by itself.
    assert!(checked.remove("global"));
    assert_eq!(there, checked);

    // Three priorities share one line.
    let described = text
        .lines()
        .filter(|line| line.trim_start().starts_with("# -- "))
        .count();
    assert_eq!(described, there.len() - 2);

    // And the file that says all of them does.
    let full = std::fs::read_to_string(here().join("values/full.yaml")).expect("full.yaml");
    let mut said = BTreeSet::new();
    let full = documents(&full).remove(0);
    keys(full.as_object().expect("a map"), &schema, "", &mut said);
    let unsaid: Vec<&String> = there.difference(&said).collect();
    assert_eq!(
        unsaid,
        // Off in that file would leave nothing to look at, and a tag is hidden by the digest.
        [
            "agent.enabled",
            "image.tag",
            "networkPolicy.enabled",
            "priorityClasses.create"
        ]
    );
}

/// helm, without a cluster; none where it was not built.
fn helm(arguments: &[&str]) -> Option<Command> {
    let mut command = Command::new(support::helm()?);
    command
        .args(arguments)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null());
    Some(command)
}

fn template(values: Option<&str>, settings: &[&str]) -> Option<Command> {
    let mut command = helm(&[
        "template",
        release::NAME,
        "--namespace",
        release::NAMESPACE,
        "--kube-version",
        "1.34",
    ])?;
    command.arg(chart());
    if let Some(values) = values {
        command
            .arg("--values")
            .arg(here().join("values").join(values));
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    Some(command)
}

pub fn rendered(values: Option<&str>) -> Option<Vec<Value>> {
    Some(documents(&succeed(&mut template(values, &[])?)))
}

#[test]
fn helm_finds_nothing_to_complain_of() {
    for values in [None, Some("full.yaml"), Some("testbed.yaml")] {
        let Some(mut lint) = helm(&["lint", "--strict", "--namespace", release::NAMESPACE]) else {
            return;
        };
        lint.arg(chart());
        if let Some(values) = values {
            lint.arg("--values").arg(here().join("values").join(values));
        }
        let said = succeed(&mut lint);
        assert!(said.contains("0 chart(s) failed"), "{said}");
    }
}

#[test]
fn what_is_misspelt_or_impossible_is_refused() {
    for (setting, hint) in [
        ("operatr.replicas=3", "operatr"),
        ("operator.replica=3", "replica"),
        ("operator.replicas=many", "replicas"),
        ("operator.port=0", "port"),
        ("operator.lease.duration=soon", "duration"),
        ("operator.startDeadline=15", "startDeadline"),
        ("operator.requests=0", "requests"),
        ("agent.runAsUser=root", "runAsUser"),
        ("data.cache.size=lots", "size"),
        ("data.kubeletDir=kubelet", "kubeletDir"),
        ("image.digest=latest", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("priorityClasses.values.standard=2000000000", "standard"),
        ("priorityClasses.values.urgent=1", "urgent"),
    ] {
        let Some(mut command) = template(None, &[setting]) else {
            return;
        };
        let output = command.output().expect("helm starts");
        assert!(!output.status.success(), "{setting} was taken");
        assert!(said(&output).contains(hint), "{setting}: {}", said(&output));
    }
}

fn names(objects: &[Value]) -> String {
    let mut names: Vec<String> = objects
        .iter()
        .map(|object| {
            let namespace = object["metadata"]["namespace"].as_str();
            format!(
                "{} {}{}",
                object["kind"].as_str().unwrap_or_default(),
                namespace.map(|name| format!("{name}/")).unwrap_or_default(),
                object["metadata"]["name"].as_str().unwrap_or_default()
            )
        })
        .collect();
    names.sort();
    names.join("\n")
}

#[test]
fn what_it_installs_is_as_reviewed() {
    let Some(objects) = rendered(None) else {
        return;
    };
    insta::assert_snapshot!(names(&objects), @"
    ClusterRole stokehold-agent
    ClusterRole stokehold-edit
    ClusterRole stokehold-operator
    ClusterRole stokehold-view
    ClusterRoleBinding stokehold-agent
    ClusterRoleBinding stokehold-operator
    CustomResourceDefinition datasets.stokehold.dev
    CustomResourceDefinition jobprofiles.stokehold.dev
    CustomResourceDefinition queues.stokehold.dev
    CustomResourceDefinition trainjobs.stokehold.dev
    DaemonSet stokehold-system/stokehold-agent
    Deployment stokehold-system/stokehold-operator
    NetworkPolicy stokehold-system/stokehold-agent
    NetworkPolicy stokehold-system/stokehold-operator
    PodDisruptionBudget stokehold-system/stokehold-operator
    PriorityClass stokehold-experiment
    PriorityClass stokehold-production
    PriorityClass stokehold-standard
    Role stokehold-system/stokehold-operator
    RoleBinding stokehold-system/stokehold-operator
    Service stokehold-system/stokehold-agent-metrics
    Service stokehold-system/stokehold-operator-metrics
    ServiceAccount stokehold-system/stokehold-agent
    ServiceAccount stokehold-system/stokehold-operator
    ValidatingAdmissionPolicy stokehold-agent
    ValidatingAdmissionPolicyBinding stokehold-agent
    ");
}

#[test]
fn with_every_value_said_it_installs_what_was_reviewed() {
    let Some(objects) = rendered(Some("full.yaml")) else {
        return;
    };
    insta::assert_snapshot!(names(&objects), @"
    CSIDriver data.stokehold.dev
    ClusterRole stokehold-agent
    ClusterRole stokehold-data
    ClusterRole stokehold-operator
    ClusterRoleBinding stokehold-agent
    ClusterRoleBinding stokehold-data
    ClusterRoleBinding stokehold-operator
    DaemonSet stokehold-system/stokehold-agent
    DaemonSet stokehold-system/stokehold-data
    Deployment stokehold-system/stokehold-operator
    NetworkPolicy stokehold-system/stokehold-agent
    NetworkPolicy stokehold-system/stokehold-data
    NetworkPolicy stokehold-system/stokehold-operator
    PriorityClass stokehold-experiment
    PriorityClass stokehold-production
    PriorityClass stokehold-standard
    ResourceQuota stokehold-system/stokehold-critical-pods
    Role stokehold-system/stokehold-operator
    RoleBinding stokehold-system/stokehold-operator
    Service stokehold-system/stokehold-agent-metrics
    Service stokehold-system/stokehold-operator-metrics
    ServiceAccount stokehold-system/stokehold-agent
    ServiceAccount stokehold-system/stokehold-data
    ServiceAccount stokehold-system/stokehold-operator
    ServiceMonitor stokehold-system/stokehold-agent
    ServiceMonitor stokehold-system/stokehold-operator
    ValidatingAdmissionPolicy stokehold-agent
    ValidatingAdmissionPolicy stokehold-data
    ValidatingAdmissionPolicyBinding stokehold-agent
    ValidatingAdmissionPolicyBinding stokehold-data
    ");
    // Whole in a file of its own: every value must be seen to arrive.
    let objects: BTreeMap<String, &Value> = objects
        .iter()
        .map(|object| (names(std::slice::from_ref(object)), object))
        .collect();
    insta::assert_yaml_snapshot!("full", objects);
}

#[test]
fn nobody_is_given_more_than_was_reviewed() {
    let Some(objects) = rendered(None) else {
        return;
    };
    let rights = |account: &str| {
        let rights = audit::rights(&objects, release::NAMESPACE, account).expect("no wildcard");
        let rights: Vec<String> = rights.iter().map(ToString::to_string).collect();
        rights.join("\n")
    };
    insta::assert_snapshot!(rights("stokehold-operator"), @"
    list events
    list nodes
    watch nodes
    create persistentvolumeclaims
    get persistentvolumeclaims
    list persistentvolumeclaims
    watch persistentvolumeclaims
    list persistentvolumes
    watch persistentvolumes
    create pods
    delete pods
    get pods
    list pods
    patch pods
    watch pods
    get pods/log
    create secrets
    create services
    get services
    patch services
    create coordination.k8s.io/leases in stokehold-system
    get coordination.k8s.io/leases stokehold-operator in stokehold-system
    update coordination.k8s.io/leases stokehold-operator in stokehold-system
    create events.k8s.io/events
    patch events.k8s.io/events
    create networking.k8s.io/networkpolicies
    get networking.k8s.io/networkpolicies
    list stokehold.dev/datasets
    watch stokehold.dev/datasets
    create stokehold.dev/jobprofiles
    delete stokehold.dev/jobprofiles
    list stokehold.dev/jobprofiles
    patch stokehold.dev/jobprofiles
    watch stokehold.dev/jobprofiles
    list stokehold.dev/queues
    watch stokehold.dev/queues
    patch stokehold.dev/queues/status
    delete stokehold.dev/trainjobs
    list stokehold.dev/trainjobs
    watch stokehold.dev/trainjobs
    patch stokehold.dev/trainjobs/status
    ");
    insta::assert_snapshot!(rights("stokehold-agent"), @"
    list pods
    patch pods
    watch pods
    patch pods/resize
    ");
    assert_eq!(rights("stokehold-data"), "", "nobody runs a driver unasked");
    let Some(objects) = rendered(Some("testbed.yaml")) else {
        return;
    };
    let rights = audit::rights(&objects, release::NAMESPACE, "stokehold-data");
    let rights = rights.expect("no wildcard");
    let rights: Vec<String> = rights.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(rights.join("\n"), @"
    patch pods
    get stokehold.dev/datasets
    patch stokehold.dev/datasets/status
    ");
}

/// Helm reads the definitions and writes them again; not a word may be lost on the way.
#[test]
fn definitions_are_rendered_whole() {
    let Some(objects) = rendered(None) else {
        return;
    };
    for crd in stoke_api::crds() {
        let mut expected = plain(&serde_json::to_value(&crd).expect("JSON"));
        let name = expected["metadata"]["name"].clone();
        let found = objects
            .iter()
            .find(|object| object["metadata"]["name"] == name)
            .expect("the definition is there");
        let mut found = plain(found);
        let metadata = found["metadata"].take();
        assert_eq!(
            metadata["annotations"],
            json!({"helm.sh/resource-policy": "keep"})
        );
        expected["metadata"].take();
        assert_eq!(found, expected, "{name}");
    }
}

/// Numbers as one type: 0 and 0.0 are the same bound.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect(),
        other => other.clone(),
    }
}

/// A pod that could be root, or gain something, is what a cluster's policy refuses first.
#[test]
fn its_pods_ask_for_little() {
    let Some(objects) = rendered(None) else {
        return;
    };
    let pods = objects.iter().filter_map(|object| {
        object
            .pointer("/spec/template/spec")
            .map(|pod| (names(std::slice::from_ref(object)), pod))
    });
    let mut seen = 0;
    for (name, pod) in pods {
        seen += 1;
        assert_eq!(
            pod["securityContext"],
            json!({"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}),
            "{name}"
        );
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod[field].is_null(), "{name} asks for {field}");
        }
        for container in pod["containers"].as_array().expect("containers") {
            assert_eq!(
                container["securityContext"],
                json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}}),
                "{name}"
            );
            assert!(
                container["resources"]["limits"]["memory"].is_string(),
                "{name}"
            );
            assert!(container["livenessProbe"].is_object(), "{name}");
        }
        let mounts = pod["volumes"].as_array().map_or(&[][..], Vec::as_slice);
        let of_host: Vec<&Value> = mounts
            .iter()
            .map(|volume| &volume["hostPath"]["path"])
            .collect();
        let expected: &[&str] = if name.contains("agent") {
            &["/sys/fs/cgroup"]
        } else {
            &[]
        };
        assert_eq!(of_host, expected, "{name}");
    }
    assert_eq!(seen, 2);
}

/// Who mounts for others is root and privileged; that is all it has more, and nobody has it unasked.
#[test]
fn the_data_driver_is_privileged_and_sees_little_of_its_node() {
    let Some(objects) = rendered(Some("testbed.yaml")) else {
        return;
    };
    let is_privileged = |object: &&Value| object.to_string().contains(r#""privileged":true"#);
    let privileged: Vec<&Value> = objects.iter().filter(is_privileged).collect();
    let [driver] = privileged[..] else {
        panic!("{privileged:#?}");
    };
    assert_eq!(driver["metadata"]["name"], "stokehold-data");
    let pod = &driver["spec"]["template"]["spec"];
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[field].is_null(), "it asks for {field}");
    }
    let container = &pod["containers"][0];
    assert_eq!(
        container["securityContext"],
        json!({"privileged": true, "readOnlyRootFilesystem": true})
    );
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let mounts = mounts.iter().map(|mount| {
        let path = mount["mountPath"].as_str().unwrap_or_default();
        let how = mount["mountPropagation"].as_str();
        let how = how.or(mount["readOnly"].as_bool().map(|_| "read-only"));
        format!("{path} {}", how.unwrap_or_default())
            .trim()
            .to_owned()
    });
    insta::assert_snapshot!(mounts.collect::<Vec<_>>().join("\n"), @"
    /var/lib/kubelet/plugins/data.stokehold.dev
    /var/lib/kubelet/plugins_registry
    /var/lib/kubelet/pods Bidirectional
    /var/lib/stokehold-data
    /etc/ssl/certs read-only
    ");
    assert!(container["resources"]["limits"]["memory"].is_string());
    assert!(container["livenessProbe"].is_object());
}

/// The static binary, as the Dockerfile packs it.
#[test]
fn the_image_is_the_binary_and_nothing_else() {
    let scripts = chart().join("../../scripts/image.sh");
    let folder = tempfile::tempdir().expect("a folder");
    // Any static program stands for ours here: which it is, the archive does not care.
    let Some(program) = support::program("pause") else {
        eprintln!("skipped: no static program (tests/kube/build.sh pause)");
        return;
    };
    let pack = |binary: &std::path::Path, name: &str| {
        let archive = folder.path().join(name);
        let mut command = Command::new(&scripts);
        command.arg(binary).arg("example.com/stoke:1").arg(&archive);
        (command.output().expect("bash"), archive)
    };
    let (output, archive) = pack(&program, "a.tar");
    assert!(output.status.success(), "{}", said(&output));
    let unpack = folder.path().join("image");
    std::fs::create_dir(&unpack).expect("a folder");
    succeed(
        Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(&unpack),
    );
    let json = |name: &str| -> Value {
        let text = std::fs::read_to_string(unpack.join(name)).expect(name);
        serde_json::from_str(&text).expect("JSON")
    };
    let manifest = json("manifest.json");
    assert_eq!(manifest[0]["RepoTags"], json!(["example.com/stoke:1"]));
    let config = json(manifest[0]["Config"].as_str().expect("a config"));
    assert_eq!(
        config["config"],
        json!({"User": "65532:65532", "Entrypoint": ["/usr/local/bin/stoke"]})
    );
    let layer = unpack.join(manifest[0]["Layers"][0].as_str().expect("a layer"));
    let files = succeed(
        Command::new("tar")
            .arg("-tvf")
            .arg(layer)
            .args(["--numeric-owner"]),
    );
    let files: Vec<&str> = files
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(
        files,
        [
            "usr/",
            "usr/local/",
            "usr/local/bin/",
            "usr/local/bin/stoke"
        ]
    );

    // The same again gives the same bytes.
    let (_, again) = pack(&program, "b.tar");
    assert!(std::fs::read(archive).expect("a") == std::fs::read(again).expect("b"));

    let (output, _) = pack(std::path::Path::new("/bin/sh"), "c.tar");
    assert!(!output.status.success());
    assert!(said(&output).contains("not static"), "{}", said(&output));
}

use super::tests_support::{facts, pod, sources};
use super::*;
use crate::gpu::simulated;
use serde_json::{Value, json};

fn prepared() -> Prepared {
    let place = |path: &str, read_only| VolumePlace {
        path: PathBuf::from(path),
        read_only,
    };
    Prepared {
        volumes: BTreeMap::from([
            ("ckpt".to_owned(), place("/data/volumes/ns/ckpt", false)),
            ("data".to_owned(), place("/mnt/imagenet", true)),
        ]),
        gpus: simulated(0, 2),
        ..Prepared::default()
    }
}

fn of(spec: Value) -> Result<ShimSpec, SpecError> {
    let pod = pod(json!({
        "metadata": {"name": "resnet-1-0", "namespace": "ns", "uid": "u-1", "labels": {"stokehold.dev/rank": "0"}},
        "spec": spec,
    }));
    shim_spec(&pod, &facts(), &sources(), &prepared())
}

fn env_of(container: Value) -> Result<BTreeMap<String, String>, SpecError> {
    let mut container = container;
    container["name"] = json!("main");
    container["command"] = json!(["true"]);
    let spec = of(json!({"containers": [container]}))?;
    Ok(spec
        .containers
        .into_iter()
        .flat_map(|container| container.env)
        .collect())
}

#[test]
fn a_training_pod_becomes_processes() {
    let spec = of(json!({
        "hostname": "resnet-0",
        "restartPolicy": "Never",
        "containers": [{
            "name": "main",
            "command": ["python", "train.py", "--rank=$(RANK)", "$(UNKNOWN)"],
            "args": ["--lr", "$(LR)"],
            "workingDir": "/src",
            "env": [
                {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['stokehold.dev/rank']"}}},
                {"name": "LR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "lr"}}},
            ],
            "resources": {"limits": {"memory": "1Gi", "cpu": "2"}, "requests": {"cpu": "500m"}},
            "volumeMounts": [
                {"name": "ckpt", "mountPath": "/data/ckpt", "subPathExpr": "rank-$(RANK)"},
                {"name": "data", "mountPath": "/data"},
            ],
            "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": false},
        }],
    }))
    .expect("a spec");
    insta::assert_json_snapshot!(spec);
}

#[test]
fn environment_layers_and_references() {
    let env = env_of(json!({
        "envFrom": [
            {"configMapRef": {"name": "settings"}, "prefix": "CFG_"},
            {"secretRef": {"name": "login"}},
            {"configMapRef": {"name": "nowhere", "optional": true}},
        ],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)2"},
            {"name": "LATE", "value": "$(LATER)"},
            {"name": "LATER", "value": "x"},
            {"name": "FROM", "value": "$(token)"},
            {"name": "PATH", "value": "/opt/bin"},
            {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "login", "key": "none", "optional": true}}},
            {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "CUDA_VISIBLE_DEVICES", "value": "7"},
        ],
        "resources": {"limits": {"memory": "64Mi"}},
    }))
    .expect("an environment");
    insta::assert_json_snapshot!(env, @r#"
    {
      "A": "1",
      "B": "12",
      "CFG_epochs": "90",
      "CFG_lr": "0.1",
      "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
      "CUDA_VISIBLE_DEVICES": "0,1",
      "FROM": "$(token)",
      "HOSTNAME": "resnet-1-0",
      "LATE": "$(LATER)",
      "LATER": "x",
      "MIB": "64",
      "NVIDIA_VISIBLE_DEVICES": "SIM-0,SIM-1",
      "PATH": "/opt/bin",
      "token": "hush!"
    }
    "#);
}

#[test]
fn what_cannot_be_made_is_refused_with_its_name() {
    let with = |extra: Value| {
        let mut container = json!({"name": "main", "command": ["true"]});
        for (key, value) in extra.as_object().expect("an object") {
            container[key] = value.clone();
        }
        json!({"containers": [container]})
    };
    let mount = |mount: Value| with(json!({"volumeMounts": [mount]}));
    let table = [
        (
            with(json!({"command": []})),
            "container main has no command, and there is no image to take one from",
        ),
        (
            with(json!({"envFrom": [{"configMapRef": {"name": "nowhere"}}]})),
            r#"configmap "nowhere" not found"#,
        ),
        (
            with(
                json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "login", "key": "none"}}}]}),
            ),
            "couldn't find key none in Secret ns/login",
        ),
        (
            with(json!({"env": [{"name": "A=B", "value": "x"}]})),
            r#""A=B" cannot be the name of an environment variable"#,
        ),
        (
            mount(json!({"name": "ckpt", "mountPath": "/c", "subPath": "../../etc"})),
            r#"path "../../etc" leaves its volume"#,
        ),
        (
            mount(json!({"name": "ckpt", "mountPath": "/c", "subPath": "/etc"})),
            r#"path "/etc" leaves its volume"#,
        ),
        (
            mount(json!({"name": "ckpt", "mountPath": "c"})),
            r#"mount path "c" must be absolute and without `..`"#,
        ),
        (
            mount(json!({"name": "ckpt", "mountPath": "/c/../d"})),
            r#"mount path "/c/../d" must be absolute and without `..`"#,
        ),
        (
            mount(json!({"name": "ckpt", "mountPath": "/"})),
            r#"mount path "/" must be absolute and without `..`"#,
        ),
        (
            mount(json!({"name": "none", "mountPath": "/c"})),
            r#"volume "none" is not part of the pod"#,
        ),
        (
            with(json!({"securityContext": {"runAsNonRoot": true}})),
            "container main has runAsNonRoot and would run as root",
        ),
    ];
    for (spec, expected) in table {
        assert_eq!(of(spec).expect_err(expected).to_string(), expected);
    }
}

#[test]
fn an_ordinary_user_runs_only_as_itself() {
    let node = NodeFacts {
        engine_uid: 1000,
        ..facts()
    };
    let as_user = |uid: i64| {
        let pod = pod(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "c", "command": ["true"], "securityContext": {"runAsUser": uid, "runAsNonRoot": true}}],
        }}));
        shim_spec(&pod, &node, &sources(), &prepared())
    };
    assert_eq!(as_user(1000).expect("its own user").containers[0].uid, None);
    assert!(matches!(as_user(1001), Err(SpecError::OtherUser { .. })));
}

#[test]
fn references_are_found_wherever_they_hide() {
    let pod = pod(json!({"spec": {
        "containers": [{"name": "c",
            "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "s1"}}],
            "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "b", "key": "k"}}}]}],
        "initContainers": [{"name": "i", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}}]}],
        "volumes": [
            {"name": "1", "configMap": {"name": "c"}},
            {"name": "2", "secret": {"secretName": "s3"}},
            {"name": "3", "projected": {"sources": [{"secret": {"name": "s4"}}, {"configMap": {"name": "d"}}]}},
            {"name": "4", "persistentVolumeClaim": {"claimName": "claim"}},
        ],
    }}));
    let found = references(&pod);
    assert_eq!(
        found.config_maps.into_iter().collect::<Vec<_>>(),
        ["a", "b", "c", "d"]
    );
    assert_eq!(
        found.secrets.into_iter().collect::<Vec<_>>(),
        ["s1", "s2", "s3", "s4"]
    );
    assert_eq!(found.claims.into_iter().collect::<Vec<_>>(), ["claim"]);
}

#[test]
fn the_kernel_takes_the_least_promised_first() {
    let score = |resources: Value| {
        let spec =
            of(json!({"containers": [{"name": "c", "command": ["x"], "resources": resources}]}))
                .expect("a spec");
        spec.containers[0].oom_score_adj
    };
    assert_eq!(score(json!({})), Some(1000));
    assert_eq!(score(json!({"requests": {"memory": "4Gi"}})), Some(750));
    assert_eq!(score(json!({"requests": {"memory": "64Gi"}})), Some(3));
    assert_eq!(
        score(json!({"limits": {"memory": "1Gi", "cpu": "1"}})),
        Some(-997)
    );
}

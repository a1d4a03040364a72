//! What the pods of each framework look like.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use stoke_api::trainjob::{Attempt, Sizing};
use stoke_api::{Bytes, CpuMilli, DatasetSpec, GpuRequest};
use stoke_sched::Plan;

use super::children;
use super::fixtures::{config, job, node};
use super::pod::{Blueprint, Gpus, Site, Size};
use crate::config::Config;

fn pods(spec: Value, nodes: &[&str], config: &Config) -> Vec<Pod> {
    pods_with(spec, nodes, config, Gpus::default())
}

fn pods_with(spec: Value, nodes: &[&str], config: &Config, gpus: Gpus) -> Vec<Pod> {
    let job = job(spec);
    let datasets = BTreeMap::from([
        (
            "words".to_owned(),
            DatasetSpec {
                uri: Some("file:///srv/words".to_owned()),
                ..DatasetSpec::default()
            },
        ),
        (
            "images".to_owned(),
            DatasetSpec {
                claim: Some("images-claim".to_owned()),
                ..DatasetSpec::default()
            },
        ),
    ]);
    let blueprint = Blueprint::new(&job, &datasets, config).expect("a good job");
    let attempt = Attempt {
        number: 2,
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        port: (config.network == stoke_api::trainjob::Network::Host).then_some(23_456),
        cpus: Some(CpuMilli(1500)),
        memory: Some(Sizing {
            request: Bytes::gib(1),
            limit: Bytes::gib(2),
            why: String::new(),
        }),
        devices: gpus.devices,
        gpu_resource: gpus.resource,
        ..Attempt::default()
    };
    let addresses = BTreeMap::from([
        ("a".to_owned(), "10.0.0.1".to_owned()),
        ("b".to_owned(), "10.0.0.2".to_owned()),
    ]);
    let nodes_there = [node("a", 8), node("b", 8)];
    let cluster = crate::cluster::snapshot(nodes_there.iter(), std::iter::empty());
    let site = Site {
        attempt: &attempt,
        addresses: &addresses,
        cluster: &cluster,
    };
    blueprint.pods(&site, 0..nodes.len() as u32).expect("pods")
}

/// Command and variables of each pod, without those that every pod has.
fn started(pods: &[Pod]) -> String {
    let common = [
        "STOKE_JOB",
        "STOKE_ATTEMPT",
        "STOKE_RANK",
        "STOKE_WORKERS",
        "PYTHONUNBUFFERED",
    ];
    let mut lines = Vec::new();
    for pod in pods {
        let worker = &pod.spec.as_ref().expect("a spec").containers[0];
        lines.push(worker.command.clone().unwrap_or_default().join(" "));
        for variable in worker
            .env
            .iter()
            .flatten()
            .filter(|v| !common.contains(&v.name.as_str()))
        {
            let secret = variable
                .value_from
                .as_ref()
                .and_then(|from| from.secret_key_ref.as_ref());
            let value = match secret {
                Some(secret) => format!("secret {}/{}", secret.name, secret.key),
                None => variable.value.clone().unwrap_or_default(),
            };
            lines.push(format!("  {}={value}", variable.name));
        }
    }
    lines.join("\n")
}

#[test]
fn torch_is_started_by_torchrun() {
    let spec = json!({"framework": "torch", "workers": 2, "processesPerWorker": 2, "command": ["python3", "train.py"]});
    insta::assert_snapshot!(started(&pods(spec, &["a", "a"], &config())), @r"
    python3 -m torch.distributed.run train.py
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      MASTER_ADDR=127.0.0.1
      MASTER_PORT=23456
      WORLD_SIZE=4
      RANK=0
      LOCAL_RANK=0
      NODE_RANK=0
      LOCAL_WORLD_SIZE=2
      PET_NNODES=2
      PET_NPROC_PER_NODE=2
      PET_NODE_RANK=0
      PET_MASTER_ADDR=127.0.0.1
      PET_MASTER_PORT=23456
      PET_RDZV_BACKEND=static
      PET_RDZV_ENDPOINT=127.0.0.1:23456
      PET_RDZV_ID=j-2
      PET_MAX_RESTARTS=0
    python3 -m torch.distributed.run train.py
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      MASTER_ADDR=127.0.0.1
      MASTER_PORT=23456
      WORLD_SIZE=4
      RANK=2
      LOCAL_RANK=0
      NODE_RANK=1
      LOCAL_WORLD_SIZE=2
      PET_NNODES=2
      PET_NPROC_PER_NODE=2
      PET_NODE_RANK=1
      PET_MASTER_ADDR=127.0.0.1
      PET_MASTER_PORT=23456
      PET_RDZV_BACKEND=static
      PET_RDZV_ENDPOINT=127.0.0.1:23456
      PET_RDZV_ID=j-2
      PET_MAX_RESTARTS=0
    ");
}

#[test]
fn mpi_is_launched_by_rank_0_and_served_by_the_others() {
    let spec = json!({"framework": "mpi", "workers": 2, "gpus": 4, "command": ["./train", "-x"]});
    insta::assert_snapshot!(started(&pods(spec, &["a", "b"], &config())), @r"
    /usr/bin/stoke mpi launch --np 8 --slots 4 -- ./train -x
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      STOKE_MPI_HOSTS=j-0=10.0.0.1:23456,j-1=10.0.0.2:23457
      STOKE_MPI_TOKEN=secret j-mpi-uid/token
      STOKE_MPI_LISTEN=0.0.0.0:23456
      NCCL_DEBUG=WARN
    /usr/bin/stoke mpi worker
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      STOKE_MPI_HOSTS=j-0=10.0.0.1:23456,j-1=10.0.0.2:23457
      STOKE_MPI_TOKEN=secret j-mpi-uid/token
      STOKE_MPI_LISTEN=0.0.0.0:23457
      NCCL_DEBUG=WARN
    ");
}

/// Each worker has what signals its own programs beside them, whoever launches them.
#[test]
fn who_heeds_a_signal_is_started_beside_what_sends_it() {
    let commands = |framework: &str, processes: u32, config: &Config| {
        let spec = json!({"framework": framework, "workers": 2, "processesPerWorker": processes, "command": ["python", "train.py"],
            "image": "a", "checkpoint": {"path": "/c", "signal": "SIGUSR1"}});
        let commands = pods(spec, &["a", "b"], config).into_iter().map(|pod| {
            let worker = pod.spec.expect("a spec").containers.remove(0);
            worker.command.expect("a command").join(" ")
        });
        commands.collect::<Vec<_>>().join("\n")
    };
    let cluster = Config {
        image: Some("stoke:1".to_owned()),
        ..Config::cluster()
    };
    insta::assert_snapshot!(commands("plain", 1, &config()), @"
    /usr/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=0 SIGUSR1 -- python train.py
    /usr/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=1 SIGUSR1 -- python train.py
    ");
    insta::assert_snapshot!(commands("mpi", 1, &cluster), @"
    /opt/stokehold/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=0 SIGUSR1 -- /opt/stokehold/bin/stoke mpi launch --np 2 --slots 1 -- python train.py
    /opt/stokehold/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=1 SIGUSR1 -- /opt/stokehold/bin/stoke mpi worker
    ");
    let torch = commands("torch", 2, &cluster);
    assert!(
        torch.starts_with(
            "/opt/stokehold/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=0 SIGUSR1 -- python -m torch.distributed.run"
        ),
        "{torch}"
    );
}

/// A volume that one node may mount is the first worker's, where they may be on several.
#[test]
fn a_volume_for_one_node_is_the_first_workers() {
    let cluster = Config {
        image: Some("stoke:1".to_owned()),
        ..Config::cluster()
    };
    let mounted = |mode: Option<&str>, config: &Config| -> Vec<bool> {
        let mut checkpoint = json!({"path": "/c"});
        if let Some(mode) = mode {
            checkpoint["accessMode"] = json!(mode);
        }
        let spec =
            json!({"workers": 2, "command": ["train"], "image": "a", "checkpoint": checkpoint});
        let has = |pod: Pod| {
            let text = serde_json::to_string(&pod).expect("JSON");
            let parts = ["j-checkpoint", "STOKE_CHECKPOINT_DIR", "--checkpoints=/c"];
            let found = parts.map(|part| text.contains(part));
            assert!(found == [true; 3] || found == [false; 3], "{text}");
            found[0]
        };
        pods(spec, &["a", "b"], config)
            .into_iter()
            .map(has)
            .collect()
    };
    assert_eq!(mounted(Some("ReadWriteOnce"), &cluster), [true, false]);
    assert_eq!(mounted(Some("ReadWriteOnce"), &config()), [true, true]);
    for mode in [None, Some("ReadWriteMany")] {
        assert_eq!(mounted(mode, &cluster), [true, true]);
    }
}

#[test]
fn the_volume_of_checkpoints_goes_with_its_job_unless_it_is_kept() {
    let claim = |workers: u32, checkpoint: Value, config: &Config| {
        let job = job(json!({"workers": workers, "command": ["train"], "checkpoint": checkpoint}));
        let claim = children::checkpoint(&job, config).expect("a claim");
        let modes = claim
            .spec
            .and_then(|spec| spec.access_modes)
            .expect("modes");
        (claim.metadata.owner_references.is_some(), modes.join(","))
    };
    let cluster = Config::cluster();
    for (workers, more, config, owned, mode) in [
        (1, json!({}), &cluster, true, "ReadWriteOnce"),
        (2, json!({}), &cluster, true, "ReadWriteMany"),
        (
            2,
            json!({"accessMode": "ReadWriteOnce"}),
            &cluster,
            true,
            "ReadWriteOnce",
        ),
        (
            1,
            json!({"accessMode": "ReadWriteMany"}),
            &cluster,
            true,
            "ReadWriteMany",
        ),
        (
            2,
            json!({"onDelete": "keep"}),
            &config(),
            false,
            "ReadWriteOnce",
        ),
        (
            2,
            json!({"onDelete": "delete"}),
            &config(),
            true,
            "ReadWriteOnce",
        ),
    ] {
        let mut checkpoint = json!({"path": "/c"});
        let fields = more.as_object().expect("fields").clone();
        checkpoint
            .as_object_mut()
            .expect("an object")
            .extend(fields);
        let found = claim(workers, checkpoint, config);
        assert_eq!(found, (owned, mode.to_owned()), "{workers} {more}");
    }
}

#[test]
fn only_the_first_worker_gets_the_keys_to_where_copies_go_and_as_files() {
    let made = |upload: serde_json::Value, config: &Config| {
        let spec = json!({"workers": 2, "command": ["train"], "image": "a", "checkpoint": {"path": "/c", "keep": 2, "upload": upload}});
        let told = pods(spec, &["a", "b"], config).into_iter().map(|pod| {
            let mut spec = pod.spec.expect("a spec");
            let worker = spec.containers.remove(0);
            let volumes = spec.volumes.unwrap_or_default().into_iter();
            let secrets = volumes.filter_map(|volume| {
                let secret = volume.secret?;
                let mut mounts = worker.volume_mounts.iter().flatten();
                let mount = mounts.find(|mount| mount.name == volume.name)?;
                let mode = secret.default_mode.unwrap_or_default();
                assert_eq!(secret.optional, Some(true), "no keys hold no training up");
                Some(format!(
                    "\n  {} at {} as {mode:o}",
                    secret.secret_name.unwrap_or_default(),
                    mount.mount_path
                ))
            });
            let secrets: String = secrets.collect();
            format!("{}{secrets}", worker.command.expect("a command").join(" "))
        });
        told.collect::<Vec<_>>().join("\n")
    };
    let cluster = Config {
        image: Some("stoke:1".to_owned()),
        ..Config::cluster()
    };
    let upload = json!({"uri": "s3://bucket/runs", "secret": "keys", "endpoint": "http://s3:9000"});
    insta::assert_snapshot!(made(upload, &config()), @"
    /usr/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=0 --keep=2 --upload=s3://bucket/runs --upload-place=default/j-uid --upload-endpoint=http://s3:9000 --upload-keys=/run/stokehold/upload --grace=60 -- train
      keys at /run/stokehold/upload as 400
    /usr/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=1 --keep=2 -- train
    ");
    let upload = json!({"uri": "gs://bucket", "secret": "keys", "name": "gpt"});
    insta::assert_snapshot!(made(upload, &cluster), @"
    /opt/stokehold/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=0 --keep=2 --upload=gs://bucket --upload-place=default/gpt --upload-shared --upload-keys=/run/stokehold/upload --grace=60 -- train
      keys at /run/stokehold/upload as 444
    /opt/stokehold/bin/stoke heed --checkpoints=/c --job=uid-j --attempt=2 --rank=1 --keep=2 -- train
    ");
}

#[test]
fn tensorflow_and_jax_know_their_cluster() {
    let spec = json!({"framework": "tensorflow", "workers": 2, "command": ["python", "train.py"]});
    insta::assert_snapshot!(started(&pods(spec, &["a", "a"], &config())), @r#"
    python train.py
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      TF_CONFIG={"cluster":{"worker":["127.0.0.1:23456","127.0.0.1:23457"]},"task":{"index":0,"type":"worker"}}
    python train.py
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      TF_CONFIG={"cluster":{"worker":["127.0.0.1:23456","127.0.0.1:23457"]},"task":{"index":1,"type":"worker"}}
    "#);
    let spec = json!({"framework": "jax", "workers": 2, "command": ["python", "train.py"], "image": "acme/jax:1"});
    let cluster = Config::cluster();
    insta::assert_snapshot!(started(&pods(spec, &["a", "b"], &cluster)), @r"
    python train.py
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      JAX_COORDINATOR_ADDRESS=j-0.j.default.svc:6666
      COORDINATOR_ADDRESS=j-0.j.default.svc
      COORDINATOR_PORT=6666
      NUM_PROCESSES=2
      PROCESS_ID=0
    python train.py
      STOKE_CHECKPOINT_REQUEST=/run/stokehold/request/checkpoint
      STOKE_STATUS_FILE=/run/stokehold/status/status.json
      JAX_COORDINATOR_ADDRESS=j-0.j.default.svc:6666
      COORDINATOR_ADDRESS=j-0.j.default.svc
      COORDINATOR_PORT=6666
      NUM_PROCESSES=2
      PROCESS_ID=1
    ");
}

#[test]
fn the_authors_variables_win() {
    let spec = json!({
        "framework": "torch",
        "command": ["python", "train.py"],
        "env": [{"name": "PET_NPROC_PER_NODE", "value": "4"}, {"name": "WHO", "value": "$(STOKE_RANK)"}, {"name": "A", "value": "job"}],
        "template": {"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": "template"}, {"name": "RANK", "value": "9"}]}]}},
    });
    let pods = pods(spec, &["a"], &config());
    let env = pods[0]
        .spec
        .as_ref()
        .and_then(|spec| spec.containers[0].env.clone())
        .expect("variables");
    let value = |name: &str| -> Vec<&str> {
        env.iter()
            .filter(|v| v.name == name)
            .filter_map(|v| v.value.as_deref())
            .collect()
    };
    assert_eq!(value("PET_NPROC_PER_NODE"), ["4"]);
    assert_eq!(value("A"), ["job"]);
    assert_eq!(value("RANK"), ["9"]);
    let position = |name: &str| env.iter().position(|v| v.name == name);
    assert!(
        position("STOKE_RANK") < position("WHO"),
        "what a variable refers to comes before it"
    );
}

#[test]
fn a_plain_pod_with_everything() {
    let spec = json!({
        "command": ["sh", "-c", "true"],
        "workingDir": "/work",
        "gpus": 1,
        "cpus": "1500m",
        "priority": "production",
        "checkpoint": {"path": "/ckpt", "every": "15m", "keep": 3},
        "datasets": [{"name": "words", "path": "/data/words"}, {"name": "images", "path": "/data/images"}],
        "template": {
            "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "kept"}},
            "spec": {
                "serviceAccountName": "trainer",
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]},
                ]}}},
                "containers": [
                    {"name": "log", "image": "shipper"},
                    {"name": "worker", "image": "mine", "resources": {"limits": {"rdma/hca": 1}}},
                ],
            },
        },
    });
    let pod = pods(spec, &["a"], &config()).remove(0);
    insta::assert_yaml_snapshot!(pod);
}

#[test]
fn on_a_cluster_a_pod_has_an_image_an_address_and_a_priority() {
    let spec = json!({"command": ["train"], "image": "acme/train:1", "workers": 2, "priority": "experiment"});
    let pod = pods(spec, &["a", "b"], &Config::cluster()).remove(1);
    let spec = pod.spec.expect("a spec");
    assert_eq!(spec.containers[0].image.as_deref(), Some("acme/train:1"));
    assert_eq!(spec.host_network, None);
    assert_eq!(
        (spec.hostname.as_deref(), spec.subdomain.as_deref()),
        (Some("j-1"), Some("j"))
    );
    assert_eq!(
        spec.priority_class_name.as_deref(),
        Some("stokehold-experiment")
    );
}

/// What the workers ask for, where they are told which devices are theirs, and what they are told of their share.
fn gpus(pods: &[Pod]) -> Vec<(String, Option<String>, Option<String>)> {
    let told = |pod: &Pod| {
        let worker = &pod.spec.as_ref().expect("a spec").containers[0];
        let limits = worker.resources.as_ref().and_then(|r| r.limits.clone());
        let limits = limits.unwrap_or_default().into_iter();
        let asked: Vec<String> = limits
            .filter(|(name, _)| name.contains('/'))
            .map(|(name, count)| format!("{name}={}", count.0))
            .collect();
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        let share = worker
            .env
            .iter()
            .flatten()
            .find(|v| v.name == "STOKE_GPU_SHARE");
        (
            asked.join(" "),
            annotations.get("stokehold.dev/gpu-devices").cloned(),
            share.and_then(|share| share.value.clone()),
        )
    };
    pods.iter().map(told).collect()
}

#[test]
fn workers_are_given_the_gpus_that_were_chosen() {
    let plan = |devices: &[&[u32]], resource: Option<(&str, u64)>| Plan {
        nodes: vec!["a".to_owned(); devices.len()],
        devices: devices.iter().map(|devices| devices.to_vec()).collect(),
        resource: resource.map(|(name, count)| (name.to_owned(), count)),
    };
    let made = |asked: &str, plan: &Plan| {
        let request: GpuRequest = asked.parse().expect("GPUs");
        let spec = json!({"command": ["true"], "workers": plan.nodes.len(), "gpus": asked});
        let nodes = vec!["a"; plan.nodes.len()];
        gpus(&pods_with(
            spec,
            &nodes,
            &config(),
            Gpus::of(plan, &request),
        ))
    };
    let some = |text: &str| Some(text.to_owned());
    // On one machine we choose.
    assert_eq!(
        made("2", &plan(&[&[0, 3], &[1, 2]], None)),
        [
            ("nvidia.com/gpu=2".to_owned(), some("0,3"), None),
            ("nvidia.com/gpu=2".to_owned(), some("1,2"), None)
        ]
    );
    assert_eq!(
        made("0.5", &plan(&[&[1]], None)),
        [(
            "stokehold.dev/gpu-milli=500".to_owned(),
            some("1"),
            some("0.5")
        )]
    );
    // On a cluster the device plugin does.
    assert_eq!(
        made("1", &plan(&[&[]], None)),
        [("nvidia.com/gpu=1".to_owned(), None, None)]
    );
    assert_eq!(
        made("0.1", &plan(&[&[]], Some(("nvidia.com/mig-1g.10gb", 1)))),
        [("nvidia.com/mig-1g.10gb=1".to_owned(), None, some("0.1"))]
    );
    assert_eq!(
        made("1g.10gb", &plan(&[&[]], Some(("nvidia.com/gpu", 1)))),
        [("nvidia.com/gpu=1".to_owned(), None, None)],
        "slices that are counted as GPUs"
    );
}

#[test]
fn workers_are_as_near_to_each_other_as_they_ask() {
    use stoke_sched::Topology;
    let levels = Config {
        topology: vec!["example.com/rack".to_owned()],
        ..Config::cluster()
    };
    let rack = || {
        Some(Topology::Required {
            level: "example.com/rack".to_owned(),
        })
    };
    let required = json!({"topology": {"required": "example.com/rack"}});
    let preferred = json!({"topology": {"preferred": "example.com/rack"}});
    let table = [
        (json!({}), Config::cluster(), None),
        (json!({}), levels.clone(), Some(Topology::Preferred)),
        (preferred, Config::cluster(), Some(Topology::Preferred)),
        (required.clone(), levels, rack()),
        // One node is near enough to itself.
        (required, config(), None),
    ];
    for (spec, config, expected) in table {
        let mut whole = json!({"command": ["true"], "image": "i", "workers": 2, "elastic": {"min": 1, "max": 4}});
        whole
            .as_object_mut()
            .expect("a map")
            .extend(spec.as_object().expect("a map").clone());
        let (job, datasets) = (job(whole.clone()), BTreeMap::new());
        let blueprint = Blueprint::new(&job, &datasets, &config).expect("a good job");
        let gang = blueprint.gang(&Size::default()).expect("a gang");
        assert_eq!(gang.topology, expected, "{whole}");
        assert_eq!((gang.min_workers, gang.workers), (Some(1), 4));
    }
}

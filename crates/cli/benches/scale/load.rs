//! A thousand nodes, and two thousand jobs of one to sixty-four workers, ten thousand in all.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stoke_api::TrainJob;

pub const NODES: usize = 1_000;
/// Workers a job, and how many such jobs.
const MIX: [(usize, usize); 7] = [
    (1, 880),
    (2, 480),
    (4, 300),
    (8, 150),
    (16, 100),
    (32, 50),
    (64, 40),
];
pub const JOBS: usize = 2_000;
pub const PODS: usize = 10_000;
/// Requests at once, as many as a good client has.
const WRITERS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(600);

pub async fn add_nodes(client: &Client) -> Result<()> {
    let amounts = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"});
    let node = |n: usize| {
        let name = format!("node-{n:04}");
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8"},
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": amounts, "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    "lastHeartbeatTime": jiff::Timestamp::now(), "lastTransitionTime": jiff::Timestamp::now()}],
            },
        })
    };
    create(
        Api::<Node>::all(client.clone()),
        (0..NODES).map(node).collect(),
    )
    .await?;
    // Until none is tainted as new: then the controllers have seen them all.
    let nodes: Api<Node> = Api::all(client.clone());
    let begun = Instant::now();
    loop {
        let list = nodes.list(&ListParams::default()).await?;
        let is_ready = |node: &Node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            let taints = taints.into_iter().flatten();
            taints
                .into_iter()
                .all(|taint| !taint.key.starts_with("node."))
        };
        if list.items.iter().all(is_ready) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("not all nodes are ready");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

pub async fn make_namespace(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    create(namespaces, vec![namespace]).await?;
    // Pods are refused until the namespace has its service account.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), name);
    let begun = Instant::now();
    while accounts.get_opt("default").await?.is_none() {
        if begun.elapsed() > PATIENCE {
            bail!("namespace {name} has no service account");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The jobs, small and large mixed as they come.
pub async fn create_jobs(client: &Client, namespace: &str) -> Result<()> {
    let sizes = MIX.iter().flat_map(|(size, count)| vec![*size; *count]);
    let mut sizes: Vec<usize> = sizes.collect();
    debug_assert_eq!((sizes.len(), sizes.iter().sum()), (JOBS, PODS));
    shuffle(&mut sizes);
    let job = |(n, workers): (usize, usize)| {
        // There are 8,000 GPUs: the large jobs train, the small ones prepare.
        let gpus = usize::from(workers >= 8);
        json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": format!("job-{n:04}")},
            "spec": {
                "workers": workers, "gpus": gpus, "cpus": "2", "memory": {"request": "4Gi", "limit": "4Gi"},
                "image": "stokehold.dev/testbed/pause:1", "command": ["train"],
                "template": {"spec": {"tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}},
            },
        })
    };
    let jobs = sizes.into_iter().enumerate().map(job).collect();
    create(Api::<TrainJob>::namespaced(client.clone(), namespace), jobs).await
}

/// The same every time.
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(i, (state % (i as u64 + 1)) as usize);
    }
}

/// Pods of no job, spread over the nodes.
pub fn plain_pods(count: usize) -> Vec<Value> {
    let pod = |n: usize| {
        let node = format!("node-{:04}", n % NODES);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("pod-{n:05}")},
            "spec": {
                "containers": [{"name": "worker", "image": "stokehold.dev/testbed/pause:1",
                    "resources": {"requests": {"cpu": "2", "memory": "4Gi"}}}],
                "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}},
            },
        })
    };
    (0..count).map(pod).collect()
}

pub async fn create_pods(client: &Client, namespace: &str, pods: Vec<Value>) -> Result<()> {
    create(Api::<Pod>::namespaced(client.clone(), namespace), pods).await
}

async fn create<K>(api: Api<K>, objects: Vec<Value>) -> Result<()>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let objects = objects.into_iter().map(|object| {
        let api = api.clone();
        async move {
            let object: K = serde_json::from_value(object)?;
            api.create(&PostParams::default(), &object).await?;
            anyhow::Ok(())
        }
    });
    stream::iter(objects)
        .buffer_unordered(WRITERS)
        .try_collect()
        .await
}

/// Waits until all jobs say so.
pub async fn reach_phase(client: &Client, namespace: &str, phase: &str) -> Result<()> {
    let jobs: Api<TrainJob> = Api::namespaced(client.clone(), namespace);
    let begun = Instant::now();
    loop {
        let mut phases = BTreeMap::<String, usize>::new();
        for job in jobs.list(&ListParams::default()).await? {
            let phase = job.status.map(|status| format!("{:?}", status.phase));
            *phases.entry(phase.unwrap_or_default()).or_default() += 1;
        }
        if phases.get(phase) == Some(&JOBS) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("not all jobs are {phase}: {phases:?}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The pods of a namespace, as someone else would create them: without what the API server and the scheduler have added.
pub async fn pods_as_made(client: &Client, namespace: &str) -> Result<Vec<Value>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut found = Vec::new();
    let mut page = ListParams::default().limit(500);
    loop {
        let list = pods.list(&page).await?;
        for pod in list.items {
            found.push(as_made(pod)?);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

fn as_made(pod: Pod) -> Result<Value> {
    let mut spec = pod.spec.context("a pod without a spec")?;
    spec.node_name = None;
    spec.priority = None;
    spec.preemption_policy = None;
    let is_added = |name: &str| name.starts_with("kube-api-access-");
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|volume| !is_added(&volume.name));
    }
    for container in &mut spec.containers {
        if let Some(mounts) = &mut container.volume_mounts {
            mounts.retain(|mount| !is_added(&mount.name));
        }
    }
    let metadata = pod.metadata;
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": metadata.name, "labels": metadata.labels, "annotations": metadata.annotations},
        "spec": spec,
    }))
}

/// What a kubelet says of pods whose containers have ended well.
pub async fn end_pods(client: &Client, namespace: &str, pods: &[Value]) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let now = jiff::Timestamp::now();
    let ended = json!({"status": {"phase": "Succeeded", "containerStatuses": [{
        "name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}},
    }]}});
    let patch = Patch::Merge(&ended);
    let ends = pods.iter().map(|pod| {
        let (api, patch) = (&api, &patch);
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        async move {
            api.patch_status(name, &PatchParams::default(), patch)
                .await
                .map(drop)
        }
    });
    let ends: Vec<_> = ends.collect();
    stream::iter(ends)
        .buffer_unordered(WRITERS)
        .try_collect::<()>()
        .await?;
    Ok(())
}

/// Empties a namespace and waits until it is gone.
pub async fn clear(client: &Client, namespace: &str) -> Result<()> {
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::background()
    };
    delete_all::<Pod>(client, namespace, &at_once).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .delete(namespace, &DeleteParams::background())
        .await?;
    let begun = Instant::now();
    while namespaces.get_opt(namespace).await?.is_some() {
        if begun.elapsed() > PATIENCE {
            bail!("namespace {namespace} does not go");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn delete_all<K>(client: &Client, namespace: &str, how: &DeleteParams) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<DynamicObject> = Api::namespaced_with(
        client.clone(),
        namespace,
        &kube::api::ApiResource::erase::<K>(&()),
    );
    api.delete_collection(how, &ListParams::default()).await?;
    Ok(())
}

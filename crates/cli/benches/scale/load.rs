//! What is asked of the operator: so many nodes, and the jobs that come at once.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stoke_api::TrainJob;

/// Namespaces that jobs are spread over.
const TEAMS: usize = 20;
/// Workers a job, and how many such jobs, of the mixed load.
const MIX: [(usize, usize); 7] = [
    (1, 880),
    (2, 480),
    (4, 300),
    (8, 150),
    (16, 100),
    (32, 50),
    (64, 40),
];
/// Node labels of the levels that nodes are near to each other in, outermost first, and nodes to each.
pub const LEVELS: [(&str, usize); 2] = [
    ("topology.stokehold.dev/block", 64),
    ("topology.stokehold.dev/rack", 16),
];
/// Requests at once, as many as a good client has.
const WRITERS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(600);

/// Nodes with eight GPUs, and jobs.
pub struct Load {
    pub name: &'static str,
    nodes: usize,
    /// Workers of each job.
    sizes: Vec<usize>,
    /// What each worker of a job of that size asks for.
    gpus: fn(usize) -> usize,
}

impl Load {
    /// Two thousand jobs of one to sixty-four workers, ten thousand in all. There are 8,000 GPUs: the large jobs train, the small ones
    /// prepare.
    pub fn mixed() -> Self {
        let sizes = MIX.iter().flat_map(|(size, count)| vec![*size; *count]);
        let mut sizes: Vec<usize> = sizes.collect();
        shuffle(&mut sizes);
        Self {
            name: "2,000 jobs of 1 to 64 workers on 1,000 nodes",
            nodes: 1_000,
            sizes,
            gpus: |workers| usize::from(workers >= 8),
        }
    }

    /// All GPUs there are, one to a job.
    pub fn singles() -> Self {
        Self {
            name: "4,000 jobs of one GPU on 500 nodes",
            nodes: 500,
            sizes: vec![1; 4_000],
            gpus: |_| 1,
        }
    }

    /// One gang on all nodes, near to each other.
    pub fn gang() -> Self {
        Self {
            name: "one gang of 512 workers on 512 nodes",
            nodes: 512,
            sizes: vec![512],
            gpus: |_| 8,
        }
    }

    pub fn jobs(&self) -> usize {
        self.sizes.len()
    }

    pub fn pods(&self) -> usize {
        self.sizes.iter().sum()
    }
}

pub async fn add_nodes(client: &Client, load: &Load) -> Result<()> {
    let amounts = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"});
    let node = |n: usize| {
        let name = format!("node-{n:04}");
        let [(block, in_block), (rack, in_rack)] = LEVELS;
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8",
                    block: format!("block-{}", n / in_block), rack: format!("rack-{}", n / in_rack)},
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": amounts, "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    "lastHeartbeatTime": jiff::Timestamp::now(), "lastTransitionTime": jiff::Timestamp::now()}],
            },
        })
    };
    create::<Node>(client, (0..load.nodes).map(node).collect()).await?;
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

/// The namespace of one of the teams.
fn team(prefix: &str, n: usize) -> String {
    format!("{prefix}-{:02}", n % TEAMS)
}

pub async fn make_namespaces(client: &Client, prefix: &str) -> Result<()> {
    for n in 0..TEAMS {
        let name = team(prefix, n);
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create::<Namespace>(client, vec![namespace]).await?;
        // Pods are refused until the namespace has its service account.
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
        let begun = Instant::now();
        while accounts.get_opt("default").await?.is_none() {
            if begun.elapsed() > PATIENCE {
                bail!("namespace {name} has no service account");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

pub async fn create_jobs(client: &Client, load: &Load, prefix: &str) -> Result<()> {
    let job = |(n, workers): (usize, usize)| {
        let mut job = json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": format!("job-{n:04}"), "namespace": team(prefix, n)},
            "spec": {
                "workers": workers, "gpus": (load.gpus)(workers), "cpus": "2", "memory": {"request": "4Gi", "limit": "4Gi"},
                "image": "stokehold.dev/testbed/pause:1", "command": ["train"],
                "template": {"spec": {"tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}},
            },
        });
        if workers > 1 {
            job["spec"]["topology"] = json!({"preferred": LEVELS[1].0});
        }
        job
    };
    let jobs = load.sizes.iter().copied().enumerate().map(job).collect();
    create::<TrainJob>(client, jobs).await
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
pub fn plain_pods(load: &Load, prefix: &str, count: usize) -> Vec<Value> {
    let pod = |n: usize| {
        let node = format!("node-{:04}", n % load.nodes);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("pod-{n:05}"), "namespace": team(prefix, n)},
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

pub async fn create_pods(client: &Client, pods: Vec<Value>) -> Result<()> {
    create::<Pod>(client, pods).await
}

/// Each in the namespace that it names.
async fn create<K>(client: &Client, objects: Vec<Value>) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects = objects.into_iter().map(|object| async move {
        let namespace = object["metadata"]["namespace"].as_str();
        let url = K::url_path(&(), namespace);
        let body = serde_json::to_vec(&object)?;
        persist(async || {
            let request = Request::new(&url).create(&PostParams::default(), body.clone());
            let request = request.map_err(kube::Error::BuildRequest)?;
            match client.request::<K>(request).await {
                // An earlier try got through, and its answer was lost.
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
                answer => answer.map(drop),
            }
        })
        .await
    });
    stream::iter(objects)
        .buffer_unordered(WRITERS)
        .try_collect()
        .await
}

/// Connections break under such load, and that is no result.
async fn persist(write: impl AsyncFn() -> kube::Result<()>) -> Result<()> {
    const TRIES: usize = 5;
    for _ in 1..TRIES {
        match write().await {
            Err(kube::Error::Service(_) | kube::Error::HyperError(_)) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            answer => return Ok(answer?),
        }
    }
    Ok(write().await?)
}

/// The jobs' pods, as someone else would create them: without what the API server and the scheduler have added.
pub async fn pods_as_made(client: &Client) -> Result<Vec<Value>> {
    let pods: Api<Pod> = Api::all(client.clone());
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
        "metadata": {"name": metadata.name, "namespace": metadata.namespace, "labels": metadata.labels, "annotations": metadata.annotations},
        "spec": spec,
    }))
}

/// The same in the namespaces of another run.
pub fn moved(mut pods: Vec<Value>, from: &str, to: &str) -> Vec<Value> {
    for pod in &mut pods {
        let namespace = &mut pod["metadata"]["namespace"];
        let moved = namespace.as_str().unwrap_or_default().replacen(from, to, 1);
        *namespace = json!(moved);
    }
    pods
}

/// What a kubelet says of pods whose containers have ended well.
pub async fn end_pods(client: &Client, pods: &[Value]) -> Result<()> {
    let now = jiff::Timestamp::now();
    let ended = json!({"status": {"phase": "Succeeded", "containerStatuses": [{
        "name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}},
    }]}});
    let patch = Patch::Merge(&ended);
    let ends = pods.iter().map(|pod| {
        let patch = &patch;
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        async move {
            let parameters = PatchParams::default();
            persist(async || api.patch_status(name, &parameters, patch).await.map(drop)).await
        }
    });
    let ends: Vec<_> = ends.collect();
    stream::iter(ends)
        .buffer_unordered(WRITERS)
        .try_collect::<()>()
        .await?;
    Ok(())
}

/// Empties the namespaces and waits until they are gone.
pub async fn clear(client: &Client, prefix: &str) -> Result<()> {
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::background()
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for n in 0..TEAMS {
        let request = Request::new(Pod::url_path(&(), Some(&team(prefix, n))));
        let request = request.delete_collection(&at_once, &ListParams::default())?;
        client.request_text(request).await?;
        let background = DeleteParams::background();
        namespaces.delete(&team(prefix, n), &background).await?;
    }
    let begun = Instant::now();
    loop {
        let left = namespaces.list_metadata(&ListParams::default()).await?;
        let is_one = |name: Option<&String>| name.is_some_and(|name| name.starts_with(prefix));
        if !left
            .items
            .iter()
            .any(|left| is_one(left.metadata.name.as_ref()))
        {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("the namespaces {prefix} do not go");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

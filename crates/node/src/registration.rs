//! The Node object: what it says, and keeping it said.
//!
//! A lease is renewed every ten seconds, which is a small write; the status is written when it changes and every five
//! minutes. Labels and taints that people put on the node are left alone.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    Namespace, Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use stoke_api::names::MEMORY_LIMITS_ENFORCED;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::causes::chain;
use crate::cgroup::{CgroupVersion, Cgroups};
use crate::gpu::{self, Gpu};
use crate::machine::{Load, Machine};
use crate::options::NodeOptions;
use crate::quantity::{self, ResourceList};
use crate::resources::{Amounts, CPU, GPU, PODS};
use crate::status::time;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;
const STATUS_EVERY: Duration = Duration::from_secs(300);
/// The Kubernetes version whose behaviour pods meet here, and whose version it is.
const KUBELET_VERSION: &str = concat!("v1.34.0-stokehold-", env!("CARGO_PKG_VERSION"));
/// A kubelet's thresholds for pressure.
const MEMORY_AVAILABLE_MIN_BYTES: u64 = 100 << 20;

/// Everything the Node object is made of, but for the load.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) machine: Machine,
    pub(crate) capacity: Amounts,
    pub(crate) allocatable: Amounts,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) cgroups: Cgroups,
    pub(crate) data_dir: std::path::PathBuf,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Registration {
    pub(crate) fn new(
        options: &NodeOptions,
        machine: Machine,
        gpus: Vec<Gpu>,
        cgroups: Cgroups,
    ) -> Self {
        Self {
            name: options.name.clone(),
            address: options.address.to_string(),
            capacity: machine.capacity(&gpus, options.pods_max),
            allocatable: machine.allocatable(&gpus, options.pods_max),
            machine,
            gpus,
            cgroups,
            data_dir: options.data_dir.clone(),
            labels: options.labels.clone(),
        }
    }

    /// Creates the node or brings an existing one up to date. Returns the conditions written.
    pub(crate) async fn register(
        &self,
        client: &Client,
    ) -> Result<Vec<NodeCondition>, kube::Error> {
        let nodes: Api<Node> = Api::all(client.clone());
        let metadata = json!({"metadata": {"labels": self.labels()}});
        let existing = nodes.get_opt(&self.name).await?;
        if existing.is_some() {
            nodes
                .patch(&self.name, &PatchParams::default(), &Patch::Merge(metadata))
                .await?;
        } else {
            let node = Node {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    labels: Some(self.labels()),
                    ..ObjectMeta::default()
                },
                ..Node::default()
            };
            match nodes.create(&PostParams::default(), &node).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                created => drop(created?),
            }
        }
        let before = existing
            .and_then(|node| node.status?.conditions)
            .unwrap_or_default();
        self.write_status(&nodes, &before).await
    }

    async fn write_status(
        &self,
        nodes: &Api<Node>,
        before: &[NodeCondition],
    ) -> Result<Vec<NodeCondition>, kube::Error> {
        let status = self.status(&Load::read(&self.data_dir), before, Timestamp::now());
        let conditions = status.conditions.clone().unwrap_or_default();
        nodes
            .patch_status(
                &self.name,
                &PatchParams::default(),
                &Patch::Merge(json!({"status": status})),
            )
            .await?;
        Ok(conditions)
    }

    /// Renews the lease and keeps the status true until told to stop.
    pub(crate) async fn keep(
        self,
        client: Client,
        mut conditions: Vec<NodeCondition>,
        shutdown: CancellationToken,
    ) {
        let nodes: Api<Node> = Api::all(client.clone());
        let mut tick = tokio::time::interval(LEASE_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut status_due = Instant::now() + STATUS_EVERY;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            if let Err(error) = self.renew_lease(&client).await {
                tracing::warn!(error = %chain(&error), "the node's lease could not be renewed");
            }
            let now = self.conditions(&Load::read(&self.data_dir), &conditions, Timestamp::now());
            if Instant::now() < status_due && same(&now, &conditions) {
                continue;
            }
            match self.write_status(&nodes, &conditions).await {
                Ok(written) => {
                    conditions = written;
                    status_due = Instant::now() + STATUS_EVERY;
                }
                // Somebody deleted the node: it is still here, and says so.
                Err(kube::Error::Api(status)) if status.is_not_found() => {
                    match self.register(&client).await {
                        Ok(written) => conditions = written,
                        Err(error) => {
                            tracing::warn!(error = %chain(&error), "the node could not be registered again");
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the node's status could not be written");
                }
            }
        }
    }

    async fn renew_lease(&self, client: &Client) -> Result<(), kube::Error> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
        let now = MicroTime(Timestamp::now());
        let patch = json!({"spec": {"renewTime": now, "holderIdentity": self.name, "leaseDurationSeconds": LEASE_SECONDS}});
        match leases
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            renewed => return renewed.map(drop),
        }
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(LEASE_NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        match Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
        {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created?),
        }
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.name.clone()),
                lease_duration_seconds: Some(LEASE_SECONDS),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        };
        leases
            .create(&PostParams::default(), &lease)
            .await
            .map(drop)
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let own = [
            ("kubernetes.io/hostname", self.name.clone()),
            ("kubernetes.io/os", "linux".to_owned()),
            ("kubernetes.io/arch", arch.to_owned()),
            ("node.kubernetes.io/instance-type", "stokehold".to_owned()),
        ];
        let mut labels = self.labels.clone();
        labels.extend(
            own.into_iter()
                .chain(gpu::labels(&self.gpus))
                .map(|(name, value)| (name.to_owned(), value)),
        );
        labels
    }

    fn status(&self, load: &Load, before: &[NodeCondition], now: Timestamp) -> NodeStatus {
        let address = |kind: &str, address: &str| NodeAddress {
            type_: kind.to_owned(),
            address: address.to_owned(),
        };
        NodeStatus {
            capacity: Some(quantities(&self.capacity)),
            allocatable: Some(quantities(&self.allocatable)),
            addresses: Some(vec![
                address("InternalIP", &self.address),
                address("Hostname", &self.name),
            ]),
            conditions: Some(self.conditions(load, before, now)),
            node_info: Some(NodeSystemInfo {
                architecture: self
                    .labels()
                    .remove("kubernetes.io/arch")
                    .unwrap_or_default(),
                operating_system: "linux".to_owned(),
                kernel_version: self.machine.kernel.clone(),
                os_image: self.machine.os_image.clone(),
                machine_id: self.machine.machine_id.clone(),
                boot_id: self.machine.boot_id.clone(),
                system_uuid: self.machine.system_uuid.clone(),
                container_runtime_version: concat!("stokehold://", env!("CARGO_PKG_VERSION"))
                    .to_owned(),
                kubelet_version: KUBELET_VERSION.to_owned(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }
    }

    fn conditions(
        &self,
        load: &Load,
        before: &[NodeCondition],
        now: Timestamp,
    ) -> Vec<NodeCondition> {
        let memory = load.memory_available_bytes < MEMORY_AVAILABLE_MIN_BYTES;
        let disk = load.disk_available_bytes < load.disk_bytes / 10
            || (load.inodes > 0 && load.inodes_free < load.inodes / 20);
        let processes = load.processes > load.processes_max / 20 * 19;
        let (enforced_by, how) = match &self.cgroups {
            Cgroups::Unusable { reason } => (
                "SamplingGuard",
                format!(
                    "memory limits are enforced by sampling, so a fast allocation can exceed one for a moment; CPU and process limits are not enforced: {reason}"
                ),
            ),
            Cgroups::Usable(group) => {
                let by = match group.version() {
                    CgroupVersion::V1 => "CgroupV1",
                    CgroupVersion::V2 => "CgroupV2",
                };
                (
                    by,
                    format!(
                        "memory limits are enforced by the kernel (cgroup {})",
                        group.version()
                    ),
                )
            }
        };
        let pressure = |type_: &str, under: bool, bad: (&str, &str), good: (&str, &str)| {
            let (reason, message) = if under { bad } else { good };
            condition(type_, under, reason, message, before, now)
        };
        vec![
            pressure(
                "MemoryPressure",
                memory,
                (
                    "KubeletHasInsufficientMemory",
                    "the machine has almost no memory available",
                ),
                (
                    "KubeletHasSufficientMemory",
                    "the machine has sufficient memory available",
                ),
            ),
            pressure(
                "DiskPressure",
                disk,
                (
                    "KubeletHasDiskPressure",
                    "the data directory's disk is almost full",
                ),
                (
                    "KubeletHasNoDiskPressure",
                    "the data directory's disk has room",
                ),
            ),
            pressure(
                "PIDPressure",
                processes,
                (
                    "KubeletHasInsufficientPID",
                    "the machine has almost no process ids left",
                ),
                (
                    "KubeletHasSufficientPID",
                    "the machine has sufficient process ids available",
                ),
            ),
            condition(MEMORY_LIMITS_ENFORCED, true, enforced_by, &how, before, now),
            condition(
                "Ready",
                true,
                "KubeletReady",
                "the node runs pods",
                before,
                now,
            ),
        ]
    }
}

fn condition(
    type_: &str,
    holds: bool,
    reason: &str,
    message: &str,
    before: &[NodeCondition],
    now: Timestamp,
) -> NodeCondition {
    let status = if holds { "True" } else { "False" };
    let old = before
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == status);
    NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(time(now)),
        last_transition_time: Some(
            old.and_then(|old| old.last_transition_time.clone())
                .unwrap_or_else(|| time(now)),
        ),
    }
}

/// Whether two sets of conditions say the same, but for when.
fn same(a: &[NodeCondition], b: &[NodeCondition]) -> bool {
    let says = |condition: &NodeCondition| {
        (
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone(),
        )
    };
    a.iter().map(says).eq(b.iter().map(says))
}

/// Amounts as the API spells them.
pub(crate) fn quantities(amounts: &Amounts) -> ResourceList {
    let spell = |(name, amount): (&String, &u64)| {
        let quantity = match name.as_str() {
            CPU => quantity::cores(*amount),
            PODS | GPU => quantity::count(*amount),
            _ => quantity::bytes(*amount),
        };
        (name.clone(), quantity)
    };
    amounts.iter().map(spell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(cgroups: Cgroups) -> Registration {
        let machine = Machine {
            cpu_millis: 8000,
            memory_bytes: 16 << 30,
            disk_bytes: 100 << 30,
            kernel: "6.1.0".to_owned(),
            os_image: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            ..Machine::default()
        };
        let gpus = gpu::simulated(0, 2);
        Registration {
            name: "box".to_owned(),
            address: "127.0.0.1".to_owned(),
            capacity: machine.capacity(&gpus, 110),
            allocatable: machine.allocatable(&gpus, 110),
            machine,
            gpus,
            cgroups,
            data_dir: "/".into(),
            labels: BTreeMap::from([("team".to_owned(), "vision".to_owned())]),
        }
    }

    fn quiet() -> Load {
        Load {
            memory_available_bytes: 8 << 30,
            disk_available_bytes: 50 << 30,
            disk_bytes: 100 << 30,
            inodes_free: 90,
            inodes: 100,
            processes: 100,
            processes_max: 32768,
        }
    }

    #[test]
    fn a_node_says_what_it_has() {
        let unusable = Cgroups::Unusable {
            reason: "no cgroup may be written".to_owned(),
        };
        let node = registration(unusable);
        let at = Timestamp::from_second(1_800_000_000).expect("in range");
        insta::assert_json_snapshot!(node.labels(), @r#"
        {
          "kubernetes.io/arch": "amd64",
          "kubernetes.io/hostname": "box",
          "kubernetes.io/os": "linux",
          "node.kubernetes.io/instance-type": "stokehold",
          "nvidia.com/gpu.count": "2",
          "nvidia.com/gpu.memory": "81920",
          "nvidia.com/gpu.product": "simulated",
          "stokehold.dev/gpu-simulated": "true",
          "team": "vision"
        }
        "#);
        let mut status = node.status(&quiet(), &[], at);
        status.node_info = None;
        insta::assert_json_snapshot!(status);
    }

    #[test]
    fn pressure_shows_and_passes_and_keeps_its_time() {
        let node = registration(Cgroups::Unusable {
            reason: String::new(),
        });
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).expect("in range");
        let first = node.conditions(&quiet(), &[], at(0));
        let still = node.conditions(&quiet(), &first, at(60));
        assert!(same(&first, &still));
        assert_eq!(still[1].last_transition_time, first[1].last_transition_time);
        assert_ne!(still[1].last_heartbeat_time, first[1].last_heartbeat_time);
        let full = node.conditions(
            &Load {
                disk_available_bytes: 1 << 30,
                ..quiet()
            },
            &still,
            at(120),
        );
        assert_eq!(
            (full[1].status.as_str(), full[1].reason.as_deref()),
            ("True", Some("KubeletHasDiskPressure"))
        );
        assert!(!same(&still, &full));
        let few_inodes = node.conditions(
            &Load {
                inodes_free: 1,
                ..quiet()
            },
            &still,
            at(120),
        );
        assert_eq!(few_inodes[1].status, "True");
    }
}

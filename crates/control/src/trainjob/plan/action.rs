//! The writes that a plan may consist of.

use std::fmt;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use stoke_api::JobProfile;

use super::Telling;
use crate::cluster;

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    EnsureClaim(Box<PersistentVolumeClaim>),
    /// The secret itself is drawn when this is carried out.
    EnsureSecret {
        name: String,
    },
    EnsureService(Box<Service>),
    EnsurePolicy(Box<NetworkPolicy>),
    CreatePod(Box<Pod>),
    /// With its grace period; `uid` is the pod that was seen, not one that has its name since.
    DeletePod {
        name: String,
        uid: String,
    },
    DeleteJob {
        uid: String,
    },
    /// Asks a worker for a checkpoint, with a text that says when it was wanted.
    AskToSave {
        name: String,
        uid: String,
        text: String,
    },
    /// Puts into a profile what runs used; on condition that it is as it was read, or is not there.
    Learn(Box<JobProfile>),
    Tell(Telling),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        match self {
            Self::EnsureClaim(claim) => write!(f, "ensure claim {}", name(&claim.metadata.name)),
            Self::EnsureSecret { name } => write!(f, "ensure secret {name}"),
            Self::EnsureService(service) => {
                write!(f, "ensure service {}", name(&service.metadata.name))
            }
            Self::EnsurePolicy(policy) => {
                write!(f, "ensure network policy {}", name(&policy.metadata.name))
            }
            Self::CreatePod(pod) => {
                let node = cluster::node_of(pod).unwrap_or("no node");
                write!(f, "create pod {} on {node}", name(&pod.metadata.name))
            }
            Self::DeletePod { name, .. } => write!(f, "delete pod {name}"),
            Self::DeleteJob { .. } => f.write_str("delete the job"),
            Self::AskToSave { name, .. } => write!(f, "ask pod {name} for a checkpoint"),
            Self::Learn(profile) => write!(
                f,
                "learn {}: {} runs",
                name(&profile.metadata.name),
                profile.spec.runs
            ),
            Self::Tell(telling) => write!(f, "tell {telling}"),
        }
    }
}

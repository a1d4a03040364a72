//! Volume claims as placement sees them: who may mount them, and from where their volumes can be reached.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use stoke_sched::Term;

/// A claim that a job names, as far as it is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    /// Pods on several nodes may mount it at once. Of a claim that says nothing this is not known to be wrong.
    pub shared: bool,
    /// A node must satisfy one of these to reach its volume. Empty: every node does, or there is no volume yet.
    pub reach: Vec<Term>,
}

impl Claim {
    /// `volume` is the one the claim is bound to, if it is there.
    pub fn of(claim: &PersistentVolumeClaim, volume: Option<&PersistentVolume>) -> Self {
        let modes = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.access_modes.as_ref());
        let several = |mode: &String| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany");
        let required = volume
            .and_then(|volume| volume.spec.as_ref())
            .and_then(|spec| spec.node_affinity.as_ref())
            .and_then(|affinity| affinity.required.as_ref());
        Self {
            shared: modes.is_none_or(|modes| modes.is_empty() || modes.iter().any(several)),
            // What we cannot read, kube-scheduler still heeds.
            reach: required
                .and_then(|required| super::selected(required).ok())
                .unwrap_or_default(),
        }
    }

    /// The volume a claim is bound to.
    pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
        let name = claim.spec.as_ref()?.volume_name.as_deref();
        name.filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_tells_who_may_mount_it_and_where() {
        let claim = |modes: &[&str]| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"spec": {"accessModes": modes, "volumeName": "v"}}))
                .expect("a claim")
        };
        assert!(!Claim::of(&claim(&["ReadWriteOnce"]), None).shared);
        assert!(Claim::of(&claim(&["ReadWriteOnce", "ReadOnlyMany"]), None).shared);
        assert_eq!(Claim::volume_name(&claim(&[])), Some("v"));
        let volume: PersistentVolume = serde_json::from_value(
            json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]},
            ]}}}}),
        )
        .expect("a volume");
        assert_eq!(Claim::of(&claim(&[]), Some(&volume)).reach.len(), 1);
        assert!(
            Claim::of(&claim(&[]), Some(&PersistentVolume::default()))
                .reach
                .is_empty()
        );
    }
}

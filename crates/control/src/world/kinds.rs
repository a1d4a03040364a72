//! The kinds that are mirrored, and what is kept of each.

use std::fmt;

use k8s_openapi::api::core::v1::{self as core, Node, PersistentVolume, PersistentVolumeClaim};
use serde::de::DeserializeOwned;
use stoke_api::{Dataset, JobProfile, Queue, TrainJob};

use super::{Wakes, World};
use crate::mirror::{Change, Mirror, Mirrored};
use crate::seen;

/// A kind that is mirrored.
pub trait Kind:
    kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
    /// What is kept of it.
    type Seen: Mirrored + fmt::Debug;

    fn see(self) -> Self::Seen;

    fn mirror(world: &mut World) -> &mut Mirror<Self::Seen>;

    /// Takes note of a change in the mirror, and says who is concerned.
    fn changed(world: &mut World, change: &Change<Self::Seen>) -> Wakes;
}

impl Kind for TrainJob {
    type Seen = Self;

    /// Our own copy of what kubectl has sent is the spec once more.
    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        if let Some(annotations) = &mut self.metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.jobs
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.job_changed(change)
    }
}

impl Kind for core::Pod {
    type Seen = seen::Pod;

    fn see(self) -> seen::Pod {
        self.into()
    }

    fn mirror(world: &mut World) -> &mut Mirror<seen::Pod> {
        &mut world.pods
    }

    fn changed(world: &mut World, change: &Change<seen::Pod>) -> Wakes {
        world.pod_changed(change)
    }
}

impl Kind for Node {
    type Seen = Self;

    /// The list of images alone is larger than all the rest.
    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self.metadata.annotations = None;
        if let Some(status) = &mut self.status {
            status.images = None;
            status.volumes_attached = None;
            status.volumes_in_use = None;
            status.node_info = None;
            status.config = None;
        }
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.nodes
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.node_changed(change)
    }
}

impl Kind for Dataset {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.datasets
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.dataset_changed(change)
    }
}

impl Kind for JobProfile {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.profiles
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.profile_changed(change)
    }
}

impl Kind for PersistentVolumeClaim {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.claims
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.claim_changed(change)
    }
}

impl Kind for PersistentVolume {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.volumes
    }

    /// What matters of a volume is known when its claim is bound to it, and that is told of the claim.
    fn changed(_: &mut World, _: &Change<Self>) -> Wakes {
        Wakes::default()
    }
}

impl Kind for Queue {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.queues
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.queue_changed(change)
    }
}

//! Attempts whose nodes an autoscaler has yet to bring.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::trainjob::Attempt;

use super::{Turn, after};
use crate::trainjob::workers::Worker;

/// For attempts without nodes that an operator with autoscaling left behind.
const AUTOSCALING_DEADLINE: Duration = Duration::from_secs(900);

impl Turn<'_> {
    /// Pods without a node are bound one by one, wherever there is room: nobody can promise that they will be near each other.
    pub(super) fn may_run_anywhere(&self) -> bool {
        let topology = self.job.spec.topology.as_ref();
        topology.is_none_or(|topology| topology.required.is_none())
    }

    /// When an attempt whose nodes have yet to come is given up; none where it has them all.
    pub(super) fn awaits_nodes(&self, attempt: &Attempt) -> Option<Timestamp> {
        let limit = self.config.autoscaling.unwrap_or(AUTOSCALING_DEADLINE);
        let placed = attempt.placed_at.as_ref().map_or(self.now, |time| time.0);
        let awaits = attempt.nodes.iter().any(String::is_empty);
        awaits.then(|| after(placed, limit))
    }

    /// Puts on record where workers are that were made without a node, when all have one.
    pub(super) fn read_nodes(&mut self) {
        let Some(attempt) = self.live() else { return };
        if self.awaits_nodes(&attempt).is_none() {
            return;
        }
        let ranks = self.ranks(&attempt);
        let node = |worker: &Option<Worker<'_>>| {
            let bound = worker.as_ref()?.pod.spec.node_name.as_deref();
            bound.map(str::to_owned)
        };
        let nodes: Option<Vec<String>> = ranks.iter().map(node).collect();
        if let (Some(nodes), Some(attempt)) = (nodes, self.status.attempts.last_mut()) {
            attempt.nodes = nodes;
            attempt.placed_at = Some(Time(self.now));
        }
    }
}

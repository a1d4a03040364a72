//! What the next attempt does differently, by what the last one died of.

use stoke_api::trainjob::{Attempt, Outcome};
use stoke_api::{Bytes, GpuRequest};
use stoke_memory::{
    Advised, Blame, Case, Diagnosis, Had, Recovery, Room, Tried, recover, share_of,
};
use stoke_sched::{Node, is_of_type};

use super::{Turn, placing};
use crate::config::Home;
use crate::trainjob::template;
use crate::trainjob::workers::Worker;

/// A status keeps several attempts, so each keeps little of why it is different.
const WHY_LENGTH_MAX: usize = 300;

impl Turn<'_> {
    /// Puts on record what the next attempt is given. The error says why there is no use in another.
    pub(super) fn recover(&mut self, diagnosis: &Diagnosis) -> Result<(), String> {
        let Some(attempt) = self.status.attempts.last().cloned() else {
            return Ok(());
        };
        // That its retries are used up is said in other words.
        let left = self.retries_left();
        if diagnosis.blame == Blame::Job && left == 0 {
            return Ok(());
        }
        let advice = placing::advice(self);
        let tried: Vec<Tried> = self
            .status
            .attempts
            .iter()
            .filter_map(|it| self.tried(it))
            .collect();
        let case = Case {
            diagnosis,
            tried: &tried,
            retries_left: left,
            memory_max: self.job.spec.memory.as_ref().and_then(|memory| memory.max),
            checkpoints: self.job.spec.checkpoint.is_some(),
            had: &self.had(&attempt, diagnosis),
            room: &self.room_for_more(&attempt),
            advice: advice.map(|advice| Advised {
                memory: Some(advice.limit),
                shm: advice.shm,
                storage: advice.storage,
            }),
        };
        match recover(&case) {
            Recovery::GiveUp { why } => Err(why),
            Recovery::Again { changes, why } => {
                let mut tuning = attempt.tuning;
                for change in &changes {
                    change.apply(&mut tuning);
                }
                self.status.changed_for = if changes.is_empty() {
                    String::new()
                } else {
                    why.chars().take(WHY_LENGTH_MAX).collect()
                };
                self.status.changes = changes.iter().map(ToString::to_string).collect();
                self.status.tuning = tuning;
                Ok(())
            }
        }
    }

    /// How many more failures like the last the job may have: by its retries, and by the limit of its cause.
    fn retries_left(&self) -> u32 {
        let all = (self.job.spec.retries + 1).saturating_sub(self.status.failures);
        let of_cause = self
            .last_of_its_cause()
            .map(|(_, limit, failures)| (u64::from(limit) + 1).saturating_sub(u64::from(failures)));
        of_cause.map_or(all, |left| all.min(u32::try_from(left).unwrap_or(u32::MAX)))
    }

    /// An attempt that was stopped for the good of others says nothing about what helps.
    fn tried(&self, attempt: &Attempt) -> Option<Tried> {
        let outcome = attempt.outcome?;
        if !matches!(outcome, Outcome::Failed | Outcome::Interrupted) {
            return None;
        }
        let saved = self.status.last_checkpoint.as_ref();
        let ran = attempt.running_at.as_ref();
        // Who was begun anew in time before this has shown that it gets on, and was too late only once.
        let before = self
            .status
            .attempts
            .iter()
            .rfind(|it| it.number < attempt.number);
        let was_in_time = before.is_some_and(|it| it.outcome == Some(Outcome::Restarted));
        let progressed = match saved {
            Some(saved) => was_in_time || ran.is_some_and(|ran| saved.0 >= ran.0),
            // Nobody sees the checkpoints of a cluster's jobs. Who was asked for one is believed to have written it: retries bound that.
            None => self.config.home == Home::Cluster && self.was_asked_to_save(attempt),
        };
        Some(Tried {
            finding: attempt.diagnosis.clone().unwrap_or_default(),
            tuning: attempt.tuning.clone(),
            progressed,
        })
    }

    fn was_asked_to_save(&self, attempt: &Attempt) -> bool {
        let own = |worker: &&Worker<'_>| worker.attempt == attempt.number;
        let mut workers = self.workers.iter().filter(own);
        workers.any(|worker| worker.pod.metadata.checkpoint_request.is_some())
    }

    fn had(&self, attempt: &Attempt, diagnosis: &Diagnosis) -> Had {
        let sizing = attempt.memory.clone().unwrap_or_default();
        let limit = diagnosis.facts.limit.unwrap_or(sizing.limit);
        let said = template::sizes(self.job);
        let ran = attempt
            .running_at
            .as_ref()
            .zip(attempt.finished_at.as_ref());
        let seconds = ran.map_or(0, |(from, to)| to.0.duration_since(from.0).as_secs());
        let workers = self
            .workers
            .iter()
            .filter(|it| it.attempt == attempt.number);
        let steps = workers.filter_map(|worker| worker.digest()?.steps);
        let gpus = attempt
            .nodes
            .iter()
            .filter_map(|name| self.gpu_memory(name));
        Had {
            memory: limit,
            request: sizing.request,
            shm: Some(attempt.shm.or(said.shm).unwrap_or(limit)),
            storage: attempt.tuning.storage.or(said.storage).or(attempt.storage),
            gpu_memory: gpus.min(),
            seconds: u64::try_from(seconds).unwrap_or(0),
            steps: steps
                .map(|steps| steps.last.saturating_sub(steps.first))
                .max(),
        }
    }

    /// Of one GPU of a node, or of the part that a worker has of it.
    fn gpu_memory(&self, node: &str) -> Option<Bytes> {
        let node = self.observed.cluster.node(node)?;
        let memory = node.gpu.as_ref()?.memory?;
        let part = match self.job.spec.gpus {
            GpuRequest::None => return None,
            GpuRequest::Fraction(milli) => u64::from(milli.0),
            _ => 1000,
        };
        Some(Bytes(memory.0 / 1000 * part)).filter(|bytes| bytes.0 > 0)
    }

    /// What its workers could be given, the best of all nodes.
    fn room_for_more(&self, attempt: &Attempt) -> Room {
        let Ok(nodes) = placing::nodes(self) else {
            return Room::default();
        };
        let shares = || {
            let shared = |node: &&&Node| placing::share(self, node, nodes.len());
            nodes
                .iter()
                .filter_map(move |node| Some((*node, shared(&node)?)))
        };
        // A tenth of each is used by what runs on every node: a worker that was promised all of it would wait for ever.
        let memory = shares().map(|(node, share)| {
            Bytes(node.allocatable.memory.0 / 10 * 9 / u64::from(share.workers.max(1)))
        });
        let storage =
            shares().map(|(node, share)| Bytes(share_of(node.allocatable.storage.0, &share)));
        let is_other = |node: &&&Node| {
            let name = &node.name;
            !attempt.nodes.contains(name) && !attempt.tuning.avoid_nodes.contains(name)
        };
        Room {
            memory: memory.max(),
            storage: storage.max().filter(|_| self.config.home == Home::Cluster),
            // Where its checkpoints have a volume, there are more.
            volumes: self.config.home == Home::Machine || self.job.spec.checkpoint.is_some(),
            other_nodes: u32::try_from(nodes.iter().filter(is_other).count()).unwrap_or(u32::MAX),
            gpu_types: self.gpu_types(),
        }
    }

    /// The GPU types that the job allows and that exist, with the memory of each.
    fn gpu_types(&self) -> Vec<(String, Bytes)> {
        let gpus = || {
            self.observed
                .cluster
                .nodes()
                .filter_map(|node| node.gpu.as_ref())
        };
        let types = self.job.spec.gpu_types.iter().filter_map(|name| {
            let of_it = gpus().filter(|gpu| is_of_type(name, gpu));
            // Of several, it may be given the smallest.
            let memory = of_it.filter_map(|gpu| gpu.memory).min()?;
            Some((name.clone(), memory))
        });
        types.collect()
    }
}

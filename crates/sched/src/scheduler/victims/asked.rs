//! Who may be asked to make room, and what would be lost with each.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use stoke_api::trainjob::Priority;

use crate::gang::Gang;
use crate::place::Plan;
use crate::queues::{Account, Milli, Part, QueueId, Right, TOP, UNNAMED};
use crate::scheduler::cycle::{Candidate, Cycle};
use crate::scheduler::job::{Change, JobId, later};
use crate::scheduler::room::part;
use crate::scheduler::{Entry, Holding, State};

/// What is lost with a victim, the least first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// An elastic gang that gives up some workers goes on with the others.
    pub is_whole: bool,
    priority: Priority,
    minds_spot: bool,
    /// Thousandths of a GPU, times seconds since its last checkpoint.
    unsaved: u64,
    /// Who has just begun gives up least of its place on the nodes.
    since: Reverse<Timestamp>,
    pub id: JobId,
}

/// A gang, or the workers that an elastic one can do without. Where both are asked for, the gang is what remains.
#[derive(Debug, Clone)]
pub struct Victim<'a> {
    pub loss: Loss,
    /// What comes free.
    pub plan: Plan,
    /// The workers that go on.
    pub keeps: u32,
    pub gang: &'a Gang,
    pub queue: QueueId,
    pub account: Account,
    /// GPUs that it gives up before this.
    pub surplus: Milli,
}

/// Whom a job may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// Those whose room it has a right to.
    Right,
    /// Elastic gangs that are no more important, for the workers that they can do without and that are not guaranteed to them.
    Surplus,
}

impl Cycle<'_> {
    /// All who may have to make room for a job: those of its own queue, and of others who are not covered by what is guaranteed to them.
    pub fn borrowers(&mut self, job: &Candidate) -> Vec<Arc<Vec<JobId>>> {
        let mut all = Vec::new();
        for guarantor in self.s.queues.guarantors() {
            // Against a job of the same guarantor nobody is covered by it.
            let is_shared = self.s.queues.chain(job.queue).any(|at| at == guarantor);
            if is_shared || guarantor == TOP {
                all.push(Arc::new(self.s.held_under(guarantor)));
                continue;
            }
            if !self.found.borrowers.contains_key(&guarantor) {
                let mut beyond = self.s.held_under(guarantor);
                beyond.retain(|id| !self.is_covered(id));
                self.found.borrowers.insert(guarantor, Arc::new(beyond));
            }
            all.extend(self.found.borrowers.get(&guarantor).cloned());
        }
        all
    }

    /// Is all that a job uses covered by the nearest guarantee?
    fn is_covered(&self, id: &JobId) -> bool {
        let entry = &self.s.jobs[id];
        let State::Has(holding) = &entry.state else {
            return true;
        };
        let queue = entry.queue.unwrap_or(UNNAMED);
        let part = Part {
            gpus: holding.account.used.gpus,
            surplus: Milli::default(),
        };
        self.s.queues.is_covered(queue, &part)
    }

    pub fn may_be_asked(
        &self,
        job: &Candidate,
        demand: Demand,
        asked: &[Arc<Vec<JobId>>],
    ) -> Vec<Victim<'_>> {
        let mut victims = Vec::new();
        for id in asked.iter().flat_map(|some| some.iter()) {
            let Some(entry) = self.s.jobs.get(id) else {
                continue;
            };
            let State::Has(holding) = &entry.state else {
                continue;
            };
            let is_asked = matches!(holding.change, Change::Yields | Change::Shrinks { .. });
            // Nobody is asked to leave in the moment in which it came.
            let is_settled = holding.is_on_record && holding.since < self.now;
            if is_settled && !is_asked && !entry.job.is_production() {
                let all = holding.plan.nodes.len() as u32;
                let least = entry.workers_min().min(all);
                let surplus = self.victim(entry, holding, least..all);
                let mut rest = self.victim(entry, holding, 0..least);
                rest.surplus = surplus.account.used.gpus;
                let parts = [surplus, rest].into_iter();
                let parts = parts.filter(|part| !part.plan.nodes.is_empty());
                victims.extend(parts.filter(|part| self.is_for(job, demand, entry, holding, part)));
            }
        }
        victims
    }

    fn victim<'e>(&self, entry: &'e Entry, holding: &Holding, ranks: Range<u32>) -> Victim<'e> {
        let plan = part(&holding.plan, |rank, _| ranks.contains(&(rank as u32)));
        let milli = self.s.shapes.get(entry.shape).milli;
        let used = self.s.room.used_by(&plan, &entry.job.gang, milli);
        Victim {
            loss: self.loss(entry, holding, ranks.start == 0),
            plan,
            keeps: ranks.start,
            gang: &entry.job.gang,
            queue: entry.queue.unwrap_or(UNNAMED),
            account: Account {
                used,
                priority: entry.job.priority,
                ..Account::default()
            },
            surplus: Milli::default(),
        }
    }

    /// May this be asked of a job?
    fn is_for(
        &self,
        job: &Candidate,
        demand: Demand,
        entry: &Entry,
        holding: &Holding,
        victim: &Victim<'_>,
    ) -> bool {
        let queues = &self.s.queues;
        let part = victim.part();
        let is_own = victim.queue == job.queue;
        match demand {
            Demand::Surplus => {
                victim.keeps > 0
                    && entry.job.priority <= job.priority
                    && (is_own || !queues.is_guaranteed(victim.queue, &part, job.queue))
            }
            Demand::Right => {
                let is_claimed = job.right != Right::Allowed && !is_own;
                let yields = if is_own {
                    entry.job.priority < job.priority
                } else {
                    queues.must_yield(victim.queue, &part, job.queue, job.right)
                };
                yields && (is_claimed || !self.is_protected(entry, holding))
            }
        }
    }

    /// Has it just started, after it had waited for long? To be preempted at once would make its turn a turn in vain.
    fn is_protected(&self, entry: &Entry, holding: &Holding) -> bool {
        let patience = self.s.policy.patience;
        let since = holding.since;
        later(entry.job.waits_since, patience).is_some_and(|due| due <= since)
            && later(since, patience).is_some_and(|until| self.now < until)
    }

    fn loss(&self, entry: &Entry, holding: &Holding, is_whole: bool) -> Loss {
        let saved_at = holding.saved_at.unwrap_or(holding.since).max(holding.since);
        let unsaved = self.now.duration_since(saved_at).as_secs();
        let milli = holding.account.used.gpus.total();
        Loss {
            is_whole,
            priority: entry.job.priority,
            minds_spot: !entry.job.tolerates_spot(),
            unsaved: milli.saturating_mul(u64::try_from(unsaved).unwrap_or(0)),
            since: Reverse(holding.since),
            id: entry.job.id.clone(),
        }
    }
}

impl Victim<'_> {
    pub fn part(&self) -> Part {
        Part {
            gpus: self.account.used.gpus,
            surplus: self.surplus,
        }
    }
}

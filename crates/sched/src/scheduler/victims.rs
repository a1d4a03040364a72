//! Who makes room for a job that has a right to it.
//!
//! Never a production job. Of another queue only who is beyond what is guaranteed to it, and of the same queue only who is less important.
//! They are taken in the order of what is lost with them, whole gangs, and none that turns out not to be needed. Elastic gangs are first asked
//! for the workers that they can do without. Who was asked already is counted as gone, so that nobody else is asked for the same room.

mod asked;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub use self::asked::Demand;
use self::asked::Victim;
use super::cycle::{Candidate, Cycle};
use super::job::{Change, Claim, Decision, JobId};
use super::reserve::first_enough;
use super::room::{is_overfull, part};
use super::{Scheduler, State};
use crate::gang::Gang;
use crate::place::{Plan, find};
use crate::queues::{Account, Mask, Milli, Queues, Right, UNNAMED, When};
use crate::snapshot::Snapshot;

/// Nodes that are looked at one by one, where taking victims from everywhere did not do.
const NODES_TRIED: usize = 64;

/// What is asked of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    id: JobId,
    /// The workers that go on; none where the job is preempted.
    keeps: u32,
}

/// The cluster without some victims.
#[derive(Clone)]
struct Without {
    room: Snapshot,
    queues: Queues,
}

/// What a job would have.
struct Taken<'a> {
    nodes: BTreeSet<&'a str>,
    gpus: Milli,
}

impl Cycle<'_> {
    /// Promises a job room that others give back, and asks them to where they were not asked already. False where that is not enough.
    pub fn make_room(&mut self, job: &Candidate, mask: Mask, demand: Demand) -> bool {
        let key = (job.queue, job.priority, job.shape, mask, demand);
        if self.found.spared.contains(&key) {
            return false;
        }
        let gang = self.s.shapes.gang(job.shape, mask, &self.s.room.models);
        let Some((victims, plan)) = self.choose(job, &gang, demand) else {
            self.found.spared.insert(key);
            return false;
        };
        if !victims.is_empty() {
            self.ask_to_leave(job, &victims, demand);
            self.has_asked = true;
            // What they give up beyond what is needed may do for others.
            self.found.spared.clear();
            self.found.denied.clear();
            self.found.borrowers.clear();
        }
        let from = self.s.leaving.iter();
        let plan_nodes: BTreeSet<&String> = plan.nodes.iter().collect();
        let gives = |id: &&JobId| match &self.s.jobs[*id].state {
            State::Has(holding) => holding
                .plan
                .nodes
                .iter()
                .any(|node| plan_nodes.contains(node)),
            State::Waits(_) => false,
        };
        let from: Vec<JobId> = from.filter(gives).cloned().collect();
        self.settle(job, &plan, &gang, from);
        true
    }

    /// Whom to ask, and the room that there is then.
    fn choose(
        &mut self,
        job: &Candidate,
        gang: &Gang,
        demand: Demand,
    ) -> Option<(Vec<Asked>, Plan)> {
        let soon = self.soon().clone();
        if !self.s.leaving.is_empty() {
            let plan = self.would_fit(job, gang, &soon, &self.s.queues);
            if let Some(plan) = plan {
                return Some((Vec::new(), plan));
            }
        }
        let asked = self.borrowers(job);
        let mut victims = self.may_be_asked(job, demand, &asked);
        if victims.is_empty() {
            return None;
        }
        victims.sort_by(|a, b| a.loss.cmp(&b.loss));
        let start = Without {
            room: soon,
            queues: self.s.queues.clone(),
        };
        let everyone = self.fewest(job, gang, &start, &victims);
        let (chosen, plan) = everyone?;
        if is_fair(job, &start.queues, &chosen) {
            return Some(names(&chosen, plan));
        }
        // Some queue would lose more than it has borrowed. Each gives up no more than that, or all of it on one node.
        let fair = fair_part(job, &start.queues, victims.iter());
        let found = self.fewest(job, gang, &start, &fair).or_else(|| {
            let mut nodes: Vec<&String> = Vec::new();
            let all = victims.iter().flat_map(|victim| &victim.plan.nodes);
            for node in all {
                if nodes.len() < NODES_TRIED && !nodes.contains(&node) {
                    nodes.push(node);
                }
            }
            nodes.into_iter().find_map(|node| {
                let there = victims
                    .iter()
                    .filter(|victim| victim.plan.nodes.contains(node));
                let fair = fair_part(job, &start.queues, there);
                self.fewest(job, gang, &start, &fair)
            })
        });
        found.map(|(chosen, plan)| names(&chosen, plan))
    }

    /// The first of these that are enough, without those that are not needed.
    fn fewest<'v>(
        &self,
        job: &Candidate,
        gang: &Gang,
        start: &Without,
        victims: &[Victim<'v>],
    ) -> Option<(Vec<Victim<'v>>, Plan)> {
        let advance =
            |state: Without, asked: Range<usize>| victims[asked].iter().fold(state, Without::less);
        let (count, mut state, plan) =
            first_enough(victims.len(), start.clone(), advance, |state| {
                self.would_fit(job, gang, &state.room, &state.queues)
            })?;
        state.room.take(&plan, gang);
        let taken = Taken {
            nodes: plan.nodes.iter().map(String::as_str).collect(),
            gpus: self.gpus_of(job, &plan, gang),
        };
        let mut chosen: Vec<Victim<'v>> = Vec::new();
        // The dearest is the first to be spared.
        for victim in victims[..count].iter().rev() {
            let same = |kept: &Victim<'_>| kept.loss.id == victim.loss.id;
            let goes_whole = chosen.iter().any(same);
            if goes_whole || !state.spare(job, &taken, victim) {
                chosen.push(victim.clone());
            }
        }
        chosen.reverse();
        for victim in chosen.iter_mut().filter(|victim| victim.keeps > 0) {
            self.keep_most(job, &taken, &mut state, victim);
        }
        Some((chosen, plan))
    }

    /// Of the workers that an elastic gang could do without, as many go on as can.
    fn keep_most(
        &self,
        job: &Candidate,
        taken: &Taken<'_>,
        state: &mut Without,
        victim: &mut Victim<'_>,
    ) {
        let milli = self.milli_of(&victim.loss.id);
        while victim.plan.nodes.len() > 1 {
            let first = part(&victim.plan, |rank, _| rank == 0);
            let used = self.s.room.used_by(&first, victim.gang, milli);
            let one = Victim {
                account: Account {
                    used,
                    ..victim.account
                },
                plan: first,
                ..victim.clone()
            };
            if !state.spare(job, taken, &one) {
                return;
            }
            victim.keeps += 1;
            victim.plan = part(&victim.plan, |rank, _| rank > 0);
            victim.account.used -= used;
        }
    }

    fn milli_of(&self, id: &JobId) -> u64 {
        let entry = self.s.jobs.get(id);
        entry.map_or(0, |entry| self.s.shapes.get(entry.shape).milli)
    }

    fn would_fit(
        &self,
        job: &Candidate,
        gang: &Gang,
        room: &Snapshot,
        queues: &Queues,
    ) -> Option<Plan> {
        let milli = self.s.shapes.get(job.shape).milli_min();
        let capacity = &self.s.room.capacity.gpus;
        let mut models = self.s.shapes.get(job.shape).models.models();
        let may = |gpus: Milli| may_have(job, gpus, queues);
        let is_allowed = milli == 0
            || models.any(|model| capacity.get(model) > 0 && may(Milli::of(model, milli)));
        if !is_allowed {
            return None;
        }
        let plan = find(&self.found.views.less_reserved(room.clone()), gang)?;
        may(self.gpus_of(job, &plan, gang)).then_some(plan)
    }

    fn gpus_of(&self, job: &Candidate, plan: &Plan, gang: &Gang) -> Milli {
        let milli = self.s.shapes.get(job.shape).milli;
        self.s.room.used_by(plan, gang, milli).gpus
    }

    fn ask_to_leave(&mut self, job: &Candidate, asked: &[Asked], demand: Demand) {
        let is_other = |asked: &Asked| self.s.jobs[&asked.id].queue.unwrap_or(UNNAMED) != job.queue;
        let why = match (demand, job.right) {
            (Demand::Surplus, _) => Claim::Surplus,
            (Demand::Right, Right::Guaranteed(queue)) if asked.iter().any(is_other) => {
                Claim::Guarantee {
                    queue: self.s.queues.name(queue).to_owned(),
                }
            }
            (Demand::Right, _) => Claim::Priority,
        };
        let mut victims = Vec::new();
        for Asked { id, keeps } in asked {
            if let Some((plan, gang)) = self.s.stays(id) {
                let goes = part(&plan, |rank, _| rank >= *keeps as usize);
                self.found.views.leave(&goes, gang);
            }
            if *keeps == 0 {
                self.s.change(id, Change::Yields);
                victims.push(id.clone());
                continue;
            }
            self.s.change(id, Change::Shrinks { to: *keeps });
            self.decisions.push(Decision::Shrink {
                job: id.clone(),
                to: *keeps,
                for_job: job.id.clone(),
                why: why.clone(),
            });
        }
        if !victims.is_empty() {
            self.decisions.push(Decision::Preempt {
                victims,
                for_job: job.id.clone(),
                why,
            });
        }
    }
}

fn may_have(job: &Candidate, gpus: Milli, queues: &Queues) -> bool {
    if gpus.total() == 0 {
        return true;
    }
    let right = queues.admit(&job.asks(gpus, When::Soon));
    job.is_enough(&right)
}

/// Does each queue lose only what it has borrowed, but for what one gang is larger than that?
fn is_fair(job: &Candidate, queues: &Queues, chosen: &[Victim<'_>]) -> bool {
    let mut by_size: Vec<&Victim<'_>> = chosen.iter().collect();
    by_size.sort_by_key(|victim| victim.account.used.gpus.total());
    fair_part(job, queues, by_size.into_iter()).len() == chosen.len()
}

/// Those of them who are beyond their guarantee when all before them have gone.
fn fair_part<'v: 'i, 'i>(
    job: &Candidate,
    queues: &Queues,
    victims: impl Iterator<Item = &'i Victim<'v>>,
) -> Vec<Victim<'v>> {
    let mut queues = queues.clone();
    let mut fair = Vec::new();
    let mut gone = BTreeSet::new();
    for victim in victims {
        let mut part = victim.part();
        if gone.contains(&victim.loss.id) {
            part.surplus = Milli::default();
        }
        let yields = victim.queue == job.queue
            || queues.must_yield(victim.queue, &part, job.queue, job.right);
        if yields {
            queues.remove(victim.queue, &victim.account);
            gone.insert(&victim.loss.id);
            fair.push(victim.clone());
        }
    }
    fair
}

fn names(chosen: &[Victim<'_>], plan: Plan) -> (Vec<Asked>, Plan) {
    let mut asked: BTreeMap<JobId, u32> = BTreeMap::new();
    for victim in chosen {
        let keeps = asked.entry(victim.loss.id.clone()).or_insert(u32::MAX);
        *keeps = victim.keeps.min(*keeps);
    }
    let asked = asked.into_iter().map(|(id, keeps)| Asked { id, keeps });
    (asked.collect(), plan)
}

impl Without {
    fn less(mut self, victim: &Victim<'_>) -> Self {
        self.room.give_back(&victim.plan, victim.gang);
        self.queues.remove(victim.queue, &victim.account);
        self
    }

    /// Lets a victim stay, where the job has its room all the same.
    fn spare(&mut self, job: &Candidate, taken: &Taken<'_>, victim: &Victim<'_>) -> bool {
        self.room.take(&victim.plan, victim.gang);
        self.queues.add(victim.queue, &victim.account);
        let mut nodes = victim.plan.nodes.iter();
        let is_in_the_way = nodes.any(|node| {
            taken.nodes.contains(node.as_str()) && self.room.node(node).is_some_and(is_overfull)
        });
        let is_spared = !is_in_the_way && may_have(job, taken.gpus, &self.queues);
        if !is_spared {
            self.room.give_back(&victim.plan, victim.gang);
            self.queues.remove(victim.queue, &victim.account);
        }
        is_spared
    }
}

impl Scheduler {
    /// A job that has room is asked to change.
    pub(super) fn change(&mut self, id: &JobId, change: Change) {
        let Some(entry) = self.jobs.get(id).cloned() else {
            return;
        };
        let State::Has(mut holding) = entry.state else {
            return;
        };
        self.forget(id);
        let shape = self.shapes.enter(&entry.job.gang, &self.room.models);
        if let Change::Grows { plan } = &change {
            self.room
                .set_aside(id, plan.clone(), entry.job.gang.clone());
        }
        holding.change = change;
        self.hold(entry.job, entry.queue, shape, *holding);
    }
}

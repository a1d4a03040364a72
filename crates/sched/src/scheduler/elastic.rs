//! Elastic gangs start with the fewest workers that they can do with, and grow into room that nobody who waits could use.
//!
//! What a job started with in this cycle is enlarged at once; a job that runs is asked to grow at a checkpoint. Who waits later gets the
//! room back: see `victims.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use stoke_api::trainjob::Priority;

use super::cycle::{Candidate, Cycle, Pass};
use super::job::{Change, Decision, JobId};
use super::shapes::{ShapeId, workers_min};
use super::{Entry, Scheduler, State};
use crate::gang::{Gang, Topology};
use crate::place::{Plan, candidates, find_near};
use crate::queues::{Account, Ask, Mask, Milli, ModelId, QueueId, Queues, Right, When};
use crate::snapshot::Snapshot;

/// Shapes that are asked which nodes they could use. Where more wait, nobody grows.
const BLOCKED_MAX: usize = 16;

impl Cycle<'_> {
    /// Does any elastic gang have workers that it could do without?
    pub fn has_surplus(&self) -> bool {
        self.s.elastic.iter().any(|id| {
            let entry = self.s.jobs.get(id);
            entry.is_some_and(|entry| match &entry.state {
                State::Has(holding) => holding.plan.nodes.len() as u32 > entry.workers_min(),
                State::Waits(_) => false,
            })
        })
    }

    /// Gives what nobody waits for to elastic gangs. False where none got anything.
    pub fn grow(&mut self) -> bool {
        let small = self.s.that_may_grow();
        if small.is_empty() {
            return false;
        }
        // Who started since may have used up what another's queue was allowed.
        let mut blocked = std::mem::take(&mut self.found.blocked);
        blocked.retain(|kind| self.may_start(*kind, &self.s.queues));
        self.found.blocked = blocked;
        if self.found.blocked.len() > BLOCKED_MAX {
            return false;
        }
        let mut idle = self.found.views.open(&self.s.room.now).clone();
        for (_, _, shape) in &self.found.blocked {
            let gang = &self.s.shapes.get(*shape).gang;
            let wanted: BTreeSet<String> = candidates(&idle, gang)
                .into_iter()
                .map(|node| node.name.clone())
                .collect();
            for node in wanted {
                idle.remove(&node);
            }
        }
        let mut has_grown = false;
        for id in small {
            has_grown |= self.grow_one(&id, &mut idle).is_some();
        }
        has_grown
    }

    fn grow_one(&mut self, id: &JobId, idle: &mut Snapshot) -> Option<()> {
        let entry = self.s.jobs.get(id)?;
        let State::Has(holding) = &entry.state else {
            return None;
        };
        let (is_on_record, has) = (holding.is_on_record, holding.plan.clone());
        let gang = entry.job.gang.clone();
        let more = self.more(entry, &has, idle)?;
        idle.take(&more, &gang);
        if is_on_record {
            let plan = more.clone();
            self.s.change(id, Change::Grows { plan });
            self.decisions.push(Decision::Grow {
                job: id.clone(),
                plan: more,
            });
            return Some(());
        }
        let all = joined(has, more);
        self.s.enlarge(id, &all);
        let starts = self.decisions.iter_mut().rev();
        let mut plans = starts.filter_map(|decision| match decision {
            Decision::Start { job, plan } if job == id => Some(plan),
            _ => None,
        });
        *plans.next()? = all;
        Some(())
    }

    /// As many more workers as there is room for and the queue allows: where it allows no more GPUs of one model, those of others.
    fn more(&self, entry: &Entry, has: &Plan, idle: &Snapshot) -> Option<Plan> {
        let gang = &entry.job.gang;
        let job = Candidate {
            id: entry.job.id.clone(),
            queue: entry.queue?,
            shape: entry.shape,
            priority: entry.job.priority,
            is_overdue: false,
            right: Right::Allowed,
            pass: Pass::Rest,
        };
        let mut idle = idle.clone();
        let data = self.s.datasets.of(&entry.job.datasets);
        let mut more: Option<Plan> = None;
        loop {
            let have = more.as_ref().map_or(0, |more| more.nodes.len());
            let wanted = gang.workers as usize - has.nodes.len() - have;
            let mask = self.may_add(&job, more.as_ref(), gang);
            if wanted == 0 || mask.is_empty() {
                return more;
            }
            let types = self.s.types(entry.shape, mask);
            let next = Gang {
                workers: wanted as u32,
                min_workers: Some(1),
                gpu_types: types.unwrap_or_else(|| gang.gpu_types.clone()),
                ..self.near(gang, has)?
            };
            let Some(found) = find_near(&idle, &next, &data) else {
                return more;
            };
            if found.resource != has.resource {
                return more;
            }
            let sofar = more.clone().unwrap_or_default();
            let Some(found) = self.within_quota(&job, &sofar, found, gang, 1) else {
                return more;
            };
            idle.take(&found, gang);
            let found = joined(sofar, found);
            if self.takes_quota(&job, &found, gang) {
                return more;
            }
            more = Some(found);
        }
    }

    /// Would someone who waits for room be kept from it by a limit then?
    fn takes_quota(&self, job: &Candidate, more: &Plan, gang: &Gang) -> bool {
        let milli = self.s.shapes.get(job.shape).milli;
        let mut queues = self.s.queues.clone();
        let account = Account {
            used: self.s.room.used_by(more, gang, milli),
            priority: job.priority,
            ..Account::default()
        };
        queues.add(job.queue, &account);
        let mut blocked = self.found.blocked.iter();
        blocked.any(|kind| !self.may_start(*kind, &queues))
    }

    /// Does its queue allow one of this kind to start?
    fn may_start(&self, kind: (QueueId, Priority, ShapeId), queues: &Queues) -> bool {
        let (queue, priority, shape) = kind;
        let shape = self.s.shapes.get(shape);
        let milli = shape.milli_min();
        let capacity = &self.s.room.capacity.gpus;
        let mut there = shape
            .models
            .models()
            .filter(|model| capacity.get(*model) > 0);
        let ask = |gpus| Ask {
            queue,
            priority,
            gpus,
            when: When::Now,
            displaces: false,
        };
        let may = |model| queues.admit(&ask(Milli::of(model, milli))).is_ok();
        milli == 0 || there.any(may)
    }

    /// The models of which one more worker is allowed, beside those that it gets anyway.
    fn may_add(&self, job: &Candidate, sofar: Option<&Plan>, gang: &Gang) -> Mask {
        let shape = self.s.shapes.get(job.shape);
        if shape.milli == 0 {
            return Mask::ALL;
        }
        let room = &self.s.room;
        let sofar = sofar.map(|plan| room.used_by(plan, gang, shape.milli).gpus);
        let there = shape.models.models();
        let there = there.filter(|model| room.capacity.gpus.get(*model) > 0);
        let may = |model: &ModelId| {
            let mut gpus = Milli::of(*model, shape.milli);
            gpus += sofar.unwrap_or_default();
            self.s.queues.admit(&job.asks(gpus, When::Now)).is_ok()
        };
        there.filter(may).fold(Mask::NONE, Mask::with)
    }

    /// The gang, where new workers must be in the domain of those that are there. None where nobody can say which that is.
    fn near(&self, gang: &Gang, has: &Plan) -> Option<Gang> {
        let mut gang = gang.clone();
        if let Some(Topology::Required { level }) = &gang.topology {
            let node = self.s.room.now.node(has.nodes.first()?)?;
            let levels = self.s.room.now.levels();
            let inner = levels.iter().position(|known| known == level);
            // All on one node: there is no label for that.
            for label in &levels[..=inner?] {
                let value = node.labels.get(label)?;
                gang.selector.insert(label.clone(), value.clone());
            }
        }
        Some(gang)
    }
}

impl Scheduler {
    /// Elastic gangs with fewer workers than they would like: the more important first, then the older.
    fn that_may_grow(&self) -> Vec<JobId> {
        let mut small: Vec<_> = self
            .elastic
            .iter()
            .filter_map(|id| {
                let entry = self.jobs.get(id)?;
                let State::Has(holding) = &entry.state else {
                    return None;
                };
                let is_small = (holding.plan.nodes.len() as u32) < entry.job.gang.workers;
                (is_small && holding.change == Change::None).then_some(entry)
            })
            .map(|entry| {
                let job = &entry.job;
                (std::cmp::Reverse(job.priority), job.submitted_at, &job.id)
            })
            .collect();
        small.sort();
        small.into_iter().map(|(_, _, id)| id.clone()).collect()
    }

    /// A job that has just started gets more at once.
    fn enlarge(&mut self, id: &JobId, plan: &Plan) {
        let Some(entry) = self.jobs.get(id).cloned() else {
            return;
        };
        let State::Has(mut holding) = entry.state else {
            return;
        };
        self.forget(id);
        let gang: Arc<Gang> = entry.job.gang.clone();
        let shape = self.shapes.enter(&gang, &self.room.models);
        self.room.set_aside(id, plan.clone(), gang);
        holding.plan.clone_from(plan);
        self.hold(entry.job, entry.queue, shape, *holding);
    }
}

/// Workers after those that are there.
pub fn joined(mut has: Plan, more: Plan) -> Plan {
    if has.nodes.is_empty() {
        return more;
    }
    has.devices.resize(has.nodes.len(), Vec::new());
    has.nodes.extend(more.nodes);
    has.devices.extend(more.devices);
    has
}

pub fn is_elastic(gang: &Gang) -> bool {
    workers_min(gang) < gang.workers
}

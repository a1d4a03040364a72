//! Finds out why a job waits: what the last cycle said of it, and what a cycle would say if something were different.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use stoke_api::queue::GpuCount;
use stoke_api::trainjob::Priority;

use super::job::{JobId, later};
use super::line::Turns;
use super::reserve::first_enough;
use super::wait::{Constraint, Estimate, Remedy, Wait};
use super::{Scheduler, State, Verdict};
use crate::explain::{Explanation, Help};
use crate::gang::Gang;
use crate::place::{Plan, candidates, find, fitting, place};
use crate::queues::{Account, Ask, Limit, QueueId, Queues, QuotaShortage, UNNAMED, When, whole};
use crate::resources::Resources;
use crate::snapshot::{Node, Snapshot};

/// Jobs that are followed in time to tell when a later one starts. Beyond that nobody can tell anyway.
const FORECAST_MAX: usize = 64;
/// Nodes that may be said to be missing.
const NODES_MAX: u32 = 1024;
/// How often a guess at a number is tried.
const TRIES: u32 = 6;

impl Scheduler {
    /// Why a job waits, as the last cycle found it: the same value as of [`Scheduler::explain`], without what must be tried out.
    pub fn waits(&self, id: &JobId) -> Option<Wait> {
        let entry = self.jobs.get(id)?;
        let State::Waits(verdict) = &entry.state else {
            return None;
        };
        let ahead = entry
            .queue
            .map_or(0, |queue| self.lines[queue].ahead_of(&entry.job));
        Some(Wait {
            job: id.clone(),
            queue: entry.job.queue.clone(),
            ahead,
            constraint: self.constraint(id, verdict),
            helps: Vec::new(),
            start: None,
        })
    }

    fn constraint(&self, id: &JobId, verdict: &Verdict) -> Constraint {
        let entry = &self.jobs[id];
        let queue = entry.job.queue.clone().unwrap_or_default();
        match verdict {
            Verdict::NotLookedAt => Constraint::NotLookedAt,
            Verdict::NoQueue => match self.queues.fault(&queue) {
                Some(fault) => Constraint::QueueUnusable {
                    fault: fault.clone(),
                    queue,
                },
                None => Constraint::QueueNotFound { queue },
            },
            Verdict::Quota(short) => Constraint::Quota(self.queues.tell(short)),
            Verdict::QuotaKept { queue, for_job } => Constraint::QuotaKept {
                queue: self.queues.name(*queue).to_owned(),
                for_job: for_job.clone(),
            },
            Verdict::Room(mask) => {
                let gang = self.shapes.gang(entry.shape, *mask, &self.room.models);
                let gang = Gang {
                    workers: entry.job.gang.workers,
                    min_workers: entry.job.gang.min_workers,
                    ..gang.as_ref().clone()
                };
                match place(&self.room.now, &gang) {
                    Err(explanation) => Constraint::Room {
                        explanation: soberly(explanation),
                    },
                    Ok(_) => Constraint::NotLookedAt,
                }
            }
            Verdict::RoomKept { for_job } => Constraint::RoomKept {
                for_job: for_job.clone(),
            },
            Verdict::Coming { from } => Constraint::Coming { from: from.clone() },
        }
    }

    /// Why a job waits, with what would help and when it should start. Asks the same cycle on copies of what is known, so it costs a few.
    pub fn explain(&self, id: &JobId, now: Timestamp) -> Option<Wait> {
        let mut then = self.clone();
        then.cycle(now);
        let Some(mut wait) = then.waits(id) else {
            // It would start at once.
            return self.waits(id);
        };
        wait.helps = self.remedies(id, now, &then, &wait.constraint);
        wait.start = then.forecast(id, now);
        Some(wait)
    }

    fn remedies(
        &self,
        id: &JobId,
        now: Timestamp,
        then: &Self,
        constraint: &Constraint,
    ) -> Vec<Remedy> {
        let Some(entry) = self.jobs.get(id) else {
            return Vec::new();
        };
        let gang = &entry.job.gang;
        match constraint {
            Constraint::Quota(short) => self.with_quota(id, now, short).into_iter().collect(),
            Constraint::Room { .. } | Constraint::RoomKept { .. } => {
                let tried = [
                    self.with_fewer_workers(id, now, fitting(&then.room.now, gang)),
                    self.with_other_types(id, now),
                    self.with_more_nodes(id, now, then),
                ];
                tried.into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }

    /// What comes of it, where it starts or others make room for it.
    fn if_helped(mut self, id: &JobId, now: Timestamp) -> Option<Self> {
        self.cycle(now);
        self.is_settled(id).then_some(self)
    }

    /// Has it room, or will it?
    fn is_settled(&self, id: &JobId) -> bool {
        let entry = self.jobs.get(id);
        entry.is_some_and(|entry| {
            let verdict = &entry.state;
            matches!(
                verdict,
                State::Has(_) | State::Waits(Verdict::Coming { .. })
            )
        })
    }

    /// The same with another gang for one job.
    fn with_gang(&self, id: &JobId, change: impl FnOnce(&mut Gang)) -> Option<Self> {
        let mut copy = self.clone();
        let mut job = copy.jobs.get(id)?.job.clone();
        let mut gang = job.gang.as_ref().clone();
        change(&mut gang);
        job.gang = Arc::new(gang);
        copy.submit(job);
        Some(copy)
    }

    fn with_fewer_workers(&self, id: &JobId, now: Timestamp, fitting: u32) -> Option<Remedy> {
        let mut workers = fitting.min(self.jobs.get(id)?.workers_min().saturating_sub(1));
        for _ in 0..TRIES {
            if workers == 0 {
                return None;
            }
            let copy = self.with_gang(id, |gang| {
                gang.workers = workers;
                gang.min_workers = None;
            })?;
            if copy.if_helped(id, now).is_some() {
                return Some(Remedy::FewerWorkers { workers });
            }
            workers /= 2;
        }
        None
    }

    fn with_other_types(&self, id: &JobId, now: Timestamp) -> Option<Remedy> {
        if self.jobs.get(id)?.job.gang.gpu_types.is_empty() {
            return None;
        }
        let copy = self.with_gang(id, |gang| gang.gpu_types.clear())?;
        let copy = copy.if_helped(id, now)?;
        let State::Has(holding) = &copy.jobs.get(id)?.state else {
            return None;
        };
        let nodes = holding.plan.nodes.iter();
        let models = nodes.filter_map(|name| copy.room.now.node(name)?.gpu.as_ref());
        let products: BTreeSet<String> = models.map(|gpu| gpu.product.clone()).collect();
        (!products.is_empty()).then(|| Remedy::OtherGpuTypes {
            products: products.into_iter().collect(),
        })
    }

    fn with_more_nodes(&self, id: &JobId, now: Timestamp, then: &Self) -> Option<Remedy> {
        let gang = &self.jobs.get(id)?.job.gang;
        let suitable = candidates(&then.room.now, gang);
        let like = suitable.into_iter().max_by_key(|node| {
            let holds = node.allocatable.times(&gang.ask);
            (holds.min(gang.workers), std::cmp::Reverse(&node.name))
        })?;
        let holds = like.allocatable.times(&gang.ask).max(1);
        let missing = gang.workers.saturating_sub(fitting(&then.room.now, gang));
        let mut count = missing.div_ceil(holds).max(1);
        for _ in 0..TRIES {
            if count > NODES_MAX {
                return None;
            }
            let mut copy = self.clone();
            for number in 0..count {
                copy.put_node(empty_like(like, number));
            }
            if copy.if_helped(id, now).is_some() {
                let like = like.name.clone();
                return Some(Remedy::MoreNodes { like, count });
            }
            count = count.saturating_mul(2);
        }
        None
    }

    /// Raises one limit after the other until none keeps the job.
    fn with_quota(&self, id: &JobId, now: Timestamp, short: &QuotaShortage) -> Option<Remedy> {
        let mut copy = self.clone();
        let mut short = short.clone();
        let mut raised = Vec::new();
        for _ in 0..TRIES {
            let to = whole(short.used.milli.saturating_add(short.asks.milli));
            let (queue, gpus) = (short.queue.clone(), short.gpus.clone());
            let mut specs = copy.queues.specs().clone();
            let spec = specs.get_mut(&queue)?;
            if short.limit == Limit::Ceiling {
                spec.ceiling.insert(gpus.clone(), GpuCount(to));
                raised.push(Remedy::RaiseCeiling { queue, gpus, to });
            } else {
                spec.guaranteed.insert(gpus.clone(), GpuCount(to));
                raised.push(Remedy::RaiseGuarantee { queue, gpus, to });
            }
            copy.set_queues(specs);
            let mut tried = copy.clone();
            tried.cycle(now);
            if tried.is_settled(id) {
                return match raised.len() {
                    1 => raised.pop(),
                    _ => Some(Remedy::All { of: raised }),
                };
            }
            match tried.waits(id)?.constraint {
                Constraint::Quota(next) if next != short => short = next,
                _ => return None,
            }
        }
        None
    }

    /// When a job should start, if those before it start as soon as they can and nobody ends early. None where that depends on one of whom
    /// it is not known when it ends.
    fn forecast(&self, id: &JobId, now: Timestamp) -> Option<Estimate> {
        let mut future = Future::of(self, now);
        let overdue = self.clone().overdue(now);
        let mut turns = Turns::new(
            &self.queues,
            &self.room.models,
            &self.lines,
            &overdue,
            |_| Some(Priority::Experiment),
        );
        for _ in 0..FORECAST_MAX {
            let (queue, next) = turns.next()?;
            match future.start(&next) {
                Some(Dated::At(estimate)) if next == *id => return Some(estimate),
                // Who comes after it cannot be told either.
                Some(Dated::Unknown) => return None,
                Some(Dated::At(_)) | None => {}
            }
            turns.settle(queue, &self.queues, &self.room.models);
        }
        None
    }
}

/// Placement knows nothing of others who wait, and so cannot tell what would help at once: that is tried out here.
fn soberly(mut explanation: Explanation) -> Explanation {
    if let Explanation::NoRoom(no_room) = &mut explanation
        && no_room.help.contains(&Help::Wait)
    {
        no_room.help = vec![Help::Wait];
    }
    explanation
}

fn empty_like(like: &Node, number: u32) -> Node {
    let idle = |devices: &Vec<u16>| vec![0; devices.len()];
    Node {
        name: format!("{}+{number}", like.name),
        used: Resources::default(),
        devices: like.devices.as_ref().map(idle),
        ..like.clone()
    }
}

/// What will be, if everyone ends as late as they may.
struct Future<'a> {
    scheduler: &'a Scheduler,
    state: (Snapshot, Queues),
    clock: Timestamp,
    /// The last who ended.
    after: Option<JobId>,
    /// By time; those without come last.
    ends: Vec<Ending>,
}

/// When a job starts.
enum Dated {
    At(Estimate),
    Unknown,
}

#[derive(Debug, Clone)]
struct Ending {
    at: Option<Timestamp>,
    id: JobId,
    plan: Plan,
    gang: Arc<Gang>,
    queue: QueueId,
    account: Account,
}

impl<'a> Future<'a> {
    fn of(scheduler: &'a Scheduler, now: Timestamp) -> Self {
        let ending = |id: &JobId| {
            let entry = scheduler.jobs.get(id)?;
            let State::Has(holding) = &entry.state else {
                return None;
            };
            Some(Ending {
                at: holding.ends_by,
                id: id.clone(),
                plan: holding.plan.clone(),
                gang: entry.job.gang.clone(),
                queue: entry.queue.unwrap_or(UNNAMED),
                account: holding.account,
            })
        };
        let leaving = scheduler.leaving.iter().filter_map(ending);
        let leaving = leaving.map(|ending| Ending {
            at: Some(now),
            ..ending
        });
        let staying = scheduler.ends.iter();
        let staying = staying.filter(|end| !scheduler.leaving.contains(&end.id));
        let staying = staying.filter_map(|end| ending(&end.id));
        Self {
            scheduler,
            state: (scheduler.room.now.clone(), scheduler.queues.clone()),
            clock: now,
            after: None,
            ends: leaving.chain(staying).collect(),
        }
    }

    /// Starts a job as soon as it can; none where it never can.
    fn start(&mut self, id: &JobId) -> Option<Dated> {
        let entry = self.scheduler.jobs.get(id)?;
        let queue = entry.queue?;
        let gang = &entry.job.gang;
        let milli = self.scheduler.shapes.get(entry.shape).milli;
        let ends = &self.ends;
        let advance = |(mut room, mut queues): (Snapshot, Queues),
                       ended: std::ops::Range<usize>| {
            for ending in &ends[ended] {
                room.give_back(&ending.plan, &ending.gang);
                queues.remove(ending.queue, &ending.account);
            }
            (room, queues)
        };
        let fits = |(room, queues): &(Snapshot, Queues)| {
            let plan = find(room, gang)?;
            let used = self.scheduler.room.used_by(&plan, gang, milli);
            let ask = Ask {
                queue,
                priority: entry.job.priority,
                gpus: used.gpus,
                when: When::Now,
                displaces: false,
            };
            (milli == 0 || queues.admit(&ask).is_ok()).then_some((plan, used))
        };
        let (count, state, (plan, used)) =
            first_enough(ends.len(), self.state.clone(), advance, fits)?;
        let last = count.checked_sub(1).map(|last| &self.ends[last]);
        let at = match last {
            Some(Ending { at: None, .. }) => return Some(Dated::Unknown),
            Some(Ending { at: Some(at), .. }) => self.clock.max(*at),
            None => self.clock,
        };
        let after = last
            .map(|last| last.id.clone())
            .or_else(|| self.after.clone());
        self.ends.drain(..count);
        (self.clock, self.after, self.state) = (at, after.clone(), state);
        let account = Account {
            used,
            priority: entry.job.priority,
            ..Account::default()
        };
        self.state.0.take(&plan, gang);
        self.state.1.add(queue, &account);
        let ending = Ending {
            at: entry.job.limit.and_then(|limit| later(at, limit)),
            id: id.clone(),
            plan,
            gang: gang.clone(),
            queue,
            account,
        };
        let place = self.ends.partition_point(|other| {
            (other.at.is_none(), other.at) <= (ending.at.is_none(), ending.at)
        });
        self.ends.insert(place, ending);
        Some(Dated::At(Estimate { at, after }))
    }
}

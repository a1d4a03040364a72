//! One walk over all who wait.
//!
//! First come those within what is guaranteed to their queue, for they have a right to room and may take it from those who borrow. Then
//! come those who have waited for long, and production jobs, which may take it from the less important. Then comes everyone else. In each, who is first and finds no room gets a reservation, and who comes after starts only where that is not delayed
//! (EASY backfill): beside the reserved room, or in it but done in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use stoke_api::trainjob::Priority;

use super::job::{Decision, JobId, later};
use super::line::{Overdue, Turns};
use super::shapes::ShapeId;
use super::victims::Demand;
use super::views::Views;
use super::{Scheduler, State, Verdict};
use crate::gang::Gang;
use crate::place::Plan;
use crate::queues::{Ask, Mask, Milli, QueueId, Right, Short, When};

/// Jobs for which it is tried in one pass to find out when they could start, until one has a reservation.
const RESERVATION_TRIES: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// Of those within what is guaranteed to them, unless a production job of their queue that is not goes before them.
    Rights,
    /// Of production jobs, and of those who have waited for long.
    Urgent,
    /// Of those within what is guaranteed to them.
    LateRights,
    /// Of everyone.
    Rest,
}

impl Pass {
    const ALL: [Self; 4] = [Self::Rights, Self::Urgent, Self::LateRights, Self::Rest];
}

/// What becomes of those behind a job in its queue, in a pass.
enum Next {
    Ask,
    Dismiss,
}

/// A job on its turn.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub id: JobId,
    pub queue: QueueId,
    pub shape: ShapeId,
    pub priority: Priority,
    pub is_overdue: bool,
    /// By what right it is here.
    pub right: Right,
    pub pass: Pass,
}

impl Candidate {
    pub fn is_production(&self) -> bool {
        self.priority == Priority::Production
    }

    /// What it has in common with others who ask for the same in its place.
    fn kind(&self) -> (QueueId, Priority, ShapeId) {
        (self.queue, self.priority, self.shape)
    }

    pub fn asks(&self, gpus: Milli, when: When) -> Ask {
        Ask {
            queue: self.queue,
            priority: self.priority,
            gpus,
            when,
            displaces: false,
        }
    }

    /// Is it allowed what it would have? Who claims what is guaranteed to it claims no more.
    pub fn is_enough(&self, right: &Result<Right, Short>) -> bool {
        match (self.right, right) {
            (Right::Guaranteed(_), Ok(right)) => *right != Right::Allowed,
            (Right::Allowed, right) => right.is_ok(),
            (Right::Guaranteed(_), Err(_)) => false,
        }
    }
}

/// The models of which a job may have GPUs.
#[derive(Debug, Clone)]
pub struct Allowed {
    /// Those that are guaranteed, by this right.
    pub guaranteed: Mask,
    right: Right,
    /// Those and more.
    pub any: Mask,
    short: Option<Short>,
}

pub struct Cycle<'a> {
    pub s: &'a mut Scheduler,
    pub now: Timestamp,
    pub decisions: Vec<Decision>,
    pub overdue: Vec<Option<Overdue>>,
    pub found: Found,
    /// Someone was asked to leave.
    pub has_asked: bool,
}

/// For whom room is kept, and for whom there is none.
#[derive(Debug, Default)]
pub struct Found {
    pub views: Views,
    /// Queues whose quota is kept for a job that has waited for long.
    closed: BTreeMap<QueueId, JobId>,
    /// Those for whom room is kept.
    settled: BTreeSet<JobId>,
    /// Queues whose production jobs go before those with a right.
    passed: BTreeSet<QueueId>,
    /// What was said to one of a kind.
    pub denied: BTreeMap<(Pass, QueueId, Priority, ShapeId), Verdict>,
    /// Shapes that found nothing open: since then there is not more.
    pub full: BTreeSet<(ShapeId, Mask)>,
    pub full_for_short: BTreeSet<(ShapeId, Mask)>,
    /// Who waits for room, and could have it some day.
    pub blocked: BTreeSet<(QueueId, Priority, ShapeId)>,
    /// Those for whom nobody makes room.
    pub spared: BTreeSet<(QueueId, Priority, ShapeId, Mask, Demand)>,
    /// Who may be asked, of each guarantor.
    pub borrowers: BTreeMap<QueueId, Arc<Vec<JobId>>>,
    /// Someone has a reservation in this pass.
    has_reserved: bool,
    tries: u32,
}

impl<'a> Cycle<'a> {
    pub fn new(scheduler: &'a mut Scheduler, now: Timestamp) -> Self {
        scheduler.queues.release();
        let overdue = scheduler.overdue(now);
        Self {
            s: scheduler,
            now,
            decisions: Vec::new(),
            overdue,
            found: Found::default(),
            has_asked: false,
        }
    }

    pub fn decide(mut self) -> Vec<Decision> {
        // Who starts or leaves may change what others have a right to. So it is found out anew for whom room is kept until nothing more is
        // decided: then the next cycle, which knows no more than this one, will find the same.
        loop {
            let decided = self.decisions.len();
            for pass in Pass::ALL {
                self.walk(pass);
                if self.has_asked {
                    break;
                }
            }
            if self.decisions.len() == decided && !self.grow() {
                break;
            }
            self.s.queues.release();
            self.found = Found::default();
            self.has_asked = false;
        }
        self.s.queues.release();
        self.decisions
    }

    fn walk(&mut self, pass: Pass) {
        self.found.tries = 0;
        self.found.has_reserved = false;
        let has_guarantees = self.s.queues.has_guarantees();
        let mut turns = Turns::new(
            &self.s.queues,
            &self.s.room.models,
            &self.s.lines,
            &self.overdue,
            |queue| match pass {
                Pass::Rights => self
                    .s
                    .queues
                    .has_guarantee(queue)
                    .then_some(Priority::Experiment),
                Pass::LateRights => self
                    .found
                    .passed
                    .contains(&queue)
                    .then_some(Priority::Experiment),
                Pass::Urgent => Some(Priority::Production),
                Pass::Rest => Some(Priority::Experiment),
            },
        );
        while let Some((queue, id)) = turns.next() {
            let entry = &self.s.jobs[&id];
            let candidate = Candidate {
                queue,
                shape: entry.shape,
                priority: entry.job.priority,
                is_overdue: self.overdue[queue]
                    .as_ref()
                    .is_some_and(|overdue| overdue.id == id),
                right: Right::Allowed,
                pass,
                id,
            };
            let next = match pass {
                _ if self.found.settled.contains(&candidate.id) => Next::Ask,
                _ if self.is_denied(&candidate) => Next::Ask,
                Pass::Rights | Pass::LateRights => self.claim(candidate),
                Pass::Urgent => self.hurry(&candidate),
                Pass::Rest => self.consider(&candidate),
            };
            if matches!(next, Next::Dismiss) {
                turns.dismiss(queue);
            }
            // Nobody else starts where someone may have a right to what comes free.
            if self.has_asked && has_guarantees && matches!(pass, Pass::Urgent | Pass::Rest) {
                break;
            }
            turns.settle(queue, &self.s.queues, &self.s.room.models);
        }
    }

    /// Gives a job what is guaranteed to it.
    fn claim(&mut self, mut job: Candidate) -> Next {
        let claims = self.allowed(&job, When::Soon);
        if !claims.guaranteed.is_empty() {
            job.right = claims.right;
            self.start_or_make_room(&job, claims.guaranteed);
            return Next::Ask;
        }
        // What comes free of the guarantee is for the one who has waited for long, should it be enough for it some day.
        if job.is_overdue && !self.allowed(&job, When::Idle).guaranteed.is_empty() {
            return Next::Dismiss;
        }
        if job.pass == Pass::Rights && job.is_production() && !claims.any.is_empty() {
            self.found.passed.insert(job.queue);
            return Next::Dismiss;
        }
        self.deny(&job, Verdict::NotLookedAt);
        if self.is_used_up(&job) {
            Next::Dismiss
        } else {
            Next::Ask
        }
    }

    /// Is there nothing left of what is guaranteed, for this job and all who are no more important?
    fn is_used_up(&self, job: &Candidate) -> bool {
        let is_left = |model| {
            let least = Milli::of(model, 1);
            let right = self.s.queues.admit(&Ask {
                displaces: true,
                ..job.asks(least, When::Soon)
            });
            matches!(right, Ok(Right::Guaranteed(_)))
        };
        let capacity = &self.s.room.capacity.gpus;
        let mut there = Mask::ALL.models().filter(|model| capacity.get(*model) > 0);
        !there.any(is_left)
    }

    /// Remembers that there is nothing for a job, so that nobody who asks for the same in its place is looked at again.
    fn deny(&mut self, job: &Candidate, verdict: Verdict) {
        if !job.is_overdue {
            let key = (job.pass, job.queue, job.priority, job.shape);
            self.found.denied.insert(key, verdict);
        }
    }

    /// Was one like it denied? What there is has become less since, but a job that is done in time may have what is kept for others.
    fn is_denied(&mut self, job: &Candidate) -> bool {
        let key = (job.pass, job.queue, job.priority, job.shape);
        let Some(verdict) = self.found.denied.get(&key).filter(|_| !job.is_overdue) else {
            return false;
        };
        if let Verdict::RoomKept { .. } = verdict
            && self.found.views.are_all_after(self.ends_by(&job.id))
        {
            return false;
        }
        if job.pass == Pass::Rest {
            let verdict = verdict.clone();
            self.say(&job.id, verdict);
        }
        true
    }

    pub fn ends_by(&self, id: &JobId) -> Option<Timestamp> {
        let limit = self.s.jobs.get(id)?.job.limit?;
        later(self.now, limit)
    }

    /// Looks after production jobs, and after those who have waited for long.
    fn hurry(&mut self, job: &Candidate) -> Next {
        if job.is_production() {
            let claims = self.allowed(job, When::Soon);
            if claims.any.is_empty() {
                self.deny(job, Verdict::NotLookedAt);
            } else {
                self.start_or_make_room(job, claims.any);
            }
            Next::Ask
        } else if job.is_overdue {
            self.consider(job)
        } else {
            Next::Dismiss
        }
    }

    fn start_or_make_room(&mut self, job: &Candidate, claimed: Mask) {
        let now = self.allowed(job, When::Now);
        let mask = self.s.mask(job.shape, now.any.and(claimed));
        if !mask.is_empty() && self.start(job, mask) {
            return;
        }
        let claimed = self.s.mask(job.shape, claimed);
        if self.make_room(job, claimed, Demand::Right) {
            return;
        }
        if mask.is_empty() || !self.reserve(job, mask) {
            self.deny(job, Verdict::NotLookedAt);
        }
    }

    fn consider(&mut self, job: &Candidate) -> Next {
        if let Some(verdict) = self.weigh(job) {
            self.deny(job, verdict.clone());
            self.say(&job.id, verdict);
        }
        Next::Ask
    }

    /// Starts a job, or keeps room for it, or says why not.
    fn weigh(&mut self, job: &Candidate) -> Option<Verdict> {
        let has_gpus = self.s.shapes.get(job.shape).milli > 0;
        let keeper = self.s.queues.chain(job.queue).find_map(|queue| {
            let for_job = self.found.closed.get(&queue)?.clone();
            Some(Verdict::QuotaKept { queue, for_job })
        });
        if has_gpus && keeper.is_some() {
            return keeper;
        }
        let now = self.allowed(job, When::Now);
        let mask = self.s.mask(job.shape, now.any);
        if !mask.is_empty() && self.start(job, mask) {
            return None;
        }
        if let (true, Some(short)) = (mask.is_empty(), now.short) {
            if job.is_overdue {
                let closed = self.found.closed.entry(short.queue);
                closed.or_insert_with(|| job.id.clone());
            }
            return Some(Verdict::Quota(short));
        }
        let is_first = !self.found.has_reserved;
        if is_first && self.has_surplus() && self.make_room(job, mask, Demand::Surplus) {
            return None;
        }
        if self.reserve(job, mask) {
            return None;
        }
        if self.s.shapes.is_possible(job.shape, &self.s.room.now) {
            self.found.blocked.insert(job.kind());
        }
        match self.found.views.first_kept_for() {
            // There is room now, but not for it.
            Some(for_job) if !self.s.shapes.is_turned_away(job.shape, mask) => {
                let for_job = for_job.clone();
                Some(Verdict::RoomKept { for_job })
            }
            _ => Some(Verdict::Room(mask)),
        }
    }

    pub fn say(&mut self, id: &JobId, said: Verdict) {
        if let Some(entry) = self.s.jobs.get_mut(id)
            && let State::Waits(verdict) = &mut entry.state
        {
            *verdict = said;
        }
    }

    /// The models that a job's queue lets it use. Soon, what less important jobs of its own queue use is its own.
    pub fn allowed(&self, job: &Candidate, when: When) -> Allowed {
        let shape = self.s.shapes.get(job.shape);
        let milli = shape.milli_min();
        let mut allowed = Allowed {
            guaranteed: Mask::NONE,
            right: Right::Allowed,
            any: Mask::NONE,
            short: None,
        };
        if milli == 0 {
            allowed.any = Mask::ALL;
            return allowed;
        }
        let capacity = &self.s.room.capacity.gpus;
        let there = shape
            .models
            .models()
            .filter(|model| capacity.get(*model) > 0);
        let mut is_there = false;
        for model in there {
            is_there = true;
            let right = self.s.queues.admit(&Ask {
                displaces: when == When::Soon,
                ..job.asks(Milli::of(model, milli), when)
            });
            match right {
                Ok(right) => {
                    allowed.any = allowed.any.with(model);
                    if right != Right::Allowed {
                        allowed.guaranteed = allowed.guaranteed.with(model);
                        allowed.right = right;
                    }
                }
                Err(short) => {
                    allowed.short.get_or_insert(short);
                }
            }
        }
        if !is_there {
            // No such GPUs: that is for placement to say.
            allowed.any = Mask::ALL;
        }
        allowed
    }

    /// Keeps room for the first of a pass that has none, if it can be known where. True where it is kept.
    fn reserve(&mut self, job: &Candidate, mask: Mask) -> bool {
        if self.found.has_reserved || self.found.tries >= RESERVATION_TRIES {
            return false;
        }
        if !self.s.shapes.is_possible(job.shape, &self.s.room.now) {
            return false;
        }
        self.found.tries += 1;
        if !self.reserve_for(job, mask) {
            return false;
        }
        self.found.has_reserved = true;
        self.found.blocked.insert(job.kind());
        self.found.settled.insert(job.id.clone());
        self.say(&job.id, Verdict::Room(mask));
        true
    }

    /// Room is on its way to a job.
    pub fn settle(&mut self, job: &Candidate, plan: &Plan, gang: &Gang, from: Vec<JobId>) {
        let guarantor = self.s.queues.guarantor(job.queue);
        self.found.borrowers.remove(&guarantor);
        let milli = self.s.shapes.get(job.shape).milli;
        let used = self.s.room.used_by(plan, gang, milli);
        self.s.queues.hold(job.queue, used.gpus, job.priority);
        self.found
            .views
            .promise(&self.s.room.now, &job.id, plan, gang);
        self.found.settled.insert(job.id.clone());
        self.say(&job.id, Verdict::Coming { from });
    }
}

impl Scheduler {
    /// The models to plan with: all that the shape may use, where those that are not allowed are not there anyway.
    fn mask(&self, shape: ShapeId, allowed: Mask) -> Mask {
        let shape = self.shapes.get(shape);
        let mut there = shape.models.models();
        let capacity = &self.room.capacity.gpus;
        let is_all = there.all(|model| capacity.get(model) == 0 || allowed.has(model));
        if is_all { shape.models } else { allowed }
    }

    /// The types to ask for where not all models that a shape may use are allowed.
    pub fn types(&self, shape: ShapeId, allowed: Mask) -> Option<Vec<String>> {
        let mask = self.mask(shape, allowed);
        let products = self.room.models.products(mask);
        let is_some = mask != self.shapes.get(shape).models && !products.is_empty();
        is_some.then_some(products)
    }
}

//! When there will be room, and where.
//!
//! Jobs end when they said, or at their limit; of those that said nothing, the one that has run for longest is taken to end first, after all
//! the others. A reservation is the first moment at which the job would fit, and the nodes there. Of a moment that nobody knows it is kept
//! for a time and then not for as long, so that no room idles for ever for a job that may never start.

use jiff::Timestamp;

use super::cycle::{Candidate, Cycle};
use super::job::{Change, JobId};
use super::room::part;
use super::views::Reservation;
use super::{End, Holding, Scheduler, State};
use crate::gang::Gang;
use crate::place::{Plan, find};
use crate::queues::Mask;
use crate::snapshot::Snapshot;

/// The first moment at which there is room.
#[derive(Debug, Clone)]
pub struct Foreseen {
    pub at: Option<Timestamp>,
    pub plan: Plan,
    /// The nodes then, with the job on them.
    pub then: Snapshot,
}

impl Cycle<'_> {
    pub fn reserve_for(&mut self, job: &Candidate, mask: Mask) -> bool {
        let gang = self.s.shapes.gang(job.shape, mask, &self.s.room.models);
        let soon = self.soon().clone();
        let views = &self.found.views;
        let ends: Vec<&End> = self.s.ends.iter().collect();
        let Some(foreseen) = foresee(self.s, soon, &ends, &gang, self.now, |coming| {
            views.less_reserved(coming)
        }) else {
            return false;
        };
        if foreseen.at.is_none() && !self.is_held(&job.id) {
            return false;
        }
        let reservation = Reservation {
            job: job.id.clone(),
            at: foreseen.at,
        };
        let now = &self.s.room.now;
        self.found
            .views
            .reserve(now, reservation, &foreseen.plan, &foreseen.then);
        true
    }

    /// What is free once those have ended who were asked to.
    pub fn soon(&mut self) -> &mut Snapshot {
        let s = &*self.s;
        let leaving = s.leaving.iter().filter_map(|id| s.leaves(id));
        self.found.views.soon(&s.room.now, leaving)
    }

    /// Is room kept for this job at this time, though nobody knows until when?
    fn is_held(&self, id: &JobId) -> bool {
        let waited = self.now.duration_since(self.s.jobs[id].job.waits_since);
        let waited = u64::try_from(waited.as_secs()).unwrap_or(0);
        let periods = waited.checked_div(self.s.policy.hold.seconds);
        periods.is_some_and(|periods| periods % 2 == 0)
    }
}

impl Scheduler {
    /// What a job gives up that was asked to.
    fn leaves(&self, id: &JobId) -> Option<(Plan, &Gang)> {
        let entry = self.jobs.get(id)?;
        let State::Has(holding) = &entry.state else {
            return None;
        };
        Some((leaving_part(holding)?, entry.job.gang.as_ref()))
    }

    /// What a job still has when it has given up what it was asked to.
    pub(super) fn stays(&self, id: &JobId) -> Option<(Plan, &Gang)> {
        let entry = self.jobs.get(id)?;
        let State::Has(holding) = &entry.state else {
            return None;
        };
        let plan = match holding.change {
            Change::Yields => return None,
            Change::Shrinks { to } => part(&holding.plan, |rank, _| rank < to as usize),
            Change::None | Change::Grows { .. } => holding.plan.clone(),
        };
        Some((plan, entry.job.gang.as_ref()))
    }
}

fn leaving_part(holding: &Holding) -> Option<Plan> {
    match holding.change {
        Change::None | Change::Grows { .. } => None,
        Change::Yields => Some(holding.plan.clone()),
        Change::Shrinks { to } => Some(part(&holding.plan, |rank, _| rank >= to as usize)),
    }
}

/// The first moment at which a gang finds room, if those end in this order who have it. `limit` takes away what is not for it.
pub fn foresee(
    scheduler: &Scheduler,
    soon: Snapshot,
    ends: &[&End],
    gang: &Gang,
    now: Timestamp,
    limit: impl Fn(Snapshot) -> Snapshot,
) -> Option<Foreseen> {
    let free = |mut coming: Snapshot, ended: &[&End]| {
        for end in ended {
            if let Some((plan, gang)) = scheduler.stays(&end.id) {
                coming.give_back(&plan, gang);
            }
        }
        coming
    };
    let found = first_enough(
        ends.len(),
        soon,
        |coming, ended| free(coming, &ends[ended]),
        |coming| find(&limit(coming.clone()), gang),
    );
    let (count, then, plan) = found?;
    let mut then = limit(then);
    then.take(&plan, gang);
    let last = count.checked_sub(1).map(|last| ends[last]);
    Some(Foreseen {
        at: match last {
            Some(end) if end.is_unknown => None,
            Some(end) => Some(end.at.max(now)),
            None => Some(now),
        },
        plan,
        then,
    })
}

/// How many of so many steps are enough, as few as can be: the number, the state after them, and what was found there. More steps are
/// assumed to never make it worse, so that few are tried; each step is taken about twice.
pub fn first_enough<S: Clone, F>(
    steps: usize,
    start: S,
    advance: impl Fn(S, std::ops::Range<usize>) -> S,
    mut found: impl FnMut(&S) -> Option<F>,
) -> Option<(usize, S, F)> {
    if let Some(result) = found(&start) {
        return Some((0, start, result));
    }
    let (mut low, mut below) = (0, start);
    let mut stride = 1;
    let mut best = loop {
        if low == steps {
            return None;
        }
        let high = (low + stride).min(steps);
        let there = advance(below.clone(), low..high);
        if let Some(result) = found(&there) {
            break (high, there, result);
        }
        (low, below) = (high, there);
        stride *= 2;
    };
    while best.0 - low > 1 {
        let middle = low + (best.0 - low) / 2;
        let there = advance(below.clone(), low..middle);
        if let Some(result) = found(&there) {
            best = (middle, there, result);
        } else {
            (low, below) = (middle, there);
        }
    }
    Some(best)
}

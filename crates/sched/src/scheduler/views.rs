//! The nodes as different jobs may see them in one cycle.
//!
//! - *now*: what is free. It is the scheduler's own.
//! - *soon*: what is free once those have ended who were asked to, less what is promised to those they were asked for.
//! - *kept*: of both the smaller. Who starts here takes nothing that was promised.
//! - *open*: *kept*, less what is reserved. Who starts here delays nobody who has a reservation.
//!
//! A view is made when it first differs from the one above it.

use jiff::Timestamp;

use super::job::JobId;
use super::room::raise;
use crate::gang::Gang;
use crate::place::Plan;
use crate::snapshot::{Node, Snapshot};

#[derive(Debug, Default)]
pub struct Views {
    soon: Option<Snapshot>,
    kept: Option<Snapshot>,
    open: Option<Snapshot>,
    /// The nodes of reservations, as they will be when those have started for whom they are.
    floors: Snapshot,
    reservations: Vec<Reservation>,
    /// Who was promised room that others give back.
    promised: Vec<JobId>,
}

/// Room that is kept for a job.
#[derive(Debug, Clone)]
pub struct Reservation {
    pub job: JobId,
    /// When it should start, where that is known.
    pub at: Option<Timestamp>,
}

impl Views {
    pub fn open<'a>(&'a self, now: &'a Snapshot) -> &'a Snapshot {
        self.open.as_ref().unwrap_or_else(|| self.kept(now))
    }

    pub fn kept<'a>(&'a self, now: &'a Snapshot) -> &'a Snapshot {
        self.kept.as_ref().unwrap_or(now)
    }

    /// Made from what leaves, where it is not there yet.
    pub fn soon<'a>(
        &mut self,
        now: &Snapshot,
        leaving: impl Iterator<Item = (Plan, &'a Gang)>,
    ) -> &mut Snapshot {
        self.soon.get_or_insert_with(|| {
            let mut soon = now.clone();
            for (plan, gang) in leaving {
                soon.give_back(&plan, gang);
            }
            soon
        })
    }

    /// A view of what is to come, less what is reserved.
    pub fn less_reserved(&self, mut coming: Snapshot) -> Snapshot {
        for floor in self.floors.nodes() {
            raise(&mut coming, floor);
        }
        coming
    }

    pub fn is_open_to_all(&self) -> bool {
        self.reservations.is_empty()
    }

    /// Would a job that ends by then delay nobody?
    pub fn are_all_after(&self, ends_by: Option<Timestamp>) -> bool {
        ends_by.is_some_and(|ends_by| {
            let mut reservations = self.reservations.iter();
            reservations.all(|reserved| reserved.at.is_some_and(|at| ends_by <= at))
        })
    }

    /// Who stands before all others of those for whom room is kept.
    pub fn first_kept_for(&self) -> Option<&JobId> {
        let reserved = self.reservations.iter().map(|reserved| &reserved.job);
        self.promised.iter().chain(reserved).next()
    }

    /// Someone starts; it is already taken in `now`.
    pub fn start(&mut self, now: &Snapshot, plan: &Plan, gang: &Gang, ends_by: Option<Timestamp>) {
        for view in [&mut self.soon, &mut self.kept].into_iter().flatten() {
            view.take(plan, gang);
        }
        if !self.are_all_after(ends_by) {
            self.floors.take(plan, gang);
        }
        self.reopen(now, plan);
    }

    /// Others were asked to end.
    pub fn leave(&mut self, plan: &Plan, gang: &Gang) {
        if let Some(soon) = &mut self.soon {
            soon.give_back(plan, gang);
        }
    }

    /// Promises a job what comes free soon.
    pub fn promise(&mut self, now: &Snapshot, job: &JobId, plan: &Plan, gang: &Gang) {
        let Some(soon) = &mut self.soon else {
            return;
        };
        soon.take(plan, gang);
        self.floors.take(plan, gang);
        let kept = self.kept.get_or_insert_with(|| now.clone());
        for node in plan.nodes.iter().filter_map(|name| soon.node(name)) {
            raise(kept, node);
        }
        self.promised.push(job.clone());
        self.reopen(now, plan);
    }

    /// Keeps the nodes of a plan for a job: `then` is how they will be when it has started.
    pub fn reserve(
        &mut self,
        now: &Snapshot,
        reservation: Reservation,
        plan: &Plan,
        then: &Snapshot,
    ) {
        for node in plan.nodes.iter().filter_map(|name| then.node(name)) {
            self.floors.put(node.clone());
        }
        self.reservations.push(reservation);
        self.reopen(now, plan);
    }

    /// Makes the nodes of a plan anew in what is open.
    fn reopen(&mut self, now: &Snapshot, plan: &Plan) {
        if self.reservations.is_empty() {
            return;
        }
        let kept = self.kept.as_ref().unwrap_or(now);
        let open = self.open.get_or_insert_with(|| kept.clone());
        for name in &plan.nodes {
            if let Some(node) = kept.node(name) {
                open.put(Node::clone(node));
            }
            if let Some(floor) = self.floors.node(name) {
                raise(open, floor);
            }
        }
    }
}

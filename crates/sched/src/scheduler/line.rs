//! Who waits in a queue, and whose turn it is among queues.
//!
//! In a queue the more important go first, then the older. Among queues goes first the one whose first job is most important, then the one
//! with the smallest share, at each level of the tree.
//!
//! So that nobody waits for ever, the job of each queue that has waited for longest goes before all that is said above, once that is long. A
//! queue's next job may do so only as long a time after: a large backlog is no way around fair shares. Waiting is counted from when a job
//! last had room, so that one which is preempted again and again does not keep all others from their turn.
//! (Who started after so long a wait is not preempted at once; that is in `victims.rs`.)

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use jiff::Timestamp;
use stoke_api::trainjob::Priority;

use super::job::{Job, JobId};
use crate::queues::{Models, QueueId, Queues, Share, TOP};

/// The jobs that wait in one queue.
#[derive(Debug, Clone, Default)]
pub struct Line {
    by_place: BTreeSet<Place>,
    by_age: BTreeSet<(Timestamp, JobId)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    priority: Reverse<Priority>,
    submitted_at: Timestamp,
    id: JobId,
}

impl Place {
    fn of(job: &Job) -> Self {
        Self {
            priority: Reverse(job.priority),
            submitted_at: job.submitted_at,
            id: job.id.clone(),
        }
    }
}

impl Line {
    pub fn enter(&mut self, job: &Job) {
        self.by_place.insert(Place::of(job));
        self.by_age.insert((job.waits_since, job.id.clone()));
    }

    pub fn leave(&mut self, job: &Job) {
        self.by_place.remove(&Place::of(job));
        self.by_age.remove(&(job.waits_since, job.id.clone()));
    }

    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Who has waited for longest, first.
    pub fn oldest(&self) -> impl Iterator<Item = (Timestamp, &JobId)> {
        self.by_age.iter().map(|(at, id)| (*at, id))
    }

    /// How many are before a job.
    pub fn ahead_of(&self, job: &Job) -> u32 {
        self.by_place.range(..&Place::of(job)).count() as u32
    }

    /// Those who are at least so important, in their order; who goes first because of its age is one of them.
    fn in_order(&self, overdue: Option<&Overdue>, least: Priority) -> VecDeque<(Class, JobId)> {
        let first = overdue.map(|first| {
            (
                Class::Overdue(first.due, first.id.clone()),
                first.id.clone(),
            )
        });
        let others = self.by_place.iter();
        let others = others.take_while(|place| place.priority.0 >= least);
        let others = others.filter(|place| overdue.is_none_or(|first| first.id != place.id));
        let others = others.map(|place| (Class::Ranked(place.priority), place.id.clone()));
        first.into_iter().chain(others).collect()
    }
}

/// A job that has waited so long that it goes first.
#[derive(Debug, Clone)]
pub struct Overdue {
    pub due: Timestamp,
    pub id: JobId,
}

/// What decides before shares do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Overdue(Timestamp, JobId),
    Ranked(Reverse<Priority>),
}

/// Gives jobs one by one, each time that of the queue whose turn it is. Of each queue, those who are important enough to be asked.
#[derive(Debug)]
pub struct Turns {
    queues: Vec<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    jobs: VecDeque<(Class, JobId)>,
    /// The queues below that have jobs, and itself where it has own ones.
    order: BTreeSet<(Class, Share, QueueId)>,
    /// Under which it stands in the order of the queue above.
    stands: Option<(Class, Share)>,
    own: Option<(Class, Share)>,
}

impl Turns {
    pub fn new(
        queues: &Queues,
        models: &Models,
        lines: &[Line],
        overdue: &[Option<Overdue>],
        least: impl Fn(QueueId) -> Option<Priority>,
    ) -> Self {
        let mut turns = Self { queues: Vec::new() };
        turns.queues.resize_with(queues.len(), Turn::default);
        for (id, line) in lines.iter().enumerate() {
            if let Some(least) = least(id).filter(|_| !line.is_empty()) {
                turns.queues[id].jobs = line.in_order(overdue[id].as_ref(), least);
                turns.settle(id, queues, models);
            }
        }
        turns
    }

    /// The next, and its queue. After it was decided on, [`Turns::settle`] must be told.
    pub fn next(&mut self) -> Option<(QueueId, JobId)> {
        let mut at = TOP;
        loop {
            let (_, _, next) = self.queues[at].order.first()?;
            if *next == at {
                return self.queues[at].jobs.pop_front().map(|(_, id)| (at, id));
            }
            at = *next;
        }
    }

    /// None of this queue's own jobs any more.
    pub fn dismiss(&mut self, id: QueueId) {
        self.queues[id].jobs.clear();
    }

    /// Puts a queue, and those above it, where they belong now.
    pub fn settle(&mut self, id: QueueId, queues: &Queues, models: &Models) {
        let turn = &mut self.queues[id];
        if let Some((class, share)) = turn.own.take() {
            turn.order.remove(&(class, share, id));
        }
        if let Some((class, _)) = turn.jobs.front() {
            let own = (class.clone(), queues.own_share(id, models));
            turn.order.insert((own.0.clone(), own.1, id));
            turn.own = Some(own);
        }
        let mut at = id;
        while at != TOP {
            let above = queues.parent(at);
            let class = self.queues[at].order.first().map(|first| first.0.clone());
            let stands = class.map(|class| (class, queues.share(at, models)));
            let stood = std::mem::replace(&mut self.queues[at].stands, stands.clone());
            let order = &mut self.queues[above].order;
            if let Some((class, share)) = stood {
                order.remove(&(class, share, at));
            }
            if let Some((class, share)) = stands {
                order.insert((class, share, at));
            }
            at = above;
        }
    }
}

//! May a job have what it asks for, and whose room may it take?
//!
//! - **Ceiling**: a queue, with all below it, never uses more.
//! - **Guarantee**: a right. Who uses it meanwhile makes room. Of what is guaranteed to a queue, a part may be guaranteed to queues below it; the
//!   rest is for the jobs of whom it is the nearest that says a guarantee. Against those outside of it, a queue has a right to all of it.
//! - **Borrowing**: everything else is borrowed, and allowed while nobody claims it. A production job, and a queue with `borrow: false`, does
//!   not borrow: beyond its guarantee it may use only what is guaranteed to nobody. So whoever claims a guarantee finds that it is free, or
//!   used by jobs that may be preempted.
//!
//! Invariant: what is allowed depends on what others use only in that more use allows less.

use std::collections::BTreeMap;

use stoke_api::QueueSpec;
use stoke_api::queue::GpuCount;
use stoke_api::trainjob::Priority;

use super::fault::nearest_guarantor;
use super::quota::{Amounts, Entry, Limit, QuotaShortage, amount};
use super::{ANY, Mask, Milli, PRIORITIES, QueueId, Queues, TOP};

/// A count of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub used: Milli,
    /// The part of it that was asked to end.
    pub leaving: Milli,
    /// What is promised to jobs that wait for those to end.
    pub held: Milli,
}

/// Of which use a question is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Now,
    /// As soon as those have ended who were asked to.
    Soon,
    /// Were nothing used.
    Idle,
}

impl Tally {
    fn claimed(&self, when: When) -> Milli {
        if when == When::Idle {
            return Milli::default();
        }
        let mut claimed = self.used;
        claimed += self.held;
        if when == When::Soon {
            claimed -= self.leaving;
        }
        claimed
    }
}

/// A question: may a job of this queue use so much more?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub queue: QueueId,
    pub priority: Priority,
    pub gpus: Milli,
    pub when: When,
    /// Would the less important of its own queue go for it?
    pub displaces: bool,
}

impl Ask {
    fn is_production(&self) -> bool {
        self.priority == Priority::Production
    }
}

/// What would be taken of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    pub gpus: Milli,
    /// What it has beyond that and could do without.
    pub surplus: Milli,
}

impl Part {
    /// Its surplus would go first.
    fn is_covered(&self, amounts: &Amounts, tally: &Tally) -> bool {
        let mut others = tally.claimed(When::Soon);
        others -= self.surplus;
        others -= self.gpus;
        amounts.covers(others, self.gpus)
    }
}

/// How a job stands to what its queue may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Within what is guaranteed to this queue, which is its own or above.
    Guaranteed(QueueId),
    /// Beyond, and allowed while nobody claims it.
    Allowed,
}

/// The limit that keeps a job, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    pub queue: QueueId,
    pub limit: Limit,
    gpus: Box<Milli>,
}

impl Queues {
    pub fn has_guarantee(&self, id: QueueId) -> bool {
        self.list[id].guarantor != TOP
    }

    /// Is anything guaranteed to anyone?
    pub fn has_guarantees(&self) -> bool {
        self.list.iter().any(|queue| queue.guarantor != TOP)
    }

    /// May a job use so many GPUs more?
    pub fn admit(&self, ask: &Ask) -> Result<Right, Short> {
        let short = |queue, limit| Short {
            queue,
            limit,
            gpus: Box::new(ask.gpus),
        };
        // What is guaranteed to a queue is for its most important jobs first: the others then borrow, and need not go.
        let below = match ask.when {
            When::Idle => Milli::default(),
            When::Now | When::Soon => self.own_below(ask.queue, ask.priority),
        };
        let gone = if ask.displaces {
            below
        } else {
            Milli::default()
        };
        let claimed = |tally: &Tally, less: Milli| {
            let mut claimed = tally.claimed(ask.when);
            claimed -= less;
            claimed
        };
        for id in self.chain(ask.queue) {
            let queue = &self.list[id];
            let mut with = claimed(&queue.all, gone);
            with += ask.gpus;
            if queue.ceiling.exceeded(with).is_some() {
                return Err(short(id, Limit::Ceiling));
            }
        }
        let guarantor = self.list[ask.queue].guarantor;
        let nearest = &self.list[guarantor];
        let covers = |id: &QueueId, less: Milli| {
            let queue = &self.list[*id];
            queue.guaranteed.covers(claimed(&queue.all, less), ask.gpus)
        };
        let does_not_borrow = |id: &QueueId| !self.list[*id].borrow && !covers(id, gone);
        let thrifty = self.chain(ask.queue).find(does_not_borrow);
        if thrifty.is_none() {
            let direct = claimed(&nearest.direct, below);
            if nearest.residual.covers(direct, ask.gpus) {
                return Ok(Right::Guaranteed(guarantor));
            }
        }
        if ask.is_production() {
            return if self.is_spare(ask) {
                Ok(Right::Allowed)
            } else {
                let queue = if guarantor == TOP {
                    ask.queue
                } else {
                    guarantor
                };
                Err(short(queue, Limit::ProductionBorrows))
            };
        }
        if let Some(thrifty) = thrifty
            && !self.is_spare(ask)
        {
            return Err(short(thrifty, Limit::QueueBorrows));
        }
        let outer = self.chain(ask.queue).find(|id| covers(id, below));
        Ok(outer.map_or(Right::Allowed, Right::Guaranteed))
    }

    /// Is so much more guaranteed to nobody, and not used by those who do not borrow?
    fn is_spare(&self, ask: &Ask) -> bool {
        // Where nothing is guaranteed there is nothing to borrow.
        if !self.has_guarantees() {
            return true;
        }
        let chain: Vec<QueueId> = self.chain(ask.queue).collect();
        let mut beyond = Milli::default();
        let mut guarantees = Vec::new();
        for (id, queue) in self.list.iter().enumerate() {
            guarantees.extend_from_slice(queue.residual.entries());
            let mut firm = queue.firm.claimed(ask.when);
            if ask.is_production() && id == self.list[ask.queue].guarantor {
                firm += ask.gpus;
            }
            beyond += queue.residual.uncovered(firm);
            if !queue.borrow {
                let mut all = queue.all.claimed(ask.when);
                if !ask.is_production() && chain.contains(&id) {
                    all += ask.gpus;
                }
                beyond += queue.guaranteed.uncovered(all);
            }
        }
        let mut left = self.capacity.gpus;
        let is_there = Mask::ALL
            .models()
            .all(|model| left.draw(Mask::NONE.with(model), beyond.get(model)) == 0);
        is_there && Amounts::from_entries(guarantees).draw_from(&mut left)
    }

    /// The nearest queue that says a guarantee; the top where none does.
    pub fn guarantor(&self, id: QueueId) -> QueueId {
        self.list[id].guarantor
    }

    /// All queues that say a guarantee, and the top.
    pub fn guarantors(&self) -> Vec<QueueId> {
        let says = |id: &QueueId| self.list[*id].guarantor == *id;
        (0..self.list.len()).filter(says).collect()
    }

    /// The queues of which one is the nearest that says a guarantee.
    pub fn under(&self, guarantor: QueueId) -> impl Iterator<Item = QueueId> {
        let queues = self.list.iter().enumerate();
        queues
            .filter(move |(_, queue)| queue.guarantor == guarantor)
            .map(|(id, _)| id)
    }

    /// Is what a job uses covered by the nearest guarantee? CPU and memory are guaranteed to nobody.
    pub fn is_covered(&self, id: QueueId, part: &Part) -> bool {
        let nearest = &self.list[self.list[id].guarantor];
        part.gpus.total() > 0 && part.is_covered(&nearest.residual, &nearest.direct)
    }

    /// Is what a job uses guaranteed to its queue, or to one above that is not above the other?
    pub fn is_guaranteed(&self, id: QueueId, part: &Part, against: QueueId) -> bool {
        let above: Vec<QueueId> = self.chain(against).collect();
        let mut apart = self.chain(id).take_while(|at| !above.contains(at));
        let covers = |at: QueueId| {
            let queue = &self.list[at];
            part.is_covered(&queue.guaranteed, &queue.all)
        };
        let is_near = !above.contains(&self.list[id].guarantor) && self.is_covered(id, part);
        is_near || (part.gpus.total() > 0 && apart.any(covers))
    }

    /// May a job be asked to make room for one of another queue that has this right? It may where what it uses is not guaranteed to it, and
    /// the other is more important or claims what is guaranteed to a queue that it is not in itself.
    pub fn must_yield(&self, id: QueueId, part: &Part, claimant: QueueId, right: Right) -> bool {
        let has_right = match right {
            Right::Guaranteed(at) => !self.chain(id).any(|above| above == at),
            Right::Allowed => true,
        };
        has_right && !self.is_guaranteed(id, part, claimant)
    }

    /// What jobs of this queue itself use that are less important, and were not asked to end.
    pub fn own_below(&self, id: QueueId, priority: Priority) -> Milli {
        let by_priority = self.list[id].own.iter().zip(PRIORITIES);
        let below = by_priority.filter(|(_, of)| *of < priority);
        below.fold(Milli::default(), |mut sum, (own, _)| {
            sum += *own;
            sum
        })
    }

    /// A limit with its figures.
    pub fn tell(&self, short: &Short) -> QuotaShortage {
        let queue = &self.list[short.queue];
        let used = match short.limit {
            Limit::ProductionBorrows => queue.direct.claimed(When::Now),
            Limit::Ceiling | Limit::QueueBorrows => queue.all.claimed(When::Now),
        };
        let mut with = used;
        with += *short.gpus;
        let entry = match short.limit {
            Limit::Ceiling => queue.ceiling.exceeded(with),
            Limit::ProductionBorrows => touching(&queue.residual, &short.gpus),
            Limit::QueueBorrows => touching(&queue.guaranteed, &short.gpus),
        };
        let mask = entry.map_or(Mask::ALL, |entry| entry.mask);
        QuotaShortage {
            queue: queue.name.to_string(),
            gpus: entry.map_or(ANY, |entry| &entry.name).to_owned(),
            limit: short.limit,
            used: amount(used.within(mask)),
            allowed: amount(entry.map_or(0, |entry| entry.milli)),
            asks: amount(short.gpus.within(mask)),
        }
    }
}

/// The narrowest entry that these GPUs count against.
fn touching<'a>(amounts: &'a Amounts, gpus: &Milli) -> Option<&'a Entry> {
    let mut entries = amounts.entries().iter();
    entries.find(|entry| gpus.within(entry.mask) > 0)
}

/// What is guaranteed to a queue and not to one below it. What is guaranteed below of a type comes out of its own of that type first, then
/// out of `any`; that there is enough is what [`super::fault`] sees to.
pub fn residual(specs: &BTreeMap<String, QueueSpec>, name: &str) -> BTreeMap<String, GpuCount> {
    let mut left = specs
        .get(name)
        .map(|spec| spec.guaranteed.clone())
        .unwrap_or_default();
    let below = specs
        .iter()
        .filter(|(child, _)| nearest_guarantor(specs, child) == Some(name));
    for (gpus, count) in below.flat_map(|(_, spec)| &spec.guaranteed) {
        let mut wanted = count.0;
        for of in [gpus.as_str(), ANY] {
            if let Some(left) = left.get_mut(of) {
                let taken = left.0.min(wanted);
                left.0 -= taken;
                wanted -= taken;
            }
        }
    }
    left
}

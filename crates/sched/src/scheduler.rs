//! Who runs next, and where: a state machine that is fed with facts and says what to do.
//!
//! The caller tells of nodes, queues and jobs as they change, and asks for a [`cycle`](Scheduler::cycle) when it likes. A cycle walks those
//! who wait in their order and decides for each from the facts alone: nothing that a cycle found out is needed by the next but to save time,
//! so a scheduler that was told the same decides the same. The rules are where they are applied: `line.rs` who is next, `../queues.rs` who
//! may use how much, `cycle.rs` who starts, `reserve.rs` for whom room is kept, `victims.rs` who makes room, `elastic.rs` who grows.
//!
//! Invariant: no clock, no IO. The same facts give the same decisions, and a second cycle at the same time gives none.

mod cycle;
mod datasets;
mod elastic;
mod explain;
mod job;
mod line;
mod reserve;
mod room;
mod shapes;
mod start;
mod victims;
mod views;
mod wait;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use stoke_api::{QueueSpec, Span};

use self::datasets::Datasets;
use self::job::later;
pub use self::job::{Change, Claim, Decision, Job, JobId, Running};
use self::line::{Line, Overdue};
use self::room::{Gain, Room, part};
use self::shapes::{ShapeId, Shapes, workers_min};
pub use self::wait::{Constraint, Estimate, Remedy, Wait};
use crate::place::{Appraiser, Plan};
use crate::queues::{
    Account, Ask, History, Mask, Milli, QueueFault, QueueId, Queues, Short, Standing, UNNAMED, When,
};
use crate::resources::Resources;
use crate::snapshot::{Node, Snapshot};

/// The lengths of time that decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// After this time a past use counts half.
    pub half_life: Span,
    /// Who has waited so long goes first, whatever its importance and its queue's share; one job a queue in that time.
    pub patience: Span,
    /// Room is kept so long for a job of which nobody knows when it can start, then for as long not, and so on.
    pub hold: Span,
    /// Learn from the work that is submitted which room to leave for what will come. It guides where a gang goes, never whether it does.
    pub learns: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            half_life: Span::hours(24),
            patience: Span::hours(4),
            hold: Span::hours(1),
            learns: true,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Scheduler {
    policy: Policy,
    appraiser: Appraiser,
    room: Room,
    queues: Queues,
    shapes: Shapes,
    datasets: Datasets,
    jobs: HashMap<JobId, Entry>,
    /// Who has room, by queue.
    holders: Vec<BTreeSet<JobId>>,
    /// By queue.
    lines: Vec<Line>,
    /// Who has room, by when it comes free.
    ends: BTreeSet<End>,
    /// Those of them who were asked to give up room.
    leaving: BTreeSet<JobId>,
    /// Those who have room and whose workers may be more or fewer.
    elastic: BTreeSet<JobId>,
    /// Who has room on each node.
    on_node: BTreeMap<String, BTreeSet<JobId>>,
}

#[derive(Debug, Clone)]
struct Entry {
    job: Job,
    /// None where there is no such queue, or it cannot be used.
    queue: Option<QueueId>,
    shape: ShapeId,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Waits(Verdict),
    Has(Box<Holding>),
}

/// A job that has room.
#[derive(Debug, Clone)]
struct Holding {
    plan: Plan,
    since: Timestamp,
    ends_by: Option<Timestamp>,
    saved_at: Option<Timestamp>,
    change: Change,
    account: Account,
    /// The caller has said that it runs: its room is in what is used.
    is_on_record: bool,
}

impl Holding {
    /// Where it has workers, or will.
    fn nodes(&self) -> impl Iterator<Item = &String> {
        let grows = match &self.change {
            Change::Grows { plan } => plan.nodes.as_slice(),
            _ => &[],
        };
        self.plan.nodes.iter().chain(grows)
    }
}

/// When room comes free: first where that is known, then where the longest runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    is_unknown: bool,
    at: Timestamp,
    id: JobId,
}

impl End {
    fn of(id: &JobId, holding: &Holding) -> Self {
        Self {
            is_unknown: holding.ends_by.is_none(),
            at: holding.ends_by.unwrap_or(holding.since),
            id: id.clone(),
        }
    }
}

/// What the last cycle found of a job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    NotLookedAt,
    NoQueue,
    Quota(Short),
    QuotaKept { queue: QueueId, for_job: JobId },
    Room(Mask),
    RoomKept { for_job: JobId },
    Coming { from: Vec<JobId> },
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}

impl Scheduler {
    pub fn new(policy: Policy) -> Self {
        let queues = Queues::default();
        Self {
            policy,
            appraiser: Appraiser::default(),
            room: Room::default(),
            shapes: Shapes::default(),
            datasets: Datasets::default(),
            jobs: HashMap::new(),
            holders: vec![BTreeSet::new(); queues.len()],
            lines: vec![Line::default(); queues.len()],
            queues,
            ends: BTreeSet::new(),
            leaving: BTreeSet::new(),
            elastic: BTreeSet::new(),
            on_node: BTreeMap::new(),
        }
    }

    /// The nodes, with what was set aside.
    pub fn snapshot(&self) -> &Snapshot {
        &self.room.now
    }

    /// A node, with what pods and promises on record use of it. What was set aside here is not to be counted in.
    pub fn put_node(&mut self, node: Node) {
        let name = node.name.clone();
        let gain = self.room.put(node);
        self.gained(gain, &name);
    }

    pub fn remove_node(&mut self, name: &str) {
        let gain = self.room.remove(name);
        self.gained(gain, name);
    }

    /// What pods and promises on record use of a node.
    pub fn set_used(&mut self, name: &str, used: Resources) {
        let gain = self.room.change(name, |told| told.set_used(name, used));
        self.gained(gain, name);
    }

    /// What is in use of each GPU of a node, where it is us who choose among them.
    pub fn set_devices(&mut self, name: &str, devices: Option<Vec<u16>>) {
        let gain = self
            .room
            .change(name, |told| told.set_devices(name, devices));
        self.gained(gain, name);
    }

    /// The labels that tell a node's place in the network, outermost first.
    pub fn set_levels(&mut self, levels: impl IntoIterator<Item = String>) {
        let levels: Vec<String> = levels.into_iter().collect();
        if self.room.set_levels(&levels) {
            self.shapes.start_over(&self.room.models);
        }
    }

    fn gained(&mut self, gain: Gain, node: &str) {
        match gain {
            Gain::None => {}
            Gain::Room { before, after } => self.shapes.gain(Some(&before), &after),
            Gain::Node { has_new_model } => {
                if has_new_model {
                    self.room.count();
                    self.queues = self.queues.anew(&self.room.models);
                    self.rebuild();
                } else {
                    let jobs = self.on_node.get(node).cloned().unwrap_or_default();
                    for id in jobs {
                        self.count_anew(&id);
                    }
                }
                self.queues.capacity = self.room.capacity;
                self.shapes.start_over(&self.room.models);
            }
        }
    }

    /// All queues there are, by name. What is wrong with those that cannot be used: their jobs wait, everyone else goes on.
    pub fn set_queues(
        &mut self,
        queues: impl IntoIterator<Item = (String, QueueSpec)>,
    ) -> BTreeMap<String, QueueFault> {
        let specs: BTreeMap<String, QueueSpec> = queues
            .into_iter()
            .filter(|(name, _)| !name.is_empty())
            .collect();
        if specs != *self.queues.specs() {
            self.queues = self.queues.with(specs, &self.room.models);
            self.queues.capacity = self.room.capacity;
            self.rebuild();
        }
        self.queues.faults().clone()
    }

    /// Puts every job anew where it belongs, after queues or models were numbered anew.
    fn rebuild(&mut self) {
        self.lines = vec![Line::default(); self.queues.len()];
        self.holders = vec![BTreeSet::new(); self.queues.len()];
        for entry in self.jobs.values_mut() {
            entry.queue = queue_of(&self.queues, &entry.job);
            match (&mut entry.state, entry.queue) {
                (State::Waits(_), Some(queue)) => self.lines[queue].enter(&entry.job),
                (State::Waits(verdict), None) => *verdict = Verdict::NoQueue,
                (State::Has(holding), queue) => {
                    holding.account =
                        account_of(&self.room, &self.shapes, &entry.job, entry.shape, holding);
                    let queue = queue.unwrap_or(UNNAMED);
                    self.queues.add(queue, &holding.account);
                    self.holders[queue].insert(entry.job.id.clone());
                }
            }
        }
    }

    /// Who has room, of the queues that have this one as their nearest that says a guarantee.
    fn held_under(&self, guarantor: QueueId) -> Vec<JobId> {
        let queues = self.queues.under(guarantor);
        queues
            .flat_map(|queue| self.holders[queue].iter().cloned())
            .collect()
    }

    fn count_anew(&mut self, id: &JobId) {
        if let Some(entry) = self.jobs.get_mut(id)
            && let State::Has(holding) = &mut entry.state
        {
            let queue = entry.queue.unwrap_or(UNNAMED);
            self.queues.remove(queue, &holding.account);
            holding.account =
                account_of(&self.room, &self.shapes, &entry.job, entry.shape, holding);
            self.queues.add(queue, &holding.account);
        }
    }

    /// It waits for room. What was set aside for it is given back; one that had room has it no more.
    pub fn submit(&mut self, job: Job) {
        let is_same = self
            .jobs
            .get(&job.id)
            .is_some_and(|known| known.job == job && matches!(known.state, State::Waits(_)));
        if is_same {
            return;
        }
        self.learn(&job);
        self.forget(&job.id);
        let shape = self.shapes.enter(&job.gang, &self.room.models);
        let queue = queue_of(&self.queues, &job);
        let verdict = match queue {
            Some(queue) => {
                self.lines[queue].enter(&job);
                Verdict::NotLookedAt
            }
            None => Verdict::NoQueue,
        };
        let id = job.id.clone();
        let entry = Entry {
            job,
            queue,
            shape,
            state: State::Waits(verdict),
        };
        self.jobs.insert(id, entry);
    }

    /// Takes note of a job that was not heard of before.
    fn learn(&mut self, job: &Job) {
        if self.policy.learns && !self.jobs.contains_key(&job.id) {
            self.appraiser.observe(&mut self.room.now, &job.gang);
        }
    }

    /// It wants no room any more.
    pub fn withdraw(&mut self, id: &JobId) {
        self.forget(id);
    }

    /// It has room, and what it holds is in what is used of its nodes. Said again whenever any of this has changed.
    pub fn run(&mut self, running: Running) {
        let Running {
            job,
            plan,
            since,
            ends_by,
            saved_at,
            change,
        } = running;
        self.learn(&job);
        self.forget(&job.id);
        let shape = self.shapes.enter(&job.gang, &self.room.models);
        let queue = queue_of(&self.queues, &job);
        let id = job.id.clone();
        if let Change::Grows { plan } = &change {
            self.room.set_aside(&id, plan.clone(), job.gang.clone());
        }
        let holding = Holding {
            plan,
            since,
            ends_by,
            saved_at,
            change,
            account: Account::default(),
            is_on_record: true,
        };
        self.hold(job, queue, shape, holding);
    }

    /// It has given its room back.
    pub fn end(&mut self, id: &JobId) {
        self.forget(id);
    }

    fn hold(&mut self, job: Job, queue: Option<QueueId>, shape: ShapeId, mut holding: Holding) {
        let id = job.id.clone();
        holding.account = account_of(&self.room, &self.shapes, &job, shape, &holding);
        self.queues.add(queue.unwrap_or(UNNAMED), &holding.account);
        self.holders[queue.unwrap_or(UNNAMED)].insert(id.clone());
        for node in holding.nodes() {
            let jobs = self.on_node.entry(node.clone()).or_default();
            jobs.insert(id.clone());
            self.datasets.read(&job.datasets, node);
        }
        if elastic::is_elastic(&job.gang) {
            self.elastic.insert(id.clone());
        }
        match holding.change {
            Change::Yields => {
                self.leaving.insert(id.clone());
            }
            Change::Shrinks { .. } => {
                self.leaving.insert(id.clone());
                self.ends.insert(End::of(&id, &holding));
            }
            Change::None | Change::Grows { .. } => {
                self.ends.insert(End::of(&id, &holding));
            }
        }
        let entry = Entry {
            job,
            queue,
            shape,
            state: State::Has(Box::new(holding)),
        };
        self.jobs.insert(id, entry);
    }

    fn forget(&mut self, id: &JobId) {
        let Some(entry) = self.jobs.remove(id) else {
            return;
        };
        match &entry.state {
            State::Waits(_) => {
                if let Some(queue) = entry.queue {
                    self.lines[queue].leave(&entry.job);
                }
            }
            State::Has(holding) => {
                let queue = entry.queue.unwrap_or(UNNAMED);
                self.queues.remove(queue, &holding.account);
                self.holders[queue].remove(id);
                self.ends.remove(&End::of(id, holding));
                self.leaving.remove(id);
                self.elastic.remove(id);
                for node in holding.nodes() {
                    self.datasets.leave(&entry.job.datasets, node);
                    if let Some(jobs) = self.on_node.get_mut(node) {
                        jobs.remove(id);
                        if jobs.is_empty() {
                            self.on_node.remove(node);
                        }
                    }
                }
                for (before, after) in self.room.give_back(id) {
                    self.shapes.gain(Some(&before), &after);
                }
            }
        }
        self.shapes.leave(entry.shape);
    }

    /// What to do now. What was decided is taken as done: asked again at once, there is nothing more to do.
    pub fn cycle(&mut self, now: Timestamp) -> Vec<Decision> {
        self.queues
            .pass_time(now, self.policy.half_life, &self.room.models);
        cycle::Cycle::new(self, now).decide()
    }

    /// Each queue's job that goes first because of its age: who has waited for longest, of those that could ever start.
    fn overdue(&mut self, now: Timestamp) -> Vec<Option<Overdue>> {
        (0..self.lines.len())
            .map(|queue| self.overdue_of(queue, now))
            .collect()
    }

    fn overdue_of(&mut self, queue: QueueId, now: Timestamp) -> Option<Overdue> {
        let turn_at = self.queues.turn_at(queue);
        let due = |waits_since: Timestamp| {
            let since = turn_at.map_or(waits_since, |turn_at| turn_at.max(waits_since));
            later(since, self.policy.patience)
        };
        for (waits_since, id) in self.lines[queue].oldest() {
            let due = due(waits_since).filter(|due| *due <= now)?;
            let entry = &self.jobs[id];
            if self.shapes.is_possible(entry.shape, &self.room.now)
                && could_admit(&self.queues, &self.shapes, entry)
            {
                let id = id.clone();
                return Some(Overdue { due, id });
            }
        }
        None
    }

    /// What each queue has used, to be [remembered](Self::remember) by a scheduler that starts anew.
    pub fn history(&self) -> History {
        self.queues.history()
    }

    /// Takes over what queues have used before. To be told after the queues.
    pub fn remember(&mut self, history: &History) {
        self.queues.remember(history);
    }

    /// How each queue stands, by name; the empty name is that of jobs that name none.
    pub fn standings(&self) -> BTreeMap<String, Standing> {
        let names = self.queues.specs().keys().map(String::as_str);
        let mut standings: BTreeMap<String, Standing> = std::iter::once("")
            .chain(names)
            .map(|name| (name.to_owned(), self.standing(name)))
            .collect();
        for entry in self.jobs.values() {
            let name = entry.job.queue.as_deref().unwrap_or_default();
            if let Some(standing) = standings.get_mut(name) {
                match &entry.state {
                    State::Waits(_) => standing.waiting += 1,
                    State::Has(_) => standing.running += 1,
                }
            }
        }
        standings
    }

    fn standing(&self, name: &str) -> Standing {
        let Some(id) = self.queues.find(name) else {
            return Standing {
                fault: self.queues.fault(name).cloned(),
                ..Standing::default()
            };
        };
        Standing {
            used: self.queues.used_by_type(id),
            share: self.queues.share(id, &self.room.models).0,
            ..Standing::default()
        }
    }
}

fn queue_of(queues: &Queues, job: &Job) -> Option<QueueId> {
    queues.find(job.queue.as_deref().unwrap_or_default())
}

/// Could its queue ever let it start?
fn could_admit(queues: &Queues, shapes: &Shapes, entry: &Entry) -> bool {
    let Some(queue) = entry.queue else {
        return false;
    };
    let shape = shapes.get(entry.shape);
    let ask = |gpus| Ask {
        queue,
        priority: entry.job.priority,
        gpus,
        when: When::Idle,
        displaces: false,
    };
    let milli = shape.milli_min();
    milli == 0
        || shape
            .models
            .models()
            .any(|model| queues.admit(&ask(Milli::of(model, milli))).is_ok())
}

/// What a job counts for in its queue.
fn account_of(
    room: &Room,
    shapes: &Shapes,
    job: &Job,
    shape: ShapeId,
    holding: &Holding,
) -> Account {
    let milli = shapes.get(shape).milli;
    let mut used = room.used_by(&holding.plan, &job.gang, milli);
    let leaving = match &holding.change {
        Change::None => Milli::default(),
        Change::Grows { plan } => {
            used += room.used_by(plan, &job.gang, milli);
            Milli::default()
        }
        Change::Yields => used.gpus,
        Change::Shrinks { to } => {
            let gone = part(&holding.plan, |rank, _| rank >= *to as usize);
            room.used_by(&gone, &job.gang, milli).gpus
        }
    };
    Account {
        used,
        leaving,
        priority: job.priority,
    }
}

impl Entry {
    fn workers_min(&self) -> u32 {
        workers_min(&self.job.gang)
    }
}

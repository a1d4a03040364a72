//! Who wants room, who was given some that is not on record yet, who has some, and who was asked to give some back: the scheduler, and what
//! it was told.
//!
//! A job that wants room is looked at once, by its own plan, and then asks. It is looked at again when something has changed that its ask
//! depends on: the job itself, its datasets and volumes, the nodes there are. What it is given is set aside in memory until its attempt is
//! on record.
//!
//! Invariant: nobody is given room before everyone who wants some was looked at.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use stoke_sched::{
    Change, Dataset, Decision, Fetch, Gang, Job, JobId, Node, Plan, Policy, Resources, Running,
    Scheduler, Wait,
};

use crate::mirror::Key;
use crate::trainjob::pod::Size;

#[derive(Debug)]
pub struct Rooms {
    scheduler: Scheduler,
    wanting: HashMap<Key, Wanting>,
    unseen: BTreeSet<Key>,
    holding: HashMap<Key, Holding>,
    /// Those who were asked to do something and have not done it yet.
    asked: BTreeSet<Key>,
    /// How often the nodes that there are have changed, but for what is used of them.
    epoch: u64,
    /// Something has changed since the scheduler was last asked.
    stirred: bool,
}

/// What a job asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    pub gang: Arc<Gang>,
    pub size: Size,
    /// Its workers share their nodes' network, so they need ports of their own there.
    pub shares_network: bool,
    /// When it would ask for something else though nothing has changed.
    pub until: Option<Timestamp>,
}

/// Room that a job was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    pub ask: Arc<Ask>,
    /// Nodes without a name are for an autoscaler to bring.
    pub plan: Plan,
    /// The first port of its lease, where it needs any.
    pub port: Option<u16>,
    /// What of its data is on those nodes, and what is copied there.
    pub fetches: Vec<Fetch>,
}

/// How it stands with the room for a job's next attempt.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Room {
    /// What it asks for is not known, or out of date.
    #[default]
    Unasked,
    /// Why it is not there, where that is known.
    Awaited {
        ask: Arc<Ask>,
        wait: Option<Wait>,
        /// With all that can be said: what would help, and when it starts.
        is_whole: bool,
    },
    /// Only ports are missing.
    NoPorts { ask: Arc<Ask> },
    Given {
        grant: Grant,
        /// The nodes have changed since it asked.
        stale: bool,
    },
}

/// What a job that has room was asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Demand {
    /// Another gets its room.
    Yield { by: Key, why: String },
    /// Another gets the room of its last workers.
    Shrink { to: u32, by: Key, why: String },
    /// It may have these workers more.
    Grow { plan: Plan },
}

impl Demand {
    fn by(&self) -> Option<&Key> {
        match self {
            Self::Yield { by, .. } | Self::Shrink { by, .. } => Some(by),
            Self::Grow { .. } => None,
        }
    }

    fn change(&self) -> Change {
        match self {
            Self::Yield { .. } => Change::Yields,
            Self::Shrink { to, .. } => Change::Shrinks { to: *to },
            Self::Grow { plan } => Change::Grows { plan: plan.clone() },
        }
    }
}

#[derive(Debug)]
struct Wanting {
    standing: Standing,
    /// The nodes by which it was last looked at.
    epoch: u64,
}

#[derive(Debug)]
enum Standing {
    Unseen,
    /// Something else than room keeps it. Its own turn will tell when that is over.
    Kept,
    Asks(Arc<Ask>),
    LacksPorts(Arc<Ask>),
    Given(Grant),
}

#[derive(Debug)]
struct Holding {
    attempt: u32,
    told: Running,
    demand: Option<Demand>,
}

/// What the scheduler has decided, by the job that must do something about it.
#[derive(Debug, Default)]
pub struct Decided {
    pub starts: Vec<(Key, Plan)>,
    pub demands: Vec<Key>,
    /// They get what others give up.
    pub claimants: Vec<Key>,
}

pub fn id_of(key: &Key) -> JobId {
    JobId::new(key.to_string())
}

pub fn key_of(id: &JobId) -> Key {
    let (namespace, name) = id.as_str().split_once('/').unwrap_or(("", id.as_str()));
    Key::new(namespace, name)
}

impl Default for Rooms {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::new(Policy::default()),
            wanting: HashMap::new(),
            unseen: BTreeSet::new(),
            holding: HashMap::new(),
            asked: BTreeSet::new(),
            epoch: 0,
            stirred: false,
        }
    }
}

impl Rooms {
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub fn into_scheduler(self) -> Scheduler {
        self.scheduler
    }

    /// To tell it of queues.
    pub fn stir(&mut self) -> &mut Scheduler {
        self.stirred = true;
        &mut self.scheduler
    }

    /// A node is there, or is not what it was: what anyone asked for may be out of date.
    pub fn put_node(&mut self, node: Node) {
        self.epoch += 1;
        self.stir().put_node(node);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.epoch += 1;
        self.stir().remove_node(name);
    }

    pub fn set_used(&mut self, name: &str, used: Resources, devices: Option<Vec<u16>>) {
        let scheduler = self.stir();
        scheduler.set_used(name, used);
        if devices.is_some() {
            scheduler.set_devices(name, devices);
        }
    }

    /// Where data is that is copied to nodes; none where there is no such data any more. It makes no room, so nobody need be decided on anew.
    pub fn put_dataset(&mut self, key: &Key, dataset: Option<Dataset>) {
        let name = key.to_string();
        match dataset {
            Some(dataset) => self.scheduler.put_dataset(&name, dataset),
            None => self.scheduler.remove_dataset(&name),
        }
    }

    /// Is there something to ask the scheduler?
    pub fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// A job wants room. `anew`: whatever was found when it was looked at may have changed.
    pub fn want(&mut self, key: &Key, anew: bool) {
        if self.wanting.contains_key(key) && !anew {
            return;
        }
        self.unask(key);
        let standing = Standing::Unseen;
        let epoch = self.epoch;
        self.wanting
            .insert(key.clone(), Wanting { standing, epoch });
        self.unseen.insert(key.clone());
    }

    /// It wants no room any more.
    pub fn unask(&mut self, key: &Key) {
        if self.has_asked(key) {
            self.scheduler.withdraw(&id_of(key));
            self.stirred = true;
        }
        self.unwant(key);
    }

    /// It has its room for as long as its workers need to stop.
    pub fn yields(&mut self, key: &Key) {
        if let Some(holding) = self.holding.get(key) {
            let mut told = holding.told.clone();
            told.change = Change::Yields;
            self.hold(key, holding.attempt, told);
        }
    }

    /// It has what it wanted, or wants it no more: what others were asked to do for it they need not do. What it was given.
    pub fn unwant(&mut self, key: &Key) -> Option<Grant> {
        self.unseen.remove(key);
        let wanting = self.wanting.remove(key);
        let for_it = |victim: &&Key| {
            let demand = self.holding.get(*victim).and_then(|it| it.demand.as_ref());
            demand.is_some_and(|demand| demand.by() == Some(key))
        };
        let spared: Vec<Key> = self.asked.iter().filter(for_it).cloned().collect();
        for victim in spared {
            self.refuse(&victim);
        }
        match wanting?.standing {
            Standing::Given(grant) => Some(grant),
            _ => None,
        }
    }

    pub fn wants(&self, key: &Key) -> bool {
        self.wanting.contains_key(key)
    }

    pub fn wanting(&self) -> impl Iterator<Item = &Key> {
        self.wanting.keys()
    }

    /// Does it ask, or was it given something?
    pub fn has_asked(&self, key: &Key) -> bool {
        let wanting = self.wanting.get(key);
        wanting.is_some_and(|wanting| {
            matches!(wanting.standing, Standing::Asks(_) | Standing::Given(_))
        })
    }

    /// Someone who was not looked at since it changed. Whoever takes the name must look.
    pub fn next_unseen(&mut self) -> Option<Key> {
        self.unseen.pop_first()
    }

    /// What came of looking at a job that wants room. True where the scheduler has been told something new.
    pub fn ask(&mut self, key: &Key, ask: Option<Arc<Ask>>, job: impl FnOnce() -> Job) -> bool {
        let epoch = self.epoch;
        let Some(wanting) = self.wanting.get_mut(key) else {
            return false;
        };
        self.unseen.remove(key);
        wanting.epoch = epoch;
        match (&wanting.standing, ask) {
            (Standing::Asks(known) | Standing::LacksPorts(known), Some(ask)) if *known == ask => {
                false
            }
            (Standing::Given(grant), Some(ask)) if grant.ask == ask => false,
            (_, Some(ask)) => {
                wanting.standing = Standing::Asks(ask);
                self.asked.remove(key);
                self.holding.remove(key);
                self.scheduler.submit(job());
                self.stirred = true;
                self.stop_growth();
                true
            }
            (Standing::Unseen | Standing::Kept, None) => {
                wanting.standing = Standing::Kept;
                false
            }
            (_, None) => {
                wanting.standing = Standing::Kept;
                self.scheduler.withdraw(&id_of(key));
                self.stirred = true;
                true
            }
        }
    }

    /// What is kept for gangs that will grow some day is for those who wait first.
    fn stop_growth(&mut self) {
        let grows = |key: &&Key| {
            let demand = self.holding.get(*key).and_then(|it| it.demand.as_ref());
            matches!(demand, Some(Demand::Grow { .. }))
        };
        let growing: Vec<Key> = self.asked.iter().filter(grows).cloned().collect();
        for key in growing {
            self.refuse(&key);
        }
    }

    /// There are ports again.
    pub fn gain_ports(&mut self) {
        for (key, wanting) in &mut self.wanting {
            if let Standing::LacksPorts(_) = wanting.standing {
                wanting.standing = Standing::Unseen;
                self.unseen.insert(key.clone());
                self.stirred = true;
            }
        }
    }

    /// Those who were given room on a node that is no more, or no more what it was.
    pub fn given_on(&self, node: &str) -> Vec<Key> {
        let is_on_node = |key: &&Key| {
            let given = self.given(key).map(|grant| &grant.plan.nodes);
            given.is_some_and(|nodes| nodes.iter().any(|name| name == node))
        };
        self.wanting().filter(is_on_node).cloned().collect()
    }

    /// Asks the scheduler, if everyone who wants room was looked at.
    pub fn cycle(&mut self, now: Timestamp) -> Decided {
        let mut decided = Decided::default();
        if !self.unseen.is_empty() {
            return decided;
        }
        self.stirred = false;
        for decision in self.scheduler.cycle(now) {
            match decision {
                Decision::Start { job, plan } => decided.starts.push((key_of(&job), plan)),
                Decision::Preempt {
                    victims,
                    for_job,
                    why,
                } => {
                    let by = key_of(&for_job);
                    for victim in victims {
                        let (by, why) = (by.clone(), why.to_string());
                        self.demand(&victim, Demand::Yield { by, why }, &mut decided);
                    }
                    decided.claimants.push(by);
                }
                Decision::Shrink {
                    job,
                    to,
                    for_job,
                    why,
                } => {
                    let by = key_of(&for_job);
                    let demand = Demand::Shrink {
                        to,
                        by: by.clone(),
                        why: why.to_string(),
                    };
                    self.demand(&job, demand, &mut decided);
                    decided.claimants.push(by);
                }
                Decision::Grow { job, plan } => {
                    self.demand(&job, Demand::Grow { plan }, &mut decided);
                }
            }
        }
        decided
    }

    fn demand(&mut self, id: &JobId, demand: Demand, decided: &mut Decided) {
        let key = key_of(id);
        if let Some(holding) = self.holding.get_mut(&key) {
            holding.demand = Some(demand);
            self.asked.insert(key.clone());
            decided.demands.push(key);
        }
    }

    /// What a job that waits was given; none where it does not wait any more.
    pub fn ask_of(&self, key: &Key) -> Option<&Arc<Ask>> {
        match &self.wanting.get(key)?.standing {
            Standing::Asks(ask) | Standing::LacksPorts(ask) => Some(ask),
            Standing::Given(grant) => Some(&grant.ask),
            Standing::Unseen | Standing::Kept => None,
        }
    }

    /// What was set aside for a job.
    pub fn given(&self, key: &Key) -> Option<&Grant> {
        match &self.wanting.get(key)?.standing {
            Standing::Given(grant) => Some(grant),
            _ => None,
        }
    }

    pub fn give(&mut self, key: &Key, grant: Grant) {
        if let Some(wanting) = self.wanting.get_mut(key) {
            wanting.standing = Standing::Given(grant);
        }
    }

    /// There was room, but no ports.
    pub fn lacks_ports(&mut self, key: &Key, ask: Arc<Ask>) {
        if let Some(wanting) = self.wanting.get_mut(key) {
            wanting.standing = Standing::LacksPorts(ask);
            self.scheduler.withdraw(&id_of(key));
            self.stirred = true;
        }
    }

    pub fn room_of(&self, key: &Key) -> Room {
        let Some(wanting) = self.wanting.get(key) else {
            return Room::Unasked;
        };
        let stale = wanting.epoch != self.epoch;
        match &wanting.standing {
            Standing::Given(grant) => Room::Given {
                grant: grant.clone(),
                stale,
            },
            Standing::Asks(ask) if !stale => Room::Awaited {
                ask: ask.clone(),
                wait: self.scheduler.waits(&id_of(key)),
                is_whole: false,
            },
            Standing::LacksPorts(ask) if !stale => Room::NoPorts { ask: ask.clone() },
            _ => Room::Unasked,
        }
    }

    /// A job has room, which is on record.
    pub fn hold(&mut self, key: &Key, attempt: u32, running: Running) {
        let known = self.holding.get(key).filter(|it| it.attempt == attempt);
        if known.is_some_and(|known| known.told == running) {
            return;
        }
        let demand = known.and_then(|known| known.demand.clone());
        let mut said = running.clone();
        match &demand {
            Some(demand) if said.change == Change::None => said.change = demand.change(),
            _ => {}
        }
        if demand.is_none() {
            self.asked.remove(key);
        }
        self.scheduler.run(said);
        self.stirred = true;
        let holding = Holding {
            attempt,
            told: running,
            demand,
        };
        self.holding.insert(key.clone(), holding);
    }

    /// What its attempt asked for, where it holds room already.
    pub fn held_gang(&self, key: &Key, attempt: u32) -> Option<Arc<Gang>> {
        let holding = self.holding.get(key).filter(|it| it.attempt == attempt)?;
        Some(holding.told.job.gang.clone())
    }

    #[cfg(test)]
    pub fn holds(&self, key: &Key) -> bool {
        self.holding.contains_key(key)
    }

    /// The newest checkpoint that the scheduler knows of.
    pub fn saved_at(&self, key: &Key) -> Option<Timestamp> {
        self.holding.get(key)?.told.saved_at
    }

    /// It has given its room back.
    pub fn release(&mut self, key: &Key) {
        self.asked.remove(key);
        if self.holding.remove(key).is_some() {
            self.scheduler.end(&id_of(key));
            self.stirred = true;
        }
    }

    /// What this attempt of a job was asked to do.
    pub fn demand_on(&self, key: &Key, attempt: u32) -> Option<Demand> {
        let holding = self.holding.get(key).filter(|it| it.attempt == attempt)?;
        holding.demand.clone()
    }

    /// It cannot do what it was asked to, and is not asked again while this attempt lasts.
    pub fn decline(&mut self, key: &Key) {
        if let Some(holding) = self.holding.get_mut(key) {
            let told = &mut holding.told;
            let workers = u32::try_from(told.plan.nodes.len()).unwrap_or(u32::MAX);
            let gang = Gang {
                workers,
                ..told.job.gang.as_ref().clone()
            };
            told.job.gang = Arc::new(gang);
        }
        self.refuse(key);
    }

    /// Nobody wants any more what it was asked to do.
    fn refuse(&mut self, key: &Key) {
        self.asked.remove(key);
        if let Some(holding) = self.holding.get_mut(key)
            && holding.demand.take().is_some()
        {
            self.scheduler.run(holding.told.clone());
            self.stirred = true;
        }
    }
}

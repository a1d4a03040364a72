//! Room is asked for, given in memory, and put on record by the job's own turn.

use std::sync::Arc;

use jiff::Timestamp;
use stoke_api::TrainJob;
use stoke_api::trainjob::Phase;
use stoke_sched::{Constraint, Explanation, Fetch, Help, Plan, Running, Scheduler, Snapshot, Wait};

use super::holding::{self, live_attempt, scheduled};
use super::rooms::{Ask, Demand, Grant, Room, id_of};
use super::{Wakes, World};
use crate::mirror::{Change, Key};
use crate::seen;
use crate::trainjob::pod;
use crate::trainjob::rendezvous::{self, port_count};

/// The job is not what it was when it was decided on.
#[derive(Debug)]
pub struct Changed;

impl World {
    /// The nodes, with what is used of them and what was set aside.
    pub fn snapshot(&self) -> Snapshot {
        self.rooms.scheduler().snapshot().clone()
    }

    pub fn scheduler(&self) -> &Scheduler {
        self.rooms.scheduler()
    }

    pub fn into_scheduler(self) -> Scheduler {
        self.rooms.into_scheduler()
    }

    /// Has this job no attempt, and may want to begin one?
    pub fn wants_room(&self, key: &Key) -> bool {
        self.rooms.wants(key)
    }

    pub fn room_of(&self, key: &Key) -> Room {
        self.rooms.room_of(key)
    }

    /// What the job's attempt was asked to do.
    pub fn demand_on(&self, key: &Key) -> Option<Demand> {
        let attempt = live_attempt(self.jobs.get(key)?)?;
        self.rooms.demand_on(key, attempt.number)
    }

    /// Why a job waits, with what would help and when it should start.
    pub fn explain(&self, key: &Key, now: Timestamp) -> Option<Wait> {
        self.rooms.scheduler().explain(&id_of(key), now)
    }

    /// Someone who wants room and was not looked at since it changed.
    pub fn next_unseen(&mut self) -> Option<Key> {
        self.rooms.next_unseen()
    }

    /// Time has passed.
    pub fn stir(&mut self) {
        self.rooms.stir();
    }

    /// Is there something to decide?
    pub fn is_stirred(&self) -> bool {
        self.rooms.is_stirred()
    }

    /// What came of looking at a job that wants room. True where the scheduler was told something new.
    pub fn ask(
        &mut self,
        decided_by: &Arc<TrainJob>,
        ask: Option<Arc<Ask>>,
    ) -> Result<bool, Changed> {
        let key = Key::of(&decided_by.metadata);
        if !self.is_as_it_was(&key, decided_by) {
            return Err(Changed);
        }
        let gang = ask.as_ref().map(|ask| ask.gang.clone());
        let asks = self.rooms.ask(&key, ask, || {
            scheduled(&key, decided_by, gang.unwrap_or_default())
        });
        // What it was given before may be given anew.
        self.lease(&key);
        Ok(asks)
    }

    fn is_as_it_was(&self, key: &Key, decided_by: &Arc<TrainJob>) -> bool {
        let job = self.jobs.get(key);
        job.is_some_and(|job| Arc::ptr_eq(job, decided_by))
    }

    /// The job cannot do what it was asked to.
    pub fn decline(&mut self, key: &Key) {
        self.rooms.decline(key);
    }

    /// Lets the scheduler decide, and says who must be woken for it.
    pub fn serve(&mut self, now: Timestamp) -> Wakes {
        let decided = self.rooms.cycle(now);
        let mut jobs = decided.demands;
        for (key, plan) in decided.starts {
            self.give(&key, plan);
            jobs.push(key);
        }
        Wakes {
            room: self.rooms.is_stirred(),
            jobs,
            jobs_soon: decided.claimants,
            ..Wakes::default()
        }
    }

    fn give(&mut self, key: &Key, plan: Plan) {
        let Some(ask) = self.rooms.ask_of(key).cloned() else {
            return;
        };
        match self.port(key, &ask, plan.nodes.len()) {
            Ok(port) => {
                let fetches = fetches(self.rooms.scheduler(), key, &plan);
                let grant = Grant {
                    ask,
                    plan,
                    port,
                    fetches,
                };
                self.rooms.give(key, grant);
            }
            Err(NoPorts) => self.rooms.lacks_ports(key, ask),
        }
        self.lease(key);
    }

    /// The first of so many ports that nobody has; none where it needs none.
    fn port(&self, key: &Key, ask: &Ask, workers: usize) -> Result<Option<u16>, NoPorts> {
        let Some(job) = self.jobs.get(key) else {
            return Ok(None);
        };
        let size = u32::try_from(workers).unwrap_or(u32::MAX);
        let count = port_count(job.spec.framework, size);
        if !ask.shares_network || count == 0 {
            return Ok(None);
        }
        let attempt = job.status.as_ref().map_or(0, |status| status.attempt);
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let others = self.ports_of_others(key);
        let next = attempt.saturating_add(1);
        let first = rendezvous::lease(&self.config.ports, &others, count, uid, next);
        first.map(Some).ok_or(NoPorts)
    }

    /// Gives a job that no node has room for pods without nodes, for an autoscaler to see, if that is still all that keeps it. From then on
    /// it counts as one that has room.
    pub fn give_pool(&mut self, key: &Key, now: Timestamp) -> Wakes {
        let wakes = self.serve(now);
        let wait = self.rooms.scheduler().waits(&id_of(key));
        let job = self.jobs.get(key).cloned();
        if let (Some(wait), Some(job), Room::Awaited { ask, .. }) = (wait, job, self.room_of(key))
            && needs_nodes(&wait)
        {
            let workers = ask.gang.workers as usize;
            let plan = Plan {
                nodes: vec![String::new(); workers],
                devices: vec![Vec::new(); workers],
                resource: None,
            };
            self.give(key, plan.clone());
            let running = Running::new(scheduled(key, &job, ask.gang.clone()), plan, now);
            self.rooms.stir().run(running);
        }
        wakes
    }

    /// Takes note of how a job stands with room after it has changed.
    pub(super) fn stand(&mut self, key: &Key, change: &Change<TrainJob>) {
        let Some(job) = change.after.as_ref() else {
            self.rooms.unask(key);
            return self.linger(key);
        };
        let mut given = None;
        if job.is_finished() {
            self.rooms.unask(key);
        } else if live_attempt(job).is_some() {
            given = self.rooms.unwant(key);
        } else {
            let anew = change
                .before
                .as_ref()
                .is_none_or(|before| asks_anew(before, job));
            self.rooms.want(key, anew);
        }
        self.hold(key, given);
    }

    /// A job that is no more has its room until its workers have stopped.
    fn linger(&mut self, key: &Key) {
        if self.workers_of(key).any(|pod| self.is_alive(pod)) {
            self.rooms.yields(key);
        } else {
            self.rooms.release(key);
        }
    }

    /// Does this worker have room that will come free? What is on a node that does not answer may never be told to have ended.
    fn is_alive(&self, pod: &seen::Pod) -> bool {
        let snapshot = self.rooms.scheduler().snapshot();
        let node = pod.node().and_then(|node| snapshot.node(node));
        !pod.is_finished() && node.is_some_and(|node| node.ready)
    }

    /// Tells the scheduler what room a job has, if any; `given` is what was set aside for it until now.
    pub(super) fn hold(&mut self, key: &Key, given: Option<Grant>) {
        let Some(job) = self.jobs.get(key).cloned() else {
            return self.linger(key);
        };
        let has_alive = |attempt: u32| {
            let mut workers = self.workers_of(key);
            workers.any(|pod| pod.metadata.attempt == Some(attempt) && self.is_alive(pod))
        };
        match holding::held(&job, has_alive) {
            // Whoever asks for room again has given up on what is left of its last attempt.
            Some(_) if self.rooms.has_asked(key) && live_attempt(&job).is_none() => {}
            None => self.rooms.release(key),
            Some((attempt, change)) => {
                let given = given.filter(|given| given.plan.nodes == attempt.nodes);
                let gang = given
                    .map(|given| given.ask.gang.clone())
                    .or_else(|| self.rooms.held_gang(key, attempt.number))
                    .unwrap_or_else(|| Arc::new(pod::gang_of(&job, attempt, &self.config)));
                let gang = holding::settled(gang, &job, attempt);
                let saved = self.workers_of(key);
                let saved = saved.filter_map(|pod| pod.metadata.last_checkpoint).max();
                let running = holding::running(key, &job, attempt, gang, saved, change);
                self.rooms.hold(key, attempt.number, running);
            }
        }
    }

    /// A worker that wrote a checkpoint changes what would be lost with its job, and one that comes or ends, what a job still has that
    /// gives its room away.
    pub(super) fn worker_changed(&mut self, key: &Key, change: &Change<seen::Pod>) {
        let is_leaving = self
            .jobs
            .get(key)
            .is_none_or(|job| holding::is_leaving(job));
        let after = change.after.as_deref();
        let is_alive = |pod: Option<&seen::Pod>| pod.is_some_and(|pod| self.is_alive(pod));
        let saved = after.and_then(|pod| pod.metadata.last_checkpoint);
        let is_saved = saved.is_some() && saved > self.rooms.saved_at(key);
        let moved = is_alive(change.before.as_deref()) != is_alive(after);
        if is_saved || (moved && is_leaving) {
            self.hold(key, None);
        }
    }
}

/// What of a job's data is on the nodes of a plan, and what is copied there; datasets by the names that the job has for them.
pub fn fetches(scheduler: &Scheduler, job: &Key, plan: &Plan) -> Vec<Fetch> {
    let mut fetches = scheduler.fetches(&id_of(job), &plan.nodes);
    for fetch in &mut fetches {
        let (_, name) = fetch.dataset.split_once('/').unwrap_or_default();
        fetch.dataset = name.to_owned();
    }
    fetches
}

struct NoPorts;

/// Would even an idle cluster have too little room for it?
pub fn needs_nodes(wait: &Wait) -> bool {
    match &wait.constraint {
        Constraint::Room {
            explanation: Explanation::NoRoom(no_room),
        } => !no_room.help.contains(&Help::Wait),
        _ => false,
    }
}

/// May it ask for something else than before?
fn asks_anew(before: &TrainJob, after: &TrainJob) -> bool {
    let attempt = |job: &TrainJob| job.status.as_ref().map(|status| status.attempt);
    let outcome = |job: &TrainJob| {
        let attempt = job.status.as_ref().and_then(|s| s.current_attempt());
        attempt.and_then(|attempt| attempt.outcome)
    };
    // While it was suspended it did not wait.
    let is_suspended = |job: &TrainJob| {
        let phase = job.status.as_ref().map(|status| status.phase);
        phase == Some(Phase::Suspended)
    };
    before.metadata.uid != after.metadata.uid
        || is_suspended(before) != is_suspended(after)
        || before.metadata.generation != after.metadata.generation
        || before.queue() != after.queue()
        || before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
        || (attempt(before), outcome(before)) != (attempt(after), outcome(after))
}

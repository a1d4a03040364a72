//! A controller: its mirrors are fed by watches that lag, it looks at what it was woken for, and it may die before or after any write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use stoke_api::{Queue, TrainJob};

use super::super::admission;
use super::super::observe::{Aside, Observed, observe};
use super::super::plan::{Action, Plan, plan};
use super::super::simulation::Dice;
use super::super::tail::{Read, Tails, Wanted};
use super::store::{Store, Write};
use crate::config::Config;
use crate::forecast::Listed;
use crate::mirror::Key;
use crate::world::{Wakes, World};

/// How often the scheduler is asked though nothing has happened.
const STIRRED_EVERY: Duration = Duration::from_secs(10);
/// When what went wrong is tried again.
const AGAIN: Duration = Duration::from_secs(2);

pub struct Leader {
    pub world: World,
    config: Config,
    /// How much of the store's log it was told.
    read: usize,
    woken: BTreeSet<Key>,
    timers: BTreeMap<Key, Timestamp>,
    stirred_at: Timestamp,
}

/// What became of a leader's turn.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Lives,
    Died,
}

impl Leader {
    /// Lists everything, and looks at every job.
    pub fn start(store: &Store, queues: &[Queue], config: &Config) -> Self {
        let listed = Listed {
            jobs: store.jobs.values().cloned().collect(),
            pods: store.pods.values().cloned().collect(),
            nodes: store.nodes.values().cloned().collect(),
            profiles: store.profiles.values().cloned().collect(),
            queues: queues.to_vec(),
            ..Listed::default()
        };
        let woken = store.jobs.keys().map(|name| Key::new("default", name));
        Self {
            world: listed.world(config),
            config: config.clone(),
            read: store.log.len(),
            woken: woken.collect(),
            timers: BTreeMap::new(),
            stirred_at: store.now,
        }
    }

    fn wake(&mut self, wakes: impl IntoIterator<Item = Wakes>) {
        for wakes in wakes {
            self.woken.extend(wakes.forced);
            for keys in [
                wakes.jobs,
                wakes.jobs_waiting,
                wakes.jobs_soon,
                wakes.jobs_later,
            ] {
                self.woken.extend(keys);
            }
        }
    }

    /// Is told so many changes at most.
    pub fn watch(&mut self, store: &Store, most: usize) {
        let told: Vec<_> = store.log[self.read..].iter().take(most).cloned().collect();
        self.read += told.len();
        for told in told {
            let wakes = told.to(&mut self.world);
            self.wake(wakes);
        }
    }

    /// Looks at whom it was woken for, or whose time has come.
    pub fn work(&mut self, store: &mut Store, dice: &mut Dice, is_calm: bool) -> End {
        if store.now >= self.stirred_at + STIRRED_EVERY {
            self.stirred_at = store.now;
            self.world.stir();
        }
        self.serve(store.now);
        let due = self.timers.iter().filter(|(_, at)| **at <= store.now);
        let due: Vec<Key> = due.map(|(key, _)| key.clone()).collect();
        for key in &due {
            self.timers.remove(key);
        }
        let mut keys = std::mem::take(&mut self.woken);
        keys.extend(due);
        for key in keys {
            if self.turn(store, dice, &key, is_calm) == End::Died {
                return End::Died;
            }
        }
        End::Lives
    }

    fn serve(&mut self, now: Timestamp) {
        admission::look_at_all(&mut self.world, &self.config, now);
        let wakes = self.world.serve(now);
        self.wake([wakes]);
    }

    fn look(&self, key: &Key, now: Timestamp) -> Option<(Observed, Plan)> {
        let mut observed = observe(&self.world, key, Aside::default())?;
        let mut next = plan(&observed, &self.config, now);
        // Nobody can read a log here; that is seen once, and Events after it.
        for _ in 0..2 {
            if next.logs.is_empty() {
                break;
            }
            let read = next.logs.iter().map(|wanted| match wanted {
                Wanted::Log { rank, .. } => Read::Log(*rank, None),
                Wanted::Silence { rank, .. } => Read::Silence(*rank, None),
                Wanted::Events { rank, .. } => Read::Events(*rank, Vec::new()),
            });
            let read = Tails::of(next.status.attempt, read);
            observed.tails = std::mem::take(&mut observed.tails).and(read);
            next = plan(&observed, &self.config, now);
        }
        Some((observed, next))
    }

    fn decide(&mut self, key: &Key, now: Timestamp) -> Option<(Observed, Plan)> {
        let (observed, next) = self.look(key, now)?;
        if next.declines {
            self.world.decline(key);
        }
        if admission::takes_room(&observed, &next) || !self.world.wants_room(key) {
            return Some((observed, next));
        }
        let _ = self.world.ask(&observed.job, next.ask.clone());
        self.serve(now);
        self.look(key, now)
    }

    fn turn(&mut self, store: &mut Store, dice: &mut Dice, key: &Key, is_calm: bool) -> End {
        let Some((observed, next)) = self.decide(key, store.now) else {
            return End::Lives;
        };
        if let Some(after) = next.requeue_after {
            self.timers.insert(key.clone(), store.now + after);
        }
        let job: &TrainJob = &observed.job;
        let status = (job.status.as_ref() != Some(&next.status))
            .then(|| Write::Status(Box::new((job.clone(), next.status.clone()))));
        let act = |action: &Action| Write::Act(job.name().to_owned(), Box::new(action.clone()));
        // In the order in which they are carried out.
        let order = |action: &&Action| match action {
            Action::CreatePod(_) => 1,
            Action::DeletePod { .. } => 2,
            Action::AskToSave { .. } => 3,
            Action::Tell(_) => 4,
            Action::Learn(_) | Action::DeleteJob { .. } => 5,
            _ => 0,
        };
        let mut actions: Vec<&Action> = next.actions.iter().collect();
        actions.sort_by_key(order);
        for write in status.into_iter().chain(actions.into_iter().map(act)) {
            let fate = if is_calm { 99 } else { dice.roll(100) };
            let is_done = match fate {
                0 => return End::Died,
                1 => {
                    let _ = store.write(&write);
                    return End::Died;
                }
                // It never got there.
                2..=4 => false,
                // It is done, and nobody is told.
                5..=7 => {
                    let _ = store.write(&write);
                    false
                }
                8..=9 => {
                    store.delay(Duration::from_secs(1 + dice.roll(20)), write);
                    false
                }
                _ => match store.write(&write) {
                    Ok(told) => {
                        let wakes = told.and_then(|told| told.answers(&mut self.world));
                        self.wake(wakes);
                        true
                    }
                    Err(_) => false,
                },
            };
            if !is_done {
                self.timers.insert(key.clone(), store.now + AGAIN);
                return End::Lives;
            }
        }
        End::Lives
    }
}

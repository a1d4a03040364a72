//! What the controllers share: the client, the world, and the queues of what to look at.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::watcher::Event;
use stoke_api::names::MANAGED_BY;
use tokio::sync::Notify;

use crate::config::Config;
use crate::mirror::Key;
use crate::queue::{Lane, Queue};
use crate::trainjob::observe::Aside;
use crate::trainjob::pace::Pace;
use crate::trainjob::refusal::Refusal;
use crate::trainjob::tail::Tails;
use crate::vitals::Vitals;
use crate::world::{Kind, Wakes, World};

/// How much is gathered of what decides nothing, and how long it may take until it is told.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(10);
/// A queue's figures change with every job of it that comes, starts or ends: it is written once in that time.
const QUEUES: Duration = Duration::from_secs(5);

pub struct Hub {
    pub client: Client,
    pub config: Config,
    pub recorder: Recorder,
    pub vitals: Arc<Vitals>,
    /// Jobs to look at.
    pub jobs: Queue<Key>,
    /// Queue objects to look at.
    pub queues: Queue<Key>,
    /// Pods to bind.
    pub unbound: Queue<Key>,
    /// Held while the scheduler is told what jobs ask for: all who want room are looked at before it decides. Never over a request.
    pub placing: tokio::sync::Mutex<()>,
    /// Which words about a job can wait to be written.
    pub pace: Pace,
    /// Told when the scheduler may decide something new.
    pub room: Notify,
    /// Told when there may be more profiles than are kept.
    pub profiles: Notify,
    world: Mutex<World>,
    /// What the API server refused for a job when its plan was last carried out.
    refusals: Mutex<BTreeMap<Key, Refusal>>,
    /// What the logs of an attempt that has failed say, until its end is on record.
    tails: Mutex<BTreeMap<Key, Tails>>,
}

impl Hub {
    pub fn new(client: Client, config: Config, vitals: Arc<Vitals>) -> Self {
        let reporter = Reporter {
            controller: MANAGED_BY.to_owned(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            vitals,
            jobs: Queue::default(),
            queues: Queue::default(),
            unbound: Queue::default(),
            placing: tokio::sync::Mutex::new(()),
            pace: Pace::default(),
            room: Notify::new(),
            profiles: Notify::new(),
            world: Mutex::new(World::new(config.clone())),
            refusals: Mutex::default(),
            tails: Mutex::default(),
            config,
        }
    }

    /// Changes to the world are made whole under this lock, so a panic elsewhere does not spoil it.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a watch tells. True where all mirrors have been filled by now.
    pub fn watched<K: Kind>(&self, event: Event<K>) -> bool {
        let mut world = self.world();
        for wakes in world.watched(event) {
            self.wake(wakes);
        }
        world.is_complete()
    }

    /// Takes an object as the API server answered our write.
    pub fn wrote<K: Kind>(&self, object: K) {
        let wakes = self.world().wrote(object);
        self.wake(wakes.unwrap_or_default());
    }

    /// Takes it that an object is no more.
    pub fn forget<K: Kind>(&self, key: &Key, uid: &str) {
        let wakes = self.world().forget::<K>(key, uid);
        self.wake(wakes.unwrap_or_default());
    }

    pub fn wake(&self, wakes: Wakes) {
        if let Some(key) = wakes.forced {
            self.jobs.force(key, Lane::Second);
        }
        for key in wakes.jobs {
            self.jobs.wake(key, Lane::First);
        }
        for key in wakes.jobs_waiting {
            self.jobs.wake(key, Lane::Second);
        }
        for key in wakes.jobs_soon {
            self.jobs.wake_within(key, Lane::First, SOON);
        }
        for key in wakes.jobs_later {
            self.jobs.wake_within(key, Lane::Second, LATER);
        }
        for queue in wakes.queues {
            self.queues.wake(Key::new("", &queue), Lane::First);
        }
        for queue in wakes.queues_soon {
            self.queues
                .wake_within(Key::new("", &queue), Lane::First, QUEUES);
        }
        if wakes.room {
            self.room.notify_one();
        }
        if wakes.profiles {
            self.profiles.notify_one();
        }
        if self.config.binder {
            for key in wakes.pods {
                self.unbound.wake(key, Lane::First);
            }
        }
    }

    /// What is known of a job and stands in no object.
    pub fn aside(&self, job: &Key) -> Aside {
        Aside {
            refused: self.refusals().get(job).cloned(),
            tails: self.tails().get(job).cloned().unwrap_or_default(),
        }
    }

    pub fn add_tails(&self, job: &Key, read: Tails) {
        let mut tails = self.tails();
        let known = tails.remove(job).unwrap_or_default();
        tails.insert(job.clone(), known.and(read));
    }

    pub fn forget_tails(&self, job: &Key) {
        self.tails().remove(job);
    }

    fn tails(&self) -> MutexGuard<'_, BTreeMap<Key, Tails>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what was refused, or that nothing is any more. True where that is news.
    pub fn set_refusal(&self, job: &Key, refusal: Option<Refusal>) -> bool {
        let mut refusals = self.refusals();
        let before = match refusal.clone() {
            Some(refusal) => refusals.insert(job.clone(), refusal),
            None => refusals.remove(job),
        };
        before != refusal
    }

    fn refusals(&self) -> MutexGuard<'_, BTreeMap<Key, Refusal>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

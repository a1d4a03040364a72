//! What the controllers share: the client, the world, and the queues of what to look at.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::watcher::Event;
use stoke_api::names::MANAGED_BY;

use crate::config::Config;
use crate::mirror::{Change, Key};
use crate::queue::Queue;
use crate::world::{Kind, Wakes, World};

pub struct Hub {
    pub client: Client,
    pub config: Config,
    pub recorder: Recorder,
    /// Jobs to look at.
    pub jobs: Queue<Key>,
    /// Pods to bind.
    pub unbound: Queue<Key>,
    /// Held from reading the room there is until what was taken of it is on record: two jobs must not be given the same.
    pub placing: tokio::sync::Mutex<()>,
    world: Mutex<World>,
    /// What the API server refused for a job when its plan was last carried out.
    refusals: Mutex<BTreeMap<Key, String>>,
}

impl Hub {
    pub fn new(client: Client, config: Config) -> Self {
        let reporter = Reporter {
            controller: MANAGED_BY.to_owned(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            config,
            jobs: Queue::default(),
            unbound: Queue::default(),
            placing: tokio::sync::Mutex::new(()),
            world: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Changes to the world are made whole under this lock, so a panic elsewhere does not spoil it.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a watch tells. True where all mirrors have been filled by now.
    pub fn watched<K: Kind>(&self, event: Event<K>) -> bool {
        let mut world = self.world();
        let changes = K::mirror(&mut world).watched(event);
        for change in &changes {
            let wakes = K::changed(&mut world, change);
            self.wake(wakes);
        }
        world.is_complete()
    }

    /// Takes an object as the API server answered our write.
    pub fn wrote<K: Kind>(&self, object: K) {
        let mut world = self.world();
        let change = K::mirror(&mut world).wrote(object);
        self.take(&mut world, change);
    }

    /// Takes it that an object is no more.
    pub fn forget<K: Kind>(&self, key: &Key, uid: &str) {
        let mut world = self.world();
        let change = K::mirror(&mut world).forget(key, Some(uid));
        self.take(&mut world, change);
    }

    fn take<K: Kind>(&self, world: &mut World, change: Option<Change<K>>) {
        if let Some(change) = change {
            let wakes = K::changed(world, &change);
            self.wake(wakes);
        }
    }

    fn wake(&self, wakes: Wakes) {
        if let Some(key) = wakes.forced {
            self.jobs.force(key);
        }
        for key in wakes.jobs {
            self.jobs.wake(key);
        }
        if self.config.binder {
            for key in wakes.pods {
                self.unbound.wake(key);
            }
        }
    }

    pub fn refusal(&self, job: &Key) -> Option<String> {
        self.refusals().get(job).cloned()
    }

    /// Notes what was refused, or that nothing is any more. True where that is news.
    pub fn set_refusal(&self, job: &Key, refusal: Option<String>) -> bool {
        let mut refusals = self.refusals();
        let before = match refusal.clone() {
            Some(refusal) => refusals.insert(job.clone(), refusal),
            None => refusals.remove(job),
        };
        before != refusal
    }

    fn refusals(&self) -> MutexGuard<'_, BTreeMap<Key, String>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

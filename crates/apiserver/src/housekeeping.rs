//! What a controller manager would do: garbage collection by owner references, the end of namespaces and of
//! definitions, the counts of quotas, the expiry of events, the compaction of the log.
//!
//! Driven by the store's log, so that an idle server does nothing. Every deletion goes through the same code as a
//! client's, inside one write, with the uid as its precondition; doing a task twice is harmless.

mod collect;
mod expiry;
mod graph;
mod removal;
mod retry;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use jiff::Timestamp;
use stoke_store::{Change, ChangeType, Error as StoreError, Key, Retention, Revision, Scan};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::graph::{Graph, Task};
use self::retry::Retries;
use crate::object::Light;
use crate::quota::{self, QUOTAS};
use crate::registry::DEFINITIONS;
use crate::server::{ApiServer, Core};
use crate::status::Status;

#[derive(Clone, Debug)]
pub struct Options {
    /// Events are forgotten this long after they were last seen.
    pub event_ttl: Duration,
    /// How much of the log of changes is kept.
    pub retention: Retention,
    /// How often the two are looked at.
    pub every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            event_ttl: Duration::from_secs(3600),
            retention: Retention::default(),
            every: Duration::from_secs(60),
        }
    }
}

/// How long to wait before everything is observed anew.
const BEGIN_ANEW_AFTER: Duration = Duration::from_secs(1);

/// Keeps house until `shutdown`.
pub async fn run(server: ApiServer, options: Options, shutdown: CancellationToken) {
    let work = async {
        tokio::join!(collect_forever(&server), expiry::run(&server, &options));
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

async fn collect_forever(server: &ApiServer) {
    let core = server.core();
    loop {
        if let Err(error) = follow(core).await {
            tracing::warn!(%error, "housekeeping begins anew");
            tokio::time::sleep(BEGIN_ANEW_AFTER).await;
        }
    }
}

/// Everything there is to look after.
#[derive(Default)]
struct Household {
    graph: Graph,
    /// Quotas, by namespace and name.
    quotas: BTreeSet<(String, String)>,
    /// Namespaces that are being emptied.
    ending: BTreeSet<String>,
    tasks: BTreeSet<Task>,
    /// What could not be done, because the disk is full, say. It must never hold up the rest.
    retries: Retries,
}

async fn follow(core: &Core) -> Result<(), StoreError> {
    let (mut house, revision) = observe_all(core).await?;
    let mut watcher = core.store.watch(None, revision);
    loop {
        house.work(core).await;
        tokio::select! {
            changes = watcher.next() => {
                for change in changes? {
                    house.observe(&change);
                }
            }
            () = house.retries.wait() => {
                house.tasks.extend(house.retries.due(Instant::now()).cloned());
            }
        }
    }
}

async fn observe_all(core: &Core) -> Result<(Household, Revision), StoreError> {
    core.store
        .read(|read| {
            let mut house = Household::default();
            for resource in read.resources()? {
                read.scan(&Scan::all(&resource), |item| {
                    let key = Key::new(&resource, item.namespace, item.name);
                    house.saw(&key, Light::read(item.document));
                    ControlFlow::Continue(())
                })?;
            }
            // What went while nobody was looking has to be counted too.
            let counted = house.quotas.iter().map(|(namespace, _)| namespace.clone());
            house.tasks.extend(counted.map(Task::CountObjects));
            // Owners are only known to be gone once everything has been seen.
            house.tasks.extend(house.graph.all_orphans());
            Ok((house, read.revision()?))
        })
        .await
}

impl Household {
    fn observe(&mut self, change: &Change) {
        let key = &change.key;
        let document = change.document();
        let is_gone = change.change == ChangeType::Deleted;
        let has_ended = || key.resource == "pods" && !quota::is_live(&document, Timestamp::now());
        // What was added was counted when it was. That a quota was written is no news to it.
        if self.has_quota(&key.namespace) && (is_gone || has_ended()) {
            self.tasks.insert(Task::CountObjects(key.namespace.clone()));
        }
        if !is_gone {
            self.saw(key, Light::read(&document));
            return;
        }
        if key.resource == QUOTAS {
            (self.quotas).remove(&(key.namespace.clone(), key.name.clone()));
        }
        self.tasks.extend(self.graph.forget(key));
        if key.resource == "namespaces" {
            self.ending.remove(&key.name);
        } else if key.resource == "serviceaccounts" && key.name == "default" {
            self.tasks
                .insert(Task::RestoreAccount(key.namespace.clone()));
        }
        if self.ending.contains(&key.namespace) {
            self.tasks.insert(Task::EndNamespace(key.namespace.clone()));
        }
        if let Some(definition) = self.graph.ending_definition(&key.resource) {
            self.tasks.insert(Task::EndDefinition(definition));
        }
    }

    fn has_quota(&self, namespace: &str) -> bool {
        let from = (namespace.to_owned(), String::new());
        let next = self.quotas.range(from..).next();
        next.is_some_and(|(found, _)| found == namespace)
    }

    fn saw(&mut self, key: &Key, light: Light) {
        if key.resource == QUOTAS {
            (self.quotas).insert((key.namespace.clone(), key.name.clone()));
        }
        if light.is_deleting() {
            match key.resource.as_str() {
                "namespaces" => {
                    self.ending.insert(key.name.clone());
                    self.tasks.insert(Task::EndNamespace(key.name.clone()));
                }
                DEFINITIONS => {
                    self.tasks.insert(Task::EndDefinition(key.name.clone()));
                }
                _ => {}
            }
        }
        self.tasks.extend(self.graph.observe(key, light));
    }

    /// Does what there is to do; what fails is left to be tried again.
    async fn work(&mut self, core: &Core) {
        for task in std::mem::take(&mut self.tasks) {
            match settled(self.perform(core, &task).await) {
                Ok(()) => self.retries.forget(&task),
                Err(status) => {
                    tracing::warn!(
                        ?task,
                        status = status.message(),
                        "housekeeping will try again"
                    );
                    self.retries.postpone(task, Instant::now());
                }
            }
        }
    }

    async fn perform(&self, core: &Core, task: &Task) -> Result<(), Status> {
        match task {
            Task::CheckOwners(uid) => collect::check_owners(core, &self.graph, uid).await,
            Task::Foreground(uid) => collect::foreground(core, &self.graph, uid).await,
            Task::Orphan(uid) => collect::orphan(core, &self.graph, uid).await,
            Task::EndNamespace(name) => removal::end_namespace(core, name).await,
            Task::RestoreAccount(namespace) => removal::restore_account(core, namespace).await,
            Task::EndDefinition(name) => removal::end_definition(core, name).await,
            Task::CountObjects(namespace) => {
                let namespace = namespace.clone();
                core.store
                    .write(move |write| quota::recount(write, &namespace, Timestamp::now()))
                    .await
            }
        }
    }
}

/// Takes a refusal that trying again cannot change as an end: the object may not be deleted, is gone, or is another by
/// now. Should that change, the log will say so.
fn settled(done: Result<(), Status>) -> Result<(), Status> {
    match done {
        Err(status) if matches!(status.code().as_u16(), 403 | 404 | 409) => {
            tracing::debug!(status = status.message(), "housekeeping leaves it at that");
            Ok(())
        }
        other => other,
    }
}

//! What an operator shows of itself: whether it lives, whether it is ready, and its figures.
//!
//! Invariant: labels have few values. No name of a job, a pod or a namespace is one.

mod figures;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use crate::guard::Call;
use crate::hub::Hub;
use crate::queue::Done;
use figures::Figures;

#[derive(Debug)]
pub struct Vitals {
    figures: Figures,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    role: Role,
    /// The last time that whoever leads, or would, took a step.
    beat: Instant,
    /// What goes wrong, by what it is about.
    troubles: BTreeMap<String, String>,
    hub: Weak<Hub>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Role {
    Candidate,
    /// Another leads; who, where it is known.
    Standby(Option<String>),
    Leader,
}

impl Default for Vitals {
    fn default() -> Self {
        Self {
            figures: Figures::new(),
            state: Mutex::new(State {
                role: Role::Candidate,
                beat: Instant::now(),
                troubles: BTreeMap::new(),
                hub: Weak::new(),
            }),
        }
    }
}

/// One word about a part of us, and whether it is well.
pub type Word = Result<String, String>;

impl Vitals {
    /// Is anything going on at all? Where not, only a new start helps.
    pub fn live(&self, patience: Duration) -> Word {
        let still = self.lock().beat.elapsed();
        if still > patience {
            return Err(format!("the lease was not looked at for {still:.0?}"));
        }
        Ok("alive".to_owned())
    }

    /// Does it do what it is there for?
    pub fn ready(&self) -> Word {
        let (role, troubles, hub) = {
            let state = self.lock();
            let troubles: Vec<String> = state.troubles.values().cloned().collect();
            (state.role.clone(), troubles, state.hub.upgrade())
        };
        if !troubles.is_empty() {
            return Err(troubles.join("\n"));
        }
        match role {
            Role::Candidate => Err("waits for the lease".to_owned()),
            Role::Standby(Some(leader)) => Ok(format!("stands by; {leader} leads")),
            Role::Standby(None) => Ok("stands by".to_owned()),
            Role::Leader if hub.is_some_and(|hub| hub.world().is_complete()) => {
                Ok("leads".to_owned())
            }
            Role::Leader => Err("leads, and reads what there is".to_owned()),
        }
    }

    /// All figures, as Prometheus reads them.
    pub fn figures(&self) -> String {
        let hub = self.lock().hub.upgrade();
        self.figures.text(hub.as_deref())
    }

    pub(crate) fn beat(&self) {
        self.lock().beat = Instant::now();
    }

    pub(crate) fn stands_by(&self, leader: Option<&str>) {
        let mut state = self.lock();
        let role = Role::Standby(leader.map(str::to_owned));
        if state.role != role {
            if let Some(leader) = leader {
                tracing::info!(%leader, "standing by");
            }
            state.role = role;
        }
        self.figures.leads(false);
    }

    pub(crate) fn leads(&self) {
        self.lock().role = Role::Leader;
        self.figures.leads(true);
    }

    /// Leads no more; what went wrong while it did is of no concern now.
    pub(crate) fn retires(&self) {
        let mut state = self.lock();
        state.role = Role::Candidate;
        state.hub = Weak::new();
        state.troubles.clear();
        self.figures.leads(false);
    }

    /// These are the controllers that are shown from now on.
    pub(crate) fn shows(&self, hub: &Arc<Hub>) {
        self.lock().hub = Arc::downgrade(hub);
    }

    /// Something does not work. Said once, however often it happens.
    pub(crate) fn troubled(&self, about: &str, told: String) {
        let before = self.lock().troubles.insert(about.to_owned(), told.clone());
        if before.as_ref() != Some(&told) {
            tracing::warn!("{told}");
        }
    }

    pub(crate) fn recovered(&self, about: &str) {
        if let Some(told) = self.lock().troubles.remove(about) {
            tracing::info!(was = %told, "{about}: well again");
        }
    }

    pub(crate) fn asked(&self, call: &Call, code: Option<StatusCode>, took: Duration) {
        self.figures.asked(call, code, took);
    }

    /// So many requests may be under way.
    pub(crate) fn crowd(&self, limit: u32) {
        self.figures.crowd(limit);
    }

    pub(crate) fn turned(&self, done: Option<Done>, took: Duration) {
        self.figures.turned(done, took);
    }

    pub(crate) fn watch_began(&self, kind: &str) {
        self.figures.watch_began(kind);
    }

    pub(crate) fn watch_broke(&self, kind: &str) {
        self.figures.watch_broke(kind);
    }

    /// Every change is made whole under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

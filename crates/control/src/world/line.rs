//! Who waits for room, in the order in which they are served: the more important, then the older.
//!
//! A job that found no room is not asked again until there may be enough for it. What came free is held against what it lacked, so that a
//! small job's end wakes no large one, and nothing is planned in vain: with thousands waiting, a pod's end costs a division a job.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use stoke_api::TrainJob;
use stoke_api::trainjob::{Phase, Priority};
use stoke_sched::Gang;

use super::ledger::Freed;
use crate::mirror::Key;

#[derive(Debug, Default)]
pub struct Line {
    waiting: HashMap<Key, Waiting>,
    /// Those who may get room, as far as is known.
    contenders: BTreeSet<Place>,
}

/// A place in the line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    priority: Reverse<Priority>,
    created: Option<Timestamp>,
    key: Key,
}

#[derive(Debug)]
struct Waiting {
    place: Place,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    /// With what it asks for, where that is known.
    Contends(Option<Arc<Gang>>),
    /// It was turned away.
    Lacks(Shortage),
    /// It was given room, and that is not on record yet.
    Served,
    /// Something else than room keeps it. Its own turn will tell when that is over.
    Kept,
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum Shortage {
    /// Room for so many more workers of the gang.
    Workers {
        gang: Arc<Gang>,
        missing: u32,
    },
    Ports,
}

/// Who is next, and what it asks for, where that is known.
pub struct Contender {
    pub key: Key,
    pub gang: Option<Arc<Gang>>,
}

impl Place {
    pub fn of(key: &Key, job: &TrainJob) -> Self {
        let created = job.metadata.creation_timestamp.as_ref();
        Self {
            priority: Reverse(job.spec.priority),
            created: created.map(|time| time.0),
            key: key.clone(),
        }
    }

    pub fn into_key(self) -> Key {
        self.key
    }
}

/// Does it wait for its turn?
fn waits(job: &TrainJob) -> bool {
    let phase = job.status.as_ref().map(|status| status.phase);
    phase.is_none_or(|phase| phase == Phase::Queued) && job.metadata.deletion_timestamp.is_none()
}

impl Line {
    /// Takes note of a job as it is now. `anew`: whatever it was turned away for may have changed.
    pub fn see(&mut self, key: &Key, job: Option<&TrainJob>, anew: bool) {
        let Some(job) = job.filter(|job| waits(job)) else {
            if let Some(gone) = self.waiting.remove(key) {
                self.contenders.remove(&gone.place);
            }
            return;
        };
        let place = Place::of(key, job);
        let known = self.waiting.get(key);
        let keeps_standing = known.is_some_and(|known| {
            !anew && known.place == place && !matches!(known.standing, Standing::Served)
        });
        if !keeps_standing {
            if let Some(known) = known {
                self.contenders.remove(&known.place);
            }
            self.contenders.insert(place.clone());
            let standing = Standing::Contends(None);
            self.waiting
                .insert(key.clone(), Waiting { place, standing });
        }
    }

    /// The first who may get room; of those before `place`, if that is given.
    pub fn first(&self, before: Option<&Place>) -> Option<Contender> {
        let first = self.contenders.first()?;
        if before.is_some_and(|before| first >= before) {
            return None;
        }
        let gang = match &self.waiting.get(&first.key)?.standing {
            Standing::Contends(gang) => gang.clone(),
            _ => None,
        };
        Some(Contender {
            key: first.key.clone(),
            gang,
        })
    }

    /// It has no room as things are, or does not want any.
    pub fn turn_away(&mut self, key: &Key, shortage: Option<Shortage>) {
        self.stand(key, shortage.map_or(Standing::Kept, Standing::Lacks));
    }

    /// It was given room.
    pub fn serve(&mut self, key: &Key) {
        self.stand(key, Standing::Served);
    }

    fn stand(&mut self, key: &Key, standing: Standing) {
        if let Some(waiting) = self.waiting.get_mut(key) {
            self.contenders.remove(&waiting.place);
            waiting.standing = standing;
        }
    }

    /// There is more room on some nodes. True where someone may fit now.
    pub fn gain(&mut self, freed: &[Freed]) -> bool {
        if freed.is_empty() {
            return false;
        }
        self.reconsider(|shortage| match shortage {
            Shortage::Ports => false,
            Shortage::Workers { gang, missing } => {
                // At most so many more than when it was counted: nodes that have less since are not counted again.
                for Freed { before, after } in freed {
                    let gained = after
                        .times(&gang.ask)
                        .saturating_sub(before.times(&gang.ask));
                    *missing = missing.saturating_sub(gained);
                }
                *missing == 0
            }
        })
    }

    /// There are more ports. True where someone waits for them.
    pub fn gain_ports(&mut self) -> bool {
        self.reconsider(|shortage| *shortage == Shortage::Ports)
    }

    /// The nodes are not what they were: what anyone lacked must be found out anew.
    pub fn start_over(&mut self) -> bool {
        for waiting in self.waiting.values_mut() {
            if matches!(
                waiting.standing,
                Standing::Lacks(_) | Standing::Contends(Some(_))
            ) {
                waiting.standing = Standing::Contends(None);
                self.contenders.insert(waiting.place.clone());
            }
        }
        !self.contenders.is_empty()
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Key> {
        self.waiting.keys()
    }

    fn reconsider(&mut self, mut may_fit: impl FnMut(&mut Shortage) -> bool) -> bool {
        let mut any = false;
        for waiting in self.waiting.values_mut() {
            if let Standing::Lacks(shortage) = &mut waiting.standing
                && may_fit(shortage)
            {
                let gang = match shortage {
                    Shortage::Workers { gang, .. } => Some(gang.clone()),
                    Shortage::Ports => None,
                };
                waiting.standing = Standing::Contends(gang);
                self.contenders.insert(waiting.place.clone());
                any = true;
            }
        }
        any
    }
}

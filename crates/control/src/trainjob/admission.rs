//! Who is given room is the scheduler's to decide; here it is told what jobs ask for, and its decisions are handed to them.
//!
//! Room is given in memory and put on record afterwards, by the job's own turn: until then it is set aside, and nobody else is given it. So
//! what is held while deciding is held for microseconds, and many attempts are put on record at once.
//!
//! Invariant: nobody is given room before everyone who wants some was looked at.

use std::time::Duration;

use jiff::Timestamp;
use stoke_sched::Constraint;
use tokio::time::Instant;
use tracing::debug;

use super::observe::{Aside, Observed, observe};
use super::plan::{Plan, plan};
use crate::config::Config;
use crate::hub::Hub;
use crate::mirror::Key;
use crate::world::{Changed, Room, World};

/// Jobs looked at before others are let in.
const BATCH: usize = 32;
/// Looks at one job until it is clear what to do. What it asks for may change under its feet, but not for ever.
const LOOKS_MAX: usize = 4;
/// How often the scheduler is asked though nothing has happened: waits and shares change with time.
const TICK: Duration = Duration::from_secs(10);

/// Why it is not decided yet what to do for a job.
#[derive(Debug)]
pub enum Undecided {
    /// The job has changed meanwhile.
    Changed,
    /// The scheduler has yet to look at what it asks for, and rests for so long.
    Resting(Duration),
}

impl From<Changed> for Undecided {
    fn from(_: Changed) -> Self {
        Self::Changed
    }
}

/// What to do next for a job; where that begins an attempt, its room is set aside. `None` where there is no such job.
pub async fn decide(hub: &Hub, key: &Key) -> Result<Option<(Observed, Plan)>, Undecided> {
    if !hub.world().wants_room(key) {
        let looked = look(hub, key);
        if looked.as_ref().is_some_and(|(_, plan)| plan.declines) {
            hub.world().decline(key);
        }
        return Ok(looked);
    }
    let _one_at_a_time = hub.placing.lock().await;
    for _ in 0..LOOKS_MAX {
        let rests = serve(hub).await;
        let Some((observed, plan)) = look(hub, key) else {
            return Ok(None);
        };
        let is_settled = settle(hub, key, &observed, &plan)?;
        match rests {
            Some(rest) if !is_settled || is_not_looked_at(&observed) => {
                return Err(Undecided::Resting(rest));
            }
            _ if is_settled => return Ok(Some((observed, plan))),
            _ => {}
        }
    }
    debug!(job = %key, "what it asks for changes all the time");
    Err(Undecided::Changed)
}

/// Does the scheduler know that it asks, and no more?
fn is_not_looked_at(observed: &Observed) -> bool {
    match &observed.room {
        Room::Awaited { wait, .. } => wait
            .as_ref()
            .is_none_or(|wait| wait.constraint == Constraint::NotLookedAt),
        _ => false,
    }
}

/// Asks the scheduler whenever it may decide something new, for as long as the controllers run. Who must do something about it is woken.
pub async fn serve_as_room_comes_free(hub: &Hub) {
    loop {
        tokio::select! {
            () = hub.room.notified() => {}
            () = tokio::time::sleep(TICK) => hub.world().stir(),
        }
        let rests = {
            let _one_at_a_time = hub.placing.lock().await;
            serve(hub).await
        };
        if let Some(rest) = rests {
            tokio::time::sleep(rest).await;
            hub.room.notify_one();
        }
    }
}

/// Looks at everyone who was not looked at, and then lets the scheduler decide. It rests after a long walk, so that it does not take all
/// of the machine where thousands wait and something changes all the time: then it says for how long it will not.
async fn serve(hub: &Hub) -> Option<Duration> {
    let mut looked_at = 0;
    loop {
        let unseen = hub.world().next_unseen();
        if let Some(key) = unseen {
            if let Some((observed, plan)) = look(hub, &key) {
                // Where it has changed meanwhile, it is unseen again.
                let _ = settle(hub, &key, &observed, &plan);
            }
            looked_at += 1;
            if looked_at % BATCH == 0 {
                tokio::task::yield_now().await;
            }
            continue;
        }
        if !hub.world().is_stirred() {
            return None;
        }
        if let Some(rest) = hub.pace.rest() {
            return Some(rest);
        }
        let begun = Instant::now();
        let wakes = hub.world().serve(Timestamp::now());
        hub.pace.walked(begun.elapsed());
        hub.wake(wakes);
    }
}

/// The same at once, for a world that nobody else works on.
pub fn look_at_all(world: &mut World, config: &Config, now: Timestamp) {
    while let Some(key) = world.next_unseen() {
        if let Some(observed) = observe(world, &key, Aside::default()) {
            let ask = plan(&observed, config, now).ask;
            // Nobody else changes it.
            let _ = world.ask(&observed.job, ask);
        }
    }
}

/// Tells the scheduler what a plan asks for. True where there is nothing new in it.
fn settle(hub: &Hub, key: &Key, observed: &Observed, plan: &Plan) -> Result<bool, Changed> {
    if takes_room(observed, plan) {
        return Ok(true);
    }
    let mut world = hub.world();
    let asked = world.ask(&observed.job, plan.ask.clone())?;
    if plan.pool && !asked {
        let wakes = world.give_pool(key, Timestamp::now());
        let given = matches!(world.room_of(key), Room::Given { .. });
        drop(world);
        hub.wake(wakes);
        return Ok(!given);
    }
    Ok(!asked)
}

/// Does the plan begin an attempt?
pub fn takes_room(observed: &Observed, plan: &Plan) -> bool {
    let before = observed.job.status.as_ref();
    plan.status.attempt > before.map_or(0, |status| status.attempt)
}

pub fn look(hub: &Hub, key: &Key) -> Option<(Observed, Plan)> {
    let aside = hub.aside(key);
    let observed = observe(&hub.world(), key, aside)?;
    let plan = plan(&observed, &hub.config, Timestamp::now());
    Some((observed, plan))
}

/// The same, with all that can be said of why a job waits: what was found while deciding is enough to decide by, and this costs more.
pub fn look_closely(hub: &Hub, key: &Key) -> Option<(Observed, Plan)> {
    let aside = hub.aside(key);
    let now = Timestamp::now();
    let observed = {
        let world = hub.world();
        let mut observed = observe(&world, key, aside)?;
        if let Room::Awaited { wait, is_whole, .. } = &mut observed.room {
            let whole = world.explain(key, now);
            *is_whole = whole.is_some();
            *wait = whole.or(wait.take());
        }
        observed
    };
    let plan = plan(&observed, &hub.config, now);
    Some((observed, plan))
}

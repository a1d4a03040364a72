//! Who is given room: those who wait, in their order.
//!
//! Room is given in memory and put on record afterwards, by the job's own turn: until then it is set aside, and nobody else is given it. So
//! what is held while deciding is held for microseconds, and many attempts are put on record at once.
//!
//! Invariant: a job is not given room while one before it in line may have it.

use jiff::Timestamp;
use tracing::debug;

use super::observe::{Observed, observe};
use super::plan::{Plan, plan};
use crate::hub::Hub;
use crate::mirror::Key;
use crate::queue::Lane;
use crate::world::Next;

/// Jobs decided on before others are let in.
const BATCH: usize = 32;

/// What to do next for a job; where that begins an attempt, its room is set aside, after those ahead of it had theirs. `Err` where the job has
/// changed meanwhile, `None` where there is no such job.
pub async fn decide(hub: &Hub, key: &Key) -> Result<Option<(Observed, Plan)>, Changed> {
    if !hub.world().wants_room(key) {
        match look(hub, key) {
            // It ends one attempt and begins the next.
            Some((observed, plan)) if takes_room(&observed, &plan) => {}
            other => return Ok(other),
        }
    }
    let _one_at_a_time = hub.placing.lock().await;
    serve(hub, Some(key)).await;
    let Some((observed, plan)) = look(hub, key) else {
        return Ok(None);
    };
    settle(hub, key, &observed, &plan)?;
    Ok(Some((observed, plan)))
}

/// The job is not what it was when it was decided on.
#[derive(Debug)]
pub struct Changed;

/// Gives room that has come free to those who wait for it, for as long as the controllers run. They are woken to begin their attempts.
pub async fn serve_as_room_comes_free(hub: &Hub) {
    loop {
        hub.room.notified().await;
        let _one_at_a_time = hub.placing.lock().await;
        serve(hub, None).await;
    }
}

/// Decides for everyone who may get room, in order; of those ahead of one, if that is given.
async fn serve(hub: &Hub, ahead_of: Option<&Key>) {
    let mut looked_at = 0;
    loop {
        let next = hub.world().next_in_line(ahead_of);
        match next {
            None => return,
            Some(Next::TurnedAway) => {}
            Some(Next::Serve(key)) => serve_one(hub, &key),
        }
        looked_at += 1;
        if looked_at % BATCH == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Whatever comes of it, the job does not contend any more.
fn serve_one(hub: &Hub, key: &Key) {
    let served = look(hub, key).map(|(observed, plan)| {
        let settled = settle(hub, key, &observed, &plan);
        settled.is_ok() && takes_room(&observed, &plan)
    });
    match served {
        Some(true) => hub.jobs.wake(key.clone(), Lane::First),
        Some(false) => {}
        None => {
            let wakes = hub.world().turn_away(key, None);
            hub.wake(wakes);
        }
    }
}

fn settle(hub: &Hub, key: &Key, observed: &Observed, plan: &Plan) -> Result<(), Changed> {
    let attempt = plan.status.current_attempt();
    let wakes = match attempt.filter(|_| takes_room(observed, plan)) {
        None => hub.world().turn_away(key, plan.shortage.clone()),
        Some(attempt) => {
            let set_aside = hub.world().set_aside(&observed.job, attempt);
            if set_aside.is_none() {
                debug!(job = %key, "the job has changed while it was decided on");
                let wakes = hub.world().turn_away(key, None);
                hub.wake(wakes);
            }
            set_aside.ok_or(Changed)?
        }
    };
    hub.wake(wakes);
    Ok(())
}

/// Does the plan begin an attempt?
pub fn takes_room(observed: &Observed, plan: &Plan) -> bool {
    let before = observed.job.status.as_ref();
    plan.status.attempt > before.map_or(0, |status| status.attempt)
}

pub fn look(hub: &Hub, key: &Key) -> Option<(Observed, Plan)> {
    let refused = hub.refusal(key);
    let observed = observe(&hub.world(), key, refused)?;
    let plan = plan(&observed, &hub.config, Timestamp::now());
    Some((observed, plan))
}

//! The TrainJob controller: observe, plan, apply.

pub mod apply;
mod children;
#[cfg(test)]
mod fixtures;
mod frameworks;
#[cfg(test)]
mod lifecycle;
pub mod observe;
pub mod plan;
pub mod pod;
#[cfg(test)]
mod pods_made;
pub mod rendezvous;
#[cfg(test)]
mod simulation;
mod template;
pub mod workers;

use jiff::Timestamp;
use tracing::{debug, error, warn};

use self::apply::{ApplyError, write_status};
use self::observe::{Observed, observe};
use self::plan::{Action, Plan, plan};
use crate::hub::Hub;
use crate::mirror::Key;
use crate::queue::Done;

/// Looks at one job and does what is next for it.
pub async fn reconcile(hub: &Hub, key: &Key) -> Done {
    match turn(hub, key).await {
        Ok(done) => done,
        // Someone else has changed the job: the watch brings it, and then it is looked at as it is.
        Err(ApplyError::Conflict | ApplyError::Gone) => {
            debug!(job = %key, "the job has changed since it was read");
            Done::Error
        }
        Err(ApplyError::Refused { message }) => {
            if hub.set_refusal(key, Some(message.clone())) {
                warn!(job = %key, %message, "a write was refused");
                say_refusal(hub, key).await;
            }
            Done::Error
        }
        Err(failed @ ApplyError::Failed { .. }) => {
            error!(job = %key, error = &failed as &dyn std::error::Error, "the API server did not answer");
            Done::Error
        }
    }
}

async fn turn(hub: &Hub, key: &Key) -> Result<Done, ApplyError> {
    let Some((mut observed, mut next)) = decide(hub, key) else {
        hub.set_refusal(key, None);
        return Ok(Done::Well(None));
    };
    if takes_room(&observed, &next) {
        // Decided again when nobody else is about to take the same room. It is on record when this lets go.
        let _one_at_a_time = hub.placing.lock().await;
        serve_those_ahead(hub, key).await;
        let Some(decided) = decide(hub, key) else {
            return Ok(Done::Well(None));
        };
        (observed, next) = decided;
        write_status(hub, &observed.job, &next.status).await?;
    } else {
        write_status(hub, &observed.job, &next.status).await?;
    }
    for action in &next.actions {
        debug!(job = %key, %action, "doing");
    }
    apply::carry_out(hub, &observed.job, next.actions).await?;
    // What was refused before is no more: say so at once.
    let relieved = hub.set_refusal(key, None);
    Ok(Done::Well(if relieved {
        Some(std::time::Duration::ZERO)
    } else {
        next.requeue_after
    }))
}

/// Jobs are woken together and run side by side, so whoever comes first to take room may not be the first in line.
/// What those before it can have is put on record for them; they create their pods in their own turn.
async fn serve_those_ahead(hub: &Hub, key: &Key) {
    let ahead = hub.world().ahead_of(key);
    for ahead in ahead {
        let Some((observed, plan)) = decide(hub, &ahead) else {
            continue;
        };
        if takes_room(&observed, &plan) {
            // What cannot be written now is tried in the job's own turn.
            if let Err(error) = say(hub, &observed, plan).await {
                debug!(job = %ahead, error = &error as &dyn std::error::Error, "could not be served first");
            }
        } else {
            hub.world().turn_away(&ahead);
        }
    }
}

/// Does the plan begin an attempt?
fn takes_room(observed: &Observed, plan: &Plan) -> bool {
    let before = observed.job.status.as_ref();
    plan.status.attempt > before.map_or(0, |status| status.attempt)
}

fn decide(hub: &Hub, key: &Key) -> Option<(Observed, Plan)> {
    let refused = hub.refusal(key);
    let observed = observe(&mut hub.world(), key, refused)?;
    let plan = plan(&observed, &hub.config, Timestamp::now());
    Some((observed, plan))
}

/// Puts a plan on record and tells of it, and leaves the doing to the job's own turn.
async fn say(hub: &Hub, observed: &Observed, plan: Plan) -> Result<(), ApplyError> {
    write_status(hub, &observed.job, &plan.status).await?;
    let told = plan
        .actions
        .into_iter()
        .filter(|action| matches!(action, Action::Tell(_)));
    apply::carry_out(hub, &observed.job, told.collect()).await
}

/// What was refused is tried again when the queue lets it.
async fn say_refusal(hub: &Hub, key: &Key) {
    let Some((observed, plan)) = decide(hub, key) else {
        return;
    };
    if takes_room(&observed, &plan) {
        return;
    }
    if let Err(error) = say(hub, &observed, plan).await {
        debug!(job = %key, error = &error as &dyn std::error::Error, "the refusal could not be told yet");
    }
}

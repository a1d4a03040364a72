//! The TrainJob controller: observe, plan, apply.

pub mod admission;
pub mod apply;
mod children;
#[cfg(test)]
mod data_on_clusters;
pub mod fingerprint;
#[cfg(test)]
pub mod fixtures;
#[cfg(test)]
mod foretold;
mod frameworks;
#[cfg(test)]
mod hanging;
#[cfg(test)]
mod interruptions;
#[cfg(test)]
mod learned;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod limits;
pub mod observe;
#[cfg(test)]
mod on_clusters;
pub mod pace;
pub mod plan;
pub mod pod;
#[cfg(test)]
mod pods_made;
pub mod refusal;
pub mod rendezvous;
#[cfg(test)]
mod saving;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod simulation;
pub mod tail;
mod template;
pub mod workers;

use std::time::Duration;

use tracing::{debug, error, warn};

use self::admission::Undecided;
use self::apply::{ApplyError, write_status};
use self::observe::Observed;
use self::plan::{Action, Plan};
use crate::hub::Hub;
use crate::mirror::Key;
use crate::queue::Done;

/// Looks at one job and does what is next for it.
pub async fn reconcile(hub: &Hub, key: &Key) -> Done {
    match turn(hub, key).await {
        Ok(done) => done,
        // Someone else was quicker: what has changed comes with the watch, and is looked at as it is.
        Err(ApplyError::Conflict | ApplyError::Gone) => {
            debug!(job = %key, "something has changed since it was read");
            Done::Error
        }
        Err(ApplyError::Refused(refusal)) => {
            if hub.set_refusal(key, Some(refusal.clone())) {
                warn!(job = %key, %refusal, "a write was refused");
                say_refusal(hub, key).await;
            }
            Done::Error
        }
        Err(ApplyError::Fenced) => {
            debug!(job = %key, "another may lead; nothing was written");
            Done::Error
        }
        Err(failed @ ApplyError::Failed { .. }) => {
            error!(job = %key, error = &failed as &dyn std::error::Error, "the API server did not do it; it is tried again");
            Done::Error
        }
    }
}

async fn turn(hub: &Hub, key: &Key) -> Result<Done, ApplyError> {
    let decided = admission::decide(hub, key).await;
    let decided = match decided {
        Ok(decided) => decided,
        Err(Undecided::Changed) => return Err(ApplyError::Conflict),
        Err(Undecided::Resting(rest)) => return Ok(Done::Well(Some(rest))),
    };
    let Some((mut observed, mut next)) = decided else {
        hub.set_refusal(key, None);
        hub.forget_tails(key);
        hub.pace.forget(key);
        return Ok(Done::Well(None));
    };
    if !next.logs.is_empty() {
        let attempt = next.status.attempt;
        let logs = std::mem::take(&mut next.logs);
        let tails = tail::read(hub, &observed.job, attempt, logs).await;
        hub.add_tails(key, tails);
        match admission::look(hub, key) {
            // Another worker has failed meanwhile.
            Some((_, looked)) if !looked.logs.is_empty() => {
                return Ok(Done::Well(Some(Duration::ZERO)));
            }
            Some(looked) => (observed, next) = looked,
            None => return Err(ApplyError::Gone),
        }
    }
    if let Some(wait) = held_back(hub, key, &observed, &next) {
        let after = next.requeue_after.map_or(wait, |after| after.min(wait));
        return Ok(Done::Well(Some(after)));
    }
    let is_news = observed.job.status.as_ref() != Some(&next.status);
    if (is_news && next.status.waiting.is_some() || next.is_told_in_passing)
        && hub.pace.may_explain()
    {
        match admission::look_closely(hub, key) {
            Some(closely) if closely.1.ask == next.ask => (observed, next) = closely,
            _ => {}
        }
    }
    write_status(hub, &observed.job, &next.status).await?;
    hub.forget_tails(key);
    for action in &next.actions {
        debug!(job = %key, %action, "doing");
    }
    let attempt = next.status.attempt;
    apply::carry_out(hub, &observed.job, attempt, next.actions).await?;
    // What was refused before is no more: say so at once.
    let relieved = hub.set_refusal(key, None);
    Ok(Done::Well(if relieved {
        Some(Duration::ZERO)
    } else {
        next.requeue_after
    }))
}

/// How long a plan that does nothing but change words can wait.
fn held_back(hub: &Hub, key: &Key, observed: &Observed, plan: &Plan) -> Option<Duration> {
    let written = observed.job.status.as_ref()?;
    plan.actions
        .is_empty()
        .then(|| hub.pace.wait(key, written, &plan.status))
        .flatten()
}

/// Puts a plan on record and tells of it, and leaves the doing to the job's own turn.
async fn say(hub: &Hub, observed: &Observed, plan: Plan) -> Result<(), ApplyError> {
    write_status(hub, &observed.job, &plan.status).await?;
    let told = plan
        .actions
        .into_iter()
        .filter(|action| matches!(action, Action::Tell(_)));
    apply::carry_out(hub, &observed.job, plan.status.attempt, told.collect()).await
}

/// What was refused is tried again when the queue lets it.
async fn say_refusal(hub: &Hub, key: &Key) {
    let Some((observed, plan)) = admission::look(hub, key) else {
        return;
    };
    if admission::takes_room(&observed, &plan) {
        return;
    }
    if let Err(error) = say(hub, &observed, plan).await {
        debug!(job = %key, error = &error as &dyn std::error::Error, "the refusal could not be told yet");
    }
}

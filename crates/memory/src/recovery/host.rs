//! More host memory, more of it promised, or less time for a leak.

use stoke_api::Bytes;
use stoke_api::trainjob::RestartEvery;

use super::{Case, Change, Plan, rounded_up};
use crate::diagnosis::{Cause, LeakRate};

/// A limit grows by this factor where nothing is known of the need: it was at least the limit.
const STEP: u64 = 2;
/// And by this one where it is the last attempt, for which nothing has to be spared.
const LAST_STEP: u64 = 4;
/// At shorter intervals it does not even begin.
const RESTART_SECONDS_MIN: u64 = 5;

impl Case<'_> {
    /// The most memory that a worker may have, and why it is that.
    pub(super) fn most_memory(&self) -> (Bytes, &'static str) {
        let allowed = self
            .memory_max
            .map(|max| (max, "memory.max allows no more"));
        let exists = self
            .room
            .memory
            .map(|room| (room, "no node has more for it"));
        let least = allowed
            .into_iter()
            .chain(exists)
            .min_by_key(|(bytes, _)| *bytes);
        least.unwrap_or((Bytes(u64::MAX), ""))
    }
}

pub fn more_memory(case: &Case<'_>) -> Plan {
    let facts = &case.diagnosis.facts;
    let had = case.had.memory;
    let (most, why) = case.most_memory();
    if had.0 >= most.0 - most.0 / 100 {
        return Err(format!("it had {} and {why}", had.human()));
    }
    let refused = facts
        .figures
        .tried
        .filter(|_| case.diagnosis.cause == Cause::HostAllocation);
    if let Some(tried) = refused.filter(|tried| *tried > most) {
        return Err(format!(
            "{} at once are more than the {} it may have: {why}",
            tried.human(),
            most.human()
        ));
    }
    let leaks = facts.leak.is_some_and(|leak| !leak.gpu);
    let step = if leaks && most.0 < u64::MAX {
        // Without a restart it fills whatever it gets: as late as possible, and once.
        most.0
    } else if leaks || case.is_last_chance() {
        had.0.saturating_mul(LAST_STEP)
    } else {
        had.0.saturating_mul(STEP)
    };
    // What others like it needed says more than a step, as far as it is more than what was not enough.
    let learned = case.advice.and_then(|advice| advice.memory);
    let learned = learned.filter(|bytes| bytes.0 > had.0.saturating_add(had.0 / 20));
    let asked = refused.map_or(0, |tried| {
        let used = facts.peak.unwrap_or_default().0;
        used.saturating_add(tried.0).saturating_add(tried.0 / 8)
    });
    let wanted = match learned {
        Some(learned) if !case.is_last_chance() => learned.0,
        learned => step.max(learned.unwrap_or_default().0),
    };
    let limit = rounded_up(wanted.max(asked).min(most.0 - 1)).min(most);
    Ok(vec![Change::Memory {
        limit,
        request: None,
    }])
}

/// What is promised is not taken first when its node needs room.
pub fn promised_memory(case: &Case<'_>) -> Plan {
    let had = case.had;
    if had.request >= had.memory {
        return Err("all of its memory was promised".to_owned());
    }
    let used = case.diagnosis.facts.peak.unwrap_or(had.memory);
    let used = used.0.saturating_add(used.0 / 10);
    // Less than it had is no remedy; the second time it is all of it.
    let again = case.tuning().memory_request.is_some();
    let request = if again || used <= had.request.0 {
        had.memory
    } else {
        rounded_up(used).min(had.memory)
    };
    let mut changes = vec![Change::Memory {
        limit: had.memory,
        request: Some(request),
    }];
    changes.extend(super::room::other_node(case).unwrap_or_default());
    Ok(changes)
}

/// A restart schedule: before what grows has eaten what there is.
pub fn restart_in_time(case: &Case<'_>) -> Plan {
    if !case.checkpoints {
        return Err("it writes no checkpoint to begin anew from".to_owned());
    }
    let facts = &case.diagnosis.facts;
    let (most, _) = case.most_memory();
    let at_once = case.diagnosis.cause == Cause::HostAllocation
        && facts.figures.tried.is_some_and(|tried| tried > most);
    let progressed = case.tried.last().is_some_and(|last| last.progressed);
    let every = match (case.tuning().restart_every, facts.leak) {
        // It tells its steps no more, so nobody could count them: the same by the clock.
        (Some(every), _) if every.steps.is_some() && case.had.steps.is_none() => RestartEvery {
            steps: None,
            ..every
        },
        (Some(_), _) if !progressed => {
            return Err("it did not come to a checkpoint between two restarts".to_owned());
        }
        (Some(every), _) => RestartEvery {
            seconds: every.seconds / 2,
            steps: every.steps.map(|steps| steps / 2),
        },
        (None, Some(leak)) => before_it_is_full(case, leak)?,
        // Nobody saw it leak, but it got further before it was full, and will again.
        (None, None) if progressed && !at_once => RestartEvery {
            seconds: case.had.seconds / 5 * 4,
            steps: case.had.steps.map(|steps| steps.saturating_mul(4) / 5),
        },
        (None, None) => {
            return Err("it would end at the same place again".to_owned());
        }
    };
    let too_often = match every.steps {
        Some(steps) => steps == 0,
        None => every.seconds < RESTART_SECONDS_MIN,
    };
    if too_often && !progressed {
        return Err("it grows so fast that restarts do not keep up".to_owned());
    }
    // Its node asks it to save before it is full, whatever the schedule; who got further by that will again.
    let every = RestartEvery {
        seconds: every.seconds.max(RESTART_SECONDS_MIN),
        steps: every.steps.map(|steps| steps.max(1)),
    };
    Ok(vec![Change::Restart { every }])
}

fn before_it_is_full(case: &Case<'_>, leak: LeakRate) -> Result<RestartEvery, String> {
    let facts = &case.diagnosis.facts;
    let (end, full) = if leak.gpu {
        let total = facts.figures.total.or(case.had.gpu_memory);
        let total = total.ok_or("how much memory its GPU has is not known")?;
        (facts.figures.allocated.unwrap_or(total).0, total.0)
    } else {
        (facts.peak.unwrap_or(case.had.memory).0, case.had.memory.0)
    };
    let rate = leak.bytes_per_hour.max(1);
    let grown = u128::from(rate) * u128::from(case.had.seconds) / 3600;
    let base = end.saturating_sub(u64::try_from(grown).unwrap_or(u64::MAX));
    // A fifth is left for what a checkpoint takes, and for a leak that is not even.
    let budget = (full - full / 5).saturating_sub(base);
    let seconds = u128::from(budget) * 3600 / u128::from(rate);
    Ok(RestartEvery {
        seconds: u64::try_from(seconds).unwrap_or(u64::MAX),
        steps: leak
            .bytes_per_step
            .filter(|bytes| *bytes > 0)
            .map(|bytes| budget / bytes),
    })
}

//! Conditions as a map by type: never read by position, a transition time that moves only when the status does.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The conditions a TrainJob has, and a Queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionType {
    Queued,
    Admitted,
    Running,
    Suspended,
    Complete,
    Failed,
    MemoryAtRisk,
    /// Much work is in no checkpoint.
    WorkAtRisk,
    /// Its checkpoints do not get to the object store.
    UploadFailing,
    /// Of a Queue: jobs may start from it.
    Usable,
}

impl ConditionType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Admitted => "Admitted",
            Self::Running => "Running",
            Self::Suspended => "Suspended",
            Self::Complete => "Complete",
            Self::Failed => "Failed",
            Self::MemoryAtRisk => "MemoryAtRisk",
            Self::WorkAtRisk => "WorkAtRisk",
            Self::UploadFailing => "UploadFailing",
            Self::Usable => "Usable",
        }
    }
}

/// The longest message a condition carries, as Kubernetes' own validation has it.
const MESSAGE_LENGTH_MAX: usize = 32_768;

/// Sets a condition; says whether anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: ConditionType,
    status: bool,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> bool {
    let status = if status { "True" } else { "False" };
    let message: String = message.chars().take(MESSAGE_LENGTH_MAX).collect();
    let next = Condition {
        type_: type_.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: now.clone(),
    };
    let Some(current) = conditions
        .iter_mut()
        .find(|condition| condition.type_ == type_.as_str())
    else {
        conditions.push(next);
        return true;
    };
    let next = if current.status == next.status {
        Condition {
            last_transition_time: current.last_transition_time.clone(),
            ..next
        }
    } else {
        next
    };
    let changed = *current != next;
    *current = next;
    changed
}

pub fn get(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == type_.as_str())
}

pub fn is_true(conditions: &[Condition], type_: ConditionType) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap())
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        assert!(set(
            &mut conditions,
            ConditionType::Queued,
            true,
            "A",
            "one",
            None,
            &at(1)
        ));
        assert!(
            !set(
                &mut conditions,
                ConditionType::Queued,
                true,
                "A",
                "one",
                None,
                &at(2)
            ),
            "nothing changed"
        );
        assert!(set(
            &mut conditions,
            ConditionType::Queued,
            true,
            "B",
            "two",
            None,
            &at(3)
        ));
        assert_eq!(conditions[0].last_transition_time, at(1));
        assert!(set(
            &mut conditions,
            ConditionType::Queued,
            false,
            "C",
            "",
            None,
            &at(4)
        ));
        assert_eq!(conditions[0].last_transition_time, at(4));
        assert_eq!(conditions.len(), 1, "one of each type");
        assert!(!is_true(&conditions, ConditionType::Queued));
    }
}

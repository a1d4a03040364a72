//! What a pod uses right now, for `stoke top`, in the pod's annotation `stokehold.dev/usage`.
//!
//! Every write costs the API server, so little is written: only what moved noticeably, and never more often than every five
//! seconds. A pod that sits still writes nothing.

pub(crate) mod sample;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const EVERY_MIN: Duration = Duration::from_secs(5);
/// Memory must move by a twentieth, and by at least this, to be worth a write.
const MEMORY_STEP_MIN_BYTES: u64 = 1 << 20;
/// CPU use is restless by nature: a fifth, and a tenth of a core.
const CPU_STEP_MIN_MILLIS: u64 = 100;
const BUSY_STEP_MIN_PERCENT: u32 = 20;

/// The annotation's value, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Of all containers together.
    pub memory_bytes: u64,
    /// The sum of the containers' limits, if each has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    pub cpu_millicores: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUsage>,
    pub containers: BTreeMap<String, ContainerUsage>,
    /// That its worker does nothing, and what was seen, where its job asks to be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerUsage {
    /// Working set: what a kubelet reports.
    pub memory_bytes: u64,
    /// The highest of the last ten minutes.
    pub recent_peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    pub cpu_millicores: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuUsage {
    pub index: u32,
    pub id: String,
    /// Absent for a simulated GPU, which uses nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<u32>,
}

impl Usage {
    /// Whether `now` is worth a write after `self` was written `since` ago.
    pub(crate) fn is_outdated_by(&self, now: &Self, since: Duration) -> bool {
        if since < EVERY_MIN {
            return false;
        }
        if self.idle != now.idle {
            return true;
        }
        let containers = self.containers.len() != now.containers.len()
            || now.containers.iter().any(|(name, now)| {
                self.containers
                    .get(name)
                    .is_none_or(|before| moved(before, now))
            });
        let gpu = |(before, now): (&GpuUsage, &GpuUsage)| {
            let memory = (
                before.memory_bytes.unwrap_or(0),
                now.memory_bytes.unwrap_or(0),
            );
            let busy = before
                .busy_percent
                .unwrap_or(0)
                .abs_diff(now.busy_percent.unwrap_or(0));
            before.id != now.id
                || stepped(memory.0, memory.1, 20, MEMORY_STEP_MIN_BYTES)
                || busy >= BUSY_STEP_MIN_PERCENT
        };
        containers || self.gpus.len() != now.gpus.len() || self.gpus.iter().zip(&now.gpus).any(gpu)
    }
}

fn moved(before: &ContainerUsage, now: &ContainerUsage) -> bool {
    before.limit_bytes != now.limit_bytes
        || stepped(
            before.memory_bytes,
            now.memory_bytes,
            20,
            MEMORY_STEP_MIN_BYTES,
        )
        || stepped(
            before.cpu_millicores,
            now.cpu_millicores,
            5,
            CPU_STEP_MIN_MILLIS,
        )
}

/// Whether a value moved by more than one part in `parts`, and by more than the least step.
fn stepped(before: u64, now: u64, parts: u64, least: u64) -> bool {
    let by = before.abs_diff(now);
    by > least && by > before / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(memory: u64, cpu: u64) -> Usage {
        let container = ContainerUsage {
            memory_bytes: memory,
            cpu_millicores: cpu,
            ..ContainerUsage::default()
        };
        Usage {
            memory_bytes: memory,
            cpu_millicores: cpu,
            containers: BTreeMap::from([("c".to_owned(), container)]),
            ..Usage::default()
        }
    }

    #[test]
    fn only_news_is_written() {
        let gib = 1 << 30;
        let late = Duration::from_secs(6);
        let before = usage(gib, 1000);
        assert!(
            !before.is_outdated_by(&before.clone(), late),
            "nothing moved"
        );
        assert!(
            !before.is_outdated_by(&usage(gib + gib / 25, 1000), late),
            "4 %"
        );
        assert!(
            before.is_outdated_by(&usage(gib + gib / 15, 1000), late),
            "7 %"
        );
        assert!(
            !before.is_outdated_by(&usage(2 * gib, 1000), Duration::from_secs(4)),
            "too soon"
        );
        assert!(!before.is_outdated_by(&usage(gib, 1150), late), "restless");
        assert!(before.is_outdated_by(&usage(gib, 100), late), "gone idle");
        assert!(
            !usage(1000, 0).is_outdated_by(&usage(3000, 50), late),
            "too small to matter"
        );
        assert!(
            before.is_outdated_by(&Usage::default(), late),
            "a container ended"
        );
    }

    #[test]
    fn the_annotation_is_small_and_readable() {
        let mut usage = usage(1 << 30, 1500);
        usage.gpus.push(GpuUsage {
            index: 0,
            id: "SIM-0".to_owned(),
            ..GpuUsage::default()
        });
        let text = serde_json::to_string(&usage).expect("JSON");
        insta::assert_snapshot!(text, @r#"{"memoryBytes":1073741824,"cpuMillicores":1500,"gpus":[{"index":0,"id":"SIM-0"}],"containers":{"c":{"memoryBytes":1073741824,"recentPeakBytes":0,"cpuMillicores":1500}}}"#);
        assert_eq!(
            serde_json::from_str::<Usage>(&text).expect("readable"),
            usage
        );
        assert_eq!(
            serde_json::from_str::<Usage>("{}").expect("readable"),
            Usage::default()
        );
    }
}

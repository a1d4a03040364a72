//! What was measured, in the text format of Prometheus.

use std::fmt::Write as _;

use super::deeds::Kind;
use super::roster::{Roster, Shown};
use crate::cgroup::MemorySample;
use stoke_memory::Verdict;

/// What the agent says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Own {
    pub(super) passes: u64,
    pub(super) pass_seconds: f64,
    pub(super) digests_written: u64,
    pub(super) digests_failed: u64,
    /// What was done for containers, and what was tried in vain, by kind.
    done: [u64; Kind::ALL.len()],
    failed: [u64; Kind::ALL.len()],
}

impl Own {
    pub(super) fn count(&mut self, kind: Kind, is_done: bool) {
        let counts = if is_done {
            &mut self.done
        } else {
            &mut self.failed
        };
        if let Some(count) = counts.get_mut(kind as usize) {
            *count += 1;
        }
    }
}

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Absent where the kernel does not tell.
    value: fn(&Shown<'_>) -> Option<f64>,
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    value: fn(&Shown<'_>) -> Option<f64>,
) -> Family {
    Family {
        name,
        kind: "gauge",
        help,
        value,
    }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    value: fn(&Shown<'_>) -> Option<f64>,
) -> Family {
    Family {
        name,
        kind: "counter",
        help,
        value,
    }
}

fn bytes(amount: u64) -> Option<f64> {
    Some(amount as f64)
}

fn file(sample: &MemorySample) -> u64 {
    sample
        .active_file_bytes
        .saturating_add(sample.inactive_file_bytes)
}

const FAMILIES: [Family; 17] = [
    gauge(
        "usage_bytes",
        "All memory charged to the container, page cache included.",
        |s| bytes(s.sample.usage_bytes),
    ),
    gauge(
        "working_set_bytes",
        "Usage without inactive page cache, as a kubelet counts.",
        |s| bytes(s.sample.working_set_bytes),
    ),
    gauge("anon_bytes", "Anonymous memory: heap and stack.", |s| {
        bytes(s.sample.anon_bytes)
    }),
    gauge(
        "shmem_bytes",
        "Shared memory and tmpfs, /dev/shm included.",
        |s| bytes(s.sample.shmem_bytes),
    ),
    gauge("file_bytes", "Page cache.", |s| bytes(file(s.sample))),
    gauge(
        "inactive_file_bytes",
        "Page cache that is given back first.",
        |s| bytes(s.sample.inactive_file_bytes),
    ),
    gauge(
        "kernel_bytes",
        "Kernel memory charged to the container.",
        |s| bytes(s.sample.kernel_bytes),
    ),
    gauge("swap_bytes", "Memory swapped out.", |s| {
        bytes(s.sample.swap_bytes)
    }),
    gauge(
        "limit_bytes",
        "The limit; absent where there is none.",
        |s| s.sample.limit_bytes.and_then(bytes),
    ),
    gauge(
        "peak_bytes",
        "The most used since the container started.",
        |s| bytes(s.peak),
    ),
    counter(
        "limit_events_total",
        "How often the limit was reached, reclaim included.",
        |s| bytes(s.sample.limit_events),
    ),
    counter(
        "oom_kills_total",
        "Processes the kernel killed at the limit.",
        |s| bytes(s.sample.oom_kills),
    ),
    counter(
        "pressure_some_seconds_total",
        "Time in which some process waited for memory (cgroup v2).",
        |s| s.sample.pressure.map(|p| seconds(p.some_total_usec)),
    ),
    counter(
        "pressure_full_seconds_total",
        "Time in which all processes waited for memory (cgroup v2).",
        |s| s.sample.pressure.map(|p| seconds(p.full_total_usec)),
    ),
    gauge(
        "at_risk",
        "1 while a worker may soon need more memory than it may have.",
        |s| s.is_at_risk.map(|is| f64::from(u8::from(is))),
    ),
    gauge(
        "leak_bytes_per_hour",
        "How fast a worker leaks; absent while it does not.",
        |s| match s.foreseen? {
            Verdict::Leak { mib_per_hour, .. } => Some(mib_per_hour * f64::from(1 << 20)),
            _ => None,
        },
    ),
    gauge(
        "seconds_to_limit",
        "When a worker whose memory climbs is full; absent while it does not.",
        |s| match s.foreseen? {
            Verdict::Climbing { oom_in, .. } => Some(oom_in.seconds as f64),
            Verdict::Leak { oom_in, .. } => oom_in.map(|span| span.seconds as f64),
            _ => None,
        },
    ),
];

fn seconds(usec: u64) -> f64 {
    usec as f64 / 1e6
}

pub(super) fn text(roster: &Roster, own: Own) -> String {
    let mut text = String::new();
    let shown: Vec<(String, Shown<'_>)> = roster
        .shown()
        .into_iter()
        .map(|shown| (labels(&shown), shown))
        .collect();
    for family in &FAMILIES {
        let name = format!("stoke_container_memory_{}", family.name);
        head(&mut text, &name, family.kind, family.help);
        for (labels, shown) in &shown {
            if let Some(value) = (family.value)(shown) {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        }
    }
    for (name, kind, help, value) in [
        (
            "stoke_agent_containers",
            "gauge",
            "Containers that are measured.",
            roster.running() as f64,
        ),
        (
            "stoke_agent_unreadable_containers",
            "gauge",
            "Containers whose cgroup is not found or cannot be read.",
            roster.troubled() as f64,
        ),
        (
            "stoke_agent_passes_total",
            "counter",
            "Looks at all containers.",
            own.passes as f64,
        ),
        (
            "stoke_agent_pass_seconds",
            "gauge",
            "How long the last look took.",
            own.pass_seconds,
        ),
    ] {
        head(&mut text, name, kind, help);
        let _ = writeln!(text, "{name} {value}");
    }
    let name = "stoke_agent_digests_total";
    head(
        &mut text,
        name,
        "counter",
        "Digests written on pods whose container ended.",
    );
    for (result, count) in [
        ("written", own.digests_written),
        ("failed", own.digests_failed),
    ] {
        let _ = writeln!(text, "{name}{{result=\"{result}\"}} {count}");
    }
    let name = "stoke_agent_memory_actions_total";
    head(
        &mut text,
        name,
        "counter",
        "What was done for workers whose memory ran out.",
    );
    for (result, counts) in [("done", own.done), ("failed", own.failed)] {
        for (kind, count) in Kind::ALL.into_iter().zip(counts) {
            let action = kind.label();
            let _ = writeln!(
                text,
                "{name}{{action=\"{action}\",result=\"{result}\"}} {count}"
            );
        }
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn labels(shown: &Shown<'_>) -> String {
    let who = shown.labels;
    [
        ("namespace", who.namespace.as_str()),
        ("pod", &who.pod),
        ("container", shown.container),
        ("job", &who.job),
        ("attempt", &who.attempt),
        ("rank", &who.rank),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
    .collect::<Vec<_>>()
    .join(",")
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;
    use stoke_api::contract::JobStatus;

    use super::super::neighbours::NodeLook;
    use super::super::roster::{Outcome, Reading, Scope};
    use super::*;
    use crate::cgroup::{CgroupSpec, CgroupVersion, Pressure};

    #[test]
    fn prometheus_can_read_it() {
        let mut roster = Roster::new(Scope::Jobs);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "gpt-2-1", "namespace": "ml", "uid": "u1", "labels": {
                "stokehold.dev/job": "gpt", "stokehold.dev/attempt": "2", "stokehold.dev/rank": "1"}},
            "status": {"containerStatuses": [{"name": "worker", "containerID": "cri-o://a", "state": {"running": {}},
                "ready": true, "restartCount": 0, "image": "", "imageID": ""}]}
        }))
        .unwrap();
        roster.observe(&pod);
        let sample = MemorySample {
            usage_bytes: 3_000_000_000,
            working_set_bytes: 2_000_000_000,
            peak_bytes: Some(3_500_000_000),
            limit_bytes: Some(4_294_967_296),
            anon_bytes: 1_500_000_000,
            active_file_bytes: 10,
            inactive_file_bytes: 1_000_000_000,
            pressure: Some(Pressure {
                some_total_usec: 1_500_000,
                ..Pressure::default()
            }),
            ..MemorySample::default()
        };
        let outcome = Outcome::Measured {
            cgroup: Box::new(CgroupSpec::foreign(CgroupVersion::V2, "/x".into())),
            sample,
            cpu_usec: None,
            said: JobStatus::default(),
        };
        let reading = Reading {
            pod_uid: "u1".to_owned(),
            id: "a".to_owned(),
            outcome,
        };
        let node = NodeLook::default();
        roster.record(Duration::ZERO, vec![reading], &node, Timestamp::UNIX_EPOCH);
        let mut own = Own {
            passes: 7,
            pass_seconds: 0.002,
            digests_written: 1,
            ..Own::default()
        };
        own.count(Kind::Raise, true);
        own.count(Kind::Raise, true);
        own.count(Kind::AskCheckpoint, false);
        let text = text(&roster, own);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        insta::assert_snapshot!(samples.join("\n"), @r#"
        stoke_container_memory_usage_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 3000000000
        stoke_container_memory_working_set_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 2000000000
        stoke_container_memory_anon_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 1500000000
        stoke_container_memory_shmem_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 0
        stoke_container_memory_file_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 1000000010
        stoke_container_memory_inactive_file_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 1000000000
        stoke_container_memory_kernel_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 0
        stoke_container_memory_swap_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 0
        stoke_container_memory_limit_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 4294967296
        stoke_container_memory_peak_bytes{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 3500000000
        stoke_container_memory_limit_events_total{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 0
        stoke_container_memory_oom_kills_total{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 0
        stoke_container_memory_pressure_some_seconds_total{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 1.5
        stoke_container_memory_pressure_full_seconds_total{namespace="ml",pod="gpt-2-1",container="worker",job="gpt",attempt="2",rank="1"} 0
        stoke_agent_containers 1
        stoke_agent_unreadable_containers 0
        stoke_agent_passes_total 7
        stoke_agent_pass_seconds 0.002
        stoke_agent_digests_total{result="written"} 1
        stoke_agent_digests_total{result="failed"} 0
        stoke_agent_memory_actions_total{action="raise",result="done"} 2
        stoke_agent_memory_actions_total{action="give_back",result="done"} 0
        stoke_agent_memory_actions_total{action="ask_checkpoint",result="done"} 0
        stoke_agent_memory_actions_total{action="tell",result="done"} 0
        stoke_agent_memory_actions_total{action="raise",result="failed"} 0
        stoke_agent_memory_actions_total{action="give_back",result="failed"} 0
        stoke_agent_memory_actions_total{action="ask_checkpoint",result="failed"} 1
        stoke_agent_memory_actions_total{action="tell",result="failed"} 0
        "#);
        assert_eq!(text.matches("# TYPE ").count(), FAMILIES.len() + 6);
    }

    #[test]
    fn odd_labels_stay_in_their_quotes() {
        assert_eq!(escaped("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}

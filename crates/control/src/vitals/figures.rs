//! The operator's metrics.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use stoke_api::trainjob::Phase;

use crate::guard::Call;
use crate::hub::Hub;
use crate::queue::Done;

/// From a turn that finds nothing to do to one that waits for a server in trouble, in seconds.
const TURN_SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0];
const REQUEST_SECONDS: [f64; 8] = [0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 2.0, 10.0];
/// The unit of `/proc/self/stat`, fixed in Linux' interface for programs.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub struct Figures {
    registry: Registry,
    leads: Gauge,
    turns: Family<Turn, Counter>,
    turn_seconds: Histogram,
    requests: Family<Asked, Counter>,
    request_seconds: Family<Verb, Histogram, fn() -> Histogram>,
    writes: Counter,
    throttled: Counter,
    crowd: Gauge,
    relists: Family<OfKind, Counter>,
    watch_errors: Family<OfKind, Counter>,
    queued: Gauge,
    jobs: Family<InPhase, Gauge>,
    waiting: Family<Because, Gauge>,
    mirrored: Family<OfKind, Gauge>,
    resident: Gauge<i64, AtomicI64>,
    cpu: Gauge<f64, AtomicU64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Turn {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    verb: &'static str,
    resource: String,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Because {
    reason: String,
}

impl Figures {
    pub fn new() -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(REQUEST_SECONDS);
        let mut figures = Self {
            registry: Registry::with_prefix("stoke"),
            leads: Gauge::default(),
            turns: Family::default(),
            turn_seconds: Histogram::new(TURN_SECONDS),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            writes: Counter::default(),
            throttled: Counter::default(),
            crowd: Gauge::default(),
            relists: Family::default(),
            watch_errors: Family::default(),
            queued: Gauge::default(),
            jobs: Family::default(),
            waiting: Family::default(),
            mirrored: Family::default(),
            resident: Gauge::default(),
            cpu: Gauge::default(),
        };
        figures.register();
        figures
    }

    fn register(&mut self) {
        let all = &mut self.registry;
        all.register(
            "is_leader",
            "1 where this replica leads",
            self.leads.clone(),
        );
        all.register(
            "reconciles",
            "Looks at jobs, by how they ended",
            self.turns.clone(),
        );
        all.register_with_unit(
            "reconcile_duration",
            "How long a look at a job took",
            Unit::Seconds,
            self.turn_seconds.clone(),
        );
        all.register(
            "api_requests",
            "Requests to the API server",
            self.requests.clone(),
        );
        all.register_with_unit(
            "api_request_duration",
            "How long the API server took to answer",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        all.register(
            "api_writes",
            "Requests that change something",
            self.writes.clone(),
        );
        all.register(
            "api_throttled",
            "Answers of the API server that it has too much to do (429)",
            self.throttled.clone(),
        );
        all.register(
            "api_requests_limit",
            "Requests that may be under way at once; fewer after a 429",
            self.crowd.clone(),
        );
        all.register(
            "watch_lists",
            "Times that all objects of a kind were read",
            self.relists.clone(),
        );
        all.register(
            "watch_errors",
            "Times that a watch or its list broke off",
            self.watch_errors.clone(),
        );
        all.register(
            "queue_depth",
            "Jobs that wait to be looked at, or are being",
            self.queued.clone(),
        );
        all.register("jobs", "TrainJobs by phase", self.jobs.clone());
        all.register(
            "jobs_waiting",
            "TrainJobs that wait, by the reason that they tell",
            self.waiting.clone(),
        );
        all.register(
            "mirrored_objects",
            "Objects held in memory, by kind",
            self.mirrored.clone(),
        );
        all.register_with_unit(
            "process_resident_memory",
            "Memory this process has",
            Unit::Bytes,
            self.resident.clone(),
        );
        all.register_with_unit(
            "process_cpu",
            "CPU time this process has used",
            Unit::Seconds,
            self.cpu.clone(),
        );
    }

    pub fn leads(&self, leads: bool) {
        self.leads.set(i64::from(leads));
    }

    pub fn asked(&self, call: &Call, code: Option<StatusCode>, took: Duration) {
        let verb = call.verb;
        let asked = Asked {
            verb,
            resource: call.resource.clone(),
            // Where there was no answer there is no code.
            code: code.map_or_else(|| "none".to_owned(), |code| code.as_str().to_owned()),
        };
        self.requests.get_or_create(&asked).inc();
        self.request_seconds
            .get_or_create(&Verb { verb })
            .observe(took.as_secs_f64());
        if call.is_write() {
            self.writes.inc();
        }
        if code == Some(StatusCode::TOO_MANY_REQUESTS) {
            self.throttled.inc();
        }
    }

    pub fn crowd(&self, limit: u32) {
        self.crowd.set(i64::from(limit));
    }

    /// A turn that broke off ended in no way.
    pub fn turned(&self, done: Option<Done>, took: Duration) {
        let result = match done {
            Some(Done::Well(_)) => "well",
            Some(Done::Error) => "error",
            None => "broken",
        };
        self.turns.get_or_create(&Turn { result }).inc();
        self.turn_seconds.observe(took.as_secs_f64());
    }

    pub fn watch_began(&self, kind: &str) {
        self.relists.get_or_create(&of_kind(kind)).inc();
    }

    pub fn watch_broke(&self, kind: &str) {
        self.watch_errors.get_or_create(&of_kind(kind)).inc();
    }

    pub fn text(&self, hub: Option<&Hub>) -> String {
        self.look_at(hub);
        self.look_at_ourselves();
        let mut text = String::new();
        // A string takes whatever is written to it.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    /// What is there now. A standby has nothing.
    fn look_at(&self, hub: Option<&Hub>) {
        self.queued
            .set(hub.map_or(0, |hub| hub.jobs.depth() as i64));
        let mut phases: BTreeMap<String, i64> = PHASES
            .iter()
            .map(|phase| (format!("{phase:?}"), 0))
            .collect();
        let mut reasons: BTreeMap<String, i64> = BTreeMap::new();
        let mut objects = BTreeMap::from([
            ("TrainJob", 0),
            ("Pod", 0),
            ("Node", 0),
            ("Dataset", 0),
            ("Queue", 0),
        ]);
        if let Some(hub) = hub {
            let world = hub.world();
            for (_, job) in world.jobs.iter() {
                let phase = job.status.as_ref().map(|status| status.phase);
                if let Some(status) = job.status.as_ref().filter(|it| it.phase == Phase::Queued) {
                    *reasons.entry(status.reason.clone()).or_default() += 1;
                }
                *phases
                    .entry(format!("{:?}", phase.unwrap_or_default()))
                    .or_default() += 1;
            }
            objects = BTreeMap::from([
                ("TrainJob", world.jobs.iter().count()),
                ("Pod", world.pods.iter().count()),
                ("Node", world.nodes.iter().count()),
                ("Dataset", world.datasets.iter().count()),
                ("Queue", world.queues.iter().count()),
            ]);
        }
        for (phase, count) in phases {
            self.jobs.get_or_create(&InPhase { phase }).set(count);
        }
        // One that nobody waits for any more is not shown with its last figure.
        self.waiting.clear();
        for (reason, count) in reasons {
            self.waiting.get_or_create(&Because { reason }).set(count);
        }
        for (kind, count) in objects {
            self.mirrored
                .get_or_create(&of_kind(kind))
                .set(count as i64);
        }
    }

    fn look_at_ourselves(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib =
            resident.and_then(|said| said.trim().strip_suffix(" kB")?.trim().parse::<i64>().ok());
        if let Some(kib) = kib {
            self.resident.set(kib * 1024);
        }
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if let Some(seconds) = cpu_seconds(&stat) {
            self.cpu.set(seconds);
        }
    }
}

const PHASES: [Phase; 7] = [
    Phase::Queued,
    Phase::Starting,
    Phase::Running,
    Phase::Restarting,
    Phase::Suspended,
    Phase::Complete,
    Phase::Failed,
];

fn of_kind(kind: &str) -> OfKind {
    OfKind {
        kind: kind.to_owned(),
    }
}

/// A program's name is in brackets and may hold anything, so fields are counted from behind it.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_as_prometheus_reads_them() {
        let figures = Figures::new();
        figures.leads(true);
        let call = Call {
            verb: "create",
            resource: "pods".to_owned(),
        };
        figures.asked(&call, Some(StatusCode::CREATED), Duration::from_millis(3));
        figures.asked(
            &call,
            Some(StatusCode::TOO_MANY_REQUESTS),
            Duration::from_millis(3),
        );
        figures.asked(&call, None, Duration::from_secs(35));
        figures.turned(Some(Done::Well(None)), Duration::from_millis(7));
        figures.turned(None, Duration::from_millis(7));
        figures.watch_broke("Pod");
        let text = figures.text(None);
        let told: Vec<&str> = text
            .lines()
            .filter(|line| {
                !line.starts_with('#') && !line.contains("_bucket") && !line.contains("process")
            })
            .filter(|line| !line.contains("duration_seconds_sum"))
            .collect();
        let mut told = told;
        told.sort_unstable();
        insta::assert_snapshot!(told.join("\n"), @r#"
        stoke_api_request_duration_seconds_count{verb="create"} 3
        stoke_api_requests_limit 0
        stoke_api_requests_total{verb="create",resource="pods",code="201"} 1
        stoke_api_requests_total{verb="create",resource="pods",code="429"} 1
        stoke_api_requests_total{verb="create",resource="pods",code="none"} 1
        stoke_api_throttled_total 1
        stoke_api_writes_total 3
        stoke_is_leader 1
        stoke_jobs{phase="Complete"} 0
        stoke_jobs{phase="Failed"} 0
        stoke_jobs{phase="Queued"} 0
        stoke_jobs{phase="Restarting"} 0
        stoke_jobs{phase="Running"} 0
        stoke_jobs{phase="Starting"} 0
        stoke_jobs{phase="Suspended"} 0
        stoke_mirrored_objects{kind="Dataset"} 0
        stoke_mirrored_objects{kind="Node"} 0
        stoke_mirrored_objects{kind="Pod"} 0
        stoke_mirrored_objects{kind="Queue"} 0
        stoke_mirrored_objects{kind="TrainJob"} 0
        stoke_queue_depth 0
        stoke_reconcile_duration_seconds_count 2
        stoke_reconciles_total{result="broken"} 1
        stoke_reconciles_total{result="well"} 1
        stoke_watch_errors_total{kind="Pod"} 1
        "#);
        assert!(text.contains("stoke_process_resident_memory_bytes "));
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_program_may_be_called_anything() {
        let stat = "7 (a) b (c) S 1 1 1 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("nonsense"), None);
    }
}

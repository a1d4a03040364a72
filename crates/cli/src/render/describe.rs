//! `stoke describe JOB`: everything about a job, in the order a person asks for it.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;
use stoke_api::trainjob::unsaved::Unsaved;
use stoke_api::trainjob::{Attempt, Framework};
use stoke_api::{Bytes, TrainJob, TrainJobStatus};

use super::table::Grid;
use super::{count, ending, nodes};
use crate::clock;
use crate::jobs::{self, JobView, event_time};
use crate::render::top;
use crate::terminal::{BOLD, mood, paint};

/// Newest events shown; older ones rarely matter and `stoke get events` has them.
const EVENTS_MAX: usize = 20;

pub fn job(view: &JobView, now: Timestamp) -> String {
    let job = &view.job;
    let none = TrainJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&none);
    let mut text = Sheet::default();
    text.field("Name", job.name());
    text.field("Namespace", job.namespace());
    text.field("Labels", &labels(job));
    text.field(
        "Submitted",
        &format!(
            "{} ago",
            clock::age(job.metadata.creation_timestamp.as_ref(), now)
        ),
    );
    text.field("Phase", &phase(status, now));
    text.field(
        "Why",
        &[status.reason.as_str(), status.message.as_str()].join("  "),
    );
    text.field("Command", &shell_words(&job.spec.command));
    text.field("Shape", &shape(job));
    text.field("Queue", job.queue().unwrap_or_default());
    text.field("Priority", &word(&job.spec.priority));
    text.field("Memory", &memory(job, status));
    text.field("Checkpoint", &checkpoint(job));
    text.field("Saved", &saved(status, now));
    text.field("Unsaved", &unsaved(job, status, now));
    text.field("Retries", &retries(job, status));
    if let Some(span) = job.spec.max_duration {
        text.field("Max duration", &span.to_string());
    }
    if let Some(span) = job.spec.ttl {
        text.field("Kept for", &span.to_string());
    }
    text.section("Conditions", &conditions(status, now));
    text.section("Attempts", &attempts(status, now));
    text.section("Pods", &pods(&view.pods, now));
    text.section("Events", &events(&view.events, now));
    text.0
}

/// Any other object: its YAML without the noise, and its events.
pub fn object(value: &Value, events_of: &[Event], now: Timestamp) -> anyhow::Result<String> {
    let mut value = value.clone();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    let mut text = Sheet(super::object::yaml(&value)?);
    text.section("Events", &events(events_of, now));
    Ok(text.0)
}

#[derive(Default)]
struct Sheet(String);

impl Sheet {
    fn field(&mut self, name: &str, value: &str) {
        let value = value.trim();
        if value.is_empty() {
            return;
        }
        let label = format!("{name}:");
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.0,
            "{}{}{value}",
            paint(BOLD, &label),
            " ".repeat(14_usize.saturating_sub(label.len()))
        );
    }

    fn section(&mut self, name: &str, grid: &Grid) {
        if !grid.is_empty() {
            let _ = writeln!(self.0, "\n{}", paint(BOLD, format!("{name}:")));
            self.0.push_str(&grid.indented(2));
        }
    }
}

/// Of all, and of each cause that has a limit of its own.
pub fn retries(job: &TrainJob, status: &TrainJobStatus) -> String {
    let limit = job.spec.retries;
    let mut text = format!("{} of {limit} used", status.failures.min(limit));
    let limits = job.spec.retry_limits.unwrap_or_default();
    for (cause, limit) in limits.said() {
        let used = status.failures_by_cause.get(cause).unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = write!(text, "; {cause} {} of {limit}", used.min(limit));
    }
    text
}

fn labels(job: &TrainJob) -> String {
    let labels: Vec<String> = job
        .labels()
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    labels.join(", ")
}

fn phase(status: &TrainJobStatus, now: Timestamp) -> String {
    let name = word(&status.phase);
    let since = status
        .phase_since
        .as_ref()
        .map(|time| format!(" for {}", clock::ago(time.0, now)));
    format!("{}{}", paint(mood(&name), &name), since.unwrap_or_default())
}

/// The word a value is written as in YAML.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

pub fn shape(job: &TrainJob) -> String {
    let spec = &job.spec;
    let mut text = format!(
        "{}, {}",
        word(&spec.framework),
        count(spec.workers, "worker", "workers")
    );
    if spec.gpus != stoke_api::GpuRequest::None {
        let many = if spec.gpus.whole() > 1 { "s" } else { "" };
        let _ = write!(text, " with {} GPU{many} each", spec.gpus);
    }
    if let Some(cpus) = spec.cpus {
        let _ = write!(text, ", {cpus} CPU each");
    }
    if spec.framework != Framework::Plain && spec.world_size() != spec.workers {
        let _ = write!(
            text,
            ", {} in all",
            count(spec.world_size(), "process", "processes")
        );
    }
    text
}

fn memory(job: &TrainJob, status: &TrainJobStatus) -> String {
    let sized = status
        .attempts
        .last()
        .and_then(|attempt| attempt.memory.as_ref());
    if let Some(sizing) = sized {
        return format!(
            "limit {}, request {} for each worker: {}",
            sizing.limit, sizing.request, sizing.why
        );
    }
    let Some(memory) = &job.spec.memory else {
        return "chosen when it starts".to_owned();
    };
    let parts = [
        ("limit", memory.limit),
        ("request", memory.request),
        ("max", memory.max),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter_map(|(name, bytes)| bytes.map(|bytes| format!("{name} {bytes}")))
        .collect();
    parts.join(", ")
}

fn checkpoint(job: &TrainJob) -> String {
    let Some(checkpoint) = &job.spec.checkpoint else {
        return String::new();
    };
    let every = checkpoint.every.map(|every| format!(", every {every}"));
    format!(
        "{} ({}{})",
        checkpoint.path,
        checkpoint.size,
        every.unwrap_or_default()
    )
}

/// The newest checkpoint, and how old it is.
fn saved(status: &TrainJobStatus, now: Timestamp) -> String {
    let at = status.last_checkpoint.as_ref();
    let age = at.map(|at| format!("{} ago", clock::ago(at.0, now)));
    let Some(saved) = &status.saved else {
        return age.unwrap_or_default();
    };
    let seconds = saved.seconds.map(|seconds| format!("in {seconds:.1} s"));
    let step = saved.step.map(|step| format!("step {step}"));
    let copied = saved
        .uploaded
        .as_ref()
        .map(|copy| format!("copied up to step {}", copy.step));
    let parts = [
        Some(saved.name.clone()),
        step,
        Some(Bytes(saved.bytes).human()),
        seconds,
        age,
        copied,
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

/// What would be lost if it were interrupted now.
fn unsaved(job: &TrainJob, status: &TrainJobStatus, now: Timestamp) -> String {
    Unsaved::of(&job.spec, status, &Time(now)).map_or_else(String::new, |unsaved| {
        let time = clock::short(unsaved.seconds);
        let (total, unit) = (unsaved.total_seconds, unsaved.unit());
        format!("{time} of work ({total} {unit}-seconds)")
    })
}

/// A command as one could type it.
pub fn shell_words(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let is_plain = !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_alphanumeric() || "-_./=:,@%+".contains(c));
        if is_plain {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn conditions(status: &TrainJobStatus, now: Timestamp) -> Grid {
    let mut grid = Grid::with_head(&["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    for condition in &status.conditions {
        grid.push(vec![
            condition.type_.clone(),
            condition.status.clone(),
            clock::ago(condition.last_transition_time.0, now),
            condition.reason.clone(),
            one_line(&condition.message),
        ]);
    }
    grid
}

fn attempts(status: &TrainJobStatus, now: Timestamp) -> Grid {
    let mut grid = Grid::with_head(&["ATTEMPT", "OUTCOME", "RAN", "NODES", "MEMORY", "END"]);
    for attempt in &status.attempts {
        let outcome = attempt
            .outcome
            .map_or_else(|| "-".to_owned(), |outcome| word(&outcome));
        let limit = attempt
            .memory
            .as_ref()
            .map(|sizing| sizing.limit.to_string());
        grid.push(vec![
            attempt.number.to_string(),
            outcome,
            ran(attempt, now),
            nodes(attempt),
            limit.unwrap_or_default(),
            attempt.exit.as_ref().map(ending).unwrap_or_default(),
        ]);
    }
    grid
}

/// How long an attempt's workers ran.
pub fn ran(attempt: &Attempt, now: Timestamp) -> String {
    let Some(from) = attempt.running_at.as_ref().or(attempt.placed_at.as_ref()) else {
        return "-".to_owned();
    };
    let to = attempt.finished_at.as_ref().map_or(now, |time| time.0);
    clock::between(from.0, to)
}

fn pods(pods: &[Pod], now: Timestamp) -> Grid {
    let mut grid = Grid::with_head(&[
        "NAME", "RANK", "PHASE", "NODE", "MEMORY", "CPU", "GPUS", "SINCE",
    ]);
    for pod in pods {
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        let usage = top::usage(pod);
        let since = jobs::worker_status(pod)
            .and_then(|status| status.state.as_ref())
            .and_then(|state| {
                let running = state
                    .running
                    .as_ref()
                    .and_then(|running| running.started_at.as_ref());
                running.or_else(|| {
                    state
                        .terminated
                        .as_ref()
                        .and_then(|ended| ended.finished_at.as_ref())
                })
            });
        grid.push(vec![
            pod.name_any(),
            jobs::rank_of(pod)
                .map(|rank| rank.to_string())
                .unwrap_or_default(),
            phase.unwrap_or_default(),
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default(),
            top::memory_text(usage.memory, usage.limit),
            top::cpu_text(usage.cpu_milli),
            pod.annotations()
                .get(stoke_api::names::GPU_DEVICES_ANNOTATION)
                .cloned()
                .unwrap_or_default(),
            since
                .map(|time| clock::ago(time.0, now))
                .unwrap_or_default(),
        ]);
    }
    grid
}

fn events(events: &[Event], now: Timestamp) -> Grid {
    let mut grid = Grid::with_head(&["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
    for event in events.iter().skip(events.len().saturating_sub(EVENTS_MAX)) {
        let object = &event.involved_object;
        let times = event
            .count
            .filter(|count| *count > 1)
            .map(|count| format!(" (x{count})"));
        grid.push(vec![
            event_time(event)
                .map(|at| clock::ago(at, now))
                .unwrap_or_default(),
            event.type_.clone().unwrap_or_default(),
            event.reason.clone().unwrap_or_default(),
            format!(
                "{}/{}",
                object.kind.as_deref().unwrap_or_default().to_lowercase(),
                object.name.as_deref().unwrap_or_default()
            ),
            format!(
                "{}{}",
                one_line(event.message.as_deref().unwrap_or_default()),
                times.unwrap_or_default()
            ),
        ]);
    }
    grid
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixtures;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_running_job() {
        insta::assert_snapshot!(plain(&job(&fixtures::view(fixtures::running()), fixtures::now())), @"
        Name:         resnet50
        Namespace:    default
        Labels:       team=vision
        Submitted:    10m ago
        Phase:        Running for 3m
        Why:          WorkersRunning  2 of 2 workers run
        Command:      python train.py --epochs 90 --note 'two words'
        Shape:        torch, 2 workers with 4 GPUs each, 8 processes in all
        Queue:        vision
        Priority:     standard
        Memory:       limit 8Gi, request 8Gi for each worker: a quarter of the node's memory
        Checkpoint:   /ckpt (20Gi, every 15m)
        Unsaved:      3m of work (1440 GPU-seconds)
        Retries:      1 of 3 used
        Max duration: 2d

        Conditions:
          TYPE       STATUS   SINCE   REASON           MESSAGE
          Admitted   True     9m59s   Placed           on node-a
          Running    True     3m      WorkersRunning   2 of 2 workers run

        Attempts:
          ATTEMPT   OUTCOME   RAN   NODES    MEMORY   END
          1         Failed    5m    node-a   8Gi      it used 8Gi of its limit 8Gi
          2         -         3m    node-a   8Gi      

        Pods:
          NAME           RANK   PHASE     NODE     MEMORY              CPU   GPUS      SINCE
          resnet50-2-0   0      Running   node-a   6.0 GiB / 8.0 GiB   3.5   0,1,2,3   3m
          resnet50-2-1   1      Running   node-a   7.7 GiB / 8.0 GiB   3.5   0,1,2,3   3m

        Events:
          LAST SEEN   TYPE      REASON      OBJECT             MESSAGE
          4m55s       Warning   OOMKilled   pod/resnet50-1-1   worker was killed at its memory limit of 8Gi
        ");
    }

    #[test]
    fn a_job_that_nobody_has_looked_at_yet() {
        let mut fresh = fixtures::running();
        fresh.status = None;
        let view = JobView {
            job: fresh,
            pods: Vec::new(),
            events: Vec::new(),
        };
        insta::assert_snapshot!(plain(&job(&view, fixtures::now())), @"
        Name:         resnet50
        Namespace:    default
        Labels:       team=vision
        Submitted:    10m ago
        Phase:        Queued
        Command:      python train.py --epochs 90 --note 'two words'
        Shape:        torch, 2 workers with 4 GPUs each, 8 processes in all
        Queue:        vision
        Priority:     standard
        Memory:       chosen when it starts
        Checkpoint:   /ckpt (20Gi, every 15m)
        Retries:      0 of 3 used
        Max duration: 2d
        ");
    }

    #[test]
    fn commands_can_be_typed_again() {
        let words = ["python", "-c", "print('hi')", ""].map(str::to_owned);
        assert_eq!(shell_words(&words), r"python -c 'print('\''hi'\'')' ''");
    }
}

//! `stoke memory JOB`: what a job used of memory against what it may, drawn; and what the next run gets, and why.
//!
//! Everything drawn is what nodes wrote on the job's pods, and what is kept of earlier runs.

mod chart;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use stoke_api::digest::{ContainerDigest, PhaseDigest, PodDigest};
use stoke_api::names::{MEMORY_DIGEST_ANNOTATION, MEMORY_RISK_ANNOTATION};
use stoke_api::profile::PROFILE_VERSION;
use stoke_api::risk::MemoryRisk;
use stoke_api::trainjob::{Attempt, Sizing};
use stoke_api::{Bytes, JobProfile};
use stoke_memory::History;

use self::chart::Chart;
use super::describe::ran;
use super::table::Grid;
use super::{count, top};
use crate::clock;
use crate::jobs::{self, JobView};
use crate::outlook::Next;
use crate::terminal::{BOLD, paint};

/// The attempt of that number, else the latest.
pub fn job(
    view: &JobView,
    profile: Option<&JobProfile>,
    next: &Next,
    number: Option<u32>,
    now: Timestamp,
) -> String {
    let attempts = view.job.status.iter().flat_map(|status| &status.attempts);
    let attempt = match number {
        Some(number) => attempts.rev().find(|attempt| attempt.number == number),
        None => attempts.last(),
    };
    let mut text = match attempt {
        Some(attempt) => of_attempt(view, attempt, now),
        None => format!("{} has not run yet.\n", paint(BOLD, view.job.name())),
    };
    let _ = write!(text, "\n{}", next_run(view, profile, next, now));
    text
}

fn of_attempt(view: &JobView, attempt: &Attempt, now: Timestamp) -> String {
    let pods: Vec<&Pod> = view
        .pods
        .iter()
        .filter(|pod| jobs::attempt_of(pod) == Some(attempt.number))
        .collect();
    let digests: BTreeMap<u32, ContainerDigest> = pods
        .iter()
        .filter_map(|pod| Some((jobs::rank_of(pod)?, digest(pod)?)))
        .collect();
    let mut text = format!(
        "{} attempt {}, {}, {}\n",
        paint(BOLD, view.job.name()),
        attempt.number,
        count(attempt.nodes.len() as u32, "worker", "workers"),
        ran(attempt, now)
    );
    let sizing = attempt.memory.clone().unwrap_or_default();
    let limit = digests
        .values()
        .filter_map(|digest| digest.limit_bytes)
        .max();
    let limit = limit.map_or(sizing.limit, |limit| Bytes(limit).max(sizing.limit));
    let series: Vec<_> = digests.values().map(|digest| &digest.series).collect();
    match Chart::of(&series, sizing.request, limit) {
        Some(chart) => {
            let _ = write!(text, "\n{chart}");
        }
        None if pods.is_empty() => {
            text.push_str("Its pods are gone, and with them what they used.\n");
        }
        None => text.push_str("What it used over time is told by its node when its workers end.\n"),
    }
    let phases = phases(digests.values());
    if !phases.is_empty() {
        let _ = write!(text, "\n{}", phases.text());
    }
    let ranks = ranks(&pods, &digests, limit);
    if !ranks.is_empty() {
        let _ = write!(text, "\n{}", ranks.text());
    }
    for line in remarks(&pods, &digests, &sizing, limit) {
        let _ = write!(text, "\n{line}");
    }
    text.push('\n');
    text
}

/// What its worker used from its start to its end.
fn digest(pod: &Pod) -> Option<ContainerDigest> {
    let text = pod.annotations().get(MEMORY_DIGEST_ANNOTATION)?;
    let worker = jobs::worker_container(pod)?;
    let digest = PodDigest::parse(text)?.containers.remove(worker)?;
    (digest.samples > 0).then_some(digest)
}

/// Of all workers, the most of each phase.
fn phases<'a>(digests: impl Iterator<Item = &'a ContainerDigest>) -> Grid {
    let mut all: BTreeMap<&str, PhaseDigest> = BTreeMap::new();
    for (name, phase) in digests.flat_map(|digest| &digest.phases) {
        let known = all.entry(name).or_default();
        known.seconds = known.seconds.max(phase.seconds);
        known.peak_bytes = known.peak_bytes.max(phase.peak_bytes);
        known.median_bytes = known.median_bytes.max(phase.median_bytes);
    }
    let mut grid = Grid::with_head(&["PHASE", "TIME", "HALF THE TIME", "PEAK"]);
    for (name, phase) in all {
        grid.push(vec![
            name.to_owned(),
            clock::short(phase.seconds),
            Bytes(phase.median_bytes).human(),
            Bytes(phase.peak_bytes).human(),
        ]);
    }
    grid
}

fn ranks(pods: &[&Pod], digests: &BTreeMap<u32, ContainerDigest>, limit: Bytes) -> Grid {
    let mut grid = Grid::with_head(&[
        "RANK",
        "NOW",
        "HALF THE TIME",
        "PEAK",
        "OF LIMIT",
        "/DEV/SHM",
        "DISK",
    ]);
    let some = |bytes: Option<u64>| {
        bytes
            .filter(|bytes| *bytes > 0)
            .map_or_else(|| "-".to_owned(), |it| Bytes(it).human())
    };
    for pod in pods {
        let Some(rank) = jobs::rank_of(pod) else {
            continue;
        };
        let digest = digests.get(&rank);
        let usage = top::usage(pod);
        let now = usage.memory.filter(|_| digest.is_none());
        let peak = digest.map(|digest| digest.peak_unreclaimable_bytes).or(now);
        let part = peak
            .filter(|_| limit.0 > 0)
            .map(|it| it as f64 / limit.0 as f64);
        grid.push(vec![
            rank.to_string(),
            some(now),
            some(digest.map(|digest| digest.median_bytes)),
            some(digest.map(|digest| digest.peak_unreclaimable_bytes)),
            part.map_or_else(|| "-".to_owned(), top::percent),
            some(digest.map(|digest| digest.shm_peak_bytes)),
            some(digest.and_then(|digest| digest.storage_peak_bytes)),
        ]);
    }
    grid
}

/// What is not seen in figures.
fn remarks(
    pods: &[&Pod],
    digests: &BTreeMap<u32, ContainerDigest>,
    sizing: &Sizing,
    limit: Bytes,
) -> Vec<String> {
    let mut lines = Vec::new();
    if !sizing.why.is_empty() {
        lines.push(format!("It was given {}.", sizing.why));
    }
    if limit > sizing.limit {
        let (from, to) = (sizing.limit.human(), limit.human());
        lines.push(format!(
            "Its limit was raised while it ran: from {from} to {to}."
        ));
    }
    let killed: Vec<String> = digests
        .iter()
        .filter(|(_, digest)| digest.oom_killed)
        .map(|(rank, _)| rank.to_string())
        .collect();
    if !killed.is_empty() {
        lines.push(format!("Killed at the limit: rank {}.", killed.join(", ")));
    }
    let steepest = digests.values().filter_map(|digest| digest.slope);
    let steepest = steepest.max_by_key(|slope| slope.bytes_per_hour);
    if let Some(slope) = steepest.filter(|slope| slope.bytes_per_hour > 1 << 20) {
        let hour = Bytes(slope.bytes_per_hour.unsigned_abs()).human();
        let step = slope
            .bytes_per_step
            .and_then(|step| u64::try_from(step).ok());
        let step = step.map_or_else(String::new, |step| {
            format!(", {} a step", Bytes(step).human())
        });
        lines.push(format!("It grew by {hour} an hour{step}."));
    }
    let risks = pods.iter().filter_map(|pod| {
        let risk = MemoryRisk::parse(pod.annotations().get(MEMORY_RISK_ANNOTATION)?)?;
        Some(format!("Rank {}: {}.", jobs::rank_of(pod)?, risk.why))
    });
    lines.extend(risks);
    lines
}

/// What is known of runs like it, and what that means for the next.
fn next_run(view: &JobView, profile: Option<&JobProfile>, next: &Next, now: Timestamp) -> String {
    let mut text = format!("{}\n", paint(BOLD, "The next run"));
    let spec = &view.job.spec;
    let known = profile.filter(|profile| profile.spec.version == PROFILE_VERSION);
    if let Some(profile) = profile.filter(|_| known.is_none()) {
        let (name, version) = (profile.name_any(), profile.spec.version);
        let _ = writeln!(
            text,
            "  {name} is of version {version}, which this stoke does not read; it is left alone"
        );
    }
    let history = known.map(|profile| History::of(&profile.spec.history));
    let history = history.unwrap_or_default();
    let is_said = spec.memory.as_ref().is_some_and(|it| it.limit.is_some());
    match &next.run {
        Err(wrong) => {
            let _ = writeln!(text, "  cannot be sized: {wrong}");
        }
        Ok(_) if next.hides_nodes && !is_said && history.runs().is_empty() => {
            text.push_str(
                "  gets its share of a node, and you may not see nodes: no run like it has ended yet\n",
            );
        }
        Ok(run) if run.memory.limit.0 == 0 => {
            let _ = writeln!(text, "  has no size yet: {}", run.memory.why);
        }
        Ok(run) => {
            let (request, limit) = (run.memory.request.human(), run.memory.limit.human());
            let _ = writeln!(
                text,
                "  gets {request} of memory promised and {limit} at most"
            );
            let _ = writeln!(text, "  because: {}", run.memory.why);
            if let Some(max) = run.memory_max {
                let _ = writeln!(
                    text,
                    "  and up to {} while it runs, where its node has it to spare",
                    max.human()
                );
            }
        }
    }
    if let Some(profile) = known {
        let runs = history.runs();
        let peaks = || runs.iter().map(|run| run.peak);
        let last = profile.spec.last_run.as_ref();
        let last = last.map(|at| format!(", the last {} ago", clock::ago(at.0, now)));
        let _ = write!(
            text,
            "  {}: {}{}",
            profile.name_any(),
            count(profile.spec.runs, "run", "runs"),
            last.unwrap_or_default()
        );
        if let (Some(least), Some(most)) = (peaks().min(), peaks().max()) {
            let _ = write!(text, ", peaks {} to {}", least.human(), most.human());
        }
        text.push('\n');
    }
    let status = view.job.status.as_ref();
    let status = status.filter(|status| !status.phase.is_final() && !status.changes.is_empty());
    if let Some(status) = status {
        let changes = status.changes.join(", and ");
        let _ = writeln!(
            text,
            "  and its next attempt {changes}: {}",
            status.changed_for
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixtures;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;
    use stoke_control::{Config, Fingerprint, Listed};

    /// As it is told to who may see nodes.
    fn told(view: &JobView, profile: Option<&JobProfile>) -> String {
        told_with(view, profile, Some(fixtures::node()))
    }

    fn told_with(view: &JobView, profile: Option<&JobProfile>, node: Option<Node>) -> String {
        let hides_nodes = node.is_none();
        let listed = Listed {
            nodes: node.into_iter().collect(),
            profiles: profile.cloned().into_iter().collect(),
            ..Listed::default()
        };
        let config = Config::machine("/usr/bin/stoke".into());
        let next = Next {
            run: listed.next_run(view.job.clone(), &config, fixtures::now()),
            hides_nodes,
        };
        let text = job(view, profile, &next, None, fixtures::now());
        anstream::adapter::strip_str(&text).to_string()
    }

    fn measured(rank: u32, scale: u64) -> Pod {
        let mib = |n: u64| n << 20;
        let series: Vec<u64> = (0..40).map(|i| scale * (100 + 8 * i.min(30))).collect();
        let digest = json!({"containers": {"worker": {
            "samples": 160, "seconds": 160, "medianBytes": mib(scale * 260), "peakUnreclaimableBytes": mib(scale * 350),
            "shmPeakBytes": mib(12), "limitBytes": mib(8192),
            "series": {"everySeconds": 4, "mib": series},
            "phases": {"load": {"seconds": 20, "peakBytes": mib(scale * 140), "medianBytes": mib(scale * 120)},
                "train": {"seconds": 140, "peakBytes": mib(scale * 350), "medianBytes": mib(scale * 300)}},
            "slope": {"bytesPerHour": mib(5000), "bytesPerStep": mib(2)},
        }}});
        let mut pod = fixtures::pod(2, rank, 0);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(MEMORY_DIGEST_ANNOTATION.to_owned(), digest.to_string());
        pod
    }

    fn profile(version: u32) -> JobProfile {
        let run = |key: &str, mib: u64| json!({"key": key, "at": 1_800_000_000_u64, "seconds": 160, "peak": format!("{mib}Mi"), "median": "300Mi"});
        let name = Fingerprint::of(&fixtures::running()).name;
        serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "JobProfile", "metadata": {"name": name, "namespace": "default"},
            "spec": {"version": version, "fingerprint": "0123456789abcdef", "runs": 2, "peak": "7000Mi", "lastRun": "2026-11-15T10:00:00Z",
                "history": [run("a/1", 6900), run("b/1", 7000)]},
        }))
        .expect("a profile")
    }

    #[test]
    fn a_job_whose_workers_have_ended_is_drawn() {
        let mut view = fixtures::view(fixtures::running());
        view.pods = vec![measured(0, 10), measured(1, 20)];
        insta::assert_snapshot!(told(&view, Some(&profile(1))));
    }

    #[test]
    fn what_is_not_known_is_said() {
        let running = fixtures::view(fixtures::running());
        let text = told_with(&running, None, None);
        assert!(
            text.contains("told by its node when its workers end"),
            "{text}"
        );
        assert!(text.contains("no run like it has ended yet"), "{text}");
        let queued = told(&fixtures::view(fixtures::queued()), Some(&profile(9)));
        assert!(queued.contains("has not run yet"), "{queued}");
        assert!(queued.contains("is of version 9"), "{queued}");
        assert!(
            queued.contains("4 of 8 GPUs' share of the node's 64 GiB"),
            "{queued}"
        );
    }

    #[test]
    fn what_an_attempt_before_ran_out_of_is_not_what_is_told() {
        let mut job = fixtures::running();
        let status = job.status.as_mut().expect("a status");
        status.tuning.memory = Some(Bytes::gib(20));
        status.changes = vec!["a memory limit of 20 GiB".to_owned()];
        let text = told(&fixtures::view(job), Some(&profile(1)));
        let next = text.split("The next run").nth(1).unwrap_or_default();
        assert!(next.contains("20 GiB at most"), "{next}");
        assert!(next.contains("since it ran out of 8.0 GiB"), "{next}");
    }
}

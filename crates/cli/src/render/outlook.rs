//! What the scheduler would do, and why a job waits, in words.

use std::fmt::Write as _;

use jiff::Timestamp;
use stoke_control::{Start, Verdict, Yield};
use stoke_sched::Wait;

use super::count;
use crate::clock;
use crate::terminal::{BOLD, CYAN, RED, YELLOW, paint};

/// What would become of each job, in a few lines.
pub fn verdicts(verdicts: &[Verdict], now: Timestamp) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let job = paint(BOLD, &verdict.job);
        let _ = match (&verdict.problem, &verdict.start) {
            (Some(problem), _) => {
                writeln!(text, "{job} {}: {problem}", paint(RED, "could not run"))
            }
            (None, Some(start)) => {
                let when = if verdict.room_from.is_empty() {
                    " now"
                } else {
                    ""
                };
                let would = format!("would start{when}");
                writeln!(text, "{job} {} on {}", paint(CYAN, would), place(start))
            }
            (None, None) => {
                let why = verdict
                    .wait
                    .as_ref()
                    .map(|wait| format!(": {}", wait.constraint));
                let would = paint(YELLOW, "would wait");
                writeln!(text, "{job} {would}{}", why.unwrap_or_default())
            }
        };
        for fetch in verdict.start.iter().flat_map(|start| &start.data) {
            let _ = writeln!(text, "  {fetch}");
        }
        for yielding in &verdict.room_from {
            let _ = writeln!(text, "  when {}", gives_room(yielding));
        }
        if let Some(wait) = verdict.wait.as_ref().filter(|_| verdict.start.is_none()) {
            for line in standing(wait, now).into_iter().chain(remedies(wait)) {
                let _ = writeln!(text, "  {line}");
            }
        }
    }
    text
}

/// `node-a x2 (GPUs 0,1 and 2,3), node-b`
fn place(start: &Start) -> String {
    let mut nodes: Vec<(&str, Vec<String>)> = Vec::new();
    for (rank, node) in start.nodes.iter().enumerate() {
        let devices = start
            .devices
            .get(rank)
            .filter(|devices| !devices.is_empty());
        let devices = devices.map_or_else(String::new, |devices| {
            let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
            devices.join(",")
        });
        match nodes.last_mut() {
            Some((last, workers)) if last == node => workers.push(devices),
            _ => nodes.push((node, vec![devices])),
        }
    }
    let told = nodes.into_iter().map(|(node, workers)| {
        let times = match workers.len() {
            1 => String::new(),
            n => format!(" x{n}"),
        };
        let devices: Vec<String> = workers.into_iter().filter(|it| !it.is_empty()).collect();
        match devices.as_slice() {
            [] => format!("{node}{times}"),
            [one] if !one.contains(',') => format!("{node}{times} (GPU {one})"),
            many => format!("{node}{times} (GPUs {})", many.join(" and ")),
        }
    });
    told.collect::<Vec<_>>().join(", ")
}

fn gives_room(yielding: &Yield) -> String {
    let Yield { job, workers, why } = yielding;
    match workers {
        0 => format!("{job} was preempted: {why}"),
        n => format!(
            "{job} went on with {}: {why}",
            count(*n, "worker", "workers")
        ),
    }
}

/// Where a job stands in line, and until when.
pub fn standing(wait: &Wait, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    if wait.ahead > 0 {
        let ahead = count(wait.ahead, "job is", "jobs are");
        lines.push(match &wait.queue {
            Some(queue) => format!("{ahead} before it in queue {queue}"),
            None => format!("{ahead} before it"),
        });
    }
    if let Some(start) = &wait.start {
        let at = start.at.strftime("%Y-%m-%d %H:%M UTC");
        let after = start.after.as_ref();
        let after = after.map_or_else(String::new, |job| format!(", when {job} has ended"));
        let within = clock::between(now, start.at);
        lines.push(format!("it should start within {within}, by {at}{after}"));
    }
    lines
}

/// What would let it start, each alone.
pub fn remedies(wait: &Wait) -> Vec<String> {
    let told = |remedy| format!("it would start now with {remedy}");
    wait.helps.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_api::Bytes;
    use stoke_sched::{Claim, Constraint, Estimate, Fetch, JobId, Remedy};

    fn verdict(job: &str) -> Verdict {
        Verdict {
            job: JobId::new(job),
            start: None,
            room_from: Vec::new(),
            wait: None,
            problem: None,
        }
    }

    fn start(nodes: &[&str], devices: &[&[u32]]) -> Option<Start> {
        Some(Start {
            nodes: nodes.iter().map(ToString::to_string).collect(),
            devices: devices.iter().map(|devices| devices.to_vec()).collect(),
            data: Vec::new(),
        })
    }

    #[test]
    fn each_verdict_is_told() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().expect("a time");
        let wait = Wait {
            job: JobId::new("ns/waits"),
            queue: Some("vision".to_owned()),
            ahead: 2,
            constraint: Constraint::RoomKept {
                for_job: JobId::new("ns/big"),
            },
            helps: vec![Remedy::FewerWorkers { workers: 1 }],
            start: Some(Estimate {
                at: "2026-11-15T12:25:00Z".parse().expect("a time"),
                after: Some(JobId::new("ns/other")),
            }),
        };
        let told = verdicts(
            &[
                Verdict {
                    start: start(&["a", "a", "b"], &[&[0, 1], &[2, 3], &[]]),
                    ..verdict("ns/starts")
                },
                Verdict {
                    start: Some(Start {
                        nodes: vec!["a".to_owned(), "b".to_owned()],
                        devices: Vec::new(),
                        data: vec![Fetch {
                            dataset: "imagenet".to_owned(),
                            size: Some(Bytes::gib(150)),
                            warm: vec!["a".to_owned()],
                            cold: vec!["b".to_owned()],
                        }],
                    }),
                    ..verdict("ns/reads")
                },
                Verdict {
                    start: start(&["a"], &[&[2]]),
                    room_from: vec![
                        Yield {
                            job: JobId::new("ns/exp"),
                            workers: 0,
                            why: Claim::Priority,
                        },
                        Yield {
                            job: JobId::new("ns/elastic"),
                            workers: 2,
                            why: Claim::Surplus,
                        },
                    ],
                    ..verdict("ns/production")
                },
                Verdict {
                    wait: Some(wait),
                    ..verdict("ns/waits")
                },
                Verdict {
                    problem: Some("spec.command: say what to run".to_owned()),
                    ..verdict("ns/broken")
                },
            ],
            now,
        );
        insta::assert_snapshot!(anstream::adapter::strip_str(&told), @"
        ns/starts would start now on a x2 (GPUs 0,1 and 2,3), b
        ns/reads would start now on a, b
          imagenet (150 GiB) is on a already and is copied to b
        ns/production would start on a (GPU 2)
          when ns/exp was preempted: it is more important
          when ns/elastic went on with 2 workers: it waits, and the gang can do with fewer workers
        ns/waits would wait: there is room, but it is kept for ns/big, which goes first
          2 jobs are before it in queue vision
          it should start within 25m, by 2026-11-15 12:25 UTC, when ns/other has ended
          it would start now with 1 worker
        ns/broken could not run: spec.command: say what to run
        ");
    }
}

//! Nobody waits for ever.
//!
//! Let every job that runs end within `LONGEST`, and let `patience` be the policy's. A job that could run on the idle cluster, with `k` jobs
//! of its queue older than it and `q` queues, starts within `(k + 1) * (patience + q * (LONGEST + 1))`, however many come after it and
//! however important they are: each of the older ones and the job itself waits at most `patience` for its turn to be the queue's oldest that goes
//! first, and then for at most one such job of every queue, each of which has room reserved and gets it when all have ended that ran before.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stoke_api::Span;
use stoke_api::trainjob::Priority;
use stoke_sched::{Decision, Job, JobId, Policy};

use crate::site::*;

const LONGEST: i64 = 20;
const PATIENCE: i64 = 30;
const TEAMS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
struct Victim {
    team: usize,
    priority: Priority,
    workers: u32,
    gpus: u32,
}

fn simulate(teams: usize, subjects: &[Victim], stream: &[(usize, u32, i64, bool)]) {
    let policy = Policy {
        patience: Span::minutes(PATIENCE as u64),
        ..Policy::default()
    };
    let nodes = (0..3).map(|i| node(&format!("n{i}"), A100, 4));
    let mut site = Site::new(policy, nodes);
    site.set_queues(
        TEAMS[..teams]
            .iter()
            .map(|name| (*name, queue(None, "", ""))),
    );
    let team = |team: usize| Some(TEAMS[team % teams].to_owned());
    let mut ends: BTreeMap<JobId, i64> = BTreeMap::new();
    let mut waits_until: BTreeMap<JobId, i64> = BTreeMap::new();
    let mut lengths: BTreeMap<JobId, i64> = BTreeMap::new();
    for (i, subject) in subjects.iter().enumerate() {
        let name = format!("subject{i}");
        let queue = team(subject.team);
        let older = subjects[..i]
            .iter()
            .filter(|older| team(older.team) == queue)
            .count() as i64;
        let bound = (older + 1) * (PATIENCE + teams as i64 * (LONGEST + 1));
        waits_until.insert(id(&name), bound);
        lengths.insert(id(&name), LONGEST);
        site.submit(Job {
            queue,
            priority: subject.priority,
            limit: minutes(LONGEST as u64),
            ..job(&name, gang(subject.workers, subject.gpus), 0)
        });
    }
    let last = waits_until.values().max().copied().unwrap_or(0);
    for minute in 0..=last {
        let over: Vec<JobId> = ends
            .iter()
            .filter(|(_, end)| **end <= minute)
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            ends.remove(&id);
            site.end(&id);
        }
        site.obey(at(minute));
        // More comes than the cluster can do, all of it more important or in another queue.
        for (i, (which, gpus, length, production)) in stream.iter().enumerate() {
            let name = format!("stream{minute}-{i}");
            lengths.insert(id(&name), *length);
            let ready = site.waiting.len() < 40;
            if ready {
                site.submit(Job {
                    queue: team(*which),
                    priority: if *production {
                        Priority::Production
                    } else {
                        Priority::Standard
                    },
                    limit: minutes(*length as u64),
                    ..job(&name, gang(1, *gpus), minute.max(1))
                });
            }
        }
        for decision in site.cycle(at(minute)) {
            if let Decision::Start { job, .. } = decision {
                ends.insert(job.clone(), minute + lengths[&job]);
                waits_until.remove(&job);
            }
        }
        ends.retain(|id, _| site.running.contains_key(id));
        for (id, until) in &waits_until {
            assert!(
                minute <= *until,
                "{id} should have started by minute {until}"
            );
        }
    }
    assert!(waits_until.is_empty());
}

fn any_subject() -> impl Strategy<Value = Victim> {
    (
        0..3_usize,
        prop_oneof![Just(Priority::Experiment), Just(Priority::Standard)],
        1..4_u32,
        1..5_u32,
    )
        .prop_map(|(team, priority, workers, gpus)| Victim {
            team,
            priority,
            workers,
            gpus,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_job_starts_within_the_bound(
        teams in 1..4_usize,
        subjects in prop::collection::vec(any_subject(), 1..4),
        stream in prop::collection::vec((0..3_usize, 1..5_u32, 1..=LONGEST, any::<bool>()), 1..4),
    ) {
        simulate(teams, &subjects, &stream);
    }
}

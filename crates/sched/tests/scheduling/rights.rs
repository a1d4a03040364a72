//! A guarantee is a right: who claims it has room, or others were asked to make it, after one cycle.

use proptest::prelude::*;
use stoke_api::Span;
use stoke_api::trainjob::Priority;
use stoke_sched::{Change, Constraint, Job, Policy};

use crate::promises::any_priority;
use crate::site::*;

const TEAMS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Event {
    Submit {
        team: usize,
        priority: Priority,
        workers: u32,
    },
    End(u8),
    Obey,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..3_usize, any_priority(), 1..4_u32)
            .prop_map(|(team, priority, workers)| Event::Submit { team, priority, workers }),
        2 => any::<u8>().prop_map(Event::End),
        2 => Just(Event::Obey),
    ]
}

/// GPUs that a team's jobs hold and will keep, and those that are on their way to them.
fn claimed(site: &Site, team: &str) -> u32 {
    let of_team = |job: &Job| job.queue.as_deref() == Some(team);
    let running = site.running.values();
    let stays = running.filter(|running| of_team(&running.job) && running.change != Change::Yields);
    let coming = site
        .waiting
        .values()
        .filter(|job| of_team(job) && is_coming(site, job));
    stays
        .map(|running| running.plan.nodes.len() as u32)
        .sum::<u32>()
        + coming.map(|job| job.gang.workers).sum::<u32>()
}

fn is_coming(site: &Site, job: &Job) -> bool {
    let wait = site.scheduler.waits(&job.id).expect("it waits");
    matches!(wait.constraint, Constraint::Coming { .. })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    /// Every node has one GPU, so that room for some is room for any.
    #[test]
    fn a_guarantee_is_given_or_being_given_back_after_one_cycle(
        guarantees in prop::array::uniform3(0..5_u32),
        spare in 0..4_u32,
        events in prop::collection::vec(any_event(), 1..40),
    ) {
        check(guarantees, spare, &events);
    }
}

fn check(guarantees: [u32; 3], spare: u32, events: &[Event]) {
    let nodes = guarantees.iter().sum::<u32>() + spare;
    let policy = Policy {
        patience: Span::hours(10_000),
        ..Policy::default()
    };
    let mut site = Site::new(policy, (0..nodes).map(|i| node(&format!("n{i}"), A100, 1)));
    let specs = TEAMS.iter().zip(guarantees);
    site.set_queues(specs.map(|(name, count)| (*name, queue(None, &format!("any={count}"), ""))));
    let mut number = 0;
    for (minute, event) in (0..).zip(events) {
        match event {
            Event::Submit {
                team,
                priority,
                workers,
            } => {
                number += 1;
                site.submit(Job {
                    queue: Some(TEAMS[*team].to_owned()),
                    priority: *priority,
                    ..job(&format!("j{number}"), gang(*workers, 1), minute)
                });
            }
            Event::End(which) => {
                let count = site.running.len().max(1);
                let ended = site
                    .running
                    .keys()
                    .nth(usize::from(*which) % count)
                    .cloned();
                if let Some(ended) = ended {
                    site.end(&ended);
                }
            }
            Event::Obey => site.obey(at(minute)),
        }
        site.cycle(at(minute));
        for (team, guaranteed) in TEAMS.iter().zip(guarantees) {
            let claimed = claimed(&site, team);
            let waiting = site.waiting.values();
            let waiting = waiting.filter(|job| job.queue.as_deref() == Some(*team));
            for job in waiting.filter(|job| !is_coming(&site, job)) {
                assert!(
                    claimed + job.gang.workers > guaranteed,
                    "{} waits, though {team} has {claimed} of {guaranteed}: {}",
                    job.id,
                    site.scheduler.waits(&job.id).expect("it waits"),
                );
            }
        }
    }
}

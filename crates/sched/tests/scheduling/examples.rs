//! One example a rule.

use stoke_api::Span;
use stoke_api::trainjob::{Priority, Spot};
use stoke_sched::{Job, Policy, QueueFault, Scheduler};

use crate::site::*;

fn in_queue(queue: &str, job: Job) -> Job {
    Job {
        queue: Some(queue.to_owned()),
        ..job
    }
}

fn experiment(job: Job) -> Job {
    Job {
        priority: Priority::Experiment,
        ..job
    }
}

fn production(job: Job) -> Job {
    Job {
        priority: Priority::Production,
        ..job
    }
}

fn limited(job: Job, limit: u64) -> Job {
    Job {
        limit: minutes(limit),
        ..job
    }
}

fn one_node(gpus: u32) -> Site {
    Site::new(Policy::default(), [node("n1", A100, gpus)])
}

/// Two queues with four GPUs each, and a cluster of eight.
fn two_teams() -> Site {
    let mut site = Site::new(
        Policy::default(),
        [node("n1", A100, 4), node("n2", A100, 4)],
    );
    site.set_queues([
        ("red", queue(None, "any=4", "")),
        ("blue", queue(None, "any=4", "")),
    ]);
    site
}

#[test]
fn without_queues_the_important_go_first_and_then_the_older() {
    let mut site = one_node(3);
    site.submit(experiment(job("old-experiment", gang(1, 1), 0)));
    site.submit(job("young", gang(1, 1), 5));
    site.submit(job("old", gang(1, 1), 3));
    site.submit(production(job("production", gang(1, 1), 9)));
    insta::assert_snapshot!(told(&site.cycle(at(10))), @r"
    start production on n1
    start old on n1
    start young on n1
    ");
    assert_eq!(site.cycle(at(10)), []);
}

#[test]
fn who_comes_later_starts_only_where_the_first_is_not_delayed() {
    let mut site = Site::new(
        Policy::default(),
        [node("n1", A100, 4), node("n2", A100, 4)],
    );
    site.submit(limited(job("runs", gang(1, 3), 0), 60));
    site.cycle(at(0));
    site.submit(limited(job("head", gang(2, 4), 1), 60));
    site.submit(limited(job("too-long", gang(1, 1), 2), 90));
    site.submit(limited(job("short", gang(1, 1), 3), 50));
    site.submit(limited(job("no-limit", gang(1, 4), 4), 600));
    insta::assert_snapshot!(told(&site.cycle(at(5))), @"start short on n1");
    insta::assert_snapshot!(site.scheduler.explain(&id("too-long"), at(5)).unwrap(), @"there is room, but it is kept for head, which goes first; 1 ahead of it; it should start by 1970-01-01T02:00:00Z, when head has ended; it would start with 2 more nodes like n1");
    insta::assert_snapshot!(site.scheduler.explain(&id("head"), at(5)).unwrap(), @"room for 1 of 2 workers with 4 GPUs, 1 CPU and 4.0 GiB of memory each; 2 nodes: 1 lacks free GPUs; it starts when enough of the work that runs has ended; it should start by 1970-01-01T01:00:00Z, when runs has ended; it would start with 1 worker, or with 1 more node like n1");
    site.end(&id("runs"));
    site.end(&id("short"));
    insta::assert_snapshot!(told(&site.cycle(at(60))), @"start head on n1 n2");
}

#[test]
fn what_is_guaranteed_is_lent_and_taken_back() {
    let mut site = two_teams();
    for name in ["b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"] {
        site.submit(in_queue("blue", job(name, gang(1, 1), 0)));
    }
    assert_eq!(site.cycle(at(0)).len(), 8, "blue borrows what red leaves");
    site.submit(in_queue("red", job("r1", gang(1, 2), 1)));
    insta::assert_snapshot!(told(&site.cycle(at(30))), @"preempt b1 b2 for r1: queue red takes back what it is guaranteed");
    assert_eq!(site.cycle(at(30)), [], "they are asked once");
    insta::assert_snapshot!(site.scheduler.waits(&id("r1")).unwrap(), @"b1 and 1 more make room for it");
    site.obey(at(99));
    insta::assert_snapshot!(told(&site.cycle(at(31))), @"start r1 on n1");
    insta::assert_snapshot!(site.scheduler.waits(&id("b1")).unwrap(), @"no room for a worker with 1 GPU, 1 CPU and 4.0 GiB of memory; 2 nodes: 2 lack free GPUs; it starts when enough of the work that runs has ended");
}

#[test]
fn production_does_not_borrow_what_is_guaranteed_to_others() {
    let mut site = two_teams();
    for name in ["p1", "p2", "p3"] {
        site.submit(in_queue("blue", production(job(name, gang(1, 2), 0))));
    }
    insta::assert_snapshot!(told(&site.cycle(at(0))), @r"
    start p1 on n1
    start p2 on n1
    ");
    insta::assert_snapshot!(site.scheduler.explain(&id("p3"), at(0)).unwrap(), @"queue blue is guaranteed 4 GPUs and uses 4; this job asks for 2, and production jobs do not borrow what is guaranteed to others; it would start with a guarantee of 6 (any) for queue blue");
}

#[test]
fn production_takes_the_room_of_who_loses_least() {
    let mut site = one_node(4);
    site.submit(job("standard", gang(1, 1), 0));
    site.submit(Job {
        gang: std::sync::Arc::new(stoke_sched::Gang {
            spot: Spot::Never,
            ..gang(1, 1)
        }),
        ..experiment(job("minds-spot", gang(1, 1), 0))
    });
    site.submit(experiment(job("unsaved", gang(1, 1), 0)));
    site.submit(experiment(job("saved", gang(1, 1), 0)));
    site.cycle(at(0));
    let mut saved = site.running[&id("saved")].clone();
    saved.saved_at = Some(at(59));
    site.run(saved);
    site.submit(production(job("p1", gang(1, 1), 60)));
    insta::assert_snapshot!(told(&site.cycle(at(60))), @"preempt saved for p1: it is more important");
    site.submit(production(job("p2", gang(1, 1), 61)));
    insta::assert_snapshot!(told(&site.cycle(at(61))), @"preempt unsaved for p2: it is more important");
    site.submit(production(job("p3", gang(1, 3), 62)));
    assert_eq!(site.cycle(at(62)), [], "two at most could make room");
    site.obey(at(99));
    insta::assert_snapshot!(told(&site.cycle(at(63))), @r"
    start p1 on n1
    start p2 on n1
    ");
}

#[test]
fn where_nothing_is_guaranteed_production_waits_for_room_only() {
    let mut site = one_node(2);
    site.submit(production(job("p1", gang(1, 2), 0)));
    site.submit(production(job("p2", gang(1, 2), 1)));
    site.cycle(at(1));
    let wait = site.scheduler.waits(&id("p2")).expect("it waits");
    assert_eq!(wait.reason(), stoke_api::Reason::InsufficientCapacity);
}

#[test]
fn standard_jobs_preempt_nobody_where_nothing_is_guaranteed() {
    let mut site = one_node(1);
    site.submit(experiment(job("experiment", gang(1, 1), 0)));
    site.cycle(at(0));
    site.submit(job("standard", gang(1, 1), 1));
    assert_eq!(site.cycle(at(1)), []);
}

#[test]
fn within_its_guarantee_a_queue_gives_the_important_what_it_has() {
    let mut site = two_teams();
    for name in ["e1", "e2", "e3", "e4"] {
        site.submit(in_queue("red", experiment(job(name, gang(1, 1), 0))));
        site.submit(in_queue(
            "blue",
            job(&name.replace('e', "b"), gang(1, 1), 0),
        ));
    }
    site.cycle(at(0));
    site.submit(in_queue("red", job("r", gang(1, 1), 1)));
    insta::assert_snapshot!(told(&site.cycle(at(1))), @"preempt e1 for r: it is more important");
}

#[test]
fn siblings_get_shares_by_weight_and_past_use_counts() {
    let mut site = one_node(6);
    site.set_queues([
        (
            "heavy",
            stoke_api::QueueSpec {
                weight: 2,
                ..queue(None, "", "")
            },
        ),
        ("light", queue(None, "", "")),
    ]);
    for i in 0..6 {
        site.submit(in_queue("heavy", job(&format!("h{i}"), gang(1, 1), 0)));
        site.submit(in_queue("light", job(&format!("l{i}"), gang(1, 1), 0)));
    }
    let started = told(&site.cycle(at(0)));
    assert_eq!(started.matches("start h").count(), 4, "{started}");
    assert_eq!(started.matches("start l").count(), 2, "{started}");
    // All of it is over, a day later. Who had more waits.
    let day = 24 * 60;
    site.scheduler.cycle(at(day));
    for name in site.running.keys().cloned().collect::<Vec<_>>() {
        site.end(&name);
    }
    for job in site.waiting.keys().cloned().collect::<Vec<_>>() {
        site.waiting.remove(&job);
        site.scheduler.withdraw(&job);
    }
    site.set_queues([
        ("heavy", queue(None, "", "")),
        ("light", queue(None, "", "")),
    ]);
    site.submit(in_queue("heavy", job("h", gang(1, 6), day)));
    site.submit(in_queue("light", job("l", gang(1, 6), day)));
    insta::assert_snapshot!(told(&site.cycle(at(day))), @"start l on n1");
}

#[test]
fn a_ceiling_holds_for_all_below_and_says_so() {
    let mut site = Site::new(Policy::default(), [node("n1", A100, 8), node("n2", T4, 8)]);
    site.set_queues([
        ("lab", queue(None, "", "a100=2 any=6")),
        ("vision", queue(Some("lab"), "", "")),
        ("speech", queue(Some("lab"), "", "")),
    ]);
    let a100 = |job: Job| Job {
        gang: std::sync::Arc::new(stoke_sched::Gang {
            gpu_types: vec!["a100".to_owned()],
            ..job.gang.as_ref().clone()
        }),
        ..job
    };
    site.submit(in_queue("vision", a100(job("v1", gang(1, 2), 0))));
    site.cycle(at(0));
    site.submit(in_queue("speech", a100(job("s1", gang(1, 1), 1))));
    // It may use either, and there is a limit on one only.
    site.submit(in_queue("speech", job("s2", gang(1, 4), 2)));
    site.submit(in_queue("speech", job("s3", gang(1, 1), 3)));
    insta::assert_snapshot!(told(&site.cycle(at(5))), @"start s2 on n2");
    insta::assert_snapshot!(site.scheduler.explain(&id("s1"), at(5)).unwrap(), @"queue lab may use 2 a100 GPUs and uses 2; this job asks for 1; it would start with a ceiling of 3 (a100) for queue lab and a ceiling of 7 (any) for queue lab");
    insta::assert_snapshot!(site.scheduler.explain(&id("s3"), at(5)).unwrap(), @"queue lab may use 2 a100 GPUs and uses 2; this job asks for 1; 1 ahead in queue speech; it would start with a ceiling of 3 (a100) for queue lab and a ceiling of 7 (any) for queue lab and a ceiling of 4 (a100) for queue lab and a ceiling of 8 (any) for queue lab");
    let standings = site.scheduler.standings();
    insta::assert_json_snapshot!(standings["lab"], @r#"
    {
      "waiting": 0,
      "running": 0,
      "used": {
        "a100": "2",
        "any": "6"
      },
      "share": 0.5
    }
    "#);
}

#[test]
fn a_fault_is_told_of_the_queue_and_everyone_else_goes_on() {
    let mut scheduler = Scheduler::new(Policy::default());
    let faults = scheduler.set_queues(
        [
            ("a", queue(Some("b"), "", "")),
            ("b", queue(Some("a"), "", "")),
            ("below", queue(Some("a"), "", "")),
            ("orphan", queue(Some("nobody"), "", "")),
            ("greedy", queue(None, "a100=4 any=2", "any=5")),
            ("parent", queue(None, "a100=4 any=2", "")),
            ("child", queue(Some("parent"), "a100=5", "")),
            ("other", queue(Some("parent"), "t4=2", "")),
            ("fine", queue(None, "any=2", "any=2")),
        ]
        .map(|(name, spec)| (name.to_owned(), spec)),
    );
    let said: Vec<String> = faults
        .iter()
        .map(|(name, fault)| format!("{name}: {}: {fault}", fault.reason()))
        .collect();
    insta::assert_snapshot!(said.join("\n"), @r"
    a: ParentCycle: it is above itself: a in b in a; change the parent of one of them
    b: ParentCycle: it is above itself: b in a in b; change the parent of one of them
    below: QueueUnusable: queue a above it cannot be used: it is above itself: a in b in a; change the parent of one of them
    child: QueueUnusable: queue parent above it cannot be used: the queues below it are guaranteed 2 GPUs (t4) together, and itself 0; raise its guarantee or lower theirs
    greedy: GuaranteeAboveCeiling: guaranteed are 6 GPUs (any) and the ceiling is 5; raise the ceiling or lower the guarantee
    orphan: ParentNotFound: its parent nobody does not exist; create it, or change spec.parent
    other: QueueUnusable: queue parent above it cannot be used: the queues below it are guaranteed 2 GPUs (t4) together, and itself 0; raise its guarantee or lower theirs
    parent: GuaranteeAboveParent: the queues below it are guaranteed 2 GPUs (t4) together, and itself 0; raise its guarantee or lower theirs
    ");
    assert!(matches!(faults["below"], QueueFault::Above { .. }));
    scheduler.put_node(node("n1", A100, 8));
    scheduler.submit(in_queue("orphan", job("o", gang(1, 1), 0)));
    scheduler.submit(in_queue("missing", job("m", gang(1, 1), 0)));
    scheduler.submit(in_queue("fine", job("f", gang(1, 1), 0)));
    insta::assert_snapshot!(told(&scheduler.cycle(at(1))), @"start f on n1");
    insta::assert_snapshot!(scheduler.waits(&id("o")).unwrap(), @"queue orphan cannot be used: its parent nobody does not exist; create it, or change spec.parent");
    insta::assert_snapshot!(scheduler.waits(&id("m")).unwrap(), @"queue missing does not exist; create it, or change spec.queue");
}

#[test]
fn the_oldest_goes_first_once_it_has_waited_for_long() {
    let policy = Policy {
        patience: Span::hours(1),
        ..Policy::default()
    };
    let mut site = Site::new(policy, [node("n1", A100, 1)]);
    site.submit(job("runs", gang(1, 1), 0));
    site.cycle(at(0));
    site.submit(experiment(job("old", gang(1, 1), 0)));
    site.submit(experiment(job("next", gang(1, 1), 1)));
    site.submit(production(job("production", gang(1, 1), 50)));
    site.end(&id("runs"));
    insta::assert_snapshot!(told(&site.cycle(at(60))), @"start old on n1");
    // One in so long a time: the next is served by its importance.
    site.end(&id("old"));
    insta::assert_snapshot!(told(&site.cycle(at(70))), @"start production on n1");
}

#[test]
fn why_is_told_as_data_too() {
    let mut site = one_node(8);
    site.submit(limited(job("runs", gang(1, 6), 0), 120));
    site.cycle(at(0));
    site.submit(job("waits", gang(4, 2), 1));
    insta::assert_json_snapshot!(site.scheduler.explain(&id("waits"), at(10)), @r#"
    {
      "job": "waits",
      "ahead": 0,
      "constraint": {
        "kind": "room",
        "explanation": "room for 1 of 4 workers with 2 GPUs, 1 CPU and 4.0 GiB of memory each; 1 node; it starts when enough of the work that runs has ended"
      },
      "helps": [
        {
          "kind": "fewerWorkers",
          "workers": 1
        },
        {
          "kind": "moreNodes",
          "like": "n1",
          "count": 1
        }
      ],
      "start": {
        "at": "1970-01-01T02:00:00Z",
        "after": "runs"
      }
    }
    "#);
}

fn elastic(min: u32, max: u32, gpus: u32) -> stoke_sched::Gang {
    stoke_sched::Gang {
        min_workers: Some(min),
        ..gang(max, gpus)
    }
}

#[test]
fn an_elastic_gang_has_what_nobody_waits_for() {
    let mut site = Site::new(
        Policy::default(),
        [node("n1", A100, 4), node("n2", A100, 4)],
    );
    site.submit(job("grows", elastic(2, 6, 1), 0));
    site.submit(job("fixed", gang(1, 4), 1));
    insta::assert_snapshot!(told(&site.cycle(at(1))), @r"
    start grows on n1 n1 n1 n1
    start fixed on n2
    ");
    site.submit(job("later", gang(2, 1), 2));
    insta::assert_snapshot!(told(&site.cycle(at(2))), @"shrink grows to 2 for later: it waits, and the gang can do with fewer workers");
    assert_eq!(site.cycle(at(2)), []);
    site.obey(at(2));
    insta::assert_snapshot!(told(&site.cycle(at(3))), @"start later on n1 n1");
    site.end(&id("fixed"));
    site.end(&id("later"));
    insta::assert_snapshot!(told(&site.cycle(at(4))), @"grow grows onto n2 n2 n2 n2");
    site.obey(at(4));
    assert_eq!(site.running[&id("grows")].plan.nodes.len(), 6);
    // One who has a right takes workers before it takes gangs.
    site.submit(experiment(job("whole", gang(1, 2), 5)));
    site.cycle(at(5));
    site.submit(production(job("p", gang(1, 3), 6)));
    insta::assert_snapshot!(told(&site.cycle(at(6))), @"shrink grows to 3 for p: it is more important");
}

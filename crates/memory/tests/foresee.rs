//! What is said of series that a person would not be in doubt about.

use proptest::prelude::*;
use stoke_api::Bytes;
use stoke_memory::{Earlier, Place, Point, Verdict, Watcher};

/// A step every two seconds, where a series has steps.
const STEP_SECONDS: u64 = 2;

fn gib(amount: f64) -> Bytes {
    Bytes((amount * f64::from(1 << 30)) as u64)
}

/// A sample of a process under a limit of 16 GiB that has `held` and no page cache.
fn plain(held: f64) -> Point<'static> {
    Point {
        anon: gib(held),
        working_set: gib(held),
        limit: Some(Bytes::gib(16)),
        ..Point::default()
    }
}

/// Each verdict once, as it changes.
fn story(watcher: &mut Watcher, points: impl Iterator<Item = Point<'static>>) -> Vec<&'static str> {
    let mut told = Vec::new();
    for (second, point) in points.enumerate() {
        let reason = watcher.observe(1_000_000 + second as u64, &point).reason();
        if told.last() != Some(&reason) {
            told.push(reason);
        }
    }
    told
}

/// Dependable noise: small, and without a pattern that matters.
fn jitter(second: u64) -> f64 {
    (second.wrapping_mul(2_654_435_761) % 1000) as f64 / 1000.0 - 0.5
}

#[test]
fn each_shape_is_called_what_it_is() {
    type Shape = fn(f64) -> f64;
    let table: &[(&str, u64, Shape, &[&str])] = &[
        ("flat", 7200, |_| 6.0, &["TooEarly", "Steady"]),
        (
            "a leak from ten minutes on",
            7200,
            |t| 6.0 + (t - 600.0).max(0.0) * 0.0015,
            &["TooEarly", "Steady", "Climbing", "Leak"],
        ),
        (
            "a sawtooth",
            7200,
            |t| 6.0 + 4.0 * (t / 90.0).fract(),
            &["TooEarly", "Steady"],
        ),
        (
            "a sawtooth that leaks",
            10_000,
            |t| 4.0 + 3.0 * (t / 90.0).fract() + t * 0.0009,
            &["TooEarly", "Steady", "Climbing", "Leak"],
        ),
        (
            "a cache that fills and stops",
            14_400,
            |t| 4.0 + 9.0 * (1.0 - (-t / 1800.0).exp()),
            &["TooEarly", "Steady", "Climbing", "Steady"],
        ),
        (
            "one step",
            7200,
            |t| if t < 3000.0 { 5.0 } else { 12.0 },
            &["TooEarly", "Steady"],
        ),
    ];
    for (name, seconds, shape, expected) in table {
        let points =
            (0..*seconds).map(|second| plain(shape(second as f64) + 0.05 * jitter(second)));
        let told = story(&mut Watcher::new(Place::Host), points);
        assert_eq!(told, *expected, "{name}");
    }
}

/// The last verdict of a series, as a person reads it.
fn last_word(watcher: &mut Watcher, points: impl Iterator<Item = Point<'static>>) -> String {
    let mut last = Verdict::TooEarly;
    for (second, point) in points.enumerate() {
        last = watcher.observe(second as u64, &point);
    }
    last.to_string()
}

#[test]
fn sentences_have_figures() {
    let host = || Watcher::new(Place::Host);
    let leaking = (0..6000_u64).map(|second| Point {
        step: Some(1 + second / STEP_SECONDS),
        ..plain(8.0 + second.saturating_sub(600) as f64 * 0.0012 + 0.02 * jitter(second))
    });
    insta::assert_snapshot!(
        last_word(&mut host(), leaking),
        @"host memory leaks 4.3 GiB an hour, 2.5 MiB a step; full in about 21m (93 % sure)"
    );
    let climbing = (0..2400_u64).map(|second| plain(6.0 + second as f64 * 0.003));
    insta::assert_snapshot!(
        last_word(&mut host(), climbing),
        @"host memory climbs: 13 GiB of 16 GiB used, full in about 16m if it goes on (65 % sure)"
    );
    insta::assert_snapshot!(
        last_word(&mut host(), (0..3000).map(checkpointing)),
        @"steady but for phase checkpoint, which takes 5.0 GiB more, up to 13 GiB, and gives it back"
    );
    insta::assert_snapshot!(
        last_word(&mut host(), (0..600).map(|_| cached(4.5))),
        @"no danger: 15 GiB of 16 GiB used, but only 4.5 GiB of it cannot be taken back; the rest is page cache"
    );
    insta::assert_snapshot!(last_word(&mut host(), (0..600).map(|_| plain(4.5))), @"steady");
    insta::assert_snapshot!(last_word(&mut host(), (0..60).map(|_| plain(4.5))), @"too early to say");
}

/// A checkpoint every ten minutes, which takes 5 GiB for a minute.
fn checkpointing(second: u64) -> Point<'static> {
    let at = second % 600;
    let saves = at >= 540;
    let taken = if saves {
        ((at - 540) as f64 / 40.0).min(1.0) * 5.0
    } else {
        0.0
    };
    Point {
        phase: Some(if saves { "checkpoint" } else { "train" }),
        ..plain(8.0 + taken)
    }
}

/// A working set near the limit that is mostly page cache.
fn cached(held: f64) -> Point<'static> {
    Point {
        file_active: gib(15.2 - held),
        file_inactive: gib(0.3),
        working_set: gib(15.2),
        ..plain(held)
    }
}

#[test]
fn a_phase_that_gives_back_what_it_takes_is_a_spike() {
    let told = story(&mut Watcher::new(Place::Host), (0..6000).map(checkpointing));
    // What the first one is, nobody can know before it ends.
    assert_eq!(told, ["TooEarly", "Steady", "Climbing", "Spike"]);

    // What is kept is not a spike.
    let growing = |second: u64| Point {
        phase: Some(if second < 1200 { "load" } else { "train" }),
        ..plain(4.0 + (second as f64 / 1200.0).min(1.0) * 5.0)
    };
    let told = story(&mut Watcher::new(Place::Host), (0..6000).map(growing));
    assert!(!told.contains(&"Spike"), "{told:?}");
}

#[test]
fn page_cache_is_no_danger_and_hides_none() {
    let full = (0..3600).map(|_| cached(5.0));
    let told = story(&mut Watcher::new(Place::Host), full);
    assert_eq!(told, ["TooEarly", "PageCache"]);

    // The working set is as full all the while; what is held in it leaks.
    let leaking =
        (0..7200_u64).map(|second| cached(8.0 + second.saturating_sub(600) as f64 * 0.001));
    let told = story(&mut Watcher::new(Place::Host), leaking);
    assert_eq!(
        told,
        ["TooEarly", "PageCache", "Steady", "Climbing", "Leak"]
    );
}

#[test]
fn nothing_is_said_from_less_than_it_needs() {
    let flat = |_| plain(5.0);
    let few = story(&mut Watcher::new(Place::Host), (0..239).map(flat));
    assert_eq!(few, ["TooEarly"]);

    // Long, but seven samples.
    let mut watcher = Watcher::new(Place::Host);
    for hour in 0..7 {
        assert_eq!(watcher.observe(hour * 3600, &flat(hour)), Verdict::TooEarly);
    }

    // A minute of a steep climb is no leak yet, wherever it goes.
    let steep = (0..59_u64).map(|second| plain(1.0 + second as f64 * 0.25));
    assert_eq!(story(&mut Watcher::new(Place::Host), steep), ["TooEarly"]);
}

#[test]
fn a_leak_at_each_step_is_seen_within_a_few() {
    // 10 MiB a step, a step a second, 256 MiB at most.
    let mut watcher = Watcher::new(Place::Host);
    let mut said = None;
    for second in 0..150_u64 {
        let held = Bytes::mib(100 + 10 * second.saturating_sub(5));
        if held >= Bytes::mib(256) {
            break;
        }
        let point = Point {
            anon: held,
            limit: Some(Bytes::mib(256)),
            step: Some(second.saturating_sub(5)),
            ..Point::default()
        };
        if let Verdict::Leak { mib_per_step, .. } = watcher.observe(second, &point) {
            said = mib_per_step;
        }
    }
    let rate = said.expect("a leak before it is out of memory");
    assert!((rate - 10.0).abs() < 0.5, "{rate} MiB a step");
}

#[test]
fn clocks_that_jump_make_nothing_worse_than_late() {
    type Clock = fn(u64) -> u64;
    let leak = |second: u64| plain(8.0 + second.saturating_sub(600) as f64 * 0.0013);
    let jumps: [(&str, Clock); 4] = [
        ("back an hour", |second| {
            if second < 2000 { second + 3600 } else { second }
        }),
        ("ahead a year", |second| {
            if second < 2000 {
                second
            } else {
                second + 31_536_000
            }
        }),
        ("stands still for a while", |second| {
            if (2000..2300).contains(&second) {
                2000
            } else {
                second
            }
        }),
        ("to the end of time", |second| {
            if second == 2000 { u64::MAX } else { second }
        }),
    ];
    for (name, clock) in jumps {
        let mut watcher = Watcher::new(Place::Host);
        let mut leaked = None;
        for second in 0..6600 {
            let verdict = watcher.observe(clock(second), &leak(second));
            if let Verdict::Leak { mib_per_hour, .. } = verdict {
                leaked = Some(mib_per_hour);
            }
        }
        let rate = leaked.unwrap_or_else(|| panic!("{name}: not seen"));
        assert!(
            (3600.0..5500.0).contains(&rate),
            "{name}: {rate} MiB an hour"
        );

        let mut watcher = Watcher::new(Place::Host);
        for second in 0..6600 {
            let verdict = watcher.observe(clock(second), &plain(6.0));
            assert!(
                matches!(verdict, Verdict::TooEarly | Verdict::Steady),
                "{name}: {verdict}"
            );
        }
    }
}

#[test]
fn a_new_process_begins_anew() {
    let life = |second: u64| plain(8.0 + second.saturating_sub(600) as f64 * 0.0014);
    // The second process is seen by what it holds, or the caller says so.
    for said in [false, true] {
        let mut watcher = Watcher::new(Place::Host);
        let mut lives = [Vec::new(), Vec::new()];
        for (index, told) in lives.iter_mut().enumerate() {
            for second in 0..6000 {
                let point = if index == 1 && !said && second < 20 {
                    plain(0.2)
                } else {
                    life(second)
                };
                if index == 1 && said && second == 0 {
                    watcher.restart();
                }
                let verdict = watcher.observe(index as u64 * 6000 + second, &point);
                if told.last() != Some(&verdict.reason()) {
                    told.push(verdict.reason());
                }
            }
        }
        let expected = ["TooEarly", "Steady", "Climbing", "Leak"];
        assert_eq!(lives, [expected, expected], "said: {said}");
    }
}

#[test]
fn a_raised_limit_does_not_mend_a_leak() {
    let raised = |second: u64| Point {
        limit: Some(Bytes::gib(if second < 5600 { 16 } else { 24 })),
        ..plain(9.0 + second.saturating_sub(600) as f64 * 0.0012)
    };
    let told = story(&mut Watcher::new(Place::Host), (0..7000).map(raised));
    assert_eq!(told, ["TooEarly", "Steady", "Climbing", "Leak"]);
}

#[test]
fn a_leak_is_seen_without_a_limit() {
    let mut watcher = Watcher::new(Place::Host);
    let mut last = Verdict::TooEarly;
    for second in 0..7200_u64 {
        let point = Point {
            limit: None,
            ..plain(6.0 + second.saturating_sub(600) as f64 * 0.0015)
        };
        last = watcher.observe(second, &point);
    }
    assert!(matches!(last, Verdict::Leak { oom_in: None, .. }), "{last}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_input_is_too_strange(
        points in prop::collection::vec((any::<u64>(), any::<[u64; 6]>(), any::<Option<u64>>(), any::<Option<u64>>(), "[a-z]{0,3}"), 1..300)
    ) {
        let mut watcher = Watcher::new(Place::Gpu(0));
        for (at, bytes, limit, step, phase) in &points {
            let point = Point {
                anon: Bytes(bytes[0]),
                shmem: Bytes(bytes[1]),
                kernel: Bytes(bytes[2]),
                file_active: Bytes(bytes[3]),
                file_inactive: Bytes(bytes[4]),
                working_set: Bytes(bytes[5]),
                limit: limit.map(Bytes),
                step: *step,
                phase: Some(phase),
            };
            let verdict = watcher.observe(*at, &point);
            if let Verdict::Leak { confidence, .. } | Verdict::Climbing { confidence, .. } = verdict {
                prop_assert!((0.0..=1.0).contains(&confidence));
            }
            prop_assert!(verdict.to_string().len() < 200);
        }
    }
}

#[test]
fn a_gpu_leaks_like_a_host() {
    let mut watcher = Watcher::new(Place::Gpu(3));
    let leaking = (0..7200_u64).map(|second| {
        // A caching allocator takes segments of 20 MiB.
        let used = 20_000 + second.saturating_sub(600) / 8 * 20;
        Point::gpu(Bytes::mib(used), Bytes::mib(40_000))
    });
    let told = story(&mut watcher, leaking);
    assert_eq!(told, ["TooEarly", "Steady", "Climbing", "Leak"]);
}

#[test]
fn what_earlier_runs_did_is_no_leak() {
    // A load that takes an hour and is a straight line.
    let load = |t: u64| plain(1.0 + (t as f64 / 3600.0).min(1.0) * 13.0);
    let known = Earlier {
        peak: gib(14.2),
        leaked: false,
    };
    let told = story(
        &mut Watcher::with_earlier(Place::Host, known),
        (0..7200).map(load),
    );
    assert_eq!(told, ["TooEarly", "Steady"]);

    // Where they leaked, the same is said sooner.
    let leak = |second: u64| plain(6.0 + second.saturating_sub(600) as f64 * 0.0015);
    let first_alarm = |mut watcher: Watcher| {
        (0..7200).position(|second| {
            matches!(watcher.observe(second, &leak(second)), Verdict::Leak { .. })
        })
    };
    let leaked = Earlier {
        leaked: true,
        ..known
    };
    let again = first_alarm(Watcher::with_earlier(Place::Host, leaked));
    let fresh = first_alarm(Watcher::new(Place::Host));
    assert!(again.is_some() && again < fresh, "{again:?} and {fresh:?}");
}

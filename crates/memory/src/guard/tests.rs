mod lending;
mod saving;

use super::*;
use proptest::prelude::*;

fn terms(first: u64, max: u64) -> Terms {
    Terms {
        first: first * MIB,
        max: max * MIB,
        expected: None,
        is_promised: false,
        react: Duration::from_secs(3),
        restart_steps: None,
    }
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn sample(used: u64, limit: u64) -> Sample {
    Sample {
        anon: used * MIB,
        usage: used * MIB,
        working_set: used * MIB,
        limit: Some(limit * MIB),
        ..Sample::default()
    }
}

/// It cannot go on for want of memory.
fn held_at(used: u64, limit: u64) -> Sample {
    Sample {
        held: true,
        ..sample(used, limit)
    }
}

fn plenty() -> Room {
    Room {
        free: 1 << 40,
        unpromised: 1 << 40,
    }
}

fn said(action: Option<Action>) -> String {
    action.map_or_else(String::new, |action| action.to_string())
}

/// A container and its kernel: uses what it wants until its limit stops it, under a guard that is asked as often as it likes.
struct World {
    guard: Guard,
    limit: u64,
    /// How long a change of the limit takes.
    delay: u64,
    coming: Vec<(u64, u64)>,
    free: u64,
    actions: Vec<(u64, Action)>,
}

#[derive(Debug, PartialEq)]
enum Fate {
    Lived,
    Killed { at: u64 },
}

impl World {
    fn new(terms: Terms, delay: u64) -> Self {
        Self {
            limit: terms.first,
            guard: Guard::new(terms),
            delay,
            coming: Vec::new(),
            free: 1 << 40,
            actions: Vec::new(),
        }
    }

    /// `wants` is in MiB, at a millisecond.
    fn run(&mut self, millis: u64, wants: impl Fn(u64) -> u64) -> Fate {
        let mut look_at = 0;
        for now in (0..millis).step_by(10) {
            for (_, to) in self.coming.extract_if(.., |(due, _)| *due <= now) {
                self.limit = to;
            }
            let used = wants(now) * MIB;
            if used > self.limit {
                return Fate::Killed { at: now };
            }
            if now < look_at {
                continue;
            }
            let sample = Sample {
                anon: used,
                usage: used,
                limit: Some(self.limit),
                ..Sample::default()
            };
            let room = Room {
                free: self.free.saturating_sub(used),
                unpromised: self.free.saturating_sub(self.limit),
            };
            if let Some(action) = self.guard.observe(at(now), &sample, false, || room) {
                if let Action::Raise { to, .. } | Action::GiveBack { to, .. } = action {
                    assert!(
                        to <= self.guard.terms.max,
                        "never beyond what the job allows"
                    );
                    assert!(
                        to <= self.free || to < self.limit,
                        "never beyond what the node has"
                    );
                    self.coming.push((now.saturating_add(self.delay), to));
                }
                self.actions.push((now, action));
            }
            look_at = now + if self.guard.is_alert() { 100 } else { 1000 };
        }
        Fate::Lived
    }

    fn count(&self, is: impl Fn(&Action) -> bool) -> usize {
        self.actions.iter().filter(|(_, action)| is(action)).count()
    }
}

fn is_raise(action: &Action) -> bool {
    matches!(action, Action::Raise { .. })
}

fn is_ask(action: &Action) -> bool {
    matches!(action, Action::AskCheckpoint { .. })
}

#[test]
fn what_is_said_is_a_sentence_with_its_figures() {
    let mut guard = Guard::new(terms(160, 512));
    assert_eq!(guard.observe(at(0), &sample(100, 160), false, plenty), None);
    let raise = guard.observe(at(1000), &sample(130, 160), false, plenty);
    insta::assert_snapshot!(said(raise), @"it uses 130 MiB and 30 MiB more each second, and would be at its limit of 160 MiB in 1.0 s: the limit is raised to 430 MiB");
    let mut guard = Guard::new(terms(160, 160));
    guard.observe(at(0), &sample(100, 160), false, plenty);
    assert_eq!(
        guard.observe(at(1000), &sample(110, 160), false, plenty),
        None,
        "there is more to save later"
    );
    let ask = guard.observe(at(2000), &sample(120, 160), false, plenty);
    insta::assert_snapshot!(said(ask), @"it uses 120 MiB and 10 MiB more each second, and would be at its limit of 160 MiB in 4.0 s; it may have no more than 160 MiB: it was asked for a checkpoint");
    let mut guard = Guard::new(terms(160, 512));
    let nothing = || Room::default();
    guard.observe(at(0), &sample(100, 160), false, nothing);
    guard.observe(at(1000), &sample(158, 160), false, nothing);
    guard.ask_again();
    let ask = guard.observe(at(2000), &sample(158, 160), false, nothing);
    insta::assert_snapshot!(said(ask), @"it uses 158 MiB of its limit of 160 MiB; its node has no more that is nobody else's: it was asked for a checkpoint");
    guard.refused(at(2000), "the static memory manager".to_owned());
    guard.ask_again();
    let ask = guard.observe(at(3000), &sample(158, 160), false, plenty);
    insta::assert_snapshot!(said(ask), @"it uses 158 MiB of its limit of 160 MiB; its limit cannot be raised: the static memory manager: it was asked for a checkpoint");
}

#[test]
fn a_job_that_grows_from_100_to_450_under_160_is_given_more_in_time() {
    // From a slow leak to a hundred mebibytes a second, with a kubelet that takes its time.
    for per_second in [1, 5, 20, 50, 100] {
        let mut world = World::new(terms(160, 512), 300);
        let wants = |now: u64| (100 + now.saturating_sub(3_000) * per_second / 1000).min(450);
        let fate = world.run(400_000, wants);
        assert_eq!(fate, Fate::Lived, "{per_second} MiB/s: {:?}", world.actions);
        assert!(
            world.count(is_raise) <= 8,
            "{per_second}: {:?}",
            world.actions
        );
        assert!(
            world.count(is_ask) <= 4,
            "{per_second}: {:?}",
            world.actions
        );
    }
}

#[test]
fn a_container_that_stands_still_is_left_alone() {
    for used in [10, 80, 120, 150] {
        let mut world = World::new(terms(160, 512), 300);
        assert_eq!(world.run(100_000, |_| used), Fate::Lived);
        assert_eq!(world.actions, [], "{used}");
    }
    // Up and down again, as garbage collection does, well below the limit.
    let mut world = World::new(terms(600, 1024), 300);
    assert_eq!(world.run(100_000, |now| 200 + now / 100 % 100), Fate::Lived);
    assert_eq!(world.actions, []);
}

#[test]
fn page_cache_is_no_danger() {
    let mut guard = Guard::new(terms(160, 512));
    for second in 0..100 {
        let cached = Sample {
            usage: 160 * MIB,
            working_set: 155 * MIB,
            file_active: 95 * MIB,
            limit_events: second * 50,
            ..sample(60, 160)
        };
        assert_eq!(
            guard.observe(at(second * 1000), &cached, false, plenty),
            None
        );
    }
}

#[test]
fn who_touched_the_limit_between_two_looks_is_raised() {
    let mut guard = Guard::new(terms(160, 512));
    let events = |count| Sample {
        limit_events: count,
        ..sample(90, 160)
    };
    assert_eq!(
        guard.observe(at(0), &events(3), false, plenty),
        None,
        "of before"
    );
    assert_eq!(guard.observe(at(1000), &events(3), false, plenty), None);
    let raise = guard.observe(at(2000), &events(9), false, plenty);
    insta::assert_snapshot!(said(raise), @"it reached its limit of 160 MiB: the limit is raised to 240 MiB");
}

#[test]
fn who_is_held_at_the_limit_is_raised_once_for_each_time() {
    let mut guard = Guard::new(terms(160, 512));
    let held = |limit| held_at(limit, limit);
    assert!(said(guard.observe(at(0), &held(160), false, plenty)).ends_with("raised to 240 MiB"));
    assert_eq!(
        guard.observe(at(100), &held(160), false, plenty),
        None,
        "under way"
    );
    assert!(said(guard.observe(at(200), &held(240), false, plenty)).ends_with("raised to 360 MiB"));
    assert!(said(guard.observe(at(300), &held(360), false, plenty)).ends_with("raised to 512 MiB"));
    let ask = said(guard.observe(at(400), &held(512), false, plenty));
    assert!(ask.contains("no more than 512 MiB"), "{ask}");
}

#[test]
fn growth_that_earlier_runs_had_too_is_no_danger() {
    let loads = |now: u64| (now / 10).min(450);
    let mut world = World::new(terms(500, 1000), 300);
    world.run(60_000, loads);
    assert!(world.count(is_raise) > 0, "as nothing is known of it");
    let expected = Terms {
        expected: Some(450 * MIB),
        ..terms(500, 1000)
    };
    let mut world = World::new(expected, 300);
    world.run(60_000, loads);
    assert_eq!(world.actions, []);
    // A run that was killed at the limit needed more than that, and nobody knows how much.
    let killed_there = Terms {
        expected: Some(256 * MIB),
        ..terms(256, 256)
    };
    let mut world = World::new(killed_there, 300);
    world.run(60_000, |now| 100 + now / 300 * 10);
    assert!(world.count(is_ask) > 0);
}

#[test]
fn a_raise_that_nothing_comes_of_is_followed_by_the_next_best() {
    let mut world = World::new(terms(160, 512), u64::MAX / 2);
    world.run(9_000, |now| (120 + now / 1000 * 4).min(158));
    let order: Vec<&str> = world
        .actions
        .iter()
        .map(|(_, action)| match action {
            Action::Raise { .. } => "raise",
            Action::AskCheckpoint { .. } => "ask",
            _ => "other",
        })
        .collect();
    assert!(order.starts_with(&["raise", "ask"]), "{:?}", world.actions);
    assert_eq!(world.count(is_raise), 1, "not again at once");
}

#[test]
fn a_promised_limit_needs_memory_that_nobody_was_promised() {
    let promised = Terms {
        is_promised: true,
        ..terms(160, 512)
    };
    let held = held_at(160, 160);
    let told = |unpromised: u64| {
        let room = Room {
            free: 1 << 40,
            unpromised: unpromised * MIB,
        };
        said(Guard::new(promised).observe(at(0), &held, false, || room))
    };
    assert!(told(1000).ends_with("raised to 240 MiB"));
    assert!(told(30).ends_with("raised to 190 MiB"));
    assert!(told(2).contains("nobody else's"));
}

#[test]
fn a_limit_that_is_no_whole_page_is_known_again() {
    let kernel = |bytes: u64| bytes - bytes % 4096;
    let held = |limit| Sample {
        held: true,
        limit: Some(kernel(limit)),
        ..sample(900, 0)
    };
    let mut guard = Guard::new(Terms {
        first: 1_000_000_000,
        max: 1_300_000_000,
        ..terms(0, 0)
    });
    let Some(Action::Raise { to, .. }) = guard.observe(at(0), &held(1_000_000_000), false, plenty)
    else {
        panic!("no raise");
    };
    assert!(to <= 1_300_000_000);
    let action = guard.observe(at(500), &held(to), false, plenty);
    let told = said(action);
    assert!(told.contains("it may have no more"), "{told}");
    assert_eq!(guard.asked(), None, "in force");
    // Most that there is need not be whole either.
    let mut guard = Guard::new(terms(160, 512));
    let room = || Room {
        free: 40 * MIB + 12_345,
        unpromised: u64::MAX,
    };
    let stopped = held_at(160, 160);
    let raise = guard.observe(at(0), &stopped, false, room);
    assert!(
        matches!(raise, Some(Action::Raise { to, .. }) if to % PAGE == 0),
        "{raise:?}"
    );
    // Nor what others write: the same limit in other words is no change.
    let mut guard = Guard::new(terms(160, 512));
    let look = |bytes| Sample {
        limit: Some(bytes),
        ..sample(100, 0)
    };
    guard.observe(at(0), &look(160 * MIB), false, plenty);
    guard.observe(at(1000), &look(160 * MIB + 4096), false, plenty);
    assert_eq!(guard.terms().first, 160 * MIB);
}

proptest! {
    #[test]
    fn nothing_is_promised_that_is_not_there(
        first in 1_u64..2000, max in 0_u64..8000, free in 0_u64..9000, is_promised: bool,
        looks in prop::collection::vec((0_u64..5000, 0_u64..8000, any::<bool>(), any::<bool>(), 0_u64..3), 1..200),
    ) {
        let terms = Terms { is_promised, ..terms(first, max) };
        let mut guard = Guard::new(terms);
        let mut limit = first;
        let mut now = 0;
        let mut asks = 0;
        for (pause, wants, held, short, events) in looks {
            now += pause;
            let used = wants.min(limit);
            let look = Sample { held, limit_events: events * now, ..sample(used, limit) };
            let room = Room { free: free.saturating_sub(used) * MIB, unpromised: free.saturating_sub(limit) * MIB };
            match guard.observe(at(now), &look, short, || room) {
                Some(Action::Raise { to, .. }) => {
                    prop_assert!(to <= max.max(first) * MIB && to <= used.max(free) * MIB);
                    prop_assert!(to > limit * MIB);
                    limit = to / MIB;
                }
                Some(Action::GiveBack { to, .. }) => {
                    prop_assert!(to >= first * MIB && to < limit * MIB && to >= used * MIB);
                    limit = to / MIB;
                }
                Some(Action::AskCheckpoint { .. }) => asks += 1,
                Some(Action::Calm) => asks = 0,
                Some(Action::AskInTime { .. }) | None => {}
            }
            prop_assert!(asks <= 12, "asked {asks} times without a calm between");
        }
    }

    #[test]
    fn growth_that_leaves_half_a_second_is_survived(
        base in 20_u64..140, speed in 1_u64..90, until in 150_u64..500, burst in 1_u64..8,
    ) {
        // Half a second to the limit is what a look and a kubelet need.
        let speed = speed.min((160 - base) * 2);
        let mut world = World::new(terms(160, 600), 250);
        // In bursts with pauses, as loaders do.
        let wants = |now: u64| {
            let grown = now.saturating_sub(2_000) / 1000;
            let busy = grown / (burst * 2) * burst + (grown % (burst * 2)).min(burst);
            (base + busy * speed).min(until.max(base))
        };
        let smooth = |now: u64| {
            let (low, high) = (wants(now), wants(now + 1000));
            low + high.saturating_sub(low) * (now % 1000) / 1000
        };
        let fate = world.run(200_000, smooth);
        prop_assert_eq!(fate, Fate::Lived, "{:?}", world.actions);
    }
}

#[test]
fn whose_raises_take_long_is_raised_earlier_and_further() {
    let left_at_raise = |delay: u64| -> Vec<u64> {
        let mut world = World::new(terms(400, 8000), delay);
        let fate = world.run(40_000, |now| 100 + now * 30 / 1000);
        assert_eq!(fate, Fate::Lived, "{:?}", world.actions);
        let raises = world.actions.iter().filter_map(|(_, action)| match action {
            Action::Raise { danger, .. } => match danger.kind {
                Kind::Growing { left, .. } => Some(left.as_secs()),
                _ => None,
            },
            _ => None,
        });
        raises.collect()
    };
    let (quick, slow) = (left_at_raise(200), left_at_raise(2900));
    assert!(quick.iter().all(|left| *left <= 3), "{quick:?}");
    assert!(slow.len() > 1 && slow[0] <= 3, "{slow:?}");
    assert!(
        slow[1..].iter().all(|left| (5..=6).contains(left)),
        "{slow:?}"
    );
}

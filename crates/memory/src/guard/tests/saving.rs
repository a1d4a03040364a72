//! Who cannot be given more is asked to save its work: in time, and not again and again.

use super::*;

/// Asked once, at the step, whatever the clock says; and not taken back before the run is over.
#[test]
fn a_leak_is_asked_for_a_checkpoint_when_its_steps_are_done() {
    let scheduled = || {
        Guard::new(Terms {
            restart_steps: Some(120),
            ..terms(1000, 1000)
        })
    };
    let look = |guard: &mut Guard, second: u64, steps: Option<u64>| {
        guard.has_done(steps);
        said(guard.observe(at(second * 1000), &sample(300, 1000), false, plenty))
    };
    let mut guard = scheduled();
    assert_eq!(look(&mut guard, 0, None), "");
    assert_eq!(look(&mut guard, 5000, Some(119)), "");
    insta::assert_snapshot!(look(&mut guard, 5001, Some(124)), @"it leaks and has done 124 steps, and begins anew every 120, before its memory is full: it was asked for a checkpoint");
    for second in 5002..5100 {
        assert_eq!(look(&mut guard, second, Some(second - 4870)), "", "once");
    }
    guard.ask_again();
    assert!(
        look(&mut guard, 5100, None).contains("has done 229 steps"),
        "the request was lost"
    );
    let mut by_epochs = scheduled();
    for second in 0..=123 {
        let told = look(&mut by_epochs, second, Some(second % 40));
        let is_due = told.contains("has done 120 steps");
        assert_eq!(is_due, second == 123, "{second}: {told}");
    }
    let mut silent = scheduled();
    for second in 0..2000 {
        assert_eq!(look(&mut silent, second, None), "", "it tells no steps");
    }
    let mut unscheduled = Guard::new(terms(1000, 1000));
    assert_eq!(look(&mut unscheduled, 0, Some(1 << 40)), "");
}

#[test]
fn a_leak_under_a_cap_is_asked_for_checkpoints_up_to_the_end_but_not_all_the_time() {
    let mut world = World::new(terms(256, 256), 0);
    let fate = world.run(100_000, |now| 100 + now / 1000 * 10);
    assert_eq!(fate, Fate::Killed { at: 16_000 });
    let asks: Vec<u64> = world.actions.iter().map(|(at, _)| *at).collect();
    assert_eq!(world.count(is_ask), asks.len());
    assert!((2..=5).contains(&asks.len()), "{:?}", world.actions);
    assert!(
        asks[0] >= 9_000,
        "not before there is much to save: {asks:?}"
    );
    assert!(
        asks[asks.len() - 1] >= 13_000,
        "soon before the end: {asks:?}"
    );
}

#[test]
fn who_sits_close_to_its_limit_is_not_asked_to_save_for_that() {
    for jitter in [0, 1, 2] {
        // Under its most, and on a node that has no more.
        for max in [1000, 2000] {
            let mut world = World::new(terms(1000, max), 0);
            world.free = 1000 * MIB;
            let wants = |now: u64| 964 + now / 1000 % 3 * jitter;
            assert_eq!(world.run(3_600_000, wants), Fate::Lived);
            assert_eq!(world.actions, [], "{jitter}");
        }
    }
    // What it had before it may have again, however fast.
    let mut world = World::new(terms(1000, 1000), 0);
    world.run(600_000, |now| 984 - now / 1000 % 3 * 10);
    assert_eq!(world.actions, []);
    // Nor is one that has filled up to there.
    let mut world = World::new(terms(10_000, 10_000), 0);
    world.run(600_000, |now| {
        9_000 + (now.saturating_sub(100_000) / 125).min(600)
    });
    assert_eq!(world.actions, []);
    // Where there is more, it may have it.
    let mut world = World::new(terms(1000, 2000), 0);
    world.run(10_000, |_| 965);
    assert_eq!(world.count(is_raise), 1);
}

#[test]
fn who_creeps_into_its_limit_is_asked_a_minute_before() {
    let mut world = World::new(terms(10_000, 10_000), 0);
    let fate = world.run(3_600_000, |now| 9_000 + now / 1000);
    assert_eq!(fate, Fate::Killed { at: 1_001_000 });
    let first = world.actions.first().map(|(at, _)| *at);
    assert!(
        first.is_some_and(|at| (850_000..941_000).contains(&at)),
        "{:?}",
        world.actions
    );
}

#[test]
fn who_comes_as_far_as_before_is_not_asked_again_at_once() {
    // Up to nine tenths in five seconds, each minute.
    let wave = |now: u64| 400 + (now % 60_000).min(5_000) / 10;
    let mut world = World::new(terms(1000, 1000), 0);
    assert_eq!(world.run(590_000, wave), Fate::Lived);
    assert!(world.count(|action| *action == Action::Calm) >= 1);
    assert!(
        (1..=2).contains(&world.count(is_ask)),
        "{:?}",
        world.actions
    );
    // What it saved long ago is little worth.
    let mut world = World::new(terms(1000, 1000), 0);
    assert_eq!(world.run(3_000_000, wave), Fate::Lived);
    assert!(
        (4..=7).contains(&world.count(is_ask)),
        "{:?}",
        world.actions
    );
}

#[test]
fn who_was_asked_and_raised_since_is_asked_at_its_new_limit() {
    let mut guard = Guard::new(terms(160, 320));
    let held = held_at(160, 160);
    let nothing = || Room::default();
    let ask = guard.observe(at(0), &held, false, nothing);
    assert!(ask.as_ref().is_some_and(is_ask));
    let raise = guard.observe(at(2000), &held, false, plenty);
    assert!(raise.as_ref().is_some_and(is_raise));
    let asked = (3..20_u64).find(|second| {
        let used = 160 + second * 8;
        let action = guard.observe(at(second * 1000), &sample(used, 320), false, plenty);
        action.as_ref().is_some_and(is_ask)
    });
    assert_eq!(asked, Some(10), "with a quarter left");
}

#[test]
fn a_fast_leak_is_asked_in_time_however_it_is_looked_at() {
    let leak = |now: u64| 100 + now / 600 * 10;
    let asks = |terms: Terms, delay: u64, free: u64| {
        let mut world = World::new(terms, delay);
        world.free = free * MIB;
        world.run(100_000, leak);
        let asks = world.actions.iter().filter(|(_, action)| is_ask(action));
        asks.map(|(at, _)| *at).collect::<Vec<u64>>()
    };
    insta::assert_snapshot!(format!("{:?}", asks(terms(256, 256), 0, 1 << 20)), @"[6000, 8000, 9000]");
    insta::assert_snapshot!(format!("{:?}", asks(terms(256, 512), 0, 256)), @"[6000, 7800, 9000]");
    let never = u64::MAX / 2;
    insta::assert_snapshot!(format!("{:?}", asks(terms(256, 512), never, 1 << 20)), @"[8600]");
}

#[test]
fn a_danger_of_before_is_taken_back_if_there_is_none() {
    let mut guard = Guard::new(terms(160, 512));
    guard.was_in_danger();
    for second in 7..22 {
        let action = guard.observe(at(second * 1000), &sample(100, 160), false, plenty);
        assert_eq!(action, None, "{second}");
    }
    let calm = guard.observe(at(22_000), &sample(100, 160), false, plenty);
    assert_eq!(calm, Some(Action::Calm));
    let again = guard.observe(at(60_000), &sample(100, 160), false, plenty);
    assert_eq!(again, None, "once");
}

#[test]
fn a_request_that_was_lost_is_repeated_while_there_is_danger() {
    let held = held_at(160, 160);
    let mut guard = Guard::new(terms(160, 160));
    assert!(is_ask(
        &guard.observe(at(0), &held, false, plenty).expect("an ask")
    ));
    assert_eq!(guard.observe(at(1000), &held, false, plenty), None);
    guard.ask_again();
    assert!(is_ask(
        &guard
            .observe(at(2000), &held, false, plenty)
            .expect("lost, so again")
    ));
    guard.ask_again();
    for second in 3..40 {
        let action = guard.observe(at(second * 1000), &sample(90, 160), false, plenty);
        assert!(!action.as_ref().is_some_and(is_ask), "it is over");
    }
    guard.ask_again();
    assert_eq!(
        guard.observe(at(41_000), &sample(90, 160), false, plenty),
        None
    );
}

//! What was lent is known, kept for a while, and given back.

use super::*;

#[test]
fn what_was_lent_is_given_back_and_kept_longer_if_that_was_too_soon() {
    let mut world = World::new(terms(160, 512), 200);
    // A hump of a minute every five.
    let wants = |now: u64| {
        if now / 1000 % 300 < 60 {
            100 + (now / 20 % 15_000).min(300)
        } else {
            100
        }
    };
    assert_eq!(world.run(3_600_000, wants), Fate::Lived);
    let back: Vec<u64> = world
        .actions
        .iter()
        .filter(|(_, action)| matches!(action, Action::GiveBack { .. }))
        .map(|(at, _)| at / 1000)
        .collect();
    assert!(!back.is_empty() && back[0] < 300, "{back:?}");
    assert!(back.len() <= 5, "less and less often: {back:?}");
    assert!(world.count(is_raise) <= 20);
}

#[test]
fn a_node_that_is_short_gets_back_what_is_not_used() {
    let mut guard = Guard::new(terms(160, 1000));
    guard.observe(at(0), &sample(150, 800), false, plenty);
    for second in 1..20 {
        assert_eq!(
            guard.observe(at(second * 1000), &sample(150, 800), false, plenty),
            None
        );
    }
    let grown = guard.observe(at(20_000), &sample(200, 800), true, plenty);
    assert_eq!(grown, None, "it may go on growing");
    let back = guard.observe(at(25_000), &sample(200, 800), true, plenty);
    insta::assert_snapshot!(said(back), @"it needs 200 MiB by now: the limit is 225 MiB again");
}

#[test]
fn someone_elses_limit_is_not_taken_back() {
    let mut guard = Guard::new(terms(160, 160));
    for second in 0..400 {
        let limit = if second < 50 { 160 } else { 400 };
        let action = guard.observe(at(second * 1000), &sample(100, limit), second > 390, plenty);
        assert_eq!(action, None);
    }
}

#[test]
fn what_was_asked_for_is_lent_already() {
    let held = held_at(160, 160);
    let mut guard = Guard::new(terms(160, 512));
    assert_eq!(guard.lent(), 0);
    guard.observe(at(0), &held, false, plenty);
    assert_eq!(guard.lent(), 80 * MIB, "on its way");
    guard.observe(at(500), &sample(160, 240), false, plenty);
    assert_eq!(guard.lent(), 80 * MIB, "in force");
    let mut refused = Guard::new(terms(160, 512));
    refused.observe(at(0), &held, false, plenty);
    refused.refused(at(100), "no".to_owned());
    assert_eq!(refused.lent(), 0);
    let mut promised = Guard::new(Terms {
        is_promised: true,
        ..terms(160, 512)
    });
    promised.observe(at(0), &held, false, plenty);
    promised.observe(at(500), &sample(160, 240), false, plenty);
    assert_eq!(promised.lent(), 0, "it is its own");
}

/// A guard whose container was lent much, and whose node wants it back, at second 20.
fn giving_back() -> Guard {
    let mut guard = Guard::new(terms(160, 1000));
    for second in 0..20 {
        guard.observe(at(second * 1000), &sample(150, 800), false, plenty);
    }
    let back = guard.observe(at(20_000), &sample(150, 800), true, plenty);
    assert!(matches!(back, Some(Action::GiveBack { .. })), "{back:?}");
    guard
}

#[test]
fn a_give_back_that_comes_to_nothing_is_left_for_a_while_and_raises_go_on() {
    for is_said in [true, false] {
        let mut guard = giving_back();
        if is_said {
            guard.refused(at(20_100), "limits may not be lowered".to_owned());
        }
        let mut tried = Vec::new();
        for second in 21..600 {
            match guard.observe(at(second * 1000), &sample(150, 800), true, plenty) {
                Some(Action::GiveBack { .. }) => tried.push(second),
                other => assert_eq!(other, None),
            }
            if is_said && tried.last() == Some(&second) {
                guard.refused(at(second * 1000), "limits may not be lowered".to_owned());
            }
        }
        assert!(
            matches!(tried[..], [80..90, 200..220, 440..470]),
            "{tried:?}"
        );
        guard.refused(at(600_000), "said late".to_owned());
        let held = held_at(800, 800);
        let raise = guard.observe(at(601_000), &held, false, plenty);
        assert!(raise.as_ref().is_some_and(is_raise), "{raise:?}");
    }
}

#[test]
fn who_grows_gives_nothing_back() {
    // Not asked to before it was lent for a minute, unless the node is short.
    for (is_short, begins) in [(true, 0), (false, 55)] {
        let mut guard = Guard::new(terms(160, 1000));
        let mut used = 150;
        for second in 0..begins + 15 {
            // In steps with a pause between them.
            used += if second >= begins && second % 2 == 0 {
                30
            } else {
                0
            };
            let action = guard.observe(at(second * 1000), &sample(used, 2000), is_short, plenty);
            assert_eq!(action, None, "{second}");
        }
        let back = (begins + 15..240).find_map(|second| {
            guard.observe(at(second * 1000), &sample(used, 2000), is_short, plenty)
        });
        assert!(matches!(back, Some(Action::GiveBack { .. })), "{back:?}");
    }
}

#[test]
fn who_hits_the_limit_while_it_gives_back_is_raised() {
    let mut guard = giving_back();
    let held = held_at(170, 169);
    let raise = guard.observe(at(20_200), &held, false, plenty);
    assert!(raise.as_ref().is_some_and(is_raise), "{raise:?}");
}

#[test]
fn a_raise_that_comes_late_is_lent_and_given_back() {
    for is_refused in [true, false] {
        let mut guard = Guard::new(terms(160, 512));
        let held = held_at(160, 160);
        guard.observe(at(0), &held, false, plenty);
        if is_refused {
            guard.refused(at(100), "the API server does not answer".to_owned());
        }
        for second in 1..8 {
            guard.observe(at(second * 1000), &sample(120, 160), false, plenty);
        }
        assert_eq!(guard.asked(), None);
        guard.observe(at(8_000), &sample(120, 240), false, plenty);
        assert_eq!((guard.lent(), guard.terms().first), (80 * MIB, 160 * MIB));
        let back = (9..200).find_map(|second| {
            let action = guard.observe(at(second * 1000), &sample(100, 240), false, plenty);
            action.filter(|action| matches!(action, Action::GiveBack { .. }))
        });
        assert_eq!(
            said(back),
            "it needs 100 MiB by now: the limit is 160 MiB again"
        );
    }
}

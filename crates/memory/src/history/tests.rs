use proptest::prelude::*;

use super::*;

fn run(number: u64, peak: u64, median: u64) -> Run {
    Run {
        key: format!("7f0c9d1e/{number}"),
        at: 1_700_000_000 + number * 3600,
        seconds: 900,
        peak: Bytes(peak),
        median: Bytes(median),
        ..Run::default()
    }
}

fn mib(n: u64) -> u64 {
    n << 20
}

fn says(history: &History, input: Option<Bytes>) -> String {
    let advice = history
        .advise(input, FailureCost::default())
        .expect("advice");
    format!("{} / {}: {}", advice.request, advice.limit, advice.why)
}

#[test]
fn nothing_is_learned_from_nothing() {
    assert_eq!(
        History::default().advise(None, FailureCost::default()),
        None
    );
    let empty = Run {
        peak: Bytes(0),
        ..run(1, 0, 0)
    };
    let nameless = Run {
        key: String::new(),
        ..run(1, mib(9), 0)
    };
    assert!(History::of(&[empty, nameless]).is_empty());
}

#[test]
fn one_run_is_enough_and_more_make_it_tighter() {
    let mut history = History::default();
    history.learn(run(1, mib(1000), mib(600)));
    insta::assert_snapshot!(says(&history, None), @"600Mi / 1206Mi: the run before peaked at 1.0 GiB; 21 % more is cheaper than a failure");
    for number in 2..10 {
        history.learn(run(number, mib(1000 - number % 3), mib(600)));
    }
    insta::assert_snapshot!(says(&history, None), @"600Mi / 1074Mi: 9 runs peaked at 1.0 GiB at most; 7 % more is cheaper than a failure");
}

#[test]
fn a_run_that_was_killed_gets_half_as_much_again_until_one_ends() {
    let mut history = History::of(&[run(1, mib(400), mib(300))]);
    history.learn(Run {
        censored: true,
        ..run(2, mib(500), mib(300))
    });
    insta::assert_snapshot!(says(&history, None), @"300Mi / 757Mi: 2 runs peaked at 500 MiB at most, and the last one was killed there");
    history.learn(run(3, mib(640), mib(300)));
    insta::assert_snapshot!(says(&history, None), @"300Mi / 935Mi: 3 runs peaked at 640 MiB at most; 46 % more is cheaper than a failure");
}

#[test]
fn input_that_explains_the_peak_is_used() {
    let sized = |number: u64, gib: u64| Run {
        input: Some(Bytes::gib(gib)),
        ..run(number, mib(100 + gib * 50), mib(80 + gib * 20))
    };
    let history = History::of(
        &(0..40)
            .map(|n| sized(n, 1 + n * 7 % 40))
            .collect::<Vec<_>>(),
    );
    insta::assert_snapshot!(says(&history, Some(Bytes::gib(4))), @"180Mi / 602Mi: runs with an input like this one's peaked at 450 MiB at most; 34 % more is cheaper than a failure");
    insta::assert_snapshot!(says(&history, Some(Bytes::gib(80))), @"840Mi / 5370Mi: its input is larger than that of 40 runs before, which makes a peak of 3.9 GiB likely; 34 % more is cheaper than a failure");
    insta::assert_snapshot!(says(&history, None), @"540Mi / 2885Mi: 40 runs peaked at 2.1 GiB at most; 37 % more is cheaper than a failure");
}

#[test]
fn peaks_that_rise_are_expected_to_go_on() {
    let history = History::of(
        &(0..30)
            .map(|n| run(n, mib(1000 + 20 * n), mib(600)))
            .collect::<Vec<_>>(),
    );
    insta::assert_snapshot!(says(&history, None), @"600Mi / 1779Mi: 30 runs peaked at 1.6 GiB at most, raised by what peaks rose since; 9 % more is cheaper than a failure");
}

#[test]
fn disk_and_shared_memory_are_sized_the_same_way() {
    let used = |number: u64| Run {
        storage: Some(Bytes::gib(3)),
        shm: Some(Bytes::mib(64)),
        ..run(number, mib(500), mib(400))
    };
    let advice = History::of(&[used(1), used(2)])
        .advise(None, FailureCost::default())
        .expect("advice");
    let said = format!(
        "{} {}",
        advice.storage.expect("disk"),
        advice.shm.expect("shm")
    );
    insta::assert_snapshot!(said, @"3546Mi 80Mi");
    let advice = History::of(&[run(1, mib(5), 0)])
        .advise(None, FailureCost::default())
        .expect("advice");
    assert_eq!((advice.storage, advice.shm), (None, None));
}

/// Runs of one job that differ as runs of one program do: the issue's own measure.
#[test]
fn ten_runs_of_one_job_are_sized_right_from_the_second_on() {
    for seed in 0_u64..500 {
        let peak = mib(60 + seed * 37 % 4000);
        let spread = [0, 10, 20][seed as usize % 3];
        let peaks: Vec<u64> = (0..10)
            .map(|n| peak - peak * ((seed * 31 + n * 17) % 7) * spread / 6000)
            .collect();
        let highest = peaks.iter().copied().max().unwrap_or_default();
        let mut history = History::default();
        for (number, &peak) in peaks.iter().enumerate() {
            if number > 0 {
                let advice = history
                    .advise(None, FailureCost::default())
                    .expect("advice");
                assert!(
                    advice.limit.0 >= highest,
                    "seed {seed}, run {number}: {} for {highest}",
                    advice.limit.0
                );
                assert!(
                    advice.limit.0 as f64 <= 1.35 * highest as f64,
                    "seed {seed}, run {number}: {} for {highest}",
                    advice.limit.0
                );
                let off = advice.request.0 as f64 / (peak as f64 * 0.7) - 1.0;
                assert!(
                    off.abs() < 0.15,
                    "seed {seed}, run {number}: the request is off by {off}"
                );
            }
            history.learn(run(number as u64, peak, peak * 7 / 10));
        }
    }
}

/// Its name, and the factor of the peak by how far through its runs a job is, from 0 to 1.
type Drift = (&'static str, fn(f64) -> f64);

/// The same job run after run. Of an attempt that was killed only its limit is known; the next gets what is advised then.
fn failures_of_a_job(peaks: &[u64]) -> u32 {
    let mut history = History::of(&[run(0, peaks[0], peaks[0])]);
    let mut failures = 0;
    let mut number = 1;
    for &peak in &peaks[1..] {
        loop {
            let advice = history.advise(None, FailureCost::default());
            let limit = advice.expect("advice").limit.0;
            let censored = limit < peak;
            let used = limit.min(peak);
            history.learn(Run {
                censored,
                ..run(number, used, used / 2)
            });
            number += 1;
            if !censored {
                break;
            }
            failures += 1;
        }
    }
    failures
}

/// The largest peak and 15 %; a quarter more after a failure.
fn failures_under_krr(peaks: &[u64]) -> u32 {
    let mut failures = 0;
    for seen in 1..peaks.len() {
        let largest = peaks[..seen].iter().copied().max().unwrap_or_default();
        let mut limit = largest as f64 * 1.15;
        while limit < peaks[seen] as f64 {
            limit *= 1.25;
            failures += 1;
        }
    }
    failures
}

#[test]
fn a_job_that_comes_to_need_more_is_caught_up_with_though_only_kills_are_seen() {
    let grown: [Drift; 4] = [
        ("steady", |_| 1.0),
        (
            "half as much again",
            |through| if through < 0.5 { 1.0 } else { 1.5 },
        ),
        ("threefold", |through| if through < 0.5 { 1.0 } else { 3.0 }),
        ("slowly twofold", |through| 2_f64.powf(through)),
    ];
    for (name, factor) in grown {
        let (mut ours, mut krr) = (0, 0);
        for seed in 0_u64..24 {
            let jitter = |n: u64| {
                1.0 - 0.06 * ((seed * 7919 + n * 104_729 + n * n * 31) % 997) as f64 / 997.0
            };
            let peaks: Vec<u64> = (0..40)
                .map(|n| {
                    (mib(500 + seed * 300) as f64 * jitter(n) * factor(n as f64 / 40.0)) as u64
                })
                .collect();
            ours += failures_of_a_job(&peaks);
            krr += failures_under_krr(&peaks);
        }
        assert!(ours <= krr, "{name}: ours {ours}, KRR {krr}");
        assert!(ours <= 24 * 3, "{name}: ours {ours}");
    }
}

#[test]
fn a_full_history_is_small() {
    let mut history = History::default();
    for number in 0..1000 {
        let amount = Bytes((1 << 59) - 1 - number * 7919);
        history.learn(Run {
            key: format!("7f0c9d1e/{}", 1_000_000 + number),
            seconds: 99_999_999,
            input: Some(amount),
            censored: true,
            storage: Some(amount),
            shm: Some(amount),
            gpu: Some(amount),
            ..run(number, amount.0, amount.0)
        });
    }
    assert_eq!(history.len(), RUNS_KEPT);
    assert_eq!(
        history.runs()[0].at,
        1_700_000_000 + 600 * 3600,
        "the oldest go first"
    );
    let text = serde_json::to_string(&history.runs()).expect("JSON");
    assert!(text.len() < 72 << 10, "{} bytes", text.len());
}

fn any_run() -> impl Strategy<Value = Run> {
    let amount = || prop_oneof![Just(0), 1_u64..1 << 40, any::<u64>()].prop_map(Bytes);
    (
        0_u64..30,
        any::<u64>(),
        prop::option::of(amount()),
        amount(),
        amount(),
        any::<bool>(),
        prop::option::of(amount()),
    )
        .prop_map(
            |(number, seconds, input, peak, median, censored, shm)| Run {
                seconds,
                input,
                median,
                censored,
                shm,
                ..run(number, peak.0, median.0)
            },
        )
}

proptest! {
    #[test]
    fn order_and_repetition_do_not_matter(runs in prop::collection::vec(any_run(), 0..60), cut in 0_usize..60) {
        let whole = History::of(&runs);
        let (left, right) = runs.split_at(cut.min(runs.len()));
        let mut merged = History::of(right);
        merged.merge(&History::of(left));
        merged.merge(&whole);
        prop_assert_eq!(&merged, &whole);
        prop_assert_eq!(&History::of(&whole.runs()), &whole, "what is kept is kept as it is");
    }

    #[test]
    fn advice_is_sane_whatever_was_learned(runs in prop::collection::vec(any_run(), 1..60), input in any::<Option<u64>>(), cost in any::<f64>()) {
        let history = History::of(&runs);
        for cost in [FailureCost::default(), FailureCost::Runs(cost), FailureCost::GibHours(cost)] {
            let Some(advice) = history.advise(input.map(Bytes), cost) else {
                prop_assert!(history.is_empty());
                return Ok(());
            };
            prop_assert!(advice.request.0 > 0 && advice.request <= advice.limit);
        }
    }
}

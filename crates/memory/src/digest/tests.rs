use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn sample(used: u64) -> Sample {
    Sample {
        usage: used + 10,
        working_set: used,
        anon: used,
        limit: Some(1 << 40),
        ..Sample::default()
    }
}

fn silent() -> JobStatus {
    JobStatus::default()
}

fn says(phase: &str, step: u64) -> JobStatus {
    JobStatus {
        phase: Some(phase.to_owned()),
        step: Some(step),
        input_bytes: Some(7),
        saved_step: None,
        saved: None,
    }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn near(value: u64, wanted: u64) -> bool {
    value.abs_diff(wanted) <= wanted / 30
}

#[test]
fn a_week_is_as_small_as_a_minute() {
    let mut digest = Digest::default();
    assert_eq!(digest.told("x"), None);
    let week = 7 * 86_400;
    for second in 0..week {
        let spike = if second == 40_000 {
            7 * GIB
        } else {
            GIB + second % 900 * MIB
        };
        let phase = ["load", "train", "eval", "checkpoint"][(second % 4) as usize];
        digest.add(
            seconds(1_000_000 + second),
            &sample(spike),
            &says(phase, second),
        );
    }
    let told = digest.told("x").unwrap();
    assert_eq!(told.seconds, week - 1);
    assert_eq!(told.peak_bytes, 7 * GIB + 10);
    assert_eq!(told.series.every_seconds, 16_384);
    let spikes = told.series.mib.iter().filter(|mib| **mib == 7 << 10);
    assert_eq!(spikes.count(), 1, "the spike is still seen");
    assert!(
        near(told.median_bytes, GIB + 450 * MIB),
        "{}",
        told.median_bytes
    );
    assert_eq!(told.phases.len(), 4);
    let text = serde_json::to_string(&told).unwrap();
    assert!(text.len() < 4_000, "{} bytes: {text}", text.len());
}

#[test]
fn what_the_kernel_counted_between_two_samples_is_believed() {
    let cached = |used: u64, cache: u64, peak: u64| Sample {
        file_inactive: cache,
        usage: used + cache,
        peak: Some(peak),
        ..sample(used)
    };
    let mut digest = Digest::default();
    digest.add(seconds(0), &cached(GIB, GIB, 2 * GIB), &silent());
    digest.add(seconds(1), &cached(GIB, GIB, 5 * GIB), &silent());
    digest.add(seconds(2), &cached(GIB, GIB, 5 * GIB), &silent());
    let told = digest.told("x").unwrap();
    assert_eq!(told.peak_bytes, 5 * GIB);
    assert_eq!(
        told.peak_unreclaimable_bytes,
        4 * GIB,
        "less the page cache"
    );
    assert!(near(told.median_bytes, GIB), "a spike does not last");

    // A file that is read for the first time is no spike.
    let mut digest = Digest::default();
    digest.add(seconds(0), &cached(GIB, 0, GIB), &silent());
    digest.add(seconds(1), &cached(GIB, 8 * GIB, 9 * GIB), &silent());
    assert_eq!(digest.told("x").unwrap().peak_unreclaimable_bytes, GIB);
}

#[test]
fn who_was_killed_at_the_limit_needed_more() {
    let mut digest = Digest::default();
    let at = |used: u64, limit: u64| Sample {
        limit: Some(limit),
        shmem: 3 * MIB,
        ..sample(used)
    };
    digest.add(seconds(0), &at(90 * MIB, 128 * MIB), &silent());
    digest.add(seconds(1), &at(110 * MIB, 160 * MIB), &silent());
    assert_eq!(digest.told("x").unwrap().needed_bytes(), 113 * MIB);
    digest.end(Some(160 * MIB), Some(Duration::from_millis(2500)), true);
    let told = digest.told("x").unwrap();
    assert_eq!(told.needed_bytes(), 160 * MIB);
    assert_eq!((told.raises, told.shm_peak_bytes), (1, 3 * MIB));
}

#[test]
fn a_run_shorter_than_a_look_is_known_by_its_peak() {
    let mut digest = Digest::default();
    digest.end(None, Some(seconds(1)), false);
    assert_eq!(digest.told("x"), None, "nothing is known");
    digest.end(Some(50 * MIB), Some(Duration::from_millis(700)), false);
    let told = digest.told("x").unwrap();
    assert_eq!((told.samples, told.seconds), (0, 1));
    assert_eq!(told.peak_unreclaimable_bytes, 50 * MIB);
    // What was never looked at is taken to have been as high as it ever was.
    let mut digest = Digest::default();
    digest.end(Some(50 * MIB), Some(Duration::from_millis(700)), false);
    assert!(near(digest.told("x").unwrap().median_bytes, 50 * MIB));

    // The last stretch counts as the last look found it.
    let mut digest = Digest::default();
    digest.add(seconds(0), &sample(10 * MIB), &silent());
    digest.add(seconds(1), &sample(200 * MIB), &silent());
    digest.end(Some(210 * MIB), Some(seconds(5)), false);
    let told = digest.told("x").unwrap();
    assert_eq!(told.seconds, 5);
    assert!(near(told.median_bytes, 200 * MIB));
    assert_eq!(told.peak_unreclaimable_bytes, 210 * MIB);
}

#[test]
fn a_program_that_names_no_phase_has_a_startup_and_then_trains() {
    let mut digest = Digest::default();
    for second in 0..100 {
        let height = 2 * GIB * (second + 1).min(30) / 30;
        digest.add(seconds(second), &sample(height), &silent());
    }
    let told = digest.told("x").unwrap();
    let phases: Vec<&str> = told.phases.keys().map(String::as_str).collect();
    assert_eq!(phases, ["startup", "train"]);
    let startup = told.phases["startup"].seconds;
    assert!((30..=51).contains(&startup), "{startup}");
    assert!(near(told.phases["train"].median_bytes, 2 * GIB));
    assert_eq!(
        told.slope.unwrap().bytes_per_hour,
        0,
        "the start is no growth"
    );
}

#[test]
fn growth_is_told_by_the_hour_and_by_the_step() {
    let mut digest = Digest::default();
    for second in 0..600 {
        // 10 MiB a step, two steps a second, a hump now and then.
        let hump = if second % 60 < 5 { GIB } else { 0 };
        let used = GIB + second * 20 * MIB + hump;
        digest.add(seconds(second), &sample(used), &says("train", second * 2));
    }
    let told = digest.told("x").unwrap();
    let slope = told.slope.unwrap();
    assert!(
        near(slope.bytes_per_hour as u64, 3600 * 20 * MIB),
        "{slope:?}"
    );
    assert!(
        near(slope.bytes_per_step.unwrap() as u64, 10 * MIB),
        "{slope:?}"
    );
    assert_eq!(
        told.steps,
        Some(Steps {
            first: 2,
            last: 1198,
            seconds: 598
        }),
        "what it says before it has done any is where it stands before it has loaded its checkpoint"
    );
    assert_eq!(told.input_bytes, Some(7));
    // Counted from the beginning again.
    digest.add(seconds(600), &sample(GIB), &says("train", 3));
    assert_eq!(
        digest.told("x").unwrap().steps,
        Some(Steps {
            first: 3,
            last: 3,
            seconds: 0
        })
    );
    let mut short = Digest::default();
    for second in 0..5 {
        short.add(
            seconds(second),
            &sample(second << 30),
            &says("train", second),
        );
    }
    assert_eq!(short.told("x").unwrap().slope, None, "too short to tell");
}

#[test]
fn a_restarted_node_goes_on_where_it_was() {
    let feed = |digest: &mut Digest, range: std::ops::Range<u64>, shift: u64| {
        for second in range {
            digest.add(
                seconds(second + shift),
                &sample(GIB + second * MIB),
                &says("train", second),
            );
        }
    };
    let mut whole = Digest::default();
    feed(&mut whole, 0..400, 0);
    let mut first = Digest::default();
    feed(&mut first, 0..200, 0);
    // Its clock has another beginning.
    let mut second = Digest::resume(first.told("x").unwrap());
    feed(&mut second, 200..400, 9_000_000);
    let (whole, resumed) = (whole.told("x").unwrap(), second.told("x").unwrap());
    assert_eq!(
        resumed.seconds,
        whole.seconds - 1,
        "but for the second of the change"
    );
    assert_eq!(
        resumed.peak_unreclaimable_bytes,
        whole.peak_unreclaimable_bytes
    );
    assert!(near(resumed.median_bytes, whole.median_bytes));
    assert_eq!(resumed.steps.unwrap().last, whole.steps.unwrap().last);
}

#[test]
fn a_clock_that_jumps_spoils_nothing() {
    let mut digest = Digest::default();
    for at in [100, 101, 102, 5, 6, 7, 4_000_000_000, 4_000_000_001] {
        digest.add(seconds(at), &sample(GIB), &silent());
    }
    let told = digest.told("x").unwrap();
    assert_eq!(told.seconds, 2 + 2 + 60 + 1);
    assert!(told.series.mib.len() <= POINTS_MAX);
    assert!(near(told.median_bytes, GIB));
}

#[test]
fn workers_and_runs_add_up() {
    let run = |height: u64, long: u64| {
        let mut digest = Digest::default();
        for second in 0..long {
            digest.add(seconds(second), &sample(height), &says("train", second));
            digest.add_gpu("GPU-1", height / 2, seconds(1));
        }
        digest.add_storage(height);
        digest.told("x").unwrap()
    };
    let (small, large) = (run(GIB, 100), run(4 * GIB, 300));
    let mut sum = small.clone();
    merge(&mut sum, &large);
    let mut turned = large.clone();
    merge(&mut turned, &small);
    assert_eq!(sum.levels, turned.levels);
    assert_eq!(sum.peak_bytes, turned.peak_bytes);
    assert_eq!((sum.samples, sum.seconds), (400, 299));
    assert!(
        near(sum.median_bytes, 4 * GIB),
        "most of the time was spent there"
    );
    assert_eq!(sum.storage_peak_bytes, Some(4 * GIB));
    assert!(near(sum.gpus["GPU-1"].peak_bytes, 2 * GIB));
    assert_eq!(sum.phases["train"].seconds, 99 + 299);
    let mut from_nothing = ContainerDigest::default();
    merge(&mut from_nothing, &small);
    assert_eq!(from_nothing, small);
}

fn anything() -> impl Strategy<Value = Vec<(u64, u64, u8)>> {
    prop::collection::vec((0_u64..500_000, 0_u64..1 << 40, 0_u8..12), 1..200)
}

proptest! {
    #[test]
    fn whatever_comes_it_is_bounded_and_true(samples in anything()) {
        let mut digest = Digest::default();
        let mut at: Vec<u64> = samples.iter().map(|(second, ..)| *second).collect();
        at.sort_unstable();
        for (second, (_, bytes, phase)) in at.iter().zip(&samples) {
            digest.add(seconds(*second), &sample(*bytes), &says(&format!("p{phase}"), *bytes));
        }
        let told = digest.told("x").unwrap();
        let highest = samples.iter().map(|(_, bytes, _)| *bytes).max().unwrap();
        let lowest = samples.iter().map(|(_, bytes, _)| *bytes).min().unwrap();
        prop_assert!(told.series.mib.len() <= POINTS_MAX);
        prop_assert!(told.series.every_seconds.is_power_of_two());
        prop_assert_eq!(told.series.mib.iter().copied().max(), Some(highest >> 20));
        prop_assert_eq!(told.samples, samples.len() as u64);
        prop_assert_eq!(told.peak_unreclaimable_bytes, highest);
        prop_assert!(told.median_bytes <= highest + highest / 8 + MIB);
        prop_assert!(told.median_bytes + lowest / 8 + MIB >= lowest);
        prop_assert!(told.phases.len() <= PHASES_MAX + 1);
        let text = serde_json::to_string(&told).unwrap();
        prop_assert!(text.len() < 8_000, "{}", text.len());
        prop_assert_eq!(serde_json::from_str::<ContainerDigest>(&text).unwrap(), told);
    }

    #[test]
    fn a_sum_knows_what_its_parts_knew(a in anything(), b in anything()) {
        let digest = |samples: &[(u64, u64, u8)]| {
            let mut digest = Digest::default();
            for (n, (_, bytes, phase)) in samples.iter().enumerate() {
                digest.add(seconds(n as u64), &sample(*bytes), &says(&format!("p{phase}"), 1));
            }
            digest.told("x").unwrap()
        };
        let (one, two) = (digest(&a), digest(&b));
        let mut sum = one.clone();
        merge(&mut sum, &two);
        prop_assert_eq!(sum.peak_unreclaimable_bytes, one.peak_unreclaimable_bytes.max(two.peak_unreclaimable_bytes));
        prop_assert_eq!(sum.samples, one.samples + two.samples);
        prop_assert!(sum.levels.parts.len() <= LEVELS_MAX);
        prop_assert!(sum.phases.len() <= PHASES_MAX + 1);
        let text = serde_json::to_string(&sum).unwrap();
        prop_assert!(text.len() < 8_000, "{}", text.len());
    }
}

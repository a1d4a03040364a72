//! By how much peaks rise from run to run, whatever the input was.
//!
//! Data grows and programs gain weight: the peaks of old runs then say too little about the next one. Only what is beyond doubt counts,
//! for a rise that is believed raises every old peak. A few runs that used far less or more do not make a rise, for most pairs of runs
//! are without them. A high step in the middle of the runs still looks like one, hence [`MOST`].

use super::learner::{Sample, points};

/// Fewer runs rise by chance.
const RUNS_MIN: usize = 10;
/// Runs are drawn together into this many points at most, or all pairs of 400 runs would be compared for each run that is replayed.
const POINTS_MAX: usize = 16;

/// Over all runs together peaks are taken to rise threefold at most: more is another program, not the same one that drifts.
const MOST: f64 = 1.1;

/// The rise from one run to the next, as a logarithm; 0 where there is none for sure. `samples` come oldest first.
///
/// The slope by Theil and Sen, less its standard error.
pub fn rise(samples: &[Sample]) -> f64 {
    if samples.len() < RUNS_MIN {
        return 0.0;
    }
    let residuals = without_input(samples);
    let width = residuals.len().div_ceil(POINTS_MAX);
    // Whole points only; the oldest runs are those to spare.
    let newest_first: Vec<f64> = residuals
        .rchunks_exact(width)
        .map(|chunk| chunk.iter().sum::<f64>() / width as f64)
        .collect();
    let mut slopes = Vec::with_capacity(POINTS_MAX * (POINTS_MAX - 1) / 2);
    for (index, newer) in newest_first.iter().enumerate() {
        let older = newest_first[index + 1..].iter().zip(1_u32..);
        slopes.extend(older.map(|(older, apart)| (newer - older) / f64::from(apart)));
    }
    // How far the count of rising pairs strays from half of them where there is no trend: Kendall's.
    let points = newest_first.len() as f64;
    let strays = (points * (points - 1.0) * (2.0 * points + 5.0) / 18.0).sqrt();
    let rank = ((slopes.len() as f64 - strays) / 2.0).max(0.0) as usize;
    let (_, slope, _) = slopes.select_nth_unstable_by(rank, f64::total_cmp);
    (*slope / width as f64).clamp(0.0, MOST / residuals.len() as f64)
}

/// Peaks as logarithms, less what a larger input explains. All that it may explain is left to it, so inputs that grow are no rise.
fn without_input(samples: &[Sample]) -> Vec<f64> {
    let known = || points(samples);
    let count = known().count().max(1) as f64;
    let mean_x = known().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = known().map(|(_, y)| y).sum::<f64>() / count;
    let xx: f64 = known().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let xy: f64 = known().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let power = if xx > 1e-9 { xy / xx } else { 0.0 };
    let explained = |sample: &Sample| sample.ln_input.map_or(0.0, |x| power * (x - mean_x));
    samples
        .iter()
        .map(|sample| sample.ln_peak - explained(sample))
        .collect()
}

#[cfg(test)]
mod tests {
    use stoke_api::Bytes;

    use super::*;

    /// Runs of a job whose peak is `factor` by how many came before it, a few percent more or less, with inputs that vary and matter.
    fn runs(count: u64, factor: impl Fn(f64) -> f64) -> Vec<Sample> {
        let run = |n: u64| {
            let input = 1.0 + (n * 7919 % 97) as f64 / 10.0;
            let noise = 1.0 + 0.06 * (n * 104_729 % 89) as f64 / 89.0;
            let peak = 1e9 * input.sqrt() * noise * factor(n as f64);
            Sample::new(
                Some(Bytes((input * 1e9) as u64)),
                Bytes(peak as u64),
                60.0,
                false,
            )
        };
        (0..count).map(run).collect()
    }

    #[test]
    fn a_rise_is_found_whatever_the_input() {
        for count in [20, 50, 100, 399] {
            let over_all = rise(&runs(count, |n| (n / count as f64).exp())) * count as f64;
            assert!((0.7..1.05).contains(&over_all), "{count} runs: {over_all}");
        }
    }

    #[test]
    fn neither_steady_nor_falling_peaks_rise() {
        for count in [4, 5, 8, 13, 20, 50, 100, 399] {
            let over_all = |factor: &dyn Fn(f64) -> f64| rise(&runs(count, factor)) * count as f64;
            assert!(over_all(&|_| 1.0) < 0.05, "{count} steady runs");
            assert!(over_all(&|n| (-n).exp2()) < 1e-9, "{count} falling runs");
        }
    }

    #[test]
    fn runs_that_crashed_early_raise_the_others_within_bounds() {
        for count in [13, 20, 50, 100, 399] {
            for at in [0.1, 0.3, 0.5, 0.7, 0.9] {
                let factor = |n: f64| if n < at * count as f64 { 0.001 } else { 1.0 };
                let found = rise(&runs(count, factor)) * count as f64;
                assert!(
                    found <= MOST + 1e-9,
                    "{count} runs, a step at {at}: {found}"
                );
            }
        }
    }
}

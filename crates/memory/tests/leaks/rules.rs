//! Who finds leaks: ours, and the rules that are in use.

use stoke_api::Bytes;
use stoke_memory::{Place, Point, Verdict, Watcher};

use crate::series::Series;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Stokehold,
    /// Alarm when this many per cent of the limit are used.
    Threshold(u32),
    /// Prometheus' `predict_linear(memory[1h], 4h) > limit`, for ten minutes.
    PredictLinear,
    /// A significant trend of the minima of five minutes, over two hours.
    MannKendall,
}

impl Rule {
    pub const ALL: [Self; 5] = [
        Self::Stokehold,
        Self::Threshold(80),
        Self::Threshold(90),
        Self::PredictLinear,
        Self::MannKendall,
    ];

    pub fn name(self) -> String {
        match self {
            Self::Stokehold => "stokehold".to_owned(),
            Self::Threshold(percent) => format!("threshold {percent} %"),
            Self::PredictLinear => "predict_linear".to_owned(),
            Self::MannKendall => "mann-kendall".to_owned(),
        }
    }

    /// The second of the first alarm.
    pub fn alarm(self, series: &Series) -> Option<f64> {
        let sample = match self {
            Self::Stokehold => watch(series),
            Self::Threshold(percent) => {
                let line = series.limit * f64::from(percent) / 100.0;
                series.held.iter().position(|held| *held >= line)
            }
            Self::PredictLinear => predict(series),
            Self::MannKendall => trend(series),
        };
        sample.map(|sample| sample as f64 * series.every as f64)
    }
}

fn watch(series: &Series) -> Option<usize> {
    let bytes = |mib: f64| Bytes((mib * 1_048_576.0) as u64);
    let mut watcher = Watcher::new(Place::Host);
    series.held.iter().enumerate().position(|(sample, held)| {
        let point = Point {
            anon: bytes(*held),
            working_set: bytes(*held),
            limit: Some(bytes(series.limit)),
            ..Point::default()
        };
        let verdict = watcher.observe(sample as u64 * series.every, &point);
        matches!(verdict, Verdict::Leak { .. })
    })
}

/// Least squares over the last hour, once a minute as Prometheus evaluates its rules.
fn predict(series: &Series) -> Option<usize> {
    let every = series.every as f64;
    let window = (3600.0 / every) as usize;
    let stride = ((60.0 / every) as usize).max(1);
    let mut firing = 0.0;
    for end in (window..series.held.len()).step_by(stride) {
        let points = &series.held[end - window..end];
        let count = points.len() as f64;
        let mean_x = (count - 1.0) / 2.0 * every;
        let mean_y = points.iter().sum::<f64>() / count;
        let (mut up, mut down) = (0.0, 0.0);
        for (index, held) in points.iter().enumerate() {
            let x = index as f64 * every - mean_x;
            up += x * (held - mean_y);
            down += x * x;
        }
        let last = (count - 1.0) * every - mean_x;
        let then = mean_y + up / down * (last + 4.0 * 3600.0);
        firing = if then > series.limit {
            firing + stride as f64 * every
        } else {
            0.0
        };
        if firing > 600.0 {
            return Some(end);
        }
    }
    None
}

fn trend(series: &Series) -> Option<usize> {
    let block = ((300.0 / series.every as f64) as usize).max(1);
    let minima: Vec<f64> = series
        .held
        .chunks_exact(block)
        .map(|held| held.iter().copied().fold(f64::MAX, f64::min))
        .collect();
    let window = 24;
    let blocks = minima.windows(window).position(|points| {
        let mut score = 0.0;
        for (index, early) in points.iter().enumerate() {
            for late in &points[index + 1..] {
                score += (late - early).signum();
            }
        }
        let n = window as f64;
        let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
        // One in ten thousand by chance, and worth five per cent of the limit.
        score / deviation > 3.72 && points[window - 1] - points[0] > 0.05 * series.limit
    })?;
    Some((blocks + window) * block)
}

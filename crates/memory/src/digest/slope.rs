//! How a run's memory grew once it had started.

use stoke_api::digest::{Series, Slope, Steps};

/// With fewer points a line through them says nothing.
const POINTS_MIN: usize = 8;

/// The median of the slopes between any two points, which a few humps do not bend. `None` after a run too short to tell.
pub(super) fn of(series: &Series, startup_seconds: u64, steps: Option<Steps>) -> Option<Slope> {
    let every = series.every_seconds.max(1);
    let startup = usize::try_from(startup_seconds.div_ceil(every)).unwrap_or(usize::MAX);
    let points = series.mib.get(startup..)?;
    if points.len() < POINTS_MIN {
        return None;
    }
    let mut slopes: Vec<i128> = Vec::with_capacity(points.len() * (points.len() - 1) / 2);
    for (i, from) in points.iter().enumerate() {
        for (j, to) in points.iter().enumerate().skip(i + 1) {
            let bytes = (i128::from(*to) - i128::from(*from)) << 20;
            let seconds = i128::from(every) * (j - i) as i128;
            slopes.push(bytes.saturating_mul(3600) / seconds);
        }
    }
    let middle = slopes.len() / 2;
    let (_, per_hour, _) = slopes.select_nth_unstable(middle);
    let bytes_per_hour = clamp(*per_hour);
    let per_step = steps.and_then(|steps| {
        let count = i128::from(steps.last.saturating_sub(steps.first));
        let hourly = i128::from(bytes_per_hour).saturating_mul(i128::from(steps.seconds)) / 3600;
        (count > 0 && steps.seconds > 0).then(|| clamp(hourly / count))
    });
    Some(Slope {
        bytes_per_hour,
        bytes_per_step: per_step,
    })
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

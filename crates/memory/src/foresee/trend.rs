//! A line through few points, that a third of them being wrong does not move.

use super::ladder::BLOCKS;

const PAIRS: usize = BLOCKS * (BLOCKS - 1) / 2;

/// What a series of points did, in the unit of its values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Trend {
    /// Theil-Sen: the median of the slopes between all pairs, times the length.
    pub growth: f32,
    pub slope: f32,
    /// Median distance from the line.
    pub noise: f32,
    /// Kendall's tau: 1 where each point is above all before it.
    pub order: f32,
    /// The largest rise from one point to the next.
    pub jump: f32,
}

impl Trend {
    /// `points` are (x, y) by rising x, [`BLOCKS`] at most.
    pub(super) fn of(points: &[(f32, f32)]) -> Self {
        let count = points.len().min(BLOCKS);
        let points = &points[..count];
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Self::default();
        };
        let mut slopes = [0.0_f32; PAIRS];
        let (mut pairs, mut risen, mut total) = (0, 0.0_f32, 0.0_f32);
        for (index, (x, y)) in points.iter().enumerate() {
            for (later_x, later_y) in &points[index + 1..] {
                total += 1.0;
                let rise = later_y - y;
                if rise > 0.0 {
                    risen += 1.0;
                } else if rise < 0.0 {
                    risen -= 1.0;
                }
                if later_x > x {
                    slopes[pairs] = rise / (later_x - x);
                    pairs += 1;
                }
            }
        }
        let slope = median(&mut slopes[..pairs]);
        let mut residuals = [0.0_f32; BLOCKS];
        for (slot, (x, y)) in residuals.iter_mut().zip(points) {
            *slot = y - slope * x;
        }
        let height = median(&mut residuals[..count]);
        for (slot, (x, y)) in residuals.iter_mut().zip(points) {
            *slot = (y - slope * x - height).abs();
        }
        let jumps = points.windows(2).map(|pair| pair[1].1 - pair[0].1);
        Self {
            growth: slope * (last.0 - first.0),
            slope,
            noise: median(&mut residuals[..count]),
            order: if total > 0.0 { risen / total } else { 0.0 },
            jump: jumps.fold(0.0, f32::max),
        }
    }
}

/// 0 of nothing. What is not a number sorts last and so is outvoted.
fn median(values: &mut [f32]) -> f32 {
    if values.is_empty() {
        return 0.0;
    }
    let odd = values.len() % 2 == 1;
    let middle = values.len() / 2;
    let (below, upper, _) = values.select_nth_unstable_by(middle, f32::total_cmp);
    let upper = *upper;
    if odd {
        return upper;
    }
    let lower = below.iter().copied().fold(f32::MIN, f32::max);
    f32::midpoint(lower, upper)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "small whole numbers are exact")]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_under_what_is_wrong_with_it() {
        let mut points: Vec<(f32, f32)> = (0..12)
            .map(|x| (x as f32, 100.0 + 3.0 * x as f32))
            .collect();
        let line = Trend::of(&points);
        assert_eq!(
            (line.slope, line.growth, line.noise, line.order),
            (3.0, 33.0, 0.0, 1.0)
        );
        points[3].1 = 900.0;
        points[8].1 = 0.0;
        let bent = Trend::of(&points);
        assert!((bent.slope - 3.0).abs() < 0.01, "{bent:?}");
        assert!(bent.order < 1.0 && bent.jump > 700.0, "{bent:?}");
    }

    #[test]
    fn nothing_and_what_is_no_number_are_borne() {
        assert_eq!(Trend::of(&[]), Trend::default());
        assert_eq!(Trend::of(&[(1.0, 5.0)]).growth, 0.0);
        assert_eq!(Trend::of(&[(1.0, 5.0), (1.0, 9.0)]).slope, 0.0);
        let mixed = [
            (0.0, 1.0),
            (1.0, f32::NAN),
            (2.0, 3.0),
            (3.0, 4.0),
            (4.0, 5.0),
        ];
        assert_eq!(Trend::of(&mixed).slope, 1.0);
    }
}

//! Memory over time as a small picture of characters: bars for what was used, lines for what was promised and for the limit.

use std::fmt;

use stoke_api::Bytes;
use stoke_api::digest::Series;

use crate::clock;

const COLUMNS: usize = 60;
const ROWS: usize = 12;
/// Whoever may write annotations may have written nonsense; nobody trains for longer, or with more.
const SECONDS_MAX: u64 = 1 << 40;
const MIB_MAX: u64 = 1 << 44;
/// Eighths of a character's height.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub struct Chart {
    /// In MiB, one a column.
    columns: Vec<u64>,
    seconds: u64,
    request: Bytes,
    limit: Bytes,
}

impl Chart {
    /// Of several workers, the one that used most at each moment. None where nobody measured.
    pub fn of(series: &[&Series], request: Bytes, limit: Bytes) -> Option<Self> {
        let lasted =
            |series: &&&Series| series.every_seconds.saturating_mul(series.mib.len() as u64);
        let seconds = series
            .iter()
            .map(|it| lasted(&it))
            .max()
            .filter(|it| *it > 0)?
            .min(SECONDS_MAX);
        let width = COLUMNS
            .min(usize::try_from(seconds).unwrap_or(COLUMNS))
            .max(1);
        let columns = (0..width).map(|column| {
            let from = seconds * column as u64 / width as u64;
            let to = (seconds * (column as u64 + 1) / width as u64).max(from + 1);
            series
                .iter()
                .map(|series| highest(series, from, to))
                .max()
                .unwrap_or(0)
                .min(MIB_MAX)
        });
        Some(Self {
            columns: columns.collect(),
            seconds,
            request,
            limit,
        })
    }

    /// What the top of the picture stands for, in MiB.
    fn top(&self) -> u64 {
        let used = self.columns.iter().copied().max().unwrap_or(0);
        // Where the limit is far above all that was used it would make a flat picture.
        let limit = (self.limit.0 >> 20).min(used.saturating_mul(4));
        used.max(limit).max(self.request.0 >> 20).max(1)
    }

    /// The row, from the bottom, that an amount is in.
    fn row(&self, amount: Bytes) -> Option<usize> {
        let mib = amount.0 >> 20;
        let row = (mib * ROWS as u64).div_ceil(self.top()).saturating_sub(1);
        usize::try_from(row)
            .ok()
            .filter(|row| *row < ROWS && mib > 0)
    }
}

/// The highest of a series between two moments.
fn highest(series: &Series, from: u64, to: u64) -> u64 {
    let every = series.every_seconds.max(1);
    let first = usize::try_from(from / every).unwrap_or(usize::MAX);
    let last = usize::try_from((to - 1) / every).unwrap_or(usize::MAX);
    let points = series
        .mib
        .iter()
        .skip(first)
        .take(last.saturating_sub(first) + 1);
    points.copied().max().unwrap_or(0)
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let top = self.top();
        let lines = [
            (self.row(self.limit), '─', "limit", self.limit),
            (self.row(self.request), '╌', "promised", self.request),
        ];
        for row in (0..ROWS).rev() {
            let mut on_it = lines.iter().filter(|(at, ..)| *at == Some(row));
            let first = on_it.next();
            let label = match first {
                Some((.., amount)) => amount.human(),
                None if row == ROWS - 1 => Bytes::mib(top).human(),
                None => String::new(),
            };
            write!(f, "{label:>9} │")?;
            for mib in &self.columns {
                // Eighths of a row that this column reaches above the row's bottom.
                let height = mib.saturating_mul(ROWS as u64 * 8) / top;
                let block = height.saturating_sub(row as u64 * 8).min(8);
                let block = BLOCKS[usize::try_from(block).unwrap_or(0)];
                match first {
                    Some((_, line, ..)) if block == ' ' => write!(f, "{line}")?,
                    _ => write!(f, "{block}")?,
                }
            }
            if let Some((.., name, _)) = first {
                write!(f, " {name}")?;
                for (.., name, _) in on_it {
                    write!(f, " and {name}")?;
                }
            }
            writeln!(f)?;
        }
        writeln!(f, "{:>9} └{}", "0", "─".repeat(self.columns.len()))?;
        let end = clock::short(self.seconds);
        let width = self
            .columns
            .len()
            .saturating_sub(1)
            .max(end.chars().count());
        writeln!(f, "{:>10} 0{end:>width$}", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_climb_towards_the_limit() {
        let series = Series {
            every_seconds: 2,
            mib: (0..30).map(|i| 100 + i * 10).collect(),
        };
        let chart = Chart::of(&[&series], Bytes::mib(200), Bytes::mib(480)).expect("a chart");
        insta::assert_snapshot!(format!("\n{chart}"));
    }

    #[test]
    fn without_measurements_there_is_no_picture() {
        assert!(Chart::of(&[], Bytes(1), Bytes(1)).is_none());
        assert!(Chart::of(&[&Series::default()], Bytes(1), Bytes(1)).is_none());
    }

    proptest! {
        #[test]
        fn whatever_was_measured_can_be_drawn(
            all in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u64>(), 0..80)), 0..4), request: u64, limit: u64,
        ) {
            let all: Vec<Series> = all.into_iter().map(|(every_seconds, mib)| Series { every_seconds, mib }).collect();
            let series: Vec<&Series> = all.iter().collect();
            if let Some(chart) = Chart::of(&series, Bytes(request), Bytes(limit)) {
                let text = chart.to_string();
                prop_assert_eq!(text.lines().count(), ROWS + 2);
                prop_assert!(text.lines().all(|line| line.chars().count() < 120));
            }
        }
    }
}

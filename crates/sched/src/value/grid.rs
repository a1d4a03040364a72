//! What GPUs are worth beside the CPU, or the memory, that is left with them.
//!
//! A node takes the work that comes by and fits, as it comes; what it has taken when nothing more fits is what it was worth. So a node that is rich in CPU
//! loses nothing by giving some away, and one that is short of it is no place for work that wants much.

use std::collections::BTreeMap;

/// Asks that come by, none of which fits, before what is left of a node counts as left over.
const PATIENCE: i32 = 128;
/// Columns for each GPU, and for all of them.
const COLUMNS_PER_GPU: f64 = 4.0;
const COLUMNS_MAX: f64 = 64.0;
/// Rows for what usual work needs beside one GPU, and for all of it.
const ROWS_PER_GPU: f64 = 5.0;
const ROWS_MAX: f64 = 96.0;
/// Needs are told apart to this part of a row or column.
const FINENESS: f64 = 4.0;

/// What one kind of work in the mix needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Need {
    pub share: f64,
    /// Of CPU, or of memory.
    pub amount: f64,
    /// In GPUs; above 0.
    pub worth: f64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Grid {
    per_row: f64,
    per_gpu: f64,
    /// The last of them; nothing is made of no rows.
    rows: usize,
    columns: usize,
    worth: Vec<f64>,
}

/// A need in rows and columns.
struct Step {
    share: f64,
    rows: f64,
    columns: f64,
}

impl Grid {
    /// Up to the largest amount and number of GPUs of any node.
    pub fn of(needs: &[Need], amount_max: u64, gpus_max: u32) -> Self {
        let total: f64 = needs.iter().map(|need| need.share).sum();
        let work: f64 = needs.iter().map(|need| need.share * need.worth).sum();
        let amount: f64 = needs.iter().map(|need| need.share * need.amount).sum();
        if work <= 0.0 || gpus_max == 0 {
            return Self::default();
        }
        let usual = amount / work;
        let amount_max = amount_max as f64;
        let per_row = (usual / ROWS_PER_GPU).max(amount_max / ROWS_MAX).max(1.0);
        let per_gpu = (COLUMNS_MAX / f64::from(gpus_max)).min(COLUMNS_PER_GPU);
        let mut merged = BTreeMap::<(u64, u64), f64>::new();
        for need in needs {
            let rows = (need.amount / per_row * FINENESS).round() as u64;
            let columns = (need.worth * per_gpu * FINENESS).round() as u64;
            *merged.entry((rows, columns)).or_default() += need.share / total;
        }
        let step = |((rows, columns), share): ((u64, u64), f64)| Step {
            share,
            rows: rows as f64 / FINENESS,
            columns: columns as f64 / FINENESS,
        };
        let steps: Vec<Step> = merged.into_iter().map(step).collect();
        let rows = (amount_max / per_row).ceil() as usize;
        let columns = (f64::from(gpus_max) * per_gpu).ceil() as usize;
        let mut grid = Self {
            per_row,
            per_gpu,
            rows,
            columns,
            worth: vec![0.0; (rows + 1) * (columns + 1)],
        };
        // Less is left after each step, so that one pass in this order knows all it needs.
        for row in 0..=rows {
            for column in 0..=columns {
                grid.worth[row * (columns + 1) + column] = grid.filled(row, column, &steps);
            }
        }
        grid
    }

    /// What a node takes from here on: the first ask to come by that fits, and what it takes from there on.
    fn filled(&self, row: usize, column: usize, steps: &[Step]) -> f64 {
        let (mut fitting, mut staying, mut taken) = (0.0, 0.0, 0.0);
        for step in steps {
            let (rows, columns) = (row as f64 - step.rows, column as f64 - step.columns);
            if rows < 0.0 || columns < 0.0 {
                continue;
            }
            let (top, left) = (rows.ceil() as usize, columns.ceil() as usize);
            let (up, back) = (top as f64 - rows, left as f64 - columns);
            let near = self.between(top, left, back);
            let far = if up > 0.0 {
                self.between(top - 1, left, back)
            } else {
                0.0
            };
            fitting += step.share;
            taken += step.share * (step.columns / self.per_gpu + (1.0 - up) * near + up * far);
            // A step that ends between this place and the one before is in part no step at all. What it stays for is not known yet, and counted as nought above.
            if (top, left) == (row, column) {
                staying += step.share * (1.0 - up) * (1.0 - back);
            }
        }
        let comes = 1.0 - (1.0 - fitting).max(0.0).powi(PATIENCE);
        let leaves = fitting - comes * staying;
        if leaves > 0.0 {
            comes * taken / leaves
        } else {
            0.0
        }
    }

    /// In a row, the part `back` of the way from a column to the one before it.
    fn between(&self, row: usize, column: usize, back: f64) -> f64 {
        let at = row * (self.columns + 1) + column;
        let here = (1.0 - back) * self.worth[at];
        if back > 0.0 {
            here + back * self.worth[at - 1]
        } else {
            here
        }
    }

    /// What so many GPUs are worth beside so much, in GPUs.
    pub fn worth(&self, amount: u64, gpus: f64) -> f64 {
        if self.worth.is_empty() {
            return 0.0;
        }
        let width = self.columns + 1;
        let row = (amount as f64 / self.per_row).min(self.rows as f64);
        let column = (gpus * self.per_gpu).min(self.columns as f64);
        let (top, left) = (row as usize, column as usize);
        let (down, right) = (row - top as f64, column - left as f64);
        let below = (top + 1).min(self.rows);
        let beside = (left + 1).min(self.columns);
        let at = |row: usize| {
            let (near, far) = (
                self.worth[row * width + left],
                self.worth[row * width + beside],
            );
            near + right * (far - near)
        };
        let (near, far) = (at(top), at(below));
        near + down * (far - near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(share: f64, amount: f64, worth: f64) -> Need {
        Need {
            share,
            amount,
            worth,
        }
    }

    #[test]
    fn gpus_are_worth_what_the_rest_of_the_node_can_feed() {
        let grid = Grid::of(&[need(1.0, 10.0, 1.0)], 100, 8);
        let cases = [
            (0, 8.0, 0.0),
            (100, 8.0, 8.0),
            (40, 8.0, 4.0),
            (100, 0.0, 0.0),
            (100, 3.0, 3.0),
            (9, 8.0, 0.0),
        ];
        for (amount, gpus, expected) in cases {
            let worth = grid.worth(amount, gpus);
            assert!(
                (worth - expected).abs() < 0.6,
                "{amount} beside {gpus}: {worth}"
            );
        }
        assert!(grid.worth(1 << 40, 1e9) <= 8.0 + 1e-9);
    }

    #[test]
    fn nothing_wanted_is_nothing_worth() {
        for needs in [&[][..], &[need(1.0, 5.0, 0.0)]] {
            let grid = Grid::of(needs, 100, 8);
            assert!(grid.worth(100, 8.0).abs() < 1e-9);
        }
    }

    #[test]
    fn tables_stay_small_for_any_node() {
        let grid = Grid::of(&[need(1.0, 1.0, 1.0)], u64::MAX, u32::MAX);
        assert!(grid.worth.len() < 10_000);
        assert!(grid.worth(u64::MAX, 1e12).is_finite());
    }
}

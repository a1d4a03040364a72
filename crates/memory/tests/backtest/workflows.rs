//! Workflows for the backtest: published ones that came otherwise, and ones that are made up. All from a seed.

use std::fmt::Write as _;

/// A small generator of our own: the same seed gives the same numbers everywhere.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// From 0 to 1.
    pub fn part(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn below(&mut self, count: usize) -> usize {
        ((self.part() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Of a normal distribution.
    pub fn normal(&mut self) -> f64 {
        let (a, b) = (self.part().max(1e-12), self.part());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

#[derive(Clone)]
pub struct Row {
    seconds: f64,
    peak: f64,
    input: f64,
    requested: f64,
}

/// The runs of a workflow, by task.
#[derive(Clone)]
pub struct Runs(Vec<(String, Vec<Row>)>);

impl Runs {
    pub fn parse(text: &str) -> Self {
        let mut tasks: Vec<(String, Vec<Row>)> = Vec::new();
        for line in text.lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let number = |index: usize| cells[index].parse::<f64>().expect("a number");
            let row = Row {
                seconds: number(2),
                peak: number(3),
                input: number(4),
                requested: number(5),
            };
            match tasks.iter_mut().find(|(name, _)| name == cells[0]) {
                Some((_, rows)) => rows.push(row),
                None => tasks.push((cells[0].to_owned(), vec![row])),
            }
        }
        Self(tasks)
    }

    pub fn text(&self) -> String {
        let mut text =
            "task,start_s,duration_s,peak_bytes,input_bytes,requested_bytes\n".to_owned();
        for (name, rows) in &self.0 {
            for (start, row) in rows.iter().enumerate() {
                let Row {
                    seconds,
                    peak,
                    input,
                    requested,
                } = row;
                let _ = writeln!(
                    text,
                    "{name},{start},{seconds:.3},{peak:.0},{input:.0},{requested:.0}"
                );
            }
        }
        text
    }

    fn each(&self, mut change: impl FnMut(&[Row]) -> Vec<Row>) -> Self {
        let changed = self
            .0
            .iter()
            .map(|(name, rows)| (name.clone(), change(rows)));
        Self(changed.collect())
    }

    /// The same runs in another order.
    pub fn shuffled(&self, chance: &mut Chance) -> Self {
        self.each(|rows| {
            let mut rows = rows.to_vec();
            for last in (1..rows.len()).rev() {
                rows.swap(last, chance.below(last + 1));
            }
            rows
        })
    }

    /// Runs drawn from these, each a little different, of tasks that use more or less than these do.
    pub fn resampled(&self, chance: &mut Chance, jitter: f64) -> Self {
        self.each(|rows| {
            let scale = (0.5 * chance.normal()).exp();
            let drawn = rows.iter().map(|_| {
                let row = &rows[chance.below(rows.len())];
                Row {
                    seconds: row.seconds * (0.1 * chance.normal()).exp(),
                    peak: row.peak * scale * (jitter * chance.normal()).exp(),
                    input: row.input * (jitter * chance.normal()).exp(),
                    requested: row.requested * scale.max(1.0) * 1.2,
                }
            });
            drawn.collect()
        })
    }

    /// Peaks times a factor that depends on how far through its runs a task is, from 0 to 1.
    pub fn drifting(&self, factor: impl Fn(f64) -> f64) -> Self {
        self.each(|rows| {
            let through = |index: usize| index as f64 / rows.len() as f64;
            let changed = rows.iter().enumerate().map(|(index, row)| Row {
                peak: row.peak * factor(through(index)),
                ..row.clone()
            });
            changed.collect()
        })
    }

    /// Nobody knows how much a run reads.
    pub fn blind(&self) -> Self {
        self.each(|rows| {
            rows.iter()
                .map(|row| Row {
                    input: 0.0,
                    ..row.clone()
                })
                .collect()
        })
    }

    /// Tasks of each kind that is met: steady, growing with input by a power or from a floor or up to a ceiling, with rare large runs, with
    /// peaks that nothing explains, with a jump at some input, and with a long tail.
    pub fn made_up(chance: &mut Chance) -> Self {
        let task = |kind: usize| {
            let usual = (0.3 + 30.0 * chance.part().powi(2)) * (1_u64 << 30) as f64;
            let seconds = 180.0 * (1.5 * chance.normal()).exp();
            let input = 1e9 * chance.normal().exp();
            let reach = 0.2 + 0.8 * chance.part();
            let noise = 0.01 + 0.08 * chance.part();
            let power = 0.3 + 0.9 * chance.part();
            let count = 34 + chance.below(120);
            let rows = (0..count).map(|_| {
                let z = reach * chance.normal();
                let blur = (noise * chance.normal()).exp();
                let relative = match kind % 8 {
                    0 => 1.0 + 0.3 * noise * chance.normal().abs(),
                    1 => (power * z).exp() * blur,
                    2 => (0.5 + 0.5 * z.exp()) * blur,
                    3 => (0.2 + z.exp()).min(1.5) * blur,
                    4 => {
                        if chance.part() < 0.15 {
                            2.0 * blur
                        } else {
                            blur
                        }
                    }
                    5 => (0.4 * chance.normal()).exp(),
                    6 => {
                        if z > 0.0 {
                            1.8 * blur
                        } else {
                            blur
                        }
                    }
                    _ => (1.0 - 0.15 * chance.part().max(1e-9).ln()) * blur,
                };
                Row {
                    seconds: seconds * (0.5 * z + 0.2 * chance.normal()).exp(),
                    peak: usual * relative,
                    input: input * z.exp(),
                    requested: 8.0 * usual,
                }
            });
            (format!("task-{kind}"), rows.collect())
        };
        Self((0..16).map(task).collect())
    }
}

//! How far it is, how fast it goes and how long it still takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Listing,
    Waiting,
    Copying,
    Checking,
}

/// Counters that whoever works adds to and whoever watches reads, without waiting for each other.
#[derive(Debug, Default)]
pub struct Progress {
    stage: AtomicU8,
    files: AtomicU64,
    bytes: AtomicU64,
    done_files: AtomicU64,
    done_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
}

impl Progress {
    pub fn stage(&self) -> Stage {
        match self.stage.load(Relaxed) {
            0 => Stage::Listing,
            1 => Stage::Waiting,
            2 => Stage::Copying,
            _ => Stage::Checking,
        }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Relaxed);
    }

    pub(crate) fn begin(&self, files: u64, bytes: u64) {
        self.done_files.store(0, Relaxed);
        self.done_bytes.store(0, Relaxed);
        self.files.store(files, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.enter(Stage::Copying);
    }

    pub(crate) fn listed(&self, files: u64, bytes: u64) {
        self.files.store(files, Relaxed);
        self.bytes.store(bytes, Relaxed);
    }

    pub(crate) fn file_done(&self) {
        self.done_files.fetch_add(1, Relaxed);
    }

    pub(crate) fn fetched(&self, bytes: u64) {
        self.fetched_bytes.fetch_add(bytes, Relaxed);
        self.done_bytes.fetch_add(bytes, Relaxed);
    }

    /// A block arrived only in part and is begun anew.
    pub(crate) fn undone(&self, bytes: u64) {
        self.done_bytes.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn found(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Relaxed)
    }

    /// What came over the network, without what was there already.
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes.load(Relaxed)
    }

    pub fn files(&self) -> u64 {
        self.files.load(Relaxed)
    }

    pub fn done_files(&self) -> u64 {
        self.done_files.load(Relaxed)
    }
}

const WINDOW: Duration = Duration::from_secs(10);

/// The rate over the last seconds, from looks at the counters. Time is an argument.
#[derive(Debug, Default)]
pub struct Meter {
    looks: VecDeque<(Duration, u64, u64)>,
}

impl Meter {
    /// Looks, and tells it: `3.1 of 12.0 GiB, 240.0 MiB/s, 37 s left`.
    pub fn told(&mut self, now: Duration, progress: &Progress) -> String {
        let (fetched, files) = (progress.fetched_bytes(), progress.done_files());
        self.looks.push_back((now, fetched, files));
        while self.looks.len() > 2
            && self
                .looks
                .front()
                .is_some_and(|(then, ..)| now.saturating_sub(*then) > WINDOW)
        {
            self.looks.pop_front();
        }
        match progress.stage() {
            Stage::Listing => match progress.files() {
                0 => "asking what there is".to_owned(),
                files => format!("asking what there is, {files} files so far"),
            },
            Stage::Waiting => "another process is at it".to_owned(),
            Stage::Checking => format!("checking {} files", progress.files()),
            Stage::Copying => told(
                progress.done_bytes(),
                progress.bytes(),
                self.bytes_per_second(),
            ),
        }
    }

    pub fn bytes_per_second(&self) -> f64 {
        let (Some((then, before, _)), Some((now, after, _))) =
            (self.looks.front(), self.looks.back())
        else {
            return 0.0;
        };
        let seconds = now.saturating_sub(*then).as_secs_f64();
        if seconds > 0.0 {
            after.saturating_sub(*before) as f64 / seconds
        } else {
            0.0
        }
    }
}

fn told(done: u64, total: u64, rate: f64) -> String {
    let (total_text, done) = (amount(total), done.min(total));
    let (unit_bytes, unit) = unit(total);
    let done_text = if unit == "B" {
        done.to_string()
    } else {
        format!("{:.1}", done as f64 / unit_bytes)
    };
    let far = format!("{done_text} of {total_text}");
    if rate < 1.0 {
        return far;
    }
    let left = (total - done) as f64 / rate;
    format!("{far}, {}/s, {} left", amount(rate as u64), span(left))
}

fn unit(bytes: u64) -> (f64, &'static str) {
    match bytes {
        0..1024 => (1.0, "B"),
        1024..0x10_0000 => (1024.0, "KiB"),
        0x10_0000..0x4000_0000 => (1_048_576.0, "MiB"),
        0x4000_0000..0x100_0000_0000 => (1_073_741_824.0, "GiB"),
        _ => (1_099_511_627_776.0, "TiB"),
    }
}

pub(crate) fn amount(bytes: u64) -> String {
    match unit(bytes) {
        (_, "B") => format!("{bytes} B"),
        (unit, name) => format!("{:.1} {name}", bytes as f64 / unit),
    }
}

fn span(seconds: f64) -> String {
    match seconds.ceil() as u64 {
        s @ 0..100 => format!("{s} s"),
        s @ 100..6000 => format!("{} min", s.div_ceil(60)),
        s => format!("{} h", s.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_far_it_is() {
        const GIB: u64 = 1 << 30;
        for (done, total, rate, text) in [
            (0, 12 * GIB, 0.0, "0.0 of 12.0 GiB"),
            (
                3 * GIB + GIB / 10,
                12 * GIB,
                240.0 * 1_048_576.0,
                "3.1 of 12.0 GiB, 240.0 MiB/s, 38 s left",
            ),
            (1, 700, 10.0, "1 of 700 B, 10 B/s, 70 s left"),
            (
                0,
                700 * GIB,
                1_048_576.0,
                "0.0 of 700.0 GiB, 1.0 MiB/s, 200 h left",
            ),
            (9, 7, 1.0, "7 of 7 B, 1 B/s, 0 s left"),
        ] {
            assert_eq!(told(done, total, rate), text);
        }
    }

    #[test]
    fn the_rate_is_of_the_last_seconds() {
        let progress = Progress::default();
        progress.begin(1, 10 << 30);
        let mut meter = Meter::default();
        let at = Duration::from_secs;
        meter.told(at(0), &progress);
        progress.fetched(1 << 30);
        meter.told(at(5), &progress);
        for second in 6..30 {
            progress.fetched(1 << 20);
            meter.told(at(second), &progress);
        }
        assert!(
            (meter.bytes_per_second() - 1_048_576.0).abs() < 1.0,
            "{}",
            meter.bytes_per_second()
        );
    }
}

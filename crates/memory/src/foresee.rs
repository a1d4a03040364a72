//! What a live series of memory is up to: steady, climbing, leaking, spiking, or only full of page cache.
//!
//! A [`Watcher`] takes one sample after another and answers each with a [`Verdict`]. What it keeps does not grow with the samples:
//! some kilobytes, whatever the container does and however long.
//!
//! Invariant: no clock is read; the time of a sample comes with it, and one that jumps makes nothing worse than late.

mod climb;
mod ladder;
mod phases;
mod trend;
mod verdict;

use stoke_api::{Bytes, Span};

pub use verdict::{Place, Verdict};

use climb::{Against, Climb};
use ladder::{Block, Ladder};
use phases::Phases;

const MIB: f64 = 1_048_576.0;
/// A longer silence counts as this long: a clock that jumped is told from an agent that was away by neither.
const SILENCE_MAX: u64 = 600;
/// Steady is a verdict too, and needs as much to go by as a leak.
const STEADY_SECONDS_MIN: u32 = climb::LEAK_SECONDS_MIN;
const STEADY_SAMPLES_MIN: u32 = climb::BLOCKS_MIN as u32;
/// A process that holds less than this part of what was held a moment ago is another one.
const RESTARTED: f32 = 0.15;
/// The working set looks dangerous from this part of the limit on, and is not while what is held is below the other.
const LOOKS_FULL: f64 = 0.9;
const HELD_SAFE: f64 = 0.7;
const PAGE_CACHE_SAMPLES_MIN: u32 = 3;

/// One sample. What a machine does not tell is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point<'a> {
    pub anon: Bytes,
    pub shmem: Bytes,
    /// The part of it that cannot be reclaimed.
    pub kernel: Bytes,
    pub file_active: Bytes,
    pub file_inactive: Bytes,
    pub working_set: Bytes,
    pub limit: Option<Bytes>,
    /// The job's own count of steps, and what it says it is doing.
    pub step: Option<u64>,
    pub phase: Option<&'a str>,
}

impl Point<'_> {
    /// A sample of a GPU's memory.
    pub fn gpu(used: Bytes, total: Bytes) -> Self {
        Self {
            anon: used,
            working_set: used,
            limit: Some(total),
            ..Self::default()
        }
    }

    /// What the kernel cannot take back without killing. Where only the working set is told, that without its page cache.
    pub fn held(&self) -> Bytes {
        let parts = [self.shmem, self.kernel];
        let held = parts
            .iter()
            .fold(self.anon.0, |sum, part| sum.saturating_add(part.0));
        if held > 0 {
            return Bytes(held);
        }
        Bytes(self.working_set.0.saturating_sub(self.file_active.0))
    }
}

/// What runs of the same fingerprint did before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Earlier {
    /// Their highest unreclaimable memory. A run that goes there is doing what it always does.
    pub peak: Bytes,
    /// They leaked: their peak is no excuse, and less is needed to say it again.
    pub leaked: bool,
}

/// Watches one container's memory, or one GPU's.
#[derive(Debug, Clone, Default)]
pub struct Watcher {
    place: Place,
    earlier: Option<Earlier>,
    ladder: Ladder,
    phases: Phases,
    /// The caller's time of the last sample.
    heard: Option<u64>,
    /// Seconds since the watch began, as samples tell it.
    now: u32,
    /// Since when, and of how many samples, this process is known.
    since: u32,
    samples: u32,
    held: f32,
    found: Option<Found>,
    cached: u32,
}

/// A climb that was found, and until when it is said without being found again.
#[derive(Debug, Clone, Copy)]
struct Found {
    climb: Climb,
    until: u32,
    /// The highest the lower envelope has been since.
    top: f32,
}

impl Watcher {
    pub fn new(place: Place) -> Self {
        Self {
            place,
            ..Self::default()
        }
    }

    pub fn with_earlier(place: Place, earlier: Earlier) -> Self {
        Self {
            place,
            earlier: Some(earlier),
            ..Self::default()
        }
    }

    /// The process is known to be another one: what was seen so far says nothing about it. Phases are the job's and stay known.
    pub fn restart(&mut self) {
        self.ladder = Ladder::default();
        self.found = None;
        self.since = self.now;
        self.samples = 0;
    }

    /// Takes one sample in. `at` is in seconds since any fixed moment.
    pub fn observe(&mut self, at: u64, point: &Point<'_>) -> Verdict {
        let passed = self.heard.map_or(0, |heard| at.saturating_sub(heard));
        self.heard = Some(at);
        self.now = self.now.saturating_add(passed.min(SILENCE_MAX) as u32);
        let held = (point.held().0 as f64 / MIB) as f32;
        if held < self.held * RESTARTED {
            self.restart();
        }
        self.held = held;
        self.samples = self.samples.saturating_add(1);
        let limit = point.limit.filter(|limit| limit.0 > 0);
        let limit_mib = limit.map(|limit| (limit.0 as f64 / MIB) as f32);
        self.phases.observe(self.now, point.phase, held, limit_mib);
        let closed = self.ladder.push(Block {
            from: self.now,
            to: self.now,
            low: held,
            high: held,
            fall: 0.0,
            step: point
                .step
                .map_or(0, |step| u32::try_from(step).unwrap_or(u32::MAX)),
        });
        self.judge(closed, limit_mib, point.step.is_some());
        self.look_at_cache(point, limit);
        self.verdict(point, limit)
    }

    fn judge(&mut self, closed: usize, limit: Option<f32>, stepping: bool) {
        let against = Against {
            limit,
            usual: self
                .earlier
                .filter(|earlier| !earlier.leaked)
                .map_or(0.0, |earlier| (earlier.peak.0 as f64 / MIB) as f32),
            leaked: self.earlier.is_some_and(|earlier| earlier.leaked),
        };
        // What is too short for any verdict is most of the work, and need not be done.
        let long =
            |level: &usize| stepping || self.ladder.seconds(*level) >= climb::CLIMB_SECONDS_MIN;
        let windows = (0..closed)
            .filter(long)
            .filter_map(|level| self.ladder.window(level));
        let mut found: Option<Climb> = None;
        for climb in windows.filter_map(|window| climb::surest(&window, &against)) {
            let better = found.is_none_or(|found| {
                (climb.leak, climb.confidence) > (found.leak, found.confidence)
            });
            if better {
                found = Some(climb);
            }
        }
        self.forget();
        let Some(climb) = found else {
            return;
        };
        // What was called a leak stays one until it stops.
        let known = self.found.is_some_and(|found| found.climb.leak);
        if climb.leak || !known {
            self.found = Some(Found {
                climb,
                until: self.now.saturating_add(if climb.leak {
                    climb.seconds.saturating_mul(2)
                } else {
                    climb.seconds / 4
                }),
                top: climb.low,
            });
        }
    }

    /// Drops what was found once the series says otherwise: it fell back by half, or grew no further for twice as long as it was seen to.
    fn forget(&mut self) {
        let Some(found) = &mut self.found else {
            return;
        };
        let fallen = self.held < f32::midpoint(found.climb.from, found.climb.low);
        if fallen || self.now > found.until {
            self.found = None;
        } else if self.held > found.top && found.climb.leak {
            found.top = self.held;
            found.until = self
                .now
                .saturating_add(found.climb.seconds.saturating_mul(2));
        }
    }

    fn look_at_cache(&mut self, point: &Point<'_>, limit: Option<Bytes>) {
        let full = limit.is_some_and(|limit| {
            let part = |bytes: Bytes| bytes.0 as f64 / limit.0 as f64;
            part(point.working_set) >= LOOKS_FULL && part(point.held()) < HELD_SAFE
        });
        self.cached = if full {
            self.cached.saturating_add(1)
        } else {
            0
        };
    }

    fn verdict(&self, point: &Point<'_>, limit: Option<Bytes>) -> Verdict {
        let spiking = self.phases.spiking(self.held);
        match (&self.found, spiking) {
            (Some(found), _) if found.climb.leak => return self.leak(&found.climb, limit),
            (_, Some(spike)) => return spike,
            (Some(found), None) => return self.climbing(&found.climb, point, limit),
            (None, None) => {}
        }
        if let Some(limit) = limit.filter(|_| self.cached >= PAGE_CACHE_SAMPLES_MIN) {
            return Verdict::PageCache {
                working_set: point.working_set,
                held: point.held(),
                limit,
            };
        }
        if let Some(spike) = self.phases.spike() {
            return spike;
        }
        let seen = self.now.saturating_sub(self.since);
        if seen >= STEADY_SECONDS_MIN && self.samples >= STEADY_SAMPLES_MIN {
            Verdict::Steady
        } else {
            Verdict::TooEarly
        }
    }

    fn leak(&self, climb: &Climb, limit: Option<Bytes>) -> Verdict {
        Verdict::Leak {
            place: self.place,
            mib_per_hour: f64::from(climb.slope) * 3600.0,
            mib_per_step: climb.per_step.map(f64::from),
            oom_in: limit.map(|limit| self.until_full(climb, limit)),
            confidence: f64::from(climb.confidence),
        }
    }

    fn climbing(&self, climb: &Climb, point: &Point<'_>, limit: Option<Bytes>) -> Verdict {
        let Some(limit) = limit else {
            return Verdict::Steady;
        };
        Verdict::Climbing {
            place: self.place,
            used: point.held(),
            limit,
            oom_in: self.until_full(climb, limit),
            confidence: f64::from(climb.confidence),
        }
    }

    /// From where it is now, at the speed it was seen to have.
    fn until_full(&self, climb: &Climb, limit: Bytes) -> Span {
        let high = f64::from(self.held.max(climb.high));
        let room = (limit.0 as f64 / MIB - high).max(0.0);
        let seconds = room / f64::from(climb.slope.max(1e-6));
        Span::seconds(seconds as u64)
    }
}

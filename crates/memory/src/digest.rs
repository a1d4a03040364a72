//! A container's samples, drawn together as they come: what is kept does not grow with how long it runs.
//!
//! A [`Digest`] is fed by whoever samples. What it tells is plain data ([`ContainerDigest`]) that goes on the pod when the container
//! ends, can be taken up again by a node that was restarted meanwhile, and adds up over workers and runs ([`merge`]).

mod levels;
mod slope;

use std::time::Duration;

use stoke_api::contract::JobStatus;
use stoke_api::digest::{ContainerDigest, GpuDigest, PhaseDigest, Steps};

use crate::sample::Sample;

pub use levels::quantile;

/// Points of the series. When they are full, each two become one and the interval doubles.
const POINTS_MAX: usize = 64;
const LEVELS_MAX: usize = 96;
const PHASE_LEVELS_MAX: usize = 24;
const PHASES_MAX: usize = 8;
const GPUS_MAX: usize = 16;
/// A longer silence counts as this much: the clock jumped, or the machine slept.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The names of phases that the shape suggests, where the program does not name any.
const STARTUP: &str = "startup";
const TRAIN: &str = "train";
/// Phases beyond the eighth.
const OTHER: &str = "other";

/// What one container used so far.
#[derive(Debug, Clone, Default)]
pub struct Digest {
    told: ContainerDigest,
    elapsed: Duration,
    stepping_since: Duration,
    before: Option<Before>,
    startup: Startup,
}

/// What the last sample left behind.
#[derive(Debug, Clone, Copy)]
struct Before {
    at: Duration,
    used: u64,
    cache: u64,
    peak: Option<u64>,
}

/// Whether the container has reached the height at which it works. A program that says its phases is believed instead.
#[derive(Debug, Clone, Copy, Default)]
struct Startup {
    is_over: bool,
    /// When it was last measured against, and how high it was.
    mark: Option<(Duration, u64)>,
}

impl Startup {
    /// Over that long it may grow by a twentieth and still count as settled.
    const WINDOW: Duration = Duration::from_secs(10);

    fn observe(&mut self, elapsed: Duration, used: u64) {
        match self.mark {
            None => self.mark = Some((elapsed, used)),
            Some((at, height)) if elapsed.saturating_sub(at) >= Self::WINDOW => {
                self.is_over |= used <= height.saturating_add(height / 20);
                self.mark = Some((elapsed, used));
            }
            Some(_) => {}
        }
    }
}

impl Digest {
    /// Goes on from what was told before, by a process that is gone.
    pub fn resume(told: ContainerDigest) -> Self {
        let is_over = told.phases.contains_key(TRAIN);
        let elapsed = Duration::from_secs(told.seconds);
        let stepping = told.steps.map_or(0, |steps| steps.seconds);
        Self {
            elapsed,
            stepping_since: elapsed.saturating_sub(Duration::from_secs(stepping)),
            startup: Startup {
                is_over,
                mark: None,
            },
            before: None,
            told,
        }
    }

    /// How many steps the program has told of, where it tells them.
    pub fn steps(&self) -> Option<u64> {
        let steps = self.told.steps?;
        Some(steps.last.saturating_sub(steps.first))
    }

    /// `at` is since any fixed moment. `said` is what the program says of itself; empty if it says nothing.
    pub fn add(&mut self, at: Duration, sample: &Sample, said: &JobStatus) {
        let since = self.before.map(|before| at.saturating_sub(before.at));
        let spent = since.unwrap_or_default().min(SILENCE_MAX);
        self.elapsed = self.elapsed.saturating_add(spent);
        let used = self.used(sample);
        let told = &mut self.told;
        told.samples = told.samples.saturating_add(1);
        told.seconds = self.elapsed.as_secs();
        let raise = |most: &mut u64, amount: u64| *most = (*most).max(amount);
        raise(
            &mut told.peak_bytes,
            sample.peak.unwrap_or(0).max(sample.usage),
        );
        raise(&mut told.peak_working_set_bytes, sample.working_set);
        raise(&mut told.peak_unreclaimable_bytes, used);
        raise(&mut told.shm_peak_bytes, sample.shmem);
        raise(&mut told.oom_kills, sample.oom_kills);
        raise(&mut told.limit_events, sample.limit_events);
        if let (Some(before), Some(now)) = (told.limit_bytes, sample.limit)
            && now > before
        {
            told.raises = told.raises.saturating_add(1);
        }
        told.limit_bytes = sample.limit;
        told.input_bytes = said.input_bytes.or(told.input_bytes);
        if let Some(usec) = sample.stalled_usec {
            told.stalled_seconds = Some(usec / 1_000_000);
        }
        self.step(said.step);
        self.startup.observe(self.elapsed, sample.unreclaimable());
        self.draw(used);
        let millis = millis(spent);
        levels::spend(
            &mut self.told.levels,
            sample.unreclaimable(),
            millis,
            LEVELS_MAX,
        );
        let phase =
            said.phase
                .as_deref()
                .unwrap_or(if self.startup.is_over { TRAIN } else { STARTUP });
        self.phase(phase, used, sample.unreclaimable(), millis);
        self.before = Some(Before {
            at,
            used: sample.unreclaimable(),
            cache: sample.cache(),
            peak: sample.peak,
        });
    }

    /// What a GPU of the container's held; for the time since the last sample.
    pub fn add_gpu(&mut self, id: &str, bytes: u64, since: Duration) {
        let gpus = &mut self.told.gpus;
        if gpus.len() >= GPUS_MAX && !gpus.contains_key(id) {
            return;
        }
        let gpu = gpus.entry(id.to_owned()).or_default();
        gpu.peak_bytes = gpu.peak_bytes.max(bytes);
        let spent = millis(since.min(SILENCE_MAX));
        levels::spend(&mut gpu.levels, bytes, spent, PHASE_LEVELS_MAX);
    }

    /// What it uses of the node's disk.
    pub fn add_storage(&mut self, bytes: u64) {
        let most = self.told.storage_peak_bytes.unwrap_or(0).max(bytes);
        self.told.storage_peak_bytes = Some(most);
    }

    /// It is over. `peak` is the kernel's last word on its use, and `ran` how long it was: the last sample may be older, or there may be
    /// none of a short run.
    pub fn end(&mut self, peak: Option<u64>, ran: Option<Duration>, oom_killed: bool) {
        let rest = ran.map_or(Duration::ZERO, |ran| ran.saturating_sub(self.elapsed));
        let before = self.before;
        let cache = before.map_or(0, |before| before.cache);
        let old = before.and_then(|before| before.peak).unwrap_or(0);
        let spike = peak.filter(|peak| *peak > old);
        let used = spike.map_or(0, |peak| peak.saturating_sub(cache));
        let told = &mut self.told;
        told.peak_bytes = told.peak_bytes.max(peak.unwrap_or(0));
        told.peak_working_set_bytes = told.peak_working_set_bytes.max(used);
        told.peak_unreclaimable_bytes = told.peak_unreclaimable_bytes.max(used);
        told.oom_killed |= oom_killed;
        let last = before.map_or(used, |before| before.used);
        self.elapsed = self.elapsed.saturating_add(rest);
        self.told.seconds = self.elapsed.as_secs();
        self.draw(used.max(last));
        levels::spend(&mut self.told.levels, last, millis(rest), LEVELS_MAX);
    }

    /// The most used so far, page cache included.
    pub fn peak(&self) -> u64 {
        self.told.peak_bytes
    }

    pub fn input(&self) -> Option<u64> {
        self.told.input_bytes
    }

    /// None for a container that was never seen.
    pub fn told(&self, id: &str) -> Option<ContainerDigest> {
        if self.told.samples == 0 && self.told.peak_bytes == 0 {
            return None;
        }
        let mut told = self.told.clone();
        id.clone_into(&mut told.id);
        summarize(&mut told);
        Some(told)
    }

    /// Unreclaimable memory, and what the kernel saw of it since the last sample: where its own peak rose, it stood that high, less the
    /// page cache there was.
    fn used(&self, sample: &Sample) -> u64 {
        let sampled = sample.unreclaimable();
        let Some(before) = self.before else {
            return sampled;
        };
        let risen = sample
            .peak
            .filter(|peak| before.peak.is_some_and(|old| *peak > old));
        let spike = risen.map(|peak| peak.saturating_sub(before.cache.max(sample.cache())));
        sampled.max(spike.unwrap_or(0))
    }

    fn step(&mut self, step: Option<u64>) {
        let Some(step) = step else { return };
        // Where it stood before it loaded a checkpoint is no step of this run.
        let known = self.told.steps.filter(|known| known.last > 0);
        let known = known.filter(|known| known.last <= step);
        if known.is_none() {
            // The first one, or counted from the beginning again.
            self.stepping_since = self.elapsed;
        }
        self.told.steps = Some(Steps {
            first: known.map_or(step, |known| known.first),
            last: step,
            seconds: self.elapsed.saturating_sub(self.stepping_since).as_secs(),
        });
    }

    fn draw(&mut self, bytes: u64) {
        let series = &mut self.told.series;
        series.every_seconds = series.every_seconds.max(1);
        let second = self.elapsed.as_secs();
        while second / series.every_seconds >= POINTS_MAX as u64 {
            series.every_seconds = series.every_seconds.saturating_mul(2);
            let pairs = series.mib.chunks(2);
            series.mib = pairs
                .map(|pair| pair.iter().copied().max().unwrap_or(0))
                .collect();
        }
        let index = (second / series.every_seconds) as usize;
        let mib = bytes >> 20;
        series.mib.truncate(POINTS_MAX);
        if series.mib.len() <= index {
            // A gap is drawn at the height it was left at.
            let height = series.mib.last().copied().unwrap_or(mib);
            series.mib.resize(index, height);
            series.mib.push(mib);
        }
        if let Some(point) = series.mib.get_mut(index) {
            *point = (*point).max(mib);
        }
    }

    fn phase(&mut self, name: &str, peak: u64, used: u64, millis: u64) {
        let phases = &mut self.told.phases;
        let is_known = phases.contains_key(name) || phases.len() < PHASES_MAX;
        let name = if is_known { name } else { OTHER };
        let phase = phases.entry(name.to_owned()).or_default();
        phase.peak_bytes = phase.peak_bytes.max(peak);
        levels::spend(&mut phase.levels, used, millis, PHASE_LEVELS_MAX);
    }
}

/// Two digests as one: of two workers of a gang, or of two runs.
pub fn merge(into: &mut ContainerDigest, other: &ContainerDigest) {
    // What cannot be added up is told of the longer run.
    if other.seconds >= into.seconds {
        into.series = other.series.clone();
        into.slope = other.slope;
        into.steps = other.steps;
        into.limit_bytes = other.limit_bytes;
        into.id.clone_from(&other.id);
    }
    let raise = |most: &mut u64, amount: u64| *most = (*most).max(amount);
    raise(&mut into.peak_bytes, other.peak_bytes);
    raise(
        &mut into.peak_working_set_bytes,
        other.peak_working_set_bytes,
    );
    raise(
        &mut into.peak_unreclaimable_bytes,
        other.peak_unreclaimable_bytes,
    );
    raise(&mut into.shm_peak_bytes, other.shm_peak_bytes);
    raise(&mut into.seconds, other.seconds);
    into.storage_peak_bytes = into.storage_peak_bytes.max(other.storage_peak_bytes);
    into.input_bytes = into.input_bytes.max(other.input_bytes);
    into.stalled_seconds = into.stalled_seconds.max(other.stalled_seconds);
    into.raises = into.raises.max(other.raises);
    into.oom_killed |= other.oom_killed;
    into.samples = into.samples.saturating_add(other.samples);
    into.oom_kills = into.oom_kills.saturating_add(other.oom_kills);
    into.limit_events = into.limit_events.saturating_add(other.limit_events);
    levels::merge(&mut into.levels, &other.levels, LEVELS_MAX);
    for (name, other) in &other.phases {
        let is_known = into.phases.contains_key(name) || into.phases.len() < PHASES_MAX;
        let name = if is_known { name } else { OTHER };
        let phase = into.phases.entry(name.to_owned()).or_default();
        raise(&mut phase.peak_bytes, other.peak_bytes);
        levels::merge(&mut phase.levels, &other.levels, PHASE_LEVELS_MAX);
    }
    for (id, other) in &other.gpus {
        if into.gpus.len() >= GPUS_MAX && !into.gpus.contains_key(id) {
            continue;
        }
        let gpu = into.gpus.entry(id.clone()).or_default();
        raise(&mut gpu.peak_bytes, other.peak_bytes);
        levels::merge(&mut gpu.levels, &other.levels, PHASE_LEVELS_MAX);
    }
    let slope = into.slope;
    summarize(into);
    into.slope = slope;
}

/// What follows from the rest.
fn summarize(told: &mut ContainerDigest) {
    let median = |levels: &_| quantile(levels, 500);
    // After a single sample no time has passed yet, but it is known how high it stood.
    let alone = told.series.mib.last().map_or(0, |mib| mib << 20);
    told.median_bytes = median(&told.levels).unwrap_or(alone);
    for PhaseDigest {
        seconds,
        peak_bytes,
        median_bytes,
        levels,
    } in told.phases.values_mut()
    {
        *seconds = levels::total_millis(levels) / 1000;
        *median_bytes = median(levels).unwrap_or(*peak_bytes);
    }
    for GpuDigest {
        peak_bytes,
        median_bytes,
        levels,
    } in told.gpus.values_mut()
    {
        *median_bytes = median(levels).unwrap_or(*peak_bytes);
    }
    let startup = told.phases.get(STARTUP).map_or(0, |phase| phase.seconds);
    told.slope = slope::of(&told.series, startup, told.steps);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

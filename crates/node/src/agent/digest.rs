//! A container's samples, drawn together as they come: what is kept does not grow with how long it runs.

use std::time::Duration;

use stoke_api::digest::{ContainerDigest, Series};

use crate::cgroup::MemorySample;

/// Points of the series. When they are full, each two become one and the interval doubles.
const POINTS_MAX: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Digest {
    samples: u64,
    first: Option<Duration>,
    last: Duration,
    peak: u64,
    peak_working_set: u64,
    peak_unreclaimable: u64,
    limit: Option<u64>,
    oom_kills: u64,
    limit_events: u64,
    /// Seconds of each point; a power of two.
    every: u64,
    /// The highest working set of each interval, in bytes.
    points: Vec<u64>,
}

impl Digest {
    /// `at` is since any fixed moment.
    pub(super) fn add(&mut self, at: Duration, sample: &MemorySample) {
        let first = *self.first.get_or_insert(at);
        self.last = self.last.max(at);
        self.samples += 1;
        let unreclaimable = [sample.shmem_bytes, sample.kernel_bytes]
            .into_iter()
            .fold(sample.anon_bytes, u64::saturating_add);
        let peak = sample.peak_bytes.unwrap_or(0).max(sample.usage_bytes);
        self.peak = self.peak.max(peak);
        self.peak_working_set = self.peak_working_set.max(sample.working_set_bytes);
        self.peak_unreclaimable = self.peak_unreclaimable.max(unreclaimable);
        self.limit = sample.limit_bytes;
        self.oom_kills = self.oom_kills.max(sample.oom_kills);
        self.limit_events = self.limit_events.max(sample.limit_events);
        self.every = self.every.max(1);
        self.draw(at.saturating_sub(first).as_secs(), sample.working_set_bytes);
    }

    fn draw(&mut self, second: u64, bytes: u64) {
        while second / self.every >= POINTS_MAX as u64 {
            self.every *= 2;
            self.points = self
                .points
                .chunks(2)
                .map(|pair| pair.iter().copied().max().unwrap_or(0))
                .collect();
        }
        let index = (second / self.every) as usize;
        if self.points.len() <= index {
            // A gap is drawn at the height it was left at.
            let height = self.points.last().copied().unwrap_or(bytes);
            self.points.resize(index, height);
            self.points.push(bytes);
        }
        if let Some(point) = self.points.get_mut(index) {
            *point = (*point).max(bytes);
        }
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// None for a container that was never seen.
    pub(super) fn told(&self, id: &str) -> Option<ContainerDigest> {
        let first = self.first?;
        Some(ContainerDigest {
            id: id.to_owned(),
            samples: self.samples,
            seconds: self.last.saturating_sub(first).as_secs(),
            peak_bytes: self.peak,
            peak_working_set_bytes: self.peak_working_set,
            peak_unreclaimable_bytes: self.peak_unreclaimable,
            limit_bytes: self.limit,
            oom_kills: self.oom_kills,
            limit_events: self.limit_events,
            series: Series {
                every_seconds: self.every,
                mib: self.points.iter().map(|bytes| bytes >> 20).collect(),
            },
            ..ContainerDigest::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(working_set: u64) -> MemorySample {
        MemorySample {
            usage_bytes: working_set + 10,
            working_set_bytes: working_set,
            anon_bytes: working_set / 2,
            kernel_bytes: 5,
            limit_bytes: Some(1 << 40),
            ..MemorySample::default()
        }
    }

    #[test]
    fn a_day_is_as_small_as_a_minute() {
        let mut digest = Digest::default();
        assert_eq!(digest.told("x"), None);
        for second in 0..86_400 {
            let spike = if second == 40_000 { 7 << 30 } else { 1 << 30 };
            digest.add(Duration::from_secs(1_000_000 + second), &sample(spike));
        }
        let told = digest.told("x").unwrap();
        assert_eq!(told.seconds, 86_399);
        assert_eq!(told.peak_bytes, (7 << 30) + 10);
        assert_eq!(told.series.every_seconds, 2048);
        let spikes = told.series.mib.iter().filter(|mib| **mib == 7 << 10);
        assert_eq!(spikes.count(), 1, "the spike is still seen");
        assert_eq!(told.series.mib[40_000 / 2048], 7 << 10);
        let text = serde_json::to_string(&told).unwrap();
        assert!(text.len() < 800, "{} bytes: {text}", text.len());
    }

    #[test]
    fn what_the_kernel_counted_is_believed() {
        let mut digest = Digest::default();
        let peaked = MemorySample {
            peak_bytes: Some(9 << 30),
            oom_kills: 1,
            limit_events: 3,
            ..sample(1 << 20)
        };
        digest.add(Duration::ZERO, &peaked);
        digest.add(Duration::from_secs(1), &sample(1 << 20));
        let told = digest.told("x").unwrap();
        assert_eq!(told.peak_bytes, 9 << 30);
        assert_eq!((told.oom_kills, told.limit_events), (1, 3));
        assert_eq!(told.peak_unreclaimable_bytes, (1 << 19) + 5);
    }

    proptest! {
        #[test]
        fn the_series_is_bounded_and_has_the_peak(
            samples in prop::collection::vec((0_u64..500_000, 0_u64..1 << 40), 1..200)
        ) {
            let mut digest = Digest::default();
            let mut at: Vec<u64> = samples.iter().map(|(second, _)| *second).collect();
            at.sort_unstable();
            for (second, (_, bytes)) in at.iter().zip(&samples) {
                digest.add(Duration::from_secs(*second), &sample(*bytes));
            }
            let told = digest.told("x").unwrap();
            let highest = samples.iter().map(|(_, bytes)| bytes >> 20).max();
            prop_assert!(told.series.mib.len() <= POINTS_MAX);
            prop_assert!(told.series.every_seconds.is_power_of_two());
            prop_assert_eq!(told.series.mib.iter().copied().max(), highest);
            prop_assert_eq!(told.samples, samples.len() as u64);
        }
    }
}

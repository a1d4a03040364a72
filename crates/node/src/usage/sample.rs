//! Samples a pod's containers once a second, through its shim, and more often while one of them may need help at once.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{ContainerUsage, GpuUsage, Usage};
use crate::gpu::{Gpu, GpuSource};
use crate::idle::{Idle, Signs, log_bytes};
use crate::pod::watched::{Deed, Watched};
use crate::shim::Connection;
use crate::shim::protocol::{self, Request, Response};

const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// While memory grows towards a limit that can be raised.
const SAMPLE_QUICKLY: Duration = Duration::from_millis(200);
/// Ten minutes of samples a container.
const SAMPLES_MAX: usize = 600;
/// A shim that does not answer for this long is asked again on a new connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What is needed to sample a pod.
pub(crate) struct Sampler {
    pub(crate) pod_dir: PathBuf,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) source: Arc<dyn GpuSource>,
    pub(crate) watched: Watched,
    /// Where its job asks to be told of a worker that does nothing.
    pub(crate) idle: Option<Idle>,
}

impl Sampler {
    /// Samples until nobody listens; hands in what is worth publishing and what is to be done.
    pub(crate) async fn run(mut self, publish: mpsc::Sender<Usage>, deeds: mpsc::Sender<Deed>) {
        let mut shim: Option<Connection> = None;
        let mut history = History::default();
        let mut published: Option<(Usage, Instant)> = None;
        let mut next = Instant::now();
        let mut whole_second = next;
        let begun = next;
        loop {
            tokio::select! {
                () = publish.closed() => return,
                () = sleep_until(next) => {}
            }
            let now = Instant::now();
            next = now + SAMPLE_EVERY;
            let Some(containers) = self.ask(&mut shim).await else {
                continue;
            };
            for deed in self.watched.look(&containers) {
                // One that acts more slowly than memory grows is told anew at a later look.
                if let Err(error) = deeds.try_send(deed) {
                    self.watched.left_out(error.into_inner());
                }
            }
            if self.watched.is_urgent() {
                next = now + SAMPLE_QUICKLY;
            }
            if now < whole_second {
                continue;
            }
            whole_second = now + SAMPLE_EVERY;
            history.add(now, &containers);
            let at = now.duration_since(begun);
            let mut now = self.usage(&history, &containers);
            now.idle = self.look_for_life(at, &containers, &now);
            for gpu in &now.gpus {
                if let Some(bytes) = gpu.memory_bytes {
                    self.watched.gpu(&gpu.id, bytes, SAMPLE_EVERY);
                }
            }
            let outdated = match &published {
                Some((before, at)) => before.is_outdated_by(&now, at.elapsed()),
                // The first picture waits for a second sample, without which there is no CPU use to tell.
                None => history.is_settled(),
            };
            if outdated {
                // A publisher that is behind has newer things to write first; the next second brings another chance.
                if publish.try_send(now.clone()).is_ok() {
                    published = Some((now, Instant::now()));
                }
            }
        }
    }

    /// What is to be said of a worker that does nothing.
    fn look_for_life(
        &mut self,
        at: Duration,
        containers: &[protocol::ContainerUsage],
        usage: &Usage,
    ) -> Option<String> {
        let idle = self.idle.as_mut()?;
        let worker = self.watched.worker()?;
        if idle.is_due(at) {
            let own = containers.iter().find(|container| container.name == worker);
            let busy = |gpu: &GpuUsage| gpu.busy_percent.is_some_and(|percent| percent > 0);
            idle.look(
                at,
                Signs {
                    cpu_usec: own.and_then(|container| container.cpu_usec),
                    log_bytes: log_bytes(&self.pod_dir, worker),
                    step: self.watched.step(),
                    gpu_is_busy: usage.gpus.iter().any(busy),
                },
            );
        }
        idle.told()
    }

    async fn ask(&self, shim: &mut Option<Connection>) -> Option<Vec<protocol::ContainerUsage>> {
        let ask = async {
            let mut connection = match shim.take() {
                Some(connection) => connection,
                None => Connection::open(&self.pod_dir).await.ok()?,
            };
            match connection.request(&Request::Usage).await {
                Ok(Response::Usage { containers }) => {
                    *shim = Some(connection);
                    Some(containers)
                }
                _ => None,
            }
        };
        tokio::time::timeout(ANSWER_WITHIN, ask)
            .await
            .ok()
            .flatten()
    }

    fn usage(&self, history: &History, containers: &[protocol::ContainerUsage]) -> Usage {
        let mut usage = Usage {
            limit_bytes: Some(0),
            ..Usage::default()
        };
        for container in containers {
            let own = ContainerUsage {
                memory_bytes: container.memory.working_set_bytes,
                recent_peak_bytes: history.peak_bytes(&container.name),
                limit_bytes: container.memory.limit_bytes,
                cpu_millicores: history.cpu_millicores(&container.name),
            };
            usage.memory_bytes = usage.memory_bytes.saturating_add(own.memory_bytes);
            usage.limit_bytes = usage
                .limit_bytes
                .zip(own.limit_bytes)
                .map(|(sum, limit)| sum.saturating_add(limit));
            usage.cpu_millicores = usage.cpu_millicores.saturating_add(own.cpu_millicores);
            usage.containers.insert(container.name.clone(), own);
        }
        if containers.is_empty() {
            usage.limit_bytes = None;
        }
        let ids: Vec<String> = self
            .gpus
            .iter()
            .filter(|gpu| !gpu.simulated)
            .map(|gpu| gpu.id.clone())
            .collect();
        let readings = if ids.is_empty() {
            Vec::new()
        } else {
            self.source.read(&ids)
        };
        usage.gpus = self
            .gpus
            .iter()
            .map(|gpu| {
                let reading = readings.iter().find(|reading| reading.id == gpu.id);
                GpuUsage {
                    index: gpu.index,
                    id: gpu.id.clone(),
                    memory_bytes: reading.map(|reading| reading.memory_used_bytes),
                    busy_percent: reading.map(|reading| reading.busy_percent),
                }
            })
            .collect();
        usage
    }
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    memory_bytes: u64,
    cpu_usec: Option<u64>,
}

/// The last samples of each container, bounded.
#[derive(Debug, Default)]
struct History {
    containers: BTreeMap<String, VecDeque<Sample>>,
}

impl History {
    fn add(&mut self, at: Instant, containers: &[protocol::ContainerUsage]) {
        self.containers
            .retain(|name, _| containers.iter().any(|container| container.name == *name));
        for container in containers {
            let samples = self.containers.entry(container.name.clone()).or_default();
            let restarted = samples
                .back()
                .is_some_and(|last| container.cpu_usec < last.cpu_usec);
            if restarted {
                samples.clear();
            }
            if samples.len() == SAMPLES_MAX {
                samples.pop_front();
            }
            samples.push_back(Sample {
                at,
                memory_bytes: container.memory.working_set_bytes,
                cpu_usec: container.cpu_usec,
            });
        }
    }

    fn is_settled(&self) -> bool {
        !self.containers.is_empty() && self.containers.values().all(|samples| samples.len() > 1)
    }

    fn peak_bytes(&self, container: &str) -> u64 {
        let samples = self.containers.get(container).into_iter().flatten();
        samples.map(|sample| sample.memory_bytes).max().unwrap_or(0)
    }

    /// Over the last five samples, which is about how often it is published.
    fn cpu_millicores(&self, container: &str) -> u64 {
        let Some(samples) = self.containers.get(container) else {
            return 0;
        };
        let (Some(last), Some(first)) = (
            samples.back(),
            samples
                .iter()
                .rev()
                .nth(5.min(samples.len().saturating_sub(1))),
        ) else {
            return 0;
        };
        let (Some(until), Some(from)) = (last.cpu_usec, first.cpu_usec) else {
            return 0;
        };
        let elapsed = last.at.duration_since(first.at).as_micros();
        if elapsed == 0 {
            return 0;
        }
        u64::try_from(u128::from(until.saturating_sub(from)) * 1000 / elapsed).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::MemorySample;

    fn container(memory: u64, cpu_usec: u64) -> Vec<protocol::ContainerUsage> {
        vec![protocol::ContainerUsage {
            name: "c".to_owned(),
            memory: MemorySample {
                working_set_bytes: memory,
                ..MemorySample::default()
            },
            cpu_usec: Some(cpu_usec),
        }]
    }

    #[test]
    fn history_is_bounded_and_gives_rates() {
        let start = Instant::now();
        let mut history = History::default();
        for second in 0..2000_u64 {
            // One and a half cores.
            history.add(
                start + Duration::from_secs(second),
                &container(if second == 1990 { 500 } else { 100 }, second * 1_500_000),
            );
        }
        assert_eq!(history.containers["c"].len(), SAMPLES_MAX);
        assert_eq!(history.cpu_millicores("c"), 1500);
        assert_eq!(history.peak_bytes("c"), 500);
        assert!(history.is_settled());
        history.add(start + Duration::from_secs(2001), &container(10, 5));
        assert_eq!(
            history.peak_bytes("c"),
            10,
            "a restarted container begins anew"
        );
        assert_eq!(history.cpu_millicores("c"), 0);
        history.add(start + Duration::from_secs(2002), &[]);
        assert!(history.containers.is_empty(), "an ended one is forgotten");
    }
}

//! Which phases of a job take memory for as long as they last.

use stoke_api::Bytes;

use super::MIB;
use super::verdict::Verdict;

/// Phases remembered. A job has five or so; one that makes up names must not cost more than that.
const PHASES_MAX: usize = 8;
const NAME_MAX: usize = 40;
/// A spike is at least this part of the limit, or of what was held before it.
const SPIKE_OF_LIMIT: f32 = 0.05;
const SPIKE_OF_HELD: f32 = 0.1;
/// Given back: all but this part of it.
const KEPT: f32 = 0.25;
/// How long a phase has to give it back after its end.
const GRACE_SECONDS: u32 = 60;

#[derive(Debug, Clone, Default)]
pub(super) struct Phases {
    known: Vec<Known>,
    /// The phase that is on.
    visit: Option<Visit>,
    /// One that ended and may still give back what it took.
    ended: Option<(Visit, u32)>,
}

#[derive(Debug, Clone)]
struct Known {
    name: String,
    visits: u32,
    spikes: u32,
    by: f32,
    to: f32,
}

#[derive(Debug, Clone, Copy)]
struct Visit {
    phase: usize,
    before: f32,
    top: f32,
    limit: Option<f32>,
}

impl Visit {
    fn took(&self) -> f32 {
        self.top - self.before
    }

    fn is_spike(&self) -> bool {
        let least = match self.limit {
            Some(limit) => limit * SPIKE_OF_LIMIT,
            None => self.before * SPIKE_OF_HELD,
        };
        self.took() > least.max(1.0)
    }
}

impl Phases {
    /// `held` and `limit` in MiB.
    pub(super) fn observe(&mut self, now: u32, phase: Option<&str>, held: f32, limit: Option<f32>) {
        self.settle(now, held);
        let phase = phase.and_then(|name| self.index(name));
        match (&mut self.visit, phase) {
            (Some(visit), Some(phase)) if visit.phase == phase => {
                visit.top = visit.top.max(held);
                visit.limit = limit;
            }
            (visit, phase) => {
                if let Some(visit) = visit.take() {
                    self.ended = Some((visit, now));
                }
                *visit = phase.map(|phase| Visit {
                    phase,
                    before: held,
                    top: held,
                    limit,
                });
                self.settle(now, held);
            }
        }
    }

    /// Whether what the phase that ended took is back.
    fn settle(&mut self, now: u32, held: f32) {
        let Some((visit, since)) = self.ended else {
            return;
        };
        let back = held <= visit.before + KEPT * visit.took();
        let over = now.saturating_sub(since) >= GRACE_SECONDS;
        if !back && !over {
            return;
        }
        self.ended = None;
        let Some(known) = self.known.get_mut(visit.phase) else {
            return;
        };
        known.visits += 1;
        if back && visit.is_spike() {
            known.spikes += 1;
            known.by = known.by.max(visit.took());
            known.to = known.to.max(visit.top);
        }
    }

    fn index(&mut self, name: &str) -> Option<usize> {
        let name = name
            .char_indices()
            .nth(NAME_MAX)
            .map_or(name, |(end, _)| &name[..end]);
        if name.is_empty() {
            return None;
        }
        if let Some(index) = self.known.iter().position(|known| known.name == name) {
            return Some(index);
        }
        if self.known.len() == PHASES_MAX {
            return None;
        }
        self.known.push(Known {
            name: name.to_owned(),
            visits: 0,
            spikes: 0,
            by: 0.0,
            to: 0.0,
        });
        Some(self.known.len() - 1)
    }

    /// The highest spike of a phase that has one at most visits.
    pub(super) fn spike(&self) -> Option<Verdict> {
        let tied = self
            .known
            .iter()
            .filter(|known| known.spikes > 0 && known.spikes * 2 >= known.visits);
        let highest = tied.max_by(|a, b| a.to.total_cmp(&b.to))?;
        Some(highest.told())
    }

    /// The spike that is going on, if its phase did the same before and as high.
    pub(super) fn spiking(&self, held: f32) -> Option<Verdict> {
        let visit = self.visit.or(self.ended.map(|(visit, _)| visit))?;
        let known = self.known.get(visit.phase)?;
        let again = known.spikes > 0 && held <= known.to + KEPT * known.by;
        (again && visit.is_spike()).then(|| known.told())
    }
}

impl Known {
    fn told(&self) -> Verdict {
        let bytes = |mib: f32| Bytes((f64::from(mib) * MIB) as u64);
        Verdict::Spike {
            phase: self.name.clone(),
            by: bytes(self.by),
            to: bytes(self.to),
        }
    }
}

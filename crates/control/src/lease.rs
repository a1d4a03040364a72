//! Who leads, decided over one Lease: `coordination.k8s.io/v1`, as Kubernetes' own controllers use it.
//!
//! This file decides and does nothing: what was read or written, and the local clock, are arguments. [`term`] asks the API server,
//! [`fence`] keeps a loser from writing.
//!
//! How two are kept apart, though no clock can be trusted but one's own, and that only in how fast it goes:
//!
//! - Times in the lease are for people. Whether it has run out is counted from when *we* saw its version change, by our own clock.
//! - A leader counts from when it *began* its last renewal that succeeded, and stops `renew_deadline` after that. Another that saw the
//!   renewal saw it later than it was begun, and waits the whole `lease_duration`. So the first has stopped before the second starts,
//!   as long as their clocks go at the same rate, or one at most `lease_duration / renew_deadline` as fast as the other.
//! - Every write is on condition of the version that was read, so of two that take an expired lease one gets a conflict.
//! - A lease that someone deletes is waited for as if it were there, counted from when it was seen to be gone: its holder may not know
//!   yet. Who leads when it finds its lease gone makes it anew at once, for nobody else can have had it since.
//!
//! Invariant: at no moment do two believe to lead. One thing is beyond it: who has never seen the lease, as at the first install,
//! cannot know that there was one, and does not wait.

mod fence;
mod term;
#[cfg(test)]
mod tests;

use std::time::Duration;

use uuid::Uuid;

pub use fence::{Fence, Fenced};
pub use term::Candidate;

/// Time on the local clock, since some beginning of it.
pub type Moment = Duration;

/// Which lease, who we are, and how long everything takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseOptions {
    pub namespace: String,
    pub name: String,
    /// Ours alone: no other process, and none before this one, has ever had it.
    pub identity: String,
    /// Others wait this long after a sign of life.
    pub lease_duration: Duration,
    /// A leader stops this long after its last sign of life.
    pub renew_deadline: Duration,
    /// The time between two signs of life, and between two looks at another's.
    pub retry_period: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseOptionsError {
    #[error("the lease duration must be a second or more, in whole seconds")]
    Duration,
    #[error("the renew deadline must be shorter than the lease duration")]
    Deadline,
    #[error("the retry period must be less than half of the renew deadline, and not zero")]
    Period,
}

impl LeaseOptions {
    /// A name that nobody else has, and that people know a pod by.
    pub fn identity(pod: &str) -> String {
        format!("{pod}_{}", Uuid::new_v4())
    }

    /// Times with which two could lead, or one could not keep what it has, are refused.
    pub fn check(&self) -> Result<(), LeaseOptionsError> {
        // The API has whole seconds.
        if self.lease_duration.as_secs() == 0 || self.lease_duration.subsec_nanos() != 0 {
            return Err(LeaseOptionsError::Duration);
        }
        if self.renew_deadline >= self.lease_duration {
            return Err(LeaseOptionsError::Deadline);
        }
        // One failed renewal must not be the end.
        if self.retry_period.is_zero() || self.retry_period * 2 >= self.renew_deadline {
            return Err(LeaseOptionsError::Period);
        }
        Ok(())
    }
}

/// The lease as it was read or written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Empty where it was given back.
    pub holder: String,
    /// What the holder asked others to wait; none where it says nothing sensible.
    pub duration: Option<Duration>,
    /// How often it changed hands.
    pub transitions: i32,
    /// `resourceVersion`.
    pub version: String,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Wait(Duration),
    Read,
    /// There is none: make it, ours.
    Create,
    /// Write our name into it, on condition that it is still this one.
    Take(Record),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    /// It has to be read.
    Nothing,
    Absent,
    /// It may be taken, or is ours.
    Free(Record),
}

/// What one contender knows, and what follows from it.
#[derive(Debug, Clone)]
pub struct Election {
    identity: String,
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
    known: Known,
    /// The version seen last, since when, and whose it is.
    seen: Option<Seen>,
    /// When our last write that succeeded was begun, while we lead.
    renewed: Option<Moment>,
    not_before: Moment,
    /// Requests in a row that got no answer that helps.
    failures: u32,
}

#[derive(Debug, Clone)]
struct Seen {
    /// Empty where there was none.
    version: String,
    since: Moment,
    holder: String,
    /// How long others wait for the holder.
    duration: Duration,
}

impl Election {
    pub fn new(options: &LeaseOptions) -> Self {
        Self {
            identity: options.identity.clone(),
            lease_duration: options.lease_duration,
            renew_deadline: options.renew_deadline,
            retry_period: options.retry_period,
            known: Known::Nothing,
            seen: None,
            renewed: None,
            not_before: Moment::ZERO,
            failures: 0,
        }
    }

    pub fn next(&self, now: Moment) -> Step {
        let wait = self.not_before.saturating_sub(now);
        if !wait.is_zero() {
            return Step::Wait(wait);
        }
        match &self.known {
            Known::Nothing => Step::Read,
            Known::Absent => Step::Create,
            Known::Free(record) => Step::Take(record.clone()),
        }
    }

    /// The lease was read; `now` is after the answer came, so that we count from later than it was written.
    pub fn read(&mut self, record: Option<Record>, now: Moment) {
        self.failures = 0;
        let Some(record) = record else {
            return self.read_none(now);
        };
        let known_since = self
            .seen
            .as_ref()
            .filter(|seen| seen.version == record.version)
            .map(|seen| seen.since);
        let since = known_since.unwrap_or(now);
        // The holder's own word counts: it may have been told another duration than we were.
        let duration = record.duration.unwrap_or(self.lease_duration);
        self.seen = Some(Seen {
            version: record.version.clone(),
            since,
            holder: record.holder.clone(),
            duration,
        });
        let ours = record.holder == self.identity;
        if !ours {
            self.renewed = None;
        }
        let ends = since.saturating_add(duration);
        if ours || record.holder.is_empty() || now >= ends {
            self.known = Known::Free(record);
        } else {
            self.look_again(now, ends);
        }
    }

    /// There is none; where there was one, someone has deleted it.
    fn read_none(&mut self, now: Moment) {
        let led = self.leads_until().is_some_and(|end| end > now);
        self.renewed = None;
        self.known = Known::Absent;
        let Some(seen) = self.seen.as_mut().filter(|_| !led) else {
            return;
        };
        if !seen.version.is_empty() {
            *seen = Seen {
                version: String::new(),
                since: now,
                holder: String::new(),
                // Another may have taken it after we saw it last.
                duration: seen.duration.max(self.lease_duration),
            };
        }
        let ends = seen.since.saturating_add(seen.duration);
        if now < ends {
            self.look_again(now, ends);
        }
    }

    /// Someone may lead until `ends`.
    fn look_again(&mut self, now: Moment, ends: Moment) {
        self.known = Known::Nothing;
        self.not_before = now + self.retry_period.min(ends.saturating_sub(now));
    }

    /// Our write, begun at `began`, succeeded.
    pub fn wrote(&mut self, record: Record, began: Moment, now: Moment) {
        self.seen = Some(Seen {
            version: record.version.clone(),
            since: now,
            holder: record.holder.clone(),
            duration: self.lease_duration,
        });
        self.failures = 0;
        self.known = Known::Free(record);
        self.renewed = Some(began);
        self.not_before = began + self.retry_period;
    }

    /// Someone else wrote before us: see who.
    pub fn conflicted(&mut self, now: Moment) {
        self.failures = 0;
        self.known = Known::Nothing;
        // At once, but not as fast as one can.
        self.not_before = now + self.retry_period / 8;
    }

    /// No answer, or none that helps. What was asked for may have been done all the same, so nothing is known.
    pub fn failed(&mut self, now: Moment) {
        self.known = Known::Nothing;
        let soon = self.retry_period / 2;
        let wait = if self.leads_until().is_some_and(|end| end > now) {
            // Little time is left to renew it.
            soon
        } else {
            let doubled = 2_u32.saturating_pow(self.failures);
            soon.saturating_mul(doubled).min(self.lease_duration)
        };
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + wait;
    }

    /// Do we lead? While this is after now.
    pub fn leads_until(&self) -> Option<Moment> {
        Some(self.renewed? + self.renew_deadline)
    }

    /// When our last renewal that succeeded was begun, while we lead.
    pub fn renewed(&self) -> Option<Moment> {
        self.renewed
    }

    /// Takes it that we lead no more, whoever's the lease is.
    pub fn step_down(&mut self) {
        self.renewed = None;
        self.known = Known::Nothing;
    }

    /// Who has it, as far as we know.
    pub fn holder(&self) -> Option<&str> {
        let holder = self.seen.as_ref().map(|seen| seen.holder.as_str());
        holder.filter(|holder| !holder.is_empty())
    }
}

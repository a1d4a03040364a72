//! Keeps a container from being killed at its limit: more memory while the node has some, else a checkpoint in time.
//!
//! It looks at headroom and growth, and needs no verdict on why memory grows: by the time that is known the container may be gone.
//! Page cache is no danger, for the kernel takes it back by itself.
//!
//! Invariant: a limit is never raised beyond what the job allows, nor beyond what the node has left when everyone else has all that
//! is theirs; what was lent is given back; and nobody is asked for a checkpoint again and again.

mod growth;
mod high;
mod node;
mod room;
mod schedule;
mod words;

use std::time::Duration;

use crate::sample::Sample;
use growth::Growth;
use high::HighWater;
use schedule::Schedule;

pub use node::{NodeGuard, Shortage};
pub use room::{Neighbour, Node, Room};

const MIB: u64 = 1 << 20;
/// The kernel keeps limits in whole pages, of 64 KiB at most. Limits are compared and asked for in these.
const PAGE: u64 = 64 << 10;
/// A container that would be full sooner than this is asked for a checkpoint, if it cannot be given more.
const CHECKPOINT_AHEAD: Duration = Duration::from_secs(30);
/// Close to its limit, it is asked this long before, at the pace of the last minutes.
const CREEPS_AHEAD: Duration = Duration::from_secs(120);
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A checkpoint of a danger that is over counts this long, unless there is more to lose than then.
const SAVED_FOR: Duration = Duration::from_secs(600);
/// A raise is meant to last this long at the growth that was seen, and for several more to come.
const RAISE_FOR: Duration = Duration::from_secs(10);
const RAISES_AHEAD: u32 = 3;
/// Who takes longer than this to change a limit is not waited for by asking ever earlier.
const REACT_MAX: Duration = Duration::from_secs(10);
/// A change of the limit that is not in force by then is taken for refused.
const PATIENCE: Duration = Duration::from_secs(5);
/// Who was refused tries again after this long; who found no room on the node, sooner.
const REFUSED_FOR: Duration = Duration::from_secs(30);
const NO_ROOM_FOR: Duration = Duration::from_secs(1);
/// Without danger for this long, it is over.
const CALM_AFTER: Duration = Duration::from_secs(15);
/// Who would be full sooner than this is looked at more often.
const ALERT_AHEAD: Duration = Duration::from_secs(5);
/// What was lent is kept this long after the last raise, and each time that proves too short, twice as long.
const LENT_FOR: Duration = Duration::from_secs(60);
const LENT_FOR_MAX: Duration = Duration::from_secs(3600);

/// What may be done with a container's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The limit it started with, to which a raised one goes back.
    pub first: u64,
    /// What it may be raised to; no more than `first` where it may not be raised.
    pub max: u64,
    /// What earlier runs needed at most. Growth up to there is nothing to worry about.
    pub expected: Option<u64>,
    /// All of its memory is promised to it, so that whoever raises the limit must find as much that nobody else was promised.
    pub is_promised: bool,
    /// How long a raise takes from here to the kernel, with some to spare. Where it is seen to take longer, that counts.
    pub react: Duration,
    /// It leaks, and is asked for a checkpoint to begin anew from after this many of its steps.
    pub restart_steps: Option<u64>,
}

/// What is to be done about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Raise its limit.
    Raise { to: u64, danger: Danger },
    /// It cannot have more: let it save its work.
    AskCheckpoint { danger: Danger, cannot: Cannot },
    /// It leaks, and has done as many steps as it may before it begins anew: let it save its work.
    AskInTime {
        done: u64,
        every: u64,
        used: u64,
        limit: u64,
    },
    /// Lower its limit: it does not need all that it was lent any more.
    GiveBack { to: u64, needs: u64 },
    /// The danger that was told of is over.
    Calm,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Danger {
    pub used: u64,
    pub limit: u64,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The limit was reached, and nothing is left that could be taken back.
    AtLimit,
    /// Little is left.
    Near,
    Growing {
        per_second: u64,
        left: Duration,
    },
}

/// Why a limit is not raised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cannot {
    /// The job allows no more.
    AtMax { max: u64 },
    /// The node has no more that is nobody's.
    NoRoom,
    /// The node's kubelet, or the API, said no.
    Refused { why: String },
}

/// A change of the limit that was asked for and is not in force yet.
#[derive(Debug, Clone, Copy)]
struct Asked {
    from: u64,
    to: u64,
    at: Duration,
}

impl Asked {
    fn is_raise(self) -> bool {
        self.to > self.from
    }
}

/// The last request for a checkpoint.
#[derive(Debug, Clone, Copy)]
struct Request {
    at: Duration,
    used: u64,
    headroom: u64,
    /// That danger was over since.
    is_past: bool,
}

/// Watches one run of one container. Fed with looks; says what is to be done.
#[derive(Debug, Clone)]
pub struct Guard {
    terms: Terms,
    growth: Growth,
    high: HighWater,
    /// The limit when it was last looked at.
    limit: Option<u64>,
    limit_events: Option<u64>,
    asked: Option<Asked>,
    /// The longest it took until a change was in force.
    slowest: Duration,
    /// The last that was given up: it may come all the same, and is ours then.
    late: Option<Asked>,
    /// Why it is not raised, and until when nobody tries.
    cannot: Option<(Cannot, Duration)>,
    /// Since when there was danger last.
    danger_at: Option<Duration>,
    /// Someone said so before the first look.
    was_in_danger: bool,
    checkpoint: Option<Request>,
    is_ask_lost: bool,
    schedule: Schedule,
    raised_at: Duration,
    lent_for: Duration,
    has_given_back: bool,
    /// A give-back came to nothing, and is not tried again before this.
    give_back_after: Duration,
    used: u64,
}

impl Guard {
    pub fn new(terms: Terms) -> Self {
        Self {
            terms: Terms {
                first: in_pages(terms.first),
                max: in_pages(terms.max),
                ..terms
            },
            growth: Growth::default(),
            high: HighWater::default(),
            limit: None,
            limit_events: None,
            asked: None,
            slowest: Duration::ZERO,
            late: None,
            cannot: None,
            danger_at: None,
            was_in_danger: false,
            checkpoint: None,
            is_ask_lost: false,
            schedule: Schedule::new(terms.restart_steps),
            raised_at: Duration::ZERO,
            lent_for: LENT_FOR,
            has_given_back: false,
            give_back_after: Duration::ZERO,
            used: 0,
        }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What it was lent beyond its first limit, with what was asked for and may come. Nothing where a raise is promised to it: then that
    /// is its own.
    pub fn lent(&self) -> u64 {
        if self.terms.is_promised {
            return 0;
        }
        let reach = self.limit.max(self.asked());
        reach.unwrap_or(0).saturating_sub(self.terms.first)
    }

    /// An earlier guard said that it is in danger. That is taken for true at the first look, so that it is taken back if it is not.
    pub fn was_in_danger(&mut self) {
        self.was_in_danger = true;
    }

    /// The last request for a checkpoint did not get through.
    pub fn ask_again(&mut self) {
        self.is_ask_lost |= self.checkpoint.take().is_some();
        self.schedule.ask_again();
    }

    /// How many steps its program has told of since it began, where it tells them.
    pub fn has_done(&mut self, steps: Option<u64>) {
        self.schedule.follow(steps);
    }

    /// The limit that was asked for and is not in force yet.
    pub fn asked(&self) -> Option<u64> {
        self.asked.map(|asked| asked.to)
    }

    /// What was asked for is not to be had. Where that was to give memory back, more may still be had: some clusters only raise limits.
    pub fn refused(&mut self, at: Duration, why: String) {
        let pending = self.asked.take();
        self.late = pending.or(self.late);
        if self.late.is_none_or(Asked::is_raise) {
            self.cannot = Some((Cannot::Refused { why }, at.saturating_add(REFUSED_FOR)));
        } else if pending.is_some() {
            self.give_back_after = at.saturating_add(self.lent_for);
            self.lent_for = (self.lent_for * 2).min(LENT_FOR_MAX);
            self.has_given_back = false;
        }
    }

    /// Whether it is worth looking more often than every second: it could be full before the next look, and something can be done.
    pub fn is_alert(&self) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        limit < self.terms.max
            && (self.used > limit / 4 || self.left().is_some_and(|left| left <= ALERT_AHEAD))
    }

    /// Whether the next look should come soon: a change of its limit is under way, or it grows towards it.
    pub fn is_urgent(&self) -> bool {
        let ahead = ALERT_AHEAD.max(self.react());
        self.asked.is_some() || self.left().is_some_and(|left| left <= ahead)
    }

    /// How long before the end a raise is to be asked for.
    fn react(&self) -> Duration {
        let seen = (self.slowest * 2).min(REACT_MAX);
        self.terms.react.max(seen)
    }

    fn left(&self) -> Option<Duration> {
        let headroom = self.limit?.saturating_sub(self.used);
        time_left(headroom, self.growth.per_second())
    }

    /// Looks at the container. `room` is only asked for where it matters. `node_is_short`: whatever is lent and not used is wanted back.
    pub fn observe(
        &mut self,
        at: Duration,
        sample: &Sample,
        node_is_short: bool,
        room: impl FnOnce() -> Room,
    ) -> Option<Action> {
        let limit = in_pages(sample.limit?);
        self.used = sample.unreclaimable();
        self.growth.observe(at, self.used);
        self.high.observe(at, self.used);
        self.follow_limit(at, limit);
        if std::mem::take(&mut self.was_in_danger) {
            self.danger_at = Some(at);
        }
        let events = self.limit_events.replace(sample.limit_events);
        let touched = events.is_some_and(|before| before < sample.limit_events);
        let is_at_limit = sample.held || (touched && sample.cache() < Self::floor(limit));
        let action = self.protect(at, limit, is_at_limit, room);
        if action.is_some() {
            return action;
        }
        if let Some((done, every)) = self.schedule.due() {
            self.danger_at = Some(at);
            let used = self.used;
            return Some(Action::AskInTime {
                done,
                every,
                used,
                limit,
            });
        }
        if self
            .danger_at
            .is_some_and(|last| at.saturating_sub(last) >= CALM_AFTER)
        {
            self.danger_at = None;
            // What it was asked at stays the bar: who only comes as far again has lost nothing since.
            if let Some(request) = &mut self.checkpoint {
                request.is_past = true;
            }
            self.is_ask_lost = false;
            // What its schedule asks for stands until the run is over.
            if !self.schedule.is_asked() {
                return Some(Action::Calm);
            }
        }
        self.give_back(at, limit, node_is_short)
    }

    /// Takes note of what became of the limit.
    fn follow_limit(&mut self, at: Duration, limit: u64) {
        let before = self.limit.replace(limit);
        match self.asked {
            Some(asked) if limit == asked.to => {
                self.slowest = self.slowest.max(at.saturating_sub(asked.at));
                self.asked = None;
                self.late = None;
                if asked.is_raise() {
                    self.raised_at = at;
                }
            }
            Some(asked) if at.saturating_sub(asked.at) >= PATIENCE => {
                self.refused(at, "nothing came of it in time".to_owned());
            }
            None if self.late.is_some_and(|late| late.to == limit) => {
                let late = self.late.take();
                let took = late.map_or(Duration::ZERO, |late| at.saturating_sub(late.at));
                self.slowest = self.slowest.max(took);
                if late.is_some_and(Asked::is_raise) {
                    self.raised_at = at;
                    self.cannot = None;
                }
            }
            // Someone else changed it: that is the limit now, and not ours to take back.
            None if before.is_some_and(|before| before != limit) => {
                self.terms.first = limit;
                self.terms.max = self.terms.max.max(limit);
            }
            _ => {}
        }
    }

    fn protect(
        &mut self,
        at: Duration,
        limit: u64,
        is_at_limit: bool,
        room: impl FnOnce() -> Room,
    ) -> Option<Action> {
        // What was asked for counts as had, for as long as it may still come.
        let reach = self.asked.map_or(limit, |asked| asked.to.max(limit));
        let is_coming = self.asked.is_some_and(Asked::is_raise);
        let urgent = self.danger(reach, is_at_limit && !is_coming, self.react());
        let is_tried = self.cannot.as_ref().is_some_and(|(_, until)| at < *until);
        if let Some(danger) = urgent
            && !is_tried
            && reach < self.terms.max
        {
            let room = room();
            match self.raised(reach, &danger, room) {
                Some(to) => {
                    if self.has_given_back {
                        self.lent_for = (self.lent_for * 2).min(LENT_FOR_MAX);
                        self.has_given_back = false;
                    }
                    self.cannot = None;
                    self.danger_at = Some(at);
                    self.asked = Some(Asked {
                        from: limit,
                        to,
                        at,
                    });
                    self.raised_at = at;
                    return Some(Action::Raise { to, danger });
                }
                None => self.cannot = Some((Cannot::NoRoom, at.saturating_add(NO_ROOM_FOR))),
            }
        }
        let cannot = if reach >= self.terms.max {
            Cannot::AtMax {
                max: self.terms.max.max(reach),
            }
        } else {
            let known = self.cannot.as_ref().filter(|(_, until)| at < *until);
            known?.0.clone()
        };
        let headroom = reach.saturating_sub(self.used);
        // Work that is not done yet cannot be saved: with much room left, there is more to save later, and what looks like growth may be a
        // program that begins.
        let is_late = headroom <= reach / 4;
        let is_growth = |danger: &Danger| matches!(danger.kind, Kind::Growing { .. });
        let danger = urgent
            .or_else(|| self.danger(reach, false, CHECKPOINT_AHEAD))
            .filter(|danger| is_late || !is_growth(danger))?;
        if !self.is_due(at, &danger) {
            // A danger that was told of goes on; one that was not is none yet.
            self.danger_at = self.danger_at.map(|_| at);
            return None;
        }
        self.danger_at = Some(at);
        self.checkpoint = Some(Request {
            at,
            used: self.used,
            headroom,
            is_past: false,
        });
        self.is_ask_lost = false;
        Some(Action::AskCheckpoint { danger, cannot })
    }

    /// Whether this is worth a checkpoint, and a restart, as whoever watches may make of it.
    fn is_due(&self, at: Duration, danger: &Danger) -> bool {
        if self.is_ask_lost {
            return true;
        }
        let headroom = danger.limit.saturating_sub(danger.used);
        let worsens = match danger.kind {
            Kind::AtLimit => true,
            _ if headroom < Self::floor(danger.limit) => self.climbs(at, headroom),
            _ => true,
        };
        let Some(last) = self.checkpoint else {
            return worsens;
        };
        let since = at.saturating_sub(last.at);
        // The nearer the end, the more a newer checkpoint is worth; and the end may be further off than it was then.
        let half = last.headroom / 2;
        let is_nearer = headroom < last.headroom && headroom <= half;
        let is_higher = self.used > last.used && self.used - last.used >= half;
        ((is_nearer || is_higher) && since >= ASK_AGAIN_AFTER)
            || (last.is_past && worsens && since >= SAVED_FOR)
    }

    /// Whether one that is close to its limit goes on towards it. Many sit there for as long as they run, and up and down a little.
    fn climbs(&self, at: Duration, headroom: u64) -> bool {
        let is_within = |per: u64, ahead| time_left(headroom, per).is_some_and(|it| it <= ahead);
        self.high.is_new(at)
            && (is_within(self.growth.lately(), CHECKPOINT_AHEAD)
                || is_within(self.high.per_second(), CREEPS_AHEAD))
    }

    fn danger(&self, limit: u64, is_at_limit: bool, ahead: Duration) -> Option<Danger> {
        let used = self.used;
        let headroom = limit.saturating_sub(used);
        let per_second = self.growth.per_second();
        let left = time_left(headroom, per_second);
        let is_expected = self.terms.expected.is_some_and(|expected| {
            // What reached the limit before says only that the limit was not enough.
            let fits = expected.saturating_add(Self::floor(limit)) <= limit;
            fits && used <= expected.saturating_add(expected / 50)
        });
        let kind = match left {
            _ if is_at_limit => Kind::AtLimit,
            Some(left) if left <= ahead && !is_expected => Kind::Growing { per_second, left },
            _ if headroom < Self::floor(limit) => Kind::Near,
            _ => return None,
        };
        Some(Danger { used, limit, kind })
    }

    /// Headroom that is too little whatever happens.
    fn floor(limit: u64) -> u64 {
        (limit / 20).max(8 * MIB).min(limit / 4)
    }

    /// The next limit: enough for a while at this growth, in steps that are worth it. `None` where the node has no room for a step.
    fn raised(&self, limit: u64, danger: &Danger, room: Room) -> Option<u64> {
        let (grows, at_least) = match danger.kind {
            Kind::Growing { per_second, .. } => {
                let lasts = RAISE_FOR.max(self.react() * RAISES_AHEAD);
                (per_second.saturating_mul(lasts.as_secs()), limit / 4)
            }
            // How fast it would have grown is not known; it was stopped.
            Kind::AtLimit => (0, limit / 2),
            Kind::Near => (0, limit / 4),
        };
        let wanted = self
            .used
            .saturating_add(grows.max(self.used / 4).max(32 * MIB))
            .max(limit.saturating_add(at_least));
        let mut most = self.terms.max.min(self.used.saturating_add(room.free));
        if self.terms.is_promised {
            let promised = self.limit.unwrap_or(limit);
            most = most.min(promised.saturating_add(room.unpromised));
        }
        // The last bit is not worth a raise of its own.
        let to = if wanted.saturating_add(wanted / 8) >= most {
            if most == self.terms.max {
                most
            } else {
                rounded_down(most)
            }
        } else {
            rounded_up(wanted).min(most)
        };
        let step = (limit / 20).max(4 * MIB);
        let is_last = to == self.terms.max && to > limit;
        (is_last || to >= limit.saturating_add(step)).then_some(to)
    }

    fn give_back(&mut self, at: Duration, limit: u64, node_is_short: bool) -> Option<Action> {
        if limit <= self.terms.first || self.asked.is_some() || self.danger_at.is_some() {
            return None;
        }
        if at < self.give_back_after {
            return None;
        }
        let is_kept = at.saturating_sub(self.raised_at) < self.lent_for;
        if is_kept && !node_is_short {
            return None;
        }
        let needs = if node_is_short {
            self.used
        } else {
            self.high.most()?
        };
        let spare = if node_is_short { needs / 8 } else { needs / 3 };
        let spare = spare.max(16 * MIB);
        // One that grows would soon be at the lower limit, and may not be raised again in time.
        let grows = self.growth.lately().saturating_mul(RAISE_FOR.as_secs());
        if !self.growth.is_known() || grows > spare {
            return None;
        }
        let to = needs.saturating_add(spare);
        let to = rounded_up(to).max(self.terms.first);
        if limit.saturating_sub(to) < (limit / 8).max(16 * MIB) && to > self.terms.first {
            return None;
        }
        if to >= limit {
            return None;
        }
        self.has_given_back = true;
        self.asked = Some(Asked {
            from: limit,
            to,
            at,
        });
        Some(Action::GiveBack { to, needs })
    }
}

fn in_pages(bytes: u64) -> u64 {
    bytes - bytes % PAGE
}

fn time_left(headroom: u64, per_second: u64) -> Option<Duration> {
    let millis = u128::from(headroom) * 1000;
    let millis = millis.checked_div(u128::from(per_second))?;
    Some(Duration::from_millis(
        u64::try_from(millis).unwrap_or(u64::MAX),
    ))
}

/// Amounts that people can read: whole mebibytes, and sixteen at a time where that is little.
fn grain(bytes: u64) -> u64 {
    if bytes < 512 * MIB { MIB } else { 16 * MIB }
}

fn rounded_up(bytes: u64) -> u64 {
    bytes
        .checked_next_multiple_of(grain(bytes))
        .unwrap_or(bytes)
}

fn rounded_down(bytes: u64) -> u64 {
    bytes - bytes % MIB
}

#[cfg(test)]
mod tests;

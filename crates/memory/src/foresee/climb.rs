//! Whether one window of blocks is a climb, and whether that is a leak.
//!
//! A leak is told from all that looks like one by what it cannot do: it does not bend as a cache does that fills, it does not come
//! in one step, it does not come back as a hump does, and it goes where the series has never been. What is left, a load
//! that happens to be a straight line, is told only by waiting: so how much of the headroom must be gone before a climb is called
//! a leak depends on what else speaks for one.

use super::ladder::{BLOCKS, Block, Window};
use super::trend::Trend;

/// Blocks that a window needs: fewer put themselves in order by chance. With more than the most, older ones are what was before it.
pub(super) const BLOCKS_MIN: usize = 8;
const BLOCKS_MAX: usize = 16;
/// What a window must span, unless each of its blocks has a step of the job in it.
pub(super) const LEAK_SECONDS_MIN: u32 = 240;
pub(super) const CLIMB_SECONDS_MIN: u32 = 120;

/// What is asked of the lower envelope of a leak.
struct Demands {
    /// Growth, of the limit.
    growth: f32,
    /// Growth, over the median distance from the line.
    of_noise: f32,
    /// Kendall's tau.
    order: f32,
    /// The largest single rise, of the growth.
    jump: f32,
    /// The second half's speed, of the first half's: below it, it bends. A cycle's lows are fewer and less sure.
    straight: f32,
    straight_cyclic: f32,
    /// The last quarter's speed, of the fastest quarter's: a cache is fastest first, wherever in the window it began to fill.
    last_quarter: f32,
    /// The part of the growth that is above all there was before.
    new: f32,
}

/// While a load might still end well below the limit.
const EARLY: Demands = Demands {
    growth: 0.05,
    of_noise: 4.5,
    order: 0.85,
    jump: 0.33,
    straight: 0.9,
    straight_cyclic: 0.8,
    last_quarter: 0.9,
    new: 0.8,
};

/// A limit leaves some room over what a job needs, and this one climbs in that room: less else is asked.
const NEARLY_FULL: f32 = 0.94;
const LATE: Demands = Demands {
    growth: 0.04,
    of_noise: 4.0,
    order: 0.75,
    jump: 0.5,
    straight: 0.6,
    straight_cyclic: 0.6,
    last_quarter: 0.6,
    new: 0.3,
};

/// A block falls back if by this part of the growth; a series is cyclic if this part of its blocks do.
const FALL_MIN: f32 = 0.25;
const CYCLIC_MIN: f32 = 0.6;

/// How much of the headroom must be gone.
const GONE_NEARLY_FULL: f32 = 0.55;
/// Of one that was at work before it began to climb: it had reached a height that the limit may have been made for, and has grown by half
/// as much again since. A cache is less than that, or most of what the job ever holds.
const AT_WORK: f32 = 0.47;
const GROWN_AT_WORK: f32 = 0.5;
const GONE_AT_WORK: f32 = 0.5;
/// Of one that may have been loading ever since. Nothing takes so long to load.
const ENDLESS_SECONDS: u32 = 3 * 3600;
const GONE_ENDLESS: f32 = 0.65;
/// Where runs before this one leaked.
const GONE_AGAIN: f32 = 0.4;
/// A first hump or a load is over by then.
const FIRST_SECONDS: u32 = 3600;

/// What a person is told of, long before it is called a leak.
const CLIMB_ORDER_MIN: f32 = 0.6;
const CLIMB_GONE_MIN: f32 = 0.5;
const CLIMB_JUMP_MAX: f32 = 0.5;
const CLIMB_NEW_MIN: f32 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Climb {
    /// MiB a second, and a step.
    pub slope: f32,
    pub per_step: Option<f32>,
    /// The lower envelope at both ends of the window, and the highest of its last quarter; MiB.
    pub from: f32,
    pub low: f32,
    pub high: f32,
    pub seconds: u32,
    pub confidence: f32,
    pub leak: bool,
}

/// What it is judged against.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Against {
    /// MiB.
    pub limit: Option<f32>,
    /// Up to here, in MiB, earlier runs went and were well.
    pub usual: f32,
    /// Earlier runs leaked.
    pub leaked: bool,
}

/// The surest climb among the windows that end now.
pub(super) fn surest(window: &Window, against: &Against) -> Option<Climb> {
    let kept = window.blocks();
    let mut best: Option<Climb> = None;
    let counts = (BLOCKS_MIN..=BLOCKS_MAX).step_by(2);
    for count in counts.take_while(|count| *count <= kept.len()) {
        let (older, blocks) = kept.split_at(kept.len() - count);
        let climb = Figures::of(older, blocks, window.gone, against)
            .and_then(|figures| figures.judge(against));
        best = match (best, climb) {
            (_, Some(climb)) if climb.leak => return Some(climb),
            (Some(best), Some(climb)) if climb.confidence <= best.confidence => Some(best),
            (best, climb) => climb.or(best),
        };
    }
    best
}

/// A window in figures. Amounts are MiB.
#[derive(Debug, Clone, Copy)]
struct Figures {
    trend: Trend,
    first: Block,
    last: Block,
    /// The highest of the last quarter.
    high: f32,
    limit: f32,
    seconds: u32,
    /// Each block has a step of the job in it.
    stepping: bool,
    /// The part of the headroom at the window's start that is gone.
    gone: f32,
    /// The second half's speed of the first half's.
    straight: f32,
    /// The last quarter's speed of the fastest quarter's.
    last_quarter: f32,
    cyclic: bool,
    /// How far the envelope, and the highest, are above all before the window.
    new_low: f32,
    new_high: f32,
    /// MiB a second, as it went last.
    speed: f32,
    /// The highest before the window, or where it begins.
    reached: f32,
    /// The climb began with the window.
    begun: bool,
}

impl Figures {
    /// None where it does not grow enough to look at, which is all that most windows cost.
    fn of(
        older: &[Block],
        blocks: &[Block],
        gone: Option<(f32, f32)>,
        against: &Against,
    ) -> Option<Self> {
        let (first, last) = (*blocks.first()?, *blocks.last()?);
        // Without a limit, twice of what it began with is taken for one.
        let limit = against.limit.unwrap_or(first.high * 2.0);
        if last.low - first.low < limit * LATE.growth * 0.8 {
            return None;
        }
        let seconds = last.to.saturating_sub(first.from);
        let stepping = blocks
            .windows(2)
            .all(|pair| pair[0].step > 0 && pair[1].step > pair[0].step);
        if seconds < CLIMB_SECONDS_MIN && !stepping {
            return None;
        }

        let mut points = [(0.0, 0.0); BLOCKS];
        for (slot, block) in points.iter_mut().zip(blocks) {
            *slot = (block.middle(), block.low);
        }
        let points = &points[..blocks.len()];
        let trend = Trend::of(points);
        let least = (limit * LATE.growth).max(trend.noise * LATE.of_noise);
        if trend.growth < least || trend.slope <= 0.0 {
            return None;
        }
        let (early, late) = points.split_at(points.len() / 2);
        let (early, late) = (Trend::of(early).slope, Trend::of(late).slope);
        let straight = late / early.max(f32::MIN_POSITIVE);

        let recent = &blocks[blocks.len() - blocks.len() / 4..];
        let high = highest(recent.iter().map(|block| block.high)).unwrap_or(last.high);
        let falls = blocks
            .iter()
            .filter(|block| block.fall > trend.growth * FALL_MIN);
        let before_low = highest(
            older
                .iter()
                .map(|block| block.low)
                .chain(gone.map(|(low, _)| low)),
        );
        let before_high = highest(
            older
                .iter()
                .map(|block| block.high)
                .chain(gone.map(|(_, high)| high)),
        );
        let reached = before_high.map_or(first.low, |before| before.max(first.low));
        let begun = began(older, &first, seconds, gone.is_none(), trend.slope);
        Some(Self {
            trend,
            first,
            last,
            high,
            limit,
            seconds,
            stepping,
            gone: trend.growth / (trend.growth + (limit - high).max(0.0)),
            straight,
            last_quarter: last_quarter(points, &trend, seconds),
            cyclic: falls.count() as f32 >= CYCLIC_MIN * blocks.len() as f32,
            new_low: before_low.map_or(f32::MAX, |before| last.low - before),
            new_high: before_high.map_or(f32::MAX, |before| high - before),
            speed: late.min(trend.slope * 1.5),
            reached,
            begun,
        })
    }

    fn judge(&self, against: &Against) -> Option<Climb> {
        let leak = self.is_leak(against);
        if !leak && !self.is_climb(against) {
            return None;
        }
        let steps = self.last.step.saturating_sub(self.first.step);
        Some(Climb {
            slope: self.trend.slope,
            per_step: (self.first.step > 0 && steps > 0).then(|| self.trend.growth / steps as f32),
            from: self.first.low,
            low: self.last.low,
            high: self.high,
            seconds: self.seconds,
            confidence: self.confidence(leak),
            leak,
        })
    }

    fn is_climb(&self, against: &Against) -> bool {
        let remaining = (self.limit - self.high).max(0.0);
        self.trend.order >= CLIMB_ORDER_MIN
            && self.trend.jump <= CLIMB_JUMP_MAX * self.trend.growth
            && self.gone >= CLIMB_GONE_MIN
            && self.new_high >= CLIMB_NEW_MIN * self.trend.growth
            && self.high > against.usual
            && remaining <= 3.0 * self.seconds as f32 * self.speed
    }

    fn is_leak(&self, against: &Against) -> bool {
        let asked = if self.high >= NEARLY_FULL * self.limit {
            &LATE
        } else {
            &EARLY
        };
        let straight = if self.cyclic {
            asked.straight_cyclic
        } else {
            asked.straight
        };
        let growth = self.trend.growth;
        (self.seconds >= LEAK_SECONDS_MIN || self.stepping)
            && growth >= (asked.growth * self.limit).max(asked.of_noise * self.trend.noise)
            && self.trend.order >= asked.order
            && self.trend.jump <= asked.jump * growth
            && self.straight >= straight
            && self.last_quarter >= asked.last_quarter
            && self.new_low >= asked.new * growth
            && (self.cyclic || self.new_high >= asked.new * growth)
            && self.high > against.usual
            && self.gone >= self.gone_min(against)
    }

    fn gone_min(&self, against: &Against) -> f32 {
        let grown = self.trend.growth >= GROWN_AT_WORK * self.reached;
        if against.leaked {
            GONE_AGAIN
        } else if self.high >= NEARLY_FULL * self.limit {
            GONE_NEARLY_FULL
        } else if grown && self.begun && self.reached >= AT_WORK * self.limit {
            GONE_AT_WORK
        } else if grown && self.seconds >= ENDLESS_SECONDS {
            GONE_ENDLESS
        } else {
            f32::INFINITY
        }
    }

    fn confidence(&self, leak: bool) -> f32 {
        let order = self.trend.order;
        let sure = if leak {
            // What is left to doubt: that it is a load after all, which the headroom that is gone makes ever less likely.
            1.0 - (1.0 - self.gone.min(1.0)) * (1.5 - order) * 0.5
        } else {
            order * self.gone * self.straight.clamp(0.3, 1.0)
        };
        sure.clamp(0.05, 0.99)
    }
}

/// Whether the climb began with the window: it was flat until then, or a load that was much faster. One that is as old as the process
/// may be its first hump, unless it lasts.
fn began(older: &[Block], first: &Block, seconds: u32, is_all: bool, slope: f32) -> bool {
    let lasts = seconds >= FIRST_SECONDS;
    let Some(nearest) = older
        .len()
        .checked_sub(4)
        .map_or(older.first(), |at| older.get(at))
    else {
        return is_all && lasts;
    };
    let before = (first.low - nearest.low) / (first.middle() - nearest.middle()).max(1.0);
    let flat = before < 0.25 * slope;
    (flat && older.len() >= 3) || (lasts && (flat || before > 4.0 * slope))
}

/// The last quarter's speed of the fastest quarter's, with what its noise may have hidden.
fn last_quarter(points: &[(f32, f32)], trend: &Trend, seconds: u32) -> f32 {
    let count = points.len().div_ceil(4);
    let fastest = points.chunks(count).map(|quarter| Trend::of(quarter).slope);
    let fastest = fastest.fold(f32::MIN_POSITIVE, f32::max);
    let last = Trend::of(&points[points.len() - count..]).slope;
    let noise = 3.0 * trend.noise / (seconds as f32).max(1.0);
    (last + noise) / fastest
}

fn highest(values: impl Iterator<Item = f32>) -> Option<f32> {
    values.reduce(f32::max)
}

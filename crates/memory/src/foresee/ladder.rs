//! What is kept of a series: blocks of time at doubling lengths, the last few of each length.
//!
//! So a climb is seen whole whether it takes a minute or a week, in a memory that grows with the logarithm of time.
//! A block's `low` is the lower envelope: what a sawtooth or an epoch's hump leaves behind is in it and nothing else.

/// Blocks kept of each length.
pub(super) const BLOCKS: usize = 24;
/// Lengths kept: at one sample a second the longest blocks are six days each.
const LEVELS_MAX: usize = 20;
/// Samples closer together than this are averaged: an envelope of single samples would be one of their noise.
const SMOOTH_SECONDS: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Block {
    /// Seconds since the watch began, both ends within the block.
    pub from: u32,
    pub to: u32,
    /// All in MiB.
    pub low: f32,
    pub high: f32,
    /// The largest fall from a high to a later low.
    pub fall: f32,
    /// The job's step when the block ended; 0 where it tells none.
    pub step: u32,
}

impl Block {
    pub(super) fn middle(&self) -> f32 {
        f32::midpoint(self.from as f32, self.to as f32)
    }

    fn then(self, next: Self) -> Self {
        let brief = next.to.saturating_sub(self.from) < SMOOTH_SECONDS;
        Self {
            from: self.from,
            to: next.to,
            low: if brief {
                f32::midpoint(self.low, next.low)
            } else {
                self.low.min(next.low)
            },
            high: self.high.max(next.high),
            fall: if brief {
                0.0
            } else {
                self.fall.max(next.fall).max(self.high - next.low)
            },
            step: next.step,
        }
    }
}

/// The last blocks of one length.
#[derive(Debug, Clone, Default)]
pub(super) struct Level {
    ring: [Block; BLOCKS],
    filled: usize,
    next: usize,
    /// Waits for its other half.
    half: Option<Block>,
    /// The highest `low` and `high` of blocks that are no longer kept.
    gone: Option<(f32, f32)>,
}

impl Level {
    fn push(&mut self, block: Block) -> Option<Block> {
        if self.filled == BLOCKS {
            let old = self.ring[self.next];
            let (low, high) = self.gone.unwrap_or((old.low, old.high));
            self.gone = Some((low.max(old.low), high.max(old.high)));
        }
        self.ring[self.next] = block;
        self.next = (self.next + 1) % BLOCKS;
        self.filled = (self.filled + 1).min(BLOCKS);
        match self.half.take() {
            None => {
                self.half = Some(block);
                None
            }
            Some(half) => Some(half.then(block)),
        }
    }

    /// The last blocks, oldest first.
    fn blocks(&self) -> impl Iterator<Item = Block> {
        let first = self.next + BLOCKS - self.filled;
        (first..first + self.filled).map(|index| self.ring[index % BLOCKS])
    }
}

/// The last blocks of one length, oldest first, and what was before them.
#[derive(Debug, Clone)]
pub(super) struct Window {
    blocks: [Block; BLOCKS],
    count: usize,
    /// The highest `low` and `high` of older blocks.
    pub gone: Option<(f32, f32)>,
}

impl Window {
    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks[..self.count]
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Ladder {
    levels: Vec<Level>,
}

impl Ladder {
    /// Takes a sample in, and says how many levels have a new block.
    pub(super) fn push(&mut self, sample: Block) -> usize {
        let mut carry = Some(sample);
        let mut level = 0;
        while let Some(block) = carry {
            if level == LEVELS_MAX {
                break;
            }
            if level == self.levels.len() {
                self.levels.push(Level::default());
            }
            carry = self.levels[level].push(block);
            level += 1;
        }
        level
    }

    /// From the oldest block that is kept of a level to its newest.
    pub(super) fn seconds(&self, level: usize) -> u32 {
        let span = self.levels.get(level).and_then(|level| {
            let (first, last) = (level.blocks().next()?, level.blocks().last()?);
            Some(last.to.saturating_sub(first.from))
        });
        span.unwrap_or(0)
    }

    pub(super) fn window(&self, level: usize) -> Option<Window> {
        let level = self.levels.get(level)?;
        let mut window = Window {
            blocks: [Block::default(); BLOCKS],
            count: level.filled,
            gone: level.gone,
        };
        for (slot, block) in window.blocks.iter_mut().zip(level.blocks()) {
            *slot = block;
        }
        Some(window)
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "what is only taken over is exact")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(second: u32, held: f32) -> Block {
        Block {
            from: second,
            to: second,
            low: held,
            high: held,
            ..Block::default()
        }
    }

    #[test]
    fn three_weeks_are_little_more_than_a_day() {
        let mut ladder = Ladder::default();
        for second in 0..2_000_000 {
            ladder.push(sample(second, 1.0));
        }
        let bytes = ladder.levels.len() * size_of::<Level>();
        assert!(bytes < 14_000, "{bytes} bytes");
    }

    #[test]
    fn a_sawtooth_leaves_its_lows() {
        let mut ladder = Ladder::default();
        for second in 0..4096 {
            ladder.push(sample(second, 100.0 + (second % 32) as f32));
        }
        // Blocks of 64 seconds have two teeth each.
        let window = ladder.window(6).unwrap();
        assert_eq!(window.blocks().len(), BLOCKS);
        for block in window.blocks() {
            assert_eq!(block.high, 131.0);
            assert!(block.low < 104.5, "{block:?}");
            assert!(block.fall > 20.0, "{block:?}");
        }
    }

    proptest! {
        #[test]
        fn blocks_are_in_order_and_between_their_extremes(held in prop::collection::vec(0.0_f32..1e6, 1..2000)) {
            let mut ladder = Ladder::default();
            for (second, held) in held.iter().enumerate() {
                ladder.push(sample(second as u32, *held));
            }
            for level in 0..ladder.levels.len() {
                let window = ladder.window(level).unwrap();
                prop_assert!(window.blocks().windows(2).all(|pair| pair[0].to < pair[1].from));
                for block in window.blocks() {
                    let within = &held[block.from as usize..=block.to as usize];
                    let lowest = within.iter().copied().fold(f32::MAX, f32::min);
                    let highest = within.iter().copied().fold(0.0, f32::max);
                    prop_assert_eq!(within.len(), 1 << level);
                    prop_assert_eq!(block.high, highest);
                    prop_assert!(block.low >= lowest && block.low <= highest);
                }
            }
        }
    }
}

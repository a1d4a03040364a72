//! Chance that can be repeated.

/// A small generator with a seed that can be printed: the same seed gives the same test.
pub struct Random(u64);

impl Random {
    pub fn new(what: &str) -> Self {
        let fresh = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .expect("a clock after 1970")
                .as_nanos() as u64
        };
        let seed = std::env::var("STOKE_TEST_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(fresh);
        eprintln!("{what}: STOKE_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

//! Numbers that look drawn and are computed: the same seed gives the same numbers.

#[derive(Debug, Clone, Copy)]
pub(super) struct Chance {
    seed: u64,
}

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The number at a position; neighbours have nothing in common. (The finish of SplitMix64.)
    pub fn at(self, position: u64) -> u64 {
        let mut number = self
            .seed
            .wrapping_add(position.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ number >> 31
    }

    /// 0 to `count` - 1, in an order of chance.
    pub fn order(self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            let with = self.at(at as u64) % (at as u64 + 1);
            order.swap(at, with as usize);
        }
        order
    }
}

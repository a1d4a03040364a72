//! How long an amount of memory was used, as a histogram that never outgrows its bound: when it would, neighbouring parts become one.

use stoke_api::digest::Levels;

/// The finest cut: 32 parts to each doubling, so that an amount is known to within 1.6 %.
const BITS_MAX: u8 = 5;
/// What is told apart at all.
const UNIT_SHIFT: u32 = 16;
const EXPONENT_MAX: u32 = 63 - UNIT_SHIFT;

/// Adds `millis` at an amount, in at most `parts_max` parts.
pub(super) fn spend(levels: &mut Levels, bytes: u64, millis: u64, parts_max: usize) {
    if millis == 0 {
        return;
    }
    if levels.parts.is_empty() || !is_sane(levels) {
        *levels = Levels {
            bits: BITS_MAX,
            ..Levels::default()
        };
    }
    put(levels, part(bytes >> UNIT_SHIFT, levels.bits), millis);
    while levels.parts.len() > parts_max && levels.bits > 0 {
        coarsen(levels);
    }
}

/// Both together. What one of them does not tell apart, the sum does not.
pub(super) fn merge(levels: &mut Levels, other: &Levels, parts_max: usize) {
    if other.parts.is_empty() || !is_sane(other) {
        return;
    }
    if levels.parts.is_empty() || !is_sane(levels) {
        *levels = other.clone();
    } else {
        let mut other = other.clone();
        while other.bits > levels.bits {
            coarsen(&mut other);
        }
        while levels.bits > other.bits {
            coarsen(levels);
        }
        for (part, millis) in other.parts.into_iter().zip(other.millis) {
            put(levels, part, millis);
        }
    }
    while levels.parts.len() > parts_max && levels.bits > 0 {
        coarsen(levels);
    }
}

/// The amount below which it was for this share of the time, in thousandths. `None` if nothing is known.
pub fn quantile(levels: &Levels, permille: u32) -> Option<u64> {
    if !is_sane(levels) {
        return None;
    }
    let total = total_millis(levels);
    if total == 0 {
        return None;
    }
    let target = u128::from(total) * u128::from(permille.min(1000)) / 1000;
    let mut before = 0_u128;
    for (part, millis) in levels.parts.iter().zip(&levels.millis) {
        let millis = u128::from(*millis);
        if before + millis >= target && millis > 0 {
            let (low, width) = bounds(*part, levels.bits);
            // Inside a part the time is taken to be spread evenly.
            let into = u128::from(width) * (target - before.min(target)) / millis;
            return Some(low.saturating_add(u64::try_from(into).unwrap_or(width)));
        }
        before += millis;
    }
    None
}

pub(super) fn total_millis(levels: &Levels) -> u64 {
    let millis = levels.millis.iter().copied();
    millis.fold(0, u64::saturating_add)
}

/// Read from an object that anyone may have written.
fn is_sane(levels: &Levels) -> bool {
    levels.bits <= BITS_MAX
        && levels.parts.len() == levels.millis.len()
        && levels.parts.windows(2).all(|pair| pair[0] < pair[1])
}

fn put(levels: &mut Levels, part: u16, millis: u64) {
    match levels.parts.binary_search(&part) {
        Ok(at) => levels.millis[at] = levels.millis[at].saturating_add(millis),
        Err(at) => {
            levels.parts.insert(at, part);
            levels.millis.insert(at, millis);
        }
    }
}

/// Halves the number of parts.
fn coarsen(levels: &mut Levels) {
    let Some(bits) = levels.bits.checked_sub(1) else {
        return;
    };
    let fine = std::mem::replace(
        levels,
        Levels {
            bits,
            ..Levels::default()
        },
    );
    for (old, millis) in fine.parts.into_iter().zip(fine.millis) {
        let (low, _) = bounds(old, fine.bits);
        put(levels, part(low >> UNIT_SHIFT, bits), millis);
    }
}

/// Amounts below `2^bits` units have a part each; beyond, each doubling has `2^bits`.
fn part(units: u64, bits: u8) -> u16 {
    let bits = u32::from(bits);
    let log = units.checked_ilog2().unwrap_or(0);
    if log < bits || units == 0 {
        return units as u16;
    }
    let exponent = log - bits;
    let within = (units >> exponent) - (1 << bits);
    (((u64::from(exponent) + 1) << bits) + within) as u16
}

/// The least amount of a part, and how far it reaches, in bytes.
fn bounds(part: u16, bits: u8) -> (u64, u64) {
    let part = u64::from(part);
    let bits = u32::from(bits);
    let exponent = ((part >> bits) as u32).saturating_sub(1).min(EXPONENT_MAX);
    let units = if part >> bits == 0 {
        part
    } else {
        let mantissa = (part & ((1 << bits) - 1)) | (1 << bits);
        mantissa.checked_shl(exponent).unwrap_or(u64::MAX)
    };
    let shifted = |units: u64| units.saturating_mul(1 << UNIT_SHIFT);
    (shifted(units), shifted(1 << exponent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 96;

    fn levels(spent: &[(u64, u64)]) -> Levels {
        let mut levels = Levels::default();
        for (bytes, millis) in spent {
            spend(&mut levels, *bytes, *millis, MAX);
        }
        levels
    }

    #[test]
    fn a_median_is_the_middle_of_the_time() {
        assert_eq!(quantile(&Levels::default(), 500), None);
        let day = levels(&[
            (100 << 20, 10_000),
            (3 << 30, 86_400_000),
            (9 << 30, 60_000),
        ]);
        let median = quantile(&day, 500).unwrap() as f64;
        let wanted = (3_u64 << 30) as f64;
        assert!((median / wanted - 1.0).abs() < 0.02, "{median}");
        assert!(quantile(&day, 1000).unwrap() >= 9 << 30);
        assert!(quantile(&day, 0).unwrap() <= 100 << 20);
    }

    #[test]
    fn nonsense_is_nothing() {
        for (bits, parts, millis) in [
            (9, vec![1], vec![1]),
            (3, vec![1, 2], vec![1]),
            (3, vec![2, 1], vec![1, 1]),
        ] {
            let odd = Levels {
                bits,
                parts,
                millis,
            };
            assert_eq!(quantile(&odd, 500), None);
            let mut sum = levels(&[(1 << 30, 5)]);
            merge(&mut sum, &odd, MAX);
            assert_eq!(sum, levels(&[(1 << 30, 5)]));
            let mut odd = odd;
            spend(&mut odd, 1 << 30, 5, MAX);
            assert_eq!(odd, levels(&[(1 << 30, 5)]));
        }
        let huge = Levels {
            bits: 0,
            parts: vec![u16::MAX],
            millis: vec![u64::MAX],
        };
        assert!(quantile(&huge, 500).is_some());
    }

    fn spent() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let bytes = (0_u32..44, 0_u64..1 << 20).prop_map(|(shift, low)| (1 << shift) + low);
        prop::collection::vec((bytes, 1_u64..100_000), 1..300)
    }

    proptest! {
        #[test]
        fn a_part_holds_what_was_put_into_it(units in 0_u64..1 << 47, bits in 0_u8..=BITS_MAX) {
            let (low, width) = bounds(part(units, bits), bits);
            let bytes = units << UNIT_SHIFT;
            prop_assert!(low <= bytes && bytes - low < width, "{low} {bytes} {width}");
            // In order, without gaps.
            let (next, _) = bounds(part(units, bits) + 1, bits);
            prop_assert_eq!(next, low + width);
        }

        #[test]
        fn it_stays_small_loses_no_time_and_quantiles_rise(spent in spent()) {
            let levels = levels(&spent);
            prop_assert!(levels.parts.len() <= MAX);
            prop_assert!(is_sane(&levels));
            prop_assert_eq!(total_millis(&levels), spent.iter().map(|(_, millis)| millis).sum::<u64>());
            let all: Vec<u64> = (0..=20).filter_map(|q| quantile(&levels, q * 50)).collect();
            prop_assert_eq!(all.len(), 21);
            prop_assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", all);
        }

        #[test]
        fn the_order_of_merging_does_not_matter(a in spent(), b in spent()) {
            let (one, two) = (levels(&a), levels(&b));
            let mut left = one.clone();
            merge(&mut left, &two, MAX);
            let mut right = two.clone();
            merge(&mut right, &one, MAX);
            prop_assert_eq!(&left, &right);
            prop_assert_eq!(total_millis(&left), total_millis(&one) + total_millis(&two));
            let median = |levels: &Levels| quantile(levels, 500).unwrap();
            let (low, high) = (median(&one).min(median(&two)), median(&one).max(median(&two)));
            // To within a part of the coarsest that came of it.
            let slack = |amount: u64| (amount >> left.bits) + (1 << (UNIT_SHIFT + 1));
            prop_assert!(median(&left) + slack(low) >= low && median(&left) <= high + slack(high));
        }
    }
}

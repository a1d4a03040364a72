//! What a piece of a GPU is worth: the prices of the cutting-stock program.
//!
//! A GPU is stock, fractions are what is cut of it. Where the mix wants 810 and 470 thousandths, an 810 uses up a GPU whatever its size says, and
//! a 470 half of one. The prices say so: the dearest at which no way of filling a GPU is worth more than the GPU.

use super::ask::WHOLE;
use super::simplex;

/// Ways to fill a GPU that are tried before the prices found are taken as they are. A dozen is usual.
const PATTERNS_MAX: usize = 200;

/// How often each size is cut of one GPU.
pub(crate) type Pattern = Vec<u32>;

/// The price of each size, in GPUs, for sizes of 1 to 999 thousandths wanted in these proportions.
pub(crate) fn prices(sizes: &[u16], demand: &[f64]) -> Vec<f64> {
    // Any price is right for what nobody wants; a little demand makes it the price it would have.
    let total: f64 = demand.iter().sum();
    let gain: Vec<f64> = demand.iter().map(|share| share.max(total * 1e-6)).collect();
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for (at, size) in sizes.iter().enumerate() {
        let mut row = vec![0.0; sizes.len()];
        row[at] = f64::from(WHOLE / (*size).max(1));
        rows.push(row);
    }
    let mut prices: Vec<f64> = sizes
        .iter()
        .map(|size| f64::from(*size) / f64::from(WHOLE))
        .collect();
    while rows.len() < sizes.len() + PATTERNS_MAX {
        let Some(found) = simplex::maximise(&gain, &rows, &vec![1.0; rows.len()]) else {
            break;
        };
        let (worth, pattern) = dearest(sizes, &found.point);
        prices = found.point;
        if worth <= 1.0 + 1e-6 {
            break;
        }
        rows.push(pattern.iter().map(|count| f64::from(*count)).collect());
    }
    // Whatever happened above, a GPU is worth no more than a GPU.
    let (worth, _) = dearest(sizes, &prices);
    prices.iter().map(|price| price / worth.max(1.0)).collect()
}

/// The way to fill one GPU that is worth most at these prices.
pub(crate) fn dearest(sizes: &[u16], prices: &[f64]) -> (f64, Pattern) {
    let step = step(sizes);
    let steps = usize::from(WHOLE / step);
    let mut best = vec![(0.0_f64, usize::MAX); steps + 1];
    for room in 1..=steps {
        best[room] = (best[room - 1].0, usize::MAX);
        for (at, size) in sizes.iter().enumerate() {
            let size = usize::from(size / step).max(1);
            if size <= room && best[room - size].0 + prices[at] > best[room].0 + 1e-12 {
                best[room] = (best[room - size].0 + prices[at], at);
            }
        }
    }
    let mut pattern = vec![0; sizes.len()];
    let mut room = steps;
    while room > 0 {
        match best[room].1 {
            usize::MAX => room -= 1,
            at => {
                pattern[at] += 1;
                room -= usize::from(sizes[at] / step).max(1);
            }
        }
    }
    (best[steps].0, pattern)
}

/// The largest step that all sizes and the whole GPU are multiples of.
pub(crate) fn step(sizes: &[u16]) -> u16 {
    fn divisor(a: u16, b: u16) -> u16 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    sizes.iter().fold(WHOLE, |step, size| divisor(step, *size))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_price_is_the_part_of_a_gpu_that_a_size_uses_up() {
        let cases: [(&[u16], &[f64], &[f64]); 5] = [
            (&[500], &[1.0], &[0.5]),
            (&[810], &[1.0], &[1.0]),
            // What is small goes beside what is large, for nothing, while that is plenty.
            (&[160, 810], &[1.0, 5.0], &[0.0, 1.0]),
            (&[160, 810], &[12.0, 1.0], &[1.0 / 6.0, 5.0 / 6.0]),
            (&[330, 470, 500], &[9.0, 3.0, 1.0], &[1.0 / 3.0, 0.5, 0.5]),
        ];
        for (sizes, demand, expected) in cases {
            let prices = prices(sizes, demand);
            for (price, expected) in prices.iter().zip(expected) {
                assert!(
                    (price - expected).abs() < 1e-6,
                    "{sizes:?} {demand:?}: {prices:?}"
                );
            }
        }
        assert!(prices(&[], &[]).is_empty());
    }

    /// Each into the first GPU that has room, the largest first: a packing, so that no bound may be above it.
    fn packed(pods: &[u16]) -> usize {
        let mut pods = pods.to_vec();
        pods.sort_unstable_by(|a, b| b.cmp(a));
        let mut gpus: Vec<u16> = Vec::new();
        for pod in pods {
            match gpus.iter_mut().find(|free| **free >= pod) {
                Some(free) => *free -= pod,
                None => gpus.push(WHOLE - pod),
            }
        }
        gpus.len()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn prices_bound_the_gpus_needed(
            sizes in prop::collection::btree_set(prop_oneof![1_u16..1000, (1_u16..20).prop_map(|size| size * 50)], 1..10),
            pods in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
        ) {
            let sizes: Vec<u16> = sizes.into_iter().collect();
            let pods: Vec<u16> = pods.iter().map(|at| sizes[at.index(sizes.len())]).collect();
            let demand: Vec<f64> = sizes.iter().map(|size| pods.iter().filter(|pod| *pod == size).count() as f64).collect();
            let prices = prices(&sizes, &demand);
            let (worth, pattern) = dearest(&sizes, &prices);
            prop_assert!(worth <= 1.0 + 1e-6, "a GPU is worth {}", worth);
            let used: u32 = pattern.iter().zip(&sizes).map(|(count, size)| count * u32::from(*size)).sum();
            prop_assert!(used <= u32::from(WHOLE));
            let needed: f64 = prices.iter().zip(&demand).map(|(price, count)| price * count).sum();
            let amount: f64 = pods.iter().map(|pod| f64::from(*pod) / f64::from(WHOLE)).sum();
            prop_assert!(needed <= packed(&pods) as f64 + 1e-6, "{} of {}", needed, packed(&pods));
            prop_assert!(needed >= amount - 1e-3, "{} of {}", needed, amount);
        }
    }
}

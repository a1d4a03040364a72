//! Small linear programs: dense, exact enough for prices, and bounded in time.

/// The best point of a program, and what one more unit of each limit would be worth.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Optimum {
    pub value: f64,
    pub point: Vec<f64>,
    pub duals: Vec<f64>,
}

/// Below this a number is nought.
const NOUGHT: f64 = 1e-9;

/// `gain · x` as large as can be, with `rows · x <= limits` and `x >= 0`. No limit may be below nought, so that `x = 0` is a start.
///
/// Nothing where it has no bound, or was not found within a bound of steps that programs of our sizes stay far below.
pub(crate) fn maximise(gain: &[f64], rows: &[Vec<f64>], limits: &[f64]) -> Option<Optimum> {
    let (variables, constraints) = (gain.len(), rows.len());
    debug_assert!(limits.iter().all(|limit| *limit >= 0.0));
    debug_assert!(rows.iter().all(|row| row.len() == variables));
    let width = variables + constraints + 1;
    let mut tableau: Vec<Vec<f64>> = Vec::with_capacity(constraints);
    for (at, (row, limit)) in rows.iter().zip(limits).enumerate() {
        let mut line = vec![0.0; width];
        line[..variables].copy_from_slice(row);
        line[variables + at] = 1.0;
        line[width - 1] = *limit;
        tableau.push(line);
    }
    let mut price = vec![0.0; width];
    for (at, gain) in gain.iter().enumerate() {
        price[at] = -gain;
    }
    let mut basis: Vec<usize> = (variables..variables + constraints).collect();

    let steps_max = 50 * (variables + constraints + 1);
    for step in 0..steps_max {
        // The steepest way up is fast; the first way up (Bland) cannot go in circles.
        let careful = step > steps_max / 2;
        let Some(enters) = entering(&price[..width - 1], careful) else {
            return Some(read(&tableau, &price, &basis, variables));
        };
        let leaves = leaving(&tableau, &basis, enters)?;
        pivot(&mut tableau, &mut price, leaves, enters);
        basis[leaves] = enters;
    }
    None
}

fn entering(price: &[f64], careful: bool) -> Option<usize> {
    if careful {
        return price.iter().position(|price| *price < -NOUGHT);
    }
    let (at, price) = price.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1))?;
    (*price < -NOUGHT).then_some(at)
}

fn leaving(tableau: &[Vec<f64>], basis: &[usize], enters: usize) -> Option<usize> {
    let ratio = |row: &Vec<f64>| row[row.len() - 1] / row[enters];
    let mut found: Option<(f64, usize)> = None;
    for (at, row) in tableau.iter().enumerate() {
        if row[enters] <= NOUGHT {
            continue;
        }
        let ratio = ratio(row);
        let better = found.is_none_or(|(least, other)| {
            ratio < least - NOUGHT || (ratio < least + NOUGHT && basis[at] < basis[other])
        });
        if better {
            found = Some((ratio, at));
        }
    }
    found.map(|(_, at)| at)
}

fn pivot(tableau: &mut [Vec<f64>], price: &mut [f64], leaves: usize, enters: usize) {
    let by = tableau[leaves][enters];
    for number in &mut tableau[leaves] {
        *number /= by;
    }
    let turned = tableau[leaves].clone();
    let cleared = |line: &mut [f64]| {
        let by = line[enters];
        if by != 0.0 {
            for (number, turned) in line.iter_mut().zip(&turned) {
                *number -= by * turned;
            }
        }
    };
    for (at, line) in tableau.iter_mut().enumerate() {
        if at != leaves {
            cleared(line);
        }
    }
    cleared(price);
}

fn read(tableau: &[Vec<f64>], price: &[f64], basis: &[usize], variables: usize) -> Optimum {
    let last = price.len() - 1;
    let mut point = vec![0.0; variables];
    for (row, variable) in tableau.iter().zip(basis) {
        if let Some(number) = point.get_mut(*variable) {
            *number = row[last];
        }
    }
    Optimum {
        value: price[last],
        point,
        duals: price[variables..last].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * (1.0 + a.abs().max(b.abs()))
    }

    #[test]
    fn small_programs_have_the_optimum_that_paper_says() {
        type Case = (
            &'static [f64],
            &'static [&'static [f64]],
            &'static [f64],
            f64,
        );
        let cases: &[Case] = &[
            (
                &[3.0, 5.0],
                &[&[1.0, 0.0], &[0.0, 2.0], &[3.0, 2.0]],
                &[4.0, 12.0, 18.0],
                36.0,
            ),
            (&[1.0], &[&[2.0]], &[5.0], 2.5),
            (&[-1.0, -2.0], &[&[1.0, 1.0]], &[3.0], 0.0),
            // Goes in circles without care: every limit at the start is nought.
            (
                &[0.75, -150.0, 0.02, -6.0],
                &[
                    &[0.25, -60.0, -0.04, 9.0],
                    &[0.5, -90.0, -0.02, 3.0],
                    &[0.0, 0.0, 1.0, 0.0],
                ],
                &[0.0, 0.0, 1.0],
                0.05,
            ),
        ];
        for (gain, rows, limits, value) in cases {
            let rows: Vec<Vec<f64>> = rows.iter().map(|row| row.to_vec()).collect();
            let found = maximise(gain, &rows, limits).expect("it has an optimum");
            assert!(close(found.value, *value), "{} for {value}", found.value);
        }
    }

    #[test]
    fn what_has_no_bound_has_no_optimum() {
        assert_eq!(maximise(&[1.0], &[vec![-1.0]], &[1.0]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// The point keeps the limits, the duals keep the gains, and both say the same value: then it is the optimum.
        #[test]
        fn optimum_proves_itself(
            (gain, rows, limits) in (1_usize..7, 1_usize..9).prop_flat_map(|(width, height)| (
                prop::collection::vec(-5.0..10.0_f64, width),
                prop::collection::vec(prop::collection::vec(0.0..5.0_f64, width), height),
                prop::collection::vec(prop_oneof![Just(0.0), 0.0..20.0_f64], height),
            ))
        ) {
            let Some(found) = maximise(&gain, &rows, &limits) else {
                // Only where some gain is limited by no row.
                let free = (0..gain.len()).any(|at| gain[at] > 0.0 && rows.iter().all(|row| row[at] <= NOUGHT));
                prop_assert!(free);
                return Ok(());
            };
            prop_assert!(found.point.iter().chain(&found.duals).all(|number| *number >= -1e-6));
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            for (row, limit) in rows.iter().zip(&limits) {
                prop_assert!(dot(row, &found.point) <= limit + 1e-6);
            }
            for (at, gain) in gain.iter().enumerate() {
                let column: Vec<f64> = rows.iter().map(|row| row[at]).collect();
                prop_assert!(dot(&column, &found.duals) >= gain - 1e-6);
            }
            prop_assert!(close(dot(&gain, &found.point), found.value));
            prop_assert!(close(dot(&limits, &found.duals), found.value));
        }
    }
}

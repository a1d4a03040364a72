//! "Did you mean": the known word nearest to what was typed.

/// The nearest of `known`, if it is near enough to be what was meant.
pub fn nearest<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let far = (typed.chars().count() / 3).max(1);
    let lower = typed.to_lowercase();
    known
        .iter()
        .map(|word| (distance(&lower, &word.to_lowercase()), *word))
        .filter(|(distance, _)| *distance <= far)
        .min()
        .map(|(_, word)| word)
}

/// Letters to add, drop, change or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    // Words longer than this are not typing mistakes of each other; the table below stays small.
    const LENGTH_MAX: usize = 64;
    let a: Vec<char> = a.chars().take(LENGTH_MAX).collect();
    let b: Vec<char> = b.chars().take(LENGTH_MAX).collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(rows[i][j - 1] + 1)
                .min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let known = [
            "workers",
            "command",
            "gpus",
            "gpuTypes",
            "maxDuration",
            "env",
        ];
        let table = [
            ("worker", Some("workers")),
            ("wrokers", Some("workers")),
            ("comand", Some("command")),
            ("maxduration", Some("maxDuration")),
            ("gputypes", Some("gpuTypes")),
            ("envs", Some("env")),
            ("banana", None),
            ("x", None),
            ("", None),
        ];
        for (typed, expected) in table {
            assert_eq!(nearest(typed, &known), expected, "{typed}");
        }
    }
}

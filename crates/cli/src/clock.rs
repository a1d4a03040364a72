//! Time for people. The clock is read here and in the commands; renderers are given the moment.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::Span;

pub fn now() -> Timestamp {
    Timestamp::now()
}

/// `12s`, `3m10s`, `5h2m`, `3d4h`: two units at most, as kubectl tells ages.
pub fn ago(since: Timestamp, now: Timestamp) -> String {
    between(since, now)
}

/// How long it was from one moment to the other; clocks that disagree make it nothing, not negative.
pub fn between(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.as_second().saturating_sub(from.as_second()).max(0);
    short(seconds as u64)
}

pub fn short(seconds: u64) -> String {
    let coarse = match seconds {
        0..3_600 => seconds,
        3_600..86_400 => seconds - seconds % 60,
        86_400..864_000 => seconds - seconds % 3_600,
        _ => seconds - seconds % 86_400,
    };
    Span::seconds(coarse).to_string()
}

pub fn age(time: Option<&Time>, now: Timestamp) -> String {
    time.map_or_else(|| "<unknown>".to_owned(), |time| ago(time.0, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        let table = [
            (0, "0s"),
            (59, "59s"),
            (190, "3m10s"),
            (3_600, "1h"),
            (18_133, "5h2m"),
            (273_601, "3d4h"),
            (1_000_000, "11d"),
        ];
        for (seconds, text) in table {
            assert_eq!(short(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn a_clock_that_went_back_tells_nothing_negative() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(between(at(10), at(5)), "0s");
    }
}

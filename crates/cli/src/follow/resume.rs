//! Which lines of a log were given already, when it is opened anew after a break.

use jiff::Timestamp;

/// Remembers how far a log was read. A log is asked for from a whole second (the API knows no finer one), so what comes
/// first has been seen before; several lines may carry the same instant.
#[derive(Debug, Clone, Default)]
pub struct Resume {
    last: Option<Timestamp>,
    /// Lines given that carry `last`.
    at_last: usize,
    /// Lines of `last` that came again since the log was opened anew.
    repeated: usize,
    is_catching_up: bool,
}

impl Resume {
    /// The log is being opened; from when is it wanted? `None` before the first line.
    pub fn open(&mut self) -> Option<Timestamp> {
        self.repeated = 0;
        self.is_catching_up = self.last.is_some();
        // kube rounds to the nearest second, which may be later than the line.
        self.last
            .and_then(|last| Timestamp::from_second(last.as_second()).ok())
    }

    /// Is this line new? Outside of catching up every line is, even if the machine's clock went back.
    pub fn is_new(&mut self, at: Timestamp) -> bool {
        if self.is_catching_up
            && let Some(last) = self.last
        {
            if at < last {
                return false;
            }
            if at == last && self.repeated < self.at_last {
                self.repeated += 1;
                return false;
            }
            self.is_catching_up = false;
        }
        if self.last == Some(at) {
            self.at_last += 1;
        } else {
            self.last = Some(at);
            self.at_last = 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    /// A log of lines at these instants, broken off after every possible number of lines and opened anew: every line is
    /// given once.
    #[test]
    fn no_break_loses_or_doubles_a_line() {
        let log = [100, 100, 900, 900, 900, 1000, 1999, 2000, 2000, 2000, 2500].map(at);
        for first in 0..=log.len() {
            for second in first..=log.len() {
                let mut resume = Resume::default();
                let mut given = Vec::new();
                for end in [first, second, log.len()] {
                    let from = resume.open();
                    for line in log.iter().take(end) {
                        if from.is_none_or(|from| *line >= from) && resume.is_new(*line) {
                            given.push(*line);
                        }
                    }
                }
                assert_eq!(given, log, "broken at {first} and {second}");
            }
        }
    }

    #[test]
    fn the_log_is_asked_for_from_a_whole_second_before() {
        let mut resume = Resume::default();
        assert_eq!(resume.open(), None);
        assert!(resume.is_new(at(1_999)));
        assert_eq!(resume.open(), Some(at(1_000)));
    }

    #[test]
    fn a_clock_that_goes_back_loses_nothing_of_a_running_stream() {
        let mut resume = Resume::default();
        resume.open();
        assert!(
            [2_000, 1_000, 1_500]
                .map(at)
                .into_iter()
                .all(|t| resume.is_new(t))
        );
    }
}

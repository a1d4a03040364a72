//! What is said of a live series, each in one sentence with its figures.

use std::fmt;

use stoke_api::{Bytes, Span};

/// Whose memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Place {
    #[default]
    Host,
    /// The node's GPU of this index.
    Gpu(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::Gpu(index) => write!(f, "memory of GPU {index}"),
        }
    }
}

/// What the series does now. `confidence` is 0 to 1, from how orderly the growth is and how much of the room it has taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Less was seen than any other verdict needs.
    TooEarly,
    Steady,
    /// Grows towards the limit. For a person to read; whether it will stop by itself is not known.
    Climbing {
        place: Place,
        used: Bytes,
        limit: Bytes,
        oom_in: Span,
        confidence: f64,
    },
    /// Grows and does not come back: more memory only buys time.
    Leak {
        place: Place,
        mib_per_hour: f64,
        /// Where the job tells its steps.
        mib_per_step: Option<f64>,
        /// Where there is a limit.
        oom_in: Option<Span>,
        confidence: f64,
    },
    /// Steady but for a phase of the job, which takes more and gives it back.
    Spike {
        phase: String,
        /// More than before the phase.
        by: Bytes,
        /// Its highest.
        to: Bytes,
    },
    /// The working set is near the limit, but most of it is page cache, which the kernel takes back when it needs to.
    PageCache {
        working_set: Bytes,
        /// What cannot be taken back.
        held: Bytes,
        limit: Bytes,
    },
}

impl Verdict {
    /// The one name it has as Event reason, condition reason and metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooEarly => "TooEarly",
            Self::Steady => "Steady",
            Self::Climbing { .. } => "Climbing",
            Self::Leak { .. } => "Leak",
            Self::Spike { .. } => "Spike",
            Self::PageCache { .. } => "PageCache",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooEarly => f.write_str("too early to say"),
            Self::Steady => f.write_str("steady"),
            Self::Climbing {
                place,
                used,
                limit,
                oom_in,
                confidence,
            } => write!(
                f,
                "{place} climbs: {} of {} used, full in about {} if it goes on ({} sure)",
                used.human(),
                limit.human(),
                about(*oom_in),
                percent(*confidence)
            ),
            Self::Leak {
                place,
                mib_per_hour,
                mib_per_step,
                oom_in,
                confidence,
            } => {
                write!(f, "{place} leaks {} an hour", figure(*mib_per_hour))?;
                if let Some(rate) = mib_per_step {
                    write!(f, ", {} a step", figure(*rate))?;
                }
                if let Some(oom_in) = oom_in {
                    write!(f, "; full in about {}", about(*oom_in))?;
                }
                write!(f, " ({} sure)", percent(*confidence))
            }
            Self::Spike { phase, by, to } => write!(
                f,
                "steady but for phase {phase}, which takes {} more, up to {}, and gives it back",
                by.human(),
                to.human()
            ),
            Self::PageCache {
                working_set,
                held,
                limit,
            } => write!(
                f,
                "no danger: {} of {} used, but only {} of it cannot be taken back; the rest is page cache",
                working_set.human(),
                limit.human(),
                held.human()
            ),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Two figures that matter, in the unit that fits.
fn figure(mib: f64) -> String {
    if mib >= 1024.0 {
        format!("{:.1} GiB", mib / 1024.0)
    } else if mib >= 10.0 {
        format!("{mib:.0} MiB")
    } else if mib >= 0.1 {
        format!("{mib:.1} MiB")
    } else {
        format!("{:.1} KiB", mib * 1024.0)
    }
}

/// Nobody can know it to the second.
fn about(span: Span) -> Span {
    let unit = match span.seconds {
        0..=119 => 1,
        120..=7_199 => 60,
        7_200..=172_799 => 3_600,
        _ => 86_400,
    };
    Span::seconds((span.seconds + unit / 2) / unit * unit)
}

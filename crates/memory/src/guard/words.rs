//! What a guard says, for the person whose job it is.

use std::fmt;

use stoke_api::Bytes;

use super::{Action, Cannot, Danger, Kind};

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let human = |bytes: u64| Bytes(bytes).human();
        let (used, limit) = (human(self.used), human(self.limit));
        match self.kind {
            Kind::AtLimit => write!(f, "it reached its limit of {limit}"),
            Kind::Near => write!(f, "it uses {used} of its limit of {limit}"),
            Kind::Growing { per_second, left } => {
                let per_second = human(per_second);
                let left = left.as_secs_f64();
                write!(
                    f,
                    "it uses {used} and {per_second} more each second, and would be at its limit of {limit} in {left:.1} s"
                )
            }
        }
    }
}

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMax { max } => write!(f, "it may have no more than {}", Bytes(*max).human()),
            Self::NoRoom => f.write_str("its node has no more that is nobody else's"),
            Self::Refused { why } => write!(f, "its limit cannot be raised: {why}"),
        }
    }
}

/// A sentence for the person whose job it is.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raise { to, danger } => {
                write!(f, "{danger}: the limit is raised to {}", Bytes(*to).human())
            }
            Self::AskCheckpoint { danger, cannot } => {
                write!(f, "{danger}; {cannot}: it was asked for a checkpoint")
            }
            Self::AskInTime { done, every, .. } => write!(
                f,
                "it leaks and has done {done} steps, and begins anew every {every}, before its memory is full: it was asked for a checkpoint"
            ),
            Self::GiveBack { to, needs } => write!(
                f,
                "it needs {} by now: the limit is {} again",
                Bytes(*needs).human(),
                Bytes(*to).human()
            ),
            Self::Calm => f.write_str("its memory is in no danger any more"),
        }
    }
}

//! What a job's program and its node tell each other while it runs, by two small files.
//!
//! The program says where it is in `$STOKE_STATUS_FILE`, if it likes to: `{"phase": "train", "step": 1200, "saved_step": 1000,
//! "input_bytes": 9000000}`, one object, or one a line of which the last counts. It looks at `$STOKE_CHECKPOINT_REQUEST` now and then: the file is empty until
//! someone wants a checkpoint soon, and a new text in it is a new request. What it writes then, and who may, is in [`checkpoints`].

pub mod checkpoints;
pub mod copies;

use serde::{Deserialize, Serialize};

use crate::quantity::Bytes;

/// Where the two files are in a worker.
pub const REQUEST_DIR: &str = "/run/stokehold/request";
pub const STATUS_DIR: &str = "/run/stokehold/status";
pub const CHECKPOINT_REQUEST: &str = "checkpoint";
pub const STATUS: &str = "status.json";
/// The volume that the program writes its status to.
pub const STATUS_VOLUME: &str = "stokehold-status";
/// The volume that shows it requests.
pub const REQUEST_VOLUME: &str = "stokehold-request";

/// As much of a status file as is read, from its end.
pub const STATUS_LENGTH_MAX: usize = 4096;
const PHASE_LENGTH_MAX: usize = 32;

/// What a program says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStatus {
    pub phase: Option<String>,
    pub step: Option<u64>,
    /// The step that its newest checkpoint goes on from: another one means another checkpoint.
    pub saved_step: Option<u64>,
    pub input_bytes: Option<u64>,
    /// The newest checkpoint, as what watches over them has seen it. It is not the program that tells.
    #[serde(skip)]
    pub saved: Option<checkpoints::Saved>,
}

/// The value of [`crate::names::MEMORY_TERMS_ANNOTATION`]: what the node may do with a worker's memory limit by itself, and when it asks
/// for a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemoryTerms {
    /// The limit it was made with, to which a raised one goes back.
    pub limit: Bytes,
    /// What it may be raised to; absent: not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Bytes>,
    /// What earlier runs needed at most: growth up to there is nothing to worry about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Bytes>,
    /// It leaks: after this many steps it is asked for a checkpoint, to begin anew from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_steps: Option<u64>,
}

impl MemoryTerms {
    /// Nonsense allows nothing.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl JobStatus {
    /// The last whole object in the text; what is being written just now, or is none of this, is passed over.
    pub fn parse(text: &str) -> Option<Self> {
        let whole = serde_json::from_str(text).ok();
        let told: Self = whole.or_else(|| {
            let mut lines = text.lines().rev();
            lines.find_map(|line| serde_json::from_str(line).ok())
        })?;
        Some(Self {
            phase: told.phase.and_then(|phase| phase_name(&phase)),
            ..told
        })
    }
}

/// A phase as it can stand in labels and file names: short, lower case, no odd characters.
fn phase_name(said: &str) -> Option<String> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = said
        .trim()
        .chars()
        .take(PHASE_LENGTH_MAX)
        .map(plain)
        .collect();
    let name = name.trim_matches('-');
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_word_of_a_program_counts() {
        let parse = |text: &str| {
            JobStatus::parse(text).map(|it| (it.phase.unwrap_or_default(), it.step, it.input_bytes))
        };
        let train = ("train".to_owned(), Some(12), Some(5));
        let object = r#"{"phase": "train", "step": 12, "input_bytes": 5, "loss": 0.3}"#;
        assert_eq!(parse(object), Some(train.clone()));
        let pretty = "{\n \"phase\": \"train\",\n \"step\": 12, \"input_bytes\": 5\n}\n";
        assert_eq!(parse(pretty), Some(train.clone()));
        let lines = format!("{{\"phase\": \"load\"}}\n{object}\n{{\"phase\": \"eva");
        assert_eq!(parse(&lines), Some(train), "the last line is being written");
        assert_eq!(
            parse(r#"{"phase": " Eval / Test! "}"#),
            Some(("eval---test".to_owned(), None, None))
        );
        assert_eq!(
            parse(r#"{"phase": "???"}"#),
            Some((String::new(), None, None))
        );
        for nothing in ["", "{", "12", "null", "\u{0}\u{1}", r#"{"step": -1}"#] {
            assert_eq!(parse(nothing), None, "{nothing:?}");
        }
    }
}

//! What the next attempt does differently, by what the last one died of; or that there is no use in another.
//!
//! A diagnosis brings its remedies in order. The first that can still help is taken: each knows what it needs, how far it goes, and by
//! the attempts before whether it has been of use.
//!
//! Invariant: a remedy that changes nothing is not taken, so no attempt that died of its own doing is repeated as it was, unless luck
//! may have had a part in it.

mod change;
mod gpu;
mod host;
mod room;

use stoke_api::Bytes;
use stoke_api::trainjob::{Finding, Tuning};

use crate::diagnosis::{Blame, Cause, Diagnosis, Remedy};

pub use change::Change;

/// What is known when an attempt has ended and another is thought of.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub diagnosis: &'a Diagnosis,
    /// The attempts so far, oldest first; the last is the one that just ended. The latest few will do.
    pub tried: &'a [Tried],
    /// How many more failures of its own the job may have.
    pub retries_left: u32,
    /// `memory.max`.
    pub memory_max: Option<Bytes>,
    /// Does it write checkpoints that it goes on from?
    pub checkpoints: bool,
    pub had: &'a Had,
    pub room: &'a Room,
    /// What runs like it needed, where that is known.
    pub advice: Option<Advised>,
}

/// An attempt that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tried {
    pub finding: Finding,
    /// What it ran with.
    pub tuning: Tuning,
    /// Did it write a checkpoint, so that the next one begins further on?
    pub progressed: bool,
}

/// What each worker of the attempt that just ended had.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Had {
    /// Memory limit.
    pub memory: Bytes,
    /// What of it was promised.
    pub request: Bytes,
    /// Size of its /dev/shm; absent: what runtimes give.
    pub shm: Option<Bytes>,
    /// Local disk it may use; absent: no limit.
    pub storage: Option<Bytes>,
    /// Memory of one of its GPUs.
    pub gpu_memory: Option<Bytes>,
    /// How long it ran.
    pub seconds: u64,
    pub steps: Option<u64>,
}

/// What a worker of this job could be given, the best of all nodes that may run it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Room {
    /// Memory; absent: not known, and then placement will tell.
    pub memory: Option<Bytes>,
    /// Local disk.
    pub storage: Option<Bytes>,
    /// Can it have a volume for temporary files?
    pub volumes: bool,
    /// Nodes that could run it and that it is not kept away from, but for those of the attempt that just ended.
    pub other_nodes: u32,
    /// GPU types that the job allows and that exist, with the memory of each.
    pub gpu_types: Vec<(String, Bytes)>,
}

/// What runs like it needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Advised {
    /// Memory limit.
    pub memory: Option<Bytes>,
    pub shm: Option<Bytes>,
    pub storage: Option<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// Another attempt, from the last checkpoint.
    Again {
        /// What is different; nothing, where it was not its own doing or a matter of luck.
        changes: Vec<Change>,
        why: String,
    },
    GiveUp {
        why: String,
    },
}

/// How often in a row an attempt may be taken down by its node's want of memory before that is no accident any more.
const ACCIDENTS_MAX: usize = 5;

/// What a remedy comes to: what it changes, or why it cannot help.
type Plan = Result<Vec<Change>, String>;

/// Decides. Total and deterministic.
pub fn recover(case: &Case<'_>) -> Recovery {
    let diagnosis = case.diagnosis;
    let why = diagnosis.sentence.clone();
    if diagnosis.blame == Blame::Job && case.retries_left == 0 {
        return Recovery::GiveUp {
            why: format!("{why}; its retries are used up"),
        };
    }
    let mut useless = Vec::new();
    for remedy in &diagnosis.remedies {
        match case.plan(*remedy) {
            Ok(changes) if *remedy == Remedy::TryAgain || case.changes_anything(&changes) => {
                return Recovery::Again { changes, why };
            }
            Ok(_) => useless.push(format!("it had {remedy}")),
            Err(reason) => useless.push(reason),
        }
    }
    if useless.is_empty() {
        useless.push(
            crate::diagnosis::first_of(&diagnosis.help, "another attempt would end the same")
                .to_owned(),
        );
    }
    Recovery::GiveUp {
        why: format!("{why}; {}", useless.join("; ")),
    }
}

impl Case<'_> {
    fn plan(&self, remedy: Remedy) -> Plan {
        match remedy {
            Remedy::MoreMemory => host::more_memory(self),
            Remedy::PromisedMemory => host::promised_memory(self),
            Remedy::RestartInTime => host::restart_in_time(self),
            Remedy::MoreSharedMemory => room::more_shared_memory(self),
            Remedy::MoreStorage => room::more_storage(self),
            Remedy::ScratchVolume => room::scratch_volume(self),
            Remedy::SmallerMicroBatch => gpu::smaller_micro_batch(self),
            Remedy::ExpandableSegments => gpu::expandable_segments(self),
            Remedy::BiggerGpu => gpu::bigger_gpu(self),
            Remedy::OtherNode => room::other_node(self),
            Remedy::TryAgain => self.try_again(),
        }
    }

    /// What the attempt that just ended ran with.
    fn tuning(&self) -> Tuning {
        self.tried
            .last()
            .map_or_else(Tuning::default, |last| last.tuning.clone())
    }

    fn changes_anything(&self, changes: &[Change]) -> bool {
        let before = self.tuning();
        let mut after = before.clone();
        for change in changes {
            change.apply(&mut after);
        }
        before != after
    }

    /// Is this the last attempt there will be?
    fn is_last_chance(&self) -> bool {
        self.diagnosis.blame == Blame::Job && self.retries_left == 1
    }

    /// Attempts in a row, up to the last, that died of the same.
    fn in_a_row(&self) -> impl Iterator<Item = &Tried> {
        let name = self.diagnosis.cause.name();
        self.tried
            .iter()
            .rev()
            .take_while(move |tried| tried.finding.cause == name)
    }

    fn try_again(&self) -> Plan {
        let cause = self.diagnosis.cause;
        if matches!(cause, Cause::NodeOutOfMemory | Cause::NodePressure(_))
            && self
                .in_a_row()
                .take_while(|tried| !tried.progressed)
                .count()
                >= ACCIDENTS_MAX
        {
            return Err(format!("{ACCIDENTS_MAX} attempts in a row ended so"));
        }
        let error = self.diagnosis.facts.error.as_deref().unwrap_or_default();
        if cause == Cause::Crash && is_for_good(error) {
            return Err("no attempt changes what the program is".to_owned());
        }
        Ok(Vec::new())
    }
}

/// Is it an error that the same program makes wherever and whenever it is run?
fn is_for_good(error: &str) -> bool {
    let kinds = ["SyntaxError", "IndentationError", "ModuleNotFoundError"];
    kinds.iter().any(|kind| error.contains(kind))
}

/// An amount that people read.
fn rounded_up(bytes: u64) -> Bytes {
    let unit = if bytes >= 16 << 30 { 1 << 30 } else { 1 << 20 };
    Bytes(bytes.div_ceil(unit).saturating_mul(unit))
}

#[cfg(test)]
mod tests;

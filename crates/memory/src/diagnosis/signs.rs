//! What a single line tells of an end. Lines are known by their structure (who speaks, what was refused, of which device) and not by one
//! wording: every release of a framework words it anew.

mod error;
mod gpu;
mod host;
mod killed;
mod room;
mod wording;

use super::cause::Framework;
use super::figures::Figures;
use super::kernel;
use super::line::{Line, floor};

/// What a line tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    Gpu(Framework),
    SharedMemory,
    Disk,
    Host,
    /// A process says that one of its own was killed.
    Child,
    /// A launcher says so when it sums up, which it also does of processes that it killed itself.
    Launcher,
    /// The kernel killed at a limit.
    KernelLimit,
    /// The kernel killed because the machine was full.
    KernelNode,
    /// A bus error with nothing said about its cause.
    BusError,
    /// Someone pressed Ctrl-C, or sent the same.
    Interrupt,
    /// An error that is none of these.
    Error,
}

impl Sign {
    /// Are the two of one kind?
    pub fn is_like(self, other: Self) -> bool {
        matches!((self, other), (Self::Gpu(_), Self::Gpu(_))) || self == other
    }

    /// Does it follow a cause as often as it is one?
    pub fn is_told_by_others(self) -> bool {
        matches!(self, Self::Launcher | Self::BusError | Self::Interrupt)
    }
}

/// What was read of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub sign: Sign,
    /// Said as errors are said, and not in passing.
    pub strong: bool,
    /// Where in the line the telling words stand.
    pub at: usize,
    pub figures: Figures,
    pub path: Option<String>,
}

/// Are these four letters, in lower case, of a word that a telling line has? A line without any is not looked at.
pub fn is_anchor(letters: [u8; 4]) -> bool {
    matches!(
        &letters,
        b"===="
            | b"memo"
            | b"allo"
            | b"spac"
            | b"/shm"
            | b"(shm"
            | b"shar"
            | b"seml"
            | b"oom "
            | b"oom-"
            | b"sigk"
            | b"sign"
            | b"kill"
            | b"xhau"
            | b"bus "
            | b"errn"
            | b"quot"
            | b"rror"
            | b"xcep"
            | b"exit"
            | b"enos"
            | b"enom"
            | b"inte"
            | b"pani"
            | b"sert"
            | b"segm"
            | b"retu"
            | b"root"
            | b"othe"
            | b"trac"
            | b"disk"
            | b"term"
            | b"heap"
            | b"fata"
            | b"stor"
            | b"abor"
            | b"fail"
    )
}

/// What the lines before said that decides what the next one means.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    /// The traceback so far went through shared memory.
    shared_memory: bool,
    summary: Summary,
}

/// Whom torchrun speaks of when it sums up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Summary {
    #[default]
    None,
    /// The process that ended first.
    Root,
    /// Those that ended after it, some of them by its own hand.
    Others,
}

impl Context {
    pub fn read(&mut self, line: &Line<'_>) -> Option<Reading> {
        if line.has("traceback (most recent") {
            self.shared_memory = false;
        }
        if line.has_any(SHARED_MEMORY_CODE) {
            self.shared_memory = true;
        }
        let body = line.lower.trim();
        if body.starts_with("root cause") {
            self.summary = Summary::Root;
        } else if body == "failures:" || body == "other failures:" {
            self.summary = Summary::Others;
        } else if body.len() > 8 && body.bytes().all(|byte| byte == b'=') {
            self.summary = Summary::None;
        }
        let reading = read(line, *self)?;
        if reading.sign != Sign::Error {
            self.shared_memory = false;
        }
        Some(reading)
    }
}

/// Where Python's and PyTorch's own code makes shared memory and semaphores.
const SHARED_MEMORY_CODE: &[&str] = &[
    "shared_memory.py",
    "semlock(",
    "multiprocessing/synchronize",
    "multiprocessing/reductions",
    "_share_filename",
    "_new_using_f",
    "_new_shared",
    "share_memory_",
    "_posixshmem",
];

fn read(line: &Line<'_>, context: Context) -> Option<Reading> {
    // Its own words say that nothing failed.
    if line.has("not a failure") {
        return None;
    }
    kernel_words(line)
        .or_else(|| killed::killed(line, context))
        .or_else(|| room::shared_memory(line, context))
        .or_else(|| room::disk(line))
        .or_else(|| gpu::gpu(line))
        .or_else(|| host::host(line))
        .or_else(|| error::interrupt(line))
        .or_else(|| error::error(line))
}

fn reading(line: &Line<'_>, sign: Sign, strong: bool, words: &str) -> Reading {
    let at = line.lower.find(words).unwrap_or(0);
    Reading {
        sign,
        strong,
        at,
        // A line may speak of other amounts before.
        figures: Figures::read(&line.lower[floor(&line.lower, at.saturating_sub(256))..]),
        path: None,
    }
}

fn found<'w>(line: &Line<'_>, words: &[&'w str]) -> Option<&'w str> {
    words.iter().copied().find(|words| line.has(words))
}

fn kernel_words(line: &Line<'_>) -> Option<Reading> {
    let sign = match kernel::victim(&line.lower)? {
        kernel::Where::Limit => Sign::KernelLimit,
        kernel::Where::Node => Sign::KernelNode,
    };
    Some(reading(line, sign, true, "killed process"))
}

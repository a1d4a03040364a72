//! Reads a log for what ended its program. Of any size and any bytes, in bounded memory: what is kept is the few lines that tell of an
//! end, with their place.
//!
//! The place matters. A program may catch an error and go on, and what comes after the true cause is often louder than it: other ranks
//! lose their connection, a launcher sums up. So an error after which the program went on as before is no cause, and of those that
//! remain the first is.

use std::collections::BTreeMap;

use stoke_api::contract::checkpoints::{NOT_BEGUN, SAID_BY_US};

use super::figures::Figures;
use super::line::{self, Line};
use super::signs::{self, Context, Reading, Sign};

/// A longer line is read in pieces of this length.
const PIECE_MAX: usize = 8 << 10;
/// What of a piece is read again with the next, so that no message falls between two.
const OVERLAP: usize = 2 << 10;
/// Escape sequences end after this many bytes, whatever they are.
const ESCAPE_MAX: usize = 64;
/// What is kept of a line that tells something.
const QUOTE_MAX: usize = 400;
/// Shapes of lines that are known at a time.
const SHAPES_MAX: usize = 1024;
/// Ranks whose progress is told apart.
const SOURCES_MAX: usize = 256;

/// Lines of progress after an error that say it was survived. A rank that is still alive when another dies prints few of its own; a log
/// that does not say which rank speaks may have some of each.
const SURVIVED: u32 = 8;
const SURVIVED_UNRANKED: u32 = 32;
const SURVIVED_BY_OTHERS: u32 = 128;
/// And of any lines that come again and again.
const SURVIVED_BEATS: u32 = 200;
/// Fewer will do where another error follows them.
const SURVIVED_BEFORE_ANOTHER: u32 = 3;

/// A reader of one log. Feed it what there is, in chunks of any size, and finish.
#[derive(Debug, Clone, Default)]
pub struct LogScan {
    piece: Vec<u8>,
    window: Window,
    escape: Escape,
    bytes: u64,
    /// Pieces so far: the place of the next.
    at: u64,
    /// Line breaks so far.
    lines: u64,
    hits: Vec<Hit>,
    context: Context,
    shapes: BTreeMap<u64, Seen>,
    progress: BTreeMap<Option<u32>, Progress>,
    progress_all: u32,
    is_not_begun: bool,
}

/// What a log tells of its program's end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogDigest {
    pub bytes: u64,
    pub lines: u64,
    /// What starts a worker says that it did not.
    pub(super) is_not_begun: bool,
    /// At most one of each kind, in their order.
    pub(super) hits: Vec<Hit>,
}

/// A line that tells of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub sign: Sign,
    /// Said as errors are said, and not in passing.
    pub strong: bool,
    pub quote: String,
    pub figures: Figures,
    pub path: Option<String>,
    /// Counted from 1.
    pub line: u64,
    pub survived: bool,
    /// The program did not end right there, whether or not it survived.
    pub went_on: bool,
    at: u64,
    source: Option<u32>,
    progress: u32,
    progress_all: u32,
    beats: u32,
}

#[derive(Debug, Clone, Copy, Default)]
enum Escape {
    #[default]
    None,
    Begun,
    Sequence(usize),
    Text(usize),
}

/// A shape of lines: their words without their figures.
#[derive(Debug, Clone, Copy)]
struct Seen {
    born: u64,
    times: u32,
    figures: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    times: u32,
    figures: u64,
}

/// The last four bytes in lower case, and whether any four so far are of a word that matters.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    last: u32,
    tells: bool,
}

impl Window {
    fn push(&mut self, byte: u8) {
        self.last = self.last << 8 | u32::from(byte.to_ascii_lowercase());
        self.tells |= signs::is_anchor(self.last.to_be_bytes());
    }
}

impl LogScan {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn feed(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        for &byte in chunk {
            if matches!(byte, b'\n' | b'\r') {
                self.escape = Escape::None;
                self.end_piece();
                self.piece.clear();
                self.window = Window::default();
                self.lines += u64::from(byte == b'\n');
            } else if !self.escapes(byte) {
                self.push(byte);
            }
        }
    }

    pub fn finish(mut self) -> LogDigest {
        self.end_piece();
        let unended = !self.piece.is_empty();
        let another = self.hits.iter().find(|hit| hit.sign == Sign::Error);
        let another = another.map(|error| (error.at, error.progress_all));
        let hits = self.hits.clone();
        let mut hits: Vec<Hit> = hits
            .into_iter()
            .map(|hit| {
                let before_another = another.is_some_and(|(at, progress)| {
                    at > hit.at
                        && progress.saturating_sub(hit.progress_all) >= SURVIVED_BEFORE_ANOTHER
                        && hit.source.is_none()
                });
                let survived = self.is_survived(&hit) || before_another;
                let after = self.progress_all - hit.progress_all;
                Hit {
                    survived,
                    went_on: after >= SURVIVED_BEFORE_ANOTHER,
                    ..hit
                }
            })
            .collect();
        hits.sort_by_key(|hit| hit.at);
        LogDigest {
            bytes: self.bytes,
            lines: self.lines + u64::from(unended),
            is_not_begun: self.is_not_begun,
            hits,
        }
    }

    /// Reads a whole log.
    pub fn read(log: &[u8]) -> LogDigest {
        let mut scan = Self::new();
        scan.feed(log);
        scan.finish()
    }

    /// Is this byte part of a sequence for a terminal, and not of the text?
    fn escapes(&mut self, byte: u8) -> bool {
        if byte != 0x1b && matches!(self.escape, Escape::None) {
            return false;
        }
        let next = |length: usize, ended: bool, state: fn(usize) -> Escape| {
            if ended || length >= ESCAPE_MAX {
                Escape::None
            } else {
                state(length + 1)
            }
        };
        self.escape = match (self.escape, byte) {
            (_, 0x1b) => Escape::Begun,
            (Escape::Begun, b'[') => Escape::Sequence(0),
            (Escape::Begun, b']') => Escape::Text(0),
            (Escape::Begun | Escape::None, _) => Escape::None,
            (Escape::Sequence(length), _) => {
                next(length, (0x40..=0x7e).contains(&byte), Escape::Sequence)
            }
            (Escape::Text(length), _) => next(length, byte == 7, Escape::Text),
        };
        true
    }

    fn push(&mut self, byte: u8) {
        // Text of two bytes a character is readable without the zeros.
        if byte == 0 || (byte < b' ' && byte != b'\t') {
            return;
        }
        self.piece.push(byte);
        self.window.push(byte);
        if self.piece.len() < PIECE_MAX {
            return;
        }
        self.end_piece();
        let rest = self.piece.split_off(PIECE_MAX - OVERLAP);
        self.piece.clear();
        self.window = Window::default();
        for byte in rest {
            self.piece.push(byte);
            self.window.push(byte);
        }
    }

    fn end_piece(&mut self) {
        if self.piece.is_empty() {
            return;
        }
        self.at += 1;
        let piece = std::mem::take(&mut self.piece);
        let text = String::from_utf8_lossy(&piece);
        self.is_not_begun |= text.starts_with(SAID_BY_US) && text.contains(NOT_BEGUN);
        let line = Line::of(&text);
        let reading = self
            .window
            .tells
            .then(|| self.context.read(&line))
            .flatten();
        match reading {
            Some(reading) => self.found(reading, &line),
            None => self.went_on(&line),
        }
        drop(text);
        self.piece = piece;
    }

    fn found(&mut self, reading: Reading, line: &Line<'_>) {
        let known = self
            .hits
            .iter()
            .position(|hit| hit.sign.is_like(reading.sign));
        let hit = Hit {
            sign: reading.sign,
            strong: reading.strong,
            quote: line::excerpt(line.text, reading.at, QUOTE_MAX),
            figures: reading.figures,
            path: reading.path,
            line: self.lines + 1,
            survived: false,
            went_on: false,
            at: self.at,
            source: line.source,
            progress: self.progress.get(&line.source).map_or(0, |seen| seen.times),
            progress_all: self.progress_all,
            beats: 0,
        };
        let Some(known) = known else {
            return self.hits.push(hit);
        };
        let old = &self.hits[known];
        let went_on = self.progress_all - old.progress_all >= SURVIVED_BEFORE_ANOTHER;
        if self.is_survived(old) || (went_on && hit.strong >= old.strong) {
            self.hits[known] = hit;
            return;
        }
        // One error is told by several: the first place, and the words that say most.
        let old = &mut self.hits[known];
        if (hit.strong, hit.figures.known()) > (old.strong, old.figures.known()) {
            old.sign = hit.sign;
            old.strong = hit.strong;
            old.quote = hit.quote;
            old.figures = hit.figures;
            old.path = hit.path.or_else(|| old.path.take());
        }
    }

    /// A line that tells of no end may tell that the program goes on.
    fn went_on(&mut self, line: &Line<'_>) {
        if line.is_progress() {
            let room = self.progress.len() < SOURCES_MAX;
            let source = if room || self.progress.contains_key(&line.source) {
                line.source
            } else {
                None
            };
            let seen = self.progress.entry(source).or_default();
            if seen.figures != line.figures {
                seen.figures = line.figures;
                seen.times += 1;
                self.progress_all += 1;
            }
        }
        if !line.may_recur() {
            return;
        }
        if !self.shapes.contains_key(&line.shape) && self.shapes.len() >= SHAPES_MAX {
            self.shapes.retain(|_, seen| seen.times > 2);
            if self.shapes.len() >= SHAPES_MAX {
                return;
            }
        }
        let seen = self.shapes.entry(line.shape).or_insert(Seen {
            born: self.at,
            times: 0,
            figures: line.figures,
        });
        let moved = seen.figures != line.figures;
        if moved && seen.times > 2 {
            for hit in &mut self.hits {
                hit.beats += u32::from(seen.born < hit.at);
            }
        }
        seen.times += 1;
        seen.figures = line.figures;
    }

    fn is_survived(&self, hit: &Hit) -> bool {
        let own = self
            .progress
            .get(&hit.source)
            .map_or(0, |seen| seen.times - hit.progress);
        let all = self.progress_all - hit.progress_all;
        let enough = if hit.source.is_some() {
            SURVIVED
        } else {
            SURVIVED_UNRANKED
        };
        own >= enough || all >= SURVIVED_BY_OTHERS || hit.beats >= SURVIVED_BEATS
    }
}

impl Hit {
    /// Does it say of the same error what that was about? An allocation that was refused may be one of a GPU, and a device that was full
    /// may be /dev/shm.
    fn details(&self, other: &Self) -> bool {
        const SAME_ERROR: u64 = 8;
        let more = matches!(
            (other.sign, self.sign),
            (Sign::Host, Sign::Gpu(_)) | (Sign::Disk, Sign::SharedMemory)
        );
        more && self.at >= other.at && self.at - other.at <= SAME_ERROR
    }
}

impl LogDigest {
    /// What ended the program, as far as its log tells.
    pub(super) fn fatal(&self) -> Option<&Hit> {
        let unsurvived = || self.hits.iter().filter(|hit| !hit.survived);
        let first = |strong: bool, told_by_others: bool| {
            unsurvived().find(|hit| {
                hit.sign != Sign::Error
                    && hit.strong == strong
                    && hit.sign.is_told_by_others() == told_by_others
            })
        };
        // Who says in passing what an error would be called is believed only where there is no error.
        let in_passing = || first(false, false).filter(|_| !self.has_own_error());
        let told = first(true, false).map(|hit| {
            let mut others = unsurvived().filter(|other| other.strong);
            others.find(|other| other.details(hit)).unwrap_or(hit)
        });
        // A launcher tells of the processes that it killed itself too, after an error.
        let of_others = || first(true, true).filter(|_| !self.has_own_error());
        told.or_else(of_others)
            .or_else(in_passing)
            .or_else(|| first(false, true))
    }

    /// The last error that seems to have been survived, where nothing else tells of an end at all.
    pub(super) fn last_resort(&self) -> Option<&Hit> {
        let nothing_else = self.hits.iter().all(|hit| hit.survived);
        let mut told =
            self.hits.iter().rev().filter(|hit| {
                hit.strong && hit.sign != Sign::Error && !hit.sign.is_told_by_others()
            });
        told.next().filter(|_| nothing_else)
    }

    fn has_own_error(&self) -> bool {
        let mut hits = self.hits.iter();
        hits.any(|hit| hit.sign == Sign::Error && hit.strong && !hit.survived)
    }

    /// The error that ended the program, where it is none of memory or disk.
    pub(super) fn error(&self) -> Option<&str> {
        let mut errors = self.hits.iter().filter(|hit| hit.sign == Sign::Error);
        errors
            .find(|hit| !hit.survived)
            .map(|hit| hit.quote.as_str())
    }
}

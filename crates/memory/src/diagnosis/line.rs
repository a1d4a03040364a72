//! One line of a log: who speaks, what it says without its prefixes, and whether it is the kind of line that a program prints while all
//! is well.

/// A line, without what terminals are told.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    pub text: &'a str,
    /// The same in lower case; positions are the same too.
    pub lower: String,
    /// Which of several processes speaks, where lines say so.
    pub source: Option<u32>,
    /// Its words without its figures.
    pub shape: u64,
    /// Its figures.
    pub figures: u64,
}

/// How far into a line its prefix may reach.
const PREFIX_MAX: usize = 96;

impl<'a> Line<'a> {
    pub fn of(text: &'a str) -> Self {
        let text = text.trim_end();
        let lower = text.to_ascii_lowercase();
        let (shape, figures) = shape(lower.as_bytes());
        Self {
            text,
            source: source(&lower),
            shape,
            figures,
            lower,
        }
    }

    /// What it says, after time, level, rank and the like.
    pub fn body(&self) -> &'a str {
        &self.text[body_start(self.text)..]
    }

    pub fn has(&self, words: &str) -> bool {
        self.lower.contains(words)
    }

    pub fn has_any(&self, words: &[&str]) -> bool {
        words.iter().any(|words| self.lower.contains(words))
    }

    /// Does it count steps, or tell a loss or a speed, as a training does?
    pub fn is_progress(&self) -> bool {
        let bar = ["it/s", "s/it", "%|", "ms/step", "s/step"];
        if bar.iter().any(|mark| self.after_figure(mark)) {
            return true;
        }
        if self.is_of_traceback() {
            return false;
        }
        let counted = ["step", "epoch", "iter", "loss", "batch", "update", "trial"];
        counted.iter().any(|word| self.before_figure(word))
    }

    /// Is it a line whose return with other figures means that the program goes on?
    pub fn may_recur(&self) -> bool {
        self.text.len() >= 8
            && !self.is_of_traceback()
            && !self.has_any(&[
                "nccl info",
                "nccl warn",
                "bfc_allocator",
                "processgroupnccl",
            ])
    }

    fn is_of_traceback(&self) -> bool {
        let body = self.body();
        let indented = self.text[body_start_of_spaces(self.text)..].starts_with("  ");
        indented
            || body.starts_with("File \"")
            || body.starts_with("Traceback")
            || self.has("\", line ")
    }

    /// `mark` right after a digit, or after one and a question mark where a speed is not known yet.
    fn after_figure(&self, mark: &str) -> bool {
        let mut found = self.lower.match_indices(mark);
        found.any(|(at, _)| {
            let before = self.lower[..at].trim_end().as_bytes().last();
            before.is_some_and(|byte| byte.is_ascii_digit() || *byte == b'?')
        })
    }

    /// `word`, or a longer one that begins with it, and then a figure.
    fn before_figure(&self, word: &str) -> bool {
        let mut found = self.lower.match_indices(word);
        found.any(|(at, _)| {
            let rest = &self.lower.as_bytes()[at + word.len()..];
            let letters = rest
                .iter()
                .take(8)
                .take_while(|byte| byte.is_ascii_alphabetic())
                .count();
            let rest = &rest[letters..];
            let marks = rest
                .iter()
                .take(12)
                .take_while(|byte| b" :=[('\"#-".contains(byte))
                .count();
            marks > 0 && rest.get(marks).is_some_and(u8::is_ascii_digit)
        })
    }
}

/// A hash of the words and one of the figures. A word with a digit in it is a figure: an address, a time, a name that is numbered.
fn shape(line: &[u8]) -> (u64, u64) {
    const READ_MAX: usize = 512;
    let line = &line[..line.len().min(READ_MAX)];
    let (mut words, mut figures) = (Hash::new(), Hash::new());
    for word in line.split_inclusive(|byte| !byte.is_ascii_alphanumeric() && *byte != b'.') {
        if word.iter().any(u8::is_ascii_digit) {
            figures.push(word);
            words.push(b"#");
        } else {
            words.push(word);
        }
    }
    (words.0, figures.0)
}

/// FNV-1a: what is asked of it is to be the same every time.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The rank, local rank or process that a line begins with: `[rank3]: `, `[default0]:`, `(Trainer pid=812)`, `[1,0]<stdout>:`, `3: `.
fn source(lower: &str) -> Option<u32> {
    let head = &lower[..floor(lower, PREFIX_MAX)];
    for word in ["rank", "default", "pid=", "worker", "proc"] {
        for (at, _) in head.match_indices(word) {
            let rest = head[at + word.len()..].trim_start_matches([' ', '-', '_', '=', ':']);
            let number = number(rest);
            // A DataLoader's worker with its process id is somebody spoken of.
            if number.is_some() && !head[..at].contains("dataloader") {
                return number;
            }
        }
    }
    let bare = head.trim_start_matches('[');
    let digits = bare.bytes().take_while(u8::is_ascii_digit).count();
    let bracketed = bare.len() < head.len();
    let ends = match bare.as_bytes().get(digits) {
        Some(b']') => bracketed,
        Some(b',') => bracketed && head.contains("]<std"),
        Some(b':') => !bracketed && bare.as_bytes().get(digits + 1) == Some(&b' '),
        _ => false,
    };
    let comma = bare[digits..].strip_prefix(',').and_then(number);
    (digits > 0 && digits < 5 && ends)
        .then(|| comma.or_else(|| number(bare)))
        .flatten()
}

fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text.get(..digits.min(9))?.parse().ok()
}

const LEVELS: &[&str] = &[
    "trace", "debug", "info", "warning", "warn", "error", "critical", "fatal", "stderr", "stdout",
    "err", "out", "f", "p", "e", "w", "i",
];

/// Where a line's own words begin.
fn body_start(text: &str) -> usize {
    let mut at = 0;
    // Time, level, logger, rank: more prefixes than that are no prefixes.
    for _ in 0..10 {
        at += text[at..].len()
            - text[at..]
                .trim_start_matches([' ', '\t', '|', ':', '-', '>'])
                .len();
        let rest = &text[at..];
        let skipped = match rest.as_bytes().first() {
            Some(b'[') => rest[..floor(rest, PREFIX_MAX)].find(']').map(|end| end + 1),
            Some(b'(') => rest[..floor(rest, PREFIX_MAX)]
                .find(')')
                .filter(|end| rest[..*end].bytes().any(|byte| byte.is_ascii_digit()))
                .map(|end| end + 1),
            Some(b'<') => rest
                .strip_prefix("<std")
                .and_then(|std| Some(4 + std.find('>')? + 1)),
            Some(_) => prefix_word(rest),
            None => None,
        };
        match skipped {
            Some(length) => at += length,
            None => break,
        }
    }
    at
}

/// The length of the first word, where it is a time, a level or a name with a number: `12:03:11,402`, `ERROR:`, `rank3:`.
fn prefix_word(rest: &str) -> Option<usize> {
    let end = rest.find([' ', '\t']).unwrap_or(rest.len());
    let word = &rest[..end];
    if word.len() > 64 || end == rest.len() {
        return None;
    }
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let timed = digits >= 4
        && word
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b"-:.,TZ+/IWEF]".contains(&byte));
    let name = word.trim_end_matches(':');
    let level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(name));
    let levelled = word
        .split_once(':')
        .is_some_and(|(level, _)| LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)));
    let numbered = word.ends_with(':')
        && !word.contains('.')
        && !word.contains('(')
        && name.ends_with(|c: char| c.is_ascii_digit());
    (timed || level || levelled || numbered).then_some(end)
}

/// After a rank in brackets, where a traceback's own spaces begin.
fn body_start_of_spaces(text: &str) -> usize {
    let bracket = text.starts_with('[').then(|| text.find("]:")).flatten();
    bracket.map_or(0, |end| end + 2)
}

/// The largest boundary of a character that is at most `at`.
pub fn floor(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

/// So much of a long line as is needed to understand what stands at `at`.
pub fn excerpt(text: &str, at: usize, max: usize) -> String {
    if text.len() <= max {
        return text.trim().to_owned();
    }
    let start = if at < max / 2 {
        0
    } else {
        floor(text, at.saturating_sub(max / 8))
    };
    let end = floor(text, start + max);
    let (before, after) = (
        if start > 0 { "…" } else { "" },
        if end < text.len() { "…" } else { "" },
    );
    format!("{before}{}{after}", text[start..end].trim())
}

//! Figures in messages of others: how much was asked for, how much there was, and who had it.

use stoke_api::Bytes;

use super::cause::Shape;

/// What a message about memory says in figures, as far as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// The allocation that failed.
    pub tried: Option<Bytes>,
    /// What there is in all.
    pub total: Option<Bytes>,
    pub free: Option<Bytes>,
    /// What this process has of it, what its libraries took included.
    pub own: Option<Bytes>,
    /// What other processes are said to have.
    pub others: Option<Bytes>,
    /// What the program's tensors take.
    pub allocated: Option<Bytes>,
    /// What its allocator holds, free pieces included.
    pub reserved: Option<Bytes>,
    /// What its allocator holds and could not use.
    pub unallocated: Option<Bytes>,
}

/// A CUDA context and the libraries' own buffers: what a process has beside its tensors, where a message does not say.
const CONTEXT_MAX: u64 = 1536 << 20;

impl Figures {
    /// Reads a message in lower case.
    pub fn read(text: &str) -> Self {
        let mut figures = Self::default();
        let mut processes = Vec::new();
        for amount in amounts(text) {
            let before = text[..amount.start].trim_end();
            let before = before.trim_end_matches(['(', '"', '\'']).trim_end();
            let after = text[amount.end..].trim_start();
            let ends = |words: &[&str]| words.iter().any(|word| before.ends_with(word));
            let starts = |words: &[&str]| words.iter().any(|word| after.starts_with(word));
            let bytes = Some(amount.bytes);
            let place = if starts(&["total capac"])
                || ends(&[
                    "total capacity of",
                    "total capacty of",
                    "max allowed:",
                    "limit set to:",
                ])
                || (before.ends_with("of") && starts(&["hbm"]))
            {
                &mut figures.total
            } else if ends(&["tried to allocate", "trying to allocate", "requested:"])
                || (ends(&[
                    "allocate",
                    "allocating",
                    "allocation of",
                    "request for",
                    "to extend",
                    "malloc of size",
                ]) && !ends(&["could allocate"]))
                || (before.ends_with("used") && after.starts_with("of"))
            {
                &mut figures.tried
            } else if starts(&["is free", "free"]) || ends(&["available memory is only"]) {
                &mut figures.free
            } else if ends(&["this process has"]) {
                &mut figures.own
            } else if before.ends_with("has") && starts(&["memory in use"]) {
                processes.push(amount.bytes);
                continue;
            } else if ends(&["other allocations:"]) {
                &mut figures.others
            } else if starts(&[
                "already allocated",
                "is allocated by pytorch",
                "memory has been allocated",
            ]) || ends(&["mps allocated:", "allocated so far:"])
            {
                &mut figures.allocated
            } else if starts(&["is reserved by pytorch but unallocated"]) {
                &mut figures.unallocated
            } else if starts(&["reserved in total", "cached"]) {
                &mut figures.reserved
            } else {
                continue;
            };
            if place.is_none() {
                *place = bytes;
            }
        }
        figures.tried = figures.tried.or_else(|| tensor(text));
        figures.settle(&processes);
        figures
    }

    /// Where a message lists processes by number, the one that has what was allocated is ours.
    fn settle(&mut self, processes: &[Bytes]) {
        let allocated = self.allocated.unwrap_or_default().0;
        let least = allocated.saturating_add(self.unallocated.unwrap_or_default().0);
        let all = processes
            .iter()
            .map(|bytes| bytes.0)
            .fold(0, u64::saturating_add);
        if self.own.is_none() && !processes.is_empty() {
            let own = processes
                .iter()
                .filter(|bytes| bytes.0 >= least)
                .min_by_key(|bytes| bytes.0);
            self.own = own.copied();
            let others = all.saturating_sub(self.own.unwrap_or_default().0);
            self.others = (others > 0).then_some(Bytes(others));
        } else if all > 0 {
            self.others = Some(Bytes(all));
        }
        if self.unallocated.is_none()
            && let (Some(reserved), Some(allocated)) = (self.reserved, self.allocated)
        {
            self.unallocated = Some(Bytes(reserved.0.saturating_sub(allocated.0)));
        }
    }

    /// What of the device is neither free nor this process's.
    pub fn foreign(&self) -> Option<Bytes> {
        if let Some(others) = self.others {
            return Some(others);
        }
        let (total, free) = (self.total?, self.free?);
        let own = match (self.own, self.reserved) {
            (Some(own), _) => own.0,
            (None, Some(reserved)) => reserved.0.saturating_add(CONTEXT_MAX),
            (None, None) => return None,
        };
        Some(Bytes(total.0.saturating_sub(free.0).saturating_sub(own)))
    }

    /// Why it did not fit, by what the figures leave possible.
    pub fn shape(&self) -> Shape {
        let Some(tried) = self.tried else {
            return Shape::Plain;
        };
        if self.total.is_some_and(|total| tried > total) {
            return Shape::TooBig;
        }
        let free = self.free.unwrap_or_default().0;
        let total = self.total.map_or(0, |total| total.0);
        // It would have fit without the others, who have more than a desktop's windows take.
        let foreign = self.foreign().unwrap_or_default().0;
        let crowded = total > 0 && foreign >= total / 8 && free.saturating_add(foreign) >= tried.0;
        // It would have fit in one piece; a rest that every allocator has is nobody's fault.
        let pieces = self.unallocated.unwrap_or_default().0;
        let broken = pieces >= tried.0 && pieces >= total / 200;
        match (crowded, broken) {
            (true, true) if pieces >= foreign => Shape::Fragmentation,
            (true, _) => Shape::CoTenant,
            (false, true) => Shape::Fragmentation,
            (false, false) => Shape::Plain,
        }
    }

    /// How many of the figures are known.
    pub fn known(&self) -> usize {
        let all = [
            self.tried,
            self.total,
            self.free,
            self.own,
            self.others,
            self.allocated,
            self.reserved,
            self.unallocated,
        ];
        all.iter().flatten().count()
    }
}

/// An amount in a text, and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    pub start: usize,
    pub end: usize,
    pub bytes: Bytes,
}

/// More of them are not read: a message has a dozen.
const AMOUNTS_MAX: usize = 64;

/// Every amount of bytes in a text in lower case: `2.00 gib`, `544.02mib`, `17.2g`, `1,024 bytes`, `9637892 bytes`.
pub fn amounts(text: &str) -> impl Iterator<Item = Amount> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let inside_word =
                at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
            if !bytes[at].is_ascii_digit() || inside_word {
                at += 1;
                continue;
            }
            let start = at;
            while at < bytes.len()
                && (bytes[at].is_ascii_digit()
                    || (matches!(bytes[at], b'.' | b',')
                        && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)))
            {
                at += 1;
            }
            let digits: String = text[start..at].replace(',', "");
            let space = usize::from(bytes.get(at) == Some(&b' '));
            let (unit, length) = unit(&text[at + space..]);
            let Some(unit) = unit.filter(|_| space == 0 || length > 1) else {
                continue;
            };
            at += space + length;
            if let Some(bytes) = scaled(&digits, unit) {
                return Some(Amount {
                    start,
                    end: at,
                    bytes,
                });
            }
        }
        None
    })
    .take(AMOUNTS_MAX)
}

/// The unit that a text begins with, as a power of 1024, and its length. Who says GB of memory means GiB.
fn unit(text: &str) -> (Option<u32>, usize) {
    let length = text
        .bytes()
        .position(|byte| !byte.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let power = match &text[..length] {
        "b" | "byte" | "bytes" => 0,
        "k" | "kb" | "kib" | "ki" => 1,
        "m" | "mb" | "mib" | "mi" => 2,
        "g" | "gb" | "gib" | "gi" => 3,
        "t" | "tb" | "tib" | "ti" => 4,
        _ => return (None, length),
    };
    (Some(power), length)
}

fn scaled(digits: &str, power: u32) -> Option<Bytes> {
    if power == 0
        && let Ok(exact) = digits.parse()
    {
        return Some(Bytes(exact));
    }
    let value: f64 = digits.parse().ok()?;
    let bytes = value * 1024_f64.powi(power as i32);
    (bytes.is_finite() && bytes >= 0.0).then_some(Bytes(bytes as u64))
}

/// The size of the tensor that TensorFlow names by its shape and type.
fn tensor(text: &str) -> Option<Bytes> {
    let (_, shape) = text.split_once("shape[")?;
    let (shape, rest) = shape.split_once(']')?;
    let mut size: u64 = 1;
    for side in shape.split(',').take(16) {
        size = size.checked_mul(side.trim().parse().ok()?)?;
    }
    let kind = rest.split_once("type ").map_or("float", |(_, kind)| kind);
    let width = match kind.split(|c: char| !c.is_ascii_alphanumeric()).next()? {
        "double" | "int64" | "uint64" | "complex64" => 8,
        "half" | "bfloat16" | "float16" | "int16" | "uint16" => 2,
        "int8" | "uint8" | "bool" => 1,
        "complex128" => 16,
        _ => 4,
    };
    size.checked_mul(width).map(Bytes)
}

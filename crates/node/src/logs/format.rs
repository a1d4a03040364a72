//! One record: `TIMESTAMP stdout|stderr F|P CONTENT`, as every container runtime writes it.
//!
//! The timestamp is always UTC with nine digits, so comparing the bytes compares the times.

use jiff::Timestamp;

/// Longest content of one record; longer lines are split, all but the last part marked partial.
pub(crate) const CONTENT_BYTES_MAX: usize = 16 << 10;
/// Longest record with its head and newline, with room to spare.
pub(crate) const RECORD_BYTES_MAX: usize = CONTENT_BYTES_MAX + 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
}

/// `Full` ends a line, `Partial` is continued by the next record of the same source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    Full,
    Partial,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub timestamp: &'a [u8],
    pub tag: Tag,
    pub content: &'a [u8],
}

pub(crate) fn timestamp(at: Timestamp) -> String {
    format!("{at:.9}")
}

/// Appends one record to `out`. `content` has no newline and is at most [`CONTENT_BYTES_MAX`] long.
pub(crate) fn encode(out: &mut Vec<u8>, timestamp: &str, source: Source, tag: Tag, content: &[u8]) {
    debug_assert!(content.len() <= CONTENT_BYTES_MAX && !content.contains(&b'\n'));
    out.extend_from_slice(timestamp.as_bytes());
    out.extend_from_slice(match source {
        Source::Stdout => b" stdout ",
        Source::Stderr => b" stderr ",
    });
    out.extend_from_slice(match tag {
        Tag::Full => b"F ",
        Tag::Partial => b"P ",
    });
    out.extend_from_slice(content);
    out.push(b'\n');
}

/// Reads one line, without its newline. `None` for what no runtime writes (a torn line after a power cut).
pub(crate) fn parse(line: &[u8]) -> Option<Record<'_>> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let timestamp = fields.next().filter(|field| field.ends_with(b"Z"))?;
    match fields.next()? {
        b"stdout" | b"stderr" => {}
        _ => return None,
    }
    let tag = match fields.next()? {
        b"F" => Tag::Full,
        b"P" => Tag::Partial,
        _ => return None,
    };
    Some(Record {
        timestamp,
        tag,
        content: fields.next()?,
    })
}

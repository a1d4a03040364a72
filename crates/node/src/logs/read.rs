//! The reading end: the last lines by reading backwards, then forwards through rotated files, and on while following.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::LogOptions;
use super::follow::Follower;
use super::format::{RECORD_BYTES_MAX, Tag, parse, timestamp};
use super::write::rotated;

/// How much is read and sent at once.
pub(super) const BLOCK_BYTES: usize = 64 << 10;
/// More rotated files than any configuration keeps.
const FILES_MAX: u32 = 1000;
/// Enough of a record to see its tag.
const HEAD_BYTES: usize = 64;

type Sender = mpsc::Sender<io::Result<Bytes>>;

/// All files of a run, oldest first. Open files stay what they are when they are renamed, so a rotation meanwhile does no
/// harm; opened newest first, so none is missed, and what is met twice is dropped.
pub(super) fn open_all(path: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for number in 0..FILES_MAX {
        match File::open(rotated(path, number)) {
            Ok(file) => {
                if seen.insert(file.metadata()?.ino()) {
                    files.push(file);
                }
            }
            // A new file is made just after the old one is renamed; there may be none for a moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound && number > 0 => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    files.reverse();
    Ok(files)
}

/// Reads as asked and sends; ends with the log, with the limit, or when nobody listens any more.
pub(super) fn run(
    path: &Path,
    files: Vec<File>,
    options: &LogOptions,
    following: Option<Follower>,
    sender: &Sender,
) {
    let mut printer = Printer::new(options, |block| match sender.blocking_send(Ok(block)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(Stop::Enough),
    });
    let outcome = read_on(
        path,
        files,
        options.tail_lines,
        following,
        &mut printer,
        || sender.is_closed(),
    );
    if let ControlFlow::Break(Stop::Failed(error)) = outcome {
        // Nobody may be listening any more.
        let _ = sender.blocking_send(Err(error));
    }
}

/// The last lines of these files, at most `bytes`: the newest ones if there are more.
pub(super) fn tail(files: Vec<File>, lines: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut kept: Vec<u8> = Vec::new();
    let mut printer = Printer::new(&LogOptions::default(), |block| {
        kept.extend_from_slice(&block);
        kept.drain(..kept.len().saturating_sub(bytes));
        ControlFlow::Continue(())
    });
    match read_on(
        Path::new(""),
        files,
        Some(lines),
        None,
        &mut printer,
        || false,
    ) {
        ControlFlow::Break(Stop::Failed(error)) => Err(error),
        _ => Ok(kept),
    }
}

/// Why reading ends before the log does.
enum Stop {
    /// The limit is reached, or nobody listens.
    Enough,
    Failed(io::Error),
}

fn failed<T>(error: io::Error) -> ControlFlow<Stop, T> {
    ControlFlow::Break(Stop::Failed(error))
}

fn read_on(
    path: &Path,
    mut files: Vec<File>,
    tail_lines: Option<u64>,
    following: Option<Follower>,
    printer: &mut Printer<impl FnMut(Bytes) -> ControlFlow<Stop>>,
    abandoned: impl Fn() -> bool,
) -> ControlFlow<Stop> {
    let (first, mut offset) = match tail_lines.map(|lines| find_tail(&files, lines)) {
        Some(Ok(start)) => start,
        Some(Err(error)) => return failed(error),
        None => (0, 0),
    };
    files.drain(..first);
    let mut current: Option<File> = None;
    let mut last_seen = None;
    loop {
        // Asked before the files are read: whatever was written before the answer is read below.
        let ended = following.as_ref().is_none_or(Follower::ended);
        for file in files.drain(..) {
            if let Some(done) = current.replace(file) {
                // The last of a file that was rotated since we came to its end.
                forward(&done, &mut offset, printer)?;
                offset = 0;
            }
            if let Some(file) = &current {
                forward(file, &mut offset, printer)?;
                last_seen = file.metadata().ok().map(|metadata| metadata.ino());
            }
        }
        if let Some(file) = &current {
            forward(file, &mut offset, printer)?;
        }
        printer.send()?;
        let Some(follower) = &following else {
            return ControlFlow::Continue(());
        };
        files = match newer(path, last_seen) {
            Ok(files) => files,
            Err(error) => return failed(error),
        };
        if files.is_empty() {
            if ended {
                return ControlFlow::Continue(());
            }
            follower.wait();
        }
        if abandoned() {
            return ControlFlow::Break(Stop::Enough);
        }
    }
}

/// Files that came after the one with this inode; all, if that one is gone.
fn newer(path: &Path, last_seen: Option<u64>) -> io::Result<Vec<File>> {
    let mut files = open_all(path)?;
    for index in 0..files.len() {
        if Some(files[index].metadata()?.ino()) == last_seen {
            files.drain(..=index);
            break;
        }
    }
    Ok(files)
}

/// Prints whole records from `offset` to the end of the file as it is now, and moves `offset` there.
fn forward(
    file: &File,
    offset: &mut u64,
    printer: &mut Printer<impl FnMut(Bytes) -> ControlFlow<Stop>>,
) -> ControlFlow<Stop> {
    let mut buffer = vec![0; BLOCK_BYTES];
    loop {
        let read = match file.read_at(&mut buffer, *offset) {
            Ok(0) => return ControlFlow::Continue(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return failed(error),
        };
        let block = &buffer[..read];
        let whole = match block.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            // No record is that long; whatever it is, it is shown as it is.
            None if read == BLOCK_BYTES => read,
            // A record that is being written.
            None => return ControlFlow::Continue(()),
        };
        for line in block[..whole].split_inclusive(|byte| *byte == b'\n') {
            printer.record(line)?;
        }
        *offset += whole as u64;
    }
}

/// Where the last `lines` lines begin: which file, and the offset in it. A begun line at the very end counts as one.
fn find_tail(files: &[File], lines: u64) -> io::Result<(usize, u64)> {
    let Some(last) = files.len().checked_sub(1) else {
        return Ok((0, 0));
    };
    let mut start = (last, files[last].metadata()?.len());
    let mut counted = 0;
    let mut at_end = true;
    for (index, file) in files.iter().enumerate().rev() {
        let mut records = Backwards::new(file)?;
        while let Some((offset, tag)) = records.next()? {
            if tag == Tag::Full || at_end {
                if counted == lines {
                    return Ok(start);
                }
                counted += 1;
            }
            at_end = false;
            start = (index, offset);
        }
    }
    Ok((0, 0))
}

/// The records of one file from its end: where each begins, and its tag.
struct Backwards<'a> {
    file: &'a File,
    /// The file from `block_at` on, as far as it was read lately.
    block: Vec<u8>,
    block_at: u64,
    /// Where the record last given begins; the next one ends there.
    end: u64,
}

impl<'a> Backwards<'a> {
    fn new(file: &'a File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut this = Self {
            file,
            block: Vec::new(),
            block_at: length,
            end: length,
        };
        // Bytes after the last newline are a record that is being written.
        this.end = this.newline_before(length)?.map_or(0, |at| at + 1);
        Ok(this)
    }

    fn next(&mut self) -> io::Result<Option<(u64, Tag)>> {
        if self.end == 0 {
            return Ok(None);
        }
        let begin = self.newline_before(self.end - 1)?.map_or(0, |at| at + 1);
        let mut head = [0; HEAD_BYTES];
        let read = self.file.read_at(&mut head, begin)?;
        let line = &head[..read];
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
        let tag = parse(line).map_or(Tag::Full, |record| record.tag);
        self.end = begin;
        Ok(Some((begin, tag)))
    }

    /// The last newline before `limit`.
    fn newline_before(&mut self, limit: u64) -> io::Result<Option<u64>> {
        let mut limit = limit;
        loop {
            let known = usize::try_from(limit.saturating_sub(self.block_at)).unwrap_or(usize::MAX);
            let known = &self.block[..known.min(self.block.len())];
            if let Some(at) = known.iter().rposition(|byte| *byte == b'\n') {
                return Ok(Some(self.block_at + at as u64));
            }
            if self.block_at == 0 {
                return Ok(None);
            }
            limit = limit.min(self.block_at);
            let from = self.block_at.saturating_sub(BLOCK_BYTES as u64);
            self.block.resize((self.block_at - from) as usize, 0);
            self.file.read_exact_at(&mut self.block, from)?;
            self.block_at = from;
        }
    }
}

/// Turns records into what the reader asked for.
struct Printer<S> {
    since: Option<String>,
    timestamps: bool,
    left_bytes: u64,
    at_line_start: bool,
    block: Vec<u8>,
    send: S,
}

impl<S: FnMut(Bytes) -> ControlFlow<Stop>> Printer<S> {
    fn new(options: &LogOptions, send: S) -> Self {
        Self {
            since: options.since.map(timestamp),
            timestamps: options.timestamps,
            left_bytes: options.limit_bytes.unwrap_or(u64::MAX),
            at_line_start: true,
            block: Vec::with_capacity(BLOCK_BYTES + RECORD_BYTES_MAX),
            send,
        }
    }

    /// One line of the file, with its newline.
    fn record(&mut self, line: &[u8]) -> ControlFlow<Stop> {
        let Some(record) = parse(line.strip_suffix(b"\n").unwrap_or(line)) else {
            self.block.extend_from_slice(line);
            return self.send_if_full();
        };
        if self
            .since
            .as_ref()
            .is_some_and(|since| record.timestamp < since.as_bytes())
        {
            return ControlFlow::Continue(());
        }
        if self.timestamps && self.at_line_start {
            self.block.extend_from_slice(record.timestamp);
            self.block.push(b' ');
        }
        self.block.extend_from_slice(record.content);
        self.at_line_start = record.tag == Tag::Full;
        if self.at_line_start {
            self.block.push(b'\n');
        }
        self.send_if_full()
    }

    fn send_if_full(&mut self) -> ControlFlow<Stop> {
        if self.block.len() >= BLOCK_BYTES || self.block.len() as u64 >= self.left_bytes {
            self.send()?;
        }
        ControlFlow::Continue(())
    }

    fn send(&mut self) -> ControlFlow<Stop> {
        let allowed = usize::try_from(self.left_bytes).unwrap_or(usize::MAX);
        self.block.truncate(allowed);
        self.left_bytes -= self.block.len() as u64;
        if !self.block.is_empty() {
            let block = Bytes::copy_from_slice(&self.block);
            self.block.clear();
            (self.send)(block)?;
        }
        if self.left_bytes == 0 {
            return ControlFlow::Break(Stop::Enough);
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::super::format::{Source, encode};
    use super::*;

    /// A log of `(second, tag, content)` records, spread over files of so many records each.
    fn log(records: &[(i64, Tag, &str)], per_file: usize) -> (tempfile::TempDir, Vec<File>) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        let files: Vec<_> = records.chunks(per_file).collect();
        for (number, records) in files.iter().rev().enumerate() {
            let mut text = Vec::new();
            for (second, tag, content) in *records {
                let at = Timestamp::from_second(*second).expect("a time");
                encode(
                    &mut text,
                    &timestamp(at),
                    Source::Stdout,
                    *tag,
                    content.as_bytes(),
                );
            }
            fs::write(rotated(&path, number as u32), text).expect("ours");
        }
        let files = open_all(&path).expect("ours");
        (dir, files)
    }

    fn read(files: Vec<File>, options: &LogOptions) -> String {
        let mut all = Vec::new();
        let mut printer = Printer::new(options, |block| {
            all.extend_from_slice(&block);
            ControlFlow::Continue(())
        });
        let _ = read_on(
            Path::new(""),
            files,
            options.tail_lines,
            None,
            &mut printer,
            || false,
        );
        String::from_utf8(all).expect("text")
    }

    const RECORDS: &[(i64, Tag, &str)] = &[
        (1, Tag::Full, "one"),
        (2, Tag::Partial, "tw"),
        (3, Tag::Partial, "o"),
        (3, Tag::Full, ""),
        (4, Tag::Full, ""),
        (5, Tag::Full, "three"),
        (6, Tag::Partial, "fo"),
    ];

    #[test]
    fn options_choose_and_decorate() {
        let options = LogOptions::default;
        let since = |second| Some(Timestamp::from_second(second).expect("a time"));
        let table = [
            (options(), "one\ntwo\n\nthree\nfo"),
            (
                LogOptions {
                    tail_lines: Some(0),
                    ..options()
                },
                "",
            ),
            (
                LogOptions {
                    tail_lines: Some(1),
                    ..options()
                },
                "fo",
            ),
            (
                LogOptions {
                    tail_lines: Some(2),
                    ..options()
                },
                "three\nfo",
            ),
            (
                LogOptions {
                    tail_lines: Some(4),
                    ..options()
                },
                "two\n\nthree\nfo",
            ),
            (
                LogOptions {
                    tail_lines: Some(99),
                    ..options()
                },
                "one\ntwo\n\nthree\nfo",
            ),
            (
                LogOptions {
                    since: since(5),
                    ..options()
                },
                "three\nfo",
            ),
            (
                LogOptions {
                    since: since(9),
                    ..options()
                },
                "",
            ),
            (
                LogOptions {
                    since: since(5),
                    tail_lines: Some(1),
                    ..options()
                },
                "fo",
            ),
            (
                LogOptions {
                    limit_bytes: Some(6),
                    ..options()
                },
                "one\ntw",
            ),
            (
                LogOptions {
                    limit_bytes: Some(0),
                    ..options()
                },
                "",
            ),
            (
                LogOptions {
                    timestamps: true,
                    tail_lines: Some(4),
                    ..options()
                },
                "1970-01-01T00:00:02.000000000Z two\n1970-01-01T00:00:04.000000000Z \n\
                 1970-01-01T00:00:05.000000000Z three\n1970-01-01T00:00:06.000000000Z fo",
            ),
        ];
        for per_file in [1, 2, 3, 100] {
            for (options, expected) in &table {
                let (_dir, files) = log(RECORDS, per_file);
                assert_eq!(
                    read(files, options),
                    *expected,
                    "{options:?} with {per_file} records a file"
                );
            }
        }
    }

    #[test]
    fn what_is_no_record_is_shown_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        let mut text = b"\0\0\0 torn\n2026-01-01T00:00:00.000000000Z stdout F whole\n".to_vec();
        text.extend(std::iter::repeat_n(b'z', 3 * BLOCK_BYTES));
        text.extend_from_slice(b"\n2026-01-01T00:00:00.000000000Z stdout F being writt");
        fs::write(&path, &text).expect("ours");
        let shown = read(open_all(&path).expect("ours"), &LogOptions::default());
        assert!(shown.starts_with("\0\0\0 torn\nwhole\nzzz") && shown.ends_with("z\n"));
        let tail = LogOptions {
            tail_lines: Some(2),
            ..LogOptions::default()
        };
        assert!(read(open_all(&path).expect("ours"), &tail).starts_with("whole\nzzz"));
    }

    #[test]
    fn the_tail_of_a_large_file_is_read_from_its_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        let mut file = File::create(&path).expect("ours");
        // A gibibyte with a hole in it: read from the beginning, this would take seconds and be no record.
        file.set_len(1 << 30).expect("sparse");
        std::io::Seek::seek(&mut file, io::SeekFrom::End(0)).expect("a file");
        writeln!(file).expect("ours");
        for number in 0..10 {
            writeln!(file, "2026-01-01T00:00:00.000000000Z stdout F {number}").expect("ours");
        }
        let began = std::time::Instant::now();
        assert_eq!(
            tail(open_all(&path).expect("ours"), 3, 100).expect("read"),
            b"7\n8\n9\n"
        );
        assert!(began.elapsed() < std::time::Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn the_tail_is_the_end_of_the_whole(
            records in prop::collection::vec((0..9_i64, prop_oneof![Just(Tag::Full), Just(Tag::Partial)], "[a-z]{0,40}"), 0..60),
            per_file in 1..20_usize,
            lines in 0..40_u64,
        ) {
            let records: Vec<_> = records.iter().map(|(at, tag, text)| (*at, *tag, text.as_str())).collect();
            let (_dir, files) = log(&records, per_file);
            let whole = read(files, &LogOptions::default());
            let (_dir, files) = log(&records, per_file);
            let options = LogOptions { tail_lines: Some(lines), ..LogOptions::default() };
            let got = read(files, &options);
            // A begun line of no content at the end is a line too, though one cannot see it.
            let begun_but_empty = matches!(records.last(), Some((_, Tag::Partial, _))) && (whole.is_empty() || whole.ends_with('\n'));
            let mut split: Vec<&str> = whole.split_inclusive('\n').collect();
            if begun_but_empty {
                split.push("");
            }
            let expected = split[split.len().saturating_sub(lines as usize)..].concat();
            prop_assert_eq!(got, expected);
        }
    }
}

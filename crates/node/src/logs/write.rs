//! The writing end, in the shim: from a container's pipe to rotated files.
//!
//! A reader thread per pipe and one file behind a lock. If the disk is slow the job waits for it, as it would writing to a
//! file itself; nothing else of the shim does. If the disk is full the output is dropped and counted: a training must not
//! stand still because nobody can read what it says.
//!
//! Invariant: a file only ever holds whole records.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::format::{CONTENT_BYTES_MAX, Source, Tag, encode, timestamp};

/// A line without an end is shown when nothing follows for this long: progress bars never end theirs.
const PARTIAL_AFTER: Duration = Duration::from_millis(250);
const CHUNK_BYTES: usize = 32 << 10;

/// The log files of one run of a container.
pub(crate) struct Writer {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    max_bytes: u64,
    max_files: u32,
    lost: Option<Lost>,
}

/// Output that could not be written.
struct Lost {
    bytes: u64,
    error: io::Error,
}

impl Writer {
    /// Opens the log at `path`, a new file or one to be continued.
    pub(crate) fn open(path: &Path, max_bytes: u64, max_files: u32) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let file = append_to(path)?;
        Ok(Self {
            size_bytes: file.metadata()?.len(),
            path: path.to_owned(),
            file,
            max_bytes,
            max_files,
            lost: None,
        })
    }

    /// Appends whole records. Never fails: what cannot be written is counted, and said once writing works again.
    fn append(&mut self, mut records: &[u8]) {
        while !records.is_empty() {
            let fits = self.fitting(records);
            let (piece, rest) = records.split_at(fits);
            if let Err(error) = self.try_append(piece) {
                let before = self.lost.take().map_or(0, |lost| lost.bytes);
                self.lost = Some(Lost {
                    bytes: before + piece.len() as u64,
                    error,
                });
            }
            records = rest;
        }
    }

    /// How many bytes of whole records go into one file: this one, or the next if not even the first goes into this.
    fn fitting(&self, records: &[u8]) -> usize {
        let whole = |room: u64| {
            let room = usize::try_from(room)
                .unwrap_or(usize::MAX)
                .min(records.len());
            records[..room]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map(|end| end + 1)
        };
        let here = whole(self.max_bytes.saturating_sub(self.size_bytes));
        let first = || {
            records
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|end| end + 1)
        };
        here.or_else(|| whole(self.max_bytes))
            .or_else(first)
            .unwrap_or(records.len())
    }

    fn try_append(&mut self, records: &[u8]) -> io::Result<()> {
        if self.size_bytes > 0 && self.size_bytes + records.len() as u64 > self.max_bytes {
            self.rotate()?;
        }
        if let Some(lost) = &self.lost {
            let note = format!(
                "stokehold: {} bytes of output are missing here: {}",
                lost.bytes, lost.error
            );
            let mut record = Vec::new();
            encode(
                &mut record,
                &timestamp(Timestamp::now()),
                Source::Stderr,
                Tag::Full,
                note.as_bytes(),
            );
            self.write_whole(&record)?;
            self.lost = None;
        }
        self.write_whole(records)
    }

    fn write_whole(&mut self, records: &[u8]) -> io::Result<()> {
        match self.file.write_all(records) {
            Ok(()) => {
                self.size_bytes += records.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a record would be glued to the next one.
                self.file.set_len(self.size_bytes)?;
                Err(error)
            }
        }
    }

    /// `0.log` becomes `0.log.1`, that becomes `0.log.2`, and the last one goes. The new file is made first: on a full disk
    /// that fails, and the old ones stay where they are.
    fn rotate(&mut self) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let file = append_to(Path::new(&new))?;
        for number in (1..self.max_files).rev() {
            match fs::rename(rotated(&self.path, number - 1), rotated(&self.path, number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&new, &self.path)?;
        self.file = file;
        self.size_bytes = 0;
        Ok(())
    }
}

/// The file of this log that was rotated `number` times; the current one for zero.
pub(super) fn rotated(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Copies a container's pipe into its log until the last process that holds the other end is gone.
pub(crate) fn pump(mut pipe: io::PipeReader, source: Source, writer: &Arc<Mutex<Writer>>) {
    let mut lines = Lines {
        source,
        pending: Vec::new(),
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut records = Vec::new();
    loop {
        let ended = if !lines.pending.is_empty() && !readable_within(&pipe, PARTIAL_AFTER) {
            lines.flush(&mut records);
            false
        } else {
            match pipe.read(&mut chunk) {
                Ok(read) => {
                    lines.take(&chunk[..read], &mut records);
                    read == 0
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
                Err(_) => true,
            }
        };
        if ended {
            lines.flush(&mut records);
        }
        if !records.is_empty() {
            writer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .append(&records);
            records.clear();
        }
        if ended {
            return;
        }
    }
}

fn readable_within(pipe: &io::PipeReader, within: Duration) -> bool {
    let Ok(timeout) = Timespec::try_from(within) else {
        return true;
    };
    // An error here shows itself in the read that follows.
    poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) != Ok(0)
}

/// Cuts a stream of bytes into records.
struct Lines {
    source: Source,
    /// The begun line, shorter than a full record.
    pending: Vec<u8>,
}

impl Lines {
    fn take(&mut self, mut bytes: &[u8], records: &mut Vec<u8>) {
        let now = timestamp(Timestamp::now());
        while !bytes.is_empty() {
            let room = CONTENT_BYTES_MAX - self.pending.len();
            let end = bytes.iter().take(room + 1).position(|byte| *byte == b'\n');
            let (tag, content, rest) = match end {
                Some(end) => (Tag::Full, &bytes[..end], &bytes[end + 1..]),
                None if bytes.len() > room => (Tag::Partial, &bytes[..room], &bytes[room..]),
                None => {
                    self.pending.extend_from_slice(bytes);
                    return;
                }
            };
            self.pending.extend_from_slice(content);
            encode(records, &now, self.source, tag, &self.pending);
            self.pending.clear();
            bytes = rest;
        }
    }

    fn flush(&mut self, records: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            encode(
                records,
                &timestamp(Timestamp::now()),
                self.source,
                Tag::Partial,
                &self.pending,
            );
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::parse;
    use super::*;

    fn records_of(chunks: &[Vec<u8>]) -> Vec<u8> {
        let mut lines = Lines {
            source: Source::Stdout,
            pending: Vec::new(),
        };
        let mut records = Vec::new();
        for chunk in chunks {
            lines.take(chunk, &mut records);
        }
        lines.flush(&mut records);
        records
    }

    fn bytes_of(records: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in records.split_inclusive(|byte| *byte == b'\n') {
            let record = parse(line.strip_suffix(b"\n").expect("whole records")).expect("a record");
            assert!(record.content.len() <= CONTENT_BYTES_MAX);
            bytes.extend_from_slice(record.content);
            if record.tag == Tag::Full {
                bytes.push(b'\n');
            }
        }
        bytes
    }

    #[test]
    fn long_lines_are_split_at_the_limit() {
        for (length, tags) in [
            (CONTENT_BYTES_MAX - 1, "F"),
            (CONTENT_BYTES_MAX, "F"),
            (CONTENT_BYTES_MAX + 1, "PF"),
            (3 * CONTENT_BYTES_MAX, "PPF"),
        ] {
            let mut line = vec![b'x'; length];
            line.push(b'\n');
            let records = records_of(&[line]);
            let got: String = records
                .split_inclusive(|byte| *byte == b'\n')
                .filter_map(parse)
                .map(|record| if record.tag == Tag::Full { 'F' } else { 'P' })
                .collect();
            assert_eq!(got, tags, "{length}");
        }
    }

    proptest! {
        /// Runs of one byte make lines of any length without making the test slow.
        #[test]
        fn no_byte_is_lost_or_doubled(runs in prop::collection::vec(
            (prop_oneof![Just(b'\n'), any::<u8>()], prop_oneof![1..40_usize, 16_380..16_390_usize], any::<bool>()), 0..8)) {
            let mut chunks = vec![Vec::new()];
            for (byte, length, new_chunk) in runs {
                if new_chunk {
                    chunks.push(Vec::new());
                }
                if let Some(chunk) = chunks.last_mut() {
                    chunk.extend(std::iter::repeat_n(byte, length));
                }
            }
            prop_assert_eq!(bytes_of(&records_of(&chunks)), chunks.concat());
        }
    }

    #[test]
    fn what_a_full_disk_swallows_is_counted_and_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut writer = Writer::open(&dir.path().join("0.log"), 1 << 20, 3).expect("a new log");
        let works = std::mem::replace(
            &mut writer.file,
            append_to(Path::new("/dev/full")).expect("always full"),
        );
        let record = |text: &str| {
            let mut record = Vec::new();
            encode(
                &mut record,
                "2026-01-01T00:00:00.000000000Z",
                Source::Stdout,
                Tag::Full,
                text.as_bytes(),
            );
            record
        };
        writer.append(&record("lost"));
        writer.append(&record("lost too"));
        writer.file = works;
        writer.append(&record("there"));
        let text = fs::read(dir.path().join("0.log")).expect("written");
        let lost = record("lost").len() + record("lost too").len();
        let text = String::from_utf8(bytes_of(&text)).expect("text");
        assert!(
            text.starts_with(&format!(
                "stokehold: {lost} bytes of output are missing here: "
            )),
            "{text}"
        );
        assert!(text.ends_with("\nthere\n"), "{text}");
    }

    #[test]
    fn rotation_keeps_a_bounded_number_of_files() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("logs/0.log");
        let mut writer = Writer::open(&path, 100, 3).expect("a new log");
        let mut record = Vec::new();
        for number in 0..50 {
            // One by one, and several at once: more than a file may hold.
            if number <= 10 {
                record.clear();
            }
            encode(
                &mut record,
                "2026-01-01T00:00:00.000000000Z",
                Source::Stdout,
                Tag::Full,
                format!("{number}").as_bytes(),
            );
            if number < 10 || number == 49 {
                writer.append(&record);
            }
        }
        let mut names: Vec<_> = fs::read_dir(dir.path().join("logs"))
            .expect("the directory")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("a name")
            })
            .collect();
        names.sort();
        assert_eq!(names, ["0.log", "0.log.1", "0.log.2"]);
        let all: Vec<u8> = (0..3)
            .rev()
            .flat_map(|number| fs::read(rotated(&path, number)).expect("a file"))
            .collect();
        assert_eq!(
            bytes_of(&all),
            b"44\n45\n46\n47\n48\n49\n".as_slice(),
            "the newest are kept, in order"
        );
    }
}

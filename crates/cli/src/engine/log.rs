//! The log of an engine in the background: a file that is put aside when it is full, so that an engine that runs for months
//! does not fill the disk with what it has to say.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// One file of this size, and the one before it.
const BYTES_MAX: u64 = 10 << 20;

#[derive(Debug)]
pub struct EngineLog {
    path: PathBuf,
    file: File,
    written: u64,
}

impl EngineLog {
    /// Goes on where the file ends.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = append(path)?;
        let written = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            written,
        })
    }

    fn put_aside(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
        self.file = append(&self.path)?;
        self.written = 0;
        Ok(())
    }
}

/// The file, for whoever else writes to it, as the engine's stderr does.
pub fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

impl Write for EngineLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written > 0 && self.written + bytes.len() as u64 > BYTES_MAX {
            self.put_aside()?;
        }
        let written = self.file.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_put_aside_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("engine.log");
        let mut log = EngineLog::open(&path).unwrap();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..25 {
            log.write_all(&line).unwrap();
        }
        let size = |name: &str| place.path().join(name).metadata().unwrap().len();
        assert_eq!(
            (size("engine.log"), size("engine.log.1")),
            (5 << 20, 10 << 20)
        );
        drop(log);
        let log = EngineLog::open(&path).unwrap();
        assert_eq!(
            log.written,
            5 << 20,
            "a restarted engine goes on in the same file"
        );
    }
}

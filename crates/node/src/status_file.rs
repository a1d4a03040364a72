//! What a job's program says of itself in a file that it may do anything to.

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use stoke_api::contract::checkpoints::{SAVED, SAVED_LENGTH_MAX, Saved};
use stoke_api::contract::copies::{CARRIED, CARRIED_LENGTH_MAX, Carried};
use stoke_api::contract::{JobStatus, STATUS, STATUS_LENGTH_MAX};

/// Reads the status file in a volume of the pod's, and what is told there of its checkpoints.
pub(crate) fn read(volume: &Path) -> Option<JobStatus> {
    let saved = text(volume, SAVED, SAVED_LENGTH_MAX).and_then(|text| Saved::parse(&text));
    let carried = |saved: Saved| {
        let told = text(volume, CARRIED, CARRIED_LENGTH_MAX);
        let carried = told.and_then(|text| Carried::parse(&text));
        Saved {
            carried: carried.unwrap_or_default(),
            ..saved
        }
    };
    let saved = saved.map(carried);
    let said = text(volume, STATUS, STATUS_LENGTH_MAX).and_then(|text| JobStatus::parse(&text));
    (said.is_some() || saved.is_some()).then(|| JobStatus {
        saved,
        ..said.unwrap_or_default()
    })
}

/// The end of a file in the volume. Whatever the program put there, this neither blocks nor reads anything outside of the volume, nor more
/// than a little.
fn text(volume: &Path, name: &str, length_max: usize) -> Option<String> {
    let directory = open(
        volume,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    // A pipe that nobody writes to would block; a link may lead anywhere.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(directory.as_fd(), name, flags, Mode::empty(), resolve).ok()?;
    let found = fstat(&file).ok()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut file = std::fs::File::from(file);
    let length = u64::try_from(found.st_size).unwrap_or(0);
    let start = length.saturating_sub(length_max as u64);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut bytes = Vec::new();
    file.take(length_max as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_read_and_nothing_else() {
        let root = tempfile::tempdir().expect("a directory");
        let volume = root.path().join("volume");
        assert_eq!(read(&volume), None, "not made yet");
        fs::create_dir(&volume).expect("made");
        assert_eq!(read(&volume), None, "nothing said");
        let file = volume.join(STATUS);
        fs::write(&file, r#"{"phase": "train", "step": 7}"#).expect("written");
        assert_eq!(read(&volume).and_then(|said| said.step), Some(7));
        let saved = volume.join(SAVED);
        fs::write(&saved, r#"{"name": "step-6", "step": 6}"#).expect("written");
        let both = read(&volume).expect("both");
        assert_eq!(both.saved.and_then(|saved| saved.step), Some(6));
        assert_eq!(both.step, Some(7));
        let carried = volume.join(CARRIED);
        fs::write(&carried, r#"{"uploadProblem": "no answer"}"#).expect("written");
        let told = read(&volume).and_then(|both| both.saved?.carried.upload_problem);
        assert_eq!(told.as_deref(), Some("no answer"));
        fs::remove_file(&carried).expect("removed");
        fs::remove_file(&saved).expect("removed");

        let lines: Vec<String> = (0..100_000)
            .map(|step| format!("{{\"step\": {step}}}"))
            .collect();
        let long = lines.join("\n");
        fs::write(&file, &long).expect("written");
        assert_eq!(read(&volume).and_then(|said| said.step), Some(99_999));
        fs::write(&file, vec![0xff_u8; 1 << 20]).expect("written");
        assert_eq!(read(&volume), None);

        fs::remove_file(&file).expect("removed");
        let secret = root.path().join("secret");
        fs::write(&secret, r#"{"phase": "secret"}"#).expect("written");
        symlink(&secret, &file).expect("linked");
        assert_eq!(read(&volume), None, "a link out of it");
        fs::remove_file(&file).expect("removed");
        fs::create_dir(&file).expect("made");
        assert_eq!(read(&volume), None, "a directory");
        fs::remove_dir(&file).expect("removed");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &file,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .expect("made");
        assert_eq!(read(&volume), None, "a pipe that nobody writes to");
        let linked = root.path().join("linked");
        symlink(&volume, &linked).expect("linked");
        assert_eq!(read(&linked), None);
    }
}

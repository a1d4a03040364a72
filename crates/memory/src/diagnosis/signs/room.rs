//! /dev/shm and disks that were full.

use super::super::line::Line;
use super::killed::is_shells;
use super::wording::{ends_with, is_error, is_hedged, is_in_passing};
use super::{Context, Reading, Sign, Summary, found, reading};

pub fn shared_memory(line: &Line<'_>, context: Context) -> Option<Reading> {
    let strong = |words: &str| Some(reading(line, Sign::SharedMemory, true, words));
    if line.has("bus error") {
        let explained = [
            "shared memory",
            "(shm)",
            "/dev/shm",
            "killed by signal: bus error",
            "encountered in worker",
        ];
        if found(line, &explained).is_some() {
            return strong("bus error");
        }
        return is_bare_bus_error(line).then(|| reading(line, Sign::BusError, true, "bus error"));
    }
    if line.has_any(&["signal 7 (sigbus)", "signals.sigbus: 7"])
        && context.summary != Summary::Others
    {
        return Some(reading(line, Sign::BusError, true, "sigbus"));
    }
    if line.has("objectstorefullerror") {
        return strong("objectstorefullerror");
    }
    let place = found(
        line,
        &[
            "/dev/shm",
            "shared memory",
            "shared_memory",
            "shm_open",
            "</torch_",
            "(shm)",
            "shm file",
            "/psm_",
            "nccl warn",
            "shmem segment",
        ],
    );
    let no_space = no_space(line);
    if let (Some(_), Some(words)) = (place, no_space) {
        return strong(words);
    }
    if no_space.is_some() && context.shared_memory && path(line).is_none() {
        return strong(no_space?);
    }
    // A share of a thread block has the same name, and PostgreSQL's locks too.
    let insufficient = found(
        line,
        &[
            "insufficient shared memory",
            "out of shared memory",
            "unable to allocate shared memory",
            "not enough shared memory",
        ],
    )?;
    let other = [
        "out of resource",
        "hardware limit",
        "max_locks",
        "kernel",
        "cudaerror",
        "smem",
        "per block",
        "triton",
    ];
    (!line.has_any(&other)).then(|| reading(line, Sign::SharedMemory, true, insufficient))
}

fn is_bare_bus_error(line: &Line<'_>) -> bool {
    let body = line.body().to_ascii_lowercase();
    body.starts_with("bus error")
        || body.starts_with("fatal python error: bus error")
        || body.starts_with("signal: bus error")
        || is_shells(line, "bus error")
}

fn no_space(line: &Line<'_>) -> Option<&'static str> {
    let words = found(
        line,
        &[
            "no space left on device",
            "[errno 28]",
            "enospc",
            "errno=28",
            "errno: 28",
        ],
    )?;
    // Watches of files are counted, not stored.
    (!line.has_any(&["inotify", "watchers", "watch limit"])).then_some(words)
}

pub fn disk(line: &Line<'_>) -> Option<Reading> {
    let full = [
        "disk quota exceeded",
        "[errno 122]",
        "database or disk is full",
        "not enough space on the disk",
        "not enough disk space",
        "local disk is full",
        "disk full",
        "disk is full",
        "outofdiskerror",
    ];
    let words = no_space(line).or_else(|| found(line, &full))?;
    let said = is_error(line, words)
        || line.has_any(&[
            "errno",
            "failed",
            "cannot",
            "can't",
            "unable",
            "write",
            ": no space left",
        ])
        || ends_with(line, words);
    let strong = said && !is_in_passing(line, words);
    (strong || !is_hedged(line, words)).then(|| Reading {
        path: path(line),
        ..reading(line, Sign::Disk, strong, words)
    })
}

/// The file that a line names: in quotes, or after a command's colon.
fn path(line: &Line<'_>) -> Option<String> {
    const PATH_MAX: usize = 256;
    let text = line.text;
    let quoted = ['\'', '"', '`', '<', '‘'].iter().find_map(|quote| {
        text.match_indices(*quote).find_map(|(at, found)| {
            let rest = &text[at + found.len()..];
            rest.starts_with('/').then_some(rest)
        })
    });
    let bare = || {
        let mut starts = text
            .match_indices([' ', '(', '='])
            .map(|(at, found)| &text[at + found.len()..]);
        starts.find(|rest| rest.starts_with('/') && rest.len() > 2)
    };
    let rest = quoted.or_else(bare)?;
    let end = rest
        .find(['\'', '"', '`', '>', '’', ',', ')', '\n', ' '])
        .unwrap_or(rest.len());
    let path = rest[..end].trim_end_matches([':', '.']);
    let written = (2..=PATH_MAX).contains(&path.len()) && path.rsplit('.').next() != Some("py");
    written.then(|| path.to_owned())
}

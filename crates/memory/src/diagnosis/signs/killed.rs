//! Processes that were killed, as others tell it.

use super::super::line::Line;
use super::wording::is_word;
use super::{Context, Reading, Sign, Summary, found, reading};

pub fn killed(line: &Line<'_>, context: Context) -> Option<Reading> {
    // Signals of one's own children, and those who watch memory beside the kernel: DataLoader, torch.multiprocessing, joblib, Ray, Slurm.
    let own = [
        "killed by signal: killed",
        "killed by signal: 9",
        "terminated with signal sigkill",
        "sigkill(-9)",
        "was sent sigkill",
        "killed due to the node running low on memory",
        "oom-kill event",
        "out-of-memory handler",
        "exceeding memory limits",
        "exceeding physical memory limits",
    ];
    if let Some(words) = found(line, &own) {
        return Some(reading(line, Sign::Child, true, words));
    }
    // Of other processes, of those that are being killed, and of runs before this one.
    let other = [
        "closing signal",
        "sending ",
        "previous ",
        "last run",
        "resum",
    ];
    if context.summary == Summary::Others || line.has_any(&other) {
        return None;
    }
    let told = [
        "signals.sigkill: 9",
        "signal 9",
        "signal: 9",
        "signal sigkill",
    ];
    let told = told.into_iter().find(|words| is_word(&line.lower, words));
    if let Some(words) = told.or_else(|| exited_with(line, &["-9", "137"])) {
        let first = context.summary == Summary::Root || line.has("failed (exitcode:");
        let sign = if first { Sign::Child } else { Sign::Launcher };
        return Some(reading(line, sign, true, words));
    }
    let shell = line.text.trim() == "Killed" || is_shells(line, "killed");
    // It says no more than the exit code does.
    shell.then(|| reading(line, Sign::Launcher, false, "killed"))
}

/// A process's end as launchers write it: `exitcode: -9`, `exits with return code = -9`, `exit status 137`.
fn exited_with<'w>(line: &Line<'_>, codes: &[&'w str]) -> Option<&'w str> {
    let said = [
        "exitcode",
        "exit code",
        "exit_code",
        "return code",
        "returncode",
        "exit status",
        "status code",
        "exited with code",
        "exited with status",
    ];
    said.iter().find_map(|words| {
        let (_, rest) = line.lower.split_once(words)?;
        let rest = rest.trim_start_matches([' ', ':', '=', '\t', '"']);
        let code = rest
            .split(|c: char| !c.is_ascii_digit() && c != '-')
            .next()?;
        codes.iter().copied().find(|known| *known == code)
    })
}

/// A shell tells how its child ended: `train.sh: line 3:    41 Killed                  python train.py`.
pub fn is_shells(line: &Line<'_>, word: &str) -> bool {
    let Some((head, _)) = line.lower.split_once(word) else {
        return false;
    };
    head.contains(": line ") && head.trim_end().ends_with(|c: char| c.is_ascii_digit())
}

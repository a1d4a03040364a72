//! Errors that are none of memory or disk.

use super::super::line::Line;
use super::killed::is_shells;
use super::{Reading, Sign, reading};

pub fn interrupt(line: &Line<'_>) -> Option<Reading> {
    let body = line.body();
    let pressed = body.starts_with("KeyboardInterrupt")
        || body.starts_with("^CTraceback")
        || body.ends_with("exiting on SIGINT");
    pressed.then(|| reading(line, Sign::Interrupt, true, "keyboardinterrupt"))
}

/// Errors that only say that another process has ended.
const OF_OTHERS: &[&str] = &[
    "childfailederror",
    "calledprocesserror",
    "processraisedexception",
    "processexitedexception",
    "brokenprocesspool",
    "brokenpipeerror",
    "connectionreseterror",
    "connection reset by peer",
    "connection closed",
    "connection refused",
    "broken pipe",
    "disterror",
    "distbackenderror",
    "nccl",
    "gloo",
    "tcpstore",
    "rendezvous",
    "socket timeout",
    "exited unexpectedly",
];

pub fn error(line: &Line<'_>) -> Option<Reading> {
    let body = line.body();
    let head = body.split([':', ' ', '(']).next().unwrap_or_default();
    let named = head.len() < 120
        && head
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
        && ["Error", "Exception", "Interrupt", "Failure"]
            .iter()
            .any(|end| head.ends_with(end))
        && head.len() > "Error".len()
        && matches!(body[head.len()..].chars().next(), None | Some(':'));
    let native = [
        "terminate called",
        "Fatal Python error",
        "Segmentation fault",
        "Floating point exception",
        "Illegal instruction",
        "Aborted (core dumped)",
        "panic:",
        "fatal error:",
    ];
    let crashed = native.iter().any(|start| body.starts_with(start))
        || line.has("' panicked at")
        || is_shells(line, "segmentation fault");
    let own = !line.has_any(OF_OTHERS);
    (named || crashed).then(|| reading(line, Sign::Error, own, &head.to_ascii_lowercase()))
}

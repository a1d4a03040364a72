//! How we speak: colours, marks, and talk on stderr.
//!
//! Invariant: colours are written always and taken away by the stream where the reader is no terminal or `NO_COLOR` is
//! set; no caller asks whether there is a terminal to decide about colour.

use std::fmt;
use std::io::{IsTerminal, Write};

use anstyle::{AnsiColor, Style};

use crate::program;

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const RED: Style = AnsiColor::Red.on_default().bold();
pub const GREEN: Style = AnsiColor::Green.on_default().bold();
pub const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
pub const CYAN: Style = AnsiColor::Cyan.on_default().bold();

/// Neighbouring ranks look different; red is kept for what went wrong.
const RANKS: [Style; 6] = [
    AnsiColor::Cyan.on_default(),
    AnsiColor::Yellow.on_default(),
    AnsiColor::Green.on_default(),
    AnsiColor::Magenta.on_default(),
    AnsiColor::Blue.on_default(),
    AnsiColor::BrightCyan.on_default(),
];

pub fn rank_style(rank: u32) -> Style {
    RANKS[rank as usize % RANKS.len()]
}

/// Text in a style.
pub struct Painted<T>(pub Style, pub T);

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(style, text) = self;
        write!(f, "{style}{text}{style:#}")
    }
}

pub fn paint<T: fmt::Display>(style: Style, text: T) -> Painted<T> {
    Painted(style, text)
}

/// The style of a word that says how something is: a phase, a state.
pub fn mood(word: &str) -> Style {
    match word {
        "Complete" | "Succeeded" | "Ready" | "OK" => GREEN,
        "Running" => CYAN,
        "Failed" | "MISSING" | "NotReady" => RED,
        "Queued" | "Starting" | "Restarting" | "Suspended" | "Pending" | "Interrupted" | "WARN" => {
            YELLOW
        }
        _ => Style::new(),
    }
}

pub fn error(what: &str) -> String {
    format!("{} {what}", paint(RED, "error:"))
}

/// The next thing to type; commands of ours in it go where this one went.
pub fn hint(hint: &str) -> String {
    format!("{} {}", paint(CYAN, "hint:"), program::addressed(hint))
}

/// One line for a person. A reader who is gone is no reason to stop the work.
pub fn talk(line: fmt::Arguments<'_>) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Talk that only `-v` wants.
pub fn whisper(verbose: bool, line: fmt::Arguments<'_>) {
    if verbose {
        talk(format_args!("{}", paint(DIM, line)));
    }
}

pub fn stdout() -> anstream::AutoStream<std::io::StdoutLock<'static>> {
    anstream::stdout().lock()
}

/// For bytes that are not ours: given on as they are.
pub fn raw_stdout() -> std::io::StdoutLock<'static> {
    std::io::stdout().lock()
}

/// May we colour what we add to bytes that are not ours?
pub fn stdout_has_colour() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

pub fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Diagnostics of our own libraries, for those who ask by `STOKE_LOG`.
pub fn log_to_stderr() {
    if std::env::var_os("STOKE_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_env("STOKE_LOG");
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .try_init();
    }
}

/// The log of a process that serves a cluster, on stderr; `STOKE_LOG` chooses how much. What the client library has to say we
/// say ourselves, once.
pub fn log_service() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("STOKE_LOG").unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new("warn,stoke=info,kube_client=off,kube_runtime=off")
    });
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(stderr_is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}

//! What a person reads when something did not work, and the code a script gets.
//!
//! Invariant: nothing here panics, and a closed pipe is no failure: who stopped reading has seen enough.

mod api;

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::terminal;
use crate::world::Place;

pub use api::{is_away, is_forbidden, is_unserved};

/// How a command ended. `stoke --help` shows this list; scripts rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// A job failed without a code of its own, or something unforeseen.
    Failed,
    /// The command line was wrong.
    Usage,
    /// No server answers.
    Unreachable,
    NotFound,
    /// The server understood and said no: invalid, in conflict, too large.
    Refused,
    /// Ctrl-C.
    Interrupted,
    /// What the job's own process ended with.
    Job(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::NotFound => 4,
            Self::Refused => 5,
            Self::Interrupted => 130,
            Self::Job(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// An error that knows what to tell a person: what failed, the detail, and the next thing to type.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    what: String,
    /// Printed as it is below the first line: an excerpt of a file, the end of a log.
    body: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            body: String::new(),
            hint: None,
            source: None,
        }
    }

    pub fn exit(&self) -> Exit {
        self.exit
    }

    pub fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// All a person sees of it, for tests of texts.
    #[cfg(test)]
    pub fn shown(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| terminal::hint(hint));
        let parts = [
            self.what.as_str(),
            self.body.trim_end(),
            hint.as_deref().unwrap_or_default(),
        ];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("\n")
    }

    pub fn source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// An error with the world it came from, so that it can be told in that world's words.
#[derive(Debug)]
struct Located {
    error: anyhow::Error,
    place: Place,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for Located {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.chain().nth(1)
    }
}

/// Remembers where an error happened.
pub fn at(place: Place, error: anyhow::Error) -> anyhow::Error {
    anyhow::Error::new(Located { error, place })
}

/// The error itself and where it happened.
fn opened(error: &anyhow::Error) -> (&anyhow::Error, &Place) {
    match error.downcast_ref::<Located>() {
        Some(located) => (&located.error, &located.place),
        None => (error, &Place::Engine),
    }
}

/// An error as it is shown.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    exit: u8,
    what: String,
    body: String,
    causes: Vec<String>,
    hint: Option<String>,
}

/// Tells the error on stderr and gives the code to end with.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let (error, place) = opened(error);
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let told = tell(error, place);
    terminal::talk(format_args!("{}", terminal::error(&told.what)));
    if !told.body.is_empty() {
        terminal::talk(format_args!("{}", told.body.trim_end()));
    }
    for cause in &told.causes {
        terminal::talk(format_args!("  {cause}"));
    }
    if let Some(hint) = &told.hint {
        terminal::talk(format_args!("{}", terminal::hint(hint)));
    }
    ExitCode::from(told.exit)
}

/// The error as one line, for places that have no room for more.
pub fn sentence(error: &anyhow::Error, place: &Place) -> String {
    let told = tell(error, place);
    std::iter::once(told.what)
        .chain(told.causes)
        .collect::<Vec<_>>()
        .join(": ")
}

/// What a server answered, as one line.
pub fn api_sentence(error: &kube::Error, place: &Place) -> String {
    api::tell(error, place).line
}

/// clap's own words for a wrong command line, and its help where that was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    // Nothing is left to tell if the terminal is gone.
    let _ = error.print();
    if error.use_stderr() {
        Exit::Usage.into()
    } else {
        ExitCode::SUCCESS
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

fn tell(error: &anyhow::Error, place: &Place) -> Told {
    let mut told = Told {
        exit: Exit::Failed.code(),
        what: String::new(),
        body: String::new(),
        causes: Vec::new(),
        hint: None,
    };
    let mut lines = Vec::new();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
    // Contexts added by anyhow come first in the chain; what they wrap decides the code and the hint.
    while let Some(current) = cause {
        cause = current.source();
        if let Some(failure) = current.downcast_ref::<Failure>() {
            told.exit = failure.exit.code();
            told.hint.clone_from(&failure.hint);
            told.body.clone_from(&failure.body);
            lines.push(failure.what.clone());
        } else if let Some(error) = current.downcast_ref::<kube::Error>() {
            let answer = api::tell(error, place);
            if told.exit == Exit::Failed.code() {
                told.exit = answer.exit.code();
            }
            told.hint = told.hint.or(answer.hint);
            lines.push(answer.line);
            break;
        } else {
            lines.push(current.to_string());
        }
    }
    lines.dedup();
    let mut lines = lines.into_iter();
    told.what = lines.next().unwrap_or_default();
    told.causes = lines.collect();
    told
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use kube::core::Status;

    use super::*;

    fn api(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Status::failure(message, "Reason").with_code(code).boxed())
    }

    #[test]
    fn codes_tell_scripts_what_happened() {
        let table = [
            (api(404, "trainjobs \"x\" not found"), 4),
            (api(409, "exists"), 5),
            (api(422, "invalid"), 5),
            (api(413, "too large"), 5),
            (api(401, "who are you"), 3),
            (api(500, "broken"), 1),
            (
                kube::Error::Service(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused))),
                3,
            ),
        ];
        for (error, code) in table {
            let text = format!("{error:?}");
            let told = tell(
                &anyhow::Error::new(error).context("cannot get the job"),
                &Place::Engine,
            );
            assert_eq!(told.exit, code, "{text}");
            assert_eq!(told.what, "cannot get the job");
            assert_eq!(told.causes.len(), 1, "{text}");
        }
    }

    #[test]
    fn a_failure_keeps_its_hint_under_more_context() {
        let error = Err::<(), _>(Failure::new(Exit::Unreachable, "no engine").hint("stoke up"))
            .context("cannot list jobs")
            .unwrap_err();
        let located = at(Place::Engine, error);
        let (error, place) = opened(&located);
        let told = tell(error, place);
        assert_eq!(told.exit, 3);
        assert_eq!(told.what, "cannot list jobs");
        assert_eq!(told.causes, ["no engine"]);
        assert_eq!(told.hint.as_deref(), Some("stoke up"));
    }

    #[test]
    fn a_closed_pipe_is_the_end_and_no_failure() {
        let error = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("write");
        assert!(is_closed_pipe(&error));
    }
}

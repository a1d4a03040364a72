//! How a line and what happens between lines look.

use std::io::{self, Write};

use anstyle::Style;
use stoke_api::TrainJob;

use crate::failure::{self, Exit, Failure};
use crate::follow::{Happening, Line};
use crate::render;
use crate::session::Session;
use crate::terminal::{self, DIM, paint, rank_style};

#[derive(Debug, Clone, Copy, Default)]
pub struct Printer {
    pub with_rank: bool,
    pub with_job: bool,
    pub with_time: bool,
    /// Of what we add; the worker's own colours are its own affair.
    pub with_colour: bool,
}

impl Printer {
    /// The worker's bytes are given as they are, so `out` must not be a stream that looks into them.
    pub fn print(self, out: &mut impl Write, line: &Line) -> io::Result<()> {
        let rank = line.rank.unwrap_or_default();
        let paint = |style, text: String| {
            let style = if self.with_colour {
                style
            } else {
                Style::new()
            };
            paint(style, text).to_string()
        };
        let mark = match (self.with_job, self.with_rank) {
            (true, true) => format!("[{}/{rank}]", line.job),
            (true, false) => format!("[{}]", line.job),
            (false, true) => format!("[{rank}]"),
            (false, false) => String::new(),
        };
        if !mark.is_empty() {
            write!(out, "{} ", paint(rank_style(rank), mark))?;
        }
        if let Some(at) = line.at.filter(|_| self.with_time) {
            write!(out, "{} ", paint(DIM, at.to_string()))?;
        }
        out.write_all(&line.text)?;
        out.write_all(b"\n")
    }
}

/// A new attempt begins; why the one before ended.
pub fn new_attempt(job: &TrainJob) {
    let Some(status) = &job.status else {
        return;
    };
    let before = status
        .attempts
        .iter()
        .rev()
        .find(|attempt| attempt.number < status.attempt)
        .and_then(|attempt| attempt.exit.as_ref())
        .map(|end| format!(" (the last one: {})", render::exit(end)));
    let told = format!(
        "{}: attempt {} begins{}",
        job.name(),
        status.attempt,
        before.unwrap_or_default()
    );
    terminal::talk(format_args!("{}", paint(DIM, told)));
}

/// What keeps lines from coming.
pub fn interruption(name: &str, happening: &Happening, session: &Session) -> anyhow::Result<()> {
    match happening {
        Happening::Away => {
            let told = format!(
                "{} does not answer; waiting for it to come back",
                session.place()
            );
            terminal::talk(format_args!("{}", paint(DIM, told)));
        }
        Happening::Back => {
            let told = format!("{} is back", session.place());
            terminal::talk(format_args!("{}", paint(DIM, told)));
        }
        Happening::Unreadable { pod, error } => terminal::talk(format_args!(
            "{pod}: its lines cannot be read: {}",
            failure::api_sentence(error, &session.place())
        )),
        Happening::Refused(error) => {
            let what = format!(
                "cannot follow job {name:?}: {}",
                failure::api_sentence(error, &session.place())
            );
            return Err(Failure::new(Exit::Refused, what)
                .hint(format!("it goes on; look at it: stoke get jobs {name}"))
                .into());
        }
        Happening::Gone => {
            return Err(Failure::new(Exit::NotFound, format!("job {name:?} was deleted")).into());
        }
        Happening::Lost => return Err(session.lost(name).into()),
        Happening::Job(_) | Happening::Line(_) | Happening::Finished(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_marked_where_it_helps_and_else_left_alone() {
        let line = Line {
            job: "gpt".to_owned(),
            rank: Some(1),
            at: "2026-11-15T12:00:00Z".parse().ok(),
            text: b"loss \xff 1.5".to_vec(),
        };
        let table = [
            ((false, false, false), &b"loss \xff 1.5\n"[..]),
            ((true, false, false), b"[1] loss \xff 1.5\n"),
            ((true, true, false), b"[gpt/1] loss \xff 1.5\n"),
            ((false, true, false), b"[gpt] loss \xff 1.5\n"),
            (
                (true, false, true),
                b"[1] 2026-11-15T12:00:00Z loss \xff 1.5\n",
            ),
        ];
        for ((with_rank, with_job, with_time), expected) in table {
            let printer = Printer {
                with_rank,
                with_job,
                with_time,
                with_colour: false,
            };
            let mut out = Vec::new();
            printer.print(&mut out, &line).unwrap();
            assert_eq!(out, expected, "{printer:?}");
        }
    }
}

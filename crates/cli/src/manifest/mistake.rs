//! One mistake in a file, and how it is shown: the place, the line, what to write instead.

use std::fmt::Write as _;

use kube::core::Status;
use stoke_api::misspelling;

use super::Document;
use super::suggest;
use super::tree::{Found, Position};
use crate::terminal::{CYAN, DIM, RED, paint};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub position: Position,
    pub message: String,
    pub hint: Option<String>,
}

/// A line of a file wider than this is cut: the rest of a minified JSON helps nobody.
const WIDTH_MAX: usize = 120;

impl Mistake {
    /// The first line and the excerpt below it.
    pub fn block(&self, file: &str, text: &str) -> (String, String) {
        let Position { line, column } = self.position;
        let what = format!("{file}:{line}:{column}: {}", self.message);
        let mut body = String::new();
        let number = line.to_string();
        let bar = |number: &str| format!("{}", paint(DIM, format!(" {number:>2} |")));
        if let Some(source) = text.lines().nth(line - 1) {
            let (shown, at) = window(source, column - 1);
            let mark = "^".repeat(word_length(&shown, at).max(1));
            body = format!(
                "{}\n{} {shown}\n{} {}{}\n",
                bar(&" ".repeat(number.len())),
                bar(&number),
                bar(&" ".repeat(number.len())),
                " ".repeat(at),
                paint(RED, mark),
            );
        }
        if let Some(hint) = &self.hint {
            let margin = " ".repeat(number.len().max(2));
            // Writing to a String cannot fail.
            let _ = writeln!(body, " {margin} {} {hint}", paint(CYAN, "="));
        }
        (what, body)
    }
}

/// The part of a line that is shown, and where the mistake is in it. Tabs become spaces so that the mark stands right.
fn window(line: &str, column: usize) -> (String, usize) {
    let start = if column > WIDTH_MAX * 3 / 4 {
        column - WIDTH_MAX / 4
    } else {
        0
    };
    let shown = line
        .chars()
        .skip(start)
        .take(WIDTH_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    (shown, column - start)
}

fn word_length(line: &str, at: usize) -> usize {
    let mut rest = line.chars().skip(at).peekable();
    match rest.peek() {
        Some(quote @ ('"' | '\'')) => {
            let quote = *quote;
            2 + rest.skip(1).take_while(|c| *c != quote).count()
        }
        _ => rest
            .take_while(|c| !c.is_whitespace() && !matches!(c, ':' | ',' | '}' | ']' | '{' | '['))
            .count(),
    }
}

/// What a server said, as mistakes of the file: a 422's causes, or the unknown fields of strict decoding.
pub fn from_status(document: &Document, status: &Status) -> Vec<Mistake> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mistakes: Vec<Mistake> = causes
        // Of no field: that rules were not looked at, for what is wrong with others.
        .filter(|cause| !cause.field.is_empty() && cause.field != "<nil>")
        .map(|cause| from_cause(document, &cause.field, &cause.message, &cause.reason))
        .collect();
    if !mistakes.is_empty() {
        return mistakes;
    }
    unknown_fields(&status.message)
        .map(|path| unknown_field(document, path, &[]))
        .collect()
}

fn from_cause(document: &Document, field: &str, message: &str, reason: &str) -> Mistake {
    let found = document.root.locate(field);
    let hint = if message.contains("must be of type string")
        && (message.contains("integer")
            || message.contains("number")
            || message.contains("boolean"))
    {
        Some("put it in quotes to make it text".to_owned())
    } else if reason == "FieldValueRequired" && matches!(found, Found::Near(_)) {
        let missing = field.rsplit('.').next().unwrap_or(field);
        Some(format!("add {missing} here"))
    } else {
        None
    };
    Mistake {
        position: found.position(),
        message: format!("{field}: {message}"),
        hint,
    }
}

/// The fields a strict decoder names, as Kubernetes words it: `unknown field "spec.foo"`.
fn unknown_fields(message: &str) -> impl Iterator<Item = &str> {
    message
        .split("unknown field \"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"').map(|(path, _)| path))
}

pub fn unknown_field(document: &Document, path: &str, known: &[&str]) -> Mistake {
    let field = path.rsplit('.').next().unwrap_or(path);
    let ours = document.is_job().then(|| misspelling(field)).flatten();
    let hint = match ours {
        Some(ours) => Some(format!("here it is called {ours}")),
        None => suggest::nearest(field, known).map(|near| format!("did you mean {near}?")),
    };
    Mistake {
        position: document.root.locate_key(path).position(),
        message: format!("unknown field {path:?}"),
        hint,
    }
}

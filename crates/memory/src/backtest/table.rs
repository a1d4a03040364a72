//! The runs of a workflow, as CSV: `task,start_s,duration_s,peak_bytes,input_bytes,requested_bytes`.

use std::collections::BTreeMap;

/// The runs of one workflow, by task, in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Workflow {
    pub(super) tasks: Vec<Task>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Task {
    pub rows: Vec<Row>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub seconds: f64,
    /// Bytes, as all of these.
    pub peak: u64,
    pub input: Option<u64>,
    /// 0: nothing was asked for.
    pub requested: u64,
}

/// Something in the file is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TableError {
    /// The first line is 1.
    pub line: usize,
    pub what: String,
}

fn wrong(line: usize, what: impl Into<String>) -> TableError {
    TableError {
        line,
        what: what.into(),
    }
}

/// Where each column is. `start_s` is not looked at: rows come in the order in which they began.
struct Columns {
    task: usize,
    seconds: usize,
    peak: usize,
    input: Option<usize>,
    requested: Option<usize>,
}

impl Columns {
    fn of(head: &[String]) -> Result<Self, TableError> {
        let find = |name: &str| head.iter().position(|cell| cell.trim() == name);
        let needed = |name: &str| {
            let what = || {
                format!(
                    "there is no column {name}; the first line names the columns: task,start_s,duration_s,peak_bytes,input_bytes,requested_bytes"
                )
            };
            find(name).ok_or_else(|| wrong(1, what()))
        };
        Ok(Self {
            task: needed("task")?,
            seconds: needed("duration_s")?,
            peak: needed("peak_bytes")?,
            input: find("input_bytes"),
            requested: find("requested_bytes"),
        })
    }
}

impl Workflow {
    /// Reads a whole file. Columns are found by their names; others are not looked at. `input_bytes` and `requested_bytes` may be empty
    /// or 0 where they are not known.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let text = text.trim_start_matches('\u{feff}');
        let mut lines = text
            .lines()
            .zip(1..)
            .filter(|(line, _)| !line.trim().is_empty());
        let (head, first) = lines.next().ok_or_else(|| wrong(1, "the file is empty"))?;
        let columns = Columns::of(&cells(head, first)?)?;
        let mut tasks: Vec<Task> = Vec::new();
        let mut known = BTreeMap::<String, usize>::new();
        for (line, number) in lines {
            let (task, row) = row(&cells(line, number)?, &columns, number)?;
            let index = *known.entry(task).or_insert(tasks.len());
            if index == tasks.len() {
                tasks.push(Task { rows: Vec::new() });
            }
            tasks[index].rows.push(row);
        }
        if tasks.is_empty() {
            return Err(wrong(first, "there is a head and no row"));
        }
        Ok(Self { tasks })
    }
}

fn row(cells: &[String], columns: &Columns, line: usize) -> Result<(String, Row), TableError> {
    let cell = |index: usize, name: &str| {
        let missing = || {
            wrong(
                line,
                format!("{name} is missing: there are {} columns", cells.len()),
            )
        };
        cells.get(index).map(|cell| cell.trim()).ok_or_else(missing)
    };
    let task = cell(columns.task, "task")?;
    if task.is_empty() {
        return Err(wrong(line, "task is empty"));
    }
    let optional = |index: Option<usize>, name: &str| match index {
        None => Ok(0),
        Some(index) => match cell(index, name)? {
            "" => Ok(0),
            text => bytes(text, name, line),
        },
    };
    let row = Row {
        seconds: number(cell(columns.seconds, "duration_s")?, "duration_s", line)?,
        peak: bytes(cell(columns.peak, "peak_bytes")?, "peak_bytes", line)?,
        input: Some(optional(columns.input, "input_bytes")?).filter(|input| *input > 0),
        requested: optional(columns.requested, "requested_bytes")?,
    };
    Ok((task.to_owned(), row))
}

/// Some tools write whole numbers as `1024.0`.
fn bytes(text: &str, name: &str, line: usize) -> Result<u64, TableError> {
    const MOST: f64 = (1_u64 << 60) as f64;
    let number = match text.parse::<u64>() {
        Ok(number) => number as f64,
        Err(_) => number(text, name, line)?,
    };
    if number > MOST {
        return Err(wrong(
            line,
            format!("{name} is more than any machine has: {}", shown(text)),
        ));
    }
    Ok(text.parse().unwrap_or(number as u64))
}

fn number(text: &str, name: &str, line: usize) -> Result<f64, TableError> {
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| {
        wrong(
            line,
            format!("{name} must be a number of 0 or more, not {}", shown(text)),
        )
    })
}

fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 40;
    let mut shown: String = text.chars().take(SHOWN_MAX).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    format!("{shown:?}")
}

/// The cells of a line; one in quotes may hold commas, and `""` for a quote.
fn cells(line: &str, number: usize) -> Result<Vec<String>, TableError> {
    if !line.contains('"') {
        return Ok(line.split(',').map(str::to_owned).collect());
    }
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                push(&mut cells, '"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            char => push(&mut cells, char),
        }
    }
    if quoted {
        return Err(wrong(number, "a quote is opened and not closed"));
    }
    Ok(cells)
}

fn push(cells: &mut [String], char: char) {
    if let Some(cell) = cells.last_mut() {
        cell.push(char);
    }
}

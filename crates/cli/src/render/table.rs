//! Tables: those the server makes (`meta.k8s.io/v1` Table), and our own.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::terminal::{BOLD, mood, paint};

/// A table as the server sends it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Table {
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_is_none")]
    pub column_definitions: Vec<Column>,
    #[serde(deserialize_with = "null_is_none")]
    pub rows: Vec<Row>,
}

/// Go writes an empty list as null, as in the columns of all watch events but the first.
fn null_is_none<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub continue_token: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Column {
    pub name: String,
    /// Those above 0 are shown only where there is room for more.
    pub priority: i32,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Row {
    pub cells: Vec<Value>,
    /// The object, or its metadata.
    pub object: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    pub wide: bool,
    pub with_namespace: bool,
}

impl Table {
    /// The head and the rows as text.
    pub fn grid(&self, shape: Shape) -> Grid {
        let shown: Vec<(usize, &Column)> = self
            .column_definitions
            .iter()
            .enumerate()
            .filter(|(_, column)| shape.wide || column.priority == 0)
            .collect();
        let mut head: Vec<String> = shown
            .iter()
            .map(|(_, column)| column.name.to_uppercase())
            .collect();
        if shape.with_namespace {
            head.insert(0, "NAMESPACE".to_owned());
        }
        let mut grid = Grid::new(head);
        for row in &self.rows {
            let mut cells: Vec<String> = shown
                .iter()
                .map(|(index, _)| row.cells.get(*index).map_or_else(String::new, cell))
                .collect();
            if shape.with_namespace {
                cells.insert(0, cell(&row.object["metadata"]["namespace"]));
            }
            grid.push(cells);
        }
        grid
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) if text.is_empty() => "<none>".to_owned(),
        // A cell is one line, whatever a message holds.
        Value::String(text) => text.replace(['\n', '\r', '\t'], " "),
        other => other.to_string(),
    }
}

/// Rows under a head, in columns as wide as they must be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grid {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns keep the width they had in an earlier table, so that what is watched stays aligned.
    widths_min: Vec<usize>,
}

const GAP: usize = 3;

impl Grid {
    pub fn new(head: Vec<String>) -> Self {
        Self {
            head,
            rows: Vec::new(),
            widths_min: Vec::new(),
        }
    }

    pub fn with_head(head: &[&str]) -> Self {
        Self::new(head.iter().map(|name| (*name).to_owned()).collect())
    }

    pub fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn at_least(mut self, widths: &[usize]) -> Self {
        self.widths_min = widths.to_vec();
        self
    }

    pub fn widths(&self) -> Vec<usize> {
        let of_column = |index: usize| {
            let cells = self.rows.iter().chain([&self.head]);
            let widest = cells
                .filter_map(|row| row.get(index))
                .map(|cell| cell.chars().count())
                .max();
            widest
                .unwrap_or(0)
                .max(self.widths_min.get(index).copied().unwrap_or(0))
        };
        (0..self.head.len()).map(of_column).collect()
    }

    pub fn head_text(&self) -> String {
        line(&self.head, &self.widths(), |_| BOLD)
    }

    pub fn rows_text(&self) -> String {
        let widths = self.widths();
        self.rows
            .iter()
            .map(|row| line(row, &widths, mood))
            .collect()
    }

    pub fn text(&self) -> String {
        format!("{}{}", self.head_text(), self.rows_text())
    }

    /// Each line moved to the right, as part of a longer text.
    pub fn indented(&self, by: usize) -> String {
        let margin = " ".repeat(by);
        let text = self.text();
        text.lines()
            .fold(String::new(), |all, line| all + &margin + line + "\n")
    }
}

fn line(cells: &[String], widths: &[usize], style: impl Fn(&str) -> anstyle::Style) -> String {
    let last = cells.len().saturating_sub(1);
    let mut text = String::new();
    for (index, cell) in cells.iter().enumerate() {
        text.push_str(&paint(style(cell), cell).to_string());
        if index < last {
            let width = widths.get(index).copied().unwrap_or(0) + GAP;
            let fill = width.saturating_sub(cell.chars().count());
            text.push_str(&" ".repeat(fill));
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        serde_json::from_value(serde_json::json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"},
            "columnDefinitions": [
                {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
                {"name": "Phase", "type": "string", "format": "", "description": "", "priority": 0},
                {"name": "Message", "type": "string", "format": "", "description": "", "priority": 1}
            ],
            "rows": [
                {"cells": ["a", "Running", "two\nlines"], "object": {"metadata": {"namespace": "default"}}},
                {"cells": ["longer-name", null, ""], "object": {"metadata": {"namespace": "team"}}},
                {"cells": ["short-row"], "object": null}
            ]
        }))
        .unwrap()
    }

    fn plain(grid: &Grid) -> String {
        anstream::adapter::strip_str(&grid.text()).to_string()
    }

    #[test]
    fn lists_may_be_null() {
        let table: Table =
            serde_json::from_str(r#"{"columnDefinitions": null, "rows": null}"#).unwrap();
        assert!(table.rows.is_empty() && table.column_definitions.is_empty());
    }

    #[test]
    fn columns_line_up() {
        insta::assert_snapshot!(plain(&table().grid(Shape::default())), @"
        NAME          PHASE
        a             Running
        longer-name   <none>
        short-row
        ");
    }

    #[test]
    fn wide_shows_more_and_all_namespaces_are_named() {
        let shape = Shape {
            wide: true,
            with_namespace: true,
        };
        insta::assert_snapshot!(plain(&table().grid(shape)), @"
        NAMESPACE   NAME          PHASE     MESSAGE
        default     a             Running   two lines
        team        longer-name   <none>    <none>
        <none>      short-row
        ");
    }

    #[test]
    fn a_watched_table_keeps_its_widths() {
        let first = table().grid(Shape::default());
        let mut next = Grid::with_head(&["NAME", "PHASE"]);
        next.push(vec!["b".to_owned(), "Failed".to_owned()]);
        let next = next.at_least(&first.widths());
        assert_eq!(
            anstream::adapter::strip_str(&next.rows_text()).to_string(),
            "b             Failed\n"
        );
    }
}

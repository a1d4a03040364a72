//! Estimates held against measurements.
//!
//! A CSV file with a head; columns by name: `model`, `params_b`, `layers`, `hidden`, `heads`, `kv_heads`, `intermediate`, `gated_mlp`, `vocab`,
//! `method`, `precision`, `optimizer`, `batch`, `seq`, `grad_checkpoint`, `flash`, `lora_rank`, `gpus`, `unit`, `measured`, `how`, and where there
//! are such `head_dim`, `zero` and `tensor_parallel`. Each row is compared with what was measured in it: `allocated`, `reserved`, or all that nvidia-smi shows.

use std::collections::BTreeMap;

use stoke_api::trainjob::{Method, Model, Optimizer, Precision};
use stoke_api::{Bytes, Parameters};

use super::{Head, Shape, Training, estimate};

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Of the file, from 1.
    pub line: usize,
    pub model: String,
    /// Method, precision and optimizer.
    pub training: String,
    pub measured: Bytes,
    pub estimated: Bytes,
}

impl Measured {
    /// Of what was measured; below zero where too little was estimated.
    pub fn error(&self) -> f64 {
        let measured = self.measured.0.max(1) as f64;
        self.estimated.0 as f64 / measured - 1.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct CheckError {
    pub line: usize,
    pub what: String,
}

/// How good the estimates are.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Accuracy {
    /// Of the error's size.
    pub median: f64,
    /// The most that was estimated too little, as a share.
    pub worst_under: f64,
    pub worst_over: f64,
}

pub fn accuracy(rows: &[Measured]) -> Accuracy {
    let mut sizes: Vec<f64> = rows.iter().map(|row| row.error().abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let middle = |at: usize| sizes.get(at).copied().unwrap_or(0.0);
    let errors = rows.iter().map(Measured::error);
    Accuracy {
        median: f64::midpoint(
            middle(sizes.len() / 2),
            middle(sizes.len().saturating_sub(1) / 2),
        ),
        worst_under: errors.clone().fold(0.0, |worst, error| worst.max(-error)),
        worst_over: errors.fold(0.0, f64::max),
    }
}

pub fn check(text: &str) -> Result<Vec<Measured>, CheckError> {
    let mut lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty());
    let Some((head, _)) = lines.next() else {
        return Err(CheckError {
            line: 1,
            what: "the file is empty; its first line names the columns".to_owned(),
        });
    };
    let head = cells(head);
    lines
        .map(|(text, line)| {
            let row = Row {
                cells: head.iter().map(String::as_str).zip(cells(text)).collect(),
            };
            row.measured(line).map_err(|what| CheckError { line, what })
        })
        .collect()
}

/// The cells of a line. Between quotes a comma is one, and two quotes are one.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let last = cells.len() - 1;
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cells[last].push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            c => cells[last].push(c),
        }
    }
    cells
        .into_iter()
        .map(|cell| cell.trim().to_owned())
        .collect()
}

struct Row<'a> {
    cells: BTreeMap<&'a str, String>,
}

impl Row<'_> {
    fn text(&self, column: &str) -> &str {
        self.cells.get(column).map_or("", String::as_str)
    }

    fn number(&self, column: &str) -> Result<Option<u32>, String> {
        match self.text(column) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| format!("{column} is {text:?}, not a whole number")),
        }
    }

    fn flag(&self, column: &str) -> Result<bool, String> {
        match self.text(column).to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" => Ok(true),
            "false" | "0" | "no" | "" => Ok(false),
            text => Err(format!("{column} is {text:?}, not true or false")),
        }
    }

    fn measured(&self, line: usize) -> Result<Measured, String> {
        // `qlora-nf4`, `full-zero3`: what follows the method says how it is packed or shared.
        let (method_text, manner) = self
            .text("method")
            .split_once('-')
            .unwrap_or((self.text("method"), ""));
        let method = word("method", method_text, Method::ALL)?;
        let precision = match self.text("precision") {
            "32" | "32-true" => Precision::Fp32,
            "16-mixed" => Precision::Fp16Mixed,
            text => {
                let plain = text.strip_suffix("-true").unwrap_or(text);
                word("precision", plain, Precision::ALL)?
            }
        };
        let optimizer = match self.text("optimizer").replace(['-', '_'], "").as_str() {
            "adam" => Optimizer::Adamw,
            "adamw8bit" => Optimizer::Adam8bit,
            "sgdmomentum" => Optimizer::Momentum,
            plain => word("optimizer", plain, Optimizer::ALL)?,
        };
        let stage = match manner {
            "fsdp" => Some(3),
            manner => manner
                .strip_prefix("zero")
                .and_then(|stage| stage.trim_start_matches('-').parse().ok()),
        };
        let zero = self.number("zero")?.or(stage).unwrap_or(0).min(3) as u8;
        let params = match self.text("params_b") {
            "" => None,
            text => {
                let params = format!("{text}B").parse::<Parameters>();
                Some(
                    params
                        .map_err(|_| format!("params_b is {text:?}, not a number of billions"))?,
                )
            }
        };
        let defaults = Model::default();
        let model = Model {
            params,
            layers: self.number("layers")?,
            hidden: self.number("hidden")?,
            heads: self.number("heads")?,
            kv_heads: self.number("kv_heads")?,
            head_dim: self.number("head_dim")?,
            intermediate: self.number("intermediate")?,
            gated_mlp: self.flag("gated_mlp")?,
            vocab: self.number("vocab")?.unwrap_or(defaults.vocab),
            method,
            lora_rank: self.number("lora_rank")?.unwrap_or(defaults.lora_rank),
            precision,
            optimizer,
            batch: self.number("batch")?.unwrap_or(defaults.batch),
            sequence: self.number("seq")?.unwrap_or(defaults.sequence),
            grad_checkpoint: self.flag("grad_checkpoint")?,
            flash: self.flag("flash")?,
            zero,
            tensor_parallel: self.number("tensor_parallel")?.unwrap_or(1),
        };
        let name = self.text("model");
        let shape = Shape::of(&model).map_err(|error| error.to_string())?;
        let training = Training::of(&model, self.number("gpus")?.unwrap_or(1));
        let estimate = estimate(&family(name, shape), &training);
        let how = self.text("how");
        let estimated = if how.contains("allocated") {
            estimate.allocated()
        } else if how.contains("reserved") {
            estimate.reserved()
        } else {
            estimate.total()
        };
        Ok(Measured {
            line,
            model: name.to_owned(),
            training: format!("{method} {precision} {optimizer}"),
            measured: self.amount()?,
            estimated,
        })
    }

    fn amount(&self) -> Result<Bytes, String> {
        let text = self.text("measured");
        let value: f64 = text
            .parse()
            .ok()
            .filter(|value: &f64| value.is_finite() && *value > 0.0)
            .ok_or_else(|| format!("measured is {text:?}, not an amount"))?;
        let unit = match self.text("unit") {
            "B" => 1.0,
            "MB" => 1e6,
            "MiB" => f64::from(1 << 20),
            "GB" => 1e9,
            "GiB" => f64::from(1 << 30),
            unit => return Err(format!("unit is {unit:?}, not MB, MiB, GB or GiB")),
        };
        Ok(Bytes((value * unit) as u64))
    }
}

fn word<T: Copy + ToString>(column: &str, text: &str, all: &[T]) -> Result<T, String> {
    let words = || all.iter().map(ToString::to_string);
    let at = words().position(|word| word == text);
    at.and_then(|at| all.get(at).copied()).ok_or_else(|| {
        let words: Vec<String> = words().collect();
        format!("{column} is {text:?}, not one of {}", words.join(", "))
    })
}

/// What a shape's numbers do not say and its family's name does.
fn family(name: &str, mut shape: Shape) -> Shape {
    let name = name.to_ascii_lowercase();
    let is_any = |families: &[&str]| families.iter().any(|family| name.contains(family));
    // Encoders are fine-tuned to tell classes apart.
    if is_any(&["bert", "electra"]) {
        shape.head = Head::Classes;
    }
    shape.has_dropout = is_any(&["bert", "electra", "gpt2", "gpt-2", "opt-", "t5", "bart"]);
    shape.has_eager_gelu = is_any(&["gpt2", "gpt-2"]);
    shape
}

//! An estimate as it is shown.

use std::fmt::Write as _;

use serde_json::{Value, json};
use stoke_api::trainjob::Method;
use stoke_api::{Bytes, Parameters};
use stoke_memory::estimate::{
    Change, Estimate, Gpu, Head, Measured, Shape, Training, Verdict, accuracy, changes, estimate,
    spread,
};

use crate::render::count;
use crate::render::table::Grid;
use crate::terminal::{BOLD, DIM, paint};

pub struct Report {
    shape: Shape,
    training: Training,
    estimate: Estimate,
    gpus: Vec<OnGpu>,
}

/// How it goes on one kind of GPU.
struct OnGpu {
    gpu: Gpu,
    needs: Bytes,
    verdict: Verdict,
    /// On as many GPUs.
    changes: Option<Vec<Change>>,
    /// On more of them.
    spread: Option<Vec<Change>>,
}

impl Report {
    pub fn new(shape: Shape, training: Training, gpus: Vec<Gpu>) -> Self {
        let mut needed = estimate(&shape, &training);
        // Where one is meant, the whole estimate is for that one.
        if let [only] = gpus.as_slice() {
            needed = needed.on(only, &training);
        }
        let on_gpu = |gpu: Gpu| {
            let verdict = Verdict::on(&gpu, needed, &training);
            let is_short = verdict != Verdict::Fits;
            OnGpu {
                needs: needed.on(&gpu, &training).total(),
                verdict,
                changes: is_short.then(|| changes(&shape, &training, &gpu)).flatten(),
                spread: is_short.then(|| spread(&shape, &training, &gpu)).flatten(),
                gpu,
            }
        };
        let gpus = gpus.into_iter().map(on_gpu).collect();
        Self {
            estimate: needed,
            gpus,
            shape,
            training,
        }
    }

    fn parts(&self) -> [(&'static str, Bytes, String); 8] {
        let Estimate {
            weights,
            gradients,
            optimizer,
            activations,
            logits,
            buffers,
            fragmentation,
            context,
        } = self.estimate;
        let Training {
            method,
            lora_rank,
            precision,
            zero,
            ..
        } = self.training;
        let sharded = |from: u8| if zero >= from { ", sharded" } else { "" };
        let params = Parameters(self.shape.params).human();
        let of_weights = match method {
            Method::Full => format!("{params} in {precision}{}", sharded(3)),
            Method::Lora => format!(
                "{params} frozen in {precision}, adapters of rank {lora_rank}{}",
                sharded(3)
            ),
            Method::Qlora => format!(
                "{params} frozen, layers in 4 bits, adapters of rank {lora_rank}{}",
                sharded(3)
            ),
        };
        let of_activations = if self.training.grad_checkpoint {
            "layer inputs, and one layer computed again"
        } else if self.training.flash {
            "what all layers keep of each token"
        } else {
            "what all layers keep of each token, attention scores included"
        };
        let who = self.training.optimizer;
        [
            ("weights", weights, of_weights),
            (
                "gradients",
                gradients,
                format!("of what is trained{}", sharded(2)),
            ),
            ("optimizer", optimizer, format!("{who}{}", sharded(1))),
            ("activations", activations, of_activations.to_owned()),
            (
                "logits",
                logits,
                match self.shape.head {
                    Head::Language => {
                        format!("of {} words, with their gradient", self.shape.vocab)
                    }
                    Head::Classes => "of a few classes".to_owned(),
                },
            ),
            (
                "buffers",
                buffers,
                "of libraries and communication".to_owned(),
            ),
            (
                "fragmentation",
                fragmentation,
                "held by the allocator and used by no one".to_owned(),
            ),
            (
                "context",
                context,
                "held by the driver and its libraries".to_owned(),
            ),
        ]
    }

    pub fn text(&self) -> String {
        let Shape {
            layers,
            hidden,
            heads,
            kv_heads,
            intermediate,
            vocab,
            ..
        } = self.shape;
        let params = Parameters(self.shape.params).human();
        let shared = if kv_heads == heads {
            String::new()
        } else {
            format!(" ({kv_heads} of keys and values)")
        };
        let Training {
            method,
            precision,
            optimizer,
            batch,
            sequence,
            gpus,
            ..
        } = self.training;
        let mut text = format!(
            "{params} parameters: {layers} layers of {hidden}, {heads} heads{shared}, {intermediate} between, {vocab} words\n\
             {method} in {precision} with {optimizer}, {batch} x {sequence} tokens at once on each of {}\n\n",
            count(gpus, "GPU", "GPUs"),
        );
        let mut parts = Grid::with_head(&["PART", "MEMORY", "WHAT"]);
        for (name, bytes, what) in self.parts() {
            parts.push(vec![name.to_owned(), bytes.human(), what]);
        }
        text.push_str(&parts.text());
        let total = self.estimate.total().human();
        let _ = writeln!(
            text,
            "{} of each GPU\n",
            paint(BOLD, format!("TOTAL {total}"))
        );
        let mut grid = Grid::with_head(&["GPU", "MEMORY", "FITS", "WITH", "OR WITH MORE GPUS"]);
        for on in &self.gpus {
            let flags = |changes: &Option<Vec<Change>>| match (on.verdict, changes) {
                (Verdict::Fits, _) => String::new(),
                (_, Some(changes)) => flags(changes).join(" "),
                (_, None) => "-".to_owned(),
            };
            grid.push(vec![
                on.gpu.name.to_string(),
                on.gpu.memory.human(),
                word(on.verdict).to_owned(),
                flags(&on.changes),
                flags(&on.spread),
            ]);
        }
        let grid = grid.text();
        let lines: Vec<&str> = grid.lines().map(str::trim_end).collect();
        let _ = writeln!(text, "{}", lines.join("\n"));
        let legend =
            "WITH: the least that must change, as flags to add here. tight: it may or may not fit.";
        let _ = writeln!(text, "{}", paint(DIM, legend));
        text
    }

    pub fn json(&self) -> Value {
        let mut bytes: serde_json::Map<String, Value> = self
            .parts()
            .into_iter()
            .map(|(name, bytes, _)| (name.to_owned(), json!(bytes.0)))
            .collect();
        for (name, amount) in [
            ("allocated", self.estimate.allocated()),
            ("reserved", self.estimate.reserved()),
            ("total", self.estimate.total()),
        ] {
            bytes.insert(name.to_owned(), json!(amount.0));
        }
        let gpus = self.gpus.iter().map(|on| {
            json!({
                "gpu": on.gpu.name,
                "memory_bytes": on.gpu.memory.0,
                "needs_bytes": on.needs.0,
                "fits": word(on.verdict),
                "changes": on.changes.as_deref().map(flags),
                "more_gpus": on.spread.as_deref().map(flags),
            })
        });
        json!({
            "parameters": self.shape.params,
            "bytes": bytes,
            "gpus": gpus.collect::<Vec<_>>(),
        })
    }
}

fn flags(changes: &[Change]) -> Vec<String> {
    changes.iter().map(|change| change.flag()).collect()
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fits => "yes",
        Verdict::Tight => "tight",
        Verdict::TooBig => "no",
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub fn accuracy_text(rows: &[Measured]) -> String {
    let mut grid = Grid::with_head(&["MODEL", "TRAINING", "MEASURED", "ESTIMATED", "ERROR"]);
    let gib = |bytes: Bytes| format!("{:.2} GiB", bytes.0 as f64 / f64::from(1 << 30));
    for row in rows {
        grid.push(vec![
            row.model.clone(),
            row.training.clone(),
            gib(row.measured),
            gib(row.estimated),
            format!("{:+.1} %", row.error() * 100.0),
        ]);
    }
    let all = accuracy(rows);
    format!(
        "{}\n{}: median error {}, worst underestimate {}, worst overestimate {}\n",
        grid.text(),
        count(rows.len() as u32, "measurement", "measurements"),
        percent(all.median),
        percent(all.worst_under),
        percent(all.worst_over),
    )
}

pub fn accuracy_json(rows: &[Measured]) -> Value {
    let all = accuracy(rows);
    let rows = rows.iter().map(|row| {
        json!({
            "line": row.line, "model": row.model, "training": row.training,
            "measured_bytes": row.measured.0, "estimated_bytes": row.estimated.0, "error": row.error(),
        })
    });
    json!({
        "rows": rows.collect::<Vec<_>>(),
        "median_error": all.median,
        "worst_underestimate": all.worst_under,
        "worst_overestimate": all.worst_over,
    })
}

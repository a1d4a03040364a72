//! What is held of each parameter: its weight, its gradient, what the optimizer remembers, and the buffers to move them.

use stoke_api::trainjob::{Method, Optimizer, Precision};

use super::{Shape, Targets, Training};

pub struct Held {
    pub weights: f64,
    pub gradients: f64,
    pub optimizer: f64,
    pub buffers: f64,
}

/// NF4: four bits, and one fp32 scale for each block of 64.
const NF4_BYTES: f64 = 0.5 + 4.0 / 64.0;
/// Eight-bit moments have one fp32 scale for each block of 256.
const BYTE_MOMENT: f64 = 1.0 + 4.0 / 256.0;
/// DeepSpeed reduces gradients in buckets of so many.
const REDUCE_BUCKET: f64 = 5e8;
/// Scratch space of cuBLAS, its largest (Hopper's).
const WORKSPACE: f64 = (32 << 20) as f64;

pub fn held(shape: &Shape, training: &Training) -> Held {
    let split = training.split();
    let replicas = training.replicas();
    let shard = |from_stage: u8| {
        if training.zero >= from_stage {
            replicas
        } else {
            1.0
        }
    };
    let params = shape.params as f64 / split;
    let (frozen, trained) = match training.method {
        Method::Full => (0.0, params),
        Method::Lora | Method::Qlora => (
            frozen_bytes(shape, training) / split,
            adapters(shape, training) / split,
        ),
    };
    let one = Trained::of(training);
    let gradients = trained * one.gradient / shard(2);
    let remembered = trained * one.master + moments(shape, training, trained, one.moment);
    Held {
        weights: (frozen + trained * one.weight) / shard(3),
        gradients,
        optimizer: remembered / shard(1),
        buffers: WORKSPACE + moving(shape, training, trained * one.gradient),
    }
}

/// Bytes of one parameter that is trained.
struct Trained {
    weight: f64,
    gradient: f64,
    /// The fp32 copy that the optimizer changes, where weights are in sixteen bits.
    master: f64,
    moment: f64,
}

impl Trained {
    fn of(training: &Training) -> Self {
        let same = |width| Self {
            weight: width,
            gradient: width,
            master: 0.0,
            moment: width,
        };
        match (training.method, training.precision) {
            // Adapters are kept in fp32 whatever is beside them, as PEFT does: they are small and their steps are.
            (Method::Lora | Method::Qlora, _) | (_, Precision::Fp32) => same(4.0),
            // Moments are made like the weights they belong to.
            (_, Precision::Bf16 | Precision::Fp16) => same(2.0),
            // 18 bytes with AdamW: sixteen-bit weights to compute with, fp32 gradients, fp32 weights and moments. Autocast holds the
            // same in other words: its sixteen-bit weights are a cache.
            (_, Precision::Bf16Mixed | Precision::Fp16Mixed) => Self {
                weight: 2.0,
                gradient: 4.0,
                master: 4.0,
                moment: 4.0,
            },
        }
    }
}

fn moments(shape: &Shape, training: &Training, trained: f64, width: f64) -> f64 {
    match training.optimizer {
        Optimizer::Sgd => 0.0,
        Optimizer::Momentum | Optimizer::Lion => trained * width,
        Optimizer::Adamw => trained * 2.0 * width,
        // A row and a column for each matrix, about as long as the model is wide; always in fp32.
        Optimizer::Adafactor => trained * 2.0 * 4.0 / shape.hidden as f64,
        Optimizer::Adam8bit => {
            // The table of words keeps moments in fp32, as Hugging Face's trainer sees to: its gradients are too uneven for eight bits.
            let tables: f64 = match training.method {
                Method::Full => shape.vocab as f64 * shape.hidden as f64 / training.split(),
                Method::Lora | Method::Qlora => 0.0,
            };
            (trained - tables).max(0.0) * 2.0 * BYTE_MOMENT + tables.min(trained) * 8.0
        }
    }
}

fn frozen_bytes(shape: &Shape, training: &Training) -> f64 {
    let params = shape.params as f64;
    match training.method {
        // Tables of words and norms are not packed.
        Method::Qlora => {
            let packed = shape.linear().min(params);
            packed * NF4_BYTES + (params - packed) * training.width()
        }
        // Autocast leaves weights in fp32, and does not cache casts of frozen ones.
        _ => params * training.residual_width(),
    }
}

/// Parameters of all adapters: from what goes in to the rank, and from the rank to what comes out.
fn adapters(shape: &Shape, training: &Training) -> f64 {
    let hidden = shape.hidden as f64;
    let (query, key) = (shape.query(), shape.key());
    let mlp = shape.intermediate as f64 * shape.experts as f64;
    let sides = match training.lora_targets {
        Targets::QueryValue => 2.0 * hidden + query + key,
        Targets::Attention => 4.0 * hidden + 2.0 * query + 2.0 * key,
        Targets::All => {
            let matrices = if shape.gated_mlp { 3.0 } else { 2.0 };
            let experts = shape.experts as f64;
            4.0 * hidden + 2.0 * query + 2.0 * key + matrices * (hidden * experts + mlp)
        }
    };
    f64::from(training.lora_rank) * sides * shape.layers as f64
}

/// What is in flight between GPUs, or on its way out of four bits.
fn moving(shape: &Shape, training: &Training, gradients: f64) -> f64 {
    let split = training.split();
    let largest = shape.layer().max(shape.vocab as f64 * shape.hidden as f64) / split;
    let unpacked = match training.method {
        Method::Qlora => {
            let matrix = shape.hidden as f64 * (shape.intermediate as f64).max(shape.query());
            matrix * training.width() / split
        }
        _ => 0.0,
    };
    let between = match training.zero {
        _ if training.replicas() <= 1.0 => 0.0,
        // DDP copies gradients into buckets and leaves them there.
        0 => gradients,
        1 | 2 => (shape.params as f64 / split).min(REDUCE_BUCKET) * training.width(),
        // One layer is gathered while the next one is fetched.
        _ => 2.0 * largest * training.width(),
    };
    unpacked + between
}

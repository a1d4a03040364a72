//! How much memory of a GPU a training needs, before it runs.
//!
//! Everything is counted: what PyTorch keeps of each parameter ([`states`]), what a layer keeps of each token for
//! its gradient ([`layer`]), and what the loss keeps of each word it might have said. A figure that cannot be counted (the CUDA
//! context, the allocator's waste) is a constant with its reason beside it. [`check`] holds all of it against measurements.
//!
//! Invariant: a sum over any model is finite and never panics; amounts are kept as `f64` until the end, where they are rounded once.

mod changes;
mod check;
mod config;
mod gpus;
mod layer;
mod safetensors;
mod shape;
mod states;

use stoke_api::Bytes;
use stoke_api::trainjob::{Method, Model, Optimizer, Precision};

pub use changes::{Change, changes, sentence, spread};
pub use check::{Accuracy, CheckError, Measured, accuracy, check};
pub use config::ConfigError;
pub use gpus::{Gpu, TooBig, Verdict, fits, gpu, gpus};
pub use safetensors::{HeaderError, Index, Tensors, header_length};
pub use shape::{Head, Norm, Shape, ShapeError};

/// How a model is trained. `gpus` are all that train together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    pub method: Method,
    pub lora_rank: u32,
    pub lora_targets: Targets,
    pub precision: Precision,
    pub optimizer: Optimizer,
    /// Samples that one GPU holds at once.
    pub batch: u32,
    pub sequence: u32,
    pub grad_checkpoint: bool,
    pub flash: bool,
    /// 0 to 3.
    pub zero: u8,
    pub tensor_parallel: u32,
    pub gpus: u32,
}

/// Which projections have an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Targets {
    /// Queries and values, as LoRA was published and as PEFT does unless told otherwise.
    #[default]
    QueryValue,
    Attention,
    /// Every linear layer, as QLoRA was published.
    All,
}

impl Targets {
    pub const ALL: &[Self] = &[Self::QueryValue, Self::Attention, Self::All];

    pub const fn word(self) -> &'static str {
        match self {
            Self::QueryValue => "qv",
            Self::Attention => "attention",
            Self::All => "all",
        }
    }
}

impl Training {
    pub fn of(model: &Model, gpus: u32) -> Self {
        Self {
            method: model.method,
            lora_rank: model.lora_rank,
            lora_targets: Targets::default(),
            precision: model.precision,
            optimizer: model.optimizer,
            batch: model.batch,
            sequence: model.sequence,
            grad_checkpoint: model.grad_checkpoint,
            flash: model.flash,
            zero: model.zero,
            tensor_parallel: model.tensor_parallel,
            gpus,
        }
    }

    /// GPUs that share each layer.
    fn split(&self) -> f64 {
        f64::from(self.tensor_parallel.max(1))
    }

    /// GPUs, or groups of them, that hold the same and see different samples.
    fn replicas(&self) -> f64 {
        (f64::from(self.gpus.max(1)) / self.split()).max(1.0)
    }

    fn is_mixed(&self) -> bool {
        matches!(self.precision, Precision::Bf16Mixed | Precision::Fp16Mixed)
    }

    /// Bytes of a number that is computed with.
    fn width(&self) -> f64 {
        match self.precision {
            Precision::Fp32 => 4.0,
            _ => 2.0,
        }
    }

    /// Bytes of a number on the path between layers: autocast adds up in fp32.
    fn residual_width(&self) -> f64 {
        if self.is_mixed() { 4.0 } else { self.width() }
    }

    fn tokens(&self) -> f64 {
        f64::from(self.batch) * f64::from(self.sequence)
    }
}

/// Memory of one GPU at the worst moment of a step, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    pub weights: Bytes,
    pub gradients: Bytes,
    pub optimizer: Bytes,
    /// What the layers keep for their gradients, and the gradients under way where they outweigh the logits, for both are never
    /// there at once.
    pub activations: Bytes,
    /// What the loss keeps: logits, their probabilities and their gradient.
    pub logits: Bytes,
    /// Of communication and of libraries.
    pub buffers: Bytes,
    /// Held by the allocator and used by no one.
    pub fragmentation: Bytes,
    /// Held by the driver, out of the allocator's sight. Of a GPU that is not known; [`Gpu::context`] knows better.
    pub context: Bytes,
}

impl Estimate {
    /// What `torch.cuda.max_memory_allocated` shows.
    pub fn allocated(&self) -> Bytes {
        let parts = [
            self.weights,
            self.gradients,
            self.optimizer,
            self.activations,
            self.logits,
            self.buffers,
        ];
        Bytes(parts.iter().fold(0, |sum, part| sum.saturating_add(part.0)))
    }

    /// What `torch.cuda.max_memory_reserved` shows.
    pub fn reserved(&self) -> Bytes {
        Bytes(self.allocated().0.saturating_add(self.fragmentation.0))
    }

    /// What `nvidia-smi` shows, and what must fit.
    pub fn total(&self) -> Bytes {
        Bytes(self.reserved().0.saturating_add(self.context.0))
    }

    /// The same on a GPU that is known.
    pub fn on(mut self, gpu: &Gpu, training: &Training) -> Self {
        self.context = Bytes(gpu.context.0 + communication(training).0);
        self
    }
}

/// Reserved beyond what is allocated: blocks that were cut for one tensor and fit no other. 3 to 10 % is what is commonly seen; a model
/// that fits by less than this does not fit.
const FRAGMENTATION: f64 = 0.08;

/// A CUDA context with the kernels of PyTorch loaded all at once, as before CUDA 11.7 and on GPUs older than Ampere (1343 MiB on a V100).
pub(crate) const CONTEXT: Bytes = Bytes::mib(1343);

/// What NCCL takes for its channels, outside of the allocator.
const COMMUNICATION: Bytes = Bytes::mib(256);

fn communication(training: &Training) -> Bytes {
    if training.gpus > 1 {
        COMMUNICATION
    } else {
        Bytes(0)
    }
}

/// What one GPU holds at the worst moment of a step.
pub fn estimate(shape: &Shape, training: &Training) -> Estimate {
    let states = states::held(shape, training);
    let kept = layer::kept(shape, training);
    let mut estimate = Estimate {
        weights: rounded(states.weights),
        gradients: rounded(states.gradients),
        optimizer: rounded(states.optimizer),
        activations: rounded(kept.activations),
        logits: rounded(kept.logits),
        buffers: rounded(states.buffers),
        fragmentation: Bytes(0),
        context: Bytes(CONTEXT.0 + communication(training).0),
    };
    estimate.fragmentation = rounded(estimate.allocated().0 as f64 * FRAGMENTATION);
    estimate
}

fn rounded(bytes: f64) -> Bytes {
    Bytes(bytes.round() as u64)
}

#[cfg(test)]
mod tests;

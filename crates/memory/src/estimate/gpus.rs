//! GPUs that are common, and whether a training fits them.

use std::borrow::Cow;
use std::fmt;

use stoke_api::gpu_name::{gigabytes, words};
use stoke_api::trainjob::Model;
use stoke_api::{Bytes, GpuMilli, GpuRequest};

use super::changes::{self, Change};
use super::{CONTEXT, Estimate, Shape, Training, estimate};

/// A kind of GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// As `gpuTypes` has it: `a100-80g`.
    pub name: Cow<'static, str>,
    /// All of it, as the driver counts.
    pub memory: Bytes,
    /// What the driver keeps of it for a process.
    pub context: Bytes,
}

/// From Ampere on, kernels are loaded when they are first used.
const LAZY_CONTEXT: Bytes = Bytes::mib(600);

const fn with(name: &'static str, memory_mib: u64, context: Bytes) -> Gpu {
    Gpu {
        name: Cow::Borrowed(name),
        memory: Bytes::mib(memory_mib),
        context,
    }
}

const fn new(name: &'static str, memory_mib: u64) -> Gpu {
    with(name, memory_mib, LAZY_CONTEXT)
}

const fn old(name: &'static str, memory_mib: u64) -> Gpu {
    with(name, memory_mib, CONTEXT)
}

/// By memory. The figures are what `nvidia-smi` and `rocm-smi` show, which is less than what is sold.
const GPUS: &[Gpu] = &[
    old("t4-16g", 15_360),
    old("v100-16g", 16_384),
    new("l4-24g", 23_034),
    new("a10-24g", 23_028),
    new("rtx-3090-24g", 24_576),
    new("rtx-4090-24g", 24_564),
    old("v100-32g", 32_768),
    new("rtx-5090-32g", 32_607),
    new("a100-40g", 40_960),
    new("l40s-48g", 46_068),
    new("a6000-48g", 49_140),
    new("a100-80g", 81_920),
    new("h100-80g", 81_559),
    new("h100-94g", 95_830),
    new("h200-141g", 143_771),
    new("b200-180g", 183_359),
    new("mi300x-192g", 196_592),
];

/// The common ones, smallest first.
pub fn gpus() -> &'static [Gpu] {
    GPUS
}

/// Those of a type, as people write it: `a100` is both of them, `NVIDIA-A100-SXM4-80GB` one.
pub fn gpu(asked: &str) -> Vec<Gpu> {
    let asked = words(asked);
    if asked.is_empty() {
        return Vec::new();
    }
    let within = |part: &[String], whole: &[String]| part.iter().all(|word| whole.contains(word));
    let found = GPUS.iter().filter(|gpu| {
        let known = words(&gpu.name);
        within(&asked, &known) || within(&known, &asked)
    });
    found.cloned().collect()
}

impl Gpu {
    /// One that was found on a node.
    pub fn measured(product: &str, memory: Bytes) -> Self {
        let product_words = words(product);
        let is_modern = GPUS.iter().any(|gpu| {
            gpu.context == LAZY_CONTEXT
                && words(&gpu.name).iter().any(|word| {
                    gigabytes(word).is_none() && word != "rtx" && product_words.contains(word)
                })
        });
        Self {
            name: product.to_owned().into(),
            memory,
            context: if is_modern { LAZY_CONTEXT } else { CONTEXT },
        }
    }

    /// The part of it that one worker is given.
    fn part(&self, request: &GpuRequest) -> Option<Self> {
        let (memory, name) = match request {
            GpuRequest::None => return None,
            GpuRequest::Whole(_) => return Some(self.clone()),
            GpuRequest::Fraction(GpuMilli(milli)) => {
                let part = u128::from(self.memory.0) * u128::from(*milli) / 1000;
                (Bytes(part as u64), format!("{request} of {}", self.name))
            }
            GpuRequest::Mig(profile) => {
                let size = profile.split('.').next_back().and_then(gigabytes)?;
                let name = format!("{profile} of {}", self.name);
                (Bytes::gib(size).min(self.memory), name)
            }
        };
        Some(Self {
            name: name.into(),
            memory,
            context: self.context,
        })
    }
}

/// Does it fit?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Fits,
    /// By less than the estimate may be wrong.
    Tight,
    TooBig,
}

/// Half of all estimates are nearer than this to what was measured.
const ERROR: f64 = 0.1;

impl Verdict {
    pub fn of(needs: Bytes, has: Bytes) -> Self {
        let (needs, has) = (needs.0 as f64, has.0 as f64);
        if needs <= has {
            Self::Fits
        } else if needs * (1.0 - ERROR) <= has {
            Self::Tight
        } else {
            Self::TooBig
        }
    }

    pub fn on(gpu: &Gpu, estimate: Estimate, training: &Training) -> Self {
        Self::of(estimate.on(gpu, training).total(), gpu.memory)
    }
}

/// A job whose model no GPU that it may run on can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooBig {
    /// Of each GPU.
    pub needs: Bytes,
    /// The largest it may run on.
    pub gpu: Gpu,
    /// What would make it fit there, the least harm first; none where nothing known would.
    pub changes: Vec<Change>,
}

impl fmt::Display for TooBig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needs, gpu, .. } = self;
        let (needs, has) = (needs.human(), gpu.memory.human());
        write!(
            f,
            "the model needs about {needs} of each GPU, and {} has {has}",
            gpu.name
        )
    }
}

impl TooBig {
    /// What to do about it, as one sentence.
    pub fn help(&self) -> String {
        match changes::sentence(&self.changes) {
            Some(changes) => format!("it would fit with {changes}"),
            None => "it takes larger GPUs, a smaller model, or layers shared among GPUs (tensorParallel)".to_owned(),
        }
    }
}

/// Can a job's model be held by at least one of the GPUs it may run on? Where nothing is known of them, or of the model, it is not said
/// to be too big; nor where it is by less than the estimate may be wrong.
pub fn fits(model: &Model, workers: u32, request: &GpuRequest, gpus: &[Gpu]) -> Result<(), TooBig> {
    let Ok(shape) = Shape::of(model) else {
        return Ok(());
    };
    let training = Training::of(model, workers.saturating_mul(request.whole().max(1)));
    let needed = estimate(&shape, &training);
    let parts = gpus.iter().filter_map(|gpu| gpu.part(request));
    let Some(largest) = parts.max_by_key(|gpu| gpu.memory.0.saturating_sub(gpu.context.0)) else {
        return Ok(());
    };
    if Verdict::on(&largest, needed, &training) < Verdict::TooBig {
        return Ok(());
    }
    // Parts of GPUs cannot be joined.
    let is_whole = matches!(request, GpuRequest::Whole(_));
    let spread = || changes::spread(&shape, &training, &largest).filter(|_| is_whole);
    let changes = changes::changes(&shape, &training, &largest).or_else(spread);
    Err(TooBig {
        needs: needed.on(&largest, &training).total(),
        changes: changes.unwrap_or_default(),
        gpu: largest,
    })
}

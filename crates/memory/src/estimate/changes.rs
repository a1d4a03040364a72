//! What makes a training fit that does not, at the least harm.

use std::fmt;

use stoke_api::trainjob::{Method, Optimizer, Precision};

use super::{Gpu, Shape, Training, Verdict, estimate};

/// One thing done otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Flash,
    /// The rest of the batch is made up by gradient accumulation.
    Batch(u32),
    Zero(u8),
    GradCheckpoint,
    Optimizer(Optimizer),
    Precision(Precision),
    Method(Method),
    Gpus(u32),
}

impl Change {
    pub(super) fn apply(self, training: &mut Training) {
        match self {
            Self::Flash => training.flash = true,
            Self::Batch(batch) => training.batch = batch,
            Self::Zero(stage) => training.zero = stage,
            Self::GradCheckpoint => training.grad_checkpoint = true,
            Self::Optimizer(optimizer) => training.optimizer = optimizer,
            Self::Precision(precision) => training.precision = precision,
            Self::Method(method) => training.method = method,
            Self::Gpus(gpus) => training.gpus = gpus,
        }
    }

    /// As `stoke estimate` takes it.
    pub fn flag(self) -> String {
        match self {
            Self::Flash => "--flash".to_owned(),
            Self::Batch(batch) => format!("--batch {batch}"),
            Self::Zero(stage) => format!("--zero {stage}"),
            Self::GradCheckpoint => "--grad-checkpoint".to_owned(),
            Self::Optimizer(optimizer) => format!("--optimizer {optimizer}"),
            Self::Precision(precision) => format!("--precision {precision}"),
            Self::Method(method) => format!("--method {method}"),
            Self::Gpus(gpus) => format!("--gpus {gpus}"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flash => f.write_str("flash attention"),
            Self::Batch(batch) => write!(f, "a micro-batch of {batch}"),
            Self::Zero(stage) => write!(f, "ZeRO stage {stage}"),
            Self::GradCheckpoint => f.write_str("gradient checkpointing"),
            Self::Optimizer(optimizer) => write!(f, "{optimizer}"),
            Self::Precision(precision) => write!(f, "{precision}"),
            Self::Method(method) => write!(f, "{method}"),
            Self::Gpus(gpus) => write!(f, "{gpus} GPUs"),
        }
    }
}

/// `a, b and c`; nothing of nothing.
pub fn sentence(changes: &[Change]) -> Option<String> {
    let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let (last, rest) = words.split_last()?;
    Some(if rest.is_empty() {
        last.clone()
    } else {
        format!("{} and {last}", rest.join(", "))
    })
}

/// The least harmful changes with which the training fits the GPU, on as many GPUs; none where it already fits, `None` where no change
/// known here is enough.
pub fn changes(shape: &Shape, training: &Training, gpu: &Gpu) -> Option<Vec<Change>> {
    // The most harmful first: what is learned matters more than how fast.
    let ladders = [
        methods(training),
        precisions(training),
        optimizers(training),
        ladder((!training.grad_checkpoint).then_some(Change::GradCheckpoint)),
        batches(training),
        stages(training),
        ladder((!training.flash).then_some(Change::Flash)),
    ];
    let mut chosen = first_enough(&ladders, &mut Vec::new(), &|changes| {
        is_enough(shape, training, changes, gpu)
    })?;
    chosen.reverse();
    Some(chosen)
}

/// What could be done instead of what was asked for, the nearest to it first.
type Ladder = Vec<Option<Change>>;

fn ladder(changes: impl IntoIterator<Item = Change>) -> Ladder {
    std::iter::once(None)
        .chain(changes.into_iter().map(Some))
        .collect()
}

/// The first choice of one rung from each ladder that is enough: the last ladder is climbed to its end before the one above it is
/// climbed by a rung.
fn first_enough(
    ladders: &[Ladder],
    chosen: &mut Vec<Change>,
    is_enough: &impl Fn(&[Change]) -> bool,
) -> Option<Vec<Change>> {
    let Some((ladder, below)) = ladders.split_first() else {
        return is_enough(chosen).then(|| chosen.clone());
    };
    for rung in ladder {
        chosen.extend(rung);
        let found = first_enough(below, chosen, is_enough);
        if found.is_some() {
            return found;
        }
        if rung.is_some() {
            chosen.pop();
        }
    }
    None
}

/// How many GPUs would do with everything sharded among them, and nothing learned otherwise.
pub fn spread(shape: &Shape, training: &Training, gpu: &Gpu) -> Option<Vec<Change>> {
    const GPUS_MAX: u32 = 1024;
    let doubled = std::iter::successors(Some(training.gpus.max(1)), |gpus| gpus.checked_mul(2));
    for gpus in doubled.skip(1).take_while(|gpus| *gpus <= GPUS_MAX) {
        for checkpoint in [false, true] {
            if checkpoint && training.grad_checkpoint {
                continue;
            }
            let all = [
                Some(Change::Gpus(gpus)),
                (training.zero < 3).then_some(Change::Zero(3)),
                checkpoint.then_some(Change::GradCheckpoint),
            ];
            let all: Vec<Change> = all.into_iter().flatten().collect();
            if is_enough(shape, training, &all, gpu) {
                return Some(all);
            }
        }
    }
    None
}

fn is_enough(shape: &Shape, training: &Training, changes: &[Change], gpu: &Gpu) -> bool {
    let mut changed = *training;
    for change in changes {
        change.apply(&mut changed);
    }
    Verdict::on(gpu, estimate(shape, &changed), &changed) == Verdict::Fits
}

fn methods(training: &Training) -> Ladder {
    ladder(match training.method {
        Method::Full => vec![Change::Method(Method::Lora), Change::Method(Method::Qlora)],
        Method::Lora => vec![Change::Method(Method::Qlora)],
        Method::Qlora => Vec::new(),
    })
}

fn precisions(training: &Training) -> Ladder {
    ladder(match training.precision {
        Precision::Fp32 => vec![
            Change::Precision(Precision::Bf16Mixed),
            Change::Precision(Precision::Bf16),
        ],
        Precision::Bf16Mixed | Precision::Fp16Mixed => vec![Change::Precision(Precision::Bf16)],
        Precision::Bf16 | Precision::Fp16 => Vec::new(),
    })
}

fn optimizers(training: &Training) -> Ladder {
    ladder(match training.optimizer {
        Optimizer::Adamw => vec![Change::Optimizer(Optimizer::Adam8bit)],
        _ => Vec::new(),
    })
}

fn stages(training: &Training) -> Ladder {
    let is_alone = training.replicas() <= 1.0;
    let first = if is_alone {
        4
    } else {
        training.zero.min(3) + 1
    };
    ladder((first..=3).map(Change::Zero))
}

fn batches(training: &Training) -> Ladder {
    let halved = std::iter::successors(Some(training.batch), |batch| {
        (*batch > 1).then_some(batch / 2)
    });
    ladder(halved.skip(1).map(Change::Batch))
}

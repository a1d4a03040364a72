//! `stoke estimate`: what a training needs of each GPU, before it runs.

mod report;
mod source;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use stoke_api::Parameters;
use stoke_api::trainjob::{Method, Model, Optimizer, Precision};
use stoke_memory::estimate::{self, Gpu, Head, Shape, Targets, Training};

use crate::failure::{Exit, Failure};
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke estimate --params 7B
      by its size alone; a usual shape is assumed
  stoke estimate --config config.json --method lora --precision bf16 --seq 4096 --flash
      by the config.json of Hugging Face
  stoke estimate --safetensors model.safetensors --gpu a100,h100
      by the header of its weights, for these GPUs only
  stoke estimate --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --intermediate 14336 \\
      --gated-mlp --vocab 128256 --seq 8192 --grad-checkpoint --flash --zero 3 --gpus 8
      by its shape, sharded over 8 GPUs
  stoke estimate --check measured.csv
      how near estimates come to what was measured

Counted are weights, gradients and what the optimizer remembers, by method, precision and stage;
what each layer keeps of each token; logits and their gradient; buffers; what the allocator
wastes; the CUDA context. TOTAL is what nvidia-smi shows. Estimates are mostly within 10 % of what
was measured; what fits or not by less than that is called tight. A flag that is said twice
counts as it was said last, so that flags under WITH can be added to the same line.";

/// Estimate the GPU memory of a training: where it goes, which GPUs hold it, and what would make it fit
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true, args_override_self = true)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    training: TrainingArgs,
    /// Only these GPU types, such as a100-80g or h100 [default: all common ones]
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Compare estimates with the measurements in a CSV file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "safetensors", "gpu"])]
    check: Option<PathBuf>,
    /// Print figures for programs
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model")]
struct ModelArgs {
    /// A config.json of Hugging Face; flags change what it says
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A safetensors file, or the index.json of several; only headers are read
    #[arg(long, value_name = "FILE")]
    safetensors: Option<PathBuf>,
    /// Parameters of the whole model: 124M, 8.03B [default: counted]
    #[arg(long, value_name = "N")]
    params: Option<Parameters>,
    /// Transformer layers
    #[arg(long, value_name = "N", value_parser = count(10_000))]
    layers: Option<u32>,
    /// Width of a layer
    #[arg(long, value_name = "N", value_parser = count(1_000_000))]
    hidden: Option<u32>,
    /// Attention heads
    #[arg(long, value_name = "N", value_parser = count(10_000))]
    heads: Option<u32>,
    /// Heads of keys and values, where they are shared [default: all]
    #[arg(long, value_name = "N", value_parser = count(10_000))]
    kv_heads: Option<u32>,
    /// Width of one head [default: hidden / heads]
    #[arg(long, value_name = "N", value_parser = count(1_000_000))]
    head_dim: Option<u32>,
    /// Width of the layer between [default: what is usual]
    #[arg(long, value_name = "N", value_parser = count(10_000_000))]
    intermediate: Option<u32>,
    /// The layer between has a gate, as in Llama, Mistral, Qwen and Gemma
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    gated_mlp: Option<bool>,
    /// Words the model knows [default: 32000]
    #[arg(long, value_name = "N", value_parser = count(100_000_000))]
    vocab: Option<u32>,
    /// What the loss is taken over: every token's next word, or a few classes [default: language]
    #[arg(long, value_name = "WHAT", value_enum)]
    head: Option<HeadArg>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Training")]
struct TrainingArgs {
    /// Which parameters learn
    #[arg(long, default_value_t = Method::Full, value_parser = one_of(Method::ALL, Method::word))]
    method: Method,
    /// Rank of the adapters of lora and qlora
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count(65_536))]
    lora_rank: u32,
    /// What has adapters: queries and values, all of attention, or all linear layers
    #[arg(long, value_name = "WHICH", default_value = "qv", value_parser = one_of(Targets::ALL, Targets::word))]
    lora_targets: Targets,
    /// Of weights and of what is computed; the mixed ones keep weights in fp32
    #[arg(long, default_value_t = Precision::Bf16Mixed, value_parser = one_of(Precision::ALL, Precision::word))]
    precision: Precision,
    /// Who changes the weights, and what it remembers of each
    #[arg(long, default_value_t = Optimizer::Adamw, value_parser = one_of(Optimizer::ALL, Optimizer::word))]
    optimizer: Optimizer,
    /// Samples that one GPU holds at once: the micro-batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1_000_000))]
    batch: u32,
    /// Tokens of one sample
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = count(100_000_000))]
    seq: u32,
    /// Activations are computed again instead of kept
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    grad_checkpoint: bool,
    /// Attention never writes its scores out: flash attention, and what PyTorch 2 does by itself (SDPA)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    flash: Option<bool>,
    /// ZeRO stage: 1 shards the optimizer, 2 gradients too, 3 weights too
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u8).range(0..=3))]
    zero: Option<u8>,
    /// Shard everything, as ZeRO stage 3 does
    #[arg(long, conflicts_with = "zero")]
    fsdp: bool,
    /// GPUs that train together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1_000_000))]
    gpus: u32,
    /// GPUs that share each layer
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1024))]
    tensor_parallel: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum HeadArg {
    Language,
    Classes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Json,
}

fn count(most: i64) -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=most)
}

fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let words = all.iter().map(move |value| word(*value));
    PossibleValuesParser::new(words).try_map(move |text| {
        let found = all.iter().find(|value| word(**value) == text);
        found.copied().ok_or("not one of them")
    })
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = terminal::stdout();
    if let Some(path) = &args.check {
        let rows = source::measured(path)?;
        match args.output {
            Some(Output::Json) => writeln!(out, "{}", report::accuracy_json(&rows))?,
            None => write!(out, "{}", report::accuracy_text(&rows))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let gpus = args.gpus()?;
    let training = args.training()?;
    let report = report::Report::new(args.shape()?, training, gpus);
    match args.output {
        Some(Output::Json) => writeln!(out, "{}", report.json())?,
        None => write!(out, "{}", report.text())?,
    }
    if args.training.flash.is_none() && args.output.is_none() {
        terminal::talk(format_args!(
            "{}",
            terminal::hint(
                "attention is taken to write its scores out; if yours does not (PyTorch 2, flash attention), add --flash"
            )
        ));
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn gpus(&self) -> anyhow::Result<Vec<Gpu>> {
        if self.gpu.is_empty() {
            return Ok(estimate::gpus().to_vec());
        }
        let mut found: Vec<Gpu> = Vec::new();
        for asked in &self.gpu {
            let of_type = estimate::gpu(asked);
            if of_type.is_empty() {
                let known: Vec<&str> = estimate::gpus().iter().map(|gpu| &*gpu.name).collect();
                let what = format!("no GPU type {asked:?} is known");
                let hint = format!("one of these: {}", known.join(", "));
                return Err(Failure::new(Exit::Usage, what).hint(hint).into());
            }
            for gpu in of_type {
                if !found.contains(&gpu) {
                    found.push(gpu);
                }
            }
        }
        Ok(found)
    }

    fn training(&self) -> anyhow::Result<Training> {
        let said = &self.training;
        let training = Training {
            method: said.method,
            lora_rank: said.lora_rank,
            lora_targets: said.lora_targets,
            precision: said.precision,
            optimizer: said.optimizer,
            batch: said.batch,
            sequence: said.seq,
            grad_checkpoint: said.grad_checkpoint,
            flash: said.flash.unwrap_or(false),
            zero: said.zero.unwrap_or(if said.fsdp { 3 } else { 0 }),
            tensor_parallel: said.tensor_parallel,
            gpus: said.gpus,
        };
        if !training.gpus.is_multiple_of(training.tensor_parallel) {
            let Training {
                gpus,
                tensor_parallel,
                ..
            } = training;
            let what = format!("{gpus} GPUs cannot share layers in groups of {tensor_parallel}");
            return Err(Failure::new(Exit::Usage, what)
                .hint(format!(
                    "--gpus {}",
                    gpus.div_ceil(tensor_parallel) * tensor_parallel
                ))
                .into());
        }
        Ok(training)
    }

    fn shape(&self) -> anyhow::Result<Shape> {
        let said = &self.model;
        let (shape, params) = match (&said.config, &said.safetensors) {
            (None, None) => return self.shape_of_flags(),
            (Some(config), None) => (source::config(config)?, None),
            (None, Some(weights)) => {
                let tensors = source::tensors(weights)?;
                let shape = source::shape(weights, &tensors)?;
                let params = shape.params;
                (shape, Some(params))
            }
            (Some(config), Some(weights)) => {
                let tensors = source::tensors(weights)?;
                (
                    source::config(config)?,
                    Some(source::params(weights, &tensors)?),
                )
            }
        };
        let params = said.params.map(|Parameters(count)| count).or(params);
        let shape = said.over(shape).counted(params);
        shape.map_err(|error| wrong_shape(&error))
    }

    fn shape_of_flags(&self) -> anyhow::Result<Shape> {
        let said = &self.model;
        let is_size_only = said.layers.is_none() && said.hidden.is_none();
        let defaults = Model::default();
        let model = Model {
            params: said.params,
            layers: said.layers,
            hidden: said.hidden,
            heads: said.heads,
            kv_heads: said.kv_heads,
            head_dim: said.head_dim,
            intermediate: said.intermediate,
            // Of a model that is known by its size alone the usual is assumed.
            gated_mlp: said.gated_mlp.unwrap_or(is_size_only),
            vocab: said.vocab.unwrap_or(defaults.vocab),
            ..defaults
        };
        let mut shape = Shape::of(&model).map_err(|error| wrong_shape(&error))?;
        if let Some(head) = said.head {
            shape.head = head.into();
        }
        Ok(shape)
    }
}

fn wrong_shape(error: &estimate::ShapeError) -> anyhow::Error {
    let hint = "stoke estimate --params 8B, or --layers 32 --hidden 4096 --heads 32; more: stoke estimate --help";
    Failure::new(Exit::Usage, error.to_string())
        .hint(hint)
        .into()
}

impl ModelArgs {
    /// What a file says, with what flags say instead.
    fn over(&self, mut shape: Shape) -> Shape {
        let set = |field: &mut u64, said: Option<u32>| {
            if let Some(said) = said {
                *field = u64::from(said);
            }
        };
        set(&mut shape.layers, self.layers);
        set(&mut shape.hidden, self.hidden);
        set(&mut shape.intermediate, self.intermediate);
        set(&mut shape.vocab, self.vocab);
        if let Some(heads) = self.heads.map(u64::from) {
            // As wide together as they were, and as many to a group.
            let (query, groups) = (
                shape.heads * shape.head_dim,
                shape.heads / shape.kv_heads.max(1),
            );
            shape.heads = heads;
            shape.head_dim = (query / heads.max(1)).max(1);
            shape.kv_heads = (heads / groups.max(1)).max(1);
        }
        set(&mut shape.head_dim, self.head_dim);
        set(&mut shape.kv_heads, self.kv_heads);
        shape.gated_mlp = self.gated_mlp.unwrap_or(shape.gated_mlp);
        shape.head = self.head.map_or(shape.head, Head::from);
        shape
    }
}

impl From<HeadArg> for Head {
    fn from(head: HeadArg) -> Self {
        match head {
            HeadArg::Language => Self::Language,
            HeadArg::Classes => Self::Classes,
        }
    }
}

#[cfg(test)]
mod tests;

//! What a job trains and how, as far as GPU memory hangs on it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Parameters;

/// A transformer and its training. `params` alone will do: a usual shape of that size is then assumed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Parameters of the whole model: `8.03B`, `124M`. Absent: counted from the shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Parameters>,
    /// Transformer layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub layers: Option<u32>,
    /// Width of a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub hidden: Option<u32>,
    /// Attention heads. Absent: of 128 each, in small models of 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub heads: Option<u32>,
    /// Heads of keys and values, where they are shared. Absent: as many as `heads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub kv_heads: Option<u32>,
    /// Width of one head. Absent: an equal part of `hidden`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub head_dim: Option<u32>,
    /// Width of the layer between. Absent: what is usual beside `hidden`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub intermediate: Option<u32>,
    /// The layer between has a gate, as in Llama, Mistral, Qwen and Gemma.
    #[serde(default = "yes")]
    pub gated_mlp: bool,
    /// Words the model knows.
    #[serde(default = "usual_vocab")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub vocab: u32,

    /// `full` trains every parameter; `lora` small adapters beside frozen ones; `qlora` the same, the frozen ones in four bits.
    #[serde(default)]
    pub method: Method,
    /// Rank of the adapters.
    #[serde(default = "eight")]
    #[schemars(range(min = 1, max = 65_536))]
    pub lora_rank: u32,
    /// Of weights and of what is computed; the mixed ones keep weights in fp32 and compute in sixteen bits.
    #[serde(default)]
    pub precision: Precision,
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Samples that one GPU holds at once: the micro-batch.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub batch: u32,
    /// Tokens of one sample.
    #[serde(default = "usual_sequence")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub sequence: u32,
    /// Activations are computed again instead of kept.
    #[serde(default)]
    pub grad_checkpoint: bool,
    /// Attention that never writes its scores out: flash attention, and what PyTorch 2 does by itself.
    #[serde(default = "yes")]
    pub flash: bool,
    /// ZeRO stage: 1 shards the optimizer, 2 gradients too, 3 weights too, as FSDP does.
    #[serde(default)]
    #[schemars(range(min = 0, max = 3))]
    pub zero: u8,
    /// GPUs that share each layer.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub tensor_parallel: u32,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn eight() -> u32 {
    8
}

fn usual_vocab() -> u32 {
    32_000
}

fn usual_sequence() -> u32 {
    2048
}

impl Default for Model {
    fn default() -> Self {
        Self {
            params: None,
            layers: None,
            hidden: None,
            heads: None,
            kv_heads: None,
            head_dim: None,
            intermediate: None,
            gated_mlp: yes(),
            vocab: usual_vocab(),
            method: Method::default(),
            lora_rank: eight(),
            precision: Precision::default(),
            optimizer: Optimizer::default(),
            batch: one(),
            sequence: usual_sequence(),
            grad_checkpoint: false,
            flash: yes(),
            zero: 0,
            tensor_parallel: one(),
        }
    }
}

/// Which parameters are trained.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    #[default]
    Full,
    Lora,
    Qlora,
}

/// What numbers are kept and computed in.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    Fp32,
    Bf16,
    Fp16,
    #[default]
    Bf16Mixed,
    Fp16Mixed,
}

/// Who changes the weights, and what it remembers of each.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// Two moments.
    #[default]
    Adamw,
    /// Two moments in eight bits each.
    Adam8bit,
    /// Sums of rows and columns instead of moments.
    Adafactor,
    /// One moment.
    Lion,
    /// One moment.
    Momentum,
    /// Nothing.
    Sgd,
}

macro_rules! words {
    ($type:ty: $($variant:ident $word:literal),*) => {
        impl $type {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// As it is written in YAML and on command lines.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words!(Method: Full "full", Lora "lora", Qlora "qlora");
words!(Precision: Fp32 "fp32", Bf16 "bf16", Fp16 "fp16", Bf16Mixed "bf16-mixed", Fp16Mixed "fp16-mixed");
words!(Optimizer: Adamw "adamw", Adam8bit "adam8bit", Adafactor "adafactor", Lion "lion", Momentum "momentum", Sgd "sgd");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_the_same_everywhere() {
        fn check<T: Serialize + Copy>(all: &[T], word: fn(T) -> &'static str) {
            for value in all {
                assert_eq!(serde_json::to_value(value).unwrap(), word(*value));
            }
        }
        check(Method::ALL, Method::word);
        check(Precision::ALL, Precision::word);
        check(Optimizer::ALL, Optimizer::word);
    }

    #[test]
    fn what_is_left_out_is_what_default_says() {
        let read: Model = serde_json::from_str("{}").unwrap();
        assert_eq!(read, Model::default());
    }
}

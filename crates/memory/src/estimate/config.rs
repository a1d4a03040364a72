//! A shape as Hugging Face's `config.json` tells it, in any of the words its families use.

use serde_json::Value;

use super::shape::usual_heads;
use super::{Head, Norm, Shape, ShapeError};

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("it is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("it has no {what}; looked for {}", keys.join(", "))]
    Missing {
        what: &'static str,
        keys: &'static [&'static str],
    },
    #[error("it describes no model")]
    Shape(#[from] ShapeError),
}

const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model", "dim"];
const LAYERS: &[&str] = &[
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "encoder_layers",
];
const DECODER_LAYERS: &[&str] = &["num_decoder_layers", "decoder_layers"];
const HEADS: &[&str] = &[
    "num_attention_heads",
    "n_head",
    "num_heads",
    "n_heads",
    "encoder_attention_heads",
];
const KV_HEADS: &[&str] = &["num_key_value_heads", "num_kv_heads", "n_head_kv"];
const HEAD_DIM: &[&str] = &["head_dim", "d_kv"];
const INTERMEDIATE: &[&str] = &[
    "moe_intermediate_size",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "d_ff",
    "ffn_hidden_size",
    "hidden_dim",
    "encoder_ffn_dim",
];
const VOCAB: &[&str] = &["vocab_size"];
const ACTIVATION: &[&str] = &[
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "feed_forward_proj",
];
const DROPOUT: &[&str] = &[
    "hidden_dropout_prob",
    "resid_pdrop",
    "hidden_dropout",
    "dropout",
    "dropout_rate",
];
const EXPERTS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts"];
const EXPERTS_ACTIVE: &[&str] = &["num_experts_per_tok", "num_experts_per_token"];

struct Config<'a>(&'a Value);

impl<'a> Config<'a> {
    fn number(&self, keys: &[&str]) -> Option<u64> {
        let found = keys.iter().filter_map(|key| self.0.get(key)?.as_u64());
        found.into_iter().find(|number| *number > 0)
    }

    fn need(&self, what: &'static str, keys: &'static [&'static str]) -> Result<u64, ConfigError> {
        self.number(keys).ok_or(ConfigError::Missing { what, keys })
    }

    fn text(&self, keys: &[&str]) -> &'a str {
        let found = keys.iter().filter_map(|key| self.0.get(key)?.as_str());
        found.into_iter().next().unwrap_or_default()
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    fn kv_heads(&self, heads: u64) -> u64 {
        // Falcon's first models share one head, and its `num_kv_heads` means nothing unless they are of the new kind.
        let is_shared = self.flag("multi_query") == Some(true)
            && self.flag("new_decoder_architecture") != Some(true);
        if is_shared {
            return 1;
        }
        self.number(KV_HEADS).unwrap_or(heads)
    }

    fn head(&self) -> Head {
        let architecture = self.0.get("architectures").and_then(|all| all.get(0));
        let name = architecture.and_then(Value::as_str).unwrap_or_default();
        let says_words = [
            "CausalLM",
            "LMHead",
            "MaskedLM",
            "ConditionalGeneration",
            "PreTraining",
        ];
        if name.is_empty() || says_words.iter().any(|part| name.contains(part)) {
            Head::Language
        } else {
            Head::Classes
        }
    }
}

/// How the `model_type` of families begins whose MLP has a gate. A config that someone wrote by hand may say no more than that.
const GATED_FAMILIES: [&str; 12] = [
    "llama", "mistral", "mixtral", "qwen", "gemma", "phi3", "olmo", "deepseek", "internlm",
    "cohere", "granite", "smollm",
];

impl Shape {
    /// Reads `config.json`. Its parameters are counted.
    pub fn from_config(text: &str) -> Result<Self, ConfigError> {
        let whole: Value = serde_json::from_str(text).map_err(ConfigError::NotJson)?;
        // Models that see or hear keep the part that reads in a config of its own.
        let reads = ["text_config", "llm_config", "language_config"];
        let inner = reads.iter().find_map(|key| whole.get(key));
        let config = match inner {
            Some(inner) if Config(&whole).number(HIDDEN).is_none() => Config(inner),
            _ => Config(&whole),
        };
        let hidden = config.need("hidden size", HIDDEN)?;
        let encoders = config.need("number of layers", LAYERS)?;
        let is_pair = config.flag("is_encoder_decoder") == Some(true);
        let decoders = if is_pair {
            config.number(DECODER_LAYERS).unwrap_or(encoders)
        } else {
            0
        };
        let heads = config.number(HEADS).unwrap_or_else(|| usual_heads(hidden));
        let activation = config.text(ACTIVATION);
        let is_rms =
            config.0.get("rms_norm_eps").is_some() || config.text(&["model_type"]).contains("t5");
        let family = config.text(&["model_type"]);
        // A family that gates its MLP is known by name, or says so, or uses SiLU, or has Llama's norm.
        let gated_mlp = GATED_FAMILIES.iter().any(|gated| family.starts_with(gated))
            || config.flag("is_gated_act").unwrap_or(false)
            || activation.starts_with("gated")
            || ["silu", "swish", "swiglu"].contains(&activation)
            || config.0.get("rms_norm_eps").is_some();
        let dropout = DROPOUT.iter().filter_map(|key| config.0.get(key)?.as_f64());
        let has_dropout = dropout.into_iter().any(|share| share > 0.0);
        let shape = Self {
            params: 0,
            layers: encoders.saturating_add(decoders),
            hidden,
            heads,
            kv_heads: config.kv_heads(heads),
            head_dim: config
                .number(HEAD_DIM)
                .unwrap_or_else(|| hidden / heads.max(1)),
            intermediate: config
                .number(INTERMEDIATE)
                .unwrap_or_else(|| hidden.saturating_mul(4)),
            gated_mlp,
            vocab: config.need("vocabulary", VOCAB)?,
            // The library's own default.
            is_tied: config.flag("tie_word_embeddings").unwrap_or(true),
            norm: if is_rms { Norm::Rms } else { Norm::Layer },
            has_dropout,
            has_eager_gelu: ["gelu_new", "gelu_fast", "gelu_python"].contains(&activation),
            head: Config(&whole).head(),
            cross_layers: decoders,
            experts: config.number(EXPERTS).unwrap_or(1),
            experts_active: config.number(EXPERTS_ACTIVE).unwrap_or(1),
        };
        Ok(shape.counted(None)?)
    }
}

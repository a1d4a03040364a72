//! A shape as the header of a safetensors file tells it: names, types and sizes of all tensors, before the first of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::shape::usual_heads;
use super::{Head, Norm, Shape, ShapeError};

/// Longer headers are none: a model of ten thousand tensors has one of a megabyte.
const HEADER_MAX: u64 = 64 << 20;
/// More shards than any model has.
const SHARDS_MAX: usize = 2000;

#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("it does not begin as a safetensors file does: its header would be of {0} bytes")]
    Length(u64),
    #[error("its header is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("its header describes no tensors")]
    Empty,
    #[error("its weights are packed into whole numbers, so their real count is not known")]
    Packed,
    #[error("none of its tensors looks like {0}")]
    Unknown(&'static str),
    #[error("{0:?} is no name of a file beside it")]
    ShardName(String),
    #[error("it names {0} files, more than any model has")]
    Shards(usize),
    #[error("its tensors describe no model")]
    Shape(#[from] ShapeError),
}

/// How long the header is that follows the first eight bytes.
pub fn header_length(first: [u8; 8]) -> Result<u64, HeaderError> {
    let length = u64::from_le_bytes(first);
    if (2..=HEADER_MAX).contains(&length) {
        Ok(length)
    } else {
        Err(HeaderError::Length(length))
    }
}

/// `model.safetensors.index.json`: the files a model is spread over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub files: BTreeSet<String>,
}

impl Index {
    pub fn parse(text: &str) -> Result<Self, HeaderError> {
        let index: Value = serde_json::from_str(text).map_err(HeaderError::NotJson)?;
        let map = index.get("weight_map").and_then(Value::as_object);
        let names = map.ok_or(HeaderError::Empty)?.values();
        let files: BTreeSet<String> = names.filter_map(Value::as_str).map(str::to_owned).collect();
        if files.is_empty() {
            return Err(HeaderError::Empty);
        }
        if files.len() > SHARDS_MAX {
            return Err(HeaderError::Shards(files.len()));
        }
        let is_beside =
            |name: &&String| !name.contains(['/', '\\']) && *name != ".." && *name != ".";
        match files.iter().find(|name| !is_beside(name)) {
            Some(name) => Err(HeaderError::ShardName(name.chars().take(64).collect())),
            None => Ok(Self { files }),
        }
    }
}

/// All tensors of a model, from one header or from those of all its files.
#[derive(Debug, Clone, Default)]
pub struct Tensors {
    sizes: BTreeMap<String, Vec<u64>>,
    params: u64,
    /// Of these, in types that only packed weights have.
    packed: u64,
}

impl Tensors {
    /// Adds what one file's header says.
    pub fn add(&mut self, header: &[u8]) -> Result<(), HeaderError> {
        let header: Map<String, Value> =
            serde_json::from_slice(header).map_err(HeaderError::NotJson)?;
        for (name, tensor) in header {
            let Some(sizes) = tensor.get("shape").and_then(Value::as_array) else {
                continue;
            };
            let sizes: Vec<u64> = sizes.iter().filter_map(Value::as_u64).collect();
            let count = sizes
                .iter()
                .fold(1_u64, |count, size| count.saturating_mul(*size));
            self.params = self.params.saturating_add(count);
            let dtype = tensor.get("dtype").and_then(Value::as_str);
            if dtype.is_some_and(|dtype| dtype.starts_with(['I', 'U'])) {
                self.packed = self.packed.saturating_add(count);
            }
            self.sizes.insert(name, sizes);
        }
        Ok(())
    }

    /// Parameters of all tensors.
    pub fn params(&self) -> Result<u64, HeaderError> {
        if self.packed > self.params / 10 {
            Err(HeaderError::Packed)
        } else if self.params == 0 {
            Err(HeaderError::Empty)
        } else {
            Ok(self.params)
        }
    }

    /// The shape, as far as sizes tell it: of heads they only tell how many share keys and values.
    pub fn shape(&self) -> Result<Shape, HeaderError> {
        let params = self.params()?;
        let (vocab, hidden) = self
            .matrix(EMBEDDING)
            .ok_or(HeaderError::Unknown("a table of words"))?;
        let layers = self.layers();
        if layers == 0 {
            return Err(HeaderError::Unknown("a numbered layer"));
        }
        let between = |names| self.other_side(names, hidden);
        let gate = between(GATE).or_else(|| Some(between(GATE_UP)? / 2));
        let intermediate = gate
            .or_else(|| between(UP))
            .ok_or(HeaderError::Unknown("the layer between"))?;
        let fused = between(FUSED);
        let query = between(QUERY).unwrap_or(hidden);
        let key = match (between(KEY), fused) {
            (Some(key), _) => key,
            (None, Some(all)) => all.saturating_sub(hidden) / 2,
            (None, None) => query,
        };
        let heads = usual_heads(query);
        let head_dim = query / heads.max(1);
        let kv_heads = (key / head_dim.max(1)).max(1);
        let has = |part: &str| self.sizes.keys().any(|name| name.contains(part));
        let is_norm_bias = |name: &String| {
            name.rsplit('.').next() == Some("bias")
                && ["norm", "Norm", "ln_"]
                    .iter()
                    .any(|part| name.contains(part))
        };
        let norm = if self.sizes.keys().any(is_norm_bias) {
            Norm::Layer
        } else {
            Norm::Rms
        };
        let is_classifier = (has("classifier.") || has("score.weight")) && !has("lm_head");
        let shape = Shape {
            params,
            layers,
            hidden,
            heads,
            kv_heads: if heads.is_multiple_of(kv_heads) {
                kv_heads
            } else {
                heads
            },
            head_dim,
            intermediate,
            gated_mlp: gate.is_some(),
            vocab,
            is_tied: self.matrix(OUTPUT).is_none(),
            norm,
            // Not in the file. Families with this norm mostly have it, and too much is the better error.
            has_dropout: norm == Norm::Layer,
            has_eager_gelu: has("attn.c_attn"),
            head: if is_classifier {
                Head::Classes
            } else {
                Head::Language
            },
            cross_layers: 0,
            experts: self.experts().max(1),
            // Two is what most mixtures use; the file does not say.
            experts_active: self.experts().clamp(1, 2),
        };
        Ok(shape.counted(Some(params))?)
    }

    /// Rows and columns of the first matrix that is named so.
    fn matrix(&self, names: &[&str]) -> Option<(u64, u64)> {
        self.sizes.iter().find_map(|(name, sizes)| {
            let is_named = name.ends_with("weight") && names.iter().any(|part| name.contains(part));
            match sizes.as_slice() {
                [rows, columns] if is_named => Some((*rows, *columns)),
                _ => None,
            }
        })
    }

    /// The side of a matrix that is not the model's width, whichever way the family writes it.
    fn other_side(&self, names: &[&str], hidden: u64) -> Option<u64> {
        let (rows, columns) = self.matrix(names)?;
        Some(if rows == hidden { columns } else { rows })
    }

    /// `model.layers.7.` is one, and so is `decoder.block.7.`; a number further in counts experts.
    fn layers(&self) -> u64 {
        let numbered = self.sizes.keys().filter_map(|name| {
            let mut parts = name.split('.');
            let before: Vec<&str> = parts
                .by_ref()
                .take_while(|part| part.parse::<u32>().is_err())
                .collect();
            let number = name.split('.').nth(before.len())?.parse::<u32>().ok()?;
            Some((before, number))
        });
        numbered.collect::<BTreeSet<_>>().len() as u64
    }

    fn experts(&self) -> u64 {
        let numbers = self.sizes.keys().filter_map(|name| {
            let (_, after) = name.split_once("experts.")?;
            after.split('.').next()?.parse::<u32>().ok()
        });
        numbers.collect::<BTreeSet<_>>().len() as u64
    }
}

const EMBEDDING: &[&str] = &[
    "embed_tokens",
    "wte",
    "word_embeddings",
    "embed_in",
    "tok_embeddings",
    "shared",
];
const OUTPUT: &[&str] = &["lm_head", "embed_out", "output.weight"];
const GATE: &[&str] = &["gate_proj", ".w1.", "wi_0"];
const GATE_UP: &[&str] = &["gate_up_proj"];
const UP: &[&str] = &[
    "up_proj",
    "c_fc",
    "fc1",
    "fc_in",
    "dense_h_to_4h",
    "intermediate.dense",
    "DenseReluDense.wi",
    "lin1",
];
const QUERY: &[&str] = &["q_proj", "query.", "SelfAttention.q", ".wq.", "q_lin"];
const KEY: &[&str] = &["k_proj", "key.", "SelfAttention.k", ".wk.", "k_lin"];
const FUSED: &[&str] = &["qkv_proj", "c_attn", "query_key_value", "Wqkv"];

//! What a transformer is made of.

use stoke_api::Parameters;
use stoke_api::quantity::PARAMETERS_MAX;
use stoke_api::trainjob::Model;

/// A transformer, as far as memory hangs on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// All of them: said, or counted.
    pub params: u64,
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub intermediate: u64,
    pub gated_mlp: bool,
    pub vocab: u64,
    /// Input and output share one table of words.
    pub is_tied: bool,
    pub norm: Norm,
    /// Layers end in dropout, as in BERT and GPT-2.
    pub has_dropout: bool,
    /// GELU written out in Python, as Hugging Face's `gelu_new`: it keeps four tensors where a kernel keeps one.
    pub has_eager_gelu: bool,
    pub head: Head,
    /// Layers that look at an encoder as well.
    pub cross_layers: u64,
    /// Copies of the layer between, of which each token sees `experts_active`.
    pub experts: u64,
    pub experts_active: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// One kernel, which keeps its input.
    Layer,
    /// Written out in Python and in fp32, whatever the rest is in.
    Rms,
}

/// What the loss is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Every token says a word of the vocabulary.
    Language,
    /// A few classes for each sample.
    Classes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("neither the number of parameters nor layers and hidden size are given")]
    Unknown,
    #[error("{what} is {value}; it must be from 1 to {most}")]
    OutOfRange {
        what: &'static str,
        value: u64,
        most: u64,
    },
    #[error("hidden size {hidden} is no multiple of {heads} heads")]
    Uneven { hidden: u64, heads: u64 },
    #[error("{heads} heads are no multiple of {kv_heads} key and value heads")]
    UnevenGroups { heads: u64, kv_heads: u64 },
}

/// Usual among models of the last years.
const HEAD_DIM: u64 = 128;
/// Width over depth, usual from a hundred million parameters to a hundred billion.
const ASPECT: f64 = 128.0;

impl Shape {
    /// The shape a person described; what is missing is what is usual.
    pub fn of(model: &Model) -> Result<Self, ShapeError> {
        let said = |value: Option<u32>| value.map(u64::from);
        let params = model.params.map(|Parameters(count)| count);
        let (layers, hidden) = match (said(model.layers), said(model.hidden), params) {
            (Some(layers), Some(hidden), _) => (layers, hidden),
            (layers, hidden, Some(params)) => usual(params, layers, hidden),
            _ => return Err(ShapeError::Unknown),
        };
        let heads = said(model.heads).unwrap_or_else(|| usual_heads(hidden));
        let kv_heads = said(model.kv_heads).unwrap_or(heads);
        let norm = if model.gated_mlp {
            Norm::Rms
        } else {
            Norm::Layer
        };
        let shape = Self {
            params: 0,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim: said(model.head_dim).unwrap_or(hidden / heads.max(1)),
            intermediate: said(model.intermediate)
                .unwrap_or_else(|| usual_intermediate(hidden, model.gated_mlp)),
            gated_mlp: model.gated_mlp,
            vocab: u64::from(model.vocab),
            is_tied: false,
            norm,
            // Families without a gate mostly have it, and too much is the better error.
            has_dropout: !model.gated_mlp,
            has_eager_gelu: false,
            head: Head::Language,
            cross_layers: 0,
            experts: 1,
            experts_active: 1,
        };
        if model.head_dim.is_none() && heads > 0 && !hidden.is_multiple_of(heads) {
            return Err(ShapeError::Uneven { hidden, heads });
        }
        shape.counted(params)
    }

    /// With its parameters counted where they are not said, and every figure in its bounds.
    pub fn counted(mut self, params: Option<u64>) -> Result<Self, ShapeError> {
        let bounds = [
            ("the number of layers", self.layers, 10_000),
            ("the hidden size", self.hidden, 1_000_000),
            ("the number of heads", self.heads, 10_000),
            ("the number of key and value heads", self.kv_heads, 10_000),
            ("the head size", self.head_dim, 1_000_000),
            ("the intermediate size", self.intermediate, 10_000_000),
            ("the vocabulary", self.vocab, 100_000_000),
            ("the number of experts", self.experts, 10_000),
            ("the number of active experts", self.experts_active, 10_000),
        ];
        for (what, value, most) in bounds {
            if value == 0 || value > most {
                return Err(ShapeError::OutOfRange { what, value, most });
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let Self {
                heads, kv_heads, ..
            } = self;
            return Err(ShapeError::UnevenGroups { heads, kv_heads });
        }
        let counted = self.linear() + self.embeddings() + self.norms();
        let value = params.unwrap_or(counted as u64);
        if value == 0 || value > PARAMETERS_MAX {
            return Err(ShapeError::OutOfRange {
                what: "the number of parameters",
                value,
                most: PARAMETERS_MAX,
            });
        }
        self.params = value;
        Ok(self)
    }

    pub(super) fn query(&self) -> f64 {
        self.heads as f64 * self.head_dim as f64
    }

    pub(super) fn key(&self) -> f64 {
        self.kv_heads as f64 * self.head_dim as f64
    }

    /// Parameters of one layer. Biases are a thousandth of them and are left out.
    pub(super) fn layer(&self) -> f64 {
        let hidden = self.hidden as f64;
        self.attention()
            + self.mlp_matrices() * hidden * self.intermediate as f64 * self.experts as f64
    }

    fn attention(&self) -> f64 {
        2.0 * self.hidden as f64 * (self.query() + self.key())
    }

    fn mlp_matrices(&self) -> f64 {
        if self.gated_mlp { 3.0 } else { 2.0 }
    }

    /// Parameters in linear layers, which are what QLoRA packs.
    pub(super) fn linear(&self) -> f64 {
        self.layers as f64 * self.layer() + self.cross_layers as f64 * self.attention()
    }

    /// The table of words, and a second one where what goes out has its own.
    pub(super) fn embeddings(&self) -> f64 {
        let tables = if self.is_tied || self.head == Head::Classes {
            1.0
        } else {
            2.0
        };
        tables * self.vocab as f64 * self.hidden as f64
    }

    fn norms(&self) -> f64 {
        (2.0 * self.layers as f64 + 1.0) * self.hidden as f64
    }
}

/// Layers and width of a usual model: 12 times width squared to a layer, and [`ASPECT`] times as wide as deep.
fn usual(params: u64, layers: Option<u64>, hidden: Option<u64>) -> (u64, u64) {
    let params = params as f64;
    let whole = |value: f64| (value.round() as u64).clamp(1, 10_000);
    let by_head = |width: f64| {
        let dim = if width < 2.0 * HEAD_DIM as f64 {
            16.0
        } else {
            HEAD_DIM as f64
        };
        ((width / dim).round().max(1.0) * dim) as u64
    };
    match (layers, hidden) {
        (Some(layers), _) => (
            layers,
            by_head((params / 12.0 / layers.max(1) as f64).sqrt()),
        ),
        (None, Some(hidden)) => (
            whole(params / 12.0 / (hidden.max(1) as f64).powi(2)),
            hidden,
        ),
        (None, None) => {
            let width = (params * ASPECT / 12.0).cbrt();
            (whole(width / ASPECT), by_head(width))
        }
    }
}

/// Heads of 128, or of 64 in small models.
pub(super) fn usual_heads(hidden: u64) -> u64 {
    let dims = if hidden > 2048 {
        [HEAD_DIM, 64]
    } else {
        [64, HEAD_DIM]
    };
    let dim = dims.into_iter().find(|dim| hidden.is_multiple_of(*dim));
    dim.map_or(1, |dim| (hidden / dim).max(1))
}

/// Four times the width, or with a gate so much less that both have as many parameters.
fn usual_intermediate(hidden: u64, gated: bool) -> u64 {
    let hidden = hidden.min(1_000_000);
    if gated {
        (hidden * 8).div_ceil(3).div_ceil(256) * 256
    } else {
        hidden * 4
    }
}

//! What a step keeps of each token: tensors that PyTorch saves in the forward pass because the backward pass reads them.
//!
//! A linear layer saves its input only where its weight is trained, so frozen models keep far less. A product saves both of its
//! factors, softmax and flash attention their result, a norm its input, dropout a mask of one byte.

use stoke_api::trainjob::Method;

use super::{Head, Norm, Shape, Targets, Training};

pub struct Kept {
    pub activations: f64,
    pub logits: f64,
}

pub fn kept(shape: &Shape, training: &Training) -> Kept {
    let token = Token { shape, training };
    let layers = shape.layers as f64;
    let layer = token.layer();
    let cross = shape.cross_layers as f64 * token.attention();
    let heaviest = layer + cross.min(token.attention());
    let under_way = token.gradients_under_way();
    let input = training.residual_width() * shape.hidden as f64;
    let (resident, momentary) = if training.grad_checkpoint {
        (layers * input, heaviest + under_way)
    } else {
        (layers * layer + cross, under_way)
    };
    let logits = token.logits();
    let ends = token.norm() + token.input_of(shape.hidden as f64, 1.0);
    // The loss is taken before the first layer is gone back through, and its logits are gone by then.
    let activations = resident + ends + (momentary - logits).max(0.0);
    Kept {
        activations: activations * training.tokens(),
        logits: logits * training.tokens(),
    }
}

/// Bytes of one token.
struct Token<'a> {
    shape: &'a Shape,
    training: &'a Training,
}

impl Token<'_> {
    fn layer(&self) -> f64 {
        self.attention() + self.mlp()
    }

    fn hidden(&self) -> f64 {
        self.shape.hidden as f64
    }

    fn is_trained(&self) -> bool {
        self.training.method == Method::Full
    }

    /// The input of linear layers. Autocast casts it anew for each `reader`; else they share one. bitsandbytes keeps inputs of packed
    /// layers though they are frozen.
    fn input_of(&self, size: f64, readers: f64) -> f64 {
        let copies = match self.training.method {
            Method::Full if self.training.is_mixed() => readers,
            Method::Full | Method::Qlora => 1.0,
            Method::Lora => 0.0,
        };
        copies * size * self.training.width()
    }

    /// What adapters keep: each its own copy of the input, in fp32 as they are, and the mask of its dropout.
    fn adapted(&self, size: f64, adapters: f64) -> f64 {
        if self.is_trained() {
            0.0
        } else {
            adapters * size * (4.0 + 1.0)
        }
    }

    fn norm(&self) -> f64 {
        let hidden = self.hidden();
        match self.shape.norm {
            Norm::Layer => self.training.residual_width() * hidden,
            Norm::Rms => {
                // Its gain is trained only where everything is, and wants the normed input.
                let normed = if self.is_trained() {
                    self.training.residual_width()
                } else {
                    0.0
                };
                (4.0 + normed) * hidden
            }
        }
    }

    fn dropout(&self) -> f64 {
        if self.shape.has_dropout {
            self.hidden()
        } else {
            0.0
        }
    }

    fn attention(&self) -> f64 {
        let (hidden, query) = (self.hidden(), self.shape.query());
        let width = self.training.width();
        let targets = self.training.lora_targets;
        let (on_input, on_output) = match targets {
            Targets::QueryValue => (2.0, 0.0),
            Targets::Attention | Targets::All => (3.0, 1.0),
        };
        // Shared keys and values are repeated for every head before they are used.
        let projected = 3.0 * query * width;
        let (scores, context) = if self.training.flash {
            // The result is saved, and with it the logarithm of each row's sum.
            (4.0 * self.shape.heads as f64, query * width)
        } else {
            (self.scores(), self.input_of(query, 1.0))
        };
        let split = projected + scores + context + self.adapted(query, on_output);
        self.norm()
            + self.input_of(hidden, 3.0)
            + self.adapted(hidden, on_input)
            + self.dropout()
            + split / self.training.split()
    }

    /// Attention that writes every score out: what softmax gives, in fp32 under autocast and in models that ask for it; and what is
    /// multiplied with the values, where that is another tensor.
    fn scores(&self) -> f64 {
        let width = self.training.width();
        let softmax = self.softmax_width();
        let dropped = self.shape.has_dropout;
        let mask = if dropped { 1.0 } else { 0.0 };
        let weighed = if dropped || softmax > width {
            width
        } else {
            0.0
        };
        let row = self.shape.heads as f64 * f64::from(self.training.sequence);
        row * (softmax + mask + weighed)
    }

    fn softmax_width(&self) -> f64 {
        if self.training.is_mixed() || self.shape.norm == Norm::Rms {
            4.0
        } else {
            self.training.width()
        }
    }

    fn mlp(&self) -> f64 {
        let hidden = self.hidden();
        let size = self.shape.intermediate as f64 * self.shape.experts_active as f64;
        let width = self.training.width();
        // With a gate: what goes into the activation, what comes out, and what that is multiplied with.
        let gated = self.shape.gated_mlp;
        let mut tensors = if gated { 3.0 } else { 1.0 };
        if self.shape.has_eager_gelu {
            tensors += 3.0;
        }
        let readers = if gated { 2.0 } else { 1.0 };
        let (on_input, on_output) = match self.training.lora_targets {
            Targets::All => (readers, 1.0),
            Targets::QueryValue | Targets::Attention => (0.0, 0.0),
        };
        let split =
            tensors * size * width + self.input_of(size, 1.0) + self.adapted(size, on_output);
        self.norm()
            + self.input_of(hidden, readers)
            + self.adapted(hidden, on_input)
            + self.dropout()
            + split / self.training.split()
    }

    /// Gradients that live while one layer is gone back through: of its widest tensors and of its scores.
    fn gradients_under_way(&self) -> f64 {
        let width = self.training.width();
        let wide = 3.0 * self.shape.intermediate as f64 * self.shape.experts_active as f64;
        let scores = if self.training.flash {
            0.0
        } else {
            let row = self.shape.heads as f64 * f64::from(self.training.sequence);
            3.0 * row * self.softmax_width()
        };
        4.0 * self.hidden() * width + (wide * width + scores) / self.training.split()
    }

    /// Logits as they are computed; their logarithms and the gradient in fp32.
    fn logits(&self) -> f64 {
        match self.shape.head {
            Head::Language => {
                self.shape.vocab as f64 * (self.training.width() + 4.0 + 4.0)
                    / self.training.split()
            }
            Head::Classes => 0.0,
        }
    }
}

//! What work asks of one node, as far as the worth of nodes goes.

/// A model of GPU, numbered by whoever describes the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Model(u8);

impl Model {
    /// More are told apart nowhere. Who has more may let the rest share the last number: only prices of scarce models suffer.
    pub const MAX: usize = 64;

    pub fn new(number: usize) -> Option<Self> {
        (number < Self::MAX).then_some(Self(number as u8))
    }

    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// The models that will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Models(u64);

impl Models {
    pub const ANY: Self = Self(u64::MAX);
    pub const NONE: Self = Self(0);

    pub fn with(self, model: Model) -> Self {
        Self(self.0 | 1 << model.0)
    }

    pub fn has(self, model: Model) -> bool {
        self.0 >> model.0 & 1 == 1
    }

    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Thousandths of one GPU.
pub const WHOLE: u16 = 1000;

/// One worker's needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ask {
    /// Thousandths of a core.
    pub cpu: u64,
    /// In whatever unit the rooms have it in.
    pub memory: u64,
    pub gpus: u32,
    /// Of each GPU: [`WHOLE`], or less of exactly one. Means nothing where no GPU is asked for.
    pub milli: u16,
    pub models: Models,
}

impl Ask {
    pub fn is_fraction(&self) -> bool {
        self.gpus == 1 && self.milli < WHOLE
    }

    /// Thousandths of GPUs, all together.
    pub fn gpu_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.milli)
    }
}

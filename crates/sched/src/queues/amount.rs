//! What jobs use, as quotas and shares count it: GPUs in thousandths by model, CPU and memory.

use std::ops::{AddAssign, SubAssign};

use stoke_api::GpuRequest;

use crate::gang::Gang;
use crate::gpu::{GpuModel, is_of_type};

/// Models told apart. In a cluster with more, the last in the order of names count as GPUs of no known model.
const MODELS_MAX: usize = 32;

/// The type that stands for all.
pub const ANY: &str = stoke_api::names::ANY_GPU_TYPE;

/// GPUs in thousandths, by model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Milli([u64; MODELS_MAX]);

impl Milli {
    pub fn of(model: ModelId, milli: u64) -> Self {
        let mut amounts = [0; MODELS_MAX];
        amounts[model.0] = milli;
        Self(amounts)
    }

    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, one| sum.saturating_add(*one))
    }

    pub fn within(&self, mask: Mask) -> u64 {
        mask.models()
            .fold(0, |sum, model| sum.saturating_add(self.0[model.0]))
    }

    pub fn get(&self, model: ModelId) -> u64 {
        self.0[model.0]
    }

    /// Takes up to so much of the models in the mask, in their order; what could not be taken.
    pub fn draw(&mut self, mask: Mask, mut wanted: u64) -> u64 {
        for model in mask.models() {
            let taken = self.0[model.0].min(wanted);
            self.0[model.0] -= taken;
            wanted -= taken;
        }
        wanted
    }
}

impl AddAssign for Milli {
    fn add_assign(&mut self, more: Self) {
        for (own, more) in self.0.iter_mut().zip(more.0) {
            *own = own.saturating_add(more);
        }
    }
}

impl SubAssign for Milli {
    fn sub_assign(&mut self, less: Self) {
        for (own, less) in self.0.iter_mut().zip(less.0) {
            *own = own.saturating_sub(less);
        }
    }
}

/// What a job uses, or a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    pub gpus: Milli,
    pub cpu: u64,
    pub memory: u64,
}

impl AddAssign for Use {
    fn add_assign(&mut self, more: Self) {
        self.gpus += more.gpus;
        self.cpu = self.cpu.saturating_add(more.cpu);
        self.memory = self.memory.saturating_add(more.memory);
    }
}

impl SubAssign for Use {
    fn sub_assign(&mut self, less: Self) {
        self.gpus -= less.gpus;
        self.cpu = self.cpu.saturating_sub(less.cpu);
        self.memory = self.memory.saturating_sub(less.memory);
    }
}

/// GPUs of one worker, in thousandths. A MIG slice counts by its compute slices, of which a GPU has seven.
pub fn milli_each(gang: &Gang) -> u64 {
    match &gang.gpus {
        GpuRequest::Fraction(milli) => u64::from(milli.0),
        GpuRequest::Mig(profile) => {
            let slices = profile.split_once('g').and_then(|(n, _)| n.parse().ok());
            slices.map_or(1000, |slices: u64| {
                slices.saturating_mul(1000).div_ceil(7).min(1000)
            })
        }
        GpuRequest::None | GpuRequest::Whole(_) => u64::from(gang.ask.gpus) * 1000,
    }
}

/// A model, as it is numbered now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelId(usize);

/// Some of the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mask(u32);

impl Mask {
    pub const ALL: Self = Self(u32::MAX);
    pub const NONE: Self = Self(0);

    pub fn models(self) -> impl Iterator<Item = ModelId> {
        let bits = self.0;
        (0..MODELS_MAX)
            .filter(move |i| bits & (1 << i) != 0)
            .map(ModelId)
    }

    pub fn with(self, model: ModelId) -> Self {
        Self(self.0 | 1 << model.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub fn has(self, model: ModelId) -> bool {
        self.0 & 1 << model.0 != 0
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The GPU models of the nodes. They are numbered in the order of their names, so that it does not matter which node came first.
#[derive(Debug, Clone, Default)]
pub struct Models {
    /// The first number is for GPUs of no known model: their node says none, or is gone.
    known: Vec<GpuModel>,
}

impl Models {
    pub const UNKNOWN: ModelId = ModelId(0);

    /// True where the model is new and all are numbered anew.
    pub fn learn(&mut self, model: &GpuModel) -> bool {
        match self.search(model) {
            Ok(_) => false,
            Err(place) => {
                self.known.insert(place, model.clone());
                true
            }
        }
    }

    pub fn id(&self, model: Option<&GpuModel>) -> ModelId {
        let found = model.and_then(|model| self.search(model).ok());
        let found = found.map(|found| found + 1);
        found
            .filter(|id| *id < MODELS_MAX)
            .map_or(Self::UNKNOWN, ModelId)
    }

    /// The models that are of this type; `any` is all.
    pub fn of_type(&self, name: &str) -> Mask {
        if name == ANY {
            return Mask::ALL;
        }
        self.numbered()
            .filter(|(_, model)| is_of_type(name, model))
            .fold(Mask::NONE, |mask, (id, _)| mask.with(id))
    }

    /// The models that a gang may use, as far as its types say.
    pub fn of_gang(&self, gang: &Gang) -> Mask {
        if gang.gpu_types.is_empty() {
            return Mask::ALL;
        }
        let types = gang.gpu_types.iter();
        types.fold(Mask::NONE, |mask, name| Mask(mask.0 | self.of_type(name).0))
    }

    /// How to ask for these models and no others; none where one of them has no name.
    pub fn products(&self, mask: Mask) -> Vec<String> {
        if mask.has(Self::UNKNOWN) {
            return Vec::new();
        }
        self.numbered()
            .filter(|(id, _)| mask.has(*id))
            .map(|(_, model)| model.product.clone())
            .collect()
    }

    pub fn numbered(&self) -> impl Iterator<Item = (ModelId, &GpuModel)> {
        let ids = (1..MODELS_MAX).map(ModelId);
        ids.zip(&self.known)
    }

    fn search(&self, model: &GpuModel) -> Result<usize, usize> {
        let key = |model: &GpuModel| (model.product.clone(), model.memory, model.simulated);
        let wanted = key(model);
        self.known.binary_search_by(|known| key(known).cmp(&wanted))
    }
}

#[cfg(test)]
mod tests {
    use stoke_api::GpuMilli;

    use super::*;

    fn model(product: &str) -> GpuModel {
        GpuModel {
            product: product.to_owned(),
            ..GpuModel::default()
        }
    }

    #[test]
    fn models_are_numbered_by_name_whoever_came_first() {
        let (mut one, mut other) = (Models::default(), Models::default());
        for name in ["Tesla-T4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB"] {
            assert!(one.learn(&model(name)));
        }
        for name in ["NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-SXM4-80GB", "Tesla-T4"] {
            assert!(other.learn(&model(name)));
            assert!(!other.learn(&model(name)));
        }
        for name in ["a100", "a100-80g", "t4", "any", "h100"] {
            assert_eq!(one.of_type(name), other.of_type(name), "{name}");
        }
        assert_eq!(one.of_type("a100").count(), 2);
        assert_eq!(
            one.products(one.of_type("a100-80g")),
            ["NVIDIA-A100-SXM4-80GB"]
        );
        assert_eq!(one.id(Some(&model("H100"))), Models::UNKNOWN);
    }

    #[test]
    fn parts_of_a_gpu_count_as_parts() {
        let each = |gpus: GpuRequest, whole: u32| {
            let mut gang = Gang {
                gpus,
                ..Gang::default()
            };
            gang.ask.gpus = whole;
            milli_each(&gang)
        };
        assert_eq!(each(GpuRequest::Whole(2), 2), 2000);
        assert_eq!(each(GpuRequest::Fraction(GpuMilli(250)), 0), 250);
        assert_eq!(each(GpuRequest::Mig("1g.10gb".to_owned()), 0), 143);
        assert_eq!(each(GpuRequest::Mig("7g.80gb".to_owned()), 0), 1000);
        assert_eq!(each(GpuRequest::None, 0), 0);
    }
}

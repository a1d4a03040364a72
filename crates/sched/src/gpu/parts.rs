//! Parts of a GPU, where the device plugin of a cluster gives them out: MIG slices, and turns in time.

use stoke_api::Bytes;
use stoke_api::names::GPU_RESOURCE;

use super::GpuModel;
use crate::resources::{Other, Resources};

/// What a node counts as `nvidia.com/gpu`. Slices that a node counts under their own name (MIG, strategy `mixed`) are among
/// [`Resources::others`], whatever is said here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Parts {
    #[default]
    Whole,
    /// Each is a MIG slice of this profile: strategy `single`.
    Mig { profile: String },
    /// A GPU is counted so often; who has one shares it in time. Counted as `nvidia.com/gpu.shared` where the node has that. 0: it is
    /// not said how often, and nothing of it is given out.
    Turns { replicas: u32 },
}

pub(crate) const MIG_PREFIX: &str = "nvidia.com/mig-";
pub(crate) const SHARED_RESOURCE: &str = "nvidia.com/gpu.shared";

const WHOLE: u64 = 1000;

/// The thousandths of a GPU that one MIG slice is, by its memory; where nobody knows the GPU's memory, by its compute slices.
pub(crate) fn milli_of_slice(profile: &str, gpu: Option<&GpuModel>) -> Option<u32> {
    // `1g.10gb`, and `1g.10gb.me` with media engines.
    let (slices, rest) = profile.split_once("g.")?;
    let slices: u64 = slices.parse().ok()?;
    let gigabytes: u64 = rest.split_once("gb")?.0.parse().ok()?;
    let whole = gpu.and_then(GpuModel::whole_memory);
    let milli = match whole {
        Some(Bytes(whole)) if whole > 0 => {
            let slice = gigabytes.checked_mul(1 << 30)?.checked_mul(WHOLE)?;
            slice / whole
        }
        // A GPU has seven.
        _ => slices.checked_mul(WHOLE)? / 7,
    };
    u32::try_from(milli.min(WHOLE)).ok()
}

pub(crate) fn milli_of_replica(replicas: u32) -> Option<u32> {
    (WHOLE as u32).checked_div(replicas)
}

/// Is this a part of a GPU, counted under a name of its own?
pub(crate) fn gives_parts(other: &Other) -> bool {
    match other {
        Other::Named(name) => name.starts_with(MIG_PREFIX) || &**name == SHARED_RESOURCE,
        Other::Port { .. } => false,
    }
}

/// GPUs and parts of GPUs, whatever they are counted as.
pub(crate) fn units(resources: &Resources) -> u64 {
    let parts = resources.others.iter();
    let parts = parts.filter(|(other, _)| gives_parts(other));
    let parts = parts.fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    parts.saturating_add(u64::from(resources.gpus))
}

impl Resources {
    /// With so much more of what a pod asks for by this name.
    pub(crate) fn with(mut self, name: &str, count: u64) -> Self {
        if name == GPU_RESOURCE {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            self.gpus = self.gpus.saturating_add(count);
        } else {
            let amount = self.others.entry(Other::Named(name.into())).or_insert(0);
            *amount = amount.saturating_add(count);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_measured_by_memory() {
        let gpu = |product: &str, mib: Option<u64>| GpuModel {
            product: product.to_owned(),
            memory: mib.map(Bytes::mib),
            ..GpuModel::default()
        };
        let cases = [
            (
                "1g.10gb",
                gpu("NVIDIA-A100-SXM4-80GB", Some(81_920)),
                Some(125),
            ),
            (
                "2g.20gb",
                gpu("NVIDIA-H100-80GB-HBM3", Some(81_559)),
                Some(251),
            ),
            ("1g.10gb.me", gpu("NVIDIA-A100-SXM4-40GB", None), Some(250)),
            ("3g.71gb", gpu("NVIDIA-H200", Some(143_771)), Some(505)),
            ("7g.80gb", gpu("NVIDIA-A100-SXM4-80GB", None), Some(1000)),
            ("2g.20gb", gpu("unheard-of", None), Some(285)),
            ("nonsense", gpu("NVIDIA-H200", None), None),
        ];
        for (profile, gpu, expected) in cases {
            assert_eq!(
                milli_of_slice(profile, Some(&gpu)),
                expected,
                "{profile} of {gpu:?}"
            );
        }
        let single = GpuModel {
            parts: Parts::Mig {
                profile: "1g.5gb".to_owned(),
            },
            ..gpu("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", Some(4_864))
        };
        assert_eq!(milli_of_slice("1g.5gb", Some(&single)), Some(125));
    }
}

//! The GPUs of a node: is one of the type that was asked for, and what is given out as one?
//!
//! People write `a100-80g`; nodes are labelled `NVIDIA-A100-SXM4-80GB`. Both are read as words, and every word that was
//! asked for must be there.

mod parts;

use stoke_api::Bytes;
use stoke_api::gpu_name::{gigabytes, words};

pub use self::parts::Parts;
pub(crate) use self::parts::{
    MIG_PREFIX, SHARED_RESOURCE, gives_parts, milli_of_replica, milli_of_slice, units,
};

/// The GPUs of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuModel {
    /// As NVIDIA's feature discovery names it.
    pub product: String,
    /// Of one GPU, where it is known.
    pub memory: Option<Bytes>,
    /// Made up, to try things out.
    pub simulated: bool,
    /// What the node counts as its GPUs.
    pub parts: Parts,
}

impl GpuModel {
    /// Memory of one whole GPU: as it is measured, or as its name says.
    fn whole_memory(&self) -> Option<Bytes> {
        // Of MIG slices that are counted as GPUs the slice is measured, and the name tells of both.
        let measured = self
            .memory
            .filter(|_| !matches!(self.parts, Parts::Mig { .. }));
        let named = || {
            let words = words(&self.product);
            let sizes = words.iter().filter_map(|word| gigabytes(word));
            sizes.max().map(Bytes::gib)
        };
        measured.or_else(named)
    }
}

/// True where `gpu` is of the type `asked`.
///
/// A simulated GPU is of every type: who starts an engine with simulated GPUs wants to see the YAML that is meant for
/// the cluster run, and is told at every turn that they are simulated.
pub fn is_of_type(asked: &str, gpu: &GpuModel) -> bool {
    if gpu.simulated {
        return true;
    }
    let product = words(&gpu.product);
    let asked = words(asked);
    !asked.is_empty()
        && asked
            .iter()
            .all(|word| has_word(&product, word, gpu.memory))
}

fn has_word(product: &[String], word: &str, memory: Option<Bytes>) -> bool {
    let said = product.iter().any(|part| part == word);
    // `rtx4090` for `RTX-4090`.
    let joined = || {
        product
            .windows(2)
            .any(|pair| pair.concat() == word && gigabytes(word).is_none())
    };
    // Not every product name says how much memory it has; then what the driver reports must be about that much.
    let measured = || {
        let names_memory = product.iter().any(|part| gigabytes(part).is_some());
        let wanted = gigabytes(word).map(|number| number.saturating_mul(1 << 30));
        match (names_memory, wanted, memory) {
            (false, Some(wanted), Some(Bytes(memory))) => memory.abs_diff(wanted) <= wanted / 10,
            _ => false,
        }
    };
    said || joined() || measured()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_matched_as_people_mean_them() {
        let cases = [
            ("a100-80g", "NVIDIA-A100-SXM4-80GB", true),
            ("A100-80GB", "NVIDIA-A100-SXM4-80GB", true),
            ("a100", "NVIDIA-A100-SXM4-80GB", true),
            ("a100-40g", "NVIDIA-A100-SXM4-80GB", false),
            ("a100-40g", "NVIDIA-A100-PCIE-40GB", true),
            ("a100-pcie", "NVIDIA-A100-PCIE-40GB", true),
            ("h100", "NVIDIA-H100-80GB-HBM3", true),
            ("h100", "NVIDIA-H200", false),
            ("a10", "NVIDIA-A100-SXM4-80GB", false),
            ("a10", "NVIDIA-A10G", false),
            ("a10g", "NVIDIA-A10G", true),
            ("l40", "NVIDIA-L40S", false),
            ("t4", "Tesla-T4", true),
            ("v100-16g", "Tesla-V100-SXM2-16GB", true),
            ("rtx4090", "NVIDIA-GeForce-RTX-4090", true),
            ("rtx-4090", "NVIDIA-GeForce-RTX-4090", true),
            ("geforce", "NVIDIA-GeForce-RTX-4090", true),
            ("--", "NVIDIA-A10G", false),
            ("a100-80g", "", false),
        ];
        for (asked, product, expected) in cases {
            let gpu = GpuModel {
                product: product.to_owned(),
                ..GpuModel::default()
            };
            assert_eq!(is_of_type(asked, &gpu), expected, "{asked} on {product}");
        }
    }

    #[test]
    fn memory_is_measured_where_the_name_is_silent() {
        let gpu = GpuModel {
            product: "NVIDIA-A10".to_owned(),
            memory: Some(Bytes::mib(23_028)),
            ..GpuModel::default()
        };
        assert!(is_of_type("a10-24g", &gpu));
        assert!(!is_of_type("a10-48g", &gpu));
        let named = GpuModel {
            product: "NVIDIA-A100-SXM4-40GB".to_owned(),
            ..gpu
        };
        assert!(!is_of_type("a100-24g", &named), "the name says 40");
    }

    #[test]
    fn simulated_gpus_stand_for_any() {
        let gpu = GpuModel {
            product: "simulated".to_owned(),
            simulated: true,
            ..GpuModel::default()
        };
        assert!(is_of_type("a100-80g", &gpu) && is_of_type("h100", &gpu));
    }
}

//! The GPUs of this machine: which there are, what they are doing, and how a process is shown its own.
//!
//! Each has one holder at a time, or several that asked for a part of one (the [ledger](crate::ledger) sees to that). A machine
//! without NVIDIA's library simply has none. Invariant: a simulated GPU is never shown without the word "simulated".

mod nvml;

use serde::{Deserialize, Serialize};
use stoke_api::names;

/// The product name and id prefix of GPUs that exist only to be scheduled.
const SIMULATED_PRODUCT: &str = "simulated";
const SIMULATED_MEMORY_BYTES: u64 = 80 << 30;
/// More than any machine has; a typing error should not cost the node's memory.
const SIMULATED_MAX: u32 = 1024;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Position in PCI bus order, which is what `CUDA_VISIBLE_DEVICES` counts under `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub index: u32,
    /// The driver's UUID (`GPU-5a2c...`), or `SIM-<index>`.
    pub id: String,
    pub product: String,
    pub memory_bytes: u64,
    pub simulated: bool,
}

impl Gpu {
    /// Whether a person or a controller means this one: by id or by index.
    pub fn is_called(&self, name: &str) -> bool {
        self.id == name || self.index.to_string() == name
    }
}

/// What a GPU is doing now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub id: String,
    pub memory_used_bytes: u64,
    pub busy_percent: u32,
}

/// Somewhere GPUs come from.
pub trait GpuSource: Send + Sync {
    /// The devices, in index order. Called once, when the node starts.
    fn devices(&self) -> Vec<Gpu>;
    /// What those of `ids` that it knows are doing; a device that cannot be read is left out.
    fn read(&self, ids: &[String]) -> Vec<Reading>;
}

/// The machine's own GPUs and `simulated` more behind them.
pub struct Machine {
    real: Option<nvml::Nvml>,
    devices: Vec<Gpu>,
}

impl Machine {
    pub fn detect(simulated_count: u32) -> Self {
        let real = nvml::Nvml::load();
        let mut devices = real.as_ref().map(GpuSource::devices).unwrap_or_default();
        devices.extend(simulated(devices.len() as u32, simulated_count));
        Self { real, devices }
    }
}

impl GpuSource for Machine {
    fn devices(&self) -> Vec<Gpu> {
        self.devices.clone()
    }

    fn read(&self, ids: &[String]) -> Vec<Reading> {
        self.real
            .as_ref()
            .map(|real| real.read(ids))
            .unwrap_or_default()
    }
}

/// `count` GPUs that do not exist, numbered after the real ones so that their indices show no real device.
pub fn simulated(first_index: u32, count: u32) -> Vec<Gpu> {
    let end = first_index.saturating_add(count.min(SIMULATED_MAX));
    (first_index..end)
        .map(|index| Gpu {
            index,
            id: format!("SIM-{index}"),
            product: SIMULATED_PRODUCT.to_owned(),
            memory_bytes: SIMULATED_MEMORY_BYTES,
            simulated: true,
        })
        .collect()
}

/// The environment that shows a process its GPUs and no others.
///
/// Indices go to CUDA, as more programs read them than UUIDs, together with the order that makes them mean the same thing
/// to everybody; the UUIDs go to NVIDIA's own variable. A pod that asked for none sees none, as on a cluster: otherwise it
/// would take memory on devices that were promised to others. On a node without GPUs nothing is set.
pub fn environment(node_has_gpus: bool, held: &[Gpu]) -> Vec<(&'static str, String)> {
    if !node_has_gpus {
        return Vec::new();
    }
    if held.is_empty() {
        return vec![
            ("CUDA_VISIBLE_DEVICES", String::new()),
            ("NVIDIA_VISIBLE_DEVICES", "void".to_owned()),
        ];
    }
    let join = |names: Vec<String>| names.join(",");
    vec![
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        (
            "CUDA_VISIBLE_DEVICES",
            join(held.iter().map(|gpu| gpu.index.to_string()).collect()),
        ),
        (
            "NVIDIA_VISIBLE_DEVICES",
            join(held.iter().map(|gpu| gpu.id.clone()).collect()),
        ),
    ]
}

/// The labels NVIDIA's feature discovery would put on the node, and ours where they are simulated.
pub fn labels(gpus: &[Gpu]) -> Vec<(&'static str, String)> {
    let Some(first) = gpus.first() else {
        return Vec::new();
    };
    let smallest = gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0);
    let mut labels = vec![
        (names::GPU_PRODUCT_LABEL, label_value(&first.product)),
        (names::GPU_COUNT_LABEL, gpus.len().to_string()),
        (names::GPU_MEMORY_LABEL, (smallest >> 20).to_string()),
    ];
    if gpus.iter().any(|gpu| gpu.simulated) {
        labels.push((names::GPU_SIMULATED_LABEL, "true".to_owned()));
    }
    labels
}

/// A product name as a label value: `NVIDIA A100-SXM4-80GB` becomes `NVIDIA-A100-SXM4-80GB`.
fn label_value(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
            c
        } else {
            '-'
        }
    };
    let value: String = text.chars().map(allowed).take(63).collect();
    value
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_sees_its_own_gpus_and_no_others() {
        let gpus = simulated(2, 2);
        insta::assert_debug_snapshot!(environment(true, &gpus), @r#"
        [
            (
                "CUDA_DEVICE_ORDER",
                "PCI_BUS_ID",
            ),
            (
                "CUDA_VISIBLE_DEVICES",
                "2,3",
            ),
            (
                "NVIDIA_VISIBLE_DEVICES",
                "SIM-2,SIM-3",
            ),
        ]
        "#);
        assert_eq!(
            environment(true, &[])[0],
            ("CUDA_VISIBLE_DEVICES", String::new())
        );
        assert!(environment(false, &[]).is_empty());
    }

    #[test]
    fn labels_say_simulated() {
        let labels = labels(&simulated(0, 8));
        assert!(labels.contains(&("nvidia.com/gpu.count", "8".to_owned())));
        assert!(labels.contains(&("nvidia.com/gpu.product", "simulated".to_owned())));
        assert!(labels.contains(&("nvidia.com/gpu.memory", "81920".to_owned())));
        assert!(labels.contains(&("stokehold.dev/gpu-simulated", "true".to_owned())));
        assert_eq!(
            label_value("NVIDIA A100-SXM4-80GB"),
            "NVIDIA-A100-SXM4-80GB"
        );
        assert_eq!(label_value("(odd)"), "odd");
    }
}

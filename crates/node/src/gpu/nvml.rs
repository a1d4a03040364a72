//! GPUs as NVIDIA's management library tells them.

use nvml_wrapper::Nvml as Library;

use super::{Gpu, GpuSource, Reading};

/// The name the driver installs; the unversioned one comes only with development packages.
const LIBRARY: &str = "libnvidia-ml.so.1";

pub(super) struct Nvml {
    library: Library,
}

impl Nvml {
    /// `None` where there is no driver, which is how most machines are.
    pub(super) fn load() -> Option<Self> {
        match Library::builder().lib_path(LIBRARY.as_ref()).init() {
            Ok(library) => Some(Self { library }),
            Err(error) => {
                tracing::debug!(%error, "no NVIDIA GPUs: the management library did not load");
                None
            }
        }
    }
}

impl GpuSource for Nvml {
    fn devices(&self) -> Vec<Gpu> {
        let count = self.library.device_count().unwrap_or(0);
        let mut devices = Vec::with_capacity(count as usize);
        for index in 0..count {
            let read = || -> Result<Gpu, nvml_wrapper::error::NvmlError> {
                let device = self.library.device_by_index(index)?;
                Ok(Gpu {
                    index,
                    id: device.uuid()?,
                    product: device.name()?,
                    memory_bytes: device.memory_info()?.total,
                    simulated: false,
                })
            };
            match read() {
                Ok(gpu) => devices.push(gpu),
                Err(error) => {
                    tracing::warn!(index, %error, "a GPU does not answer and is left out");
                }
            }
        }
        devices
    }

    fn read(&self, ids: &[String]) -> Vec<Reading> {
        let read = |id: &String| -> Result<Reading, nvml_wrapper::error::NvmlError> {
            let device = self.library.device_by_uuid(id.as_str())?;
            Ok(Reading {
                id: id.clone(),
                memory_used_bytes: device.memory_info()?.used,
                busy_percent: device.utilization_rates()?.gpu,
            })
        };
        ids.iter().filter_map(|id| read(id).ok()).collect()
    }
}

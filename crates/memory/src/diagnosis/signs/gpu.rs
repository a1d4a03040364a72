//! GPUs and their like that had no memory left.

use super::super::cause::Framework;
use super::super::line::Line;
use super::wording::{is_count, is_error, is_hedged, is_in_passing, is_word};
use super::{Reading, Sign, found, reading};

/// Status codes of GPU libraries that mean nothing else.
const GPU_CODES: &[&str] = &[
    "cudaerrormemoryallocation",
    "cuda_error_out_of_memory",
    "hiperroroutofmemory",
    "hip_error_out_of_memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_device_allocation_failed",
    "cusparse_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cufft_alloc_failed",
    "curand_status_allocation_failed",
    "hipblas_status_alloc_failed",
    "rocblas_status_memory_error",
    "miopenstatusallocfailed",
    "out_of_device_memory",
    "cl_mem_object_allocation_failure",
    "acl_error_rt_memory_allocation",
    "cudamalloc failed",
    "hipmalloc failed",
];

const OUT_OF_MEMORY: &[&str] = &[
    "out of memory",
    "outofmemoryerror",
    "outofmemory",
    "out_of_memory",
    "out of device memory",
    "out of gpu memory",
    "out of hbm",
];

pub fn gpu(line: &Line<'_>) -> Option<Reading> {
    if let Some(code) = found(line, GPU_CODES) {
        let strong = !is_in_passing(line, code);
        return Some(reading(line, Sign::Gpu(device(line)?), strong, code));
    }
    xla(line).or_else(|| {
        let words = found(line, OUT_OF_MEMORY).or_else(|| {
            found(
                line,
                &[
                    "failed to allocate",
                    "cannot allocate",
                    "unable to allocate",
                    "could not allocate",
                    "failed to cuda",
                    "no available memory for the cache blocks",
                ],
            )
            .filter(|words| refers_to_device(line, words))
        })?;
        let framework = device(line)?;
        if is_count(line, words) {
            return None;
        }
        let reading = reading(line, Sign::Gpu(framework), true, words);
        let strong = (is_error(line, words)
            || reading.figures.tried.is_some()
            || line.has("no available memory for"))
            && !is_in_passing(line, words);
        (strong || !is_hedged(line, words)).then_some(Reading { strong, ..reading })
    })
}

/// Does what follows a refusal name a device?
fn refers_to_device(line: &Line<'_>, words: &str) -> bool {
    if words.starts_with("no available") {
        return true;
    }
    if words == "failed to cuda" {
        return line.has_any(&["alloc"]);
    }
    let Some((_, rest)) = line.lower.split_once(words) else {
        return false;
    };
    [
        "on device",
        "on gpu",
        "gpu memory",
        "device memory",
        "device ordinal",
        "hbm",
        "cuda memory",
        "gpu_",
        "on the gpu",
        "vram",
    ]
    .iter()
    .any(|of| rest.contains(of))
}

/// TensorFlow and JAX: the status `RESOURCE_EXHAUSTED`, which quotas have too, and the allocator below it.
fn xla(line: &Line<'_>) -> Option<Reading> {
    let exhausted = found(
        line,
        &[
            "resource_exhausted",
            "resourceexhausted",
            "resource exhausted",
        ],
    );
    let oom = found(
        line,
        &[
            "oom when allocating",
            "ran out of memory trying to allocate",
            "ran out of memory in memory space",
            "failed to allocate request for",
        ],
    );
    let of_memory = line.has_any(&["out of memory", "allocat", "hbm"]);
    let of_quota = line.has_any(&[
        "quota",
        "message larger than",
        "rate limit",
        "too many requests",
    ]);
    let words = match (exhausted, oom) {
        (_, Some(words)) => words,
        (Some(words), None) if of_memory && !of_quota => words,
        _ => return None,
    };
    let framework = if line.has_any(&["oom when allocating", "_bfc)", "tensorflow", "[op:"]) {
        Framework::TensorFlow
    } else if line.has_any(&[
        "resource_exhausted",
        "xla",
        "jax",
        "memory space",
        "request for",
    ]) {
        Framework::Jax
    } else {
        Framework::Other
    };
    let host = line.has_any(&[
        "device:cpu",
        "allocator cpu",
        "allocator mklcpu",
        "(mklcpu)",
        "(cpu_",
        "host memory",
    ]);
    let sign = if host {
        Sign::Host
    } else {
        Sign::Gpu(framework)
    };
    let strong = !is_in_passing(line, words);
    Some(reading(line, sign, strong, words))
}

/// The device that a line speaks of, if it is no host.
fn device(line: &Line<'_>) -> Option<Framework> {
    let has_word = |words: &[&str]| words.iter().any(|word| is_word(&line.lower, word));
    if has_word(&["hip", "rocm"])
        || line.has_any(&[
            "hiperror",
            "hip_error",
            "hipblas",
            "rocblas",
            "miopen",
            "amdgpu",
        ])
    {
        Some(Framework::Hip)
    } else if has_word(&["mps"]) {
        Some(Framework::Mps)
    } else if has_word(&["xpu", "sycl"])
        || line.has_any(&[
            "ur_result",
            "ze_result",
            "pi_error",
            "level-zero",
            "level_zero",
        ])
    {
        Some(Framework::Xpu)
    } else if line.has_any(&[
        "cuda",
        "cudnn",
        "cublas",
        "cusparse",
        "cusolver",
        "cufft",
        "curand",
        "nvrtc",
        "nvml",
        "torch.outofmemory",
        "cache blocks",
    ]) {
        Some(Framework::Cuda)
    } else if has_word(&["gpu", "gpus", "hbm", "npu", "tpu", "vram", "hpu"])
        || line.has_any(&[
            "gpu:",
            "gpu_",
            "device memory",
            "device_memory",
            "clbuild",
            "acl_error",
            "cl_mem_",
        ])
    {
        Some(Framework::Other)
    } else {
        None
    }
}

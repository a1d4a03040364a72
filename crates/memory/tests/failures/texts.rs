//! What frameworks, libraries, launchers and machines print when memory or disk is over. Wordings of many releases.

pub struct Text {
    pub says: &'static str,
    /// What it is, as [`stoke_memory::Cause`] names it; of GPUs with whose words and which shape.
    pub cause: &'static str,
    /// Raised as an exception, with a traceback before it.
    pub raised: bool,
}

const fn raised(cause: &'static str, says: &'static str) -> Text {
    Text {
        says,
        cause,
        raised: true,
    }
}

const fn printed(cause: &'static str, says: &'static str) -> Text {
    Text {
        says,
        cause,
        raised: false,
    }
}

pub const TEXTS: &[Text] = &[
    // CUDA, old, middle, newer and newest.
    raised(
        "GpuOutOfMemory CUDA Plain",
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "RuntimeError: CUDA out of memory. Tried to allocate 4.00 GiB (GPU 0; 6.00 GiB total capacity; 1.20 GiB already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 4.00 GiB of which 41.56 MiB is free. Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the allocated memory 2.58 GiB is allocated by PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 540.00 MiB. GPU 5 has a total capacity of 79.15 GiB of which 318.62 MiB is free. Including non-PyTorch memory, this process has 78.83 GiB memory in use. Of the allocated memory 77.90 GiB is allocated by PyTorch, and 201.12 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
    ),
    raised(
        "GpuOutOfMemory CUDA Fragmentation",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total capacity of 23.64 GiB of which 811.81 MiB is free. Process 2875 has 22.80 GiB memory in use. Of the allocated memory 18.02 GiB is allocated by PyTorch, and 4.31 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    ),
    raised(
        "GpuOutOfMemory CUDA CoTenant",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 392.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 144.00 MiB is free. Process 55121 has 62.33 GiB memory in use. Including non-PyTorch memory, this process has 16.67 GiB memory in use. Of the allocated memory 15.90 GiB is allocated by PyTorch, and 301.00 MiB is reserved by PyTorch but unallocated.",
    ),
    raised(
        "GpuOutOfMemory CUDA TooBig",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 70.00 GiB is free. Including non-PyTorch memory, this process has 9.14 GiB memory in use. Of the allocated memory 8.00 GiB is allocated by PyTorch, and 11.00 MiB is reserved by PyTorch but unallocated.",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "thrust::system::system_error: after reduction step 1: cudaErrorMemoryAllocation: out of memory",
    ),
    printed(
        "GpuOutOfMemory CUDA Plain",
        "terminate called after throwing an instance of 'thrust::system::detail::bad_alloc'\n  what():  std::bad_alloc: cudaErrorMemoryAllocation: out of memory\nAborted (core dumped)",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/conda/include/rmm/mr/device/cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 16,106,127,360 bytes).",
    ),
    printed(
        "GpuOutOfMemory CUDA Plain",
        "node-3:812:911 [0] enqueue.cc:1197 NCCL WARN Cuda failure 2 'out of memory'",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 9.21 GiB\nRequested               : 1.50 GiB\nDevice limit            : 11.99 GiB\nFree (according to CUDA): 0 bytes",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, unhandled cuda error, NCCL version 2.19.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 4 bytes",
    ),
    printed(
        "GpuOutOfMemory CUDA Plain",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "RuntimeError: Error in faiss::gpu::StandardGpuResourcesImpl::allocMemory: 'err == cudaSuccess' failed: alloc fail type TemporaryMemoryBuffer dev 0 size 1610612736 bytes (cudaMalloc error out of memory [2])",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 22.12 MiB is free.",
    ),
    printed(
        "GpuOutOfMemory CUDA Plain",
        "{\"time\":\"2024-03-01T10:00:02Z\",\"level\":\"ERROR\",\"rank\":3,\"msg\":\"CUDA out of memory. Tried to allocate 98.00 MiB. GPU 3 has a total capacity of 79.15 GiB of which 61.06 MiB is free.\"}",
    ),
    // Other devices.
    raised(
        "GpuOutOfMemory HIP Plain",
        "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 15.98 GiB of which 12.00 MiB is free. Of the allocated memory 15.12 GiB is allocated by PyTorch, and 16.98 MiB is reserved by PyTorch but unallocated.",
    ),
    raised(
        "GpuOutOfMemory HIP Plain",
        "RuntimeError: HIP error: out of memory\nHIP kernel errors might be asynchronously reported at some other API call.",
    ),
    raised(
        "GpuOutOfMemory MPS Plain",
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 576.00 KB, max allowed: 18.13 GB). Tried to allocate 1.25 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
    ),
    raised(
        "GpuOutOfMemory XPU Plain",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 15.11 GiB. Of the allocated memory 12.30 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
    ),
    raised(
        "GpuOutOfMemory XPU Plain",
        "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    ),
    raised(
        "GpuOutOfMemory other Plain",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; 58.11 GiB already allocated; 58.11 GiB current active; 512.00 MiB free; 59.01 GiB reserved in total by PyTorch)",
    ),
    // TensorFlow and what it is made of.
    raised(
        "GpuOutOfMemory TensorFlow Plain",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[500,17,17,4032] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]",
    ),
    raised(
        "GpuOutOfMemory TensorFlow Plain",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\nDetected at node 'model/dense/MatMul' defined at (most recent call last):\nOOM when allocating tensor with shape[32768,50257] and type half on /job:worker/replica:0/task:1/device:GPU:3 by allocator GPU_3_bfc\n\t [[{{node model/dense/MatMul}}]]\nHint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions for current allocation info. [Op:__inference_train_function_8712]",
    ),
    printed(
        "GpuOutOfMemory TensorFlow Plain",
        "2024-03-01 10:00:02.123456: W tensorflow/tsl/framework/bfc_allocator.cc:485] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op AddV2\nIf the cause is memory fragmentation maybe the environment variable 'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation. ",
    ),
    raised(
        "GpuOutOfMemory JAX Plain",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:    1.98GiB\n              constant allocation:         0B",
    ),
    raised(
        "GpuOutOfMemory JAX Plain",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
    ),
    raised(
        "GpuOutOfMemory JAX TooBig",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.90G of 15.48G hbm. Exceeded hbm capacity by 6.42G.",
    ),
    raised(
        "GpuOutOfMemory other Plain",
        "paddle.fluid.libpaddle.ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 2.000000GB memory on GPU 0, 31.738281GB memory has been allocated and available memory is only 10.000000MB.",
    ),
    raised(
        "GpuOutOfMemory CUDA Plain",
        "mxnet.base.MXNetError: [10:00:02] src/storage/./pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory",
    ),
    // /dev/shm.
    printed(
        "SharedMemory",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ),
    raised(
        "SharedMemory",
        "RuntimeError: DataLoader worker (pid 3817) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    printed(
        "SharedMemory",
        "node-3:812:901 [2] include/shm.h:48 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
    ),
    printed(
        "SharedMemory",
        "node-3:812:901 [2] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-gV2pIv (size 9637888), error: No space left on device (28)",
    ),
    raised(
        "SharedMemory",
        "RuntimeError: unable to write to file </torch_3817_1921640112_42>: No space left on device (28)",
    ),
    raised(
        "SharedMemory",
        "OSError: [Errno 28] No space left on device: '/dev/shm/sem.loky-812-9x3k'",
    ),
    raised(
        "SharedMemory",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_812_3>: Resource temporarily unavailable (11)",
    ),
    raised(
        "SharedMemory",
        "ray.exceptions.ObjectStoreFullError: Failed to put object 00ffff in object store because it is full. Object size is 104857600 bytes.",
    ),
    printed(
        "SharedMemory",
        "  File \"/usr/lib/python3.10/multiprocessing/synchronize.py\", line 57, in __init__\n    sl = self._semlock = _multiprocessing.SemLock(\nOSError: [Errno 28] No space left on device",
    ),
    raised(
        "SharedMemory",
        "OSError: [Errno 28] No space left on device: '/psm_1c2d3e4f'",
    ),
    printed(
        "SharedMemory",
        "node-3:812:901 [2] NCCL WARN Call to posix_fallocate failed : No space left on device",
    ),
    // Local disk.
    raised(
        "EphemeralStorage",
        "OSError: [Errno 28] No space left on device",
    ),
    raised(
        "EphemeralStorage",
        "OSError: [Errno 28] No space left on device: '/tmp/hf-cache/models--meta/blobs/ab12'",
    ),
    raised(
        "EphemeralStorage",
        "RuntimeError: [enforce fail at inline_container.cc:595] . PytorchStreamWriter failed writing file data/17: file write failed: No space left on device",
    ),
    printed(
        "EphemeralStorage",
        "cp: error writing '/scratch/train-00017.tfrecord': No space left on device",
    ),
    printed(
        "EphemeralStorage",
        "tar: imagenet/train/n0153/1.JPEG: Cannot write: No space left on device",
    ),
    raised(
        "EphemeralStorage",
        "OSError: [Errno 122] Disk quota exceeded: '/scratch/run/optim.bin'",
    ),
    raised(
        "EphemeralStorage",
        "sqlite3.OperationalError: database or disk is full",
    ),
    raised(
        "EphemeralStorage",
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No space left on device\" })",
    ),
    printed(
        "EphemeralStorage",
        "java.io.IOException: No space left on device",
    ),
    raised(
        "EphemeralStorage",
        "OSError: Can't write data (file write failed: time = Fri Mar  1 10:00:02 2024, filename = '/scratch/out.h5', errno = 28, error message = 'No space left on device')",
    ),
    // Host memory that was refused.
    raised(
        "HostAllocation",
        "RuntimeError: [enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 2359296 bytes. Error code 12 (Cannot allocate memory)",
    ),
    raised(
        "HostAllocation",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 51380224000 bytes.",
    ),
    raised("HostAllocation", "MemoryError"),
    raised(
        "HostAllocation",
        "MemoryError: Unable to allocate 29.8 GiB for an array with shape (4000000000,) and data type float64",
    ),
    raised(
        "HostAllocation",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array with shape (200000, 20000) and data type float64",
    ),
    raised(
        "HostAllocation",
        "OSError: [Errno 12] Cannot allocate memory",
    ),
    raised(
        "HostAllocation",
        "pyarrow.lib.ArrowMemoryError: malloc of size 8589934592 failed",
    ),
    printed(
        "HostAllocation",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core dumped)",
    ),
    printed(
        "HostAllocation",
        "memory allocation of 17179869184 bytes failed",
    ),
    printed("HostAllocation", "fatal error: runtime: out of memory"),
    printed(
        "HostAllocation",
        "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space",
    ),
    printed(
        "HostAllocation",
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
    ),
    printed("HostAllocation", "bash: fork: Cannot allocate memory"),
    raised(
        "HostAllocation",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512,512,64] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu [Op:Pad]",
    ),
    raised(
        "HostAllocation",
        "RuntimeError: [enforce fail at CPUAllocator.cpp:56] posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0",
    ),
    printed(
        "HostAllocation",
        "Error: cannot allocate vector of size 3.7 Gb",
    ),
    raised(
        "HostAllocation",
        "ImportError: libtorch_cpu.so: failed to map segment from shared object: Cannot allocate memory",
    ),
    // A process of it was killed.
    raised(
        "ChildKilled",
        "RuntimeError: DataLoader worker (pid 8158) is killed by signal: Killed.",
    ),
    raised(
        "ChildKilled",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
    ),
    printed(
        "ChildKilled",
        "subprocess.CalledProcessError: Command '['/usr/bin/python3', '-u', 'train.py', '--local_rank=3']' died with <Signals.SIGKILL: 9>.",
    ),
    printed(
        "ChildKilled",
        "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).",
    ),
    printed(
        "ChildKilled",
        "[2024-03-01 10:00:02,123] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=7'] exits with return code = -9",
    ),
    raised(
        "ChildKilled",
        "joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated. This could be caused by a segmentation fault while calling the function or by an excessive memory usage causing the Operating System to kill the worker. The exit codes of the workers are {SIGKILL(-9)}",
    ),
    raised(
        "ChildKilled",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.3.17, ID: 3a1f) where the task (task ID: 16310a, name=train, pid=812) was running was 30.15GB / 31.00GB (0.97), which exceeds the memory usage threshold of 0.95.",
    ),
    printed(
        "ChildKilled",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.0. Some of your processes may have been killed by the cgroup out-of-memory handler.",
    ),
    printed("ChildKilled", "Process 2 exit with status code 137."),
    printed(
        "ChildKilled",
        "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Container killed by YARN for exceeding memory limits. 10.4 GB of 10.4 GB physical memory used.",
    ),
    printed(
        "ChildKilled",
        "[2024-03-01 10:00:02 +0000] [7] [ERROR] Worker (pid:812) was sent SIGKILL! Perhaps out of memory?",
    ),
];

/// Ends that are none of memory or disk, whatever words they have in common.
pub const OTHER_ENDS: &[&str] = &[
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
    "RuntimeError: unable to open shared memory object </torch_812_3> in read-write mode: Too many open files (24)",
    "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with: status = StatusCode.RESOURCE_EXHAUSTED details = \"Quota exceeded for quota metric\">",
    "google.api_core.exceptions.ResourceExhausted: 429 Quota exceeded for aiplatform.googleapis.com/custom_model_training_nvidia_a100_gpus",
    "RuntimeError: NCCL error: Call to ibv_reg_mr failed: Cannot allocate memory, check ulimit -l (locked memory)",
    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
    "RuntimeError: DataLoader worker (pid 3817) is killed by signal: Segmentation fault.",
    "Segmentation fault (core dumped)",
    "OSError: [Errno 24] Too many open files: '/data/shard-0041.tar'",
    "FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/cache.bin'",
    "psycopg2.errors.OutOfMemory: out of shared memory HINT: You might need to increase max_locks_per_transaction.",
    "ConnectionError: HTTPSConnectionPool(host='hub.example.org', port=443): Max retries exceeded",
    "AssertionError: memory_format must be contiguous",
    "torch.cuda.CudaError: device-side assert triggered (59)",
    "OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64: Resource temporarily unavailable",
    "RuntimeError: can't start new thread",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
    "ValueError: cannot reshape array of size 4294967296 into shape (1024,1024)",
];

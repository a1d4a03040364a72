//! Programs that die for want of something, and what is to become of them, on one machine and on a cluster alike.

use serde_json::{Value, json};

/// As PyTorch prints it, after some thousand lines of something else.
pub const CUDA: &str = r#"
import os, sys
for step in range(3000):
    print(f"step {step} loss {1 / (step + 1):.4f} oom_score 0", flush=False)
scale = float(os.environ.get("STOKE_MICRO_BATCH_SCALE", "1"))
more = float(os.environ.get("STOKE_GRAD_ACCUM_SCALE", "1"))
assert scale * more == 1.0, (scale, more)
if scale > 0.5:
    print("Traceback (most recent call last):", file=sys.stderr)
    print('  File "train.py", line 88, in <module>', file=sys.stderr)
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.69 GiB of which "
          "811.94 MiB is free. Process 4242 has 22.88 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, "
          "and 402.11 MiB is reserved by PyTorch but unallocated.", file=sys.stderr)
    sys.exit(1)
print("trained with", scale, flush=True)
"#;

pub fn check_cuda(status: &Value) {
    assert_eq!(status["phase"], "Complete", "{status:#}");
    let attempts = attempts(status);
    assert!((2..=3).contains(&attempts.len()), "{status:#}");
    assert_eq!(attempts[0]["diagnosis"]["cause"], "GpuOutOfMemory");
}

/// Writes more to /dev/shm than a small one holds, and ends as a loader that is out of it.
pub const SHARED: &str = r#"
import os, sys
try:
    with open("/dev/shm/batches", "wb") as batches:
        for _ in range(48):
            batches.write(b"x" * (1 << 20))
            batches.flush()
except OSError as error:
    print(f"ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm). ({error})", file=sys.stderr)
    sys.exit(1)
print("all is shared", flush=True)
"#;

fn mount(template: &mut Value, path: &str, volume: Value) {
    let spec = &mut template["spec"];
    let mount = json!({"name": volume["name"], "mountPath": path});
    let mounts = spec["containers"][0]["volumeMounts"].as_array_mut();
    mounts.expect("mounts").push(mount);
    spec["volumes"]
        .as_array_mut()
        .expect("volumes")
        .push(volume);
}

/// Gives the worker a /dev/shm of 16 MiB.
pub fn with_small_shm(template: &mut Value) {
    let memory = json!({"medium": "Memory", "sizeLimit": "16Mi"});
    mount(
        template,
        "/dev/shm",
        json!({"name": "mine", "emptyDir": memory}),
    );
}

pub fn check_shared(status: &Value) {
    assert_eq!(status["phase"], "Complete", "{status:#}");
    let attempts = attempts(status);
    assert_eq!(attempts[0]["diagnosis"]["cause"], "SharedMemory");
    let last = attempts.last().expect("an attempt");
    assert!(bytes(&last["shm"]) >= 48 << 20, "{last:#}");
    assert!(last["changes"].to_string().contains("/dev/shm"), "{last:#}");
}

/// Fills a directory on the node's disk, and stays until it is looked at.
pub const FILLS: &str = r#"
import time
with open("/scratch/cache", "wb") as cache:
    cache.write(b"x" * (24 << 20))
time.sleep(25)
print("all is cached", flush=True)
"#;

/// Gives the worker a /scratch, and 8 MiB of its node's disk.
pub fn with_little_disk(template: &mut Value) {
    mount(
        template,
        "/scratch",
        json!({"name": "scratch", "emptyDir": {}}),
    );
    template["spec"]["containers"][0]["resources"] =
        json!({"limits": {"ephemeral-storage": "8Mi"}});
}

pub fn check_fills(status: &Value) {
    assert_eq!(status["phase"], "Complete", "{status:#}");
    let attempts = attempts(status);
    assert!(attempts.len() <= 3, "{status:#}");
    assert_eq!(
        attempts[0]["diagnosis"]["cause"], "EphemeralStorage",
        "{status:#}"
    );
    assert_eq!(attempts[0]["exit"]["reason"], "Evicted", "{status:#}");
}

/// Keeps ten MiB more each step.
pub const LEAKS: &str = r#"
import time
kept = [bytearray(b"x" * (1 << 20)) for _ in range(100)]
for step in range(35):
    kept.append(bytearray(b"x" * (10 << 20)))
    time.sleep(0.1)
print("done", flush=True)
"#;

/// Of [`LEAKS`] with no more than 160 MiB and no checkpoints.
pub fn check_hopeless(status: &Value) {
    assert_eq!(status["phase"], "Failed", "{status:#}");
    assert_eq!(status["reason"], "OutOfMemory", "{status:#}");
    let attempts = attempts(status);
    assert!(attempts.len() <= 3, "{} attempts", attempts.len());
    let limits = attempts
        .iter()
        .map(|attempt| bytes(&attempt["memory"]["limit"]));
    assert!(limits.max().is_some_and(|limit| limit <= 160 << 20));
}

/// Uses one amount most of the time and more at its peak, and says what it was, in MiB: the median and the most.
pub const STEADY: &str = r#"
import time
def anonymous():
    with open("/proc/self/smaps_rollup") as rollup:
        lines = dict(line.split(":", 1) for line in rollup if ":" in line)
    return int(lines["Anonymous"].split()[0]) // 1024
seen = []
def hold(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        seen.append(anonymous())
        time.sleep(0.1)
def used(mib):
    # Page by page: a copy would be a peak that nobody sees.
    pages = bytearray(mib << 20)
    for page in range(0, len(pages), 4096):
        pages[page] = 1
    return pages
base = used(150)
hold(5)
more = used(100)
hold(2.5)
del more
hold(1)
seen.sort()
print(seen[len(seen) // 2], seen[-1], flush=True)
"#;

/// Of the run of this number, counted from one, of [`STEADY`] with nothing said about memory.
pub fn check_steady(run: usize, status: &Value, logs: &str) {
    assert_eq!(status["phase"], "Complete", "{status:#}");
    let attempts = attempts(status);
    assert_eq!(attempts.len(), 1, "no run is out of memory");
    if run == 1 {
        return;
    }
    let mut truth = logs
        .split_whitespace()
        .map(|it| it.parse::<u64>().expect("MiB"));
    let (median, peak) = (truth.next().expect("it"), truth.next().expect("it"));
    let request = bytes(&attempts[0]["memory"]["request"]) >> 20;
    let limit = bytes(&attempts[0]["memory"]["limit"]) >> 20;
    println!("run {run}: {request} of {median} promised, limit {limit} over {peak}");
    assert!(request * 100 >= median * 85 && request * 100 <= median * 115);
    assert!(limit >= peak && limit * 100 <= peak * 135);
}

fn attempts(status: &Value) -> Vec<Value> {
    status["attempts"].as_array().cloned().unwrap_or_default()
}

fn bytes(amount: &Value) -> u64 {
    let text = amount.as_str().expect("an amount");
    text.parse::<stoke_api::Bytes>().expect("bytes").0
}

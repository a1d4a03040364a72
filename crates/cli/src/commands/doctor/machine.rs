//! The kernel and what it lets us have: limits, namespaces, shared memory, GPUs.

use stoke_api::Bytes;
use stoke_node::cgroup::{self, CgroupVersion, Cgroups};
use stoke_node::shim;
use stoke_node::{GpuSource, Gpus};

use super::Finding;

/// Before this one, unprivileged processes could not mount anything of use.
const KERNEL_MIN: (u32, u32) = (4, 18);
/// Less than this fills quickly with data-loading workers; jobs have their own, of the size of their memory.
const SHM_MIN: u64 = 64 << 20;

pub fn findings() -> Vec<Finding> {
    vec![kernel(), cgroups(), mounts(), shared_memory(), gpus()]
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let found = format!(
        "{} {release}, {}",
        uname.sysname().to_string_lossy(),
        uname.machine().to_string_lossy()
    );
    match version(&release) {
        Some(version) if version < KERNEL_MIN => Finding::warn(
            "kernel",
            found,
            "it is older than 4.18: mounts of jobs may not work",
        ),
        _ => Finding::ok("kernel", found),
    }
}

/// The first two numbers of `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn cgroups() -> Finding {
    const SUBJECT: &str = "memory limits (cgroup)";
    // A place of our own, so that a running engine's is left alone.
    let cgroups = cgroup::detect(&format!("doctor-{}", std::process::id()));
    cgroups.release();
    match &cgroups {
        Cgroups::Usable(_) => {
            let version = match cgroups.version() {
                Some(CgroupVersion::V2) => "v2",
                _ => "v1",
            };
            Finding::ok(SUBJECT, format!("enforced by the kernel, cgroup {version}"))
        }
        Cgroups::Unusable { reason } => Finding::warn(
            SUBJECT,
            format!(
                "no cgroup can be written, so a guard samples and kills at the limit: {reason}"
            ),
            "run the engine as root, or give it a part of the tree: systemd-run --user --scope -p Delegate=yes stoke up",
        ),
    }
}

fn mounts() -> Finding {
    const SUBJECT: &str = "mounts of jobs";
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(error) => {
            return Finding::missing(
                SUBJECT,
                format!("this program cannot be found: {error}"),
                "install stoke in a readable place",
            );
        }
    };
    match shim::capabilities(&exe).mounts {
        Ok(method) => Finding::ok(
            SUBJECT,
            format!("paths such as /ckpt and /data appear for the job only ({method:?})"),
        ),
        Err(reason) => Finding::missing(
            SUBJECT,
            format!("jobs with checkpoints, datasets or volumes are refused: {reason}"),
            userns_advice(),
        ),
    }
}

/// Distributions turn user namespaces off in different places.
fn userns_advice() -> String {
    let says = |path: &str, value: &str| {
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
    };
    if says("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "as root: sysctl kernel.unprivileged_userns_clone=1".to_owned()
    } else if says(
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ) {
        "as root: sysctl kernel.apparmor_restrict_unprivileged_userns=0".to_owned()
    } else if says("/proc/sys/user/max_user_namespaces", "0") {
        "as root: sysctl user.max_user_namespaces=10000".to_owned()
    } else {
        "run the engine as root, or outside of the container that forbids namespaces".to_owned()
    }
}

fn shared_memory() -> Finding {
    const SUBJECT: &str = "/dev/shm";
    match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) => {
            let size = stat.f_blocks.saturating_mul(stat.f_frsize);
            let found = Bytes(size).human();
            if size < SHM_MIN {
                Finding::warn(
                    SUBJECT,
                    found,
                    "commands outside of jobs may fail with bus errors: mount -o remount,size=50% /dev/shm",
                )
            } else {
                Finding::ok(SUBJECT, found)
            }
        }
        Err(error) => Finding::warn(
            SUBJECT,
            format!("not there: {error}"),
            "mount -t tmpfs tmpfs /dev/shm",
        ),
    }
}

fn gpus() -> Finding {
    const SUBJECT: &str = "GPUs (NVML)";
    let devices = Gpus::detect(0).devices();
    if devices.is_empty() {
        return Finding::warn(
            SUBJECT,
            "none: no NVIDIA driver answers",
            "jobs train on the CPU; to try the shape of a GPU job: stoke up --gpus N (simulated)",
        );
    }
    let told: Vec<String> = devices
        .iter()
        .map(|gpu| {
            format!(
                "{} {} ({})",
                gpu.index,
                gpu.product,
                Bytes(gpu.memory_bytes).human()
            )
        })
        .collect();
    Finding::ok(SUBJECT, told.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_read() {
        for (release, expected) in [
            ("6.1.0-13-amd64", Some((6, 1))),
            ("4.18.0", Some((4, 18))),
            ("5.15", Some((5, 15))),
            ("", None),
            ("weird", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }
}

//! Cgroups of both versions against recorded files, so that both code paths are run on every machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stoke_node::cgroup::{
    CgroupSpec, CgroupVersion, Cgroups, Limits, MemorySample, Pressure, detect_below,
};

/// A directory that looks like a group of that version.
fn recorded(version: &str, at: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/cgroup")
        .join(version);
    fs::create_dir_all(at).expect("ours");
    for entry in fs::read_dir(from).expect("recorded") {
        let entry = entry.expect("recorded");
        fs::copy(entry.path(), at.join(entry.file_name())).expect("ours");
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .trim()
        .to_owned()
}

fn v1(dir: &Path) -> CgroupSpec {
    let spec = serde_json::json!({
        "version": "v1", "memory": dir.join("memory"), "cpu": dir.join("cpu"), "pids": dir.join("pids"),
        "cpuacct": dir.join("cpu"),
    });
    serde_json::from_value(spec).expect("the shape in shim.json")
}

fn v2(dir: &Path) -> CgroupSpec {
    CgroupSpec::V2 {
        path: dir.to_owned(),
    }
}

const MIB: u64 = 1 << 20;

const LIMITS: Limits = Limits {
    memory_bytes: Some(512 * MIB),
    cpu_request_millis: Some(1500),
    cpu_limit_millis: Some(2500),
    pids_max: Some(4096),
};

#[test]
fn samples_of_v1() {
    let dir = tempfile::tempdir().expect("a directory");
    recorded("v1", &dir.path().join("memory"));
    fs::create_dir(dir.path().join("cpu")).expect("ours");
    fs::write(dir.path().join("cpu/cpuacct.usage"), "7431125000\n").expect("ours");
    let group = v1(dir.path());
    let expected = MemorySample {
        usage_bytes: 184_549_376,
        working_set_bytes: 184_549_376 - 26_214_400,
        peak_bytes: Some(201_326_592),
        limit_bytes: Some(256 * MIB),
        anon_bytes: 138_412_032,
        shmem_bytes: 8_388_608,
        active_file_bytes: 7_917_568,
        inactive_file_bytes: 26_214_400,
        kernel_bytes: 3_616_768,
        kernel_reclaimable_bytes: 0,
        swap_bytes: 4096,
        oom_kills: 2,
        limit_events: 17,
        held: false,
        pressure: None,
    };
    assert_eq!(
        group.memory().expect("recorded"),
        expected,
        "children are counted in"
    );
    assert_eq!((group.oom_kills(), group.cpu_usec()), (2, Some(7_431_125)));
    fs::write(
        dir.path().join("memory/memory.limit_in_bytes"),
        "9223372036854771712\n",
    )
    .expect("ours");
    assert_eq!(group.memory().expect("recorded").limit_bytes, None);
}

#[test]
fn samples_of_v2() {
    let dir = tempfile::tempdir().expect("a directory");
    recorded("v2", dir.path());
    let group = v2(dir.path());
    let expected = MemorySample {
        usage_bytes: 186_179_584,
        working_set_bytes: 186_179_584 - 26_214_400,
        peak_bytes: Some(201_326_592),
        limit_bytes: Some(256 * MIB),
        anon_bytes: 138_412_032,
        shmem_bytes: 8_388_608,
        active_file_bytes: 7_917_568,
        inactive_file_bytes: 26_214_400,
        kernel_bytes: 5_242_880,
        kernel_reclaimable_bytes: 3_128_704,
        swap_bytes: 0,
        oom_kills: 2,
        limit_events: 17,
        held: false,
        pressure: Some(Pressure {
            some_avg10: 4.35,
            some_total_usec: 2_913_044,
            full_avg10: 3.9,
            full_total_usec: 2_544_120,
        }),
    };
    assert_eq!(group.memory().expect("recorded"), expected);
    assert_eq!((group.oom_kills(), group.cpu_usec()), (2, Some(7_431_125)));
    // An older kernel: no peak, no pressure, no sum of the kernel's part, no limit.
    for absent in ["memory.peak", "memory.pressure", "memory.swap.current"] {
        fs::remove_file(dir.path().join(absent)).expect("ours");
    }
    let stat = text(&dir.path().join("memory.stat")).replace("kernel 5242880\n", "");
    fs::write(dir.path().join("memory.stat"), stat).expect("ours");
    fs::write(dir.path().join("memory.max"), "max\n").expect("ours");
    let older = group.memory().expect("recorded");
    assert_eq!(
        (older.peak_bytes, older.pressure, older.limit_bytes),
        (None, None, None)
    );
    assert_eq!(older.kernel_bytes, 262_144 + 917_504 + 1152 + 3_941_008);
}

#[test]
fn v1_lets_processes_wait_at_the_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    recorded("v1", &dir.path().join("memory"));
    let group = v1(dir.path());
    let control = dir.path().join("memory/memory.oom_control");
    group.hold(256 * MIB, true).expect("writable");
    assert_eq!(text(&control), "1");
    group.hold(256 * MIB, false).expect("writable");
    assert_eq!(text(&control), "0");
    for (disabled, under, held) in [(0, 0, false), (0, 1, false), (1, 0, false), (1, 1, true)] {
        let recorded = format!("oom_kill_disable {disabled}\nunder_oom {under}\noom_kill 0\n");
        fs::write(&control, recorded).expect("ours");
        assert_eq!(group.is_holding(), held);
        assert_eq!(group.memory().expect("recorded").held, held);
    }
    fs::remove_file(&control).expect("ours");
    group
        .hold(256 * MIB, true)
        .expect("a kernel that cannot is none the worse");
    assert!(!group.is_holding());
}

#[test]
fn v2_slows_processes_down_before_the_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    recorded("v2", dir.path());
    let group = v2(dir.path());
    group
        .hold(256 * MIB, true)
        .expect("a kernel that cannot is none the worse");
    assert!(!group.is_holding());
    let high = dir.path().join("memory.high");
    fs::write(&high, "max\n").expect("ours");
    group.hold(256 * MIB, true).expect("writable");
    assert_eq!(text(&high), (224 * MIB).to_string());
    assert!(!group.is_holding(), "142 MiB are below it");
    // Page cache above it is no matter; what cannot be taken back is.
    group.hold(160 * MIB, true).expect("writable");
    assert_eq!(text(&high), (140 * MIB).to_string());
    assert!(group.is_holding());
    group.hold(160 * MIB, false).expect("writable");
    assert_eq!(text(&high), "max");
    assert!(!group.is_holding());
}

#[test]
fn limits_of_v1() {
    let dir = tempfile::tempdir().expect("a directory");
    recorded("v1", &dir.path().join("memory"));
    for (controller, files) in [
        (
            "cpu",
            &["cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"][..],
        ),
        ("pids", &["pids.max"]),
    ] {
        fs::create_dir(dir.path().join(controller)).expect("ours");
        for file in files {
            fs::write(dir.path().join(controller).join(file), "").expect("ours");
        }
    }
    let group = v1(dir.path());
    group.create(&LIMITS).expect("writable");
    for (file, expected) in [
        ("memory/memory.limit_in_bytes", "536870912"),
        ("memory/memory.memsw.limit_in_bytes", "536870912"),
        ("cpu/cpu.shares", "1536"),
        ("cpu/cpu.cfs_period_us", "100000"),
        ("cpu/cpu.cfs_quota_us", "250000"),
        ("pids/pids.max", "4096"),
    ] {
        assert_eq!(text(&dir.path().join(file)), expected, "{file}");
    }
    // A kernel without the accounting of swap, and one without a controller that we could live without.
    fs::remove_file(dir.path().join("memory/memory.memsw.limit_in_bytes")).expect("ours");
    fs::remove_file(dir.path().join("cpu/cpu.cfs_quota_us")).expect("ours");
    group
        .create(&LIMITS)
        .expect("what is absent is passed over");
    fs::remove_file(dir.path().join("memory/memory.limit_in_bytes")).expect("ours");
    group
        .create(&LIMITS)
        .expect_err("a memory limit that cannot be set is no limit");
}

#[test]
fn limits_of_v2() {
    let dir = tempfile::tempdir().expect("a directory");
    recorded("v2", dir.path());
    let group = v2(dir.path());
    group.create(&LIMITS).expect("writable");
    for (file, expected) in [
        ("memory.max", "536870912"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("cpu.weight", "59"),
        ("cpu.max", "250000 100000"),
        ("pids.max", "4096"),
    ] {
        assert_eq!(text(&dir.path().join(file)), expected, "{file}");
    }
    group.set_memory_limit(MIB).expect("writable");
    assert_eq!(text(&dir.path().join("memory.max")), "1048576");
    group.create_parent().expect("writable");
    // The kernel would add them up; a plain file keeps the last.
    assert_eq!(text(&dir.path().join("cgroup.subtree_control")), "+pids");
}

#[test]
fn a_group_that_is_gone_is_empty() {
    for group in [
        v1(Path::new("/no/such/place")),
        v2(Path::new("/no/such/place")),
    ] {
        group.memory().expect_err("nothing to read");
        assert_eq!(
            (group.oom_kills(), group.cpu_usec(), group.processes()),
            (0, None, BTreeSet::new())
        );
        group.kill(Duration::ZERO).expect("nobody to kill");
        group.remove(Duration::ZERO).expect("nothing to remove");
    }
}

/// A machine: `/proc/self/{mountinfo,cgroup}` and directories that look like groups.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new(mountinfo: &str, membership: &str) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let proc = root.path().join("proc/self");
        fs::create_dir_all(&proc).expect("ours");
        fs::write(proc.join("mountinfo"), mountinfo).expect("ours");
        fs::write(proc.join("cgroup"), membership).expect("ours");
        Self { root }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn group(self, version: &str, path: &str) -> Self {
        recorded(version, &self.path(path));
        self
    }

    fn hands_down(self, path: &str) -> Self {
        fs::write(
            self.path(path).join("cgroup.subtree_control"),
            "cpu memory pids\n",
        )
        .expect("ours");
        self
    }

    fn detect(&self) -> Cgroups {
        detect_below(self.root.path(), "engine")
    }
}

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:7 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw,nsdelegate
";
const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

#[test]
fn v1_is_found_below_our_own_group() {
    let machine = Machine::new(HYBRID, "4:memory:/mine\n1:cpu,cpuacct:/\n0::/user.slice\n")
        .group("v1", "sys/fs/cgroup/memory/mine")
        // The kernel fills new groups with files; here they have to be there already.
        .group("v1", "sys/fs/cgroup/memory/mine/stokehold/engine")
        .group("v1", "sys/fs/cgroup/cpu,cpuacct");
    fs::create_dir_all(machine.path("sys/fs/cgroup/unified")).expect("ours");
    fs::write(
        machine.path("sys/fs/cgroup/unified/cgroup.controllers"),
        "hugetlb\n",
    )
    .expect("ours");
    let found = machine.detect();
    assert_eq!(
        found.version(),
        Some(CgroupVersion::V1),
        "a unified hierarchy without memory is of no use: {found:?}"
    );
    let pod = found.pod("1-2").expect("usable");
    assert_eq!(
        pod.path(),
        machine.path("sys/fs/cgroup/memory/mine/stokehold/engine/pod1-2")
    );
    let CgroupSpec::V1(dirs) = &pod else {
        panic!("{pod:?}")
    };
    let cpu = machine.path("sys/fs/cgroup/cpu,cpuacct/stokehold/engine/pod1-2");
    assert_eq!(
        (dirs.cpu.as_ref(), dirs.cpuacct.as_ref(), dirs.pids.as_ref()),
        (Some(&cpu), Some(&cpu), None)
    );
}

#[test]
fn v2_is_found_where_controllers_are_handed_down() {
    let slice = "sys/fs/cgroup/user.slice";
    let machine = Machine::new(UNIFIED, "0::/user.slice/session.scope\n")
        .group("v2", "sys/fs/cgroup")
        .group("v2", slice)
        .hands_down(slice)
        .group("v2", "sys/fs/cgroup/user.slice/session.scope")
        .group("v2", "sys/fs/cgroup/user.slice/stokehold")
        .group("v2", "sys/fs/cgroup/user.slice/stokehold/engine");
    // Our own group holds other processes and refuses to hand anything down.
    fs::remove_file(machine.path("sys/fs/cgroup/user.slice/session.scope/cgroup.subtree_control"))
        .expect("ours");
    fs::create_dir(machine.path("sys/fs/cgroup/user.slice/session.scope/cgroup.subtree_control"))
        .expect("ours");
    let found = machine.detect();
    let pod = found.pod("1-2").unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!(
        pod,
        v2(&machine.path("sys/fs/cgroup/user.slice/stokehold/engine/pod1-2"))
    );
}

#[test]
fn inside_a_container_the_mounted_part_is_the_top() {
    let mounts = UNIFIED.replace(" / /sys", " /docker/abc /sys");
    let machine = Machine::new(&mounts, "0::/docker/abc\n")
        .group("v2", "sys/fs/cgroup")
        .group("v2", "sys/fs/cgroup/stokehold")
        .group("v2", "sys/fs/cgroup/stokehold/engine");
    let found = machine.detect();
    assert_eq!(
        found,
        Cgroups::Usable(v2(&machine.path("sys/fs/cgroup/stokehold/engine")))
    );
}

#[test]
fn nothing_usable_is_explained() {
    let cases = [
        (
            Machine::new("", "0::/\n"),
            "no cgroup filesystem is mounted",
        ),
        (
            Machine::new(HYBRID.split_inclusive('\n').next().unwrap_or(""), "0::/\n"),
            "no cgroup filesystem",
        ),
        (
            Machine::new(
                "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
                "1:cpu:/\n",
            ),
            "memory controller",
        ),
        (
            Machine::new(HYBRID, "4:memory:/\n"),
            "sys/fs/cgroup/memory/stokehold/engine",
        ),
    ];
    for (machine, expected) in cases {
        // A file in the way stands for a directory that may not be written.
        fs::create_dir_all(machine.path("sys/fs/cgroup/memory")).expect("ours");
        fs::write(machine.path("sys/fs/cgroup/memory/stokehold"), "").expect("ours");
        match machine.detect() {
            Cgroups::Unusable { reason } => assert!(reason.contains(expected), "{reason}"),
            usable @ Cgroups::Usable(_) => panic!("{expected}: {usable:?}"),
        }
    }
    assert!(matches!(
        detect_below(Path::new("/no/such/root"), "engine"),
        Cgroups::Unusable { .. }
    ));
    assert!(matches!(
        detect_below(Path::new("/"), "../engine"),
        Cgroups::Unusable { .. }
    ));
}

#[test]
fn orphans_are_told_from_known_pods() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["podknown/main", "podorphan/main/own", "other"] {
        fs::create_dir_all(dir.path().join(name)).expect("ours");
    }
    let cgroups = Cgroups::Usable(v2(dir.path()));
    let (removed, errors) = cgroups.remove_orphans(&BTreeSet::from(["known".to_owned()]));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(removed, BTreeSet::from(["podorphan".to_owned()]));
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .expect("ours")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["other", "podknown"]);
}

//! One look at every container's cgroup. Files are read, nothing is remembered but the layout.
//!
//! Most of the time a second between two looks is enough. A container for which something can be done is glanced at in between: one number,
//! and a whole look only where it has moved.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stoke_api::contract::{JobStatus, STATUS_VOLUME};

use super::layout::{Layout, LayoutError};
use super::neighbours::{NodeLook, Place};
use super::roster::{Outcome, Reading, Target};
use crate::causes;
use crate::cgroup::{CgroupError, CgroupSpec, Gauge};
use crate::status_file;

/// A tree is walked again this often at most, when a container is not found in the one we know.
const REDETECT: Duration = Duration::from_secs(10);
const MOVED_MIN_BYTES: u64 = 1 << 20;
/// Groups whose files stay open between two looks, eight files each: many a process may have a thousand.
const GAUGES_MAX: usize = 96;

/// What is to be looked at.
pub(super) enum Work {
    /// Those whose use has moved, of these.
    Glance(Vec<Target>),
    /// All of these, the node, and if it is time for that, pods that are not measured.
    Pass {
        targets: Vec<Target>,
        strangers: Option<Vec<Place>>,
    },
}

impl Work {
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::Glance(targets) if targets.is_empty())
    }
}

pub(super) struct Found {
    pub(super) readings: Vec<Reading>,
    pub(super) node: Option<NodeLook>,
    pub(super) has_strangers: bool,
}

#[derive(Debug)]
pub(super) struct Sampler {
    mount: PathBuf,
    /// Where the kubelet keeps its pods' volumes, if we may look there.
    volumes: Option<PathBuf>,
    layout: Layout,
    detected: Instant,
    /// By the group's directory.
    gauges: HashMap<PathBuf, Gauge>,
}

impl Sampler {
    pub(super) fn new(mount: PathBuf, volumes: Option<PathBuf>) -> Result<Self, LayoutError> {
        Ok(Self {
            layout: Layout::detect(&mount)?,
            mount,
            volumes,
            detected: Instant::now(),
            gauges: HashMap::new(),
        })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Blocks on the file system, which is the kernel's own and answers at once.
    pub(super) fn work(&mut self, work: Work) -> Found {
        match work {
            Work::Glance(targets) => Found {
                readings: self.glance(targets),
                node: None,
                has_strangers: false,
            },
            Work::Pass { targets, strangers } => Found {
                readings: self.pass(targets),
                node: Some(NodeLook::take(
                    &self.layout,
                    strangers.as_deref().unwrap_or_default(),
                )),
                has_strangers: strangers.is_some(),
            },
        }
    }

    fn pass(&mut self, targets: Vec<Target>) -> Vec<Reading> {
        let mut readings: Vec<Reading> = Vec::with_capacity(targets.len());
        for target in targets {
            let outcome = self.look(&target);
            readings.push(Reading {
                pod_uid: target.pod_uid,
                id: target.container.id,
                outcome,
            });
        }
        let is_any_absent = readings
            .iter()
            .any(|reading| matches!(reading.outcome, Outcome::Absent));
        if is_any_absent && self.detected.elapsed() >= REDETECT {
            self.detected = Instant::now();
            // What was known stays known where the tree cannot be read just now.
            if let Ok(layout) = Layout::detect(&self.mount) {
                self.layout = layout;
            }
        }
        let seen: HashSet<&Path> = readings.iter().filter_map(Reading::directory).collect();
        self.gauges.retain(|path, _| seen.contains(path.as_path()));
        readings
    }

    /// A whole look at those whose use has moved noticeably since the last, and only at them.
    fn glance(&mut self, targets: Vec<Target>) -> Vec<Reading> {
        let mut readings = Vec::new();
        for target in targets {
            if !self.has_moved(&target) {
                continue;
            }
            readings.push(Reading {
                outcome: self.look(&target),
                pod_uid: target.pod_uid,
                id: target.container.id,
            });
        }
        readings
    }

    fn has_moved(&mut self, target: &Target) -> bool {
        let usage = target
            .cgroup
            .as_ref()
            .and_then(|cgroup| self.gauged(cgroup, Gauge::usage_bytes));
        let step = (target.usage / 64).max(MOVED_MIN_BYTES);
        usage.is_some_and(|usage| usage.abs_diff(target.usage) >= step)
    }

    fn gauged<T>(&mut self, cgroup: &CgroupSpec, read: impl FnOnce(&mut Gauge) -> T) -> T {
        if let Some(gauge) = self.gauges.get_mut(cgroup.path()) {
            return read(gauge);
        }
        let mut gauge = Gauge::open(cgroup);
        let value = read(&mut gauge);
        if self.gauges.len() < GAUGES_MAX {
            self.gauges.insert(cgroup.path().to_owned(), gauge);
        }
        value
    }

    /// What the program of a worker says of itself, where we may look.
    fn said(&self, target: &Target) -> JobStatus {
        let volumes = self.volumes.as_ref().filter(|_| target.is_worker);
        let said = volumes.and_then(|volumes| {
            let pod = volumes.join(&target.container.pod_uid);
            status_file::read(
                &pod.join("volumes/kubernetes.io~empty-dir")
                    .join(STATUS_VOLUME),
            )
        });
        said.unwrap_or_default()
    }

    /// Of version 1: a kubelet makes the same group below every controller.
    fn accounting(&self, memory: &Path) -> Option<PathBuf> {
        let group = memory.strip_prefix(self.mount.join("memory")).ok()?;
        Some(self.mount.join("cpuacct").join(group))
    }

    fn look(&mut self, target: &Target) -> Outcome {
        let cgroup = match &target.cgroup {
            Some(known) => known.clone(),
            None => match self.layout.find(&target.container) {
                Ok(Some(path)) => {
                    let cpuacct = self.accounting(&path);
                    CgroupSpec::foreign(self.layout.version, path).accounted_in(cpuacct)
                }
                Ok(None) => return Outcome::Absent,
                Err(error) => return Outcome::Unreadable(causes::chain(&error)),
            },
        };
        let cpu_usec = target.wants_cpu.then(|| cgroup.cpu_usec());
        match self.gauged(&cgroup, Gauge::read) {
            Ok(sample) => Outcome::Measured {
                cgroup: Box::new(cgroup),
                sample,
                said: self.said(target),
                cpu_usec: cpu_usec.flatten(),
            },
            Err(CgroupError::Read { source, .. }) if is_gone(&source) => Outcome::Absent,
            Err(CgroupError::Read { path, source }) => {
                Outcome::Unreadable(format!("cannot read {}: {source}", path.display()))
            }
            Err(error) => Outcome::Unreadable(error.to_string()),
        }
    }
}

/// A cgroup that is removed while its files are open answers with "no such device".
fn is_gone(error: &io::Error) -> bool {
    const NO_DEVICE: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use stoke_memory::Sample;

    use super::super::layout::{Container, Qos};
    use super::*;
    use crate::cgroup::{Limits, detect};

    fn write(directory: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(directory).unwrap();
        for (name, text) in files {
            fs::write(directory.join(name), text).unwrap();
        }
    }

    fn target(id: &str) -> Target {
        Target {
            pod_uid: "u1".to_owned(),
            container: Container {
                pod_uid: "u1".to_owned(),
                qos: Some(Qos::Burstable),
                id: id.to_owned(),
            },
            cgroup: None,
            is_worker: true,
            usage: 0,
            wants_cpu: false,
        }
    }

    fn sample(reading: &Reading) -> crate::cgroup::MemorySample {
        match &reading.outcome {
            Outcome::Measured { sample, .. } => *sample,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cpu_time_is_read_where_it_is_wanted_on_v1_and_v2() {
        for (group, file, text) in [
            (
                "cpuacct/kubepods/burstable/podu1/a",
                "cpuacct.usage",
                "7000000\n",
            ),
            (
                "kubepods/burstable/podu1/a",
                "cpu.stat",
                "usage_usec 7000\nuser_usec 1\n",
            ),
        ] {
            let tree = tempfile::tempdir().unwrap();
            let is_v1 = file.starts_with("cpuacct");
            if is_v1 {
                let memory = tree.path().join("memory");
                write(&memory, &[("memory.usage_in_bytes", "1")]);
                let used = [
                    ("memory.usage_in_bytes", "1000\n"),
                    ("memory.stat", "total_rss 600\n"),
                ];
                write(&memory.join("kubepods/burstable/podu1/a"), &used);
            } else {
                write(tree.path(), &[("cgroup.controllers", "cpu memory")]);
                let used = [("memory.current", "1000\n"), ("memory.stat", "anon 600\n")];
                write(&tree.path().join(group), &used);
            }
            write(&tree.path().join(group), &[(file, text)]);
            let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
            for wants_cpu in [true, false] {
                let wanted = Target {
                    wants_cpu,
                    ..target("a")
                };
                let readings = sampler.pass(vec![wanted]);
                let Outcome::Measured { cpu_usec, .. } = &readings[0].outcome else {
                    panic!("{readings:?}");
                };
                assert_eq!(*cpu_usec, wants_cpu.then_some(7000), "{file}");
            }
        }
    }

    #[test]
    fn v1_is_read_as_the_kernel_writes_it() {
        let tree = tempfile::tempdir().unwrap();
        let memory = tree.path().join("memory");
        write(&memory, &[("memory.usage_in_bytes", "1")]);
        write(
            &memory.join("kubepods/burstable/podu1/a"),
            &[
                ("memory.usage_in_bytes", "1000\n"),
                ("memory.max_usage_in_bytes", "1500\n"),
                ("memory.limit_in_bytes", "2000\n"),
                ("memory.kmem.usage_in_bytes", "70\n"),
                ("memory.failcnt", "4\n"),
                (
                    "memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
                ),
                (
                    "memory.stat",
                    "cache 9\nrss 1\ntotal_cache 300\ntotal_rss 600\ntotal_shmem 40\ntotal_swap 5\ntotal_inactive_file 100\ntotal_active_file 160\n",
                ),
            ],
        );
        let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
        let readings = sampler.pass(vec![target("a"), target("gone")]);
        let seen = sample(&readings[0]);
        assert_eq!((seen.usage_bytes, seen.working_set_bytes), (1000, 900));
        assert_eq!(
            (seen.anon_bytes, seen.shmem_bytes, seen.kernel_bytes),
            (600, 40, 70)
        );
        assert_eq!(
            (seen.limit_bytes, seen.peak_bytes),
            (Some(2000), Some(1500))
        );
        assert_eq!(
            (seen.oom_kills, seen.limit_events, seen.swap_bytes),
            (2, 4, 5)
        );
        assert!(matches!(readings[1].outcome, Outcome::Absent));
    }

    #[test]
    fn v2_is_read_as_the_kernel_writes_it() {
        let tree = tempfile::tempdir().unwrap();
        write(tree.path(), &[("cgroup.controllers", "cpu memory")]);
        let own = tree.path().join(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice/cri-containerd-a.scope",
        );
        write(
            &own,
            &[
                ("memory.current", "1000\n"),
                ("memory.max", "max\n"),
                ("memory.swap.current", "6\n"),
                ("memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n"),
                (
                    "memory.stat",
                    "anon 600\nfile 300\nkernel 70\nslab_reclaimable 30\nshmem 40\ninactive_file 100\nactive_file 160\n",
                ),
                (
                    "memory.pressure",
                    "some avg10=1.50 avg60=0.00 avg300=0.00 total=1234567\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=234567\n",
                ),
            ],
        );
        let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
        let seen = sample(&sampler.pass(vec![target("a")])[0]);
        assert_eq!((seen.usage_bytes, seen.working_set_bytes), (1000, 900));
        assert_eq!((seen.limit_bytes, seen.peak_bytes), (None, None));
        assert_eq!(
            (seen.oom_kills, seen.limit_events, seen.swap_bytes),
            (1, 3, 6)
        );
        assert_eq!(seen.pressure.map(|p| p.some_total_usec), Some(1_234_567));
        let known = Sample::from(&seen);
        assert_eq!(known.unreclaimable(), 600 + 40 + 70 - 30);
        assert_eq!(known.cache(), 260);
        // It ends before it is looked at.
        fs::remove_dir_all(&own).unwrap();
        let known = Target {
            cgroup: Some(CgroupSpec::foreign(sampler.layout().version, own)),
            ..target("a")
        };
        let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
        assert!(matches!(
            sampler.pass(vec![known])[0].outcome,
            Outcome::Absent
        ));
    }

    #[test]
    fn a_group_that_the_kernel_removes_between_two_looks_is_absent() {
        let engine = format!("test-sample-{}", std::process::id());
        let cgroups = detect(&engine);
        let Some(pod) = cgroups.pod("p1") else {
            eprintln!("skipped: no cgroups can be made here: {cgroups:?}");
            return;
        };
        pod.create_parent().unwrap();
        let group = pod.child("a");
        group.create(&Limits::default()).unwrap();
        let tree = tempfile::tempdir().unwrap();
        write(tree.path(), &[("cgroup.controllers", "memory")]);
        let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
        let known = Target {
            cgroup: Some(group.clone()),
            ..target("a")
        };
        for _ in 0..2 {
            let seen = sampler.pass(vec![known.clone()]);
            assert!(matches!(seen[0].outcome, Outcome::Measured { .. }));
            assert_eq!(sampler.gauges.len(), 1);
        }
        group.remove(Duration::from_secs(5)).unwrap();
        let seen = sampler.pass(vec![known]);
        assert!(matches!(seen[0].outcome, Outcome::Absent), "{seen:?}");
        assert!(sampler.gauges.is_empty(), "nothing of it stays open");
        pod.remove(Duration::from_secs(5)).unwrap();
        cgroups.release();
    }

    #[test]
    fn a_glance_looks_only_at_what_has_moved() {
        let tree = tempfile::tempdir().unwrap();
        write(tree.path(), &[("cgroup.controllers", "memory")]);
        let pod = tree.path().join("kubepods/burstable/podu1");
        let used = |id: &str, mebibytes: u64| {
            write(
                &pod.join(id),
                &[("memory.current", &(mebibytes << 20).to_string())],
            );
        };
        used("a", 100);
        used("b", 100);
        let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
        let at = |id: &str| Target {
            cgroup: Some(CgroupSpec::foreign(sampler.layout().version, pod.join(id))),
            usage: 100 << 20,
            ..target(id)
        };
        let targets = vec![at("a"), at("b"), at("gone")];
        let glance = |sampler: &mut Sampler| sampler.work(Work::Glance(targets.clone())).readings;
        assert!(glance(&mut sampler).is_empty(), "nothing has moved");
        used("b", 104);
        let readings = glance(&mut sampler);
        assert_eq!(readings.len(), 1);
        assert_eq!(
            (readings[0].id.as_str(), sample(&readings[0]).usage_bytes),
            ("b", 104 << 20)
        );
    }

    #[test]
    fn what_cannot_be_read_is_told_and_hides_no_other() {
        let tree = tempfile::tempdir().unwrap();
        write(tree.path(), &[("cgroup.controllers", "memory")]);
        let pod = tree.path().join("kubepods/burstable/podu1");
        // A directory where a file should be: unreadable for everyone, root included.
        fs::create_dir_all(pod.join("a/memory.current")).unwrap();
        write(&pod.join("b"), &[("memory.current", "5")]);
        let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
        let readings = sampler.pass(vec![target("a"), target("b")]);
        assert!(
            matches!(&readings[0].outcome, Outcome::Unreadable(why) if why.contains("memory.current"))
        );
        assert_eq!(sample(&readings[1]).usage_bytes, 5);
    }

    #[test]
    fn a_place_that_is_closed_is_not_told_as_one_without_the_cgroup() {
        let tree = tempfile::tempdir().unwrap();
        write(tree.path(), &[("cgroup.controllers", "memory")]);
        let class = tree.path().join("kubepods/burstable");
        fs::create_dir(tree.path().join("kubepods")).unwrap();
        // A link to itself: closed to everyone, root included.
        std::os::unix::fs::symlink(&class, &class).unwrap();
        let mut sampler = Sampler::new(tree.path().to_owned(), None).unwrap();
        let readings = sampler.pass(vec![target("a")]);
        assert!(
            matches!(&readings[0].outcome, Outcome::Unreadable(why) if why.contains("cannot read") && why.contains("podu1/a")),
            "{readings:?}"
        );
    }
}

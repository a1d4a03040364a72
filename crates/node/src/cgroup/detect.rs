//! Which cgroups this machine lets us have, or why none.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::{CgroupError, CgroupSpec, CgroupVersion, children, file, v1, v2};

/// The directory below the parent that is all ours.
const OURS: &str = "stokehold";
/// Where the engine moves itself on v2, when it is alone in a group that would have to hand controllers down.
const ENGINE_LEAF: &str = "stokehold-engine";
const KILL_WITHIN: Duration = Duration::from_secs(2);

/// The engine's own part of the cgroup tree, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroups {
    /// `stokehold/<engine id>`, created and able to hold the groups of pods.
    Usable(CgroupSpec),
    /// A sentence for people.
    Unusable { reason: String },
}

impl Cgroups {
    pub fn version(&self) -> Option<CgroupVersion> {
        self.spec().map(CgroupSpec::version)
    }

    /// The group of a pod, for its shim to create.
    pub fn pod(&self, uid: &str) -> Option<CgroupSpec> {
        self.spec().map(|spec| spec.child(&pod_name(uid)))
    }

    fn spec(&self) -> Option<&CgroupSpec> {
        match self {
            Self::Usable(spec) => Some(spec),
            Self::Unusable { .. } => None,
        }
    }

    /// Ends and removes the groups of pods that nobody knows. Gives back the names of those removed and what could not be.
    pub fn remove_orphans(
        &self,
        known_uids: &BTreeSet<String>,
    ) -> (BTreeSet<String>, Vec<CgroupError>) {
        let known: BTreeSet<String> = known_uids.iter().map(|uid| pod_name(uid)).collect();
        let (mut removed, mut errors) = (BTreeSet::new(), Vec::new());
        let Some(spec) = self.spec() else {
            return (removed, errors);
        };
        let names: BTreeSet<String> = spec
            .dirs()
            .flat_map(children)
            .filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned()))
            .filter(|name| name.starts_with(POD_PREFIX) && !known.contains(name))
            .collect();
        for name in names {
            let orphan = spec.child(&name);
            match orphan
                .kill(KILL_WITHIN)
                .and_then(|()| orphan.remove(KILL_WITHIN))
            {
                Ok(()) => drop(removed.insert(name)),
                Err(error) => errors.push(error),
            }
        }
        (removed, errors)
    }

    /// Removes what [`detect`] made, if no pod is in it.
    pub fn release(&self) {
        let Some(spec) = self.spec() else { return };
        for dir in spec.dirs() {
            // Not empty means still in use, also by another engine one level up.
            if fs::remove_dir(dir).is_ok()
                && let Some(ours) = dir.parent()
            {
                let _ = fs::remove_dir(ours);
            }
        }
    }
}

const POD_PREFIX: &str = "pod";

fn pod_name(uid: &str) -> String {
    format!("{POD_PREFIX}{uid}")
}

/// Finds, makes and tries the place for this engine's groups. `engine_id` tells engines on one machine apart.
pub fn detect(engine_id: &str) -> Cgroups {
    detect_below(Path::new("/"), engine_id)
}

/// [`detect`] with another root for `/proc` and `/sys`.
pub fn detect_below(root: &Path, engine_id: &str) -> Cgroups {
    if engine_id.is_empty() || engine_id.contains(['/', '.', '\n']) {
        return unusable(format!(
            "the engine's id {engine_id:?} is no name for a cgroup"
        ));
    }
    let machine = match Machine::read(root) {
        Ok(machine) => machine,
        Err(error) => {
            return unusable(format!(
                "what cgroups there are cannot be read from /proc: {error}"
            ));
        }
    };
    machine.choose(engine_id)
}

fn unusable(reason: String) -> Cgroups {
    Cgroups::Unusable { reason }
}

/// One mounted hierarchy and where this process is in it.
struct Hierarchy {
    mount_point: PathBuf,
    own: PathBuf,
}

impl Hierarchy {
    /// From this process's own group up to the top of what is mounted.
    fn upwards(&self) -> impl Iterator<Item = &Path> {
        self.own
            .ancestors()
            .take_while(|dir| dir.starts_with(&self.mount_point))
    }
}

struct Machine {
    mounts: Vec<CgroupMount>,
    /// Controllers (none on v2) and the path of this process's group.
    memberships: Vec<(Vec<String>, String)>,
    root: PathBuf,
}

struct CgroupMount {
    /// Which part of the hierarchy is mounted: not all of it inside a container.
    part: String,
    point: String,
    version: CgroupVersion,
    options: Vec<String>,
}

impl Machine {
    fn read(root: &Path) -> io::Result<Self> {
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo"))?;
        let memberships = fs::read_to_string(root.join("proc/self/cgroup"))?;
        Ok(Self {
            mounts: mounts.lines().filter_map(cgroup_mount).collect(),
            memberships: memberships
                .lines()
                .filter_map(|line| {
                    let mut fields = line.splitn(3, ':').skip(1);
                    let controllers = fields
                        .next()?
                        .split(',')
                        .filter(|name| !name.is_empty())
                        .map(str::to_owned);
                    Some((controllers.collect(), fields.next()?.to_owned()))
                })
                .collect(),
            root: root.to_owned(),
        })
    }

    fn choose(&self, engine_id: &str) -> Cgroups {
        if let Some(unified) = self.unified() {
            let controllers =
                file::read(&unified.mount_point.join("cgroup.controllers")).unwrap_or_default();
            if controllers.split_whitespace().any(|name| name == "memory") {
                return choose_v2(&unified, engine_id);
            }
        }
        match self.controller("memory") {
            Some(memory) => self.choose_v1(&memory, engine_id),
            None if self.mounts.is_empty() => {
                unusable("no cgroup filesystem is mounted".to_owned())
            }
            None => unusable("no mounted cgroup hierarchy has the memory controller".to_owned()),
        }
    }

    fn choose_v1(&self, memory: &Hierarchy, engine_id: &str) -> Cgroups {
        let below = |dir: &Path| dir.join(OURS).join(engine_id);
        // Our own group first: limits that someone put on this engine then hold for its jobs too.
        let place = |hierarchy: &Hierarchy, check: fn(&Path) -> io::Result<()>| {
            let mut refused = None;
            for parent in [&hierarchy.own, &hierarchy.mount_point] {
                let dir = below(parent);
                match make(&dir).and_then(|()| check(&dir)) {
                    Ok(()) => return Ok(dir),
                    Err(error) => drop(refused.get_or_insert((dir, error))),
                }
            }
            Err(refused)
        };
        match place(memory, v1::has_memory) {
            Ok(dir) => {
                let optional = |name: &str| {
                    self.controller(name)
                        .and_then(|found| place(&found, |_| Ok(())).ok())
                };
                let spec = CgroupSpec::V1(v1::Dirs {
                    memory: dir,
                    cpu: optional("cpu"),
                    pids: optional("pids"),
                    cpuacct: optional("cpuacct"),
                });
                match spec.create_parent() {
                    Ok(()) => Cgroups::Usable(spec),
                    Err(error) => unusable(with_cause(&error)),
                }
            }
            Err(Some((dir, error))) => unusable(format!(
                "a memory cgroup cannot be made at {}: {error}",
                dir.display()
            )),
            Err(None) => unusable("there is no place for a memory cgroup".to_owned()),
        }
    }

    fn unified(&self) -> Option<Hierarchy> {
        let mount = self
            .mounts
            .iter()
            .rfind(|mount| mount.version == CgroupVersion::V2)?;
        self.hierarchy(mount, <[String]>::is_empty)
    }

    fn controller(&self, name: &str) -> Option<Hierarchy> {
        let has = |list: &[String]| list.iter().any(|word| word == name);
        let mount = self
            .mounts
            .iter()
            .rfind(|mount| mount.version == CgroupVersion::V1 && has(&mount.options))?;
        self.hierarchy(mount, has)
    }

    fn hierarchy(
        &self,
        mount: &CgroupMount,
        is_it: impl Fn(&[String]) -> bool,
    ) -> Option<Hierarchy> {
        let (_, path) = self
            .memberships
            .iter()
            .find(|(controllers, _)| is_it(controllers))?;
        let mount_point = self.root.join(mount.point.trim_start_matches('/'));
        // Inside a container the mounted part may be our own group, whose path is told from the top.
        let inside = Path::new(path)
            .strip_prefix(&mount.part)
            .unwrap_or(Path::new(""));
        let plain = inside
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let own = mount_point.join(if plain { inside } else { Path::new("") });
        Some(Hierarchy {
            own: if own.is_dir() {
                own
            } else {
                mount_point.clone()
            },
            mount_point,
        })
    }
}

/// The nearest group upwards that may have children with limits: one that hands memory down already, or can be made to.
fn choose_v2(unified: &Hierarchy, engine_id: &str) -> Cgroups {
    let mut refused = None;
    for parent in unified.upwards() {
        let tried = prepare_v2(parent, parent == unified.own).and_then(|()| {
            let ours = parent.join(OURS);
            v2::create_parent(&ours)?;
            let path = ours.join(engine_id);
            v2::create_parent(&path)?;
            Ok(CgroupSpec::V2 { path })
        });
        match tried {
            Ok(spec) => return Cgroups::Usable(spec),
            Err(error) => drop(refused.get_or_insert(error)),
        }
    }
    unusable(refused.map_or_else(
        || "there is no place for a cgroup".to_owned(),
        |error| with_cause(&error),
    ))
}

fn prepare_v2(parent: &Path, is_own: bool) -> Result<(), CgroupError> {
    if v2::hands_down_memory(parent) {
        return Ok(());
    }
    match v2::hand_down(parent) {
        // A group with processes of its own cannot hand controllers down. If we are the only one, we can make way.
        Err(busy) if is_own && alone_in(parent) => {
            let leaf = parent.join(ENGINE_LEAF);
            v2::create(&leaf)?;
            file::write(&leaf.join("cgroup.procs"), "0")?;
            v2::hand_down(parent).map_err(|_| {
                let _ = file::write(&parent.join("cgroup.procs"), "0");
                let _ = fs::remove_dir(&leaf);
                busy
            })
        }
        other => other,
    }
}

fn alone_in(dir: &Path) -> bool {
    file::read(&dir.join("cgroup.procs"))
        .is_ok_and(|text| text.trim() == std::process::id().to_string())
}

fn make(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)
}

fn with_cause(error: &CgroupError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// One line of mountinfo, if it is of a cgroup filesystem.
fn cgroup_mount(line: &str) -> Option<CgroupMount> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let version = match right.next()? {
        "cgroup" => CgroupVersion::V1,
        "cgroup2" => CgroupVersion::V2,
        _ => return None,
    };
    let mut left = left.split(' ').skip(3);
    Some(CgroupMount {
        part: left.next()?.to_owned(),
        point: left.next()?.to_owned(),
        version,
        options: right.nth(1)?.split(',').map(str::to_owned).collect(),
    })
}

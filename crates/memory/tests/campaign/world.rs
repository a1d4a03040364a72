//! Jobs with faults that nobody told us of, on a small cluster: what they leave behind when they die is all that the decisions get.

mod attempts;

use std::collections::BTreeMap;

use stoke_api::Bytes;
use stoke_api::trainjob::Tuning;
use stoke_memory::{Advised, Blame, Case, Change, Had, Recovery, Room, Tried, diagnose, recover};

use self::attempts::{Death, Ran};
use crate::logs::Rng;

const GIB: f64 = (1_u64 << 30) as f64;
const NODES: u64 = 6;
const NODE_STORAGE: f64 = 400.0;
const SECONDS_A_STEP: u64 = 60;
/// No rule tries longer than that.
const ATTEMPTS_MAX: u32 = 24;

fn gib(amount: f64) -> Bytes {
    Bytes((amount.max(0.0) * GIB) as u64)
}

/// What is wrong with a job. Amounts are in GiB.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// It needs more memory than it was given, and is killed, whole or one process of it.
    Memory {
        need: f64,
        child: bool,
    },
    /// It asks for so much at once, and is refused.
    Allocation {
        base: f64,
        at_once: f64,
    },
    /// One node refuses what the others give.
    AddressSpace,
    /// It grows with every step.
    Leak {
        base: f64,
        per_step: f64,
    },
    /// Others use up a node's memory.
    CrowdedNode,
    /// Its node evicts who uses more than it was promised.
    Pressure {
        used: f64,
    },
    /// Its room is taken some times.
    Taken {
        times: u32,
    },
    /// The GPU holds `fixed` and `batch` divided by what the micro-batch is divided by.
    Gpu {
        fixed: f64,
        batch: f64,
        follows: bool,
        silent: bool,
    },
    Fragmented {
        batch: f64,
    },
    /// Another process has most of one node's GPUs.
    CoTenant,
    /// One tensor is larger than the GPU.
    TooBig {
        tensor: f64,
        of_batch: bool,
    },
    GpuLeak {
        base: f64,
        per_step: f64,
    },
    Shm {
        need: f64,
    },
    Storage {
        need: f64,
    },
    /// Its checkpoints fill their volume.
    CheckpointsFull,
    /// A mistake in the program.
    Mistake,
    /// A network that fails some times, after an out of memory that was survived.
    Luck {
        times: u32,
    },
    /// Someone kills it once.
    Person,
}

#[derive(Debug, Clone)]
pub struct Job {
    pub fault: Fault,
    seed: u64,
    /// What it is given at first.
    memory: f64,
    storage: f64,
    gpu: f64,
    max: Option<f64>,
    node_memory: f64,
    gpu_types: Vec<(String, f64)>,
    volumes: bool,
    checkpoints: bool,
    retries: u32,
    steps: u64,
    measured: bool,
    advised: bool,
    /// The node that is not as the others.
    bad_node: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Stokehold,
    /// Again as it was, as often as the job says.
    SameSize,
}

#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub finished: bool,
    pub attempts: u32,
    /// Attempts that changed nothing, or again what had not helped, though luck had no part in it.
    pub pointless: u32,
    pub story: Vec<String>,
}

fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * (rng.below(1 << 20) as f64 / f64::from(1 << 20))
}

impl Job {
    pub fn drawn(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let memory = *rng.pick(&[4.0, 8.0, 16.0, 32.0]);
        let gpu = *rng.pick(&[24.0, 40.0]);
        let times = 1 + rng.below(2) as u32;
        let more = between(&mut rng, 1.1, 6.0);
        let kind = rng.below(20);
        let fault = match kind {
            0 | 1 => Fault::Memory {
                need: memory * more,
                child: kind == 1,
            },
            2 => Fault::Allocation {
                base: memory * 0.6,
                at_once: memory * more,
            },
            3 => Fault::AddressSpace,
            4 | 5 => Fault::Leak {
                base: memory * between(&mut rng, 0.2, 0.6),
                per_step: memory / between(&mut rng, 40.0, 400.0),
            },
            6 => Fault::CrowdedNode,
            7 => Fault::Pressure { used: memory * 0.8 },
            8 => Fault::Taken { times },
            9 | 10 => Fault::Gpu {
                fixed: gpu * between(&mut rng, 0.3, 0.9),
                batch: gpu * between(&mut rng, 0.75, 3.0),
                follows: !rng.one_in(6),
                silent: rng.one_in(3),
            },
            11 => Fault::Fragmented { batch: gpu * 0.3 },
            12 => Fault::CoTenant,
            13 => Fault::TooBig {
                tensor: gpu * between(&mut rng, 1.1, 1.8),
                of_batch: !rng.one_in(4),
            },
            14 => Fault::GpuLeak {
                base: gpu * between(&mut rng, 0.3, 0.6),
                per_step: gpu / between(&mut rng, 60.0, 400.0),
            },
            15 => Fault::Shm {
                need: between(&mut rng, 0.1, 0.9) * memory,
            },
            16 => Fault::Storage {
                need: between(&mut rng, 25.0, 700.0),
            },
            17 => match rng.below(3) {
                0 => Fault::CheckpointsFull,
                1 => Fault::Mistake,
                _ => Fault::Person,
            },
            _ => Fault::Luck { times },
        };
        let leaks = matches!(fault, Fault::Leak { .. } | Fault::GpuLeak { .. });
        let mut gpu_types = vec![(format!("gpu-{gpu}g"), gpu)];
        if rng.one_in(2) {
            gpu_types.push(("gpu-80g".to_owned(), 80.0));
        }
        Self {
            fault,
            seed,
            memory,
            storage: 20.0,
            gpu,
            max: rng.one_in(3).then(|| memory * between(&mut rng, 1.0, 4.0)),
            node_memory: *rng.pick(&[64.0, 128.0, 256.0]),
            gpu_types,
            volumes: rng.one_in(2),
            checkpoints: !rng.one_in(if leaks { 5 } else { 3 }),
            retries: 3,
            steps: 100 + rng.below(400),
            measured: !rng.one_in(4),
            advised: rng.one_in(3),
            bad_node: rng.below(NODES),
        }
    }

    fn most_memory(&self) -> f64 {
        self.max.unwrap_or(f64::MAX).min(self.node_memory)
    }

    fn most_gpu(&self) -> f64 {
        self.gpu_types
            .iter()
            .map(|(_, memory)| *memory)
            .fold(0.0, f64::max)
    }

    /// Is there anything within what is allowed and what exists with which it would finish?
    pub fn is_savable(&self) -> bool {
        let most = self.most_memory();
        match self.fault {
            Fault::Memory { need, .. } => need <= most,
            Fault::Allocation { base, at_once } => base + at_once <= most,
            Fault::Leak { base, per_step } => {
                // Restarts need room for some steps.
                let whole = base + per_step * self.steps as f64;
                whole <= most || (self.checkpoints && base + 4.0 * per_step < self.memory * 0.8)
            }
            Fault::Gpu {
                fixed,
                batch,
                follows,
                ..
            } => {
                let least = if follows {
                    fixed + batch / 64.0
                } else {
                    fixed + batch
                };
                least <= self.most_gpu()
            }
            Fault::TooBig { tensor, of_batch } => of_batch || tensor + 2.0 <= self.most_gpu(),
            Fault::GpuLeak { base, per_step } => {
                let whole = base + per_step * self.steps as f64;
                whole <= self.most_gpu()
                    || (self.checkpoints && base + 4.0 * per_step < self.gpu * 0.8)
            }
            // It needs some for itself too.
            Fault::Shm { need } => need + self.memory * 0.3 <= most && need <= most * 0.75,
            Fault::Storage { need } => need <= NODE_STORAGE || self.volumes,
            Fault::CheckpointsFull | Fault::Mistake => false,
            Fault::AddressSpace
            | Fault::CrowdedNode
            | Fault::Pressure { .. }
            | Fault::Taken { .. }
            | Fault::Fragmented { .. }
            | Fault::CoTenant
            | Fault::Luck { .. }
            | Fault::Person => true,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self.fault {
            Fault::Memory { child: false, .. } => "memory limit",
            Fault::Memory { child: true, .. } => "child killed",
            Fault::Allocation { .. } | Fault::AddressSpace => "host allocation",
            Fault::Leak { .. } => "host leak",
            Fault::CrowdedNode => "node out of memory",
            Fault::Pressure { .. } => "node pressure",
            Fault::Taken { .. } => "preempted",
            Fault::Gpu { .. } => "GPU too small",
            Fault::Fragmented { .. } => "GPU fragmented",
            Fault::CoTenant => "GPU co-tenant",
            Fault::TooBig { .. } => "GPU tensor too big",
            Fault::GpuLeak { .. } => "GPU leak",
            Fault::Shm { .. } => "/dev/shm",
            Fault::Storage { .. } => "ephemeral storage",
            Fault::CheckpointsFull => "checkpoint volume",
            Fault::Mistake => "crash",
            Fault::Luck { .. } => "bad luck",
            Fault::Person => "killed by a person",
        }
    }

    /// Runs the job to its end under a rule.
    pub fn runs(&self, rule: Rule) -> Outcome {
        let mut outcome = Outcome::default();
        let mut tuning = Tuning::default();
        let mut tried: Vec<Tried> = Vec::new();
        let mut shorts: Vec<(f64, Vec<&'static str>)> = Vec::new();
        let (mut done, mut failures) = (0, 0);
        let mut changed: Vec<&'static str> = Vec::new();
        for attempt in 0..ATTEMPTS_MAX {
            outcome.attempts += 1;
            let node = self.node(attempt, &tuning);
            let death = match self.attempt(attempt, node, &tuning, &mut done) {
                Ran::Finished => {
                    outcome.finished = true;
                    break;
                }
                Ran::Restarted => continue,
                Ran::Died(death) => *death,
            };
            // The same change that left it as far from its end as it was, once more.
            let useless = shorts.last().is_some_and(|(short, before)| {
                let same = (short - death.short).abs() < 1e-6 && !death.luck;
                same && (changed.is_empty() || (*before == changed && death.tells))
            });
            outcome.pointless += u32::from(useless);
            shorts.push((death.short, changed.clone()));
            let diagnosis = diagnose(&death.evidence);
            let counts = diagnosis.blame == Blame::Job;
            failures += u32::from(counts);
            outcome.story.push(diagnosis.sentence.clone());
            if rule == Rule::SameSize {
                changed.clear();
                if failures > self.retries {
                    break;
                }
                continue;
            }
            tried.push(Tried {
                finding: diagnosis.finding(),
                tuning: tuning.clone(),
                progressed: death.progressed,
            });
            let (had, room) = (self.had(&tuning, &death), self.room(&tuning));
            let advice = self.advised.then(|| self.advice());
            let recovery = recover(&Case {
                diagnosis: &diagnosis,
                tried: &tried,
                retries_left: (self.retries + u32::from(counts)).saturating_sub(failures),
                memory_max: self.max.map(gib),
                checkpoints: self.checkpoints,
                had: &had,
                room: &room,
                advice,
            });
            match recovery {
                Recovery::Again { changes, .. } => {
                    changed = changes.iter().map(kind_of).collect();
                    for change in &changes {
                        outcome.story.push(format!("  {change}"));
                        change.apply(&mut tuning);
                    }
                }
                Recovery::GiveUp { why } => {
                    outcome.story.push(format!("  gives up: {why}"));
                    break;
                }
            }
        }
        outcome
    }

    /// Placement: any node that it is not kept away from; at first the one that is not as the others.
    fn node(&self, attempt: u32, tuning: &Tuning) -> u64 {
        let free = |node: &u64| !tuning.avoid_nodes.contains(&format!("n{node}"));
        let first =
            self.bad_node + u64::from(attempt > 0 && matches!(self.fault, Fault::Luck { .. }));
        (first..first + NODES)
            .map(|node| node % NODES)
            .find(free)
            .unwrap_or(self.bad_node)
    }

    fn limit(&self, tuning: &Tuning) -> f64 {
        tuning
            .memory
            .map_or(self.memory, |bytes| bytes.0 as f64 / GIB)
    }

    fn gpu_memory(&self, tuning: &Tuning) -> f64 {
        let of = |name: &String| self.gpu_types.iter().find(|(known, _)| known == name);
        tuning
            .gpu_types
            .first()
            .and_then(of)
            .map_or(self.gpu, |(_, memory)| *memory)
    }

    fn had(&self, tuning: &Tuning, death: &Death) -> Had {
        Had {
            memory: gib(self.limit(tuning)),
            request: tuning
                .memory_request
                .unwrap_or(gib(self.limit(tuning) / 2.0)),
            shm: tuning.shm,
            storage: Some(tuning.storage.unwrap_or(gib(self.storage))),
            gpu_memory: Some(gib(self.gpu_memory(tuning))),
            seconds: death.seconds,
            steps: self.measured.then_some(death.seconds / SECONDS_A_STEP),
        }
    }

    fn room(&self, tuning: &Tuning) -> Room {
        Room {
            memory: Some(gib(self.node_memory)),
            storage: Some(gib(NODE_STORAGE)),
            volumes: self.volumes,
            other_nodes: (NODES as u32 - 1).saturating_sub(tuning.avoid_nodes.len() as u32),
            gpu_types: self
                .gpu_types
                .iter()
                .map(|(name, memory)| (name.clone(), gib(*memory)))
                .collect(),
        }
    }

    /// What was learned of runs like it, more or less right.
    fn advice(&self) -> Advised {
        let mut rng = Rng::new(self.seed ^ 0xad);
        let factor = between(&mut rng, 0.95, 1.3);
        let need = match self.fault {
            Fault::Memory { need, .. } => Some(need),
            Fault::Allocation { base, at_once } => Some(base + at_once),
            _ => None,
        };
        Advised {
            memory: need.map(|need| gib(need * factor)),
            shm: None,
            storage: None,
        }
    }
}

fn kind_of(change: &Change) -> &'static str {
    match change {
        Change::Memory { .. } => "memory",
        Change::Shm { .. } => "shm",
        Change::Storage { .. } => "storage",
        Change::Scratch { .. } => "scratch",
        Change::MicroBatch { .. } => "micro-batch",
        Change::ExpandableSegments {} => "segments",
        Change::GpuTypes { .. } => "gpu",
        Change::AvoidNodes { .. } => "node",
        Change::Restart { .. } => "restart",
    }
}

/// What a campaign came to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub jobs: u32,
    pub savable: u32,
    pub saved: u32,
    pub attempts: u32,
    /// Attempts of jobs that nothing could save.
    pub attempts_in_vain: u32,
    pub pointless: u32,
    /// Savable and saved, by kind.
    pub kinds: BTreeMap<&'static str, (u32, u32)>,
    /// What went wrong, for whoever wants to know why.
    pub wrong: Vec<String>,
}

impl Tally {
    pub fn saved_percent(&self) -> f64 {
        100.0 * f64::from(self.saved) / f64::from(self.savable.max(1))
    }
}

/// So many jobs, each with its own fault, under one rule.
pub fn campaign(seed: u64, jobs: u32, rule: Rule) -> Tally {
    let mut tally = Tally::default();
    let mut rng = Rng::new(seed);
    for _ in 0..jobs {
        let job = Job::drawn(rng.next());
        let outcome = job.runs(rule);
        let savable = job.is_savable() || outcome.finished;
        tally.jobs += 1;
        tally.savable += u32::from(savable);
        tally.saved += u32::from(outcome.finished);
        tally.attempts += outcome.attempts;
        tally.attempts_in_vain += if savable { 0 } else { outcome.attempts };
        tally.pointless += outcome.pointless;
        let kind = tally.kinds.entry(job.kind()).or_default();
        kind.0 += u32::from(savable);
        kind.1 += u32::from(outcome.finished);
        if (savable && !outcome.finished) || outcome.pointless > 0 {
            tally
                .wrong
                .push(format!("{job:?}\n    {}", outcome.story.join("\n    ")));
        }
    }
    tally
}

//! One attempt of a job: whether its fault shows with what it has this time, and what it leaves behind if so.

use stoke_api::trainjob::Tuning;
use stoke_memory::{End, Evidence, LeakRate, LogDigest, LogScan, Terminated, Usage};

use super::{Fault, GIB, Job, SECONDS_A_STEP, between, gib};
use crate::logs::{Log, Rng, STYLES};

/// How an attempt ended.
pub enum Ran {
    Finished,
    /// Begun anew in time, which is no failure.
    Restarted,
    Died(Box<Death>),
}

pub struct Death {
    pub evidence: Evidence,
    pub seconds: u64,
    pub progressed: bool,
    /// Might the same go well next time?
    pub luck: bool,
    /// How far it was from going well, in its own measure.
    pub short: f64,
    /// Does it say anything by which one could know that?
    pub tells: bool,
}

impl Job {
    pub fn attempt(&self, attempt: u32, node: u64, tuning: &Tuning, done: &mut u64) -> Ran {
        let mut rng = Rng::new(self.seed ^ (u64::from(attempt) << 32));
        let limit = self.limit(tuning);
        let bad = node == self.bad_node;
        let divisor = f64::from(tuning.micro_batch_divisor.unwrap_or(1));
        let total = self.gpu_memory(tuning);
        let mut death = Death {
            evidence: Evidence {
                rank: 0,
                node: format!("n{node}"),
                limit: Some(gib(limit)),
                peak: self.measured.then(|| gib(limit * 0.5)),
                end: End::Ended,
                ..Evidence::default()
            },
            seconds: 3600,
            // Where it needs more at some place, it gets there and no further.
            progressed: self.checkpoints && attempt == 0,
            luck: false,
            short: 0.0,
            tells: true,
        };
        let mut says = |text: &str, code: i32| {
            let mut log = Log::new(*rng.pick(&STYLES), rng.next());
            log.trains(40);
            log.raises(text);
            log.falls_apart(code);
            Some(LogScan::read(&log.bytes))
        };
        let exit = |exit_code: i32, reason: &str| {
            Some(Terminated {
                name: "worker".to_owned(),
                exit_code,
                signal: None,
                reason: reason.to_owned(),
                message: String::new(),
            })
        };
        let evidence = &mut death.evidence;
        match self.fault {
            Fault::Memory { need, child } if limit < need => {
                death.short = need - limit;
                evidence.peak = self.measured.then(|| gib(limit));
                evidence.oom_kills = u64::from(self.measured);
                if child {
                    evidence.container = exit(1, "Error");
                    evidence.log = says(
                        "RuntimeError: DataLoader worker (pid 8158) is killed by signal: Killed.",
                        1,
                    );
                } else {
                    evidence.container = exit(137, "OOMKilled");
                }
            }
            Fault::Allocation { base, at_once } if limit < base + at_once => {
                death.short = base + at_once - limit;
                evidence.peak = self.measured.then(|| gib(base));
                evidence.container = exit(1, "Error");
                evidence.log = says(
                    &format!(
                        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate {at_once:.1} GiB for an array with shape (812, 4711) and data type float64"
                    ),
                    1,
                );
            }
            Fault::AddressSpace if bad => {
                death.short = 1.0;
                evidence.peak = Some(gib(limit * 0.2));
                evidence.container = exit(1, "Error");
                evidence.log = says("OSError: [Errno 12] Cannot allocate memory", 1);
            }
            Fault::Leak { base, per_step } => {
                return self.leaks(
                    death,
                    done,
                    base,
                    per_step,
                    limit,
                    false,
                    tuning,
                    exit(137, "OOMKilled"),
                    None,
                );
            }
            Fault::GpuLeak { base, per_step } => {
                let text = format!(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of {total:.2} GiB of which 312.00 MiB is free. Including non-PyTorch memory, this process has {:.2} GiB memory in use. Of the allocated memory {:.2} GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated.",
                    total - 0.31,
                    total - 1.5
                );
                let log = says(&text, 1);
                return self.leaks(
                    death,
                    done,
                    base,
                    per_step,
                    total - 1.0,
                    true,
                    tuning,
                    exit(1, "Error"),
                    log,
                );
            }
            Fault::CrowdedNode
                if bad
                    && tuning
                        .memory_request
                        .is_none_or(|request| request.0 < gib(limit).0) =>
            {
                death.short = 1.0;
                death.luck = true;
                evidence.container = exit(137, "Error");
                evidence.events = vec![(
                    "SystemOOM".to_owned(),
                    format!(
                        "System OOM encountered, victim process: python, pid: {}",
                        4000 + node
                    ),
                )];
            }
            Fault::Pressure { used }
                if bad
                    && tuning
                        .memory_request
                        .is_none_or(|request| request.0 < gib(used).0) =>
            {
                death.short = 1.0;
                evidence.peak = self.measured.then(|| gib(used));
                "Evicted".clone_into(&mut evidence.pod_reason);
                evidence.pod_message = format!(
                    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 61Mi. Container worker was using {}Ki, request is {}Ki, has larger consumption of memory. ",
                    (used * 1_048_576.0) as u64,
                    (limit * 524_288.0) as u64
                );
            }
            Fault::Taken { times } if attempt < times => {
                death.luck = true;
                evidence.container = exit(143, "Error");
                evidence.disruption = Some((
                    "PreemptionByScheduler".to_owned(),
                    "default-scheduler: preempting to accommodate a higher priority pod".to_owned(),
                ));
            }
            Fault::Gpu {
                fixed,
                batch,
                follows,
                silent,
            } => {
                let batch = if follows { batch / divisor } else { batch };
                if fixed + batch <= total - 1.0 {
                    return Ran::Finished;
                }
                death.progressed = false;
                death.short = fixed + batch - total;
                evidence.container = exit(1, "Error");
                let tried = (batch * 0.07).max(0.02);
                death.tells = !silent;
                let text = if silent {
                    "RuntimeError: CUDA error: out of memory".to_owned()
                } else {
                    let used = (fixed + batch * 0.8).min(total - 1.2);
                    format!(
                        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2} MiB. GPU 0 has a total capacity of {total:.2} GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has {:.2} GiB memory in use. Of the allocated memory {used:.2} GiB is allocated by PyTorch, and 4.00 MiB is reserved by PyTorch but unallocated.",
                        tried * 1024.0,
                        total - 0.02
                    )
                };
                evidence.log = says(&text, 1);
            }
            Fault::Fragmented { batch } if !tuning.expandable_segments && divisor < 4.0 => {
                death.short = batch / divisor;
                evidence.container = exit(1, "Error");
                evidence.log = says(
                    &format!(
                        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2} GiB. GPU 0 has a total capacty of {total:.2} GiB of which 200.00 MiB is free. Including non-PyTorch memory, this process has {:.2} GiB memory in use. Of the allocated memory {:.2} GiB is allocated by PyTorch, and {:.2} GiB is reserved by PyTorch but unallocated.",
                        batch / divisor / 3.0,
                        total - 0.2,
                        total * 0.6,
                        total * 0.35
                    ),
                    1,
                );
            }
            Fault::CoTenant if bad => {
                death.short = 1.0;
                evidence.container = exit(1, "Error");
                evidence.log = says(
                    &format!(
                        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of {total:.2} GiB of which 411.00 MiB is free. Process 71 has {:.2} GiB memory in use. Including non-PyTorch memory, this process has 6.10 GiB memory in use. Of the allocated memory 5.30 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated.",
                        total - 6.6
                    ),
                    1,
                );
            }
            Fault::TooBig { tensor, of_batch } => {
                let tensor = if of_batch { tensor / divisor } else { tensor };
                if tensor + 2.0 <= total {
                    return Ran::Finished;
                }
                death.progressed = false;
                death.short = tensor + 2.0 - total;
                evidence.container = exit(1, "Error");
                evidence.log = says(
                    &format!(
                        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tensor:.2} GiB. GPU 0 has a total capacity of {total:.2} GiB of which {:.2} GiB is free. Including non-PyTorch memory, this process has 1.20 GiB memory in use. Of the allocated memory 0.80 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.",
                        total - 1.3
                    ),
                    1,
                );
            }
            Fault::Shm { need } => {
                let size = tuning.shm.map_or(0.0625, |bytes| bytes.0 as f64 / GIB);
                let rest = self.memory * 0.3;
                if size >= need && limit >= need + rest {
                    return Ran::Finished;
                }
                if size >= need {
                    death.short = need + rest - limit;
                    evidence.peak = self.measured.then(|| gib(limit));
                    evidence.container = exit(137, "OOMKilled");
                } else {
                    death.short = need - size;
                    evidence.shm = self.measured.then(|| Usage {
                        peak: gib(size),
                        size: gib(size),
                    });
                    evidence.container = exit(1, "Error");
                    evidence.log = says(
                        "RuntimeError: DataLoader worker (pid 3817) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
                        1,
                    );
                }
            }
            Fault::Storage { need } => {
                let disk = tuning
                    .storage
                    .map_or(self.storage, |bytes| bytes.0 as f64 / GIB);
                let scratch = tuning.scratch.map_or(0.0, |bytes| bytes.0 as f64 / GIB);
                if disk.max(scratch) >= need {
                    return Ran::Finished;
                }
                death.short = need - disk.max(scratch);
                if scratch > 0.0 || attempt % 2 == 1 {
                    evidence.container = exit(1, "Error");
                    evidence.log = says(
                        "OSError: [Errno 28] No space left on device: '/tmp/shards/00041.arrow'",
                        1,
                    );
                } else {
                    "Evicted".clone_into(&mut evidence.pod_reason);
                    evidence.pod_message = format!(
                        "Pod ephemeral local storage usage exceeds the total limit of containers {disk:.0}Gi. "
                    );
                }
            }
            Fault::CheckpointsFull => {
                evidence.checkpoint_path = Some("/ckpt".to_owned());
                evidence.container = exit(1, "Error");
                evidence.log = says(
                    "OSError: [Errno 28] No space left on device: '/ckpt/step-1200/optimizer.pt'",
                    1,
                );
            }
            Fault::Mistake => {
                death.progressed = false;
                evidence.container = exit(1, "Error");
                evidence.log = says("ModuleNotFoundError: No module named 'flash_attn'", 1);
            }
            Fault::Luck { times } if attempt < times => {
                death.luck = true;
                evidence.container = exit(1, "Error");
                let mut log = Log::new(STYLES[(self.seed % 5) as usize], self.seed);
                log.trains(60);
                log.raises("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 39.39 GiB of which 411.00 MiB is free.");
                log.trains(400);
                log.raises("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='data.example.org', port=443): Max retries exceeded");
                log.falls_apart(1);
                evidence.log = Some(LogScan::read(&log.bytes));
            }
            Fault::Person if attempt == 0 => {
                death.luck = true;
                evidence.container = exit(137, "Error");
            }
            _ => return Ran::Finished,
        }
        Ran::Died(Box::new(death))
    }

    /// Step by step until it is done, full, or begun anew.
    #[expect(
        clippy::too_many_arguments,
        reason = "two leaks share what differs in all of it"
    )]
    fn leaks(
        &self,
        mut death: Death,
        done: &mut u64,
        base: f64,
        per_step: f64,
        full: f64,
        gpu: bool,
        tuning: &Tuning,
        container: Option<Terminated>,
        log: Option<LogDigest>,
    ) -> Ran {
        const CHECKPOINT_EVERY: u64 = 10;
        let fits = ((full - base) / per_step).max(0.0) as u64;
        let schedule = tuning
            .restart_every
            .map(|every| every.steps.unwrap_or(every.seconds / SECONDS_A_STEP));
        let left = self.steps - *done;
        if left <= fits.min(schedule.unwrap_or(u64::MAX)) {
            return Ran::Finished;
        }
        if let Some(schedule) = schedule.filter(|schedule| *schedule <= fits) {
            *done += schedule;
            return Ran::Restarted;
        }
        let saved = if self.checkpoints {
            fits / CHECKPOINT_EVERY * CHECKPOINT_EVERY
        } else {
            0
        };
        *done += saved;
        death.progressed = saved > 0;
        death.seconds = fits * SECONDS_A_STEP;
        death.short = left as f64 - fits as f64;
        let mut rng = Rng::new(self.seed ^ *done);
        let seen = per_step * between(&mut rng, 0.9, 1.1);
        // A verdict needs some time.
        death.evidence.leak = (fits >= 20).then(|| LeakRate {
            gpu,
            bytes_per_hour: gib(seen * 3600.0 / SECONDS_A_STEP as f64).0,
            bytes_per_step: self.measured.then(|| gib(seen).0),
        });
        if !gpu {
            death.evidence.peak = self.measured.then(|| gib(full));
            death.evidence.oom_kills = u64::from(self.measured);
        }
        death.evidence.container = container;
        death.evidence.log = log;
        Ran::Died(Box::new(death))
    }
}

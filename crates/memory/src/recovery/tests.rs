use proptest::prelude::*;
use stoke_api::trainjob::RestartEvery;

use super::*;
use crate::diagnosis::{Evidence, LeakRate, LogScan, Terminated, diagnose};

/// A worker that had 8 GiB on n1, with the log that it left.
fn evidence(exit_code: i32, reason: &str, log: &str) -> Evidence {
    Evidence {
        node: "n1".to_owned(),
        limit: Some(Bytes::gib(8)),
        container: Some(Terminated {
            exit_code,
            reason: reason.to_owned(),
            ..Terminated::default()
        }),
        log: Some(LogScan::read(log.as_bytes())),
        ..Evidence::default()
    }
}

fn had() -> Had {
    Had {
        memory: Bytes::gib(8),
        request: Bytes::gib(4),
        gpu_memory: Some(Bytes::gib(40)),
        seconds: 3600,
        ..Had::default()
    }
}

fn room() -> Room {
    Room {
        memory: Some(Bytes::gib(64)),
        storage: Some(Bytes::gib(200)),
        volumes: true,
        other_nodes: 3,
        gpu_types: vec![
            ("a100-40g".to_owned(), Bytes::gib(40)),
            ("h100".to_owned(), Bytes::gib(80)),
        ],
    }
}

/// A job whose attempts die one after another.
struct Story {
    tuning: Tuning,
    tried: Vec<Tried>,
    had: Had,
    room: Room,
    max: Option<Bytes>,
    checkpoints: bool,
    progresses: bool,
    retries_left: u32,
}

impl Default for Story {
    fn default() -> Self {
        Self {
            tuning: Tuning::default(),
            tried: Vec::new(),
            had: had(),
            room: room(),
            max: None,
            checkpoints: true,
            progresses: true,
            retries_left: 3,
        }
    }
}

impl Story {
    /// The attempt dies of what the evidence says; the next one has what was changed.
    fn dies(&mut self, evidence: &Evidence) -> Recovery {
        let diagnosis = diagnose(evidence);
        self.tried.push(Tried {
            finding: diagnosis.finding(),
            tuning: self.tuning.clone(),
            progressed: self.progresses,
        });
        let recovery = recover(&Case {
            diagnosis: &diagnosis,
            tried: &self.tried,
            retries_left: self.retries_left,
            memory_max: self.max,
            checkpoints: self.checkpoints,
            had: &self.had,
            room: &self.room,
            advice: None,
        });
        if let Recovery::Again { changes, .. } = &recovery {
            for change in changes {
                change.apply(&mut self.tuning);
            }
            self.had.memory = self.tuning.memory.unwrap_or(self.had.memory);
            self.had.request = self.tuning.memory_request.unwrap_or(self.had.request);
            self.had.shm = self.tuning.shm.or(self.had.shm);
            self.had.storage = self.tuning.storage.or(self.had.storage);
            if self.tuning.avoid_nodes.len() > 3 {
                self.room.other_nodes = 0;
            }
            let counts = diagnosis.blame == Blame::Job;
            self.retries_left -= u32::from(counts);
        }
        recovery
    }

    /// Dies of the same until nothing helps any more.
    fn says(mut self, evidence: impl Fn(&Had) -> Evidence) -> String {
        let mut lines = Vec::new();
        for _ in 0..12 {
            match self.dies(&evidence(&self.had)) {
                Recovery::Again { changes, .. } if changes.is_empty() => {
                    lines.push("again".to_owned());
                }
                Recovery::Again { changes, .. } => {
                    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
                    lines.push(format!("again, with {}", changes.join(", ")));
                }
                Recovery::GiveUp { why } => {
                    lines.push(format!("gives up: {why}"));
                    break;
                }
            }
        }
        lines.join("\n")
    }
}

fn oom_killed(had: &Had) -> Evidence {
    Evidence {
        limit: Some(had.memory),
        peak: Some(had.memory),
        oom_kills: 1,
        ..evidence(137, "OOMKilled", "")
    }
}

#[test]
fn a_limit_grows_to_what_is_allowed_and_no_further() {
    let story = Story {
        max: Some(Bytes::gib(12)),
        checkpoints: false,
        ..Story::default()
    };
    insta::assert_snapshot!(story.says(oom_killed), @r"
    again, with a memory limit of 12 GiB
    gives up: rank 0 was killed at its memory limit of 12 GiB (OOMKilled, exit code 137), having used 12 GiB; it had 12 GiB and memory.max allows no more; it writes no checkpoint to begin anew from
    ");
    let story = Story {
        retries_left: 9,
        progresses: false,
        ..Story::default()
    };
    insta::assert_snapshot!(story.says(oom_killed), @r"
    again, with a memory limit of 16 GiB
    again, with a memory limit of 32 GiB
    again, with a memory limit of 64 GiB
    gives up: rank 0 was killed at its memory limit of 64 GiB (OOMKilled, exit code 137), having used 64 GiB; it had 64 GiB and no node has more for it; it would end at the same place again
    ");
    insta::assert_snapshot!(Story::default().says(oom_killed), @r"
    again, with a memory limit of 16 GiB
    again, with a memory limit of 32 GiB
    again, with a memory limit of 64 GiB
    gives up: rank 0 was killed at its memory limit of 64 GiB (OOMKilled, exit code 137), having used 64 GiB; its retries are used up
    ");
}

/// Nobody saw it leak, and there is no more memory to be had; but each attempt gets further than the one before.
#[test]
fn who_gets_further_comes_to_an_end() {
    let story = Story {
        max: Some(Bytes::gib(8)),
        ..Story::default()
    };
    insta::assert_snapshot!(story.says(oom_killed), @r"
    again, with a restart from its checkpoint every 48 min, before its memory is full
    again, with a restart from its checkpoint every 24 min, before its memory is full
    again, with a restart from its checkpoint every 12 min, before its memory is full
    gives up: rank 0 was killed at its memory limit of 8.0 GiB (OOMKilled, exit code 137), having used 8.0 GiB; its retries are used up
    ");
}

#[test]
fn a_leak_gets_a_schedule_and_not_ever_more_memory() {
    let leak = LeakRate {
        gpu: false,
        bytes_per_hour: 6 << 30,
        bytes_per_step: None,
    };
    let leaks = |had: &Had| Evidence {
        leak: Some(leak),
        ..oom_killed(had)
    };
    insta::assert_snapshot!(Story::default().says(leaks), @r"
    again, with a restart from its checkpoint every 44 min, before its memory is full
    again, with a restart from its checkpoint every 22 min, before its memory is full
    again, with a restart from its checkpoint every 11 min, before its memory is full
    gives up: rank 0 was killed at its memory limit of 8.0 GiB (OOMKilled, exit code 137), having used 8.0 GiB; its memory had been growing by 6.0 GiB an hour; its retries are used up
    ");
    let stuck = Story {
        progresses: false,
        ..Story::default()
    };
    insta::assert_snapshot!(stuck.says(leaks), @r"
    again, with a restart from its checkpoint every 44 min, before its memory is full
    again, with a memory limit of 64 GiB
    gives up: rank 0 was killed at its memory limit of 64 GiB (OOMKilled, exit code 137), having used 64 GiB; its memory had been growing by 6.0 GiB an hour; it did not come to a checkpoint between two restarts; it had 64 GiB and no node has more for it
    ");
    let without = Story {
        checkpoints: false,
        max: Some(Bytes::gib(16)),
        ..Story::default()
    };
    insta::assert_snapshot!(without.says(leaks), @r"
    again, with a memory limit of 16 GiB
    gives up: rank 0 was killed at its memory limit of 16 GiB (OOMKilled, exit code 137), having used 16 GiB; its memory had been growing by 6.0 GiB an hour; it writes no checkpoint to begin anew from; it had 16 GiB and memory.max allows no more
    ");
    let hopeless = Story {
        checkpoints: false,
        max: Some(Bytes::gib(8)),
        ..Story::default()
    };
    insta::assert_snapshot!(hopeless.says(leaks), @"gives up: rank 0 was killed at its memory limit of 8.0 GiB (OOMKilled, exit code 137), having used 8.0 GiB; its memory had been growing by 6.0 GiB an hour; it writes no checkpoint to begin anew from; it had 8.0 GiB and memory.max allows no more");
}

/// What a program does in a step is what it leaks by, however fast its node is.
#[test]
fn a_leak_is_scheduled_by_the_steps_that_are_told() {
    let leaks = |had: &Had| Evidence {
        leak: Some(LeakRate {
            gpu: false,
            bytes_per_hour: 6 << 30,
            bytes_per_step: had.steps.map(|_| 48 << 20),
        }),
        ..oom_killed(had)
    };
    let tells = || Had {
        steps: Some(128),
        ..had()
    };
    let story = Story {
        had: tells(),
        ..Story::default()
    };
    insta::assert_snapshot!(story.says(leaks), @r"
    again, with a restart from its checkpoint every 93 steps, before its memory is full
    again, with a restart from its checkpoint every 46 steps, before its memory is full
    again, with a restart from its checkpoint every 23 steps, before its memory is full
    gives up: rank 0 was killed at its memory limit of 8.0 GiB (OOMKilled, exit code 137), having used 8.0 GiB; its memory had been growing by 6.0 GiB an hour, 48 MiB a step; its retries are used up
    ");
    let unseen = Story {
        had: tells(),
        max: Some(Bytes::gib(8)),
        retries_left: 1,
        ..Story::default()
    };
    insta::assert_snapshot!(unseen.says(oom_killed).lines().next().unwrap_or_default(), @"again, with a restart from its checkpoint every 102 steps, before its memory is full");
}

/// Nobody can count steps that are not told any more, so such a schedule was none, and says nothing against another.
#[test]
fn a_schedule_by_steps_that_are_told_no_more_goes_on_by_the_clock() {
    let mut story = Story {
        tuning: Tuning {
            restart_every: Some(RestartEvery {
                seconds: 1200,
                steps: Some(93),
            }),
            ..Tuning::default()
        },
        max: Some(Bytes::gib(8)),
        progresses: false,
        ..Story::default()
    };
    let had = story.had.clone();
    let Recovery::Again { changes, .. } = story.dies(&oom_killed(&had)) else {
        panic!("it is given up");
    };
    insta::assert_snapshot!(changes[0].to_string(), @"a restart from its checkpoint every 20 min, before its memory is full");
}

#[test]
fn a_gpu_that_is_full_gets_smaller_batches_and_then_more_memory() {
    let full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.06 GiB is free. Including non-PyTorch memory, this process has 38.31 GiB memory in use. Of the allocated memory 37.00 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated.";
    insta::assert_snapshot!(Story::default().says(|_| evidence(1, "Error", full)), @r"
    again, with a micro-batch of 1/2 with 2 times the gradient accumulation
    again, with GPUs with more memory: h100
    again, with a restart from its checkpoint every 48 min, before its memory is full
    gives up: rank 0 ran out of GPU memory (CUDA): 2.0 GiB were asked for with 1.1 GiB of 39 GiB free; its retries are used up
    ");
    let silent = "RuntimeError: CUDA error: out of memory";
    insta::assert_snapshot!(Story::default().says(|_| evidence(1, "Error", silent)), @r"
    again, with a micro-batch of 1/2 with 2 times the gradient accumulation
    again, with a micro-batch of 1/4 with 4 times the gradient accumulation
    again, with a micro-batch of 1/32 with 32 times the gradient accumulation
    gives up: rank 0 ran out of GPU memory (CUDA); its retries are used up
    ");
    let broken = full.replace("120.00 MiB is reserved", "5.00 GiB is reserved");
    insta::assert_snapshot!(Story::default().says(|_| evidence(1, "Error", &broken)), @r"
    again, with expandable segments in PyTorch's allocator
    again, with a micro-batch of 1/2 with 2 times the gradient accumulation
    again, with GPUs with more memory: h100
    gives up: rank 0 ran out of GPU memory (CUDA): 2.0 GiB were asked for with 1.1 GiB of 39 GiB free, while 5.0 GiB it had reserved were in pieces too small for that; its retries are used up
    ");
    let crowded = full.replace("this process has 38.31", "this process has 8.31");
    insta::assert_snapshot!(Story::default().says(|_| evidence(1, "Error", &crowded)), @r"
    again, with another node than n1
    again, with a micro-batch of 1/2 with 2 times the gradient accumulation
    gives up: rank 0 ran out of GPU memory (CUDA): 2.0 GiB were asked for with 1.1 GiB of 39 GiB free, while other processes had 30 GiB; it had another node; a smaller micro-batch changed nothing: it does not follow STOKE_MICRO_BATCH_SCALE
    ");
    let huge = full.replace("Tried to allocate 2.00 GiB", "Tried to allocate 150.00 GiB");
    insta::assert_snapshot!(Story::default().says(|_| evidence(1, "Error", &huge)), @r"
    again, with a micro-batch of 1/8 with 8 times the gradient accumulation
    gives up: rank 0 ran out of GPU memory (CUDA): 150 GiB were asked for with 1.1 GiB of 39 GiB free, more than the GPU has in all; no GPU that it allows and that is there has enough more than 40 GiB; a smaller micro-batch changed nothing: it does not follow STOKE_MICRO_BATCH_SCALE
    ");
}

#[test]
fn other_rooms_grow_too() {
    let shm = "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.";
    insta::assert_snapshot!(Story::default().says(|_| evidence(1, "Error", shm)), @r"
    again, with a /dev/shm of 4.0 GiB, a memory limit of 12 GiB
    again, with a /dev/shm of 8.0 GiB, a memory limit of 16 GiB
    again, with a /dev/shm of 32 GiB, a memory limit of 40 GiB
    gives up: rank 0 filled its /dev/shm; its retries are used up
    ");
    let disk = "OSError: [Errno 28] No space left on device: '/tmp/shard-3.arrow'";
    let limited = Story {
        had: Had {
            storage: Some(Bytes::gib(120)),
            ..had()
        },
        ..Story::default()
    };
    insta::assert_snapshot!(limited.says(|_| evidence(1, "Error", disk)), @r"
    again, with 200 GiB of local disk
    again, with a volume of 800 GiB for temporary files
    again, with a volume of 3.1 TiB for temporary files
    gives up: rank 0 found its local disk full when it wrote /tmp/shard-3.arrow; its retries are used up
    ");
    let full = |_: &Had| Evidence {
        checkpoint_path: Some("/ckpt".to_owned()),
        ..evidence(
            1,
            "Error",
            "OSError: [Errno 28] No space left on device: '/ckpt/step-3.pt'",
        )
    };
    insta::assert_snapshot!(Story::default().says(full), @"gives up: the volume of rank 0's checkpoints was full when it wrote /ckpt/step-3.pt; raise checkpoint.size, or keep fewer with checkpoint.keep");
    let node = |had: &Had| Evidence {
        limit: Some(had.memory),
        peak: Some(Bytes::gib(5)),
        events: vec![(
            "SystemOOM".to_owned(),
            "System OOM encountered, victim process: python, pid: 4711".to_owned(),
        )],
        ..evidence(137, "Error", "")
    };
    let lasts = Story::default().says(node);
    assert!(lasts.ends_with("again"), "it gets on: {lasts}");
    let stuck = Story {
        progresses: false,
        ..Story::default()
    };
    insta::assert_snapshot!(stuck.says(node), @r"
    again, with 5.5 GiB of memory promised, 8.0 GiB at most, another node than n1
    again, with 8.0 GiB of memory promised, 8.0 GiB at most, another node than n1
    again
    again
    gives up: rank 0 was killed because n1 had no memory left, though it used 5.0 GiB of its 8.0 GiB (exit code 137); all of its memory was promised; it had another node; 5 attempts in a row ended so
    ");
}

#[test]
fn what_a_retry_cannot_change_is_not_retried() {
    let missing = "ModuleNotFoundError: No module named 'flash_attn'";
    let stuck = || Story {
        progresses: false,
        ..Story::default()
    };
    insta::assert_snapshot!(stuck().says(|_| evidence(1, "Error", missing)), @"gives up: rank 0 ended with exit code 1: ModuleNotFoundError: No module named 'flash_attn'; no attempt changes what the program is");
    insta::assert_snapshot!(stuck().says(|_| evidence(1, "Error", "ConnectionError: hub")), @r"
    again
    again
    again
    gives up: rank 0 ended with exit code 1: ConnectionError: hub; its retries are used up
    ");
    let numpy = "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.18 TiB for an array with shape (600000, 500000) and data type float64";
    insta::assert_snapshot!(stuck().says(|_| evidence(1, "Error", numpy)), @"gives up: rank 0 was refused memory: 2.2 TiB were asked for; 2.2 TiB at once are more than the 64 GiB it may have: no node has more for it; it would end at the same place again");
}

proptest! {
    /// Whatever is known, and whatever died of it: something is decided, and what is changed is within what there is.
    #[test]
    fn nothing_is_given_that_is_not_there(
        memory in 1_u64..1 << 45, max in prop::option::of(1_u64..1 << 45), room in prop::option::of(1_u64..1 << 45), shm in prop::option::of(0_u64..1 << 45),
        storage in prop::option::of(0_u64..1 << 50), peak in prop::option::of(0_u64..1 << 45), tried: u32, kind in 0_usize..8, retries_left in 0_u32..4,
        leak in prop::option::of((any::<bool>(), any::<u64>(), prop::option::of(any::<u64>()))), checkpoints: bool, seconds: u64,
    ) {
        let logs = [
            format!("RuntimeError: CUDA out of memory. Tried to allocate {tried}.00 GiB (GPU 0; 10.92 GiB total capacity; 8.57 GiB already allocated; 1.28 GiB free; 9.68 GiB reserved in total by PyTorch)"),
            format!("MemoryError: Unable to allocate {tried} bytes"),
            format!("NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to {tried} bytes, error: No space left on device (28)"),
            "OSError: [Errno 28] No space left on device".to_owned(),
            "DataLoader worker (pid 3) is killed by signal: Killed.".to_owned(),
            format!("RESOURCE_EXHAUSTED: Out of memory while trying to allocate {tried} bytes."),
            "ValueError: no".to_owned(),
            String::new(),
        ];
        let leak = leak.map(|(gpu, bytes_per_hour, bytes_per_step)| LeakRate { gpu, bytes_per_hour, bytes_per_step });
        let died = Evidence { limit: Some(Bytes(memory)), peak: peak.map(Bytes), leak, ..evidence(if kind == 7 { 137 } else { 1 }, if kind == 7 { "OOMKilled" } else { "Error" }, &logs[kind]) };
        let story = Story {
            had: Had { memory: Bytes(memory), request: Bytes(memory / 2), shm: shm.map(Bytes), storage: storage.map(Bytes), gpu_memory: None, seconds, steps: None },
            room: Room { memory: room.map(Bytes), storage: storage.map(Bytes), ..super::tests::room() },
            max: max.map(Bytes),
            checkpoints,
            retries_left,
            ..Story::default()
        };
        let most = max.into_iter().chain(room).min().unwrap_or(u64::MAX);
        let mut story = story;
        match story.dies(&died) {
            Recovery::GiveUp { why } => prop_assert!(!why.is_empty()),
            Recovery::Again { changes, .. } => {
                prop_assert!(retries_left > 0);
                for change in &changes {
                    prop_assert!(!change.to_string().is_empty());
                    match change {
                        Change::Memory { limit, .. } => prop_assert!(limit.0 <= most && limit.0 > memory),
                        Change::Shm { size } => prop_assert!(size.0 <= most),
                        Change::MicroBatch { divisor } => prop_assert!(divisor.is_power_of_two()),
                        _ => {}
                    }
                }
            }
        }
    }
}

//! What ended a training, found in what it left behind: every wording we know of, in logs of thousands of lines.

#[path = "failures/killed.rs"]
mod killed;
#[path = "failures/logs.rs"]
mod logs;
#[path = "failures/texts.rs"]
mod texts;

use logs::{HARMLESS, Log, Rng, STYLES, Style};
use proptest::prelude::*;
use stoke_api::Bytes;
use stoke_memory::{
    Cause, Confidence, Diagnosis, Evidence, LogScan, Shape, Terminated, Usage, diagnose,
};
use texts::TEXTS;

fn evidence(exit_code: i32, reason: &str) -> Evidence {
    Evidence {
        node: "n1".to_owned(),
        limit: Some(Bytes::gib(64)),
        container: Some(Terminated {
            name: "worker".to_owned(),
            exit_code,
            reason: reason.to_owned(),
            ..Terminated::default()
        }),
        ..Evidence::default()
    }
}

fn died(exit_code: i32, log: &[u8]) -> Diagnosis {
    diagnose(&Evidence {
        log: Some(LogScan::read(log)),
        ..evidence(exit_code, "Error")
    })
}

/// `GpuOutOfMemory CUDA Plain`, `HostAllocation`.
fn name(diagnosis: &Diagnosis) -> String {
    match diagnosis.cause {
        Cause::GpuOutOfMemory { framework, shape } => format!("GpuOutOfMemory {framework} {shape}"),
        cause => cause.to_string(),
    }
}

/// Lines of training before the end.
const LINES: usize = 4_000;

/// A training of each style, read up to where something goes wrong.
fn trainings(seed: u64) -> Vec<(Style, LogScan)> {
    let read = |style| {
        let mut log = Log::new(style, seed);
        log.trains(LINES);
        let mut scan = LogScan::new();
        scan.feed(&log.bytes);
        (style, scan)
    };
    STYLES.into_iter().map(read).collect()
}

fn ends(mut scan: LogScan, exit_code: i32, end: &Log) -> Diagnosis {
    scan.feed(&end.bytes);
    diagnose(&Evidence {
        log: Some(scan.finish()),
        ..evidence(exit_code, "Error")
    })
}

/// All that went wrong, at once.
fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn told(what: &str, text: &str, expected: &str, diagnosis: &Diagnosis) -> Option<String> {
    let named = name(diagnosis);
    let text: String = text.chars().take(120).collect();
    let quotes = &diagnosis.quotes;
    (named != expected)
        .then(|| format!("{what}: {named} and not {expected}: {text}\n    by {quotes:?}"))
}

#[test]
fn every_text_is_known_in_every_kind_of_log() {
    let trainings = trainings(1);
    let mut wrong = Vec::new();
    for (seed, text) in (0..).zip(TEXTS) {
        for (style, training) in &trainings {
            let mut end = Log::new(*style, seed);
            if text.raised {
                end.raises(text.says);
            } else {
                end.prints(text.says);
            }
            end.falls_apart(if text.cause == "ChildKilled" { -9 } else { 1 });
            let diagnosis = ends(training.clone(), 1, &end);
            let what = format!("{style:?}, seed {seed}, {}", diagnosis.confidence);
            wrong.extend(told(&what, text.says, text.cause, &diagnosis));
            let sure = diagnosis.confidence >= Confidence::Likely;
            if !sure || diagnosis.quotes.is_empty() || diagnosis.remedies.is_empty() {
                wrong.push(format!("{what}: {}", text.says));
            }
        }
    }
    none(&wrong);
}

#[test]
fn every_text_is_known_alone() {
    let mut wrong = Vec::new();
    for text in TEXTS {
        let diagnosis = died(1, text.says.as_bytes());
        wrong.extend(told("alone", text.says, text.cause, &diagnosis));
        // As the end of the log in the container's message, as kubelets give it.
        let mut message = evidence(1, "Error");
        if let Some(container) = &mut message.container {
            container.message = format!("step 12 loss 0.3\nstep 13 loss 0.2\n{}\n", text.says);
        }
        wrong.extend(told("message", text.says, text.cause, &diagnose(&message)));
    }
    none(&wrong);
}

#[test]
fn what_was_survived_is_not_to_blame() {
    let crash = "ValueError: Expected input batch_size (32) to match target batch_size (31).";
    let mut wrong = Vec::new();
    for (seed, text) in (7_000..).zip(TEXTS) {
        let style = STYLES[(seed % 5) as usize];
        let mut log = Log::new(style, seed);
        log.trains(60);
        log.raises(text.says);
        log.trains(400);
        log.raises(crash);
        log.falls_apart(1);
        let diagnosis = died(1, &log.bytes);
        let what = format!("{style:?}, seed {seed}");
        wrong.extend(told(&what, text.says, "Crash", &diagnosis));
        if !diagnosis.sentence.contains("batch_size (31)") {
            wrong.push(format!("{what}: {}", diagnosis.sentence));
        }
    }
    none(&wrong);
}

/// Nothing else tells of an end: then it was perhaps not survived.
#[test]
fn where_nothing_else_is_said_the_last_error_is_possible() {
    for style in STYLES {
        let mut log = Log::new(style, 31);
        log.trains(60);
        log.raises(TEXTS[0].says);
        log.trains(400);
        let diagnosis = died(1, &log.bytes);
        assert_eq!(name(&diagnosis), TEXTS[0].cause, "{style:?}");
        assert_eq!(diagnosis.confidence, Confidence::Possible, "{style:?}");
        assert_eq!(
            died(137, &log.bytes).cause,
            Cause::KilledByPerson,
            "{style:?}"
        );
    }
}

/// An error that was caught shortly before someone else ended it.
#[test]
fn a_signal_ends_what_had_gone_on() {
    for style in STYLES {
        let mut log = Log::new(style, 23);
        log.trains(100);
        log.raises(TEXTS[0].says);
        log.trains(12);
        // One that never speaks of steps may have hung as well.
        let expected = match style {
            Style::Files => TEXTS[0].cause,
            _ => "KilledByPerson",
        };
        assert_eq!(name(&died(137, &log.bytes)), expected, "{style:?}");
    }
    let mut log = Log::new(Style::Logger, 23);
    log.trains(100);
    log.raises("ValueError: no such layer");
    log.falls_apart(1);
    log.line(
        "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).",
    );
    assert_eq!(name(&died(1, &log.bytes)), "Crash");
}

/// Survived again and again, and at last not.
#[test]
fn the_last_of_many_is_to_blame() {
    for style in STYLES {
        let mut log = Log::new(style, 11);
        for _ in 0..6 {
            log.trains(400);
            log.raises(TEXTS[0].says);
        }
        log.falls_apart(1);
        assert_eq!(name(&died(1, &log.bytes)), TEXTS[0].cause, "{style:?}");
    }
}

#[test]
fn what_means_nothing_is_not_taken_for_memory() {
    let crash = "IndexError: list index out of range";
    let trainings = trainings(2);
    let mut wrong = Vec::new();
    for (seed, harmless) in (0..).zip(HARMLESS.iter().chain(texts::OTHER_ENDS)) {
        for (style, training) in &trainings {
            let mut end = Log::new(*style, seed);
            end.prints(harmless);
            let silent = ends(training.clone(), 1, &end);
            if silent.cause.is_memory() || silent.cause == Cause::EphemeralStorage {
                wrong.extend(told(&format!("{style:?}"), harmless, "Crash", &silent));
            }
            end.raises(crash);
            end.falls_apart(1);
            let crashed = ends(training.clone(), 1, &end);
            wrong.extend(told(&format!("{style:?}"), harmless, "Crash", &crashed));
        }
        // Nor by its exit code.
        let killed = died(137, harmless.as_bytes());
        wrong.extend(told("137", harmless, "KilledByPerson", &killed));
    }
    none(&wrong);
}

#[test]
fn figures_decide_the_shape() {
    let torch = |tried: &str,
                 total: &str,
                 free: &str,
                 own: &str,
                 allocated: &str,
                 unallocated: &str| {
        format!(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of which {free} is free. Including non-PyTorch memory, this process has {own} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated."
        )
    };
    let table = [
        (torch("2.00 GiB", "79.15 GiB", "1.10 GiB", "78.00 GiB", "76.80 GiB", "210.00 MiB"), Shape::Plain),
        (torch("2.00 GiB", "79.15 GiB", "1.10 GiB", "78.00 GiB", "70.00 GiB", "6.91 GiB"), Shape::Fragmentation),
        (torch("2.00 GiB", "79.15 GiB", "1.10 GiB", "14.00 GiB", "13.00 GiB", "210.00 MiB"), Shape::CoTenant),
        (torch("96.00 GiB", "79.15 GiB", "70.10 GiB", "9.00 GiB", "8.00 GiB", "10.00 MiB"), Shape::TooBig),
        (torch("512.00 MiB", "8.00 GiB", "300.00 MiB", "7.10 GiB", "6.50 GiB", "200.00 MiB"), Shape::Plain),
        ("RuntimeError: CUDA out of memory. Tried to allocate 1.12 GiB (GPU 3; 31.75 GiB total capacity; 18.21 GiB already allocated; 900.75 MiB free; 29.40 GiB reserved in total by PyTorch)".to_owned(), Shape::Fragmentation),
        ("RuntimeError: CUDA out of memory. Tried to allocate 1.12 GiB (GPU 3; 31.75 GiB total capacity; 3.21 GiB already allocated; 900.75 MiB free; 3.40 GiB reserved in total by PyTorch)".to_owned(), Shape::CoTenant),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 784.00 MiB. GPU 0 has a total capacity of 44.40 GiB of which 512.31 MiB is free. Process 71 has 31.02 GiB memory in use. Process 812 has 12.86 GiB memory in use. Of the allocated memory 12.11 GiB is allocated by PyTorch, and 230.51 MiB is reserved by PyTorch but unallocated.".to_owned(), Shape::CoTenant),
    ];
    for (text, expected) in table {
        let diagnosis = died(1, text.as_bytes());
        let Cause::GpuOutOfMemory { shape, .. } = diagnosis.cause else {
            panic!("{text}: {diagnosis:#?}");
        };
        assert_eq!(shape, expected, "{text}");
    }
}

#[test]
fn statuses_and_kernels_are_believed_first() {
    let uid = "0d1f2a3b-4c5d-6e7f-8091-a2b3c4d5e6f7";
    let memcg = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0d1f2a3b_4c5d_6e7f_8091_a2b3c4d5e6f7.slice,task_memcg=/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0d1f2a3b_4c5d_6e7f_8091_a2b3c4d5e6f7.slice/cri-containerd-1.scope,task=python,pid=9188,uid=0";
    let killed = "Memory cgroup out of memory: Killed process 9188 (a.out) total-vm:14456kB, anon-rss:10324kB, file-rss:504kB, shmem-rss:0kB";
    let global = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/kubepods/burstable/pod0d1f2a3b-4c5d-6e7f-8091-a2b3c4d5e6f7/1,task=python,pid=9188,uid=0";
    let all_pods = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods.slice,task_memcg=/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0d1f2a3b_4c5d_6e7f_8091_a2b3c4d5e6f7.slice/x.scope,task=python,pid=9188,uid=0";
    let other = memcg.replace("0d1f2a3b", "99999999");
    let system = || {
        vec![(
            "SystemOOM".to_owned(),
            "System OOM encountered, victim process: python, pid: 9188".to_owned(),
        )]
    };
    let kernel = |line: &str, exit_code| Evidence {
        uid: uid.to_owned(),
        kernel: vec![line.to_owned()],
        ..evidence(exit_code, "Error")
    };
    let table = [
        (evidence(137, "OOMKilled"), "ContainerLimit"),
        (kernel(memcg, 137), "ContainerLimit"),
        (kernel(killed, 137), "ContainerLimit"),
        (kernel(global, 137), "NodeOutOfMemory"),
        (kernel(all_pods, 137), "NodeOutOfMemory"),
        (
            kernel(
                "Out of memory: Killed process 4711 (python3) total-vm:81456kB, anon-rss:60324kB",
                137,
            ),
            "NodeOutOfMemory",
        ),
        (kernel(&other, 137), "KilledByPerson"),
        (kernel(memcg, 0), "Crash"),
        (
            Evidence {
                events: system(),
                ..evidence(137, "Error")
            },
            "NodeOutOfMemory",
        ),
        (
            Evidence {
                events: system(),
                peak: Some(Bytes::gib(20)),
                oom_kills: 1,
                ..evidence(137, "OOMKilled")
            },
            "NodeOutOfMemory",
        ),
        (
            Evidence {
                events: system(),
                peak: Some(Bytes::gib(64)),
                oom_kills: 1,
                ..evidence(137, "OOMKilled")
            },
            "ContainerLimit",
        ),
        (
            Evidence {
                events: system(),
                ..evidence(1, "Error")
            },
            "Unknown",
        ),
        (
            Evidence {
                oom_kills: 2,
                ..evidence(1, "Error")
            },
            "ChildKilled",
        ),
        (evidence(137, "Error"), "KilledByPerson"),
        (evidence(143, "Error"), "KilledByPerson"),
        (evidence(139, "Error"), "Crash"),
        (
            Evidence {
                shm: Some(Usage {
                    peak: Bytes::mib(64),
                    size: Bytes::mib(64),
                }),
                ..evidence(135, "Error")
            },
            "SharedMemory",
        ),
        (
            Evidence {
                shm: Some(Usage {
                    peak: Bytes::mib(3),
                    size: Bytes::mib(64),
                }),
                ..evidence(135, "Error")
            },
            "Crash",
        ),
    ];
    for (evidence, expected) in table {
        let diagnosis = diagnose(&evidence);
        assert_eq!(name(&diagnosis), expected, "{evidence:#?}\n{diagnosis:#?}");
    }
}

#[test]
fn evictions_are_told_apart() {
    let evicted = |message: &str, disrupted: bool| Evidence {
        node: "n1".to_owned(),
        pod_reason: "Evicted".to_owned(),
        pod_message: message.to_owned(),
        disruption: disrupted.then(|| ("TerminationByKubelet".to_owned(), message.to_owned())),
        ..Evidence::default()
    };
    let table = [
        (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. Container worker was using 31Gi, request is 16Gi, has larger consumption of memory. ",
            "NodePressure",
        ),
        (
            "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. Container worker was using 80Gi, request is 0, has larger consumption of ephemeral-storage. ",
            "NodePressure",
        ),
        ("The node was low on resource: pids. ", "NodePressure"),
        ("The node had condition: [MemoryPressure]. ", "NodePressure"),
        (
            "Container worker exceeded its local ephemeral storage limit \"20Gi\". ",
            "EphemeralStorage",
        ),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi. ",
            "EphemeralStorage",
        ),
        (
            "Usage of EmptyDir volume \"scratch\" exceeds the limit \"10Gi\". ",
            "EphemeralStorage",
        ),
        (
            "Usage of EmptyDir volume \"dshm\" exceeds the limit \"1Gi\". ",
            "SharedMemory",
        ),
    ];
    for (message, expected) in table {
        for disrupted in [false, true] {
            let diagnosis = diagnose(&evicted(message, disrupted));
            assert_eq!(name(&diagnosis), expected, "{message}");
            assert_eq!(diagnosis.confidence, Confidence::Certain, "{message}");
        }
    }
    let preempted = Evidence {
        disruption: Some((
            "PreemptionByScheduler".to_owned(),
            "default-scheduler: preempting to accommodate a higher priority pod".to_owned(),
        )),
        ..evidence(137, "Error")
    };
    assert_eq!(name(&diagnose(&preempted)), "Preempted");
}

#[test]
fn a_full_volume_of_checkpoints_is_not_local_disk() {
    let on = |path: &str| {
        let log = format!("OSError: [Errno 28] No space left on device: '{path}'");
        diagnose(&Evidence {
            checkpoint_path: Some("/ckpt".to_owned()),
            log: Some(LogScan::read(log.as_bytes())),
            ..evidence(1, "Error")
        })
    };
    assert_eq!(on("/ckpt/step-9/optim.pt").cause, Cause::CheckpointVolume);
    assert_eq!(
        on("/ckpt-old/step-9/optim.pt").cause,
        Cause::EphemeralStorage
    );
    assert_eq!(on("/tmp/optim.pt").cause, Cause::EphemeralStorage);
}

/// One line of 10 MiB, of text or of anything, with the end of the program in it.
#[test]
fn a_line_of_ten_mebibytes_hides_nothing() {
    let mut rng = Rng::new(5);
    for (number, text) in TEXTS.iter().step_by(40).enumerate() {
        let mut line: Vec<u8> = (0..10_usize << 20)
            .map(|at| match (number % 2, at % 11) {
                (0, 10) => b' ',
                (0, at) => b'a' + (at as u8),
                _ => match rng.next() as u8 {
                    b'\n' | b'\r' | 0x1b => b'.',
                    byte => byte,
                },
            })
            .collect();
        let at = 5_000_000 + rng.below(100_000) as usize;
        let says = format!(" {} ", text.says.replace('\n', " "));
        line.splice(at..at, says.bytes());
        let mut scan = LogScan::new();
        for chunk in line.chunks(64 << 10) {
            scan.feed(chunk);
        }
        let diagnosis = diagnose(&Evidence {
            log: Some(scan.finish()),
            ..evidence(1, "Error")
        });
        // Not at the head of its line, an exception's name is only as good as its words.
        assert_eq!(
            diagnosis.cause.name(),
            text.cause.split(' ').next().unwrap_or_default(),
            "{}\n{diagnosis:#?}",
            text.says
        );
        assert!(diagnosis.quotes.iter().all(|quote| quote.len() < 1000));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn chunks_make_no_difference(seed: u64, which in 0_usize..TEXTS.len(), sizes in prop::collection::vec(1_usize..700, 1..40)) {
        let mut log = Log::new(STYLES[(seed % 5) as usize], seed);
        log.trains(20);
        log.raises(TEXTS[which].says);
        log.trains(5);
        let whole = LogScan::read(&log.bytes);
        let mut scan = LogScan::new();
        let mut rest = log.bytes.as_slice();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at(rest.len().min(*size));
            scan.feed(chunk);
            rest = after;
        }
        prop_assert_eq!(scan.finish(), whole);
    }

    #[test]
    fn anything_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..4000), words in "(CUDA out of memory|exitcode: |\\[Errno 28\\]|shape\\[|MemoryError|1.5 GiB|é| |\n|\u{1b}\\[|/dev/shm|Killed|oom-kill:constraint=|:){0,60}") {
        let mut log = bytes;
        log.extend(words.bytes());
        let digest = LogScan::read(&log);
        let diagnosis = diagnose(&Evidence { log: Some(digest), kernel: vec![words.clone()], pod_message: words, ..evidence(1, "Error") });
        prop_assert!(!diagnosis.sentence.is_empty());
        prop_assert!(diagnosis.quotes.len() <= 4 && diagnosis.sentence.len() < 4000);
    }
}

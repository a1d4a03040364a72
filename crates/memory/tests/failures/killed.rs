//! Who killed it, by the kernel's lines and by Events, in the words of kernels and kubelets.

use stoke_api::Bytes;
use stoke_memory::{Blame, Cause, End, Evidence, diagnose, events_may_tell};

use crate::evidence;

/// The lines of one kill, as a kernel writes them: of the group whose limit it was, and of the process.
fn kill(limited: Option<&str>, group: &str, pid: u32, rss_kib: u32) -> Vec<String> {
    let (constraint, limited, words) = match limited {
        Some(limited) => (
            "MEMCG",
            format!("oom_memcg={limited},"),
            "Memory cgroup out",
        ),
        None => ("NONE", "global_oom,".to_owned(), "Out"),
    };
    vec![
        format!(
            "oom-kill:constraint=CONSTRAINT_{constraint},nodemask=(null),cpuset=/,mems_allowed=0,{limited}task_memcg={group},task=python3,pid={pid},uid=1000"
        ),
        format!(
            "{words} of memory: Killed process {pid} (python3) total-vm:{}kB, anon-rss:{rss_kib}kB, file-rss:5120kB, shmem-rss:0kB, UID:1000 pgtables:1840kB oom_score_adj:936",
            rss_kib * 3
        ),
    ]
}

#[test]
fn kernel_lines_tell_whose_memory_was_used_up() {
    let uid = "0d1f2a3b-4c5d-6e7f-8091-a2b3c4d5e6f7";
    let pod = format!("/user.slice/stokehold/5c1e/pod{uid}");
    let own = format!("{pod}/worker");
    let other = own.replace("0d1f2a3b", "77777777");
    let died = |exit_code, kernel: Vec<String>| Evidence {
        uid: uid.to_owned(),
        kernel,
        ..evidence(exit_code, "Error")
    };
    let with_peak = |peak, evidence: Evidence| Evidence {
        peak: Some(peak),
        ..evidence
    };
    let table = [
        (
            died(137, kill(Some(&own), &own, 4211, 913_400)),
            "ContainerLimit",
            "Certain",
        ),
        (
            died(137, kill(Some(&pod), &own, 4211, 913_400)),
            "ContainerLimit",
            "Certain",
        ),
        // A child: the worker ended by itself, with no word about it.
        (
            died(1, kill(Some(&own), &own, 4212, 913_400)),
            "ChildKilled",
            "Certain",
        ),
        (
            died(137, kill(None, &own, 4211, 913_400)),
            "NodeOutOfMemory",
            "Certain",
        ),
        (
            died(1, kill(None, &own, 4212, 913_400)),
            "NodeOutOfMemory",
            "Certain",
        ),
        // What the node itself is in has a limit: a slice, a container, all pods.
        (
            died(137, kill(Some("/user.slice"), &own, 4211, 913_400)),
            "NodeOutOfMemory",
            "Certain",
        ),
        (
            died(137, kill(Some("/kubepods.slice"), &own, 4211, 913_400)),
            "NodeOutOfMemory",
            "Certain",
        ),
        (
            with_peak(Bytes::gib(64), died(137, kill(None, &own, 4211, 913_400))),
            "NodeOutOfMemory",
            "Certain",
        ),
        (
            died(137, kill(Some(&other), &other, 900, 913_400)),
            "KilledByPerson",
            "Possible",
        ),
        (
            died(
                1,
                vec!["Out of memory: Killed process 77 (Xorg) total-vm:1kB".to_owned()],
            ),
            "Unknown",
            "Possible",
        ),
        (
            died(
                137,
                vec!["python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0".to_owned()],
            ),
            "KilledByPerson",
            "Possible",
        ),
        (
            died(
                137,
                vec!["Tasks in /a are going to be killed due to memory.oom.group set".to_owned()],
            ),
            "KilledByPerson",
            "Possible",
        ),
    ];
    for (evidence, cause, confidence) in table {
        let found = diagnose(&evidence);
        let said = (found.cause.to_string(), found.confidence.to_string());
        assert_eq!(
            said,
            (cause.to_owned(), confidence.to_owned()),
            "{evidence:#?}\n{found:#?}"
        );
    }
    let found = diagnose(&died(137, kill(None, &own, 4211, 913_400)));
    assert!(
        found.quotes[0].starts_with("Out of memory: Killed process 4211 (python3) total-vm:"),
        "{found:#?}"
    );
    assert!(found.quotes[1].starts_with("oom-kill:constraint=CONSTRAINT_NONE"));
}

#[test]
fn events_tell_who_ended_it_where_its_status_does_not() {
    let uid = "0d1f2a3b-4c5d-6e7f-8091-a2b3c4d5e6f7";
    let events = |of: &[(&str, &str)], evidence: Evidence| Evidence {
        uid: uid.to_owned(),
        events: of
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect(),
        ..evidence
    };
    let (killed, stopped) = (evidence(137, "Error"), evidence(143, "Error"));
    let far = |evidence: Evidence| Evidence {
        peak: Some(Bytes::gib(3)),
        ..evidence
    };
    let system = (
        "SystemOOM",
        "System OOM encountered, victim process: python3, pid: 51877",
    );
    let probe = (
        "Killing",
        "Container worker failed liveness probe, will be restarted",
    );
    let detected = (
        "OOMKilling",
        "Memory cgroup out of memory: Killed process 51877 (python3) total-vm:18451200kB, anon-rss:8380000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:16900kB oom_score_adj:968",
    );
    let low = (
        "Evicted",
        "The node was low on resource: memory. Threshold quantity: 750Mi, available: 402112Ki. Container worker was using 21Gi, request is 8Gi, has larger consumption of memory. ",
    );
    let usual = [
        ("Scheduled", "Successfully assigned ml/train-1-0 to n1"),
        (
            "Pulled",
            "Container image \"acme/train:1\" already present on machine",
        ),
        ("Started", "Started container worker"),
    ];
    let table = [
        (
            events(&[system], killed.clone()),
            "NodeOutOfMemory",
            "Likely",
        ),
        (
            events(&[detected], killed.clone()),
            "ContainerLimit",
            "Likely",
        ),
        // A limit of someone else's.
        (
            events(&[detected], far(killed.clone())),
            "KilledByPerson",
            "Possible",
        ),
        (
            events(&[system], far(killed.clone())),
            "NodeOutOfMemory",
            "Likely",
        ),
        (
            events(&[system], far(evidence(137, "OOMKilled"))),
            "NodeOutOfMemory",
            "Certain",
        ),
        (
            events(&[usual[2], low], killed.clone()),
            "NodePressure(Memory)",
            "Likely",
        ),
        (
            events(
                &[("Preempted", "Preempted by pod 8a6f on node n1")],
                stopped.clone(),
            ),
            "Preempted",
            "Likely",
        ),
        (
            events(
                &[(
                    "TaintManagerEviction",
                    "Marking for deletion Pod ml/train-1-0",
                )],
                stopped.clone(),
            ),
            "Disrupted",
            "Likely",
        ),
        // What is said of the pod is nearer than what is said of its node.
        (events(&[probe, system], killed.clone()), "Crash", "Likely"),
        (events(&usual, killed.clone()), "KilledByPerson", "Possible"),
        (
            events(&[("Killing", "Stopping container worker")], stopped.clone()),
            "KilledByPerson",
            "Likely",
        ),
        (
            events(&[probe, low, system], evidence(1, "Error")),
            "Unknown",
            "Possible",
        ),
        (
            events(&[probe, low], evidence(137, "OOMKilled")),
            "ContainerLimit",
            "Certain",
        ),
    ];
    for (evidence, cause, confidence) in table {
        let found = diagnose(&evidence);
        let cause_found = match found.cause {
            Cause::NodePressure(_) => format!("{:?}", found.cause),
            _ => found.cause.to_string(),
        };
        let said = (cause_found, found.confidence.to_string());
        assert_eq!(
            said,
            (cause.to_owned(), confidence.to_owned()),
            "{evidence:#?}\n{found:#?}"
        );
    }
    for (evidence, worth) in [
        (killed.clone(), true),
        (stopped, true),
        (far(evidence(137, "OOMKilled")), true),
        (evidence(137, "OOMKilled"), false),
        (evidence(1, "Error"), false),
        (evidence(139, "Error"), false),
        (
            Evidence {
                end: End::Deleted,
                ..killed
            },
            false,
        ),
        (Evidence::default(), false),
    ] {
        assert_eq!(events_may_tell(&evidence), worth, "{evidence:#?}");
    }
}

/// What starts a worker ends by itself, before the program begins, where another attempt may write or nobody can.
#[test]
fn what_never_began_for_the_sake_of_its_checkpoints_is_told_so() {
    let ended = |exit_code, path: Option<&str>, log: &str| {
        let found = diagnose(&Evidence {
            checkpoint_path: path.map(str::to_owned),
            log: Some(stoke_memory::LogScan::read(log.as_bytes())),
            ..evidence(exit_code, "Error")
        });
        (found.blame, found.cause, found.word)
    };
    let said = "stokehold: waits\nstokehold: attempt 1 does not begin: attempt 2 has the checkpoints in /ckpt already\n";
    let fenced = ended(83, Some("/ckpt"), said);
    assert_eq!(
        fenced,
        (Blame::Outside, Cause::Disrupted, "Fenced".to_owned())
    );
    let said = "stokehold: attempt 2 does not begin: there is no checkpoint in /ckpt, and whether there is a copy of one could not be learned for 600 s: s3://b: no answer\n";
    let unreachable = ended(85, Some("/ckpt"), said);
    let word = "NoCheckpointCopies".to_owned();
    assert_eq!(
        unreachable,
        (Blame::Outside, Cause::CheckpointVolume, word.clone())
    );
    assert_eq!(
        ended(87, Some("/ckpt"), said),
        (Blame::Job, Cause::CheckpointVolume, word),
        "the keys are the job's"
    );
    let (blame, _, word) = ended(86, Some("/ckpt"), said);
    assert_eq!((blame, word.as_str()), (Blame::Job, "CheckpointsNotReady"));
    // A program that has begun and ends with the same code must not begin again without end.
    for code in [83, 85] {
        let (blame, ..) = ended(code, Some("/ckpt"), "step 1\nstep 2\n");
        assert_eq!(blame, Blame::Job, "{code}");
    }
    let missing = "stokehold: there is no directory /ckpt, where checkpoints are kept: is its volume mounted there?\n";
    let missing = ended(84, Some("/ckpt"), missing);
    assert_eq!(
        missing,
        (
            Blame::Job,
            Cause::CheckpointVolume,
            "NoCheckpointVolume".to_owned()
        )
    );
    let full = "stokehold: cannot write to /ckpt, where checkpoints are kept: No space left on device (os error 28); the volume is full\n";
    let (blame, cause, _) = ended(84, Some("/ckpt"), full);
    assert_eq!((blame, cause), (Blame::Job, Cause::CheckpointVolume));
    for code in [83, 84, 85] {
        let (blame, ..) = ended(code, None, "");
        assert_eq!(
            blame,
            Blame::Job,
            "a program's own code says nothing of ours"
        );
    }
}

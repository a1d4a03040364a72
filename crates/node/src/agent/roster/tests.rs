use serde_json::json;
use stoke_api::contract::checkpoints::Saved;

use stoke_api::names::{ATTEMPT_LABEL, JOB_LABEL, MEMORY_RISK_ANNOTATION, RANK_LABEL};
use stoke_api::risk::{MemoryRisk, Stage};

use super::seen::{STATIC_HASH, STATIC_MARK};
use super::*;
use crate::cgroup::CgroupVersion;

fn pod(job: Option<&str>, containers: &[(&str, &str, bool)]) -> Pod {
    let statuses: Vec<_> = containers
        .iter()
        .map(|(name, id, runs)| {
            let state = if *runs {
                json!({"running": {}})
            } else {
                json!({"terminated": {"exitCode": 0}})
            };
            json!({"name": name, "containerID": format!("containerd://{id}"), "state": state,
                   "ready": true, "restartCount": 0, "image": "", "imageID": ""})
        })
        .collect();
    let mut labels = json!({});
    if let Some(job) = job {
        labels = json!({JOB_LABEL: job, ATTEMPT_LABEL: "1", RANK_LABEL: "0"});
    }
    serde_json::from_value(json!({
        "metadata": {"name": "gpt-1-0", "namespace": "ml", "uid": "u1", "labels": labels},
        "status": {"qosClass": "Burstable", "containerStatuses": statuses}
    }))
    .unwrap()
}

fn measured(id: &str, bytes: u64) -> Vec<Reading> {
    vec![Reading {
        pod_uid: "u1".to_owned(),
        id: id.to_owned(),
        outcome: Outcome::Measured {
            cgroup: Box::new(CgroupSpec::foreign(CgroupVersion::V2, "/x".into())),
            sample: MemorySample {
                usage_bytes: bytes,
                working_set_bytes: bytes,
                anon_bytes: bytes,
                ..MemorySample::default()
            },
            said: JobStatus::default(),
            cpu_usec: None,
        },
    }]
}

fn see(roster: &mut Roster, pod: &Pod) -> Option<Report> {
    roster.observe(pod)
}

/// A node with plenty of everything.
fn plenty() -> NodeLook {
    NodeLook {
        total: 1 << 40,
        available: 1 << 39,
        reserve: 1 << 30,
        ..NodeLook::default()
    }
}

fn record(roster: &mut Roster, second: u64, readings: Vec<Reading>) -> Vec<String> {
    let at = Duration::from_secs(second);
    roster.record(at, readings, &plenty(), Timestamp::UNIX_EPOCH)
}

#[test]
fn a_container_is_told_of_once_when_it_ends() {
    let mut roster = Roster::new(Scope::Jobs);
    assert_eq!(
        see(&mut roster, &pod(Some("gpt"), &[("worker", "a", true)])),
        None
    );
    assert_eq!(
        roster.targets(Duration::ZERO)[0].container.qos,
        Some(Qos::Burstable)
    );
    record(&mut roster, 0, measured("a", 5 << 20));
    record(&mut roster, 1, measured("a", 3 << 20));
    assert_eq!(roster.shown()[0].peak, 5 << 20);

    let report = see(&mut roster, &pod(Some("gpt"), &[("worker", "a", false)]));
    let report = report.expect("it ended");
    let digest = &report.digest.containers["worker"];
    assert_eq!((digest.peak_bytes, digest.samples), (5 << 20, 2));
    assert_eq!(roster.running(), 0);
    assert_eq!(
        see(&mut roster, &pod(Some("gpt"), &[("worker", "a", false)])),
        None,
        "once"
    );
    // A reading that was under way when it ended.
    assert!(record(&mut roster, 2, measured("a", 1)).is_empty());
}

#[test]
fn a_restarted_container_is_another_one() {
    let mut roster = Roster::new(Scope::Jobs);
    see(
        &mut roster,
        &pod(Some("gpt"), &[("worker", "a", true), ("proxy", "p", true)]),
    );
    record(&mut roster, 0, measured("a", 100));
    let report = see(
        &mut roster,
        &pod(Some("gpt"), &[("worker", "b", true), ("proxy", "p", true)]),
    );
    assert_eq!(
        report.expect("the first ended").digest.containers["worker"].id,
        "a"
    );
    assert_eq!(roster.running(), 2);
    record(&mut roster, 9, measured("b", 7));
    let report = see(
        &mut roster,
        &pod(Some("gpt"), &[("worker", "b", false), ("proxy", "p", true)]),
    );
    let digest = report.expect("the second ended").digest;
    assert_eq!(digest.containers["worker"].peak_bytes, 7);
    assert_eq!(digest.containers.len(), 1, "the proxy runs on");
}

#[test]
fn only_jobs_are_measured_unless_all_are_wanted() {
    let stranger = pod(None, &[("web", "a", true)]);
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &stranger);
    assert_eq!(roster.running(), 0);
    let mut roster = Roster::new(Scope::AllPods);
    see(&mut roster, &stranger);
    assert_eq!(roster.running(), 1);
    record(&mut roster, 0, measured("a", 1));
    let ended = see(&mut roster, &pod(None, &[("web", "a", false)]));
    assert_eq!(ended, None, "nothing is written on a stranger's pod");
}

#[test]
fn a_static_pod_is_kept_under_its_files_hash() {
    let mut mirror = pod(None, &[("etcd", "a", true)]);
    mirror.metadata.annotations = Some(
        [(STATIC_HASH, "abc123"), (STATIC_MARK, "abc123")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    let mut roster = Roster::new(Scope::AllPods);
    see(&mut roster, &mirror);
    assert_eq!(
        roster.targets(Duration::ZERO)[0].container.pod_uid,
        "abc123"
    );
    assert_eq!(roster.targets(Duration::ZERO)[0].pod_uid, "u1");
}

#[test]
fn trouble_is_told_once_and_gone_pods_are_forgotten() {
    let mut roster = Roster::new(Scope::Jobs);
    let running = pod(Some("gpt"), &[("worker", "a", true)]);
    see(&mut roster, &running);
    let absent = || {
        vec![Reading {
            pod_uid: "u1".to_owned(),
            id: "a".to_owned(),
            outcome: Outcome::Absent,
        }]
    };
    let mut told = Vec::new();
    for second in 0..30 {
        told.extend(record(&mut roster, second, absent()));
    }
    assert_eq!(
        told,
        ["ml/gpt-1-0 container worker: its cgroup is not found"]
    );
    assert_eq!(roster.troubled(), 1);
    record(&mut roster, 31, measured("a", 1));
    assert_eq!(roster.troubled(), 0);
    roster.keep_only(&BTreeSet::from(["u1".to_owned()]));
    assert_eq!(roster.running(), 1);
    roster.keep_only(&BTreeSet::new());
    assert_eq!(roster.running(), 0);
    see(&mut roster, &running);
    roster.forget(&running);
    assert_eq!(roster.running(), 0);
}

#[test]
fn a_pod_full_of_containers_keeps_a_small_annotation() {
    let mut roster = Roster::new(Scope::Jobs);
    for n in 0..40 {
        let (name, id) = (format!("c{n}"), format!("i{n}"));
        see(&mut roster, &pod(Some("gpt"), &[(&name, &id, true)]));
        record(&mut roster, 0, measured(&id, 1));
    }
    let report = see(&mut roster, &pod(Some("gpt"), &[]));
    assert_eq!(report, None, "there is no room for more");
    let ended = &roster.pods["u1"].ended;
    assert_eq!(ended.len(), DIGESTS_MAX);
}

const MIB: u64 = 1 << 20;

/// The worker of a job whose limit may be raised, on a node of this uid.
fn worker(uid: &str, request: &str) -> Pod {
    let mut worker = pod(Some("gpt"), &[("worker", "a", true)]);
    worker.metadata.uid = Some(uid.to_owned());
    worker.metadata.annotations = Some(BTreeMap::from([(
        "stokehold.dev/memory-terms".to_owned(),
        r#"{"limit": "160Mi", "max": "512Mi"}"#.to_owned(),
    )]));
    worker.spec = serde_json::from_value(json!({"containers": [{
        "name": "worker", "resources": {"limits": {"memory": "160Mi"}, "requests": {"memory": request}}}]}))
    .unwrap();
    worker
}

fn uses(used: u64, limit: u64) -> Vec<Reading> {
    let mut readings = measured("a", used * MIB);
    if let Outcome::Measured { sample, .. } = &mut readings[0].outcome {
        sample.limit_bytes = Some(limit * MIB);
    }
    readings
}

/// What is to be done after a look.
fn asked(roster: &mut Roster, second: u64, readings: Vec<Reading>, look: &NodeLook) -> Vec<Deed> {
    let at = Duration::from_secs(second);
    let now = Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
    roster.record(at, readings, look, now);
    roster.due()
}

/// The same, where all of it goes well.
fn deeds(roster: &mut Roster, second: u64, readings: Vec<Reading>, look: &NodeLook) -> Vec<Deed> {
    let asked = asked(roster, second, readings, look);
    for deed in &asked {
        roster.done(deed, None);
    }
    asked
}

fn judge(roster: &mut Roster, second: u64, available: u64) -> String {
    let look = NodeLook {
        available: available * MIB,
        total: 10_000 * MIB,
        reserve: 300 * MIB,
        ..NodeLook::default()
    };
    let now = Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
    roster.judge(Duration::from_secs(second), &look, now);
    let due = roster.due();
    for deed in &due {
        roster.done(deed, None);
    }
    told(&due)
}

fn told(deeds: &[Deed]) -> String {
    let lines: Vec<String> = deeds.iter().map(|deed| format!("{deed:?}")).collect();
    lines.join("\n")
}

/// With what is written on it.
fn saying(mut pod: Pod, stage: Stage) -> Pod {
    let risk = MemoryRisk {
        stage,
        ..MemoryRisk::default()
    };
    let text = serde_json::to_string(&risk).unwrap();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(MEMORY_RISK_ANNOTATION.to_owned(), text);
    pod
}

#[test]
fn a_worker_that_runs_out_is_given_more_and_then_asked_for_a_checkpoint() {
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &worker("u1", "100Mi"));
    assert_eq!(deeds(&mut roster, 0, uses(100, 160), &plenty()), []);
    assert_eq!(roster.alert().len(), 1, "worth a glance in between");
    assert_eq!(roster.shown()[0].is_at_risk, Some(false));
    let raise = deeds(&mut roster, 1, uses(150, 160), &plenty());
    assert_eq!(raise.len(), 2, "{raise:?}");
    assert!(told(&raise[1..]).contains("memory-risk"), "{raise:?}");
    assert_eq!(roster.shown()[0].is_at_risk, Some(true));
    let ask = deeds(&mut roster, 2, uses(505, 512), &plenty());
    assert!(format!("{ask:?}").contains("AskCheckpoint"), "{ask:?}");
    assert_eq!(roster.alert().len(), 0, "nothing more can be done");
    let mut calm = Vec::new();
    for second in 3..40 {
        calm.extend(deeds(&mut roster, second, uses(300, 512), &plenty()));
    }
    assert_eq!(calm.len(), 1);
    assert_eq!(roster.shown()[0].is_at_risk, Some(false));
}

#[test]
fn a_leak_that_has_done_its_steps_is_asked_to_save_and_its_operator_told() {
    let mut roster = Roster::new(Scope::Jobs);
    let mut pod = worker("u1", "100Mi");
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "stokehold.dev/memory-terms".to_owned(),
        r#"{"limit": "160Mi", "max": "160Mi", "restartSteps": 20}"#.to_owned(),
    );
    see(&mut roster, &pod);
    let mut steps = |second: u64, step: u64| {
        let mut readings = uses(60, 160);
        if let Outcome::Measured { said, .. } = &mut readings[0].outcome {
            said.step = Some(step);
        }
        deeds(&mut roster, second, readings, &plenty())
    };
    // It goes on from a checkpoint of an earlier attempt: its own steps count.
    assert_eq!(steps(0, 500), []);
    assert_eq!(steps(1, 519), []);
    let asked = steps(2, 521);
    let all = told(&asked);
    assert!(asked.iter().any(Deed::asks_for_checkpoint), "{all}");
    assert!(all.contains("checkpointAskedAt"), "{all}");
    assert!(all.contains("has done 21 steps"), "{all}");
    for second in 3..60 {
        assert_eq!(steps(second, 520 + second), [], "once, and not taken back");
    }
}

#[test]
fn a_checkpoint_that_a_program_tells_of_is_told_once_and_dated() {
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &worker("u1", "100Mi"));
    let mut saved = |second: u64, step: Option<u64>| {
        let mut readings = uses(100, 160);
        if let Outcome::Measured { said, .. } = &mut readings[0].outcome {
            said.saved_step = step;
        }
        let deeds = deeds(&mut roster, second, readings, &plenty());
        (!deeds.is_empty()).then(|| told(&deeds))
    };
    assert_eq!(saved(0, Some(5)), None, "from before this process was");
    assert_eq!(saved(1, Some(5)), None);
    let first = saved(2, Some(6)).expect("a new one");
    assert!(first.contains("1970-01-01T00:00:02Z"), "{first}");
    assert_eq!(saved(3, None), None);
    assert_eq!(saved(4, Some(6)), None, "once");
    assert_eq!(saved(5, Some(7)), None, "not that often");
    let second = saved(14, Some(7)).expect("not lost");
    assert!(second.contains("1970-01-01T00:00:05Z"), "{second}");
    let mut readings = uses(100, 160);
    if let Outcome::Measured { said, .. } = &mut readings[0].outcome {
        said.saved = Some(Saved {
            name: "step-8".to_owned(),
            step: Some(8),
            at: "2027-01-15T08:00:00Z".to_owned(),
            bytes: 10,
            millis: None,
            ..Saved::default()
        });
    }
    let seen = told(&deeds(&mut roster, 30, readings, &plenty()));
    for part in ["step-8", "2027-01-15T08:00:00Z", "stokehold.dev/saved"] {
        assert!(seen.contains(part), "{seen}");
    }
}

#[test]
fn the_same_memory_is_not_lent_to_two() {
    let two = |used: u64| {
        let mut both = uses(used, 160);
        let mut other = uses(used, 160);
        other[0].pod_uid = "u2".to_owned();
        both.extend(other);
        both
    };
    let look = |available: u64| NodeLook {
        total: 4000 * MIB,
        available: available * MIB,
        ..NodeLook::default()
    };
    let raises = |available: u64, request: &str| {
        let mut roster = Roster::new(Scope::Jobs);
        for uid in ["u1", "u2"] {
            let mut pod = worker(uid, request);
            if request == "160Mi" {
                pod.status.as_mut().unwrap().qos_class = Some("Guaranteed".to_owned());
            }
            see(&mut roster, &pod);
        }
        deeds(&mut roster, 0, two(100), &look(available));
        let done = told(&deeds(&mut roster, 1, two(158), &look(available)));
        done.matches("kind: Raise").count()
    };
    for request in ["100Mi", "160Mi"] {
        assert_eq!(raises(2000, request), 2, "enough for both");
        assert_eq!(raises(150, request), 1, "and not");
    }
}

#[test]
fn what_a_stranger_was_promised_is_not_lent() {
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &worker("u1", "100Mi"));
    let mut stranger = worker("u2", "1000Mi");
    stranger.metadata.labels = None;
    see(&mut roster, &stranger);
    assert_eq!(roster.running(), 1, "it is not measured");
    let look = |used: u64| NodeLook {
        total: 4000 * MIB,
        available: 1005 * MIB,
        reserve: 100 * MIB,
        used: HashMap::from([("u2".to_owned(), used * MIB)]),
        ..NodeLook::default()
    };
    deeds(&mut roster, 0, uses(100, 160), &look(0));
    assert_eq!(roster.strangers().len(), 1);
    let told = told(&deeds(&mut roster, 1, uses(158, 160), &look(100)));
    assert!(
        told.contains("nobody else's"),
        "1005 - 100 - 900 is too little: {told}"
    );
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &worker("u1", "100Mi"));
    see(&mut roster, &stranger);
    deeds(&mut roster, 0, uses(100, 160), &look(0));
    let raised = deeds(&mut roster, 1, uses(158, 160), &look(900));
    assert!(format!("{raised:?}").contains("Raise"), "{raised:?}");
    // Who has ended counts on nothing.
    stranger.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    see(&mut roster, &stranger);
    assert_eq!(roster.strangers(), []);
}

/// A pod that asks for this limit, which its kubelet does not give.
fn objecting(mut pod: Pod, limit: &str) -> Pod {
    pod.spec = serde_json::from_value(json!({"containers": [
        {"name": "worker", "resources": {"limits": {"memory": limit}}}]}))
    .unwrap();
    let pending = json!({"type": "PodResizePending", "status": "True", "reason": "Infeasible",
        "message": "In-place resize of containers with Guaranteed QoS is not supported"});
    pod.status.as_mut().unwrap().conditions = Some(vec![serde_json::from_value(pending).unwrap()]);
    pod
}

#[test]
fn what_the_kubelet_does_not_give_is_asked_for_no_more() {
    let mut roster = Roster::new(Scope::Jobs);
    let pod = worker("u1", "100Mi");
    see(&mut roster, &pod);
    deeds(&mut roster, 0, uses(100, 160), &plenty());
    assert_eq!(deeds(&mut roster, 1, uses(150, 160), &plenty()).len(), 2);
    let pod = objecting(pod, "512Mi");
    see(&mut roster, &pod);
    let due = roster.due();
    let back = told(&due);
    assert!(
        back.contains("160Mi") && back.contains("Infeasible"),
        "{back}"
    );
    roster.done(&due[0], None);
    see(&mut roster, &pod);
    assert_eq!(roster.due(), [], "once");
    let next = told(&deeds(&mut roster, 2, uses(155, 160), &plenty()));
    assert!(
        next.contains("AskCheckpoint") && next.contains("Infeasible"),
        "{next}"
    );
}

#[test]
fn a_late_objection_is_heard_and_one_to_something_else_is_not() {
    let mut roster = Roster::new(Scope::Jobs);
    let pod = worker("u1", "100Mi");
    see(&mut roster, &pod);
    deeds(&mut roster, 0, uses(100, 160), &plenty());
    deeds(&mut roster, 1, uses(150, 160), &plenty());
    // Its guard has lost patience.
    for second in 2..9 {
        deeds(&mut roster, second, uses(150, 160), &plenty());
    }
    let other = objecting(pod.clone(), "300Mi");
    see(&mut roster, &other);
    assert_eq!(roster.due(), [], "what somebody else asks for");
    see(&mut roster, &pod);
    see(&mut roster, &objecting(pod.clone(), "512Mi"));
    assert!(told(&roster.due()).contains("160Mi"));
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &pod);
    deeds(&mut roster, 0, uses(100, 160), &plenty());
    deeds(&mut roster, 1, uses(150, 160), &plenty());
    let raised = roster.pods["u1"].running["a"].sought.unwrap() / MIB;
    deeds(&mut roster, 2, uses(150, raised), &plenty());
    see(&mut roster, &objecting(pod, "512Mi"));
    assert_eq!(roster.due(), [], "ours is in force");
}

#[test]
fn a_node_that_runs_out_is_told_on_its_workers() {
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &worker("u1", "100Mi"));
    assert_eq!(judge(&mut roster, 0, 5000), "");
    assert!(judge(&mut roster, 1, 350).contains("NodeShort"));
    assert_eq!(judge(&mut roster, 2, 340), "", "once");
    see(&mut roster, &worker("u2", "100Mi"));
    let late = judge(&mut roster, 3, 340);
    assert_eq!(late.matches("NodeShort").count(), 1, "who begins: {late}");
    // A raise meanwhile is done, and the node is short all the same.
    deeds(&mut roster, 4, uses(100, 160), &plenty());
    let raised = told(&deeds(&mut roster, 5, uses(150, 160), &plenty()));
    assert!(
        raised.contains("kind: Raise") && raised.contains("NodeShort"),
        "{raised}"
    );
    for second in 6..38 {
        judge(&mut roster, second, 5000);
    }
    judge(&mut roster, 60, 5000);
    let stage = |uid: &str| roster.pods[uid].told.as_ref().map(|told| told.stage);
    assert_eq!([stage("u1"), stage("u2")], [Some(Stage::Raised), None]);
}

#[test]
fn what_was_told_before_a_restart_is_taken_back_when_it_is_not_so() {
    let mut roster = Roster::new(Scope::Jobs);
    see(
        &mut roster,
        &saying(worker("u1", "100Mi"), Stage::NodeShort),
    );
    let over = judge(&mut roster, 0, 5000);
    assert!(over.contains("memory-risk\": Null"), "{over}");

    for stage in [Stage::Raised, Stage::AtTheEnd] {
        let mut roster = Roster::new(Scope::Jobs);
        see(&mut roster, &saying(worker("u1", "100Mi"), stage));
        assert_eq!(judge(&mut roster, 0, 5000), "");
        let mut calm = String::new();
        for second in 1..30 {
            calm += &told(&deeds(&mut roster, second, uses(50, 160), &plenty()));
        }
        assert!(calm.contains("memory-risk\": Null"), "{stage:?}: {calm}");
    }
    // Nor is it left to a container that was begun anew.
    let mut roster = Roster::new(Scope::Jobs);
    let mut pod = worker("u1", "100Mi");
    see(&mut roster, &pod);
    deeds(&mut roster, 0, uses(100, 160), &plenty());
    deeds(&mut roster, 1, uses(150, 160), &plenty());
    pod.status
        .as_mut()
        .unwrap()
        .container_statuses
        .as_mut()
        .unwrap()[0]
        .container_id = Some("containerd://b".to_owned());
    see(&mut roster, &pod);
    for second in 2..30 {
        let mut readings = uses(50, 160);
        readings[0].id = "b".to_owned();
        deeds(&mut roster, second, readings, &plenty());
    }
    assert_eq!(roster.pods["u1"].told, None);
}

#[test]
fn what_got_lost_is_done_again() {
    let mut roster = Roster::new(Scope::Jobs);
    let mut pod = worker("u1", "100Mi");
    pod.metadata.annotations = None;
    see(&mut roster, &pod);
    deeds(&mut roster, 0, uses(100, 160), &plenty());
    let lost = asked(&mut roster, 1, uses(158, 160), &plenty());
    assert!(told(&lost).contains("checkpoint-request"), "{lost:?}");
    assert_eq!(
        asked(&mut roster, 2, uses(158, 160), &plenty()),
        [],
        "one at a time"
    );
    for deed in &lost {
        roster.done(deed, Some("the server is away"));
    }
    let again = deeds(&mut roster, 3, uses(158, 160), &plenty());
    let said = told(&again);
    assert!(
        said.contains("checkpoint-request\": String(\"1970-01-01T00:00:03Z"),
        "asked anew: {said}"
    );
    assert_eq!(deeds(&mut roster, 4, uses(158, 160), &plenty()), []);
    // A telling is repeated a pass later, and not before.
    for second in 5..19 {
        assert_eq!(deeds(&mut roster, second, uses(50, 160), &plenty()), []);
    }
    let calm = asked(&mut roster, 20, uses(50, 160), &plenty());
    assert!(told(&calm).contains("memory-risk\": Null"), "{calm:?}");
    for deed in &calm {
        roster.done(deed, Some("the server is away"));
    }
    assert_eq!(deeds(&mut roster, 20, uses(50, 160), &plenty()), []);
    let repeated = judge(&mut roster, 21, 5000);
    assert!(repeated.contains("memory-risk\": Null"), "{repeated}");
}

#[test]
fn a_raise_and_what_is_said_of_it_fail_apart() {
    let mut roster = Roster::new(Scope::Jobs);
    see(&mut roster, &worker("u1", "100Mi"));
    deeds(&mut roster, 0, uses(152, 160), &plenty());
    let lost = asked(&mut roster, 1, uses(153, 160), &plenty());
    roster.done(&lost[0], None);
    roster.done(&lost[1], Some("the server is away"));
    let raised = roster.pods["u1"].running["a"].sought.unwrap() / MIB;
    let next = told(&deeds(&mut roster, 2, uses(raised - 5, raised), &plenty()));
    assert!(next.contains("kind: Raise"), "not refused: {next}");
}

#[test]
fn a_worker_that_the_kernel_ended_is_told_so() {
    let mut roster = Roster::new(Scope::Jobs);
    let mut pod = worker("u1", "100Mi");
    see(&mut roster, &pod);
    deeds(&mut roster, 0, uses(100, 160), &plenty());
    pod.status
        .as_mut()
        .unwrap()
        .container_statuses
        .as_mut()
        .unwrap()[0]
        .state = serde_json::from_value(json!({
        "terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "containerd://a",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:09Z"}}))
    .unwrap();
    let digest = &see(&mut roster, &pod).unwrap().digest.containers["worker"];
    assert!(digest.oom_killed);
    assert_eq!((digest.seconds, digest.needed_bytes()), (9, 160 * MIB));
}

/// What is written on a pod from now on, as `name=value`, second by second.
fn told_of_life(
    roster: &mut Roster,
    seconds: std::ops::Range<u64>,
    cpu: fn(u64) -> Option<u64>,
) -> Vec<String> {
    let mut told = Vec::new();
    for second in seconds {
        let wants_cpu = roster.targets(Duration::from_secs(second))[0].wants_cpu;
        let mut readings = measured("a", 1 << 20);
        if let Outcome::Measured { cpu_usec, said, .. } = &mut readings[0].outcome {
            *cpu_usec = cpu(second).filter(|_| wants_cpu);
            said.step = Some(7);
        }
        record(roster, second, readings);
        for deed in roster.due() {
            if let Change::Annotate(annotations) = &deed.change {
                told.extend(
                    annotations
                        .iter()
                        .map(|(name, value)| format!("{second}: {name}={value}")),
                );
            }
            roster.done(&deed, None);
        }
    }
    told
}

#[test]
fn a_worker_that_does_nothing_is_told_of_once_and_that_is_taken_back() {
    let watched = |after: Option<&str>| {
        let mut pod = pod(Some("gpt"), &[("worker", "a", true)]);
        pod.spec = serde_json::from_value(
            json!({"containers": [{"name": "worker", "resources": {"limits": {"memory": "1Gi"}}}]}),
        )
        .unwrap();
        if let Some(after) = after {
            let name = stoke_api::names::HUNG_AFTER_ANNOTATION.to_owned();
            pod.annotations_mut().insert(name, after.to_owned());
        }
        let mut roster = Roster::new(Scope::Jobs);
        see(&mut roster, &pod);
        roster
    };
    let mut roster = watched(Some("60"));
    let looks = (0..30).filter(|at| {
        let due = roster.targets(Duration::from_secs(*at))[0].wants_cpu;
        record(&mut roster, *at, {
            let mut readings = measured("a", 1);
            if let Outcome::Measured { cpu_usec, .. } = &mut readings[0].outcome {
                *cpu_usec = due.then_some(0);
            }
            readings
        });
        due
    });
    assert_eq!(
        looks.collect::<Vec<_>>(),
        [0, 10, 20],
        "its CPU time is read now and then only"
    );
    let mut roster = watched(Some("60"));
    let told = told_of_life(&mut roster, 0..200, |_| Some(5));
    insta::assert_snapshot!(told.join("\n"), @r#"60: stokehold.dev/idle="it did nothing for 1m: less than a fiftieth of a CPU, no step told after step 7""#);
    let told = told_of_life(&mut roster, 200..300, |second| Some(second * 1_000_000));
    insta::assert_snapshot!(told.join("\n"), @"200: stokehold.dev/idle=null");
    for (after, cpu) in [
        (None, (|_| Some(5)) as fn(u64) -> Option<u64>),
        (Some("60"), |_| None),
        (Some("60"), |second| Some(second * 30_000)),
    ] {
        let mut roster = watched(after);
        assert_eq!(told_of_life(&mut roster, 0..200, cpu), Vec::<String>::new());
    }
}

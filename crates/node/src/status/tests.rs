use super::*;
use crate::shim::protocol::{self, ContainerState, ContainerStatus, Exit};
use crate::spec::tests_support::pod;
use serde_json::{Value, json};

const UID: &str = "u-1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("in range")
}

fn exit(code: i32, reason: &str) -> Exit {
    Exit {
        exit_code: code,
        signal: (code > 128).then_some(code - 128),
        oom_killed: reason == "OOMKilled",
        reason: reason.to_owned(),
        message: None,
        started_at: Some(at(1)),
        finished_at: at(5),
        peak_memory_bytes: None,
        oom_kills: 0,
    }
}

fn container(name: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: name.to_owned(),
        restart_count: 0,
        state,
        last: None,
        oom_kills: 0,
        memory_limit_bytes: None,
    }
}

fn running(name: &str) -> ContainerStatus {
    container(
        name,
        ContainerState::Running {
            pid: 42,
            started_at: at(1),
        },
    )
}

fn ended(name: &str, code: i32, reason: &str) -> ContainerStatus {
    container(name, ContainerState::Terminated(exit(code, reason)))
}

fn waiting(name: &str, reason: &str) -> ContainerStatus {
    container(
        name,
        ContainerState::Waiting {
            reason: reason.to_owned(),
            message: None,
        },
    )
}

fn shim(
    init: Vec<ContainerStatus>,
    containers: Vec<ContainerStatus>,
    finished: bool,
) -> ShimStatus {
    ShimStatus {
        version: protocol::VERSION,
        pid: 7,
        finished,
        stop_reason: None,
        cut_short: false,
        init,
        containers,
    }
}

fn one(policy: &str) -> Pod {
    pod(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": UID, "generation": 1},
        "spec": {"restartPolicy": policy, "containers": [{"name": "main", "image": "host"}]},
    }))
}

/// The parts a case is about; the rest as in a quiet pod.
struct Case<'a> {
    pod: &'a Pod,
    shim: Option<ShimStatus>,
    hold: Option<Hold>,
    health: BTreeMap<String, Health>,
    fate: Option<Fate>,
    resize: Option<Resize>,
}

impl<'a> Case<'a> {
    fn of(pod: &'a Pod) -> Self {
        Self {
            pod,
            shim: None,
            hold: None,
            health: BTreeMap::new(),
            fate: None,
            resize: None,
        }
    }

    fn with(pod: &'a Pod, shim: ShimStatus) -> Self {
        Self {
            shim: Some(shim),
            ..Self::of(pod)
        }
    }

    fn status(&self) -> PodStatus {
        let granted = resources::asked(self.pod);
        let ended = match &self.shim {
            Some(shim) => shim.finished,
            None => self.fate.is_some(),
        };
        pod_status(&Observed {
            pod: self.pod,
            granted: &granted,
            address: "10.0.0.7",
            accepted_at: Some(at(0)),
            shim: self.shim.as_ref(),
            hold: self.hold.as_ref(),
            health: &self.health,
            fate: self.fate.as_ref(),
            resize: self.resize.as_ref(),
            ended,
            now: at(10),
        })
    }

    /// `Phase; container: state; Condition=Status(Reason)`, to be read in one line.
    fn line(&self) -> String {
        let status = self.status();
        let mut parts = vec![status.phase.clone().unwrap_or_default()];
        parts.extend(status.reason.clone());
        let all = status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .flatten();
        for container in all {
            let state = container.state.clone().unwrap_or_default();
            let text = match (state.waiting, state.running, state.terminated) {
                (Some(waiting), ..) => format!("waiting {}", waiting.reason.unwrap_or_default()),
                (_, Some(_), _) => "running".to_owned(),
                (.., Some(ended)) => format!(
                    "ended {} {}",
                    ended.exit_code,
                    ended.reason.unwrap_or_default()
                ),
                _ => "nothing".to_owned(),
            };
            let ready = if container.ready { " ready" } else { "" };
            let started = if container.started == Some(true) {
                " started"
            } else {
                ""
            };
            parts.push(format!("{}: {text}{started}{ready}", container.name));
        }
        for condition in status.conditions.iter().flatten() {
            let reason = condition
                .reason
                .as_ref()
                .map(|reason| format!("({reason})"))
                .unwrap_or_default();
            parts.push(format!("{}={}{reason}", condition.type_, condition.status));
        }
        parts.join("; ")
    }
}

#[test]
fn a_plain_pod_from_creation_to_its_end() {
    let pod = one("Never");
    let mut lines = vec![Case::of(&pod).line()];
    for (state, finished) in [
        (waiting("main", "ContainerCreating"), false),
        (running("main"), false),
        (ended("main", 0, "Completed"), false),
        (ended("main", 0, "Completed"), true),
        (ended("main", 1, "Error"), true),
        (ended("main", 137, "OOMKilled"), true),
        (ended("main", 128, "StartError"), true),
    ] {
        lines.push(Case::with(&pod, shim(vec![], vec![state], finished)).line());
    }
    insta::assert_snapshot!(lines.join("\n"), @r"
    Pending; main: waiting ContainerCreating; PodReadyToStartContainers=False; Initialized=True; Ready=False(ContainersNotReady); ContainersReady=False(ContainersNotReady); PodScheduled=True
    Pending; main: waiting ContainerCreating; PodReadyToStartContainers=True; Initialized=True; Ready=False(ContainersNotReady); ContainersReady=False(ContainersNotReady); PodScheduled=True
    Running; main: running started ready; PodReadyToStartContainers=True; Initialized=True; Ready=True; ContainersReady=True; PodScheduled=True
    Running; main: ended 0 Completed; PodReadyToStartContainers=True; Initialized=True; Ready=False(ContainersNotReady); ContainersReady=False(ContainersNotReady); PodScheduled=True
    Succeeded; main: ended 0 Completed; PodReadyToStartContainers=False; Initialized=True(PodCompleted); Ready=False(PodCompleted); ContainersReady=False(PodCompleted); PodScheduled=True
    Failed; main: ended 1 Error; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True
    Failed; main: ended 137 OOMKilled; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True
    Failed; main: ended 128 StartError; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True
    ");
}

#[test]
fn init_containers_come_first() {
    let pod = pod(json!({
        "metadata": {"name": "p", "uid": UID},
        "spec": {
            "restartPolicy": "Never",
            "initContainers": [{"name": "fetch"}, {"name": "unpack"}],
            "containers": [{"name": "main"}],
        },
    }));
    let init = |first: ContainerStatus, second: ContainerStatus| vec![first, second];
    let idle = || vec![waiting("main", "PodInitializing")];
    let lines = [
        Case::of(&pod).line(),
        Case::with(
            &pod,
            shim(
                init(running("fetch"), waiting("unpack", "PodInitializing")),
                idle(),
                false,
            ),
        )
        .line(),
        Case::with(
            &pod,
            shim(
                init(ended("fetch", 0, "Completed"), running("unpack")),
                idle(),
                false,
            ),
        )
        .line(),
        Case::with(
            &pod,
            shim(
                init(
                    ended("fetch", 2, "Error"),
                    waiting("unpack", "PodInitializing"),
                ),
                idle(),
                true,
            ),
        )
        .line(),
        Case::with(
            &pod,
            shim(
                init(
                    ended("fetch", 0, "Completed"),
                    ended("unpack", 0, "Completed"),
                ),
                vec![running("main")],
                false,
            ),
        )
        .line(),
    ];
    insta::assert_snapshot!(lines.join("\n"), @r"
    Pending; fetch: waiting ContainerCreating; unpack: waiting PodInitializing; main: waiting PodInitializing; PodReadyToStartContainers=False; Initialized=False(ContainersNotInitialized); Ready=False(ContainersNotReady); ContainersReady=False(ContainersNotReady); PodScheduled=True
    Pending; fetch: running started; unpack: waiting PodInitializing; main: waiting PodInitializing; PodReadyToStartContainers=True; Initialized=False(ContainersNotInitialized); Ready=False(ContainersNotReady); ContainersReady=False(ContainersNotReady); PodScheduled=True
    Pending; fetch: ended 0 Completed ready; unpack: running started; main: waiting PodInitializing; PodReadyToStartContainers=True; Initialized=False(ContainersNotInitialized); Ready=False(ContainersNotReady); ContainersReady=False(ContainersNotReady); PodScheduled=True
    Failed; fetch: ended 2 Error; unpack: waiting PodInitializing; main: waiting PodInitializing; PodReadyToStartContainers=False; Initialized=False(ContainersNotInitialized); Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True
    Running; fetch: ended 0 Completed ready; unpack: ended 0 Completed ready; main: running started ready; PodReadyToStartContainers=True; Initialized=True; Ready=True; ContainersReady=True; PodScheduled=True
    ");
}

#[test]
fn a_restarted_container_shows_how_it_ended_before() {
    let pod = one("Always");
    let mut crashed = waiting("main", "CrashLoopBackOff");
    crashed.restart_count = 2;
    crashed.last = Some(exit(1, "Error"));
    let case = Case::with(&pod, shim(vec![], vec![crashed], false));
    insta::assert_snapshot!(case.line(), @"Running; main: waiting CrashLoopBackOff; PodReadyToStartContainers=True; Initialized=True; Ready=False(ContainersNotReady); ContainersReady=False(ContainersNotReady); PodScheduled=True");

    let mut again = running("main");
    again.restart_count = 3;
    again.last = Some(exit(137, "OOMKilled"));
    let status = Case::with(&pod, shim(vec![], vec![again], false)).status();
    insta::assert_json_snapshot!(status.container_statuses, @r#"
    [
      {
        "containerID": "stokehold://u-1/main/3",
        "image": "host",
        "imageID": "",
        "lastState": {
          "terminated": {
            "containerID": "stokehold://u-1/main/2",
            "exitCode": 137,
            "finishedAt": "2027-01-15T08:00:05Z",
            "reason": "OOMKilled",
            "startedAt": "2027-01-15T08:00:01Z"
          }
        },
        "name": "main",
        "ready": true,
        "restartCount": 3,
        "started": true,
        "state": {
          "running": {
            "startedAt": "2027-01-15T08:00:01Z"
          }
        }
      }
    ]
    "#);
}

#[test]
fn a_pod_stopped_with_its_node_ends_as_terminated_unless_it_had_ended_before() {
    let pod = one("Never");
    let stopped = |main: ContainerStatus, cut_short, finished| {
        let status = ShimStatus {
            stop_reason: Some(protocol::SHUTDOWN.to_owned()),
            cut_short,
            ..shim(vec![], vec![main], finished)
        };
        Case::with(&pod, status).line()
    };
    let lines = [
        stopped(running("main"), true, false),
        stopped(ended("main", 143, "Error"), true, true),
        stopped(ended("main", 0, "Completed"), true, true),
        stopped(ended("main", 137, "ContainerStatusUnknown"), true, true),
        stopped(waiting("main", "ContainerCreating"), true, true),
        stopped(ended("main", 0, "Completed"), false, true),
        stopped(ended("main", 1, "Error"), false, true),
    ];
    insta::assert_snapshot!(lines.join("\n"), @r"
    Running; main: running started ready; PodReadyToStartContainers=True; Initialized=True; Ready=True; ContainersReady=True; PodScheduled=True; DisruptionTarget=True(TerminationByKubelet)
    Failed; Terminated; main: ended 143 Error; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True; DisruptionTarget=True(TerminationByKubelet)
    Failed; Terminated; main: ended 0 Completed; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True; DisruptionTarget=True(TerminationByKubelet)
    Failed; Terminated; main: ended 137 ContainerStatusUnknown; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True; DisruptionTarget=True(TerminationByKubelet)
    Failed; Terminated; main: waiting ContainerCreating; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True; DisruptionTarget=True(TerminationByKubelet)
    Succeeded; main: ended 0 Completed; PodReadyToStartContainers=False; Initialized=True(PodCompleted); Ready=False(PodCompleted); ContainersReady=False(PodCompleted); PodScheduled=True
    Failed; main: ended 1 Error; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True
    ");
}

#[test]
fn what_the_node_decided_shows_only_when_nothing_runs_any_more() {
    let pod = one("Never");
    let evicted = Fate::Evicted {
        message: "Usage of EmptyDir volume \"tmp\" exceeds the limit \"1Mi\". ".to_owned(),
    };
    let stopping = Case {
        fate: Some(evicted.clone()),
        ..Case::with(&pod, shim(vec![], vec![running("main")], false))
    };
    let stopped = Case {
        fate: Some(evicted),
        ..Case::with(&pod, shim(vec![], vec![ended("main", 137, "Error")], true))
    };
    let late = Case {
        fate: Some(Fate::DeadlineExceeded),
        ..Case::with(&pod, shim(vec![], vec![ended("main", 143, "Error")], true))
    };
    let rejected = Fate::Rejected {
        reason: "OutOfmemory".to_owned(),
        message: "no room".to_owned(),
    };
    let rejected = Case {
        fate: Some(rejected),
        ..Case::of(&pod)
    };
    let lines = [
        stopping.line(),
        stopped.line(),
        late.line(),
        rejected.line(),
    ];
    insta::assert_snapshot!(lines.join("\n"), @r"
    Running; main: running started ready; PodReadyToStartContainers=True; Initialized=True; Ready=True; ContainersReady=True; PodScheduled=True; DisruptionTarget=True(TerminationByKubelet)
    Failed; Evicted; main: ended 137 Error; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True; DisruptionTarget=True(TerminationByKubelet)
    Failed; DeadlineExceeded; main: ended 143 Error; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True
    Failed; OutOfmemory; PodReadyToStartContainers=False; Initialized=True; Ready=False(PodFailed); ContainersReady=False(PodFailed); PodScheduled=True
    ");
    assert_eq!(
        stopped.status().message.as_deref(),
        Some("Usage of EmptyDir volume \"tmp\" exceeds the limit \"1Mi\". ")
    );
    assert_eq!(
        rejected.status().pod_ip,
        None,
        "a pod that was turned away has no address"
    );
}

#[test]
fn probes_decide_what_is_started_and_ready() {
    let pod = one("Always");
    let line = |started, ready| {
        let health = BTreeMap::from([("main".to_owned(), Health { started, ready })]);
        let case = Case {
            health,
            ..Case::with(&pod, shim(vec![], vec![running("main")], false))
        };
        case.line().split("; ").nth(1).map(str::to_owned)
    };
    assert_eq!(line(false, false).as_deref(), Some("main: running"));
    assert_eq!(line(false, true).as_deref(), Some("main: running"));
    assert_eq!(line(true, false).as_deref(), Some("main: running started"));
    assert_eq!(
        line(true, true).as_deref(),
        Some("main: running started ready")
    );
}

#[test]
fn a_pod_that_cannot_be_made_says_why() {
    let pod = one("Never");
    let hold = Hold {
        reason: "CreateContainerConfigError",
        message: "secret \"x\" not found".to_owned(),
    };
    let case = Case {
        hold: Some(hold),
        ..Case::of(&pod)
    };
    let status = case.status();
    let waiting = status.container_statuses.unwrap_or_default()[0]
        .state
        .clone()
        .unwrap_or_default()
        .waiting
        .unwrap_or_default();
    assert_eq!(
        waiting.reason.as_deref(),
        Some("CreateContainerConfigError")
    );
    assert_eq!(waiting.message.as_deref(), Some("secret \"x\" not found"));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
}

#[test]
fn times_of_change_and_foreign_conditions_are_kept() {
    let mut pod = one("Never");
    pod.status = serde_json::from_value(json!({"conditions": [
        {"type": "Initialized", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        {"type": "PodResizePending", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        {"type": "acme.example/warm", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
    ]}))
    .expect("a status");
    let status = Case::with(&pod, shim(vec![], vec![running("main")], false)).status();
    let lines: Vec<String> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .map(|condition| {
            let time = condition
                .last_transition_time
                .map(|time| time.0.to_string())
                .unwrap_or_default();
            format!("{} {} {time}", condition.type_, condition.status)
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    PodReadyToStartContainers True 2027-01-15T08:00:10Z
    Initialized True 2020-01-01T00:00:00Z
    Ready True 2027-01-15T08:00:10Z
    ContainersReady True 2027-01-15T08:00:10Z
    PodScheduled True 2027-01-15T08:00:10Z
    DisruptionTarget True 2020-01-01T00:00:00Z
    acme.example/warm True 2020-01-01T00:00:00Z
    ");
}

#[test]
fn writing_what_was_written_changes_nothing() {
    let mut pod = one("Never");
    let shim = shim(vec![], vec![running("main")], false);
    let first = Case::with(&pod, shim.clone()).status();
    pod.status = Some(first.clone());
    assert_eq!(Case::with(&pod, shim).status(), first);
}

#[test]
fn readiness_gates_are_waited_for() {
    let mut pod = one("Always");
    pod.spec.as_mut().expect("a spec").readiness_gates =
        serde_json::from_value(json!([{"conditionType": "acme.example/warm"}])).expect("gates");
    let status = Case::with(&pod, shim(vec![], vec![running("main")], false)).status();
    let ready = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .expect("there");
    assert_eq!(ready.status, "False");
    assert_eq!(
        ready.message.as_deref(),
        Some("corresponding condition of pod readiness gate \"acme.example/warm\" does not exist.")
    );
}

#[test]
fn a_resize_shows_what_is_granted_and_what_is_in_force() {
    let resources =
        |memory: &str| json!({"requests": {"memory": memory}, "limits": {"memory": memory}});
    let with = |resources: Value| {
        pod(
            json!({"metadata": {"name": "p", "uid": UID}, "spec": {"containers": [{"name": "main", "resources": resources}]}}),
        )
    };
    let pod = with(resources("2Gi"));
    let mut container = running("main");
    container.memory_limit_bytes = Some(1 << 30);
    let case = Case {
        resize: Some(Resize::InProgress(None)),
        ..Case::with(&pod, shim(vec![], vec![container], false))
    };
    let status = case.status();
    assert!(
        case.line().ends_with("PodResizeInProgress=True"),
        "{}",
        case.line()
    );
    let container = &status.container_statuses.expect("containers")[0];
    insta::assert_json_snapshot!(json!({"allocated": container.allocated_resources, "resources": container.resources}), @r#"
    {
      "allocated": {
        "memory": "2Gi"
      },
      "resources": {
        "limits": {
          "memory": "1Gi"
        },
        "requests": {
          "memory": "2Gi"
        }
      }
    }
    "#);
}

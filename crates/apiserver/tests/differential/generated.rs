//! Sequences that nobody thought of: a few objects, created, changed in every way, listed, watched and deleted.
//!
//! `STOKE_TEST_SEED` repeats a run. A sequence that finds an unlisted difference is made shorter before it is shown.

use futures::StreamExt;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use crate::compare::Difference;
use crate::differences::Differences;
use crate::play;
use crate::script::{Patch, Script, Step};
use crate::servers::Pair;

pub const SCRIPT: &str = "generated";

const CASES: usize = 60;
/// The same sequences in every run, so that a change is judged by what it changed; other seeds look for what nobody knows
/// of yet, and are given by hand.
const SEED: u64 = 20_261_115;
const CASES_ABREAST: usize = 4;
/// How often a sequence is tried shorter.
const SHRINKS_MAX: usize = 60;

pub async fn run(pair: &Pair) -> Vec<Difference> {
    let seed = std::env::var("STOKE_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(SEED);
    eprintln!("generated sequences: STOKE_TEST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = prop::collection::vec(action(), 6..24);
    let trees: Vec<_> = (0..CASES)
        .map(|_| strategy.new_tree(&mut runner).unwrap())
        .collect();
    let sequences: Vec<Vec<Action>> = trees.iter().map(ValueTree::current).collect();
    let played: Vec<Vec<Difference>> = futures::stream::iter(
        sequences
            .iter()
            .enumerate()
            .map(
                |(case, actions)| async move { play_case(pair, &case.to_string(), actions).await },
            ),
    )
    .buffered(CASES_ABREAST)
    .collect()
    .await;
    let listed = Differences::read();
    let is_unlisted = |found: &[Difference]| found.iter().any(|one| listed.explain(one).is_empty());
    for (found, mut tree) in played.iter().zip(trees) {
        if !is_unlisted(found) {
            continue;
        }
        // Only the first: those that follow are most often the same.
        let mut shortest = (tree.current(), found.clone());
        for trial in 0..SHRINKS_MAX {
            if !tree.simplify() {
                break;
            }
            let actions = tree.current();
            let found = play_case(pair, &format!("shrunk-{trial}"), &actions).await;
            if is_unlisted(&found) {
                shortest = (actions, found);
            } else if !tree.complicate() {
                break;
            }
        }
        eprintln!("the shortest sequence that differs (STOKE_TEST_SEED={seed}):");
        for step in steps(&shortest.0) {
            eprintln!("  {} {} {}", step.id, step.ask, step.body().1);
        }
        return shortest.1;
    }
    played.into_iter().flatten().collect()
}

async fn play_case(pair: &Pair, case: &str, actions: &[Action]) -> Vec<Difference> {
    let script = Script::generated(SCRIPT, case, steps(actions));
    play::play(pair, &script).await
}

/// One thing that is done to one of a few objects.
#[derive(Clone, Debug)]
struct Action {
    kind: Kind,
    name: &'static str,
    deed: Deed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Config,
    Pod,
    Job,
}

#[derive(Clone, Debug)]
enum Deed {
    Create(Value),
    /// A whole object, made from the last version that was seen if it says so.
    Replace(Value, bool),
    Patch(Patch, Value),
    PatchStatus(Patch, Value),
    Delete(&'static str),
    Get,
    List(&'static str),
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::Config => "/api/v1/namespaces/{ns}/configmaps",
            Self::Pod => "/api/v1/namespaces/{ns}/pods",
            Self::Job => "/apis/stokehold.dev/v1alpha1/namespaces/{ns}/trainjobs",
        }
    }

    fn whole(self, name: &str, mut part: Value) -> Value {
        part["metadata"]["name"] = name.into();
        let (api_version, kind) = match self {
            Self::Config => ("v1", "ConfigMap"),
            Self::Pod => ("v1", "Pod"),
            Self::Job => ("stokehold.dev/v1alpha1", "TrainJob"),
        };
        part["apiVersion"] = api_version.into();
        part["kind"] = kind.into();
        part
    }
}

/// The requests of a sequence, and at its end a watch of all that happened to each kind.
fn steps(actions: &[Action]) -> Vec<Step> {
    let mut steps = Vec::new();
    for kind in [Kind::Config, Kind::Pod, Kind::Job] {
        steps.push(Step::new(
            &format!("{kind:?}-start"),
            format!("GET {}", kind.path()),
        ));
    }
    for (place, action) in actions.iter().enumerate() {
        steps.push(step(place, action, actions));
    }
    for kind in [Kind::Config, Kind::Pod, Kind::Job] {
        // Long enough for all that was done, and cut when nothing more comes.
        let path = kind.path();
        let since = format!("${{{kind:?}-start/metadata/resourceVersion}}");
        let end = format!("{kind:?}-end");
        let body = match kind {
            Kind::Config => json!({}),
            Kind::Pod => json!({"spec": {"containers": [{"name": "end", "image": "end"}]}}),
            Kind::Job => json!({"spec": {"command": ["end"]}}),
        };
        let last = kind.whole("end", body);
        steps.push(Step::new(&end, format!("POST {path}")).json(last));
        let watch = format!("GET {path}?watch=1&resourceVersion={since}");
        steps.push(Step::new(&format!("{kind:?}-watch"), watch).until_named("end"));
    }
    steps
}

fn step(place: usize, action: &Action, actions: &[Action]) -> Step {
    let Action { kind, name, deed } = action;
    let path = kind.path();
    let id = |what: &str| format!("{place}-{what}-{kind:?}");
    match deed {
        Deed::Create(part) => {
            Step::new(&id("create"), format!("POST {path}")).json(kind.whole(name, part.clone()))
        }
        Deed::Replace(part, versioned) => {
            let mut whole = kind.whole(name, part.clone());
            // The answer of the last step that got the object, whatever became of it since.
            let seen = actions[..place].iter().rposition(|earlier| {
                earlier.kind == *kind && earlier.name == *name && matches!(earlier.deed, Deed::Get)
            });
            if let Some(seen) = seen.filter(|_| *versioned) {
                let version = format!("${{{seen}-get-{kind:?}/metadata/resourceVersion}}");
                whole["metadata"]["resourceVersion"] = version.into();
            }
            Step::new(&id("replace"), format!("PUT {path}/{name}")).json(whole)
        }
        Deed::Patch(how, patch) => {
            Step::new(&id("patch"), format!("PATCH {path}/{name}")).patched(*how, patch.clone())
        }
        Deed::PatchStatus(how, patch) => {
            Step::new(&id("status"), format!("PATCH {path}/{name}/status"))
                .patched(*how, patch.clone())
        }
        Deed::Delete(query) => Step::new(&id("delete"), format!("DELETE {path}/{name}{query}")),
        Deed::Get => Step::new(&id("get"), format!("GET {path}/{name}")),
        Deed::List(query) => Step::new(&id("list"), format!("GET {path}{query}")),
    }
}

fn action() -> impl Strategy<Value = Action> {
    let kind = prop_oneof![Just(Kind::Config), Just(Kind::Pod), Just(Kind::Job)];
    kind.prop_flat_map(|kind| {
        (prop_oneof![Just("a"), Just("b")], deed(kind)).prop_map(move |(name, deed)| Action {
            kind,
            name,
            deed,
        })
    })
}

fn deed(kind: Kind) -> impl Strategy<Value = Deed> {
    let patch = prop_oneof![Just(Patch::Merge), Just(Patch::Strategic)];
    let status = prop_oneof![Just(Patch::Merge), Just(Patch::Strategic)];
    prop_oneof![
        4 => whole(kind).prop_map(Deed::Create),
        2 => (whole(kind), any::<bool>()).prop_map(|(part, versioned)| Deed::Replace(part, versioned)),
        4 => (patch, partial(kind)).prop_map(|(how, patch)| Deed::Patch(how, patch)),
        2 => operations(kind).prop_map(|patch| Deed::Patch(Patch::Json, patch)),
        2 => (status, status_part(kind)).prop_map(|(how, patch)| Deed::PatchStatus(how, patch)),
        2 => prop_oneof![Just(""), Just("?gracePeriodSeconds=0"), Just("?dryRun=All")].prop_map(Deed::Delete),
        2 => Just(Deed::Get),
        1 => prop_oneof![Just(""), Just("?labelSelector=x"), Just("?labelSelector=x%3D1,y%21%3D1"), Just("?limit=1")]
            .prop_map(Deed::List),
    ]
}

/// A small text, or nothing.
fn word() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => Just(json!("1")),
        4 => Just(json!("2")),
        1 => Just(json!("")),
        1 => Just(Value::Null),
        1 => Just(json!("not a label!")),
    ]
}

fn metadata() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("[xy]", word(), 0..3);
    let annotations = prop::collection::btree_map("[pq]", word(), 0..2);
    let finalizers = prop_oneof![
        4 => Just(None),
        1 => Just(Some(json!(["stokehold.dev/hold"]))),
        1 => Just(Some(json!([]))),
        1 => Just(Some(Value::Null)),
    ];
    (labels, annotations, finalizers).prop_map(|(labels, annotations, finalizers)| {
        let mut metadata = json!({});
        if !labels.is_empty() {
            metadata["labels"] = json!(labels);
        }
        if !annotations.is_empty() {
            metadata["annotations"] = json!(annotations);
        }
        if let Some(finalizers) = finalizers {
            metadata["finalizers"] = finalizers;
        }
        metadata
    })
}

/// What a new object of the kind says beside its name.
fn whole(kind: Kind) -> BoxedStrategy<Value> {
    (metadata(), body(kind))
        .prop_map(move |(metadata, mut body)| {
            match kind {
                Kind::Config => {}
                Kind::Pod => {
                    body["spec"]["containers"] = json!([{"name": "main", "image": "host"}]);
                }
                Kind::Job => body["spec"]["command"] = json!(["true"]),
            }
            body["metadata"] = metadata;
            body
        })
        .boxed()
}

fn partial(kind: Kind) -> BoxedStrategy<Value> {
    (metadata(), body(kind))
        .prop_map(|(metadata, mut body)| {
            body["metadata"] = metadata;
            body
        })
        .boxed()
}

fn body(kind: Kind) -> BoxedStrategy<Value> {
    match kind {
        Kind::Config => {
            let data = prop::collection::btree_map("[abc]", word(), 0..3);
            let frozen = prop_oneof![6 => Just(json!({})), 1 => Just(json!({"immutable": true}))];
            (data, frozen)
                .prop_map(|(data, mut body)| {
                    if !data.is_empty() {
                        body["data"] = json!(data);
                    }
                    body
                })
                .boxed()
        }
        Kind::Pod => prop_oneof![
            Just(json!({"spec": {}})),
            Just(json!({"spec": {"activeDeadlineSeconds": 60}})),
            Just(json!({"spec": {"activeDeadlineSeconds": 30}})),
            Just(json!({"spec": {"tolerations": [{"key": "t", "operator": "Exists"}]}})),
            Just(
                json!({"spec": {"tolerations": [{"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}]}})
            ),
            Just(json!({"spec": {"nodeSelector": {"disk": "ssd"}}})),
            Just(json!({"spec": {"terminationGracePeriodSeconds": 7}})),
            Just(json!({"spec": {"restartPolicy": "Never"}})),
            Just(json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}})),
        ]
        .boxed(),
        Kind::Job => prop_oneof![
            Just(json!({"spec": {}})),
            Just(json!({"spec": {"workers": 2}})),
            Just(json!({"spec": {"workers": 0}})),
            Just(json!({"spec": {"retries": 5, "gpus": "0.5"}})),
            Just(json!({"spec": {"framework": "torch"}})),
            Just(json!({"spec": {"memory": {"limit": "2Gi"}}})),
            Just(json!({"spec": {"memory": {"request": "4Gi", "limit": "2Gi"}}})),
            Just(json!({"spec": {"retries": null, "queue": "q"}})),
            Just(json!({"spec": {"nonsense": 1}})),
        ]
        .boxed(),
    }
}

fn status_part(kind: Kind) -> BoxedStrategy<Value> {
    match kind {
        // It has none, and says so.
        Kind::Config => Just(json!({})).boxed(),
        Kind::Pod => prop_oneof![
            Just(json!({"status": {"phase": "Running"}})),
            Just(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})),
            Just(json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Why"}]}})),
            Just(json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "out"}, "spec": {"nodeName": "n1"}})),
            Just(json!({"status": {"podIPs": [{"ip": "10.0.0.1"}], "podIP": "10.0.0.1"}})),
        ]
        .boxed(),
        Kind::Job => prop_oneof![
            Just(json!({"status": {"phase": "Running"}})),
            Just(json!({"status": {"phase": "Odd"}})),
            Just(json!({"status": {"phase": null}, "spec": {"workers": 7}})),
            Just(json!({"status": null})),
        ]
        .boxed(),
    }
}

fn operations(kind: Kind) -> impl Strategy<Value = Value> {
    let path = match kind {
        Kind::Config => prop_oneof![
            Just("/data/a"),
            Just("/data"),
            Just("/metadata/labels"),
            Just("/metadata/labels/x"),
            Just("/immutable"),
        ]
        .boxed(),
        Kind::Pod => prop_oneof![
            Just("/spec/activeDeadlineSeconds"),
            Just("/metadata/labels"),
            Just("/metadata/labels/x"),
            Just("/spec/tolerations/-"),
        ]
        .boxed(),
        Kind::Job => prop_oneof![
            Just("/spec/workers"),
            Just("/spec/retries"),
            Just("/metadata/labels"),
            Just("/spec/gpus"),
        ]
        .boxed(),
    };
    let value = prop_oneof![
        Just(json!("1")),
        Just(json!(2)),
        Just(json!({"a": "1"})),
        Just(json!({})),
        Just(json!({"key": "t", "operator": "Exists"})),
    ];
    let operation = ("(add|replace|remove|test)", path, value)
        .prop_map(|(op, path, value)| json!({"op": op, "path": path, "value": value}));
    prop::collection::vec(operation, 1..3).prop_map(Value::from)
}

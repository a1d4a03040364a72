//! One table of bad inputs, run through both halves of every rule: the CEL in the CRD and the Rust beside it.

use kube_cel::Validator;
use serde_json::{Value, json};

struct Case {
    name: &'static str,
    kind: &'static str,
    new: Value,
    old: Option<Value>,
    /// The paths that must be complained about; none: the object is good.
    paths: &'static [&'static str],
}

fn job(spec: Value) -> Value {
    named("train", spec)
}

fn named(name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "stokehold.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        // What an API server fills in from the schema's defaults before it asks any rule.
        "spec": {"framework": "plain", "workers": 1, "gpus": 0, "priority": "standard", "spot": "allowed", "retries": 3, "command": ["true"]},
    });
    for (field, value) in spec.as_object().expect("a spec") {
        if value.is_null() {
            object["spec"]
                .as_object_mut()
                .expect("a spec")
                .remove(field);
        } else {
            object["spec"][field] = value.clone();
        }
    }
    object
}

fn object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": kind, "metadata": {"name": "it"}, "spec": spec})
}

fn cases() -> Vec<Case> {
    let case = |name, new, paths| Case {
        name,
        kind: "TrainJob",
        new,
        old: None,
        paths,
    };
    let change = |name, old, new, paths| Case {
        name,
        kind: "TrainJob",
        new,
        old: Some(old),
        paths,
    };
    let other = |name, kind, spec, paths| Case {
        name,
        kind,
        new: object(kind, spec),
        old: None,
        paths,
    };
    let memory = |memory: Value| {
        let mut full = json!({"qos": "burstable"});
        full.as_object_mut()
            .expect("an object")
            .extend(memory.as_object().expect("an object").clone());
        job(json!({"memory": full}))
    };
    let model = |model: Value| job(json!({"gpus": 1, "model": model}));
    vec![
        case("smallest", job(json!({})), &[]),
        case(
            "off spot after a while",
            job(json!({"spotInterruptions": 3})),
            &[],
        ),
        case(
            "nowhere after a while",
            job(json!({"spot": "only", "spotInterruptions": 3})),
            &["spec.spotInterruptions"],
        ),
        case(
            "a limit for nothing",
            job(json!({"spot": "never", "spotInterruptions": 3})),
            &["spec.spotInterruptions"],
        ),
        case(
            "a limit of each cause",
            job(
                json!({"retryLimits": {"memory": 3, "gpuMemory": 2, "storage": 1, "start": 1, "program": 0, "hung": 1}}),
            ),
            &[],
        ),
        case(
            "more for one cause than for all",
            job(json!({"retries": 1, "retryLimits": {"program": 0, "hung": 2}})),
            &["spec.retryLimits"],
        ),
        case(
            "template instead of command",
            job(json!({"command": null, "template": {"spec": {}}})),
            &[],
        ),
        case(
            "long name",
            named(&"a".repeat(51), json!({})),
            &["metadata.name"],
        ),
        case("name of 50", named(&"a".repeat(50), json!({})), &[]),
        case(
            "name with a dot",
            named("a.b", json!({})),
            &["metadata.name"],
        ),
        case(
            "name with a digit first",
            named("1a", json!({})),
            &["metadata.name"],
        ),
        case(
            "no command",
            job(json!({"command": null})),
            &["spec.command"],
        ),
        case(
            "empty command",
            job(json!({"command": []})),
            &["spec.command"],
        ),
        case(
            "elastic",
            job(json!({"workers": 2, "elastic": {"min": 1, "max": 4}})),
            &[],
        ),
        case(
            "elastic below",
            job(json!({"workers": 1, "elastic": {"min": 2, "max": 4}})),
            &["spec.elastic"],
        ),
        case(
            "elastic upside down",
            job(json!({"workers": 3, "elastic": {"min": 4, "max": 2}})),
            &["spec.elastic"],
        ),
        case(
            "types without gpus",
            job(json!({"gpuTypes": ["h100"]})),
            &["spec.gpuTypes"],
        ),
        case(
            "types with a fraction",
            job(json!({"gpuTypes": ["h100"], "gpus": "0.5"})),
            &[],
        ),
        case(
            "inside one rack",
            job(json!({"topology": {"required": "example.com/rack"}})),
            &[],
        ),
        case(
            "inside one block, better one rack",
            job(json!({"topology": {"required": "block", "preferred": "example.com/rack"}})),
            &[],
        ),
        case(
            "near to nothing",
            job(json!({"topology": {}})),
            &["spec.topology"],
        ),
        case(
            "a level that no label can have",
            job(json!({"topology": {"required": "Example.com/rack"}})),
            &["spec.topology"],
        ),
        case(
            "a level with two slashes",
            job(json!({"topology": {"preferred": "a/b/c"}})),
            &["spec.topology"],
        ),
        case(
            "memory in order",
            memory(json!({"request": "1Gi", "limit": "1536Mi", "max": "2Gi"})),
            &[],
        ),
        case(
            "memory as numbers",
            memory(json!({"request": 1_000_000, "limit": "1Mi"})),
            &[],
        ),
        case("zero memory", memory(json!({"limit": 0})), &["spec.memory"]),
        case(
            "request over limit",
            memory(json!({"request": "2Gi", "limit": "1Gi"})),
            &["spec.memory.request"],
        ),
        case(
            "request over a numeric limit",
            memory(json!({"request": "2Mi", "limit": 1_048_576})),
            &["spec.memory.request"],
        ),
        case(
            "limit over max",
            memory(json!({"limit": "3Gi", "max": "2Gi"})),
            &["spec.memory.limit"],
        ),
        case(
            "request over max",
            memory(json!({"request": "3Gi", "max": "2Gi"})),
            &["spec.memory.max"],
        ),
        case(
            "half a guarantee",
            memory(json!({"request": "1Gi", "limit": "2Gi", "qos": "guaranteed"})),
            &["spec.memory.qos"],
        ),
        case(
            "a guarantee spelled twice",
            memory(json!({"request": "1Gi", "limit": "1024Mi", "qos": "guaranteed"})),
            &[],
        ),
        case(
            "a model by its size",
            model(json!({"params": "8.03B"})),
            &[],
        ),
        case(
            "a model by its shape",
            model(json!({"layers": 32, "hidden": 4096, "heads": 32, "kvHeads": 8})),
            &[],
        ),
        case(
            "a model with wide heads",
            model(json!({"layers": 28, "hidden": 3000, "heads": 16, "headDim": 256})),
            &[],
        ),
        case(
            "a model of no size",
            model(json!({"layers": 32})),
            &["spec.model"],
        ),
        case(
            "a model without gpus",
            job(json!({"model": {"params": 7_000_000_000_u64}})),
            &["spec.model"],
        ),
        case(
            "uneven heads",
            model(json!({"layers": 2, "hidden": 100, "heads": 3})),
            &["spec.model.heads"],
        ),
        case(
            "uneven groups of heads",
            model(json!({"params": "1B", "heads": 16, "kvHeads": 3})),
            &["spec.model.kvHeads"],
        ),
        case(
            "two datasets at one path",
            job(
                json!({"datasets": [{"name": "a", "path": "/data"}, {"name": "b", "path": "/data"}]}),
            ),
            &["spec.datasets"],
        ),
        case(
            "dataset that climbs",
            job(json!({"datasets": [{"name": "a", "path": "/data/../etc"}]})),
            &["spec.datasets"],
        ),
        case(
            "two dots in a name",
            job(json!({"datasets": [{"name": "a", "path": "/data/..a/b.."}]})),
            &[],
        ),
        case(
            "checkpoint that climbs",
            job(json!({"checkpoint": {"path": "/..", "size": "1Gi"}})),
            &["spec.checkpoint.path"],
        ),
        case(
            "copies of checkpoints that climb",
            job(
                json!({"checkpoint": {"path": "/c", "size": "1Gi", "upload": {"uri": "s3://b/a/../c"}}}),
            ),
            &["spec.checkpoint.upload.uri"],
        ),
        case(
            "copies of checkpoints in a directory of a server",
            job(
                json!({"checkpoint": {"path": "/c", "size": "1Gi", "upload": {"uri": "file:///c", "endpoint": "http://s:9000"}}}),
            ),
            &["spec.checkpoint.upload.endpoint"],
        ),
        case(
            "copies of checkpoints",
            job(
                json!({"checkpoint": {"path": "/c", "size": "1Gi", "upload": {"uri": "s3://b/a", "endpoint": "http://s:9000", "secret": "s", "name": "n"}}}),
            ),
            &[],
        ),
        case(
            "checkpoint over a dataset",
            job(
                json!({"checkpoint": {"path": "/d", "size": "1Gi"}, "datasets": [{"name": "a", "path": "/d"}]}),
            ),
            &["spec.checkpoint.path"],
        ),
        case(
            "no time at all",
            job(json!({"maxDuration": "0h0s"})),
            &["spec.maxDuration"],
        ),
        case("ten minutes", job(json!({"maxDuration": "10m"})), &[]),
        case(
            "value and valueFrom",
            job(json!({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {}}}]})),
            &["spec.env"],
        ),
        case(
            "valueFrom",
            job(
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B", "value": "x"}]}),
            ),
            &[],
        ),
        change(
            "more retries",
            job(json!({})),
            job(json!({"retries": 9})),
            &[],
        ),
        change(
            "another framework",
            job(json!({})),
            job(json!({"framework": "torch"})),
            &["spec.framework"],
        ),
        change(
            "managed by another",
            job(json!({})),
            job(json!({"managedBy": "x"})),
            &["spec.managedBy"],
        ),
        change(
            "managed by nobody",
            job(json!({"managedBy": "x"})),
            job(json!({})),
            &["spec.managedBy"],
        ),
        change(
            "still managed",
            job(json!({"managedBy": "x"})),
            job(json!({"managedBy": "x"})),
            &[],
        ),
        other(
            "queue",
            "Queue",
            json!({"weight": 1, "borrow": true, "guaranteed": {"h100": 8}, "ceiling": {"h100": 8, "a100": 1}}),
            &[],
        ),
        other(
            "guarantee over ceiling",
            "Queue",
            json!({"weight": 1, "borrow": true, "guaranteed": {"h100": 9}, "ceiling": {"h100": 8}}),
            &["spec.guaranteed"],
        ),
        other(
            "guarantee over the ceiling of all types",
            "Queue",
            json!({"weight": 1, "borrow": true, "guaranteed": {"h100": 9}, "ceiling": {"any": 8}}),
            &["spec.guaranteed"],
        ),
        other(
            "guarantee of no type",
            "Queue",
            json!({"weight": 1, "borrow": true, "guaranteed": {"": 1}}),
            &["spec.guaranteed"],
        ),
        other(
            "ceiling of an odd type",
            "Queue",
            json!({"weight": 1, "borrow": true, "ceiling": {"h100 80g": 1}}),
            &["spec.ceiling"],
        ),
        other(
            "own parent",
            "Queue",
            json!({"weight": 1, "borrow": true, "parent": "it"}),
            &["spec.parent"],
        ),
        other("dataset from nowhere", "Dataset", json!({}), &["spec"]),
        other(
            "dataset from two places",
            "Dataset",
            json!({"uri": "file:///a", "claim": "b"}),
            &["spec"],
        ),
        other(
            "dataset from a claim and an export",
            "Dataset",
            json!({"claim": "b", "nfs": {"server": "a", "path": "/b"}}),
            &["spec"],
        ),
        other(
            "dataset with keys for a directory",
            "Dataset",
            json!({"uri": "file:///a", "secret": "keys"}),
            &["spec.secret"],
        ),
        other(
            "dataset in a bucket",
            "Dataset",
            json!({"uri": "s3://b/c", "secret": "keys", "endpoint": "https://minio:9000"}),
            &[],
        ),
        other(
            "dataset with an endpoint for a file of the web",
            "Dataset",
            json!({"uri": "https://a/b", "endpoint": "https://minio:9000"}),
            &["spec.secret"],
        ),
        other(
            "dataset that climbs",
            "Dataset",
            json!({"uri": "file:///a/../b"}),
            &["spec.uri"],
        ),
    ]
}

fn schema(kind: &str) -> Value {
    let crd = stoke_api::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .expect("one of our kinds");
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    serde_json::to_value(schema.expect("a schema")).expect("JSON")
}

#[test]
fn both_halves_of_every_rule_agree() {
    let mut seen = std::collections::BTreeSet::new();
    for case in cases() {
        let typed = stoke_api::violations(case.kind, &case.new, case.old.as_ref());
        let paths: Vec<&str> = typed
            .iter()
            .map(|violation| violation.path.as_str())
            .collect();
        assert_eq!(paths, case.paths, "typed: {}", case.name);

        let cel = match Validator::new().validate(&schema(case.kind), &case.new, case.old.as_ref())
        {
            Ok(()) => Vec::new(),
            Err(errors) => errors
                .iter()
                .map(|error| error.message.clone())
                .collect::<Vec<_>>(),
        };
        let messages: Vec<_> = typed
            .iter()
            .map(|violation| violation.message.clone())
            .collect();
        assert_eq!(cel, messages, "CEL: {}", case.name);
        seen.extend(messages);
    }
    let rules = stoke_api::rules::TRAIN_JOB.iter().map(|rule| rule.message);
    let rules = rules.chain(stoke_api::rules::QUEUE.iter().map(|rule| rule.message));
    for message in rules.chain(stoke_api::rules::DATASET.iter().map(|rule| rule.message)) {
        assert!(
            seen.contains(message),
            "no case breaks the rule {message:?}"
        );
    }
}

#[test]
fn a_quota_below_zero_is_refused_by_both() {
    let queue = object(
        "Queue",
        json!({"weight": 1, "borrow": true, "guaranteed": {"h100": -1}}),
    );
    let found = stoke_api::violations("Queue", &queue, None);
    assert_eq!(found.len(), 1, "{found:?}");
    let counts = &schema("Queue")["properties"]["spec"]["properties"]["guaranteed"];
    assert_eq!(counts["additionalProperties"]["minimum"], json!(0.0));
}

#[test]
fn an_amount_that_does_not_exist_is_a_violation_and_no_panic() {
    let huge = job(json!({"memory": {"limit": "9999999999999999999Pi"}}));
    let found = stoke_api::violations("TrainJob", &huge, None);
    assert_eq!(found.len(), 1);
    assert!(found[0].message.contains("512Mi"), "{}", found[0].message);
}

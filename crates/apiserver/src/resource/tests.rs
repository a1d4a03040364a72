//! Behaviour of the registry: names, CRDs, validation, defaults, selectors, events.

use serde_json::json;

use super::*;

fn builtin(group: &str, plural: &str) -> &'static Resource {
    let found = Resource::builtins()
        .iter()
        .find(|resource| resource.group == group && resource.plural == plural);
    found.unwrap()
}

fn definition() -> Value {
    json!({
    "metadata": {"name": "jobs.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "jobs", "kind": "Job", "shortNames": ["jb"], "categories": ["all"]},
        "versions": [
            {"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.queue"}],
                "additionalPrinterColumns": [
                    {"name": "Queue", "type": "string", "jsonPath": ".spec.queue"},
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "priority": 1},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
                "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                    "spec": {"type": "object", "properties": {"queue": {"type": "string"}, "workers": {"type": "integer", "default": 1}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}},
            {"name": "v1beta1", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
            {"name": "v1alpha1", "served": false, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}],
    }})
}

fn paths(errors: &[FieldError]) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn every_built_in_kind_is_complete() {
    for resource in Resource::builtins() {
        let name = resource.group_resource();
        assert!(!resource.columns.is_empty(), "{name}");
        let mut empty = json!({});
        resource.default(&mut empty);
        let once = empty.clone();
        resource.default(&mut empty);
        assert_eq!(empty, once, "{name}");
        resource.validate(&empty, Some(&once));
        for column in &resource.columns {
            if let Cell::Compute(compute) = column.cell {
                compute(&json!({}), Timestamp::UNIX_EPOCH);
                compute(&json!([]), Timestamp::UNIX_EPOCH);
            }
        }
    }
    assert_eq!(
        builtin("", "events").key(),
        builtin("events.k8s.io", "events").key()
    );
    assert_eq!(
        builtin("coordination.k8s.io", "leases").key(),
        "leases.coordination.k8s.io"
    );
}

#[test]
fn a_definition_becomes_its_served_versions() {
    let resources = Resource::from_crd(&definition()).unwrap();
    let versions: Vec<&str> = resources
        .iter()
        .map(|resource| resource.version.as_str())
        .collect();
    assert_eq!(versions, ["v1", "v1beta1"]);
    let job = &resources[0];
    assert_eq!(
        (
            job.key().as_str(),
            job.singular.as_str(),
            job.list_kind.as_str(),
            job.api_version().as_str()
        ),
        ("jobs.example.com", "job", "JobList", "example.com/v1")
    );
    assert!(job.subresources.status && !job.is_builtin());
    let columns: Vec<&str> = job
        .columns
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    assert_eq!(columns, ["Name", "Queue", "Ready", "Age"]);
    assert_eq!(
        resources[1].columns.len(),
        2,
        "without columns there are name and age"
    );

    let mut object = json!({"apiVersion": "example.com/v1beta1", "kind": "Job", "spec": {}});
    resources[1].to_stored(&mut object);
    assert_eq!(object["apiVersion"], "example.com/v1");
    resources[1].from_stored(&mut object);
    assert_eq!(object["apiVersion"], "example.com/v1beta1");
}

#[test]
fn bad_definitions_are_refused_with_paths() {
    let changed = |pointer: &str, value: Value| {
        let mut definition = definition();
        *definition.pointer_mut(pointer).unwrap() = value;
        paths(&Resource::from_crd(&definition).err().unwrap_or_default())
    };
    let table = [
        changed("/metadata/name", json!("x")),
        changed("/spec/group", json!("nodots")),
        changed("/spec/scope", json!("World")),
        changed("/spec/names/kind", json!("")),
        changed("/spec/names/plural", json!("Jobs")),
        changed("/spec/versions/1/storage", json!(true)),
        changed("/spec/versions/1/name", json!("v1")),
        changed("/spec/versions/0/schema", json!({})),
        changed(
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.x > 0"}]}),
        ),
        changed(
            "/spec/versions/0/additionalPrinterColumns/0/jsonPath",
            json!(".spec["),
        ),
        changed(
            "/spec/versions/0/additionalPrinterColumns/0/type",
            json!("text"),
        ),
        changed(
            "/spec/versions/0/subresources",
            json!({"status": {}, "scale": {"specReplicasPath": ".spec.x", "statusReplicasPath": ".status.x"}}),
        ),
        changed(
            "/spec/versions/0/selectableFields/0/jsonPath",
            json!(".spec.list[0]"),
        ),
        changed("/spec/versions", json!([])),
        paths(&Resource::from_crd(&json!({})).unwrap_err()),
        paths(&Resource::from_crd(&json!([])).unwrap_err()),
    ];
    insta::assert_snapshot!(table.join("\n---\n"));
}

#[test]
fn our_own_definitions_are_served_and_checked_by_typed_rules() {
    for definition in stoke_api::crds() {
        let definition = serde_json::to_value(definition).unwrap();
        let crds = builtin("apiextensions.k8s.io", "customresourcedefinitions");
        assert_eq!(crds.prune(&mut definition.clone()), [""; 0]);
        assert_eq!(crds.validate(&definition, None), []);
        let resources =
            Resource::from_crd(&definition).unwrap_or_else(|errors| panic!("{}", paths(&errors)));
        assert!(!resources.is_empty());
    }
}

#[test]
fn metadata_is_checked_alike_everywhere() {
    let check = |resource: &Resource, metadata: Value| {
        let object = json!({ "metadata": metadata });
        paths(&metadata::check(resource, &object, None))
    };
    let pods = builtin("", "pods");
    let table = [
        check(pods, json!({})),
        check(pods, json!({"name": "A"})),
        check(pods, json!({"generateName": "a-", "namespace": "N"})),
        check(pods, json!({"generateName": "A-"})),
        check(
            pods,
            json!({"name": "a", "labels": {"-": "a b"}, "annotations": {"X/Y": "fine", "": "bad"}}),
        ),
        check(
            pods,
            json!({"name": "a", "annotations": {"big": "x".repeat(300_000)}}),
        ),
        check(pods, json!({"name": "a", "finalizers": ["x y"]})),
        check(
            pods,
            json!({"name": "a", "ownerReferences": [
            {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1", "controller": true},
            {"apiVersion": "v1", "kind": "A", "name": "b", "controller": true}]}),
        ),
        check(
            builtin("", "nodes"),
            json!({"name": "a.b", "namespace": "x"}),
        ),
        check(builtin("", "services"), json!({"name": "1a"})),
        check(builtin("", "namespaces"), json!({"name": "a.b"})),
    ];
    insta::assert_snapshot!(table.join("\n---\n"));
    let moved = metadata::check(
        pods,
        &json!({"metadata": {"name": "b", "uid": "2"}}),
        Some(&json!({"metadata": {"name": "a", "uid": "1"}})),
    );
    assert_eq!(moved.len(), 2);
}

#[test]
fn kinds_have_rules_of_their_own() {
    let check = |group: &str, plural: &str, object: Value| {
        let mut object = object;
        object["metadata"]["name"] = json!("a");
        let resource = builtin(group, plural);
        resource.default(&mut object);
        paths(&resource.validate(&object, None))
    };
    let table = [
        check("", "configmaps", json!({"data": {"../x": "", "ok": "y"}})),
        check(
            "",
            "services",
            json!({"spec": {"ports": [{"port": 0}, {"port": 80, "name": "a"}, {"port": 80, "name": "a"}]}}),
        ),
        check(
            "",
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": ["All"]}}),
        ),
        check(
            "",
            "persistentvolumes",
            json!({"spec": {"persistentVolumeReclaimPolicy": "Burn"}}),
        ),
        check(
            "",
            "events",
            json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "b"}}),
        ),
        check(
            "coordination.k8s.io",
            "leases",
            json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}}),
        ),
        check(
            "scheduling.k8s.io",
            "priorityclasses",
            json!({"value": 2_000_000_000, "preemptionPolicy": "Maybe"}),
        ),
        check(
            "discovery.k8s.io",
            "endpointslices",
            json!({"endpoints": [{}]}),
        ),
        check(
            "",
            "pods",
            json!({"spec": {"containers": [{"image": 3}], "nodeName": {}}}),
        ),
    ];
    insta::assert_snapshot!(table.join("\n---\n"));
}

#[test]
fn field_selectors_know_their_kind() {
    let pods = builtin("", "pods");
    let pod = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"nodeName": "w"}, "status": {"phase": "Running"}});
    for (selector, expected) in [
        (
            "metadata.name=a,metadata.namespace=n,status.phase=Running",
            true,
        ),
        ("spec.nodeName=w,spec.nodeName!=x", true),
        ("spec.hostNetwork=false", true),
        ("status.podIP=", true),
        ("status.phase!=Running", false),
    ] {
        assert_eq!(
            pods.field_selector(selector).unwrap().matches(&pod),
            expected,
            "{selector}"
        );
    }
    assert_eq!(
        pods.field_selector("spec.foo=x").unwrap_err().to_string(),
        "field label not supported: spec.foo"
    );
    let event = json!({"reportingComponent": "stoke", "involvedObject": {"kind": "Pod"}});
    let events = builtin("", "events");
    assert!(
        events
            .field_selector("source=stoke,involvedObject.kind=Pod")
            .unwrap()
            .matches(&event)
    );
    let jobs = &Resource::from_crd(&definition()).unwrap()[0];
    assert!(
        jobs.field_selector("spec.queue=a")
            .unwrap()
            .matches(&json!({"spec": {"queue": "a"}}))
    );
    assert!(jobs.field_selector("spec.workers=1").is_err());
}

#[test]
fn events_have_two_faces() {
    let stored = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"name": "p"}, "message": "m",
        "source": {"component": "c"}, "count": 2, "firstTimestamp": "2026-01-01T00:00:00Z", "reason": "R", "reportingComponent": "x", "reportingInstance": ""});
    let events = builtin("events.k8s.io", "events");
    let mut served = stored.clone();
    events.from_stored(&mut served);
    assert_eq!(
        served,
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "regarding": {"name": "p"}, "note": "m",
            "deprecatedSource": {"component": "c"}, "deprecatedCount": 2, "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
            "reason": "R", "reportingController": "x"})
    );
    assert_eq!(events.prune(&mut served.clone()), [""; 0]);
    events.to_stored(&mut served);
    assert_eq!(served, stored);
}

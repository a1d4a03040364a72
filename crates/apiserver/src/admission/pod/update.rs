//! What may change in a pod once it is there.

use serde_json::Value;

use super::{CONTAINER_LISTS, all_containers, containers, qos};
use crate::admission::Part;
use crate::schema::FieldError;

/// What a write of `part` changed that it may not.
pub(crate) fn update_errors(part: Part, old: &Value, new: &Value) -> Vec<FieldError> {
    match part {
        Part::Main => spec_errors(old, new),
        Part::Resize => resize_errors(old, new),
        Part::Status => status_errors(old, new),
        Part::Finalize => Vec::new(),
    }
}

/// The class follows from the spec and stays as it was at birth.
fn status_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    let class = |pod: &Value| pod["status"]["qosClass"].clone();
    if class(new).is_null() || class(old).is_null() || class(new) == class(old) {
        return Vec::new();
    }
    let why = "field is immutable";
    vec![FieldError::invalid("status.qosClass", &class(new), why)]
}

const MUTABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`, \
    `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing \
    tolerations) and `spec.terminationGracePeriodSeconds` (only to 1 if it was negative)";

fn spec_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    if old["spec"] == new["spec"] {
        return Vec::new();
    }
    for list in CONTAINER_LISTS {
        if containers(old, list).count() != containers(new, list).count() {
            let why = "pod updates may not add or remove containers";
            return vec![FieldError::forbidden(&format!("spec.{list}"), why)];
        }
    }
    // What may change is put back; if anything still differs, it may not.
    let mut allowed = new.clone();
    for list in CONTAINER_LISTS {
        for place in 0..containers(old, list).count() {
            let image = old["spec"][list][place]["image"].clone();
            if let Some(container) = allowed["spec"][list][place].as_object_mut() {
                container.insert("image".into(), image);
            }
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations"] {
        let value = old["spec"].get(field).cloned();
        if let Some(spec) = allowed["spec"].as_object_mut() {
            match value {
                Some(value) => spec.insert(field.into(), value),
                None => spec.remove(field),
            };
        }
    }
    let mut errors = Vec::new();
    let deadline = |pod: &Value| pod["spec"]["activeDeadlineSeconds"].as_i64();
    match (deadline(old), deadline(new)) {
        // Kubernetes says nothing else then.
        (Some(before), Some(after)) if after > before => {
            return vec![FieldError::invalid(
                "spec.activeDeadlineSeconds",
                &after.into(),
                "must be less than or equal to previous value",
            )];
        }
        (Some(_), None) => errors.push(FieldError::invalid(
            "spec.activeDeadlineSeconds",
            &Value::Null,
            "must not update from a positive integer to nil value",
        )),
        _ => {}
    }
    // How long something is tolerated may change.
    let tolerations = |pod: &Value| {
        let list = pod["spec"]["tolerations"].as_array();
        let mut list = list.cloned().unwrap_or_default();
        for toleration in list.iter_mut().filter_map(Value::as_object_mut) {
            toleration.remove("tolerationSeconds");
        }
        list
    };
    let after = tolerations(new);
    if tolerations(old).iter().any(|kept| !after.contains(kept)) {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    if allowed["spec"] != old["spec"] {
        errors.push(FieldError::forbidden("spec", MUTABLE));
    }
    errors
}

/// Copies what a resize may say, the resources of each container, from `new` into `next`.
pub(crate) fn take_resources(new: &Value, next: &mut Value) {
    for list in CONTAINER_LISTS {
        // Never by `next["spec"][list]`: to index a place that is not there would make it, as a null.
        let places = next.pointer_mut(&format!("/spec/{list}"));
        let places = places.and_then(Value::as_array_mut).into_iter().flatten();
        for place in places.filter_map(Value::as_object_mut) {
            let wanted = containers(new, list).find(|container| {
                Some(&container["name"]) == place.get("name") && container["resources"].is_object()
            });
            if let Some(container) = wanted {
                place.insert("resources".into(), container["resources"].clone());
            }
        }
    }
}

fn resize_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if qos::class(old) != qos::class(new) {
        errors.push(FieldError::invalid_text(
            "spec",
            qos::class(old),
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    for list in CONTAINER_LISTS {
        for (place, container) in containers(new, list).enumerate() {
            let path = format!("spec.{list}[{place}].resources");
            let before = all_containers(old).find(|other| other["name"] == container["name"]);
            let Some(before) = before else { continue };
            errors.extend(container_resize_errors(
                &path,
                &before["resources"],
                &container["resources"],
            ));
        }
    }
    errors
}

fn container_resize_errors(path: &str, old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for list in ["limits", "requests"] {
        let names = [old, new]
            .into_iter()
            .filter_map(|resources| resources[list].as_object())
            .flat_map(|amounts| amounts.keys());
        for name in names {
            let (before, after) = (&old[list][name.as_str()], &new[list][name.as_str()]);
            if qos::amount(before) == qos::amount(after) && before.is_null() == after.is_null() {
                continue;
            }
            if !matches!(name.as_str(), "cpu" | "memory") {
                let why = "only cpu and memory resources are mutable";
                errors.push(FieldError::forbidden("spec", why));
            } else if after.is_null() {
                let why = format!("resource {list} cannot be removed");
                errors.push(FieldError::forbidden(&format!("{path}.{list}"), &why));
            }
        }
    }
    errors.dedup();
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"spec": {
            "nodeName": "n",
            "activeDeadlineSeconds": 60,
            "tolerations": [{"key": "a"}],
            "containers": [{"name": "c", "image": "i", "resources": {
                "limits": {"memory": "1Gi", "nvidia.com/gpu": "1"}, "requests": {"memory": "1Gi"}}}],
        }})
    }

    fn changed(part: Part, change: impl FnOnce(&mut Value)) -> String {
        let mut new = pod();
        change(&mut new);
        let errors = update_errors(part, &pod(), &new);
        let paths: Vec<_> = errors.iter().map(|error| error.path.clone()).collect();
        paths.join(" ")
    }

    #[test]
    fn a_spec_is_nearly_frozen() {
        let main = |change: fn(&mut Value)| changed(Part::Main, change);
        assert_eq!(main(|_| {}), "");
        assert_eq!(
            main(|pod| pod["spec"]["containers"][0]["image"] = "j".into()),
            ""
        );
        assert_eq!(
            main(|pod| pod["spec"]["activeDeadlineSeconds"] = 30.into()),
            ""
        );
        assert_eq!(
            main(|pod| pod["spec"]["activeDeadlineSeconds"] = 90.into()),
            "spec.activeDeadlineSeconds"
        );
        assert_eq!(main(|pod| pod["spec"]["nodeName"] = "m".into()), "spec");
        assert_eq!(
            main(|pod| pod["spec"]["tolerations"] = json!([{"key": "a"}, {"key": "b"}])),
            ""
        );
        assert_eq!(
            main(|pod| pod["spec"]["tolerations"] = json!([])),
            "spec.tolerations"
        );
        assert_eq!(
            main(|pod| pod["spec"]["containers"] = json!([])),
            "spec.containers"
        );
        assert_eq!(
            main(|pod| pod["spec"]["containers"][0]["resources"] = json!({})),
            "spec"
        );
    }

    #[test]
    fn a_resize_changes_cpu_and_memory_only() {
        let resize = |limits: Value, requests: Value| {
            changed(Part::Resize, |pod| {
                pod["spec"]["containers"][0]["resources"] =
                    json!({"limits": limits, "requests": requests});
            })
        };
        let gpu = "nvidia.com/gpu";
        assert_eq!(
            resize(json!({"memory": "2Gi", gpu: "1"}), json!({"memory": "1Gi"})),
            ""
        );
        assert_eq!(
            resize(json!({gpu: "1"}), json!({"memory": "1Gi"})),
            "spec.containers[0].resources.limits"
        );
        assert_eq!(
            resize(json!({"memory": "1Gi", gpu: "2"}), json!({"memory": "1Gi"})),
            "spec"
        );
        assert_eq!(
            resize(
                json!({"memory": "2Gi", "cpu": "1", gpu: "1"}),
                json!({"memory": "2Gi", "cpu": "1"})
            ),
            "spec"
        );
    }
}

//! The quality-of-service class of a pod.

use serde_json::Value;

use super::all_containers;
use stoke_api::quantity::Exact;

/// Guaranteed if every container's CPU and memory are limited to what they request, BestEffort if none asks for
/// anything, Burstable otherwise.
pub(super) fn class(pod: &Value) -> &'static str {
    let mut asked = false;
    let mut guaranteed = true;
    for container in all_containers(pod) {
        let resources = &container["resources"];
        for resource in ["cpu", "memory"] {
            let request = amount(&resources["requests"][resource]);
            let limit = amount(&resources["limits"][resource]);
            asked |= request > 0 || limit > 0;
            guaranteed &= limit > 0 && request == limit;
        }
    }
    match (asked, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// In nanos, so that every quantity is whole; zero if it is absent or not a quantity.
pub(super) fn amount(value: &Value) -> i128 {
    value
        .as_str()
        .and_then(Exact::parse)
        .map_or(0, Exact::nanos)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}});
        let half = json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}});
        let gpu = json!({"limits": {"nvidia.com/gpu": "1"}});
        for (resources, class_name) in [
            (vec![json!({})], "BestEffort"),
            (vec![gpu], "BestEffort"),
            (vec![full.clone()], "Guaranteed"),
            (vec![full.clone(), json!({})], "Burstable"),
            (vec![half], "Burstable"),
            (vec![full.clone(), full], "Guaranteed"),
        ] {
            let containers: Vec<_> = resources
                .iter()
                .map(|resources| json!({"resources": resources}))
                .collect();
            let pod = json!({"spec": {"containers": containers}});
            assert_eq!(class(&pod), class_name, "{pod}");
        }
    }
}

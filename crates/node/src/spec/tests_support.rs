//! Values that tests of several modules share.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::{NodeFacts, Sources};

pub(crate) fn pod(value: Value) -> Pod {
    serde_json::from_value(value).expect("a pod")
}

pub(crate) fn facts() -> NodeFacts {
    let quantity = |text: &str| Quantity(text.to_owned());
    NodeFacts {
        name: "node-a".to_owned(),
        address: "10.0.0.7".to_owned(),
        allocatable: BTreeMap::from([
            ("cpu".to_owned(), quantity("8")),
            ("memory".to_owned(), quantity("16Gi")),
        ]),
        base_env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        engine_uid: 0,
        has_gpus: true,
        free_mounts: true,
        log_max_bytes: 1 << 20,
        log_max_files: 5,
        pids_max: None,
    }
}

pub(crate) fn sources() -> Sources {
    let of = |value: Value| serde_json::from_value(value).expect("an object");
    Sources::new(
        "ns",
        vec![of(
            json!({"metadata": {"name": "settings"}, "data": {"lr": "0.1", "epochs": "90"}}),
        )],
        vec![
            serde_json::from_value(
                json!({"metadata": {"name": "login"}, "data": {"token": "aHVzaCE="}}),
            )
            .expect("a secret"),
        ],
    )
}

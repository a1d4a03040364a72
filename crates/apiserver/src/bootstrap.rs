//! What a fresh cluster already has, and our own kinds.

use jiff::Timestamp;
use serde_json::{Value, json};
use stoke_store::Key;

use crate::admission::{self, Part};
use crate::object;
use crate::registry::{DEFINITIONS, Registry};
use crate::request::{Body, WriteOptions};
use crate::server::Core;
use crate::status::Status;

/// As Kubernetes has them; node heartbeats live in `kube-node-lease`.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Brings the store to what every server has. Objects that are there are left as they are, but for the definitions
/// of our own kinds, which follow the binary.
pub(crate) async fn run(core: &Core) -> Result<(), Status> {
    for name in NAMESPACES {
        let namespace = json!({"metadata": {"name": name}});
        ensure(core, "namespaces", namespace).await?;
    }
    for (name, value, what) in [
        (
            "system-cluster-critical",
            2_000_000_000,
            "the cluster's own pods",
        ),
        ("system-node-critical", 2_000_001_000, "a node's own pods"),
    ] {
        let class = json!({
            "metadata": {"name": name},
            "value": value,
            "description": format!("For {what}, which are the last to go."),
        });
        ensure(core, "priorityclasses.scheduling.k8s.io", class).await?;
    }
    for definition in stoke_api::crds() {
        let definition = serde_json::to_value(definition).map_err(Status::internal)?;
        install(core, definition).await?;
    }
    Ok(())
}

async fn ensure(core: &Core, key: &str, object: Value) -> Result<(), Status> {
    let resource = Registry::builtin(key);
    let body = Body {
        value: object,
        duplicates: Vec::new(),
    };
    let created = crate::verbs::create::create(core, resource, None, body, WriteOptions::default());
    match created.await {
        Err(status) if status.reason() != "AlreadyExists" => Err(status),
        _ => Ok(()),
    }
}

/// Creates a definition, or brings the stored one to this binary's version.
async fn install(core: &Core, mut definition: Value) -> Result<(), Status> {
    let resource = Registry::builtin(DEFINITIONS);
    let key = Key::new(DEFINITIONS, "", object::name(&definition));
    core.store
        .write(move |write| {
            let now = Timestamp::now();
            let options = WriteOptions::default();
            let body = |value| Body {
                value,
                duplicates: Vec::new(),
            };
            let Some(stored) = write.get(&key)? else {
                let admitted = admission::create(resource, None, body(definition), options, now)?;
                write.create(&key, admitted.object)?;
                return Ok(());
            };
            let old = stored.value(&key)?;
            definition["metadata"]["resourceVersion"] = object::resource_version(&old).into();
            let mut next = old.clone();
            next["spec"] = definition["spec"].take();
            let reading = admission::read(resource, body(next), options)?;
            let admitted = admission::update(resource, Part::Main, &old, reading, false, now)?;
            if admitted.object != old {
                write.update(&key, admitted.object)?;
            }
            Ok(())
        })
        .await
}

//! New objects.

use http::StatusCode;
use jiff::Timestamp;
use stoke_store::Key;

use crate::admission;
use crate::object::{self, Light};
use crate::quota;
use crate::registry::DEFINITIONS;
use crate::reply::{Document, Reply};
use crate::request::{Body, WriteOptions};
use crate::resource::Resource;
use crate::server::Core;
use crate::status::Status;

/// How often a generated name is drawn anew when it is taken.
const DRAWS_MAX: usize = 8;

pub(crate) async fn create(
    core: &Core,
    resource: &Resource,
    namespace: Option<&str>,
    body: Body,
    options: WriteOptions,
) -> Result<Reply, Status> {
    let now = Timestamp::now();
    // A name that the author chose is never exchanged for another.
    let draws = if object::name(&body.value).is_empty() {
        DRAWS_MAX
    } else {
        0
    };
    let admitted = admission::create(resource, namespace, body, options, now)?;
    let resource = resource.clone();
    let is_definition = resource.key() == DEFINITIONS;
    let mut object = admitted.object;
    let document = core
        .store
        .write(move |write| {
            admission::check_surroundings(write, &resource, &mut object)?;
            let mut key = key(&resource, &object);
            let generated = object::text(&object, "generateName").to_owned();
            for _ in 0..draws {
                if generated.is_empty() || write.get(&key)?.is_none() {
                    break;
                }
                let name = admission::drawn_name(&generated);
                object["metadata"]["name"] = name.into();
                key.name = object::name(&object).to_owned();
            }
            quota::charge(write, &resource, &object, options.dry_run, now)?;
            if resource.key() == quota::QUOTAS {
                quota::tally(write, &mut object, now)?;
            }
            if options.dry_run {
                return match write.get(&key)? {
                    Some(found) => Err(taken(&resource, &key, &found.document)),
                    None => Ok(Document::Served(object)),
                };
            }
            if let Some(found) = write.get(&key)? {
                return Err(taken(&resource, &key, &found.document));
            }
            let mut stored = object.clone();
            resource.to_stored(&mut stored);
            let stored = write.create(&key, stored)?;
            admission::after_create(write, &resource, &object, now)?;
            Ok(Document::Stored(stored.document))
        })
        .await
        .map_err(|status: Status| status.with_warnings(&admitted.warnings))?;
    if is_definition && !options.dry_run {
        core.registry.reload(&core.store).await?;
    }
    Ok(Reply {
        code: StatusCode::CREATED,
        document,
        warnings: admitted.warnings,
    })
}

fn taken(resource: &Resource, key: &Key, by: &[u8]) -> Status {
    if Light::read(by).is_deleting() {
        Status::still_exists(resource, &key.name)
    } else {
        Status::already_exists(resource, &key.name)
    }
}

fn key(resource: &Resource, object: &serde_json::Value) -> Key {
    Key::new(
        resource.key(),
        object::namespace(object),
        object::name(object),
    )
}

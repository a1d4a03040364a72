//! One object.

use stoke_store::Key;

use crate::reply::{Document, Reply};
use crate::request::{ListOptions, RevisionOption};
use crate::resource::Resource;
use crate::server::Core;
use crate::status::Status;

pub(crate) async fn get(
    core: &Core,
    resource: &Resource,
    key: Key,
    options: &ListOptions,
) -> Result<Reply, Status> {
    let revision = options.revision;
    let resource = resource.clone();
    let stored = core
        .store
        .read(move |read| {
            if let RevisionOption::Number(wanted) = revision {
                let latest = read.revision()?;
                if wanted > latest.0 {
                    return Err(Status::future_revision(wanted, latest.0));
                }
            }
            read.get(&key)?
                .ok_or_else(|| Status::not_found(&resource, &key.name))
        })
        .await?;
    Ok(Reply::ok(Document::Stored(stored.document)))
}

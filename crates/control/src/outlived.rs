//! Profiles that no run has touched for long, and the oldest where a namespace has many, are deleted: what is kept is bounded.
//!
//! Which ones is known in memory, in the order of their age. It is looked for when a profile is new, and now and then.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use stoke_api::JobProfile;
use tracing::{info, warn};

use crate::hub::Hub;
use crate::mirror::Key;
use crate::world::Outlived;

/// Days decide; an hour is soon enough.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// Between two looks, whatever happens: profiles may come by the hundred.
const PAUSE: Duration = Duration::from_secs(5);
/// Deletions between two pauses.
const AT_ONCE: usize = 50;

/// For as long as the controllers run.
pub async fn clear_away(hub: &Hub) {
    loop {
        let has_more = clear_some(hub).await;
        if !has_more {
            tokio::select! {
                () = hub.profiles.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// True where there may be more. What cannot be deleted is left for the next look.
async fn clear_some(hub: &Hub) -> bool {
    let outlived = hub.world().outlived(Timestamp::now(), AT_ONCE);
    let mut deleted = 0;
    // Who refuses one of a namespace refuses the others.
    let mut refused = BTreeSet::new();
    for one in &outlived {
        let key = Key::of(&one.profile.metadata);
        // A job like its runs may have come meanwhile.
        if refused.contains(&key.namespace) || hub.world().is_learned_from(&key) {
            continue;
        }
        match delete(hub, &key, one).await {
            Ok(()) => deleted += 1,
            Err(error) => {
                warn!(profile = %key, error = &error as &dyn std::error::Error, "a profile that is not needed any more could not be deleted");
                refused.insert(key.namespace);
            }
        }
    }
    deleted == AT_ONCE
}

/// On condition that it is as it was seen: one that has just learned from a run is needed.
async fn delete(hub: &Hub, key: &Key, outlived: &Outlived) -> Result<(), kube::Error> {
    let metadata = &outlived.profile.metadata;
    let api: Api<JobProfile> = Api::namespaced(hub.client.clone(), &key.namespace);
    let as_seen = DeleteParams::default().preconditions(Preconditions {
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
    });
    match api.delete(&key.name, &as_seen).await {
        Ok(_) => {
            hub.forget::<JobProfile>(key, metadata.uid.as_deref().unwrap_or_default());
            info!(profile = %key, last_run = %outlived.touched, why = %outlived.why, "a profile is deleted");
            Ok(())
        }
        // Gone, or changed: the watch tells.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

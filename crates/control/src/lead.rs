//! Controllers of which several may be started and one works.
//!
//! Who loses the lease drops its controllers, with all they know and all that is under way, and stands by again. It does not end the
//! process: everything hangs on one future, so dropping that is as thorough as an exit, and an API server that is away for a while
//! does not leave a pod in a crash loop behind.
//!
//! Who stands by watches nothing but the lease. The leader's mirrors are filled by one list a kind, which takes a second or two for ten
//! thousand pods, beside the fifteen that a lease takes to run out; watching all the while would double the load on the API server
//! and the memory for that.

use std::sync::Arc;

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::gate::Gate;
use crate::guard::guarded;
use crate::lease::{Candidate, LeaseOptions};
use crate::vitals::Vitals;
use crate::{ControlError, controllers};

/// Runs all controllers while we lead, until `shutdown` is cancelled; then the lease is given back.
///
/// What else would be asked of the API server again by itself must not be: the client is to have no retries of its own.
pub async fn lead(
    client: Client,
    lease: LeaseOptions,
    config: Config,
    vitals: Arc<Vitals>,
    shutdown: CancellationToken,
) -> Result<(), ControlError> {
    let identity = lease.identity.clone();
    let gate = Arc::new(Gate::new(config.requests));
    let mut candidate = Candidate::new(client.clone(), lease, vitals.clone());
    tracing::info!(%identity, "ready to lead");
    loop {
        let mut held = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            held = candidate.win() => held,
        };
        tracing::info!(%identity, "leading");
        vitals.leads();
        let client = guarded(&client, held.fence.clone(), gate.clone(), vitals.clone());
        let work = controllers(client, config.clone(), vitals.clone(), shutdown.clone());
        let ended = tokio::select! {
            biased;
            ended = work => Some(ended),
            () = held.keep() => None,
        };
        vitals.retires();
        if let Some(ended) = ended {
            // Told to stop, or broken: either way another can have it now.
            held.release().await;
            return ended;
        }
        tracing::warn!(%identity, "lost the lease; standing by");
    }
}

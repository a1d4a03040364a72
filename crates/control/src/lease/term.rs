//! The lease in the API server: getting it, keeping it, giving it back.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;

use super::{Election, Fence, LeaseOptions, Moment, Record, Step};
use crate::trouble::{CREDENTIALS, Trouble};
use crate::vitals::Vitals;

/// One who would lead.
pub struct Candidate {
    api: Api<Lease>,
    options: LeaseOptions,
    election: Election,
    vitals: Arc<Vitals>,
    /// As it was read or written last: what others have put on it stays.
    lease: Option<Lease>,
    /// Where our clock begins.
    origin: Instant,
}

/// One who leads, until [`Held::keep`] returns.
pub struct Held<'a> {
    candidate: &'a mut Candidate,
    pub fence: Arc<Fence>,
}

impl Candidate {
    /// The client is used as it is: a lease must be renewed whatever else waits.
    pub fn new(client: Client, options: LeaseOptions, vitals: Arc<Vitals>) -> Self {
        Self {
            api: Api::namespaced(client, &options.namespace),
            election: Election::new(&options),
            options,
            vitals,
            lease: None,
            origin: Instant::now(),
        }
    }

    /// Waits until the lease is ours.
    pub async fn win(&mut self) -> Held<'_> {
        loop {
            self.step().await;
            if self
                .election
                .leads_until()
                .is_some_and(|end| end > self.now())
            {
                break;
            }
            self.vitals.stands_by(self.election.holder());
        }
        let renewed = self.election.renewed().unwrap_or_default();
        let fence = Fence::new(
            self.origin + renewed,
            self.options.lease_duration,
            self.options.renew_deadline,
        );
        Held {
            fence: Arc::new(fence),
            candidate: self,
        }
    }

    /// One read, write or wait.
    async fn step(&mut self) {
        self.vitals.beat();
        match self.election.next(self.now()) {
            Step::Wait(wait) => tokio::time::sleep(wait).await,
            Step::Read => match self.ask(self.api.get_opt(&self.options.name)).await {
                Ok(lease) => {
                    let record = lease.as_ref().map(record);
                    self.lease = lease;
                    self.election.read(record, self.now());
                }
                Err(trouble) => self.failed(trouble),
            },
            Step::Create => self.write(None).await,
            Step::Take(record) => self.write(Some(record)).await,
        }
    }

    async fn write(&mut self, before: Option<Record>) {
        let began = self.now();
        let lease = self.claim(before.as_ref());
        let parameters = PostParams::default();
        let name = &self.options.name;
        let answer = if before.is_some() {
            let write = self.api.replace(name, &parameters, &lease);
            self.ask(write).await
        } else {
            self.ask(self.api.create(&parameters, &lease)).await
        };
        let now = self.now();
        match answer {
            Ok(lease) => {
                self.election.wrote(record(&lease), began, now);
                self.lease = Some(lease);
            }
            // Changed, made or deleted by another meanwhile. Where it cannot be made, its namespace is what is not found.
            Err(Trouble::Api(status))
                if status.code == 409 || (status.code == 404 && before.is_some()) =>
            {
                self.vitals.recovered(LEASE);
                self.election.conflicted(now);
            }
            Err(trouble) => self.failed(trouble),
        }
    }

    fn failed(&mut self, trouble: Trouble) {
        let name = &self.options.name;
        let told = trouble.told(&format!("lease {name}"));
        self.vitals.troubled(trouble.about(LEASE), told);
        self.election.failed(self.now());
    }

    /// No answer is waited for so long that there is no time to ask again.
    async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Trouble> {
        let patience = self.options.renew_deadline / 3;
        match tokio::time::timeout(patience, request).await {
            Ok(Ok(answer)) => {
                self.vitals.recovered(LEASE);
                self.vitals.recovered(CREDENTIALS);
                Ok(answer)
            }
            Ok(Err(error)) => Err(Trouble::from(error)),
            Err(_) => Err(Trouble::Silence(patience)),
        }
    }

    /// The lease as ours, after what it was.
    fn claim(&self, before: Option<&Record>) -> Lease {
        let changes_hands = before.is_none_or(|before| before.holder != self.options.identity);
        let known = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let acquired = known.and_then(|spec| spec.acquire_time.clone());
        let now = MicroTime(Timestamp::now());
        let seconds = i32::try_from(self.options.lease_duration.as_secs()).unwrap_or(i32::MAX);
        let hand = i32::from(changes_hands);
        let transitions = before.map_or(0, |before| before.transitions.saturating_add(hand));
        self.written(LeaseSpec {
            holder_identity: Some(self.options.identity.clone()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(transitions),
            acquire_time: acquired
                .filter(|_| !changes_hands)
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            ..LeaseSpec::default()
        })
    }

    /// On condition that the lease is as it was read last.
    fn written(&self, spec: LeaseSpec) -> Lease {
        let known = self.lease.as_ref().map(|lease| lease.metadata.clone());
        Lease {
            metadata: ObjectMeta {
                name: Some(self.options.name.clone()),
                namespace: Some(self.options.namespace.clone()),
                managed_fields: None,
                ..known.unwrap_or_default()
            },
            spec: Some(spec),
        }
    }

    fn now(&self) -> Moment {
        self.origin.elapsed()
    }
}

/// What the lease is called among troubles.
const LEASE: &str = "lease";

impl Held<'_> {
    /// Renews the lease until it is lost.
    pub async fn keep(&mut self) {
        let fence = self.fence.clone();
        loop {
            let candidate = &mut *self.candidate;
            let Some(end) = candidate.election.leads_until() else {
                break;
            };
            // A renewal that is waited for past the end would be too late.
            let end = candidate.origin + end;
            if tokio::time::timeout_at(end, candidate.step())
                .await
                .is_err()
            {
                break;
            }
            if let Some(renewed) = candidate.election.renewed() {
                fence.renewed(candidate.origin + renewed);
            }
        }
        fence.lower();
        self.candidate.election.step_down();
    }

    /// Gives the lease back, so that another need not wait until it has run out. Whoever calls this has stopped to write.
    pub async fn release(self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        self.fence.lower();
        let candidate = self.candidate;
        let name = candidate.options.name.clone();
        let given_back = tokio::time::timeout(PATIENCE, candidate.give_back()).await;
        let failed = match given_back {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Trouble::from(error)),
            Err(_) => Some(Trouble::Silence(PATIENCE)),
        };
        match failed {
            None => tracing::info!(lease = %name, "gave the lease back"),
            Some(trouble) => {
                let why = trouble.told(&format!("lease {name}"));
                tracing::warn!(lease = %name, %why, "the lease was not given back; the next leader waits until it runs out");
            }
        }
        candidate.election.step_down();
    }
}

impl Candidate {
    async fn give_back(&mut self) -> Result<(), kube::Error> {
        loop {
            self.lease = self.api.get_opt(&self.options.name).await?;
            let known = self.lease.as_ref().map(record).unwrap_or_default();
            if known.holder != self.options.identity {
                return Ok(());
            }
            let now = MicroTime(Timestamp::now());
            let nobodys = self.written(LeaseSpec {
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(1),
                lease_transitions: Some(known.transitions),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                ..LeaseSpec::default()
            });
            let parameters = PostParams::default();
            let name = &self.options.name;
            match self.api.replace(name, &parameters, &nobodys).await {
                // A renewal that we did not wait for has come in between.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                replaced => return replaced.map(drop),
            }
        }
    }
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec
        .lease_duration_seconds
        .and_then(|n| u64::try_from(n).ok());
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: seconds.filter(|n| *n > 0).map(Duration::from_secs),
        transitions: spec.lease_transitions.unwrap_or(0),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

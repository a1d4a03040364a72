//! A job with everything that belongs to it: its pods, and the events about both.

use anyhow::Context;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use stoke_api::TrainJob;
use stoke_api::names::{ATTEMPT_LABEL, JOB_LABEL, RANK_LABEL, WORKER_CONTAINER};

use crate::failure::{self, Exit, Failure};
use crate::manifest::suggest;
use crate::terminal;

#[derive(Debug, Clone)]
pub struct JobView {
    pub job: TrainJob,
    /// By attempt, then by rank.
    pub pods: Vec<Pod>,
    /// Oldest first.
    pub events: Vec<Event>,
}

/// The job of that name, or who it may have been meant to be.
pub async fn find(client: &Client, namespace: &str, name: &str) -> anyhow::Result<TrainJob> {
    let jobs: Api<TrainJob> = Api::namespaced(client.clone(), namespace);
    match jobs.get_opt(name).await {
        Ok(Some(job)) => Ok(job),
        Ok(None) => Err(not_found(&jobs, namespace, name).await),
        Err(error) => Err(error).with_context(|| format!("cannot get job {name:?}")),
    }
}

async fn not_found(jobs: &Api<TrainJob>, namespace: &str, name: &str) -> anyhow::Error {
    let known = match jobs.list_metadata(&ListParams::default().limit(500)).await {
        Ok(list) => list.items,
        // Not only this job is missing: the server knows no jobs at all.
        Err(kube::Error::Api(status)) if failure::is_unserved(&status) => {
            return anyhow::Error::new(kube::Error::Api(status))
                .context(format!("cannot get job {name:?}"));
        }
        Err(_) => Vec::new(),
    };
    let names: Vec<String> = known.iter().map(ResourceExt::name_any).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let hint = match suggest::nearest(name, &names) {
        Some(near) => format!("did you mean {near}?"),
        None if names.is_empty() => {
            "no job is here yet; start one: stoke run -- COMMAND".to_owned()
        }
        None => "see which there are: stoke get jobs".to_owned(),
    };
    let what = format!("no job {name:?} in namespace {namespace:?}");
    Failure::new(Exit::NotFound, what).hint(hint).into()
}

pub async fn view(client: &Client, namespace: &str, name: &str) -> anyhow::Result<JobView> {
    let job = find(client, namespace, name).await?;
    let pods = pods_of(client, &job).await?;
    let about_job = format!("involvedObject.kind=TrainJob,involvedObject.name={name}");
    let (of_job, of_pods) = tokio::try_join!(
        events(client, Some(namespace), &about_job),
        events(client, Some(namespace), "involvedObject.kind=Pod"),
    )?;
    let mut events: Vec<Event> = of_job
        .into_iter()
        .chain(of_pods)
        .filter(|event| is_about(event, &job, &pods))
        .collect();
    events.sort_by_key(event_time);
    Ok(JobView { job, pods, events })
}

/// Events that a selector finds, in one namespace or in all. Who may not see them is told so, and sees the rest.
pub async fn events(
    client: &Client,
    namespace: Option<&str>,
    fields: &str,
) -> anyhow::Result<Vec<Event>> {
    let api: Api<Event> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    match api.list(&ListParams::default().fields(fields)).await {
        Ok(list) => Ok(list.items),
        Err(error) if failure::is_forbidden(&error) => {
            terminal::talk(format_args!("events are left out: you may not list them"));
            Ok(Vec::new())
        }
        Err(error) => Err(error).context("cannot list events"),
    }
}

pub async fn pods_of(client: &Client, job: &TrainJob) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), job.namespace());
    let selector = format!("{JOB_LABEL}={}", job.name());
    let mut pods = pods
        .list(&ListParams::default().labels(&selector))
        .await
        .context("cannot list the job's pods")?
        .items;
    pods.sort_by_key(|pod| (attempt_of(pod), rank_of(pod), pod.name_any()));
    Ok(pods)
}

fn is_about(event: &Event, job: &TrainJob, pods: &[Pod]) -> bool {
    let object = &event.involved_object;
    let is = |kind: &str, name: &str| {
        object.kind.as_deref() == Some(kind) && object.name.as_deref() == Some(name)
    };
    // An older job of this name left events too; those of another uid are not ours.
    let same_life = object.uid.is_none() || object.uid == job.metadata.uid;
    (is("TrainJob", job.name()) && same_life)
        || pods.iter().any(|pod| is("Pod", &pod.name_any()))
        // Pods of attempts that were cleared away are known by their names.
        || (object.kind.as_deref() == Some("Pod")
            && object
                .name
                .as_deref()
                .is_some_and(|name| is_pod_of(name, job.name())))
}

/// `<job>-<attempt>-<rank>`
fn is_pod_of(pod: &str, job: &str) -> bool {
    let numbers = pod
        .strip_prefix(job)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(attempt, rank)| {
        [attempt, rank]
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    })
}

pub fn event_time(event: &Event) -> Option<jiff::Timestamp> {
    let micro = event.event_time.as_ref().map(|time| time.0);
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref())
        .map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let created = event
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0);
    series.or(last).or(micro).or(created)
}

pub fn attempt_of(pod: &Pod) -> Option<u32> {
    pod.labels().get(ATTEMPT_LABEL)?.parse().ok()
}

pub fn rank_of(pod: &Pod) -> Option<u32> {
    pod.labels().get(RANK_LABEL)?.parse().ok()
}

/// The container that runs the job's command: the one named so, else the first.
pub fn worker_container(pod: &Pod) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    containers
        .iter()
        .find(|container| container.name == WORKER_CONTAINER)
        .or(containers.first())
        .map(|container| container.name.as_str())
}

pub fn worker_status(pod: &Pod) -> Option<&ContainerStatus> {
    let name = worker_container(pod)?;
    pod.status
        .as_ref()?
        .container_statuses
        .as_ref()?
        .iter()
        .find(|status| status.name == name)
}

/// How far a pod's worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    NotStarted,
    Running,
    Over,
}

pub fn life_of(pod: &Pod) -> Life {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let state = worker_status(pod).and_then(|status| status.state.as_ref());
    match state {
        Some(state) if state.terminated.is_some() => Life::Over,
        Some(state) if state.running.is_some() => Life::Running,
        // A pod may end without its container ever having run: evicted, or never startable.
        _ if matches!(phase, Some("Succeeded" | "Failed")) => Life::Over,
        _ => Life::NotStarted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_other_jobs_are_not_taken_for_ours() {
        for (pod, job, ours) in [
            ("gpt-1-0", "gpt", true),
            ("gpt-12-345", "gpt", true),
            ("gpt-2-1-0", "gpt", false),
            ("gpt-2-1-0", "gpt-2", true),
            ("gpt-x-0", "gpt", false),
            ("gpt", "gpt", false),
            ("gpt-1", "gpt", false),
            ("gpt--0", "gpt", false),
        ] {
            assert_eq!(is_pod_of(pod, job), ours, "{pod} of {job}");
        }
    }
}

//! Following a job to its end: what it is doing, and what all its workers print, as one stream of happenings.
//!
//! The engine may be killed and restarted underneath. Invariant: no line is then lost or given twice, and a job that ended
//! meanwhile is still told to its end.

mod log;
mod resume;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use stoke_api::TrainJob;
use stoke_api::names::{ATTEMPT_LABEL, JOB_LABEL, RANK_LABEL};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use log::{Line, Lines, Opening, open};

use crate::failure;
use crate::jobs::{self, Life};
use crate::session::Session;

/// Lines wait here while the terminal is slow; the engine keeps the rest.
const WAITING_MAX: usize = 1024;
/// How long a follower waits for an engine that is away. A restart takes a second; this is for someone who looks first.
const AWAY_MAX: Duration = Duration::from_secs(120);
/// A restart that is quicker than this is nobody's concern.
const AWAY_TOLD: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(200);
/// How long the next of the last lines may take to come once the job is over.
const LAST_LINES: Duration = Duration::from_secs(10);

/// Which lines of which workers.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub rank: Option<u32>,
    /// `None`: the attempts that run now and later.
    pub attempt: Option<u32>,
    /// What of the past is told first.
    pub opening: Opening,
}

#[derive(Debug)]
pub enum Happening {
    /// The job as it is now.
    Job(Box<TrainJob>),
    Line(Line),
    /// The server lets us see the job, but not what this pod prints.
    Unreadable {
        pod: String,
        error: Box<kube::Error>,
    },
    /// The server does not answer; it is asked again.
    Away,
    Back,
    /// The job is over and every line has been told.
    Finished(Box<TrainJob>),
    /// The job was deleted.
    Gone,
    /// The server stayed away for too long.
    Lost,
    /// The server does not let us watch the job or its pods.
    Refused(Box<kube::Error>),
}

/// Follows until the job is finished, gone or lost; the receiver being dropped ends it at once.
pub fn start(session: Session, job: TrainJob, choice: Choice) -> mpsc::Receiver<Happening> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        let last = Follower::new(session, job, choice, sender.clone())
            .run()
            .await;
        // Nobody listens any more: nothing to tell.
        let _ = sender.send(last).await;
    });
    receiver
}

struct Follower {
    session: Session,
    job: TrainJob,
    choice: Choice,
    sender: mpsc::Sender<Happening>,
    logs: JoinSet<()>,
    /// Lines told so far, of all workers.
    told: Arc<AtomicU64>,
    /// Pods whose lines are being read or have been.
    read: HashSet<String>,
    away: Option<Away>,
    /// The attempt there was when we came; those before it are the past, which `--previous` and `--attempt` tell of.
    first_attempt: u32,
    is_first_list: bool,
}

/// The server has not answered since then.
#[derive(Debug, Clone, Copy)]
struct Away {
    since: Instant,
    is_told: bool,
}

/// What made a watch end.
enum End {
    Told(Happening),
    /// The stream broke; list and watch again.
    Again,
    Unheard,
}

impl Follower {
    fn new(
        session: Session,
        job: TrainJob,
        choice: Choice,
        sender: mpsc::Sender<Happening>,
    ) -> Self {
        let first_attempt = job.status.as_ref().map_or(0, |status| status.attempt);
        Self {
            session,
            job,
            choice,
            sender,
            first_attempt,
            logs: JoinSet::new(),
            told: Arc::default(),
            read: HashSet::new(),
            away: None,
            is_first_list: true,
        }
    }

    async fn run(mut self) -> Happening {
        loop {
            let end = match self.session.client().await {
                Ok(client) => self.watch(client).await,
                Err(_) => End::Again,
            };
            match end {
                End::Told(Happening::Finished(job)) => {
                    self.last_lines().await;
                    return Happening::Finished(job);
                }
                End::Told(last) => return last,
                End::Unheard => return Happening::Gone,
                End::Again => {}
            }
            let away = *self.away.get_or_insert(Away {
                since: Instant::now(),
                is_told: false,
            });
            if away.since.elapsed() > AWAY_MAX {
                return Happening::Lost;
            }
            if !away.is_told && away.since.elapsed() > AWAY_TOLD {
                self.away = Some(Away {
                    is_told: true,
                    ..away
                });
                if self.tell(Happening::Away).await.is_err() {
                    return Happening::Gone;
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn tell(&self, happening: Happening) -> Result<(), ()> {
        self.sender.send(happening).await.map_err(|_| ())
    }

    async fn watch(&mut self, client: kube::Client) -> End {
        let namespace = self.job.namespace().to_owned();
        let jobs: Api<TrainJob> = Api::namespaced(client.clone(), &namespace);
        let pods: Api<Pod> = Api::namespaced(client, &namespace);
        let only_ours =
            watcher::Config::default().fields(&format!("metadata.name={}", self.job.name()));
        let of_ours = watcher::Config::default().labels(&self.pod_selector());
        let mut job_events = std::pin::pin!(watcher(jobs, only_ours));
        let mut pod_events = std::pin::pin!(watcher(pods, of_ours));
        // A final job is told only once its pods are known, so that the lines of a very short one are read too.
        let mut pods_listed = false;
        let mut finished = None;
        let mut seen = true;
        loop {
            if pods_listed && let Some(job) = finished.take() {
                return End::Told(Happening::Finished(job));
            }
            tokio::select! {
                biased;
                event = next(&mut pod_events) => match event {
                    Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => self.read_pod(&pod),
                    Ok(watcher::Event::InitDone) => {
                        pods_listed = true;
                        self.is_first_list = false;
                    }
                    Ok(watcher::Event::Init | watcher::Event::Delete(_)) => {}
                    Err(broken) => return broken.into(),
                },
                event = next(&mut job_events) => match event {
                    Ok(watcher::Event::Init) => seen = false,
                    Ok(watcher::Event::Apply(job) | watcher::Event::InitApply(job)) => {
                        seen = true;
                        if job.metadata.uid != self.job.metadata.uid {
                            return End::Told(Happening::Gone);
                        }
                        if self.back().await.is_err() {
                            return End::Unheard;
                        }
                        let job = Box::new(job);
                        if job.is_finished() {
                            finished = Some(job.clone());
                        }
                        self.job = (*job).clone();
                        if self.tell(Happening::Job(job)).await.is_err() {
                            return End::Unheard;
                        }
                    }
                    Ok(watcher::Event::InitDone) if !seen => return End::Told(Happening::Gone),
                    Ok(watcher::Event::InitDone) => {}
                    Ok(watcher::Event::Delete(_)) => return End::Told(Happening::Gone),
                    Err(broken) => return broken.into(),
                },
                () = self.sender.closed() => return End::Unheard,
            }
        }
    }

    async fn back(&mut self) -> Result<(), ()> {
        match self.away.take() {
            Some(Away { is_told: true, .. }) => self.tell(Happening::Back).await,
            _ => Ok(()),
        }
    }

    fn pod_selector(&self) -> String {
        let rank = self.choice.rank.map(|rank| format!(",{RANK_LABEL}={rank}"));
        let attempt = self
            .choice
            .attempt
            .map(|attempt| format!(",{ATTEMPT_LABEL}={attempt}"));
        format!(
            "{JOB_LABEL}={}{}{}",
            self.job.name(),
            rank.unwrap_or_default(),
            attempt.unwrap_or_default()
        )
    }

    /// Begins to read a pod's lines, once there are any.
    fn read_pod(&mut self, pod: &Pod) {
        let is_past =
            self.choice.attempt.is_none() && jobs::attempt_of(pod) < Some(self.first_attempt);
        if is_past || jobs::life_of(pod) == Life::NotStarted {
            return;
        }
        let Some(uid) = pod.metadata.uid.clone() else {
            return;
        };
        if !self.read.insert(uid) {
            return;
        }
        // `--tail` is about what was printed before we came; of later attempts everything is new.
        let opening = if self.is_first_list {
            self.choice.opening.clone()
        } else {
            Opening::default()
        };
        let lines = Lines::of(pod, opening);
        tracing::debug!(pod = pod.name_any(), "reading its log");
        let told = Arc::clone(&self.told);
        self.logs
            .spawn(lines.follow(self.session.clone(), self.sender.clone(), told));
    }

    /// Waits until every line is told, however many there are, unless none comes any more.
    async fn last_lines(&mut self) {
        loop {
            let told = self.told.load(Ordering::Relaxed);
            match tokio::time::timeout(LAST_LINES, self.logs.join_next()).await {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) if self.told.load(Ordering::Relaxed) > told => {}
                Err(_) => {
                    tracing::warn!("the last lines did not come in time");
                    return;
                }
            }
        }
    }
}

/// Why a watch gives no more events.
enum Broken {
    /// It must be made anew, with a client of the server that is there then.
    Off,
    /// It would be refused again.
    Refused(Box<kube::Error>),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Off => Self::Again,
            Broken::Refused(error) => Self::Told(Happening::Refused(error)),
        }
    }
}

async fn next<K>(
    events: &mut (impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Unpin),
) -> Result<watcher::Event<K>, Broken> {
    match events.next().await {
        Some(Ok(event)) => Ok(event),
        Some(Err(
            watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error),
        )) if failure::is_forbidden(&error) => Err(Broken::Refused(Box::new(error))),
        Some(Err(error)) => {
            tracing::debug!(%error, "the watch broke");
            Err(Broken::Off)
        }
        None => Err(Broken::Off),
    }
}

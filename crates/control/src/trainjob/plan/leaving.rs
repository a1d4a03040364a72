//! An attempt on a node that goes away: it saves its work while there is time, and goes on elsewhere.
//!
//! What a cloud or an autoscaler says of a node is put on record with when it was seen here, and the gang is asked for a checkpoint at once.
//! It is ended when that is written, or when the time is up, so that what is left of the notice is there for its workers to end. A node that
//! only may go has its gangs save, and run on.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::Reason;
use stoke_api::trainjob::{Attempt, Exit, Leaving, Outcome, Spot};
use stoke_memory::{Cause, FENCED};

use super::ending::Ending;
use super::{Turn, after, telling};
use crate::cluster::{Notice, Then};
use crate::trainjob::workers::Worker;

/// So long after a checkpoint none is asked for because a node may go: such words come and go.
const SAVED_LATELY: Duration = Duration::from_secs(300);
/// A pod that is about to be deleted is so within moments.
const DISRUPTED: Duration = Duration::from_secs(15);

/// How long a node may be silent until it is taken to be lost. Of many that fall silent at once the cluster says so one after the other,
/// within the five seconds in which it looks at all of them: until then it is not known whether it is the node or the way to it.
const SILENT_MAX: Duration = Duration::from_secs(10);

/// What takes a worker away, and when.
#[derive(Clone)]
struct Threat {
    node: String,
    by: String,
    why: String,
    /// How long it has to save its work; absent: it may stay.
    wait: Option<Duration>,
    /// It is not known yet whether it goes.
    is_silence: bool,
}

impl Threat {
    /// What is to be done first.
    fn urgency(&self) -> Option<Reverse<Duration>> {
        self.wait.map(Reverse)
    }
}

impl Turn<'_> {
    /// Puts on record that the attempt is to leave a node and since when that is known, or that it need not any more.
    pub(super) fn note_leaving(&mut self) {
        let Some(attempt) = self.live() else { return };
        let threats = self.threats(&attempt);
        // Of several as urgent the first, so that it stays the same.
        let most_urgent = threats.iter().reduce(|one, other| {
            if other.urgency() > one.urgency() {
                other
            } else {
                one
            }
        });
        let leaving = most_urgent.and_then(|threat| {
            let known = attempt.leaving.as_deref();
            let known = known.filter(|known| known.until.is_some() == threat.wait.is_some());
            match known {
                Some(known) if known.until.is_some() => {
                    let threatens = |it: &Threat| it.node == known.node && it.wait.is_some();
                    let is_told = threats.iter().any(threatens);
                    let fresh = self.leaving(&attempt, threat)?;
                    Some(sooner(known, fresh, is_told))
                }
                Some(known) if known.node == threat.node => Some(known.clone()),
                _ => self.leaving(&attempt, threat),
            }
        });
        if let Some(attempt) = self.status.attempts.last_mut() {
            attempt.leaving = leaving.map(Box::new);
        }
    }

    fn leaving(&self, attempt: &Attempt, threat: &Threat) -> Option<Leaving> {
        let Threat {
            node,
            by,
            why,
            wait,
            is_silence,
        } = threat.clone();
        let saves = attempt.running_at.is_some() && self.job.spec.checkpoint.is_some();
        let until = wait.map(|wait| {
            let wait = match (is_silence, saves) {
                (true, _) => wait,
                (false, true) => wait.min(self.config.notice_wait_max),
                // Who has nothing to save has nothing to wait for.
                (false, false) => Duration::ZERO,
            };
            after(self.now, wait)
        });
        let is_idle = until.is_none() && (!saves || self.saved_within(SAVED_LATELY));
        (!is_idle).then(|| Leaving {
            node,
            by,
            why,
            asked_at: Some(Time(self.now)),
            until: until.map(Time),
        })
    }

    /// What is said of its nodes and pods.
    fn threats(&self, attempt: &Attempt) -> Vec<Threat> {
        let ranks = self.ranks(attempt);
        let concerned = ranks.iter().zip(&attempt.nodes).enumerate();
        let concerned = concerned
            .filter(|(rank, (worker, _))| match worker {
                Some(worker) => !worker.is_finished(),
                None => !attempt.has_succeeded(*rank),
            })
            .map(|(_, it)| it);
        let threats = concerned.flat_map(|(worker, node)| {
            let notice = self.observed.notices.get(node);
            let of_node = notice.and_then(|notice| of_node(node, notice));
            let of_pod = worker.and_then(|worker| of_pod(node, &worker));
            of_node.into_iter().chain(of_pod)
        });
        threats.collect()
    }

    /// The end of an attempt that has saved its work before its node goes, or has no more time to.
    pub(super) fn moves(&self, attempt: &Attempt) -> Option<Ending> {
        let leaving = attempt.leaving.as_ref()?;
        let until = leaving.until.as_ref()?.0;
        let asked = leaving.asked_at.as_ref()?.0;
        let saved = self.saved_since(attempt, asked);
        let is_saved = saved.is_some_and(|at| at <= self.now);
        (is_saved || until <= self.now).then(|| {
            let saved = is_saved.then_some(saved).flatten();
            self.moved(attempt, leaving, saved)
        })
    }

    /// The same of one that a worker failed meanwhile: with a machine that goes, connections and processes go first.
    pub(super) fn fell_with_its_node(&self, attempt: &Attempt) -> Option<Ending> {
        let leaving = attempt.leaving.as_ref()?;
        leaving.until.as_ref()?;
        Some(self.moved(attempt, leaving, None))
    }

    fn moved(&self, attempt: &Attempt, leaving: &Leaving, saved: Option<Timestamp>) -> Ending {
        let saves = self.job.spec.checkpoint.is_some();
        let message = telling::moved(leaving, saves, saved);
        let rank = attempt.nodes.iter().position(|node| *node == leaving.node);
        let rank = u32::try_from(rank.unwrap_or_default()).unwrap_or_default();
        let exit = Exit {
            rank,
            exit_code: None,
            reason: Reason::NodeLeaving.to_string(),
            message: message.clone(),
        };
        // Whoever put it there may do so again, before it has run.
        let node = attempt.running_at.is_none().then_some(&leaving.node);
        Ending {
            exit: Some(exit),
            avoid: node.cloned().into_iter().collect(),
            ..Ending::begun_anew(Outcome::Interrupted, Reason::NodeLeaving, message, self.now)
        }
    }

    /// Did it end with a machine that can be taken away, because that was?
    pub(super) fn is_reclaimed(&self, ending: &Ending) -> bool {
        let cause = ending.diagnosis.as_ref();
        let went_with_it = cause.is_some_and(|found| match found.cause {
            Cause::NodeLost => true,
            // Another attempt that still writes its checkpoints has nothing to do with the machine.
            Cause::Disrupted => found.word != FENCED,
            // A person, a node that is full, or more important work.
            _ => false,
        });
        let by_outside = ending.reason == Reason::NodeLeaving || went_with_it;
        let rank = ending.exit.as_ref().map(|exit| exit.rank as usize);
        let last = self.status.attempts.last();
        let node = last.and_then(|attempt| attempt.nodes.get(rank?));
        let is_spot = |name: &String| {
            // Of one that is gone it is only known what the attempt was on.
            let node = self.observed.cluster.node(name);
            node.is_none_or(|node| node.spot)
        };
        ending.outcome == Outcome::Interrupted
            && by_outside
            && last.is_some_and(|attempt| attempt.spot)
            && node.is_some_and(is_spot)
    }

    /// What kind of machines the next attempt may run on: after as many interruptions as its author allows, those that stay.
    pub(super) fn spot(&self) -> Spot {
        match self.job.spec.spot_interruptions {
            Some(limit) if self.status.spot_interruptions >= limit => Spot::Never,
            _ => self.job.spec.spot,
        }
    }

    /// Is one of these a machine that can be taken away?
    pub(super) fn has_spot(&self, nodes: &[String]) -> bool {
        let mut nodes = nodes.iter().filter_map(|it| self.observed.cluster.node(it));
        nodes.any(|node| node.spot)
    }
}

/// Whoever else says that it is to go, and of whichever of its nodes, gives it no more time than it has. `is_told` says that what is known
/// is still said.
fn sooner(known: &Leaving, fresh: Leaving, is_told: bool) -> Leaving {
    let is_sooner = fresh.until < known.until;
    let until = if is_sooner {
        fresh.until.clone()
    } else {
        known.until.clone()
    };
    let words = if is_sooner || !is_told {
        fresh
    } else {
        known.clone()
    };
    Leaving {
        asked_at: known.asked_at.clone(),
        until,
        ..words
    }
}

fn of_node(node: &str, notice: &Notice) -> Option<Threat> {
    let wait = match notice.then {
        Then::MayGo => None,
        Then::Goes { wait } => Some(wait.0),
        Then::Silent => Some(SILENT_MAX),
        // It is lost, and its gang with it.
        Then::Gone => return None,
    };
    Some(Threat {
        node: node.to_owned(),
        by: notice.by.to_owned(),
        why: format!("{} ({})", notice.why, notice.said_by),
        wait,
        is_silence: notice.then == Then::Silent,
    })
}

/// What its own node says while it ends the worker for what that did, or to keep the node alive: the worker's end tells why.
const BY_KUBELET: &str = "TerminationByKubelet";

/// One that was deleted is ended as that.
fn of_pod(node: &str, worker: &Worker<'_>) -> Option<Threat> {
    let disruption = worker.disruption().filter(|_| !worker.is_stopping());
    let (reason, message) = disruption.filter(|(reason, _)| *reason != BY_KUBELET)?;
    let why = if message.is_empty() { reason } else { message };
    Some(Threat {
        node: node.to_owned(),
        by: "Kubernetes".to_owned(),
        why: format!("it is about to delete the worker: {why} (DisruptionTarget)"),
        wait: Some(DISRUPTED),
        is_silence: false,
    })
}

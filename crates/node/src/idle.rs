//! A worker that does nothing: no CPU or GPU time to speak of, no line in its log, no step told. Only where its job asks to be told.
//!
//! The agent of a cluster sees less of it than the engine's node: neither its log, which the operator asks for before it believes anything,
//! nor its GPUs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use stoke_api::Span;
use stoke_api::names::HUNG_AFTER_ANNOTATION;

/// Between two looks: what is done now and then evens out.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Less than a fiftieth of a core is what a program needs to wait.
const WAITING_MILLICORES: u64 = 20;

/// What a worker does, as far as it is seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// CPU time since its start. Where that is not known nothing can be said.
    pub(crate) cpu_usec: Option<u64>,
    pub(crate) log_bytes: u64,
    pub(crate) step: Option<u64>,
    pub(crate) gpu_is_busy: bool,
}

/// Whose eyes these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eyes {
    /// The engine's node: they see everything.
    Node,
    /// The agent of a cluster.
    Agent,
}

#[derive(Debug, Clone)]
pub(crate) struct Idle {
    eyes: Eyes,
    after: Duration,
    last: Option<(Duration, Signs)>,
    /// Since when nothing was done.
    since: Option<Duration>,
}

impl Idle {
    /// None for a pod of which nobody wants to know.
    pub(crate) fn of(pod: &Pod, eyes: Eyes) -> Option<Self> {
        let seconds = pod.annotations().get(HUNG_AFTER_ANNOTATION)?;
        let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0)?;
        Some(Self {
            eyes,
            after: Duration::from_secs(seconds),
            last: None,
            since: None,
        })
    }

    /// Is it time for a look?
    pub(crate) fn is_due(&self, at: Duration) -> bool {
        let last = self.last.as_ref();
        last.is_none_or(|(last, _)| at.saturating_sub(*last) >= LOOK_EVERY)
    }

    /// One look; `at` is since any fixed moment.
    pub(crate) fn look(&mut self, at: Duration, signs: Signs) {
        let is_idle = self.last.as_ref().is_some_and(|(before, known)| {
            let passed = at.saturating_sub(*before).as_micros();
            let used = signs.cpu_usec.zip(known.cpu_usec);
            let used = used.and_then(|(now, before)| now.checked_sub(before));
            // One that was started anew, or of which that is not known, has done something.
            let waits = used.is_some_and(|used| {
                u128::from(used) * 1000 <= passed * u128::from(WAITING_MILLICORES)
            });
            let is_silent = (signs.log_bytes, signs.step) == (known.log_bytes, known.step);
            waits && is_silent && !signs.gpu_is_busy
        });
        let from = self.last.as_ref().map(|(before, _)| *before);
        self.since = match (is_idle, self.since) {
            (true, Some(since)) => Some(since),
            (true, None) => from,
            (false, _) => None,
        };
        self.last = Some((at, signs));
    }

    /// What is to be said of one that has done nothing for as long as its job allows. The same words for as long as that lasts.
    pub(crate) fn told(&self) -> Option<String> {
        let (at, signs) = self.last.as_ref()?;
        let idle = at.saturating_sub(self.since?);
        (idle >= self.after).then(|| {
            let after = Span::seconds(self.after.as_secs());
            let step = signs.step.map(|step| format!(" after step {step}"));
            let step = step.unwrap_or_default();
            let cpu = "less than a fiftieth of a CPU";
            match self.eyes {
                Eyes::Node => format!(
                    "it did nothing for {after}: {cpu}, no GPU at work, nothing in its log, and no step told{step}"
                ),
                Eyes::Agent => format!("it did nothing for {after}: {cpu}, no step told{step}"),
            }
        })
    }
}

/// What its container has written to its log, all runs together.
pub(crate) fn log_bytes(pod_dir: &Path, container: &str) -> u64 {
    let files = fs::read_dir(pod_dir.join("logs").join(container));
    let sizes = files.into_iter().flatten().flatten();
    let sizes = sizes.filter_map(|file| Some(file.metadata().ok()?.len()));
    sizes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn idle(after: u64) -> Idle {
        let pod = json!({"metadata": {"name": "p", "annotations": {"stokehold.dev/hung-after": after.to_string()}}});
        let pod = serde_json::from_value(pod).expect("a pod");
        Idle::of(&pod, Eyes::Node).expect("it is wanted")
    }

    fn signs(cpu_millis: u64, log_bytes: u64, step: u64) -> Signs {
        Signs {
            cpu_usec: Some(cpu_millis * 1000),
            log_bytes,
            step: Some(step),
            gpu_is_busy: false,
        }
    }

    /// What it does at each second.
    type Life = fn(u64) -> Signs;

    #[test]
    fn who_does_nothing_long_enough_is_told_of_and_any_sign_of_life_begins_anew() {
        let busy = |at: u64| Signs {
            gpu_is_busy: at == 50,
            ..signs(0, 0, 7)
        };
        let lives: [(&str, Life, bool); 6] = [
            ("nothing", |_| signs(0, 0, 7), true),
            ("a waiting loop", |at| signs(at * 15, 0, 7), true),
            ("work", |at| signs(at * 500, 0, 7), false),
            ("a log line now and then", |at| signs(0, at / 40, 7), false),
            ("steps", |at| signs(0, 0, at / 30), false),
            (
                "nobody measures its CPU",
                |_| Signs {
                    cpu_usec: None,
                    ..signs(0, 0, 7)
                },
                false,
            ),
        ];
        for (name, life, hung) in lives {
            let mut idle = idle(60);
            for at in (0..=120).step_by(10) {
                assert!(idle.is_due(Duration::from_secs(at)));
                idle.look(Duration::from_secs(at), life(at));
                assert!(at >= 60 || idle.told().is_none(), "{name} at {at}");
            }
            assert_eq!(idle.told().is_some(), hung, "{name}");
        }
        let mut of_gpu = idle(60);
        for at in (0..=100).step_by(10) {
            of_gpu.look(Duration::from_secs(at), busy(at));
        }
        assert_eq!(of_gpu.told(), None, "its GPU was at work 50 seconds ago");
        of_gpu.look(Duration::from_secs(110), busy(110));
        assert_eq!(
            of_gpu.told().as_deref(),
            Some(
                "it did nothing for 1m: less than a fiftieth of a CPU, no GPU at work, nothing in its log, and no step told after step 7"
            )
        );
        assert!(!of_gpu.is_due(Duration::from_secs(115)));
    }

    #[test]
    fn nobody_is_watched_who_did_not_ask_for_it() {
        for annotations in [
            json!({}),
            json!({"stokehold.dev/hung-after": "0"}),
            json!({"stokehold.dev/hung-after": "soon"}),
        ] {
            let pod = json!({"metadata": {"name": "p", "annotations": annotations}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            assert!(Idle::of(&pod, Eyes::Node).is_none());
        }
    }
}

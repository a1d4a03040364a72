//! A worker that may soon need more memory than it may have, told on the job: its node saw it and did what could be done.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::Reason;
use stoke_api::condition::{self, ConditionType};
use stoke_api::risk::{MemoryRisk, Stage};

use super::{Action, Telling, Turn};
use crate::trainjob::workers;

impl Turn<'_> {
    /// Sets the condition `MemoryAtRisk`, with an Event for each thing that was done about it.
    pub(super) fn tell_risk(&mut self) {
        let kind = ConditionType::MemoryAtRisk;
        let known = condition::get(&self.status.conditions, kind);
        let was = known.map(|known| (known.status == "True", known.message.clone()));
        let (holds, reason, message) = match (self.worst_risk(), &was) {
            (Some((rank, risk)), _) => (true, reason(risk), format!("rank {rank}: {}", risk.why)),
            (None, Some((true, message))) => {
                let reason = match self.live() {
                    Some(_) => Reason::OutOfDanger,
                    None => Reason::NotRunning,
                };
                (false, reason, format!("it was: {message}"))
            }
            (None, _) => return,
        };
        let is_news = was.is_none_or(|(held, told)| holds && (!held || told != message));
        let generation = self.job.metadata.generation;
        condition::set(
            &mut self.status.conditions,
            kind,
            holds,
            &reason.to_string(),
            &message,
            generation,
            &Time(self.now),
        );
        if is_news {
            self.actions.push(Action::Tell(Telling {
                reason: kind.as_str().to_owned(),
                message,
            }));
        }
    }

    /// The worker of the attempt that is nearest to its end, and its rank.
    fn worst_risk(&self) -> Option<(u32, &MemoryRisk)> {
        let attempt = self.live()?.number;
        let running = self.workers.iter().filter(|worker| {
            worker.attempt == attempt && worker.stage() == workers::Stage::Running
        });
        let risks = running.filter_map(|worker| {
            let risk = worker.pod.metadata.risk.as_deref()?;
            Some((worker.rank, risk))
        });
        risks.max_by_key(|(rank, risk)| (risk.stage, std::cmp::Reverse(*rank)))
    }
}

fn reason(risk: &MemoryRisk) -> Reason {
    match risk.stage {
        Stage::Foreseen => Reason::MemoryClimbs,
        Stage::Raised => Reason::LimitRaised,
        Stage::AtTheEnd => Reason::CheckpointAsked,
        Stage::NodeShort => Reason::NodeShortOfMemory,
    }
}

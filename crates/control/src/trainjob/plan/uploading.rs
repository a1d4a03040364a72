//! Whether copies of a job's checkpoints get to its object store, and a warning where they do not.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::Reason;
use stoke_api::condition::{self, ConditionType};

use super::{Action, Telling, Turn};

impl Turn<'_> {
    /// Sets the condition `UploadFailing`, with an Event for each thing that is wrong.
    pub(super) fn tell_upload(&mut self) {
        let kind = ConditionType::UploadFailing;
        let known = condition::get(&self.status.conditions, kind);
        let held = known.filter(|known| known.status == "True");
        let saved = self.status.saved.as_ref();
        let problem = saved.and_then(|saved| saved.upload_problem.clone());
        let (holds, reason, message) = match problem {
            Some(problem) => (true, Reason::UploadFailed, problem),
            None if held.is_none() => return,
            None => {
                let message = "copies of its checkpoints get through again";
                (false, Reason::UploadWorks, message.to_owned())
            }
        };
        let is_news = holds && held.is_none_or(|held| held.message != message);
        condition::set(
            &mut self.status.conditions,
            kind,
            holds,
            &reason.to_string(),
            &message,
            self.job.metadata.generation,
            &Time(self.now),
        );
        if is_news {
            self.actions.push(Action::Tell(Telling {
                reason: kind.as_str().to_owned(),
                message,
            }));
        }
    }
}

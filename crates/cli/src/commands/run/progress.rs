//! What a job is doing, told on stderr while one waits for it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use stoke_api::trainjob::Phase;
use stoke_api::{TrainJob, TrainJobStatus};

use crate::commands::logs::print;
use crate::render;
use crate::terminal::{self, DIM, mood, paint};

/// Tells each change once; on a terminal a line below moves while there is nothing else to see.
pub struct Progress {
    spinner: ProgressBar,
    told: Told,
}

/// What was told last, so that it is not told again.
#[derive(Default, PartialEq, Eq)]
struct Told {
    phase: Option<Phase>,
    reason: String,
    message: String,
    attempt: u32,
}

impl Progress {
    pub fn new() -> Self {
        let spinner = if terminal::stderr_is_terminal() {
            ProgressBar::new_spinner().with_style(
                ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            )
        } else {
            ProgressBar::hidden()
        };
        Self {
            spinner,
            told: Told::default(),
        }
    }

    /// Writes to the terminal without the moving line in between.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.spinner.suspend(write)
    }

    pub fn update(&mut self, job: &TrainJob) {
        let Some(status) = &job.status else {
            return;
        };
        if status.attempt > self.told.attempt && self.told.attempt > 0 {
            self.aside(|| print::new_attempt(job));
        }
        let now = Told {
            phase: Some(status.phase),
            reason: status.reason.clone(),
            message: status.message.clone(),
            attempt: status.attempt,
        };
        if now == self.told {
            return;
        }
        let is_new = now.phase != self.told.phase || now.reason != self.told.reason;
        self.told = now;
        if is_new && !status.phase.is_final() {
            self.aside(|| terminal::talk(format_args!("{}", line(job, status))));
        }
        if matches!(status.phase, Phase::Running) || status.phase.is_final() {
            self.spinner.disable_steady_tick();
            self.spinner.finish_and_clear();
        } else {
            self.spinner
                .set_message(format!("{:?}: {}", status.phase, status.message));
            self.spinner.enable_steady_tick(Duration::from_millis(120));
        }
    }

    pub fn finish(&self) {
        self.spinner.finish_and_clear();
    }
}

/// `resnet50: Queued (InsufficientCapacity): needs 8 GPUs; ...`
fn line(job: &TrainJob, status: &TrainJobStatus) -> String {
    let phase = format!("{:?}", status.phase);
    let phase_text = paint(mood(&phase), &phase);
    let name = job.name();
    match (status.phase, status.current_attempt()) {
        (Phase::Running, Some(attempt)) => {
            let memory = attempt
                .memory
                .as_ref()
                .map(|sizing| format!(", memory limit {}", sizing.limit));
            let workers = render::count(job.spec.workers, "worker", "workers");
            let what = format!(
                "{workers} on {}{}",
                render::nodes(attempt),
                memory.unwrap_or_default()
            );
            format!("{name}: {phase_text} {}", paint(DIM, what))
        }
        _ if status.reason.is_empty() => format!("{name}: {phase_text}"),
        _ => format!(
            "{name}: {phase_text} ({}) {}",
            status.reason, status.message
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixtures;

    #[test]
    fn each_state_is_one_line() {
        let told = |job: TrainJob| {
            let status = job.status.clone().unwrap();
            anstream::adapter::strip_str(&line(&job, &status)).to_string()
        };
        insta::assert_snapshot!(told(fixtures::queued()), @"resnet50: Queued (InsufficientCapacity) needs 8 GPUs; node-a has 2 of 8 free");
        insta::assert_snapshot!(told(fixtures::running()), @"resnet50: Running 2 workers on node-a, memory limit 8Gi");
    }
}

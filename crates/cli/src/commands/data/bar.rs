//! How far a copy is, on stderr: a bar where somebody watches, a line now and then where it is a log.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use stoke_data::{Meter, Progress, Stage};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::terminal;

const REDRAW_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows it until the work is done.
pub async fn show<T>(
    name: &str,
    progress: &Arc<Progress>,
    mut work: JoinHandle<T>,
) -> Result<T, JoinError> {
    let is_watched = terminal::stderr_is_terminal();
    let bar = if is_watched {
        let style = ProgressStyle::with_template("{spinner} {prefix} {bar:30} {wide_msg}");
        ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    } else {
        ProgressBar::hidden()
    };
    bar.set_prefix(name.to_owned());
    let (began, mut meter) = (Instant::now(), Meter::default());
    let every = if is_watched { REDRAW_EVERY } else { LINE_EVERY };
    let mut tick = tokio::time::interval_at(began + every, every);
    loop {
        tokio::select! {
            ended = &mut work => {
                bar.finish_and_clear();
                return ended;
            }
            _ = tick.tick() => {
                let far = meter.told(began.elapsed(), progress);
                if is_watched {
                    let total = if progress.stage() == Stage::Copying { progress.bytes() } else { 0 };
                    bar.set_length(total);
                    bar.set_position(progress.done_bytes().min(total));
                    bar.set_message(far);
                } else {
                    terminal::talk(format_args!("{name}: {far}"));
                }
            }
        }
    }
}

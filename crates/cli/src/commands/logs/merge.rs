//! The lines that are there already, of several workers, in the order they were printed.

use std::io::Write;
use std::pin::Pin;

use futures::io::AsyncBufRead;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};

use super::print::Printer;
use crate::follow::{self, Line, Lines, Opening};
use crate::terminal;

struct Worker {
    lines: Lines,
    stream: Pin<Box<dyn AsyncBufRead>>,
    /// The next line, read ahead to compare it with the others'.
    next: Option<Line>,
}

/// Memory is one line a worker, however long the logs are.
pub async fn print(
    client: &Client,
    pods: &[Pod],
    opening: &Opening,
    printer: &Printer,
) -> anyhow::Result<()> {
    let mut workers = Vec::new();
    for pod in pods {
        let (mut lines, stream) = match follow::open(client, pod, opening.clone()).await {
            Ok(opened) => opened,
            // One worker without lines, not started yet or never startable, must not hide those of the others.
            Err(kube::Error::Api(status)) if status.code == 400 => {
                terminal::talk(format_args!("{}: {}", pod.name_any(), status.message));
                continue;
            }
            Err(error) => {
                return Err(anyhow::Error::new(error)
                    .context(format!("cannot read the log of {}", pod.name_any())));
            }
        };
        let mut stream: Pin<Box<dyn AsyncBufRead>> = Box::pin(stream);
        let next = lines.next(&mut stream).await?;
        workers.push(Worker {
            lines,
            stream,
            next,
        });
    }
    let mut out = std::io::BufWriter::new(terminal::raw_stdout());
    while let Some(worker) = earliest(&mut workers) {
        if let Some(line) = worker.next.take() {
            printer.print(&mut out, &line)?;
        }
        worker.next = worker.lines.next(&mut worker.stream).await?;
    }
    out.flush()?;
    Ok(())
}

fn earliest(workers: &mut [Worker]) -> Option<&mut Worker> {
    workers
        .iter_mut()
        .filter(|worker| worker.next.is_some())
        .min_by_key(|worker| {
            (
                worker.next.as_ref().and_then(|line| line.at),
                worker.lines.rank(),
            )
        })
}

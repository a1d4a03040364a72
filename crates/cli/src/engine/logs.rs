//! The logs the API serves, from the node's files. They are there as long as the pod's directory is, whether or not anything
//! of it still runs.

use std::path::{Path, PathBuf};

use futures::StreamExt;
use futures::future::BoxFuture;
use serde_json::Value;
use stoke_apiserver::request::Since;
use stoke_apiserver::{LogError, LogOptions, LogSource, LogStream};
use stoke_node::logs;

use crate::clock;

pub struct PodLogs {
    data_dir: PathBuf,
}

impl PodLogs {
    pub fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
        }
    }
}

impl LogSource for PodLogs {
    fn open(
        &self,
        pod: &Value,
        container: &str,
        options: LogOptions,
    ) -> BoxFuture<'static, Result<LogStream, LogError>> {
        let name = pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let directory = stoke_node::pod_dir(&self.data_dir, uid);
        let container = container.to_owned();
        Box::pin(async move {
            let waiting = |reason: String| LogError::Waiting {
                pod: name.clone(),
                container: container.clone(),
                reason,
            };
            let Some(directory) = directory else {
                return Err(waiting("ContainerCreating".to_owned()));
            };
            let wanted = wanted(&options);
            let opened = {
                let container = container.clone();
                tokio::task::spawn_blocking(move || logs::open(&directory, &container, &wanted))
                    .await
            };
            match opened {
                Ok(Ok(stream)) => Ok(stream.boxed()),
                Ok(Err(error)) => Err(match error {
                    logs::LogError::NoContainer { .. } => waiting("ContainerCreating".to_owned()),
                    logs::LogError::NotStarted { reason, .. } => waiting(reason),
                    logs::LogError::NoPrevious { .. } => LogError::NoPrevious {
                        pod: name.clone(),
                        container: container.clone(),
                    },
                    other => LogError::Read(std::io::Error::other(other)),
                }),
                Err(error) => Err(LogError::Read(std::io::Error::other(error))),
            }
        })
    }
}

fn wanted(options: &LogOptions) -> logs::LogOptions {
    let since = options.since.as_ref().and_then(|since| match since {
        Since::Time(at) => Some(*at),
        Since::Seconds(seconds) => {
            let second = clock::now().as_second().checked_sub_unsigned(*seconds)?;
            jiff::Timestamp::from_second(second).ok()
        }
    });
    logs::LogOptions {
        follow: options.follow,
        previous: options.previous,
        tail_lines: options.tail_lines,
        since,
        timestamps: options.timestamps,
        limit_bytes: options.limit_bytes,
    }
}

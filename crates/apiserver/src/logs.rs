//! Where the logs of containers come from. The server knows pods, not processes: whoever runs them says.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde_json::Value;

use crate::request::LogOptions;

/// A running log: chunks of text in order, ending when there is no more or, if followed, when the container ends.
pub type LogStream = BoxStream<'static, std::io::Result<Bytes>>;

/// Opens the log of a container. Implementations answer from disk as long as the pod's directory lives, whether or
/// not its processes do; dropping the stream must end whatever feeds it.
pub trait LogSource: Send + Sync {
    /// `pod` is the pod as stored; `container` is one of its containers.
    fn open(
        &self,
        pod: &Value,
        container: &str,
        options: LogOptions,
    ) -> BoxFuture<'static, Result<LogStream, LogError>>;
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// 400, as a kubelet says it of a container that has not started.
    #[error("container {container:?} in pod {pod:?} is waiting to start: {reason}")]
    Waiting {
        pod: String,
        container: String,
        reason: String,
    },
    /// 400: there was no container before this one.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious { pod: String, container: String },
    #[error("the log cannot be read")]
    Read(#[source] std::io::Error),
}

/// For servers without a node: no container has ever started.
pub struct NoLogs;

impl LogSource for NoLogs {
    fn open(
        &self,
        pod: &Value,
        container: &str,
        _: LogOptions,
    ) -> BoxFuture<'static, Result<LogStream, LogError>> {
        let error = LogError::Waiting {
            pod: crate::object::name(pod).to_owned(),
            container: container.to_owned(),
            reason: "ContainerCreating".to_owned(),
        };
        Box::pin(async move { Err(error) })
    }
}

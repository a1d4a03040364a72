//! What an object store's error means, and how long to put up with it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use object_store::Error;

use crate::error::DataError;
use crate::source::Remote;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Again,
    Changed,
    Refused,
    Missing,
    Broken,
}

pub(crate) fn judge(error: &Error) -> Verdict {
    match error {
        Error::NotFound { .. } => Verdict::Missing,
        Error::Precondition { .. } | Error::NotModified { .. } => Verdict::Changed,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Verdict::Refused,
        Error::Generic { .. } | Error::JoinError { .. } => match status(&error.to_string()) {
            // Listings come without the kinds that single objects have.
            Some(401 | 403) => Verdict::Refused,
            Some(404) => Verdict::Missing,
            Some(412) => Verdict::Changed,
            // 408 and 429 are "later", 507 is a full store.
            Some(507) => Verdict::Broken,
            Some(status) if (400..500).contains(&status) && ![408, 409, 429].contains(&status) => {
                Verdict::Broken
            }
            _ => Verdict::Again,
        },
        Error::AlreadyExists { .. } => Verdict::Again,
        _ => Verdict::Broken,
    }
}

fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once('<')?.0)
}

/// The error in few words. Servers send back what was signed, with key ids, and URLs may hold tokens: of an answer only its
/// status and code are told, of anything else the innermost cause.
pub(crate) fn plain(error: &Error) -> String {
    let text = error.to_string();
    if let Some(status) = status(&text) {
        return match tag(&text, "Code") {
            Some(code) => format!("the server answers {status} ({code})"),
            None => format!("the server answers {status}"),
        };
    }
    if let Some(code) = tag(&text, "Code") {
        return format!("the server answers with an error ({code})");
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = cause.to_string();
    match text.split_once("://") {
        // The part of the text in front of a URL says enough.
        Some((before, _)) => before
            .trim_end_matches(char::is_alphabetic)
            .trim()
            .to_owned(),
        None => text,
    }
}

pub(crate) fn failure(remote: &Remote, error: &Error) -> DataError {
    let (uri, why) = (remote.uri().to_owned(), remote.keys.scrub(&plain(error)));
    match judge(error) {
        Verdict::Refused => DataError::Refused { uri, why },
        Verdict::Missing => DataError::Missing { uri, why },
        Verdict::Changed => DataError::Changed {
            uri,
            what: "an object".to_owned(),
        },
        Verdict::Again | Verdict::Broken => DataError::Broken { uri, why },
    }
}

/// How long nothing at all may work before the whole of it is given up. Shared by everybody who fetches for one purpose: one that
/// gets through gives all of them new patience.
#[derive(Debug)]
pub(crate) struct Patience {
    last_good: Mutex<Instant>,
    most: Duration,
}

const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

impl Patience {
    pub(crate) fn new(most: Duration) -> Self {
        Self {
            last_good: Mutex::new(Instant::now()),
            most,
        }
    }

    pub(crate) fn good(&self) {
        *self
            .last_good
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Instant::now();
    }

    /// Waits before the try after this one, longer each time; or gives up.
    pub(crate) async fn again(
        &self,
        tries: u32,
        remote: &Remote,
        error: &Error,
    ) -> Result<(), DataError> {
        let why = remote.keys.scrub(&plain(error));
        let silent = self
            .last_good
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .elapsed();
        if silent >= self.most {
            return Err(DataError::GaveUp {
                uri: remote.uri().to_owned(),
                seconds: self.most.as_secs(),
                why,
            });
        }
        tracing::debug!(uri = remote.uri(), tries, why, "trying again");
        let pause = PAUSE_FIRST.saturating_mul(1 << tries.min(6)).min(PAUSE_MAX);
        tokio::time::sleep(pause.min(self.most.saturating_sub(silent))).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> Error {
        Error::Generic {
            store: "S3",
            source: text.to_owned().into(),
        }
    }

    #[test]
    fn what_a_server_sends_back_is_not_repeated() {
        let text = "Error performing GET https://x/y?sig=TOPSECRET in 1ms - Server returned non-2xx status code: 403 Forbidden: \
            <?xml?><Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA123</AWSAccessKeyId></Error>";
        let denied = Error::PermissionDenied {
            path: "a".to_owned(),
            source: text.to_owned().into(),
        };
        assert_eq!(
            plain(&denied),
            "the server answers 403 (SignatureDoesNotMatch)"
        );
        assert_eq!(
            plain(&generic(
                "error sending request for url https://x/y?sig=TOPSECRET"
            )),
            "error sending request for url"
        );
        assert_eq!(
            plain(&generic("Connection refused (os error 111)")),
            "Connection refused (os error 111)"
        );
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (text, verdict) in [
            ("status code: 400 Bad Request: x", Verdict::Broken),
            ("status code: 429 Too Many", Verdict::Again),
            ("status code: 503 Slow Down", Verdict::Again),
            ("status code: 507 Insufficient Storage", Verdict::Broken),
            ("connection reset", Verdict::Again),
        ] {
            assert_eq!(judge(&generic(text)), verdict, "{text}");
        }
    }
}

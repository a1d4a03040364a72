//! What goes wrong between us and the API server, said so that whoever runs the operator knows what to do.

use std::time::Duration;

use kube::core::response::Status;

use crate::guard::Unanswered;

#[derive(Debug)]
pub enum Trouble {
    /// It answered, and said no.
    Api(Box<Status>),
    /// It did not answer for this long.
    Silence(Duration),
    /// It cannot be reached, or what it answered cannot be read.
    Away(kube::Error),
}

impl From<kube::Error> for Trouble {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Api(status),
            kube::Error::Service(ref source) => match source.downcast_ref::<Unanswered>() {
                Some(Unanswered::Silence(patience)) => Self::Silence(*patience),
                _ => Self::Away(error),
            },
            error => Self::Away(error),
        }
    }
}

/// What a refused token is a trouble of, whatever was asked for.
pub const CREDENTIALS: &str = "credentials";

impl Trouble {
    /// What it is a trouble of, where `what` was asked for.
    pub fn about<'a>(&self, what: &'a str) -> &'a str {
        match self {
            Self::Api(status) if status.code == 401 => CREDENTIALS,
            _ => what,
        }
    }

    /// One sentence. `what` is what was asked for.
    pub fn told(&self, what: &str) -> String {
        match self {
            Self::Api(status) => told_status(what, status),
            Self::Silence(patience) => {
                format!(
                    "{what}: the API server did not answer within {patience:?}; it is asked again"
                )
            }
            Self::Away(error) => {
                format!(
                    "{what}: the API server cannot be reached: {}; it is tried again",
                    innermost(error)
                )
            }
        }
    }
}

fn told_status(what: &str, status: &Status) -> String {
    let Status { code, message, .. } = status;
    match code {
        401 => "the API server does not accept our credentials (401): they have expired or were revoked. A token file is read anew every \
                minute; if this lasts, give the operator new ones (restart its pod)"
            .to_owned(),
        403 => format!(
            "{what}: we may not: {message}. The operator's role lacks this; install the chart's roles anew (helm upgrade)"
        ),
        429 => format!("{what}: the API server has too much to do (429); it is asked less often for a while"),
        _ => format!("{what}: the API server answered {code}: {message}"),
    }
}

/// kube's own texts repeat what they wrap.
pub fn innermost(error: &dyn std::error::Error) -> String {
    let mut current = error;
    while let Some(source) = current.source() {
        current = source;
    }
    current.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_what_to_do() {
        let api = |code, message: &str| {
            let status = Status::failure(message, "Reason").with_code(code).boxed();
            Trouble::from(kube::Error::Api(status)).told("pods")
        };
        insta::assert_snapshot!(api(401, "Unauthorized"), @"the API server does not accept our credentials (401): they have expired or were revoked. A token file is read anew every minute; if this lasts, give the operator new ones (restart its pod)");
        insta::assert_snapshot!(
            api(403, r#"pods is forbidden: User "system:serviceaccount:s:o" cannot list resource "pods" in API group "" at the cluster scope"#),
            @r#"pods: we may not: pods is forbidden: User "system:serviceaccount:s:o" cannot list resource "pods" in API group "" at the cluster scope. The operator's role lacks this; install the chart's roles anew (helm upgrade)"#
        );
        insta::assert_snapshot!(api(503, "apiserver is shutting down"), @"pods: the API server answered 503: apiserver is shutting down");
        let silence = kube::Error::Service(Box::new(Unanswered::Silence(Duration::from_secs(30))));
        insta::assert_snapshot!(Trouble::from(silence).told("pods"), @"pods: the API server did not answer within 30s; it is asked again");
        let away = kube::Error::Service(Box::new(std::io::Error::from(
            std::io::ErrorKind::ConnectionRefused,
        )));
        insta::assert_snapshot!(Trouble::from(away).told("pods"), @"pods: the API server cannot be reached: connection refused; it is tried again");
    }
}

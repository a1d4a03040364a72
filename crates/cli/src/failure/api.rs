//! What went wrong with a server, told so that a person knows what to do next.
//!
//! Invariant: credentials are never told, nor what a credential program printed to stdout.

use std::error::Error as StdError;

use kube::client::AuthError;
use kube::core::Status;

use super::Exit;
use crate::world::Place;

pub struct Answer {
    pub exit: Exit,
    pub line: String,
    pub hint: Option<String>,
}

/// kube's own texts repeat themselves and print the whole status; a person wants the server's sentence.
pub fn tell(error: &kube::Error, place: &Place) -> Answer {
    if let Some(auth) = auth_of(error) {
        return no_credentials(auth, place);
    }
    match error {
        kube::Error::Api(status) => refusal(status, place),
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => {
            silence(error, place)
        }
        kube::Error::ProxyProtocolUnsupported { .. } => Answer {
            exit: Exit::Unreachable,
            line: format!("{place} is behind a proxy of a kind that is not known"),
            hint: Some(
                "proxies may be http, https or socks5: look at proxy-url and HTTPS_PROXY"
                    .to_owned(),
            ),
        },
        other => Answer {
            exit: Exit::Failed,
            line: innermost(other),
            hint: None,
        },
    }
}

/// A program that should have given credentials may have failed when the client was made or at any request.
fn auth_of(error: &kube::Error) -> Option<&AuthError> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(auth) = current.downcast_ref::<AuthError>() {
            return Some(auth);
        }
        cause = current.source();
    }
    None
}

fn no_credentials(error: &AuthError, place: &Place) -> Answer {
    let why = match error {
        AuthError::AuthExecRun { cmd, out } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            let program = cmd.split_whitespace().next().unwrap_or_default();
            let program = program.trim_matches('"');
            match last {
                Some(last) => format!("{program} failed ({}): {}", out.status, last.trim()),
                None => format!("{program} failed ({})", out.status),
            }
        }
        AuthError::AuthExecStart(error) => format!("its program cannot be started: {error}"),
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            "its program printed no credentials".to_owned()
        }
        AuthError::ReadTokenFile(error, file) => format!("{}: {error}", file.display()),
        AuthError::InvalidBearerToken(_) | AuthError::InvalidBasicAuth(_) => {
            "they hold characters that cannot be sent".to_owned()
        }
        AuthError::MissingCommand => "the kubeconfig names no program for them".to_owned(),
        _ => "they cannot be had".to_owned(),
    };
    Answer {
        exit: Exit::Unreachable,
        line: format!("no credentials for {place}: {why}"),
        hint: Some("log in to the cluster again, as you do for kubectl".to_owned()),
    }
}

fn refusal(status: &Status, place: &Place) -> Answer {
    let exit = match status.code {
        404 => Exit::NotFound,
        401 => Exit::Unreachable,
        400..=499 => Exit::Refused,
        _ => Exit::Failed,
    };
    let said = if status.message.is_empty() {
        format!("{place} answered {} {}", status.code, status.reason)
    } else {
        status.message.clone()
    };
    let plain = |line: String| Answer {
        exit,
        line,
        hint: None,
    };
    let Place::Cluster { name, server } = place else {
        return plain(said);
    };
    let hinted = |line: String, hint: String| Answer {
        exit,
        line,
        hint: Some(hint),
    };
    match status.code {
        401 => hinted(
            format!(
                "cluster {name} ({server}) does not accept these credentials (401): expired, or of another cluster"
            ),
            format!("log in again, and see who you are: kubectl --context {name} auth whoami"),
        ),
        403 if is_denial(&status.message) => hinted(
            said,
            format!(
                "ask who runs the cluster for that right; what you may do: kubectl --context {name} auth can-i --list"
            ),
        ),
        404 if is_unserved(status) => hinted(
            format!(
                "Stokehold is not installed in cluster {name} ({server}), or in another version"
            ),
            format!(
                "install it: helm install stokehold charts/stokehold --namespace stokehold-system --create-namespace --kube-context {name}"
            ),
        ),
        429 | 503 | 504 => hinted(
            format!("cluster {name} ({server}) is too busy: {said}"),
            "try again in a moment".to_owned(),
        ),
        _ => plain(said),
    }
}

/// `User "ada" cannot list resource "trainjobs" in API group ...`: a right that is missing, rather than a quota or a policy.
fn is_denial(message: &str) -> bool {
    message.contains(" cannot ") && message.contains(" resource ")
}

/// The path itself is unknown to the server, rather than an object at it.
pub fn is_unserved(status: &Status) -> bool {
    let names_nothing = status
        .details
        .as_ref()
        .is_none_or(|details| details.name.is_empty() && details.uid.is_empty());
    status.code == 404 && names_nothing
}

pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Why a connection did not come about or broke.
fn silence(error: &kube::Error, place: &Place) -> Answer {
    let cause = innermost(error);
    let exit = Exit::Unreachable;
    let Place::Cluster { name, server } = place else {
        return Answer {
            exit,
            line: format!("the engine does not answer: {cause}"),
            hint: Some("see whether the engine runs: stoke doctor".to_owned()),
        };
    };
    let whose = format!("cluster {name} ({server})");
    let (line, hint) = if cause.contains("certificate") {
        (
            format!("the certificate of {whose} is not the one it should have: {cause}"),
            format!(
                "was the cluster made anew, or is someone in between? Get its kubeconfig again, or compare certificate-authority: kubectl config view --minify --context {name}"
            ),
        )
    } else if cause.contains("lookup address") {
        (
            format!("the name of {whose} is not known here: {cause}"),
            "does it need a VPN? Is server: right in the kubeconfig?".to_owned(),
        )
    } else if cause.contains("deadline has elapsed") {
        (
            format!("{whose} cannot be reached: no connection within 10 s"),
            "does it need a VPN or a proxy (proxy-url, HTTPS_PROXY)?".to_owned(),
        )
    } else {
        (
            format!("{whose} does not answer: {cause}"),
            format!(
                "see whether it answers kubectl: kubectl --context {name} cluster-info; another cluster: --context NAME"
            ),
        )
    };
    Answer {
        exit,
        line,
        hint: Some(hint),
    }
}

fn innermost(error: &dyn StdError) -> String {
    let mut current = error;
    while let Some(source) = current.source() {
        current = source;
    }
    current.to_string()
}

/// Is this error one that goes away when the server is back?
pub fn is_away(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 401 | 429 | 500..=599),
        error => tell(error, &Place::Engine).exit == Exit::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use serde_json::json;

    use super::*;

    fn told(error: &kube::Error) -> String {
        let place = Place::Cluster {
            name: "prod-eu".to_owned(),
            server: "https://eu:6443".to_owned(),
        };
        let answer = tell(error, &place);
        format!(
            "{} {}\n{}",
            answer.exit.code(),
            answer.line,
            answer.hint.unwrap_or_default()
        )
    }

    fn api(status: serde_json::Value) -> kube::Error {
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    fn broken(cause: &str) -> kube::Error {
        kube::Error::Service(Box::new(io::Error::other(cause.to_owned())))
    }

    #[test]
    fn a_bad_day_of_a_cluster_names_it_and_the_next_step() {
        let refused = io::Error::from_raw_os_error(111);
        insta::assert_snapshot!(told(&kube::Error::Service(Box::new(refused))), @"
        3 cluster prod-eu (https://eu:6443) does not answer: Connection refused (os error 111)
        see whether it answers kubectl: kubectl --context prod-eu cluster-info; another cluster: --context NAME
        ");
        insta::assert_snapshot!(told(&broken("invalid peer certificate: UnknownIssuer")), @"
        3 the certificate of cluster prod-eu (https://eu:6443) is not the one it should have: invalid peer certificate: UnknownIssuer
        was the cluster made anew, or is someone in between? Get its kubeconfig again, or compare certificate-authority: kubectl config view --minify --context prod-eu
        ");
        insta::assert_snapshot!(told(&broken("failed to lookup address information: Name or service not known")), @"
        3 the name of cluster prod-eu (https://eu:6443) is not known here: failed to lookup address information: Name or service not known
        does it need a VPN? Is server: right in the kubeconfig?
        ");
        insta::assert_snapshot!(told(&broken("deadline has elapsed")), @"
        3 cluster prod-eu (https://eu:6443) cannot be reached: no connection within 10 s
        does it need a VPN or a proxy (proxy-url, HTTPS_PROXY)?
        ");
    }

    #[test]
    fn what_a_cluster_refuses_is_told_with_the_way_out() {
        insta::assert_snapshot!(told(&api(json!({"code": 401, "reason": "Unauthorized", "message": "Unauthorized"}))), @"
        3 cluster prod-eu (https://eu:6443) does not accept these credentials (401): expired, or of another cluster
        log in again, and see who you are: kubectl --context prod-eu auth whoami
        ");
        let denied = r#"trainjobs.stokehold.dev is forbidden: User "ada" cannot list resource "trainjobs" in API group "stokehold.dev" in the namespace "vision""#;
        insta::assert_snapshot!(told(&api(json!({"code": 403, "reason": "Forbidden", "message": denied}))), @r#"
        5 trainjobs.stokehold.dev is forbidden: User "ada" cannot list resource "trainjobs" in API group "stokehold.dev" in the namespace "vision"
        ask who runs the cluster for that right; what you may do: kubectl --context prod-eu auth can-i --list
        "#);
        let quota = r#"pods "x" is forbidden: exceeded quota: small"#;
        insta::assert_snapshot!(told(&api(json!({"code": 403, "reason": "Forbidden", "message": quota}))), @r#"5 pods "x" is forbidden: exceeded quota: small"#);
        let unserved = json!({"code": 404, "reason": "NotFound", "details": {}, "message": "the server could not find the requested resource"});
        insta::assert_snapshot!(told(&api(unserved)), @"
        4 Stokehold is not installed in cluster prod-eu (https://eu:6443), or in another version
        install it: helm install stokehold charts/stokehold --namespace stokehold-system --create-namespace --kube-context prod-eu
        ");
        let missing = json!({"code": 404, "reason": "NotFound", "details": {"name": "x", "kind": "trainjobs"}, "message": "trainjobs.stokehold.dev \"x\" not found"});
        insta::assert_snapshot!(told(&api(missing)), @r#"4 trainjobs.stokehold.dev "x" not found"#);
        insta::assert_snapshot!(told(&api(json!({"code": 429, "message": "too many requests"}))), @"
        5 cluster prod-eu (https://eu:6443) is too busy: too many requests
        try again in a moment
        ");
    }

    #[test]
    fn a_failed_login_is_told_without_what_it_printed() {
        use std::os::unix::process::ExitStatusExt;
        let out = std::process::Output {
            status: std::process::ExitStatus::from_raw(256),
            stdout: b"secret-token".to_vec(),
            stderr: b"warning: old\nthe session has expired\n\n".to_vec(),
        };
        let error = AuthError::AuthExecRun {
            cmd: "\"aws\" \"eks\" \"get-token\"".to_owned(),
            out: Box::new(out),
        };
        let text = told(&kube::Error::Service(Box::new(error)));
        insta::assert_snapshot!(text, @"
        3 no credentials for cluster prod-eu: aws failed (exit status: 1): the session has expired
        log in to the cluster again, as you do for kubectl
        ");
    }
}

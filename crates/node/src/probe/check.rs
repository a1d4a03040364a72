//! One check of a probe: http, tcp or exec.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Target;
use crate::causes::chain;
use crate::shim::Connection;
use crate::shim::protocol::{Request, Response};

/// A status line is short; what comes after it does not matter.
const STATUS_LINE_MAX: usize = 1024;
/// How much longer than its command an exec check may take to be answered.
const EXEC_SLACK: Duration = Duration::from_secs(2);

/// Success, or what went wrong in words for the event.
pub(super) async fn check(target: &Target, probe: &Probe, timeout: Duration) -> Result<(), String> {
    if let Some(exec) = &probe.exec {
        let argv = exec.command.clone().unwrap_or_default();
        return within(timeout + EXEC_SLACK, run(target, argv, timeout)).await;
    }
    if let Some(get) = &probe.http_get {
        return within(timeout, http(target, get)).await;
    }
    if let Some(socket) = &probe.tcp_socket {
        let port = port(&target.container, &socket.port)?;
        let host = socket
            .host
            .as_deref()
            .filter(|host| !host.is_empty())
            .unwrap_or(&target.address);
        return within(timeout, async { connect(host, port).await.map(drop) }).await;
    }
    Err("the probe has no handler this node knows".to_owned())
}

async fn within(
    timeout: Duration,
    check: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let timed_out = |_| Err(format!("timed out after {} s", timeout.as_secs()));
    tokio::time::timeout(timeout, check)
        .await
        .unwrap_or_else(timed_out)
}

async fn run(target: &Target, argv: Vec<String>, timeout: Duration) -> Result<(), String> {
    let words = |error: crate::shim::ConnectionError| chain(&error);
    let mut shim = Connection::open(&target.pod_dir).await.map_err(words)?;
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let request = Request::Exec {
        container: target.container.name.clone(),
        argv,
        timeout_ms,
    };
    match shim.request(&request).await.map_err(words)? {
        Response::Exec {
            exit_code: 0,
            timed_out: false,
            ..
        } => Ok(()),
        Response::Exec {
            timed_out: true, ..
        } => Err(format!("command timed out after {} s", timeout.as_secs())),
        Response::Exec {
            exit_code, output, ..
        } => Err(format!("exit code {exit_code}: {}", output.trim())),
        _ => Err("the shim answered something else than was asked".to_owned()),
    }
}

/// The port a probe means: a number, or the name of one of the container's ports.
fn port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports
                .find(|port| port.name.as_ref() == Some(name))
                .map(|port| port.container_port);
            match named.or_else(|| name.parse().ok()) {
                Some(number) => number,
                None => return Err(format!("couldn't find port {name:?} in the container")),
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("{number} is not a port"))
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    TcpStream::connect((host, port))
        .await
        .map_err(|error| format!("dial tcp {host}:{port}: {error}"))
}

async fn http(target: &Target, get: &HTTPGetAction) -> Result<(), String> {
    let port = port(&target.container, &get.port)?;
    let host = get
        .host
        .as_deref()
        .filter(|host| !host.is_empty())
        .unwrap_or(&target.address);
    let mut stream = connect(host, port).await?;
    let request = request(get, host, port)?;
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|error| error.to_string())?;
    let mut answer = Vec::with_capacity(STATUS_LINE_MAX);
    while answer.len() < STATUS_LINE_MAX && !answer.contains(&b'\n') {
        let read = stream
            .read_buf(&mut answer)
            .await
            .map_err(|error| error.to_string())?;
        if read == 0 {
            break;
        }
    }
    match status_code(&answer) {
        Some(code) if (200..400).contains(&code) => Ok(()),
        Some(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
        None => Err("HTTP probe failed: the answer is not HTTP".to_owned()),
    }
}

fn request(get: &HTTPGetAction, host: &str, port: u16) -> Result<String, String> {
    let path = get
        .path
        .as_deref()
        .filter(|path| !path.is_empty())
        .unwrap_or("/");
    let slash = if path.starts_with('/') { "" } else { "/" };
    let own = || get.http_headers.iter().flatten();
    let mut headers: Vec<String> = own()
        .map(|header| format!("{}: {}\r\n", header.name, header.value))
        .collect();
    if !own().any(|header| header.name.eq_ignore_ascii_case("host")) {
        headers.push(format!("Host: {host}:{port}\r\n"));
    }
    let headers = headers.concat();
    let breaks = |text: &str| text.contains(['\r', '\n', '\0']);
    let header_breaks = own().any(|header| breaks(&header.name) || breaks(&header.value));
    if breaks(path) || path.contains(' ') || header_breaks {
        return Err("the probe's path or headers cannot be sent".to_owned());
    }
    Ok(format!(
        "GET {slash}{path} HTTP/1.1\r\n{headers}User-Agent: kube-probe/1.34\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    ))
}

/// The code of `HTTP/1.1 200 OK`.
fn status_code(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.split_whitespace();
    words.next()?.strip_prefix("HTTP/")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_by_number_and_name() {
        let container: Container = serde_json::from_value(
            json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}),
        )
        .expect("a container");
        let named = |name: &str| IntOrString::String(name.to_owned());
        for (wanted, expected) in [
            (IntOrString::Int(80), Some(80)),
            (named("web"), Some(8080)),
            (named("9000"), Some(9000)),
            (named("none"), None),
            (IntOrString::Int(0), None),
            (IntOrString::Int(70000), None),
        ] {
            assert_eq!(port(&container, &wanted).ok(), expected, "{wanted:?}");
        }
    }

    #[test]
    fn status_lines() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\nX: y\r\n", Some(200)),
            ("HTTP/1.0 404", Some(404)),
            ("SSH-2.0-OpenSSH", None),
            ("", None),
            ("HTTP/1.1 abc", None),
        ] {
            assert_eq!(status_code(answer.as_bytes()), expected, "{answer}");
        }
    }

    #[test]
    fn a_request_cannot_be_smuggled() {
        let get = |path: &str, value: &str| HTTPGetAction {
            path: Some(path.to_owned()),
            http_headers: serde_json::from_value(json!([{"name": "X", "value": value}]))
                .expect("headers"),
            port: IntOrString::Int(80),
            ..HTTPGetAction::default()
        };
        assert!(
            request(&get("health", "1"), "h", 80)
                .expect("fine")
                .starts_with("GET /health HTTP/1.1\r\nX: 1\r\nHost: h:80\r\n")
        );
        assert!(request(&get("/a\r\nEvil: 1", "1"), "h", 80).is_err());
        assert!(request(&get("/", "1\r\nEvil: 1"), "h", 80).is_err());
    }
}

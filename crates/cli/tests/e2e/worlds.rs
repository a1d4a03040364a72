//! The same commands on the engine, on a cluster by its context, and under kubectl's name. The cluster here is an engine that is
//! reached as one; a real Kubernetes has tests of its own.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Engine, have, said};

/// Where the engine is and who we are to it.
fn access(engine: &Engine) -> (String, String, String) {
    let text = std::fs::read_to_string(engine.data_dir().join("kubeconfig")).expect("a kubeconfig");
    let field = |name: &str| {
        let found = text.lines().find_map(|line| line.trim().strip_prefix(name));
        found.expect("the field").trim().to_owned()
    };
    (
        field("server:"),
        field("certificate-authority-data:"),
        field("token:"),
    )
}

/// A kubeconfig as a person has it: several contexts, one of them right.
fn kubeconfig(engine: &Engine, other: &Engine) -> String {
    let (server, authority, token) = access(engine);
    let (_, strange, _) = access(other);
    let cluster = |name: &str, server: &str, authority: &str| json!({"name": name, "cluster": {"server": server, "certificate-authority-data": authority}});
    let context = |name: &str, cluster: &str, user: &str| json!({"name": name, "context": {"cluster": cluster, "user": user}});
    let mut lab = context("lab", "here", "ada");
    lab["context"]["namespace"] = json!("default");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [
            cluster("here", &server, &authority),
            cluster("changed", &server, &strange),
            // A port that nobody listens on.
            cluster("away", "https://127.0.0.1:9", &authority),
        ],
        "users": [{"name": "ada", "user": {"token": token}}, {"name": "eve", "user": {"token": "expired"}}],
        "contexts": [
            lab, context("stranger", "here", "eve"), context("changed", "changed", "ada"),
            context("away", "away", "ada"), context("elsewhere", "here", "ada"),
        ]
    });
    engine.write("kubeconfig.json", &config.to_string())
}

/// `stoke` without an engine of its own.
fn stoke(config: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoke"));
    command
        .args(arguments)
        .env("KUBECONFIG", config)
        .env("NO_COLOR", "1")
        .env_remove("STOKE_DATA_DIR")
        .env_remove("STOKE_LOG");
    command.output().expect("stoke runs")
}

fn good(config: &str, arguments: &[&str]) -> (String, String) {
    let output = stoke(config, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    (
        String::from_utf8(output.stdout).expect("UTF-8"),
        String::from_utf8(output.stderr).expect("UTF-8"),
    )
}

#[test]
fn a_cluster_is_reached_by_its_context_and_every_command_says_so() {
    let engine = Engine::start();
    let other = Engine::start();
    let config = kubeconfig(&engine, &other);
    let (server, _, _) = access(&engine);
    let line = format!("cluster lab ({server}), namespace default");
    let on = |arguments: &[&str]| {
        let mut all = vec!["--context", "lab"];
        all.extend_from_slice(arguments);
        let (out, talk) = good(&config, &all);
        assert_eq!(talk.lines().next(), Some(line.as_str()), "{arguments:?}");
        assert_eq!(talk.matches(&line).count(), 1, "{arguments:?}: {talk}");
        (out, talk)
    };

    let (out, _) = on(&[
        "run",
        "--name",
        "far",
        "--image",
        "any",
        "--",
        "sh",
        "-c",
        "echo hello; pwd",
    ]);
    assert!(out.starts_with("hello\n"), "{out}");
    let job: Value =
        serde_json::from_str(&on(&["get", "job", "far", "-o", "json"]).0).expect("JSON");
    assert_eq!(job["spec"]["image"], "any");
    for lent in ["workingDir", "env"] {
        assert_eq!(
            job["spec"][lent],
            Value::Null,
            "nothing of the shell goes to a cluster"
        );
    }
    assert!(on(&["get"]).0.contains("Complete"));
    assert!(on(&["logs", "far"]).0.starts_with("hello\n"));
    assert!(on(&["describe", "far"]).0.contains("far-1-0"));
    assert!(on(&["explain", "far"]).0.contains("far"));
    let (top, talk) = on(&["top", "--once"]);
    assert!(top.contains("far"), "{top}");
    assert!(talk.contains("no metrics API"), "{talk}");
    on(&["suspend", "far"]);
    on(&["delete", "far", "--wait"]);
    let (_, quiet) = good(&config, &["--context", "lab", "-q", "get", "nodes"]);
    assert_eq!(quiet, "");

    let failed = stoke(
        &config,
        &[
            "--context",
            "lab",
            "run",
            "--image",
            "any",
            "--",
            "sh",
            "-c",
            "exit 7",
        ],
    );
    assert_eq!(failed.status.code(), Some(7), "{}", said(&failed));
    assert!(
        said(&failed).contains("stoke --context lab explain"),
        "a hint goes to the same cluster: {}",
        said(&failed)
    );
    let without = stoke(&config, &["--context", "lab", "run", "--", "true"]);
    assert_eq!(without.status.code(), Some(5), "{}", said(&without));
    assert!(
        said(&without).contains("--image IMAGE"),
        "{}",
        said(&without)
    );
}

#[test]
fn a_bad_day_is_told_with_the_context_the_server_and_the_next_step() {
    let engine = Engine::start();
    let other = Engine::start();
    let config = kubeconfig(&engine, &other);
    for (context, code, told) in [
        (
            "away",
            3,
            &["cluster away (https://127.0.0.1:9)", "Connection refused"][..],
        ),
        (
            "stranger",
            3,
            &["does not accept these credentials (401)", "auth whoami"],
        ),
        ("changed", 3, &["certificate of cluster changed"]),
        ("lap", 2, &["no context \"lap\"", "--context lab"]),
    ] {
        for arguments in [
            &["get"][..],
            &["logs", "-f", "x"],
            &["run", "--image", "i", "--", "true"],
        ] {
            let mut all = vec!["--context", context];
            all.extend_from_slice(arguments);
            let output = stoke(&config, &all);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{all:?} {}",
                said(&output)
            );
            for words in told {
                assert!(
                    said(&output).contains(words),
                    "{all:?}: {words}: {}",
                    said(&output)
                );
            }
            assert!(!said(&output).contains("expired\""), "no token is told");
        }
    }
    for arguments in [&["up"][..], &["down"], &["kubeconfig"]] {
        let mut all = vec!["--context", "lab"];
        all.extend_from_slice(arguments);
        let output = stoke(&config, &all);
        assert_eq!(output.status.code(), Some(2), "{all:?} {}", said(&output));
        assert!(said(&output).contains("this machine"), "{}", said(&output));
    }
    // The engine that a variable names goes before the current context, and the command line before both.
    let (_, talk) = {
        let output = engine
            .command(&["get"])
            .env("KUBECONFIG", &config)
            .output()
            .expect("stoke runs");
        (
            output.status,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert!(talk.contains("(this machine)"), "{talk}");
    let named = engine
        .command(&["--kubeconfig", &config, "get"])
        .output()
        .expect("stoke runs");
    assert!(said(&named).contains("cluster lab"), "{}", said(&named));
}

#[test]
fn kubectl_finds_us_as_its_plugin() {
    if !have("kubectl") {
        eprintln!("skipped: no kubectl");
        return;
    }
    let engine = Engine::start();
    let other = Engine::start();
    let config = kubeconfig(&engine, &other);
    let folder = engine.folder().join("bin");
    std::fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stoke"), folder.join("kubectl-stoke"))
        .expect("a link");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        [folder]
            .into_iter()
            .chain(std::env::split_paths(&path).collect::<Vec<PathBuf>>()),
    );
    let path = path.expect("a path");
    let kubectl = |arguments: &[&str]| {
        let mut command = Command::new("kubectl");
        command
            .arg("stoke")
            .args(arguments)
            .env("PATH", &path)
            .env("KUBECONFIG", &config)
            .env("NO_COLOR", "1");
        // An engine that a variable names is not what kubectl talks to.
        command.env("STOKE_DATA_DIR", other.data_dir());
        command.output().expect("kubectl runs")
    };
    let listed = kubectl(&["get", "nodes"]);
    assert!(listed.status.success(), "{}", said(&listed));
    assert!(said(&listed).contains("cluster lab"), "{}", said(&listed));
    let chosen = kubectl(&["get", "nodes", "--context", "elsewhere", "-n", "vision"]);
    assert!(
        said(&chosen).contains("cluster elsewhere") && said(&chosen).contains("namespace vision"),
        "{}",
        said(&chosen)
    );
    let help = kubectl(&["run", "--help"]);
    assert!(
        said(&help).contains("Usage: kubectl stoke run"),
        "{}",
        said(&help)
    );
    let missing = kubectl(&["logs", "nobody"]);
    assert_eq!(missing.status.code(), Some(4), "{}", said(&missing));
    assert!(
        said(&missing).contains("kubectl stoke run"),
        "{}",
        said(&missing)
    );
    let failed = kubectl(&[
        "run",
        "--image",
        "any",
        "--",
        "sh",
        "-c",
        "echo out; exit 3",
    ]);
    assert_eq!(failed.status.code(), Some(3), "{}", said(&failed));
    assert_eq!(failed.stdout, b"out\n");
    // The engine of the variable is reached only when it is asked for by flag.
    let local = kubectl(&[
        "--data-dir",
        other.data_dir().to_str().expect("UTF-8"),
        "get",
        "nodes",
    ]);
    assert!(said(&local).contains("(this machine)"), "{}", said(&local));
}

//! `stoke sched replay`, as it is typed.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const NODES: &str = "\
sn,cpu_milli,memory_mib,gpu,model
node-a,16000,65536,2,V100
node-b,16000,65536,2,T4
";
const PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
half,1000,1024,1,500,
whole,1000,1024,1,1000,T4
pair,2000,2048,2,1000,V100|T4
none,1000,1024,0,0,
huge,1000,1024,8,1000,
";
/// Six GPUs are asked for of four, and then eight more that no node has.
const ORDER: &str = "0\n0\n3\n1\n2\n1\n1\n4\n";

struct Files(TempDir);

impl Files {
    fn new(nodes: &str, pods: &str, order: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        for (name, text) in [
            ("nodes.csv", nodes),
            ("pods.csv", pods),
            ("order.txt", order),
        ] {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        Self(folder)
    }

    fn replay(&self, more: &[&str]) -> Output {
        let path = |name: &str| self.0.path().join(name).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoke"));
        command.args(["sched", "replay", "--nodes", &path("nodes.csv")]);
        command.args(["--pods", &path("pods.csv"), "--order", &path("order.txt")]);
        // Neither an engine nor a cluster is needed, nor looked for.
        command
            .args(more)
            .env_clear()
            .env("HOME", Path::new("/nonexistent"));
        command.output().expect("stoke runs")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_policy_gives_the_figures() {
    let files = Files::new(NODES, PODS, ORDER);
    for policy in ["stokehold", "fgd", "bestfit", "packing", "random"] {
        let output = files.replay(&["--policy", policy, "-o", "json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let figures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let keys = |value: &Value| {
            let map = value.as_object().expect("a map");
            map.keys().map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys(&figures), "decision_us failed_pods policy unallocated");
        assert_eq!(figures["policy"], policy);
        assert_eq!(keys(&figures["decision_us"]), "p50 p99");
        assert_eq!(keys(&figures["unallocated"]), "100 110 130 50 80 95");
        assert_eq!(
            figures["unallocated"]["50"], 50.0,
            "two halves and a whole of four"
        );
        assert!(figures["failed_pods"].as_u64() >= Some(1), "{figures}");
        let again = files.replay(&["--policy", policy, "-o", "json"]);
        let again: Value = serde_json::from_slice(&again.stdout).expect("JSON");
        assert_eq!(
            again["unallocated"], figures["unallocated"],
            "{policy} is repeatable"
        );
    }
}

#[test]
fn people_get_a_table() {
    let output = Files::new(NODES, PODS, ORDER).replay(&[]);
    let told = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for word in ["ARRIVED", "UNALLOCATED", "130%", "stokehold:", "p99"] {
        assert!(told.contains(word), "no {word} in {told}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_shown_at_its_line() {
    let bad = |nodes: &str, pods: &str, order: &str| {
        let output = Files::new(nodes, pods, order).replay(&[]);
        (output.status.code(), text(&output.stderr))
    };
    let table = [
        (bad("sn,cpu_milli\n", PODS, ORDER), "nodes.csv, line 1"),
        (bad("", PODS, ORDER), "nodes.csv, line 1"),
        (
            bad(&NODES.replace("2,T4", "two,T4"), PODS, ORDER),
            "nodes.csv, line 3",
        ),
        (
            bad(NODES, &PODS.replace("500", "-500"), ORDER),
            "pods.csv, line 2",
        ),
        (bad(NODES, PODS, "0\n99\n"), "order.txt, line 2"),
        (bad(NODES, PODS, "first\n"), "order.txt, line 1"),
    ];
    for ((code, told), expected) in table {
        assert_eq!(code, Some(5), "{told}");
        assert!(told.contains(expected), "{expected}: {told}");
        assert!(told.contains("stoke sched replay --help"), "{told}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_stoke"))
        .args([
            "sched", "replay", "--nodes", "/nowhere", "--pods", "/nowhere", "--order", "/nowhere",
        ])
        .output()
        .expect("stoke runs");
    assert_eq!(missing.status.code(), Some(4), "{}", text(&missing.stderr));
    assert!(text(&missing.stderr).contains("cannot read /nowhere"));
    let unknown = Files::new(NODES, PODS, ORDER).replay(&["--policy", "magic"]);
    assert_eq!(unknown.status.code(), Some(2));
}

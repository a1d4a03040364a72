//! `stoke memory backtest`, as it is typed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const HEAD: &str = "task,start_s,duration_s,peak_bytes,input_bytes,requested_bytes\n";

fn backtest(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoke"));
    // Neither an engine nor a cluster is needed, nor looked for.
    command
        .args(["memory", "backtest"])
        .args(arguments)
        .env_clear()
        .env("HOME", Path::new("/nonexistent"));
    command.output().expect("stoke runs")
}

fn file(folder: &TempDir, name: &str, text: &str) -> String {
    let path: PathBuf = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// Forty runs of an hour and a gibibyte, of which 28 are replayed.
fn steady() -> String {
    let mut text = HEAD.to_owned();
    for start in 0..40 {
        let _ = writeln!(text, "sort,{start},3600,{},0,{}", 1_u64 << 30, 8_u64 << 30);
    }
    text
}

#[test]
fn programs_get_every_policy_summed_over_the_files() {
    let folder = TempDir::new().expect("a folder");
    let one = file(&folder, "one.csv", &steady());
    let two = file(&folder, "two.csv", &steady());
    let output = backtest(&[&one, &two, "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let policies = report["policies"].as_array().expect("policies");
    let names: Vec<&str> = policies
        .iter()
        .filter_map(|score| score["policy"].as_str())
        .collect();
    assert_eq!(names, ["user", "vpa", "krr", "maxseen", "stokehold"]);
    for score in policies {
        assert_eq!(
            score["tasks"], 2,
            "a task of one file is not that of another"
        );
        assert_eq!(
            (&score["failed_attempts"], &score["tasks_failed"]),
            (&0.into(), &0.into())
        );
    }
    let waste = |index: usize| policies[index]["waste_gib_h"].as_f64().expect("a number");
    assert!((waste(0) - 2.0 * 28.0 * 7.0).abs() < 1e-9);
    assert!((waste(2) - 2.0 * 28.0 * 0.15).abs() < 1e-6);
    assert!(waste(4) < waste(2));
}

#[test]
fn people_get_a_table() {
    let folder = TempDir::new().expect("a folder");
    let output = backtest(&[&file(&folder, "runs.csv", &steady())]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.starts_with("POLICY "), "{text}");
    assert_eq!(text.matches("least waste").count(), 1, "{text}");
}

#[test]
fn a_bad_file_is_told_by_name_and_line() {
    let folder = TempDir::new().expect("a folder");
    let good = file(&folder, "good.csv", &steady());
    let bad = file(
        &folder,
        "bad.csv",
        &format!("{HEAD}sort,1,2,3,4,5\nsort,1,soon,3,4,5\n"),
    );
    let output = backtest(&[&good, &bad]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(
        said.contains(&format!(
            "{bad}, line 3: duration_s must be a number of 0 or more, not \"soon\""
        )),
        "{said}"
    );
    let output = backtest(&["/nonexistent/runs.csv"]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(
        output.stdout.is_empty() && said.contains("/nonexistent/runs.csv"),
        "{said}"
    );
    assert_eq!(backtest(&[]).status.code(), Some(2));
}

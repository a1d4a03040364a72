//! The shim for real: this program is its own `stoke`, so every pod here is run by real processes.
//!
//! `cargo test -p stoke-node --test shim [FILTER]`. What the machine does not permit is skipped with a line that says so.

mod lifecycle;
mod logging;
mod memory;
mod mounts;
mod pod;
mod survival;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use stoke_node::shim;

/// One test: a function that panics, or says why it was not run.
pub struct Case {
    pub name: &'static str,
    pub run: fn() -> Outcome,
    /// Run it once more as an ordinary user.
    pub also_as_nobody: bool,
}

pub enum Outcome {
    Passed,
    Skipped(String),
}

pub const fn case(name: &'static str, run: fn() -> Outcome) -> Case {
    Case {
        name,
        run,
        also_as_nobody: false,
    }
}

/// A case that must hold for an ordinary user too.
pub const fn case_for_all(name: &'static str, run: fn() -> Outcome) -> Case {
    Case {
        name,
        run,
        also_as_nobody: true,
    }
}

const NOBODY: u32 = 65534;
/// Set for the children that run one case as an ordinary user.
const ONE_CASE: &str = "--one-case";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["shim", "--detach", dir] => shim::main(Path::new(dir), true),
        ["shim", dir] => shim::main(Path::new(dir), false),
        ["shim-container"] => shim::container_main(),
        ["allocate", mebibytes, then] => memory::allocate(mebibytes, then),
        ["count", last] => logging::count(last),
        ["spawn-and-die", dir] => survival::spawn_and_die(Path::new(dir)),
        [ONE_CASE, name] => run_one(name),
        _ => run_all(&words),
    }
}

fn cases() -> impl Iterator<Item = &'static Case> {
    [
        lifecycle::CASES,
        logging::CASES,
        memory::CASES,
        mounts::CASES,
        survival::CASES,
    ]
    .into_iter()
    .flatten()
}

fn run_one(name: &str) -> ExitCode {
    let Some(case) = cases().find(|case| case.name == name) else {
        return ExitCode::FAILURE;
    };
    if report(name, case.run) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_all(words: &[&str]) -> ExitCode {
    let filters: Vec<&&str> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(**filter));
    if words.contains(&"--list") {
        cases().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let is_root = rustix::process::geteuid().is_root();
    let mut failed = Vec::new();
    for case in cases().filter(|case| wanted(case.name)) {
        if !report(case.name, case.run) {
            failed.push(case.name.to_owned());
        }
        if case.also_as_nobody && is_root && !report_as_nobody(case.name) {
            failed.push(format!("{} (as nobody)", case.name));
        }
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        eprintln!("\nfailed: {}", failed.join(", "));
        ExitCode::FAILURE
    }
}

fn report(name: &str, run: fn() -> Outcome) -> bool {
    let began = Instant::now();
    let user = if rustix::process::geteuid().is_root() {
        ""
    } else {
        " (as nobody)"
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Outcome::Passed) => println!(
            "test {name}{user} ... ok ({} ms)",
            began.elapsed().as_millis()
        ),
        Ok(Outcome::Skipped(why)) => println!("test {name}{user} ... skipped: {why}"),
        Err(_) => {
            println!("test {name}{user} ... FAILED");
            return false;
        }
    }
    true
}

fn report_as_nobody(name: &str) -> bool {
    use std::os::unix::process::CommandExt as _;
    let exe = std::env::current_exe().expect("we run");
    let child = Command::new(exe)
        .args([ONE_CASE, name])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .status();
    match child {
        Ok(status) => status.success(),
        Err(error) => {
            println!("test {name} (as nobody) ... skipped: cannot be started as nobody: {error}");
            true
        }
    }
}

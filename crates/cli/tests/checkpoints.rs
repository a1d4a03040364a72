//! `stoke heed` as workers are started through it: one attempt writes at a time, and all go on from the same checkpoint.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn heed(directory: &Path, attempt: u32, rank: u32, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoke"));
    command
        .arg("heed")
        .arg("--checkpoints")
        .arg(directory)
        .args(["--job", "uid"])
        .args(["--attempt", &attempt.to_string()])
        .args(["--rank", &rank.to_string()])
        .args(["--", "sh", "-c", script])
        .env("STOKE_RESUME_FROM", "stale")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn save(directory: &Path, name: &str) {
    let path = directory.join(name);
    fs::create_dir(&path).expect("a directory");
    fs::write(path.join("state"), "state").expect("a file");
    fs::write(path.join("complete"), "{}").expect("a marker");
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

fn ends(mut child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("output")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As another node would, whose locks do not reach here.
fn record(directory: &Path, attempt: u32) {
    let holder = format!(r#"{{"job": "uid", "attempt": {attempt}, "boot": "another"}}"#);
    fs::write(directory.join(".stokehold/attempt"), holder).expect("a record");
}

#[test]
fn who_waits_for_others_ends_when_told_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let waiting = heed(dir.path(), 1, 1, "echo begun").spawn();
    let mut waiting = waiting.expect("a worker without its first");
    let mut line = String::new();
    let said = waiting.stderr.take().expect("what it says");
    BufReader::new(said).read_line(&mut line).expect("a line");
    assert!(line.contains("waits for the first worker"), "{line}");
    let pid = waiting.id().to_string();
    let told = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(told.expect("kill runs").success());
    let ended = ends(waiting);
    // By itself: a container's first process does not end of the signal.
    assert_eq!(ended.status.code(), Some(143), "{ended:?}");
    assert_eq!(text(&ended.stdout), "");
}

#[test]
fn all_workers_go_on_from_what_the_first_found() {
    const SAYS: &str = "echo from ${STOKE_RESUME_FROM-nothing}";
    let dir = tempfile::tempdir().expect("a directory");
    let other = heed(dir.path(), 1, 1, SAYS)
        .spawn()
        .expect("the second worker");
    let first = ends(heed(dir.path(), 1, 0, SAYS).spawn().expect("the first"));
    assert_eq!(text(&first.stdout), "from nothing\n", "{first:?}");
    save(dir.path(), "step-5");
    let other = ends(other);
    assert_eq!(text(&other.stdout), "from nothing\n", "{other:?}");
    for rank in [0, 1] {
        let next = ends(heed(dir.path(), 2, rank, SAYS).spawn().expect("a worker"));
        let expected = format!("from {}\n", dir.path().join("step-5").display());
        assert_eq!(text(&next.stdout), expected, "{next:?}");
    }
    let late = ends(heed(dir.path(), 1, 0, SAYS).spawn().expect("a worker"));
    assert_eq!(
        (late.status.code(), text(&late.stdout)),
        (Some(83), String::new())
    );
    assert!(
        text(&late.stderr).contains("attempt 2 has the checkpoints"),
        "{late:?}"
    );
}

/// The lock is the program's, and that of whatever it started: not only of who took it.
#[test]
fn a_later_attempt_waits_until_the_last_process_of_an_earlier_one_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "sleep 600 & echo $!; exit 0";
    let mut first = heed(dir.path(), 1, 0, script).spawn().expect("a worker");
    let left_over = first_line(&mut first);
    assert!(first.wait().expect("ended").success());
    let mut second = heed(dir.path(), 2, 0, "echo begun")
        .spawn()
        .expect("a worker");
    let mut said = String::new();
    BufReader::new(second.stderr.as_mut().expect("its errors"))
        .read_line(&mut said)
        .expect("a line");
    assert!(said.contains("processes of attempt 1 still run"), "{said}");
    assert!(matches!(second.try_wait(), Ok(None)), "it waits");
    let killed = Command::new("kill").args(["-9", &left_over]).status();
    assert!(killed.expect("kill runs").success());
    let second = ends(second);
    assert_eq!(text(&second.stdout), "begun\n", "{second:?}");
}

#[test]
fn a_program_is_killed_with_all_it_started_when_a_later_attempt_has_taken_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "trap '' TERM; sleep 600 & echo $!; wait";
    let mut first = heed(dir.path(), 1, 0, script)
        .process_group(0)
        .spawn()
        .expect("a worker");
    let child = first_line(&mut first);
    record(dir.path(), 2);
    let ended = ends(first);
    assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
    assert!(
        text(&ended.stderr).contains("attempt 1 ends: attempt 2 writes"),
        "{ended:?}"
    );
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}

/// The first process of a container hears no signal from within it, SIGKILL included.
#[test]
fn so_is_one_that_is_the_first_of_its_container() {
    let namespaced = |command: &mut Command| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        unshare.arg(command.get_program()).args(command.get_args());
        unshare
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        unshare
    };
    let works = namespaced(&mut Command::new("true")).status();
    if !works.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no process namespace can be made here");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let script = "echo begun; while true; do : > $0/written; done";
    let script = script.replace("$0", dir.path().to_str().expect("UTF-8"));
    let mut first = namespaced(&mut heed(dir.path(), 1, 0, &script))
        .spawn()
        .expect("a worker");
    assert_eq!(first_line(&mut first), "begun");
    record(dir.path(), 2);
    // What it does has no end of its own. How `unshare` tells of it differs.
    let ended = ends(first);
    assert!(!ended.status.success(), "{ended:?}");
    assert!(
        text(&ended.stderr).contains("attempt 1 ends: attempt 2 writes"),
        "{ended:?}"
    );
}

#[test]
fn a_volume_that_is_not_there_or_cannot_be_written_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = ends(
        heed(&dir.path().join("no"), 1, 0, "true")
            .spawn()
            .expect("a worker"),
    );
    assert_eq!(missing.status.code(), Some(84), "{missing:?}");
    assert!(text(&missing.stderr).contains("is its volume mounted there?"));
    // One that is read-only, or full, for everyone: by a mount of this process tree alone.
    for (what, options, said) in [
        ("read-only", "ro", "the volume is read-only"),
        ("full", "size=4k,nr_inodes=2", "the volume is full"),
    ] {
        let point = dir.path().join(what);
        fs::create_dir(&point).expect("a directory");
        // The second inode of the full one is a directory's.
        let fill = if what == "full" {
            "mkdir $0/other;"
        } else {
            ""
        };
        let script =
            format!("mount -t tmpfs -o {options} tmpfs $0 && {{ {fill} \"$@\"; }} || exit $?");
        let inner = heed(&point, 1, 0, "true");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(&point);
        command.arg(inner.get_program()).args(inner.get_args());
        let ended = command.output().expect("unshare runs");
        if text(&ended.stderr).contains("permitted") || text(&ended.stderr).contains("denied") {
            eprintln!("skipped: nothing can be mounted here");
            return;
        }
        assert_eq!(ended.status.code(), Some(84), "{what}: {ended:?}");
        assert!(text(&ended.stderr).contains(said), "{what}: {ended:?}");
    }
}

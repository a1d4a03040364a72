//! `stoke heed` where copies of checkpoints are wanted: it stays beside its program, and ends as the program does.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// What a program does to save a step.
const SAVE: &str = r#"save() { mkdir .w; echo "$1" > .w/state; echo '{}' > .w/complete; mv .w "step-$1"; }
cd "$CKPT"
"#;

struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        let scene = Self(tempfile::tempdir().expect("a directory"));
        fs::create_dir(scene.path("ckpt")).expect("a directory");
        scene
    }

    fn path(&self, below: &str) -> std::path::PathBuf {
        self.0.path().join(below)
    }

    fn start(&self, attempt: u32, script: &str) -> Child {
        let script = format!("{SAVE}{script}");
        Command::new(env!("CARGO_BIN_EXE_stoke"))
            .arg("heed")
            .arg("--checkpoints")
            .arg(self.path("ckpt"))
            .args(["--job", "uid-1", "--rank", "0", "--keep", "2"])
            .args(["--attempt", &attempt.to_string()])
            .args([
                "--upload",
                &format!("file://{}/store", self.0.path().display()),
            ])
            .args(["--upload-place", "ns/j", "--grace", "20"])
            .args(["--", "sh", "-c", &script])
            .env("CKPT", self.path("ckpt"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("stoke heed")
    }

    fn copies(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("store/ns/j")).into_iter().flatten();
        let whole = entries
            .flatten()
            .filter(|it| it.path().join(".stoke-manifest.json").exists());
        let mut names: Vec<String> = whole
            .map(|it| it.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
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

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_is_written_last_is_copied_though_the_program_is_over_and_its_code_is_told() {
    let scene = Scene::new();
    for (attempt, code) in [(1, 0), (2, 7)] {
        let step = attempt * 10;
        let ended = ends(scene.start(attempt, &format!("save {step}; exit {code}")));
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        let copy = format!("s{step}.a{attempt}.uid.step-{step}");
        assert!(scene.copies().contains(&copy), "{ended:?}");
    }
    let killed = ends(scene.start(3, "kill -9 $$"));
    assert_eq!(killed.status.code(), Some(137), "{killed:?}");
    let missing = ends(scene.start(4, "exec /no/such/program"));
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
}

#[test]
fn who_is_told_to_end_tells_the_program_once_and_leaves_nothing_running() {
    let scene = Scene::new();
    let script = "trap 'echo told; save 5; exit 3' TERM
(trap '' TERM; exec sleep 600) & echo $!
while true; do sleep 0.05; done";
    let mut child = scene.start(1, script);
    let orphan = first_line(&mut child);
    let kill = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(kill.expect("kill runs").success());
    let ended = ends(child);
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    assert_eq!(text(&ended.stdout).matches("told").count(), 1, "{ended:?}");
    assert_eq!(scene.copies(), ["s5.a1.uid.step-5"]);
    let stat = fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}

#[test]
fn all_go_on_from_the_copy_when_the_volume_is_gone() {
    let scene = Scene::new();
    ends(scene.start(1, "save 1; save 2"));
    // Whether the first was copied before there was a newer one is a matter of time.
    let copies = scene.copies();
    assert_eq!(copies.last().map(String::as_str), Some("s2.a1.uid.step-2"));
    fs::remove_dir_all(scene.path("ckpt")).expect("removed");
    fs::create_dir(scene.path("ckpt")).expect("a new one");
    let says = "echo from $STOKE_RESUME_FROM; cat $STOKE_RESUME_FROM/state";
    let ended = ends(scene.start(2, says));
    let expected = format!("from {}\n2\n", scene.path("ckpt/step-2").display());
    assert_eq!(text(&ended.stdout), expected, "{ended:?}");
    let other = Command::new(env!("CARGO_BIN_EXE_stoke"))
        .arg("heed")
        .arg("--checkpoints")
        .arg(scene.path("ckpt"))
        .args(["--job", "uid-1", "--rank", "1", "--attempt", "2"])
        .args(["--", "sh", "-c", says])
        .output()
        .expect("stoke heed");
    assert_eq!(text(&other.stdout), expected, "{other:?}");
    assert!(Path::new(&scene.path("ckpt/step-2/complete")).exists());
}

//! The Python package, by its own tests.

use std::path::Path;
use std::process::Command;

#[test]
fn the_python_package_passes_its_own_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = |with: &str| {
        let script = root.join("scripts/python-with.sh");
        let said = Command::new(script).arg(with).output().ok()?;
        let path = String::from_utf8(said.stdout).ok()?;
        said.status.success().then(|| path.trim().to_owned())
    };
    // With PyTorch where it is there; the tests that need it skip themselves.
    let Some(python) = found("torch").or_else(|| found("json")) else {
        eprintln!("skipped: there is no Python here");
        return;
    };
    let package = root.join("python/stokehold");
    let tests = Command::new(python)
        .args(["-m", "unittest", "discover", "-s", "tests"])
        .current_dir(&package)
        .env("PYTHONPATH", package.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("the tests begin");
    let said = String::from_utf8_lossy(&tests.stderr);
    assert!(tests.status.success(), "{said}");
    assert!(said.contains("Ran "), "{said}");
}

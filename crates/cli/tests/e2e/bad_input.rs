//! Bad input: a person is told the line and the next thing to type, and the engine lives on.

use crate::support::{Engine, said};

#[test]
fn mistakes_in_a_file_are_shown_where_they_are() {
    let engine = Engine::start();
    let job = |body: &str| {
        format!(
            "apiVersion: stokehold.dev/v1alpha1\nkind: TrainJob\nmetadata: {{name: bad}}\nspec:\n{body}"
        )
    };
    for (body, line, told) in [
        ("  command: [ls]\n  replicas: 2\n", 6, "workers"),
        ("  command: [ls]\n  worker: 2\n", 6, "workers"),
        ("  command: [ls]\n  backoffLimit: 2\n", 6, "retries"),
        ("  command: [ls]\n  workers: two\n", 6, "workers"),
        ("  command: [ls]\n  workers: 0\n", 6, "workers"),
        ("  command: [ls]\n  workers: -1\n", 6, "workers"),
        ("  command: [ls]\n  memory: {limit: 5 GB}\n", 6, "limit"),
        (
            "  command: [ls]\n  elastic: {min: 2, max: 4}\n",
            6,
            "elastic",
        ),
        ("  command: [ls\n  workers: 2\n", 6, ""),
    ] {
        let file = engine.write("bad.yaml", &job(body));
        let output = engine.try_stoke(&["run", &file]);
        let told_at = format!("bad.yaml:{line}");
        assert!(!output.status.success(), "{body}");
        assert!(
            said(&output).contains(&told_at) && said(&output).contains(told),
            "{body}: {}",
            said(&output)
        );
    }
    let file = engine.write(
        "good.yaml",
        &job("  command: [\"true\"]\n").replace("bad", "good"),
    );
    assert!(
        engine.try_stoke(&["run", &file]).status.success(),
        "the engine lives on"
    );
    let again = engine.try_stoke(&["run", &file]);
    assert!(
        !again.status.success() && said(&again).contains("already"),
        "{}",
        said(&again)
    );
}

#[test]
fn commands_without_an_engine_say_how_to_start_one() {
    let engine = Engine::start();
    engine.stoke(&["down"]);
    for arguments in [
        &["get"][..],
        &["run", "--", "true"],
        &["logs", "x"],
        &["top", "--once"],
    ] {
        let output = engine.try_stoke(arguments);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert!(said(&output).contains("stoke up"), "{}", said(&output));
    }
    engine.up();
    let missing = engine.try_stoke(&["explain", "nobody"]);
    assert_eq!(missing.status.code(), Some(4), "{}", said(&missing));
}

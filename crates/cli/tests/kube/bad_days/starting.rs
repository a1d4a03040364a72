//! Pods that were made and do not start: no such image, a node that gets no further, a scheduler that will not have them where they belong.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use serde_json::json;

use super::{Day, operator, says};
use crate::release;
use crate::support::{eventually, testbed, testbed_with_nodes};
use crate::workers::{self, host_programs};

#[test]
fn a_gang_that_does_not_start_in_time_is_given_back_and_placed_anew() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let day = Day::begin(&testbed, "bad-start");
    let (_operators, number) = operator(&testbed, &["--start-deadline", "20s"]);
    let never = json!({"template": {"metadata": {"annotations": {"stokehold.dev/testbed-never-starts": "true"}}}});
    day.submit("gang", 2, &never);
    let status = day.jobs.wait_until("gang", "to have been late", |status| {
        status["attempts"][0]["outcome"] == "Interrupted"
    });
    says(
        &status["attempts"][0]["exit"]["message"],
        &["did not start"],
    );
    assert_eq!(
        status["failures"], 0,
        "nobody knows that it is the job's fault: {status:#}"
    );
    let first: Vec<String> = (0..2).map(|rank| format!("gang-1-{rank}")).collect();
    eventually("its workers to be gone", || {
        let pods = testbed.get(&["pods", "-n", "bad-start"]);
        let pods = pods["items"].as_array()?;
        let is_first = |pod: &serde_json::Value| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            first.iter().any(|first| first == name)
        };
        (!pods.iter().any(is_first)).then_some(())
    });

    // Whatever held it back is mended; the attempt that is under way may be late as well.
    day.jobs.patch(
        "gang",
        &json!({"spec": {"template": {"metadata": {"annotations": {"stokehold.dev/testbed-never-starts": null}}}}}),
    );
    day.jobs.wait("gang", "Running");
    day.was_calm(number, 100);
}

#[test]
fn a_gang_that_the_scheduler_refuses_gives_its_room_back_and_says_why() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let day = Day::begin(&testbed, "bad-schedule");
    // With the deadline that is shipped: it is not what ends this.
    let (_operators, number) = operator(&testbed, &[]);
    // Beside a pod that is not there: what placement does not know of, and kube-scheduler does.
    let beside = json!({"template": {"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "type", "labelSelector": {"matchLabels": {"app": "cache"}}},
    ]}}}}});
    day.submit("gang", 2, &beside);
    let status = day
        .jobs
        .wait_until("gang", "to have given its room back", |status| {
            status["attempts"][0]["outcome"] == "Interrupted"
        });
    says(
        &status["attempts"][0]["exit"]["message"],
        &["didn't match pod affinity rules"],
    );
    assert_eq!(status["failures"], 0, "{status:#}");

    day.jobs.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cache", "labels": {"app": "cache"}},
        "spec": {
            "nodeSelector": {"stokehold.dev/testbed": "bad-schedule"},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [{"name": "cache", "image": "none"}],
        },
    }));
    day.jobs.wait("gang", "Running");
    day.was_calm(number, 100);
}

/// A registry that has nothing, as one answers that is asked for what was never pushed.
fn empty_registry() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let Ok(copy) = stream.try_clone() else { return };
                let mut stream = stream;
                let mut lines = BufReader::new(copy).lines().map_while(Result::ok);
                let is_head = lines.next().is_some_and(|line| line.starts_with("HEAD "));
                let _ = lines.find(String::is_empty);
                let body =
                    r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}"#;
                let _ = write!(
                    stream,
                    "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{}",
                    body.len(),
                    if is_head { "" } else { body },
                );
            });
        }
    });
    address
}

#[test]
fn an_image_that_is_not_there_is_told_and_a_right_one_runs() {
    let Some(testbed) = testbed_with_nodes() else {
        return;
    };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let day = Day::begin(&testbed, "bad-image");
    let (_operators, number) = operator(&testbed, &["--start-deadline", "20s"]);
    let image = format!("{}/team/train:v7", empty_registry());
    let mut template = host_programs(&[]);
    template["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    day.jobs.create(
        "typo",
        &json!({"command": ["sleep", "600"], "image": image, "retries": 1, "template": template}),
    );
    let status = day
        .jobs
        .wait_until("typo", "to have failed to start", |status| {
            status["attempts"][0]["outcome"].is_string()
        });
    let first = &status["attempts"][0];
    says(&first["exit"]["message"], &[&image, "not found"]);
    // It would never start: that is the job's own fault, and counts.
    assert_eq!(first["outcome"], "Failed", "{status:#}");
    assert_eq!(status["failures"], 1, "{status:#}");

    let right = json!({"spec": {"image": "stokehold.dev/testbed/host:1"}});
    day.jobs.patch("typo", &right);
    day.jobs.wait("typo", "Running");
    assert_eq!(day.jobs.get("typo")["status"]["attempt"], 2);

    // One that no registry could have.
    day.jobs.create(
        "misspelt",
        &json!({"command": ["true"], "image": "Team/Train:v7", "retries": 0, "template": template}),
    );
    let status = day.jobs.wait_until("misspelt", "to have failed", |status| {
        status["phase"] == "Failed"
    });
    says(&status["message"], &["Team/Train:v7"]);
    eventually("nothing of it to be left", || {
        workers::is_empty(&day.jobs.pods("misspelt")).then_some(())
    });
    day.was_calm(number, 100);
}

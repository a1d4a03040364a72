//! A node goes away under a gang, as a machine does that is taken back.

use serde_json::json;

use super::{Day, operator, says};
use crate::operators::SHORT_LEASE;
use crate::release::{self, succeed};
use crate::support::{eventually_or, testbed};

#[test]
fn a_node_that_goes_away_restarts_the_gang_whole_on_the_rest() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let day = Day::begin(&testbed, "bad-node");
    let (_operators, number) = operator(&testbed, &SHORT_LEASE);
    day.submit("gang", 2, &json!({}));
    day.jobs.wait("gang", "Running");
    let status = day.jobs.get("gang")["status"].take();
    let gone = status["attempts"][0]["nodes"][1].clone();
    let gone = gone.as_str().expect("a node");
    let before = day.jobs.pods("gang");
    succeed(&mut testbed.kubectl(&["delete", "node", gone]));

    let status = day.jobs.wait_until("gang", "to run on the rest", |status| {
        status["attempt"] == 2 && status["phase"] == "Running"
    });
    let first = &status["attempts"][0];
    assert_eq!(first["outcome"], "Interrupted", "{status:#}");
    says(&first["exit"]["message"], &[gone]);
    assert_eq!(
        status["failures"], 0,
        "a lost node is no failure: {status:#}"
    );
    let nodes = status["attempts"][1]["nodes"].as_array().expect("nodes");
    assert!(!nodes.iter().any(|node| node == gone), "{status:#}");

    // Whole: what was left of the first attempt has gone, the one on the lost node included.
    eventually_or(
        "the first attempt's workers to be gone",
        || {
            let pods = day.jobs.pods("gang");
            let pods = pods.as_array()?;
            let of_first = |pod: &serde_json::Value| {
                let before = before.as_array().into_iter().flatten();
                before.into_iter().any(|old| old["uid"] == pod["uid"])
            };
            (pods.len() == 2 && !pods.iter().any(of_first)).then_some(())
        },
        || format!("{:#}", day.jobs.pods("gang")),
    );
    day.was_calm(number, 60);
}

//! The operator itself has no way in: its role, its token or the definitions of our kinds are not there. It says so at /readyz, asks less
//! and less often, and goes on when it may.

use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Day, at, operator, waited};
use crate::operators::{Operators, SHORT_LEASE};
use crate::release::{self, NAMESPACE, succeed};
use crate::support::{eventually, testbed, text};

/// How long a list that is refused is waited with, each time; it goes on to double.
const WAITS: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];

/// When a list of this kind was turned down.
fn lists_turned_down(day: &Day<'_>, operator: usize, resource: &str) -> Vec<Timestamp> {
    let refused = day.turned_down(operator);
    let lists = refused.iter().filter(|entry| {
        text(entry, "/verb") == "list" && text(entry, "/objectRef/resource") == resource
    });
    lists.map(at).collect()
}

#[test]
fn an_operator_without_its_role_says_so_and_works_when_it_has_it_back() {
    let Some(testbed) = testbed() else { return };
    let Some(mut release) = release::without_operator(&testbed) else {
        return;
    };
    release.forget();
    let day = Day::begin(&testbed, "bad-binding");
    let mut binding = testbed.get(&["clusterrolebinding", "stokehold-operator"]);
    binding["metadata"] = json!({
        "name": "stokehold-operator", "labels": binding["metadata"]["labels"], "annotations": binding["metadata"]["annotations"],
    });
    succeed(&mut testbed.kubectl(&["delete", "clusterrolebinding", "stokehold-operator"]));
    let mut operators = Operators::new(&testbed, &SHORT_LEASE);
    let number = operators.start();
    day.submit("gang", 2, &json!({}));
    let told = operators.complains(
        number,
        &[
            r#"cannot list resource "pods" in API group "" at the cluster scope"#,
            r#"cannot list resource "trainjobs""#,
            "install the chart's roles anew (helm upgrade)",
        ],
    );
    // One line for each kind, however often it was asked.
    let about_pods = told.lines().filter(|line| line.starts_with("pods:"));
    assert_eq!(about_pods.count(), 1, "{told}");
    waited("lists to be refused", &WAITS, || {
        lists_turned_down(&day, number, "pods")
    });
    let log = operators.told_by(number);
    let said = log.matches(r#"cannot list resource "pods""#).count();
    assert_eq!(said, 1, "told once, not each time: {log}");

    testbed.create(&[binding]);
    operators.leads(number);
    day.jobs.wait("gang", "Running");
    // A list of each of the few kinds, a dozen times at most, and one gang.
    day.was_calm(number, 120);
}

#[test]
fn an_operator_without_our_definitions_says_so_and_works_when_they_are_there() {
    let Some(testbed) = testbed() else { return };
    let Some(mut release) = release::without_operator(&testbed) else {
        return;
    };
    release.forget();
    let day = Day::begin(&testbed, "bad-crd");
    succeed(&mut testbed.kubectl(&["delete", "crd", "trainjobs.stokehold.dev"]));
    let mut operators = Operators::new(&testbed, &SHORT_LEASE);
    let number = operators.start();
    let told = operators.complains(number, &["the CRD trainjobs.stokehold.dev is missing"]);
    assert!(told.contains("stoke crds | kubectl apply -f -"), "{told}");
    waited("jobs to be looked for", &WAITS, || {
        lists_turned_down(&day, number, "trainjobs")
    });

    // What it said to do.
    let stoke = env!("CARGO_BIN_EXE_stoke");
    let crds = succeed(Command::new(stoke).arg("crds").stdin(Stdio::null()));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), crds).expect("a file");
    succeed(testbed.kubectl(&["apply", "-f"]).arg(file.path()));
    operators.leads(number);
    eventually("jobs to be taken", || {
        let found = testbed.kubectl(&["get", "trainjobs", "-A"]).output();
        found.expect("kubectl").status.success().then_some(())
    });
    day.submit("gang", 2, &json!({}));
    day.jobs.wait("gang", "Running");
    day.was_calm(number, 120);
}

#[test]
fn an_operator_whose_token_is_revoked_says_so_and_works_with_the_next() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let day = Day::begin(&testbed, "bad-token");
    // A token that lasts as long as the Secret it is bound to.
    let bind = |secret: &str| -> Value {
        let mut create = testbed.kubectl(&["create", "secret", "generic", secret, "-n", NAMESPACE]);
        succeed(&mut create);
        release::account(
            &testbed,
            "stokehold-operator",
            Some(&format!("Secret/{secret}")),
        )
    };
    let revoke = |secret: &str| {
        let mut delete = testbed.kubectl(&["delete", "secret", secret, "-n", NAMESPACE]);
        let _ = delete.arg("--ignore-not-found").output();
    };
    for secret in ["first-token", "next-token"] {
        revoke(secret);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    let give = |account: &Value| {
        let token = text(account, "/users/0/user/token");
        let next = folder.path().join("next");
        std::fs::write(&next, token).expect("a token");
        std::fs::rename(&next, &file).expect("a token");
    };
    let mut account = bind("first-token");
    give(&account);
    account["users"][0]["user"] = json!({"tokenFile": file});

    // With the lease that is shipped: how often it is asked for is a part of this.
    let mut operators = Operators::with_account(&testbed, &[], &account);
    let number = operators.start();
    operators.leads(number);
    day.submit("before", 1, &json!({}));
    day.jobs.wait("before", "Running");
    let trains = day.jobs.pods("before");

    revoke("first-token");
    operators.complains(
        number,
        &[
            "the API server does not accept our credentials (401)",
            "give the operator new ones (restart its pod)",
        ],
    );
    day.submit("after", 1, &json!({}));
    give(&bind("next-token"));
    operators.leads(number);
    day.jobs.wait("after", "Running");
    assert_eq!(day.jobs.pods("before"), trains, "it trained on");
    revoke("next-token");

    let refused = day.audit.of_operator(number).into_iter();
    let refused = refused.filter(|entry| entry["responseStatus"]["code"] == 401);
    let refused = refused.count();
    println!("{refused} requests with a token that was revoked");
    // A token file is read every minute, and the lease is asked for every second meanwhile.
    assert!(refused <= 100, "{refused} requests");
    day.was_calm(number, 120);
}

#[test]
fn an_operator_that_is_well_asks_for_little() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let day = Day::begin(&testbed, "good-day");
    let (_operators, number) = operator(&testbed, &SHORT_LEASE);
    day.submit("gang", 2, &json!({}));
    day.jobs.wait("gang", "Running");
    assert_eq!(day.turned_down(number), Vec::<Value>::new());
    day.was_calm(number, 40);
}

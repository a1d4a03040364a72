//! The API server will not have a pod: a quota, a policy, a webhook that is down, a right that the operator lacks.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Day, operator, says};
use crate::operators::SHORT_LEASE;
use crate::release::{self, succeed};
use crate::support::{Testbed, eventually, testbed, text};
use crate::workers;

/// A gang of two is refused and says so, holds nothing while it waits, is tried again after longer and longer waits, and runs when what
/// stands in its way is gone.
fn refused_until_mended(
    testbed: &Testbed,
    namespace: &'static str,
    hinder: impl FnOnce(&Day<'_>),
    reason: &str,
    told: &[&str],
    mend: impl FnOnce(&Day<'_>),
) {
    let day = Day::begin(testbed, namespace);
    hinder(&day);
    let (_operators, number) = operator(testbed, &SHORT_LEASE);
    day.submit("gang", 2, &json!({}));
    let status = day
        .jobs
        .wait_until("gang", "to say why it does not run", |status| {
            status["reason"] == reason
        });
    says(&status["message"], told);
    says(&status["message"], &["could not create pod gang-"]);
    eventually("what it has of the gang to be given back", || {
        workers::is_empty(&day.jobs.pods("gang")).then_some(())
    });

    // The first wait is a second, and says little; the next is ten.
    let status = day
        .jobs
        .wait_until("gang", "to be refused three times", |status| {
            status["attempts"][2]["outcome"].is_string()
        });
    let time = |attempt: usize, field: &str| -> Timestamp {
        let time = text(&status["attempts"][attempt], field);
        time.parse().expect("a time")
    };
    let waited = time(2, "/placedAt").duration_since(time(1, "/finishedAt"));
    assert!(waited.as_secs() >= 9, "only {waited:?}: {status:#}");
    // Each worker is asked for once an attempt.
    let refused = day.turned_down(number);
    let refused = refused.iter().filter(|entry| {
        // What the first attempt made beside the pods is there already; that it is, is told by a refusal too.
        text(entry, "/objectRef/resource") == "pods"
    });
    let refused = refused.count();
    let attempts = status["attempts"].as_array().map_or(0, Vec::len);
    assert!(
        refused <= 2 * attempts,
        "refused {refused} times: {status:#}"
    );
    mend(&day);
    day.jobs.wait("gang", "Running");
    let status = day.jobs.get("gang")["status"].take();
    assert_eq!(status["failures"], 0, "a refusal is no failure: {status:#}");
    let attempts = status["attempts"].as_array().expect("attempts");
    let (last, refused) = attempts.split_last().expect("attempts");
    assert!(last["outcome"].is_null(), "{status:#}");
    for attempt in refused {
        assert_eq!(attempt["outcome"], "Interrupted", "{status:#}");
        says(&attempt["exit"]["message"], told);
    }
    // Lists of each kind, and per attempt the pods, what they are reached by, the status and an Event.
    day.was_calm(number, 20 + 20 * attempts.len());
}

#[test]
fn a_gang_over_its_quota_is_given_back_whole_and_runs_when_the_quota_is_raised() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    refused_until_mended(
        &testbed,
        "bad-quota",
        |day| {
            day.jobs.apply(&json!({
                "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"},
                "spec": {"hard": {"pods": "1"}},
            }));
            eventually("the quota to count", || {
                let quota = testbed.get(&["resourcequota", "team", "-n", "bad-quota"]);
                (text(&quota, "/status/used/pods") == "0").then_some(())
            });
        },
        "WaitingForQuota",
        &[
            "exceeded quota: team",
            "have the namespace's ResourceQuota raised",
        ],
        |_| {
            let raised = r#"{"spec": {"hard": {"pods": "2"}}}"#;
            let mut patch = testbed.kubectl(&["patch", "resourcequota", "team", "-n", "bad-quota"]);
            succeed(patch.args(["--type=merge", "-p", raised]));
        },
    );
}

/// Goes when the test ends, however it ends.
struct ClusterWide<'a> {
    testbed: &'a Testbed,
    objects: &'a [&'a str],
}

impl ClusterWide<'_> {
    fn delete(&self) {
        let mut delete = self.testbed.kubectl(&["delete", "--ignore-not-found"]);
        let _ = delete.args(self.objects).output();
    }
}

impl Drop for ClusterWide<'_> {
    fn drop(&mut self) {
        self.delete();
    }
}

/// Waits until a pod of anyone is refused there, for these words.
fn until_refused(testbed: &Testbed, namespace: &str, word: &str) {
    eventually("pods to be refused", || {
        let mut run = testbed.kubectl(&["run", "probe", "--image=none", "--dry-run=server"]);
        let output = run.args(["-n", namespace]).output().expect("kubectl");
        release::said(&output).contains(word).then_some(())
    });
}

#[test]
fn a_policy_that_denies_is_told_and_the_job_runs_when_it_is_gone() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let policy = ClusterWide {
        testbed: &testbed,
        objects: &[
            "validatingadmissionpolicybinding/stokehold-test-cost",
            "validatingadmissionpolicy/stokehold-test-cost",
        ],
    };
    policy.delete();
    let named = json!({"name": "stokehold-test-cost"});
    let objects = [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": named,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
                ]},
                "validations": [{"expression": "'cost-centre' in object.metadata.?labels.orValue({})", "message": "no cost-centre is named"}],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": named,
            "spec": {
                "policyName": "stokehold-test-cost", "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "bad-policy"}}},
            },
        }),
    ];
    refused_until_mended(
        &testbed,
        "bad-policy",
        |_| {
            testbed.create(&objects);
            until_refused(&testbed, "bad-policy", "no cost-centre is named");
        },
        "ApplyFailed",
        &["no cost-centre is named", "ask whoever runs the policy"],
        |_| policy.delete(),
    );
}

#[test]
fn a_webhook_that_is_down_is_told_and_the_job_runs_when_it_is_gone() {
    let Some(testbed) = testbed() else { return };
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let webhook = ClusterWide {
        testbed: &testbed,
        objects: &["validatingwebhookconfiguration/stokehold-test-images"],
    };
    webhook.delete();
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "stokehold-test-images"},
        "webhooks": [{
            "name": "images.example.com", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            // Nobody listens there.
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "bad-webhook"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }],
    });
    refused_until_mended(
        &testbed,
        "bad-webhook",
        |_| {
            testbed.create(&[configuration]);
            until_refused(&testbed, "bad-webhook", "failed calling webhook");
        },
        "ApplyFailed",
        &[
            r#"failed calling webhook "images.example.com""#,
            "the webhook's own service has to be mended",
        ],
        |_| webhook.delete(),
    );
}

#[test]
fn a_right_that_the_operator_has_lost_is_told_and_the_job_runs_when_it_is_given_back() {
    let Some(testbed) = testbed() else { return };
    let Some(mut release) = release::without_operator(&testbed) else {
        return;
    };
    release.forget();
    let role = testbed.get(&["clusterrole", "stokehold-operator"]);
    let set_rules = |rules: &Value| {
        let patch = json!([{"op": "replace", "path": "/rules", "value": rules}]);
        let mut command = testbed.kubectl(&["patch", "clusterrole", "stokehold-operator"]);
        succeed(command.args(["--type=json", "-p", &patch.to_string()]));
    };
    let without_creating_pods = {
        let mut rules = role["rules"].clone();
        for rule in rules.as_array_mut().expect("rules") {
            if rule["resources"] == json!(["pods"]) {
                let verbs = rule["verbs"].as_array_mut().expect("verbs");
                verbs.retain(|verb| verb != "create");
            }
        }
        rules
    };
    assert_ne!(without_creating_pods, role["rules"]);
    let account = "system:serviceaccount:stokehold-system:stokehold-operator";
    let may = |expected: &str| {
        eventually("the right to be known", || {
            let mut ask = testbed.kubectl(&["auth", "can-i", "create", "pods", "-n", "bad-role"]);
            let output = ask.args(["--as", account]).output().expect("kubectl");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            (said.trim() == expected).then_some(())
        });
    };
    refused_until_mended(
        &testbed,
        "bad-role",
        |_| {
            set_rules(&without_creating_pods);
            may("no");
        },
        "ApplyFailed",
        &[
            r#"cannot create resource "pods""#,
            "install the chart's roles anew (helm upgrade)",
        ],
        |_| {
            set_rules(&role["rules"]);
            may("yes");
        },
    );
}

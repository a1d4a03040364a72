//! A platform team's year: install, upgrade under running jobs, uninstall, install again.

use std::path::Path;

use serde_json::{Value, json};

use crate::release::{self, NAME, NAMESPACE, chart, succeed};
use crate::support::{self, Testbed, eventually};
use crate::workers::{self, Jobs};

/// A copy of the chart whose TrainJob is in one category more, as in a next version it might be.
fn next_chart(folder: &Path) {
    succeed(
        std::process::Command::new("cp")
            .arg("-r")
            .arg(chart())
            .arg(folder),
    );
    let file = folder.join("stokehold/files/crds.yaml");
    let text = std::fs::read_to_string(&file).expect("definitions");
    let categories = "    categories:\n";
    assert!(text.contains(categories));
    let text = text.replacen(categories, &format!("{categories}    - next\n"), 1);
    std::fs::write(file, text).expect("definitions");
}

fn categories(testbed: &Testbed) -> Value {
    let definition = testbed.get(&["crd", "trainjobs.stokehold.dev"]);
    definition["spec"]["names"]["categories"].clone()
}

/// Everything that Helm made and is still there, but for the definitions.
fn left(testbed: &Testbed) -> String {
    let kinds = "deployments,daemonsets,pods,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,\
        networkpolicies,poddisruptionbudgets,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let selector = format!("app.kubernetes.io/instance={NAME}");
    succeed(&mut testbed.kubectl(&["get", kinds, "-A", "-l", &selector, "-o", "name"]))
}

#[test]
fn it_is_upgraded_and_uninstalled_under_a_running_job() {
    let Some(testbed) = support::testbed_with_nodes() else {
        return;
    };
    let Some(mut release) = release::exclusive(&testbed) else {
        return;
    };
    let jobs = Jobs::new(&testbed, "installing");
    jobs.create(
        "survivor",
        &json!({"command": ["sleep", "3600"], "workers": 2}),
    );
    jobs.wait("survivor", "Running");
    let running = jobs.pods("survivor");
    let unharmed = |when: &str| {
        assert_eq!(jobs.pods("survivor"), running, "{when}");
        let job = jobs.get("survivor");
        assert_eq!(
            job["status"]["phase"], "Running",
            "{when}: {:#}",
            job["status"]
        );
        assert_eq!(job["status"]["attempt"], 1, "{when}");
    };

    // An upgrade brings the changed value, the changed definition, and no harm.
    let folder = tempfile::tempdir().expect("a folder");
    next_chart(folder.path());
    let next = folder.path().join("stokehold");
    release::install(&testbed, &next, &["operator.podAnnotations.version=next"]);
    let replicas = testbed.get(&[
        "pods",
        "-n",
        NAMESPACE,
        "-l",
        "app.kubernetes.io/component=operator",
    ]);
    let replicas = replicas["items"].as_array().expect("a list");
    let fresh = replicas
        .iter()
        .filter(|pod| pod["metadata"]["annotations"]["version"] == "next");
    assert_eq!(fresh.count(), 2, "{replicas:#?}");
    assert_eq!(categories(&testbed), json!(["next", "stokehold"]));
    unharmed("after an upgrade");
    jobs.create("after-upgrade", &json!({"command": ["true"]}));
    jobs.wait("after-upgrade", "Complete");

    // Who uninstalls the operator loses no training and no job.
    let mut uninstall = release::helm(&testbed);
    uninstall.args([
        "uninstall",
        NAME,
        "--namespace",
        NAMESPACE,
        "--wait",
        "--timeout",
        "3m",
    ]);
    succeed(&mut uninstall);
    release.forget();
    eventually("everything of the release to be gone", || {
        left(&testbed).is_empty().then_some(())
    });
    unharmed("without an operator");
    assert_eq!(jobs.get("after-upgrade")["status"]["phase"], "Complete");

    // Installed again it finds what is there, in the chart's own words.
    release::install(&testbed, &chart(), &[]);
    assert_eq!(categories(&testbed), json!(["stokehold"]));
    jobs.create("after-install", &json!({"command": ["true"]}));
    jobs.wait("after-install", "Complete");
    unharmed("under the next operator");
    jobs.delete("survivor");
    eventually("the workers to be gone", || {
        workers::is_empty(&jobs.pods("survivor")).then_some(())
    });
}

//! Our API server against the real one.
//!
//! The same requests go to both over TLS, and what comes back is compared field by field. A difference is either a
//! mistake of ours or a row of `differences.yaml`, which `docs/api-differences.md` shows to people; a row that no longer
//! occurs fails too.
//!
//! The real one is a kube-apiserver on an etcd of its own, on free ports of loopback, from the cache that
//! `tests/kube/build.sh` fills. Without it the comparison is skipped; with `STOKE_KUBE_REQUIRED=1` it fails instead.
//!
//! `STOKE_DIFFERENTIAL=pods,watching` runs only the scripts of those names.

mod compare;
mod differences;
mod generated;
mod http;
mod normal;
mod play;
mod script;
mod servers;

use std::collections::BTreeSet;
use std::time::Instant;

use compare::Difference;
use differences::Differences;
use servers::{Pair, Start};

/// Requests that the scripts must come to, so that nobody thins them out unseen.
const REQUESTS_MIN: usize = 950;

#[tokio::test(flavor = "multi_thread")]
async fn both_servers_answer_alike() {
    let begun = Instant::now();
    let pair = match Pair::start().await {
        Start::Running(pair) => pair,
        Start::Missing(what) => {
            let required = std::env::var("STOKE_KUBE_REQUIRED").is_ok_and(|value| value == "1");
            assert!(!required, "{what}");
            eprintln!("skipped: {what}");
            return;
        }
    };
    eprintln!("both servers are up after {:.1?}", begun.elapsed());
    let only = std::env::var("STOKE_DIFFERENTIAL").unwrap_or_default();
    let scripts = script::all();
    let requests: usize = scripts.iter().map(|script| script.steps.len()).sum();
    let (scripts, skipped): (Vec<_>, Vec<_>) = scripts
        .into_iter()
        .partition(|script| !script.progress || pair.tells_progress);
    let skipped: Vec<String> = skipped.into_iter().map(|script| script.script).collect();
    if !skipped.is_empty() {
        let names = skipped.join(", ");
        eprintln!("skipped: {names}: this etcd does not tell how far a watch has come");
    }
    let mut found = play::all(&pair, &scripts, &only).await;
    eprintln!(
        "{requests} scripted requests: {} differences after {:.1?}",
        found.len(),
        begun.elapsed()
    );
    if only.is_empty() || only == generated::SCRIPT {
        found.extend(generated::run(&pair).await);
        eprintln!("generated sequences done after {:.1?}", begun.elapsed());
    }
    let report = judge(&found, only.is_empty().then_some(&skipped));
    assert!(report.is_empty(), "\n{report}");
    assert!(
        requests >= REQUESTS_MIN,
        "only {requests} scripted requests"
    );
}

/// What is wrong with the differences found: those that no row explains and, if everything but the `skipped` ran, rows
/// that explain nothing.
fn judge(found: &[Difference], skipped: Option<&Vec<String>>) -> String {
    let listed = Differences::read();
    let mut used = BTreeSet::new();
    let mut report = Vec::new();
    for difference in found {
        let explained = listed.explain(difference);
        if explained.is_empty() {
            report.push(difference.to_string());
        }
        used.extend(explained);
    }
    if let Some(skipped) = skipped {
        for place in listed.places().filter(|place| !used.contains(place)) {
            if !skipped.iter().any(|script| place.1.is_in(script)) {
                report.push(format!("listed, but nothing differs there: {place:?}"));
            }
        }
    }
    report.join("\n")
}

#[test]
fn the_page_lists_what_is_listed() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api-differences.md");
    let page = Differences::read().page();
    if std::env::var("STOKE_UPDATE_DOCS").is_ok_and(|value| value == "1") {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written, page,
        "docs/api-differences.md is not what the suite says; STOKE_UPDATE_DOCS=1 writes it anew"
    );
}

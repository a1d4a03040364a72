//! The public trace, where it is at hand: the baselines give what was published, and ours beats them. `make bench-replay` does all of it.

use std::path::{Path, PathBuf};

use stoke_sched::replay::{Policy, Replay, Trace, floor};

/// Found where `STOKE_DATA_DIR` says, or beside the checkout.
fn default_trace(seed: u32) -> Option<Trace> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("STOKE_DATA_DIR").map_or(beside, PathBuf::from);
    let text = |name: &str| std::fs::read_to_string(data.join("openb").join(name)).ok();
    let trace = Trace::parse(
        &text("nodes.csv")?,
        &text("pods_default.csv")?,
        &text(&format!("order/default_{seed}.txt"))?,
    );
    Some(trace.expect("the trace is as published"))
}

fn unallocated(trace: &Trace, policy: Policy) -> f64 {
    let mut replay = Replay::new(trace, policy, 1);
    replay.by_ref().for_each(drop);
    replay.report().unallocated[&100].expect("more than 100 % arrive")
}

#[test]
fn ours_leaves_less_idle_than_the_published_best() {
    let Some(trace) = default_trace(42) else {
        eprintln!("skipped: no trace in $STOKE_DATA_DIR/openb or ../shared/data/openb");
        return;
    };
    let floor = floor(&trace)[&100].expect("more than 100 % arrive");
    let ours = unallocated(&trace, Policy::Stokehold);
    let fgd = unallocated(&trace, Policy::Fgd);
    let best_fit = unallocated(&trace, Policy::BestFit);
    let said = format!("floor {floor:.2}, ours {ours:.2}, FGD {fgd:.2}, best fit {best_fit:.2}");
    assert!((4.57..=4.97).contains(&fgd), "{said}");
    assert!((6.84..=7.44).contains(&best_fit), "{said}");
    assert!(floor < ours && ours < 3.9, "{said}");
}

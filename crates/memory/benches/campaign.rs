//! `cargo bench -p stoke-memory --bench campaign`: how many of 200 broken jobs finish without a person, by rule, one JSON line a figure.

#[path = "../tests/failures/logs.rs"]
#[expect(dead_code, reason = "shared with the tests of logs")]
mod logs;
#[path = "../tests/campaign/world.rs"]
mod world;

use world::{Rule, campaign};

const JOBS: u32 = 200;

fn main() {
    for seed in 101..106 {
        for (name, rule) in [
            ("stokehold", Rule::Stokehold),
            ("again at the same size", Rule::SameSize),
        ] {
            let tally = campaign(seed, JOBS, rule);
            println!(
                r#"{{"figure": "campaign", "seed": {seed}, "rule": "{name}", "jobs": {}, "savable": {}, "finished": {}, "finished_percent": {:.1}, "attempts": {}, "attempts_in_vain": {}, "pointless": {}}}"#,
                tally.jobs,
                tally.savable,
                tally.saved,
                tally.saved_percent(),
                tally.attempts,
                tally.attempts_in_vain,
                tally.pointless,
            );
        }
    }
}

//! Two hundred jobs with faults of every kind, saved by what they leave behind, or given up at once.

#[path = "failures/logs.rs"]
#[expect(dead_code, reason = "shared with the tests of logs")]
mod logs;
#[path = "campaign/world.rs"]
mod world;

use world::{Rule, campaign};

const JOBS: u32 = 200;

#[test]
fn what_can_be_saved_is_saved_and_nothing_is_repeated_in_vain() {
    let said = std::env::var("STOKE_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = said.map_or_else(|| vec![1, 2, 3], |seed| vec![seed]);
    for seed in seeds {
        let ours = campaign(seed, JOBS, Rule::Stokehold);
        let same = campaign(seed, JOBS, Rule::SameSize);
        println!(
            "seed {seed}: {} of {} savable jobs finished ({:.1} %), {} attempts, {} in vain, {} pointless; again at the same size: {} ({:.1} %), {} attempts, {} pointless",
            ours.saved,
            ours.savable,
            ours.saved_percent(),
            ours.attempts,
            ours.attempts_in_vain,
            ours.pointless,
            same.saved,
            same.saved_percent(),
            same.attempts,
            same.pointless,
        );
        println!("{:?}", ours.kinds);
        let wrong = ours.wrong.join("\n");
        assert!(
            ours.saved_percent() >= 95.0,
            "seed {seed}: {:.1} %\n{wrong}",
            ours.saved_percent()
        );
        assert_eq!(ours.pointless, 0, "seed {seed}\n{wrong}");
        assert!(
            ours.saved > same.saved && ours.savable >= JOBS / 2,
            "seed {seed}"
        );
    }
}

//! Who finds leaks and when: `cargo bench -p stoke-memory --bench leaks [-- SEED..]`, one JSON line a rule and limit.
//!
//! First what watching costs: a day of one container, sampled every second.
//!
//! Seeds 1 to 20 were used while developing; without any, others are. With `kinds` among them, stderr says which kinds of series went wrong.

#[path = "../tests/leaks/draw.rs"]
mod draw;
#[path = "../tests/leaks/rules.rs"]
mod rules;
#[path = "../tests/leaks/score.rs"]
mod score;
#[path = "../tests/leaks/series.rs"]
mod series;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use stoke_api::Bytes;
use stoke_memory::{Place, Point, Watcher};

use rules::Rule;
use score::Score;
use series::{Room, Series};

const SERIES: usize = 400;

fn main() {
    let said: Vec<String> = std::env::args().skip(1).collect();
    let mut seeds: Vec<u64> = said.iter().filter_map(|seed| seed.parse().ok()).collect();
    if seeds.is_empty() {
        seeds = (101..=105).collect();
    }
    watch();
    let kinds = said.iter().any(|word| word == "kinds");
    for room in Room::ALL {
        let sets = seeds
            .iter()
            .flat_map(|seed| series::set(*seed, SERIES, room));
        let set: Vec<Series> = sets.collect();
        for rule in Rule::ALL {
            let score = Score::of(rule, &set);
            println!(
                r#"{{"figure": "leaks", "rule": "{}", "limits": "{}", "series": {}, "precision": {:.3}, "recall": {:.3}, "f1": {:.3}, "alarm_at": {:.2}}}"#,
                rule.name(),
                room.name(),
                set.len(),
                score.precision(),
                score.recall(),
                score.f1(),
                score.way()
            );
        }
        if kinds {
            tell_kinds(&set);
        }
    }
}

fn watch() {
    let mut watcher = Watcher::new(Place::Host);
    let seconds = 86_400_u64;
    let started = Instant::now();
    for second in 0..seconds {
        let garbage = second % 90 * 20;
        let point = Point {
            anon: Bytes::mib(8_000 + garbage),
            limit: Some(Bytes::gib(16)),
            step: Some(1 + second / 2),
            phase: Some("train"),
            ..Point::default()
        };
        black_box(watcher.observe(second, &point));
    }
    let micros = started.elapsed().as_secs_f64() * 1e6 / seconds as f64;
    println!(r#"{{"figure": "one sample watched", "us": {micros:.2}, "container_hours": 24}}"#);
}

fn tell_kinds(set: &[Series]) {
    let mut kinds = BTreeMap::<(bool, &str), Score>::new();
    for series in set {
        let score = kinds.entry((series.leaks(), series.kind)).or_default();
        score.add(series, Rule::Stokehold.alarm(series));
    }
    for ((_, kind), score) in kinds {
        eprintln!(
            "{kind:20} found {:4} missed {:4} wrong {:4} at {:.2}",
            score.found,
            score.missed,
            score.wrong,
            score.way()
        );
    }
}

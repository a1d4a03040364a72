//! How much memory a worker gets: what its author said; else what earlier runs used; else its share of the node.

use stoke_api::Bytes;
use stoke_api::trainjob::{Memory, Priority, Qos, Sizing};

use crate::history::Advice;

/// The node a worker is sized for, and the worker's part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// What pods may use of the node's memory.
    pub memory: Bytes,
    /// The same of the largest node that may run it. What was learned is needed, whatever the smaller ones have.
    pub largest: Bytes,
    pub node_gpus: u32,
    /// GPUs of one worker.
    pub gpus: u32,
    /// Workers of the gang that may have to share the node.
    pub workers: u32,
}

/// A worker's part of `whole`, which is an amount of something on the node that `share` speaks of.
///
/// A tenth is left for what else runs on every node, or a worker with all of its GPUs would never fit beside it.
pub fn share_of(whole: u64, share: &Share) -> u64 {
    let (part, parts) = fraction(share);
    let whole = u128::from(whole) * 9 / 10;
    let amount = whole * u128::from(part) / u128::from(parts);
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// The worker's part, of how many.
fn fraction(share: &Share) -> (u32, u32) {
    let workers = share.workers.max(1);
    if share.gpus > 0 && share.node_gpus > 0 {
        (share.gpus.min(share.node_gpus), share.node_gpus)
    } else {
        (1, workers)
    }
}

/// The memory of a worker. What its author said is taken as it is, even where no node has it: placement then says so.
/// What is left out is learned from earlier runs, or else is the worker's share of the node; either is never more than a node has,
/// nor than `max`.
///
/// `share` is absent where no node can run the worker at all.
pub fn size(
    said: Option<&Memory>,
    priority: Priority,
    share: Option<&Share>,
    advice: Option<&Advice>,
) -> Sizing {
    let said = said.cloned().unwrap_or_default();
    let promise = match (priority, said.qos) {
        (Priority::Production, _) => Some("all of it promised, as for every production job"),
        (_, Qos::Guaranteed) => Some("all of it promised"),
        _ => None,
    };
    if let (Some(request), Some(max)) = (said.request, said.max)
        && said.limit.is_none()
        && request >= max
    {
        return all_of(request, above_max(request, max));
    }
    match (said.request, said.limit) {
        (Some(request), Some(limit)) if request < limit => match promise {
            Some(promise) => all_of(
                limit,
                format!("{} as the job says, {promise}", limit.human()),
            ),
            None => Sizing {
                request,
                limit,
                why: format!(
                    "{} promised and {} at most, as the job says",
                    request.human(),
                    limit.human()
                ),
            },
        },
        (request, Some(limit)) => match advice {
            Some(advice) if request.is_none() && promise.is_none() && advice.request < limit => {
                Sizing {
                    request: advice.request,
                    limit,
                    why: format!(
                        "{} at most, as the job says, and {} promised, which is what runs use half of the time",
                        limit.human(),
                        advice.request.human()
                    ),
                }
            }
            _ => all_of(limit, format!("{} as the job says", limit.human())),
        },
        (Some(request), None) => {
            let Chosen { limit, why, .. } = match (advice, promise) {
                (None, Some(promise)) => {
                    return all_of(
                        request,
                        format!("{} as the job says, {promise}", request.human()),
                    );
                }
                _ => chosen(said.max, share, advice),
            };
            if limit <= request {
                return all_of(request, format!("{} as the job says", request.human()));
            }
            match promise {
                Some(promise) => all_of(limit, format!("{why}; {promise}")),
                None => Sizing {
                    request,
                    limit,
                    why: format!(
                        "{} promised, as the job says, and at most {why}",
                        request.human()
                    ),
                },
            }
        }
        (None, None) => {
            let Chosen {
                request,
                limit,
                why,
            } = chosen(said.max, share, advice);
            match promise {
                Some(promise) if advice.is_some() => all_of(limit, format!("{why}; {promise}")),
                Some(_) => all_of(limit, why),
                None => Sizing {
                    request,
                    limit,
                    why,
                },
            }
        }
    }
}

/// What to say about a worker that takes more of its node's memory than of its GPUs: the GPUs that are left may find none to run with.
pub fn lopsided(sizing: &Sizing, share: &Share) -> Option<String> {
    if share.gpus == 0 || share.node_gpus <= share.gpus || share.memory.0 == 0 {
        return None;
    }
    let percent = |part: u64, whole: u64| u128::from(part) * 100 / u128::from(whole);
    let memory = percent(sizing.request.0, share.memory.0);
    let gpus = percent(share.gpus.into(), share.node_gpus.into());
    (memory > gpus).then(|| {
        format!(
            "it takes {} of the node's {} memory ({memory} %) with {} of its {} GPUs ({gpus} %): the other GPUs may find too little memory",
            sizing.request.human(),
            share.memory.human(),
            share.gpus,
            share.node_gpus
        )
    })
}

fn all_of(limit: Bytes, why: String) -> Sizing {
    Sizing {
        request: limit,
        limit,
        why,
    }
}

fn above_max(request: Bytes, max: Bytes) -> String {
    if request == max {
        format!("{} as the job says, which is its max", request.human())
    } else {
        format!(
            "{} as the job says, though its max is {}",
            request.human(),
            max.human()
        )
    }
}

/// What a worker gets of what its author left out.
struct Chosen {
    request: Bytes,
    limit: Bytes,
    why: String,
}

fn chosen(max: Option<Bytes>, share: Option<&Share>, advice: Option<&Advice>) -> Chosen {
    if let Some(advice) = advice {
        return learned(max, share, advice);
    }
    let (limit, why) = shared(max, share);
    Chosen {
        request: limit,
        limit,
        why,
    }
}

fn learned(max: Option<Bytes>, share: Option<&Share>, advice: &Advice) -> Chosen {
    let node = share
        .map(|share| share.memory.max(share.largest))
        .filter(|node| node.0 > 0);
    let why = &advice.why;
    let (limit, why) = match (max, node) {
        (Some(max), _) if max < advice.limit && node.is_none_or(|node| max <= node) => (
            max,
            format!(
                "the job's max of {}, less than the {} that it should have: {why}",
                max.human(),
                advice.limit.human()
            ),
        ),
        (_, Some(node)) if node < advice.limit => (
            whole_mebibytes(node.0),
            format!(
                "all of a node's {}, less than the {} that it should have: {why}",
                node.human(),
                advice.limit.human()
            ),
        ),
        _ => (advice.limit, format!("{}: {why}", advice.limit.human())),
    };
    Chosen {
        request: advice.request.min(limit),
        limit,
        why,
    }
}

/// What a worker gets of which nothing is known, and why.
fn shared(max: Option<Bytes>, share: Option<&Share>) -> (Bytes, String) {
    let Some(share) = share else {
        let limit = max.unwrap_or_default();
        return (
            limit,
            "as no node can run it, nothing is chosen yet".to_owned(),
        );
    };
    let node = share.memory.human();
    let (part, parts) = fraction(share);
    let (exact, why) = if share.gpus > 0 && share.node_gpus > 0 {
        let what = if part == parts {
            format!("all {parts} GPUs' share of the node's {node}, less a tenth for the rest")
        } else {
            format!("{part} of {parts} GPUs' share of the node's {node}, less a tenth for the rest")
        };
        (share_of(share.memory.0, share), what)
    } else if parts > 3 {
        let what = format!(
            "one of {parts} workers' equal share of the node's {node}, less a tenth for the rest"
        );
        (share_of(share.memory.0, share), what)
    } else {
        (
            share.memory.0 / 4,
            format!("a quarter of the node's {node}"),
        )
    };
    let limit = whole_mebibytes(exact);
    match max {
        Some(max) if max < limit => (
            max,
            format!("the job's max of {}, less than {why}", max.human()),
        ),
        _ => (limit, format!("{}, {why}", limit.human())),
    }
}

/// People read it, and a page more or less is nobody's worry.
fn whole_mebibytes(bytes: u64) -> Bytes {
    if bytes < 1 << 20 {
        Bytes(bytes)
    } else {
        Bytes(bytes >> 20 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(gpus: u32, node_gpus: u32, workers: u32) -> Share {
        Share {
            memory: Bytes::gib(64),
            largest: Bytes::gib(256),
            node_gpus,
            gpus,
            workers,
        }
    }

    fn says(said: Memory, priority: Priority, share: Option<Share>) -> String {
        let sizing = size(Some(&said), priority, share.as_ref(), None);
        format!("{} / {}: {}", sizing.request, sizing.limit, sizing.why)
    }

    #[test]
    fn what_is_said_is_taken_and_what_is_not_is_the_share() {
        let gib = |n| Some(Bytes::gib(n));
        let standard = Priority::Standard;
        let nothing = Memory::default;
        insta::assert_snapshot!(says(nothing(), standard, Some(node(0, 0, 1))), @"16Gi / 16Gi: 16 GiB, a quarter of the node's 64 GiB");
        insta::assert_snapshot!(says(nothing(), standard, Some(node(2, 8, 2))), @"14745Mi / 14745Mi: 14 GiB, 2 of 8 GPUs' share of the node's 64 GiB, less a tenth for the rest");
        insta::assert_snapshot!(says(nothing(), standard, Some(node(8, 8, 1))), @"58982Mi / 58982Mi: 58 GiB, all 8 GPUs' share of the node's 64 GiB, less a tenth for the rest");
        insta::assert_snapshot!(says(nothing(), standard, Some(node(0, 8, 8))), @"7372Mi / 7372Mi: 7.2 GiB, one of 8 workers' equal share of the node's 64 GiB, less a tenth for the rest");
        insta::assert_snapshot!(says(nothing(), standard, None), @"0 / 0: as no node can run it, nothing is chosen yet");
        let limit = Memory {
            limit: gib(200),
            ..nothing()
        };
        insta::assert_snapshot!(says(limit, standard, Some(node(0, 0, 1))), @"200Gi / 200Gi: 200 GiB as the job says");
        let request = Memory {
            request: gib(4),
            ..nothing()
        };
        insta::assert_snapshot!(says(request.clone(), standard, Some(node(0, 0, 1))), @"4Gi / 16Gi: 4.0 GiB promised, as the job says, and at most 16 GiB, a quarter of the node's 64 GiB");
        insta::assert_snapshot!(says(request, Priority::Production, Some(node(0, 0, 1))), @"4Gi / 4Gi: 4.0 GiB as the job says, all of it promised, as for every production job");
        let both = Memory {
            request: gib(4),
            limit: gib(8),
            ..nothing()
        };
        insta::assert_snapshot!(says(both.clone(), standard, Some(node(0, 0, 1))), @"4Gi / 8Gi: 4.0 GiB promised and 8.0 GiB at most, as the job says");
        insta::assert_snapshot!(says(both, Priority::Production, Some(node(0, 0, 1))), @"8Gi / 8Gi: 8.0 GiB as the job says, all of it promised, as for every production job");
        let max = Memory {
            max: gib(2),
            ..nothing()
        };
        insta::assert_snapshot!(says(max, standard, Some(node(0, 0, 1))), @"2Gi / 2Gi: the job's max of 2.0 GiB, less than a quarter of the node's 64 GiB");
    }

    fn advice(request: Bytes, limit: Bytes) -> Advice {
        Advice {
            request,
            limit,
            storage: None,
            shm: None,
            why: "9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure".to_owned(),
        }
    }

    #[test]
    fn what_is_left_out_is_learned() {
        let says = |said: Memory, priority, share: Option<Share>| {
            let advice = advice(Bytes::gib(8), Bytes::gib(12));
            let sizing = size(Some(&said), priority, share.as_ref(), Some(&advice));
            format!("{} / {}: {}", sizing.request, sizing.limit, sizing.why)
        };
        let gib = |n| Some(Bytes::gib(n));
        let nothing = Memory::default;
        let one = || Some(node(1, 8, 1));
        let standard = Priority::Standard;
        insta::assert_snapshot!(says(nothing(), standard, one()), @"8Gi / 12Gi: 12 GiB: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure");
        insta::assert_snapshot!(says(nothing(), standard, None), @"8Gi / 12Gi: 12 GiB: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure");
        insta::assert_snapshot!(says(nothing(), Priority::Production, one()), @"12Gi / 12Gi: 12 GiB: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure; all of it promised, as for every production job");
        insta::assert_snapshot!(says(Memory { qos: Qos::Guaranteed, ..nothing() }, standard, one()), @"12Gi / 12Gi: 12 GiB: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure; all of it promised");
        insta::assert_snapshot!(says(Memory { max: gib(10), ..nothing() }, standard, one()), @"8Gi / 10Gi: the job's max of 10 GiB, less than the 12 GiB that it should have: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure");
        insta::assert_snapshot!(says(Memory { max: gib(6), ..nothing() }, standard, one()), @"6Gi / 6Gi: the job's max of 6.0 GiB, less than the 12 GiB that it should have: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure");
        insta::assert_snapshot!(says(Memory { request: gib(9), ..nothing() }, standard, one()), @"9Gi / 12Gi: 9.0 GiB promised, as the job says, and at most 12 GiB: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure");
        insta::assert_snapshot!(says(Memory { request: gib(9), ..nothing() }, Priority::Production, one()), @"12Gi / 12Gi: 12 GiB: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure; all of it promised, as for every production job");
        insta::assert_snapshot!(says(Memory { request: gib(9), max: gib(7), ..nothing() }, standard, one()), @"9Gi / 9Gi: 9.0 GiB as the job says, though its max is 7.0 GiB");
        insta::assert_snapshot!(says(Memory { limit: gib(20), ..nothing() }, standard, one()), @"8Gi / 20Gi: 20 GiB at most, as the job says, and 8.0 GiB promised, which is what runs use half of the time");
        insta::assert_snapshot!(says(Memory { limit: gib(20), ..nothing() }, Priority::Production, one()), @"20Gi / 20Gi: 20 GiB as the job says");
        let small = Share {
            memory: Bytes::gib(4),
            largest: Bytes::gib(10),
            ..node(1, 8, 1)
        };
        insta::assert_snapshot!(says(nothing(), standard, Some(small)), @"8Gi / 10Gi: all of a node's 10 GiB, less than the 12 GiB that it should have: 9 runs peaked at 10 GiB at most; 20 % more is cheaper than a failure");
    }

    #[test]
    fn memory_out_of_proportion_to_gpus_is_told() {
        let with = |request: u64, gpus, node_gpus| {
            let sizing = all_of(Bytes::gib(request), String::new());
            lopsided(&sizing, &node(gpus, node_gpus, 1)).unwrap_or_else(|| "fine".to_owned())
        };
        insta::assert_snapshot!(with(40, 2, 8), @"it takes 40 GiB of the node's 64 GiB memory (62 %) with 2 of its 8 GPUs (25 %): the other GPUs may find too little memory");
        for (request, gpus, node_gpus) in [(16, 2, 8), (60, 8, 8), (60, 0, 8), (60, 1, 0)] {
            assert_eq!(with(request, gpus, node_gpus), "fine");
        }
    }

    fn amount() -> impl Strategy<Value = Option<Bytes>> {
        prop::option::of((1_u64..1 << 44).prop_map(Bytes))
    }

    proptest! {
        #[test]
        fn promises_are_kept_and_choices_fit(
            request in amount(), limit in amount(), max in amount(), guaranteed: bool, production: bool,
            memory in 1_u64..1 << 44, gpus in 0_u32..16, node_gpus in 0_u32..16, workers in 0_u32..64,
            learned in prop::option::of((1_u64..1 << 44, 1_u64..1 << 44)),
        ) {
            let advice = learned.map(|(a, b)| advice(Bytes(a.min(b)), Bytes(a.max(b))));
            let said = Memory { request, limit, max, qos: if guaranteed { Qos::Guaranteed } else { Qos::Burstable } };
            let priority = if production { Priority::Production } else { Priority::Standard };
            let share = Share { memory: Bytes(memory), largest: Bytes(memory), node_gpus, gpus, workers };
            let sizing = size(Some(&said), priority, Some(&share), advice.as_ref());
            prop_assert!(sizing.request <= sizing.limit);
            prop_assert!(sizing.request.0 > 0 || memory < 64, "never best effort");
            prop_assert!(sizing.why.len() > 10);
            if guaranteed || production {
                prop_assert_eq!(sizing.request, sizing.limit);
            }
            if let Some(limit) = limit {
                prop_assert_eq!(sizing.limit, limit);
            } else if request.is_none() {
                prop_assert!(sizing.limit.0 <= memory);
                prop_assert!(max.is_none_or(|max| sizing.limit <= max));
                if gpus == 0 && workers > 0 && advice.is_none() {
                    prop_assert!(sizing.limit.0.saturating_mul(workers.into()) <= memory, "the gang fits an idle node");
                }
            }
        }
    }
}

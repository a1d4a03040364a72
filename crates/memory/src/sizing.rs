//! How much memory a worker gets: what its author said; else its share of the node.

use stoke_api::Bytes;
use stoke_api::trainjob::{Memory, Priority, Qos, Sizing};

/// The node a worker is sized for, and the worker's part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// What pods may use of the node's memory.
    pub memory: Bytes,
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
/// What is chosen here is never more than the node has, nor than `max`.
///
/// `share` is absent where no node can run the worker at all.
pub fn size(said: Option<&Memory>, priority: Priority, share: Option<&Share>) -> Sizing {
    let said = said.cloned().unwrap_or_default();
    let promised = said.qos == Qos::Guaranteed || priority == Priority::Production;
    let promise = if priority == Priority::Production {
        "all of it promised, as for every production job"
    } else {
        "all of it promised"
    };
    match (said.request, said.limit) {
        (Some(request), Some(limit)) if promised && request < limit => Sizing {
            request: limit,
            limit,
            why: format!("{} as the job says, {promise}", limit.human()),
        },
        (Some(request), Some(limit)) if request < limit => Sizing {
            request,
            limit,
            why: format!(
                "{} promised and {} at most, as the job says",
                request.human(),
                limit.human()
            ),
        },
        (_, Some(limit)) => all_of(limit, format!("{} as the job says", limit.human())),
        (Some(request), None) if promised => all_of(
            request,
            format!("{} as the job says, {promise}", request.human()),
        ),
        (Some(request), None) => {
            let (chosen, why) = chosen(said.max, share);
            let limit = chosen.max(request);
            Sizing {
                request,
                limit,
                why: if limit == request {
                    format!("{} as the job says", request.human())
                } else {
                    let request = request.human();
                    format!("{request} promised, as the job says, and {why} at most")
                },
            }
        }
        (None, None) => {
            let (limit, why) = chosen(said.max, share);
            all_of(limit, why)
        }
    }
}

fn all_of(limit: Bytes, why: String) -> Sizing {
    Sizing {
        request: limit,
        limit,
        why,
    }
}

/// What a worker gets whose author said nothing, and why.
fn chosen(max: Option<Bytes>, share: Option<&Share>) -> (Bytes, String) {
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
            node_gpus,
            gpus,
            workers,
        }
    }

    fn says(said: Memory, priority: Priority, share: Option<Share>) -> String {
        let sizing = size(Some(&said), priority, share.as_ref());
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
        insta::assert_snapshot!(says(request.clone(), standard, Some(node(0, 0, 1))), @"4Gi / 16Gi: 4.0 GiB promised, as the job says, and 16 GiB, a quarter of the node's 64 GiB at most");
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

    fn amount() -> impl Strategy<Value = Option<Bytes>> {
        prop::option::of((1_u64..1 << 44).prop_map(Bytes))
    }

    proptest! {
        #[test]
        fn promises_are_kept_and_choices_fit(
            request in amount(), limit in amount(), max in amount(), guaranteed: bool, production: bool,
            memory in 1_u64..1 << 44, gpus in 0_u32..16, node_gpus in 0_u32..16, workers in 0_u32..64,
        ) {
            let said = Memory { request, limit, max, qos: if guaranteed { Qos::Guaranteed } else { Qos::Burstable } };
            let priority = if production { Priority::Production } else { Priority::Standard };
            let share = Share { memory: Bytes(memory), node_gpus, gpus, workers };
            let sizing = size(Some(&said), priority, Some(&share));
            prop_assert!(sizing.request <= sizing.limit);
            prop_assert!(sizing.why.len() > 10);
            if guaranteed || production {
                prop_assert_eq!(sizing.request, sizing.limit);
            }
            if let Some(limit) = limit {
                prop_assert_eq!(sizing.limit, limit);
            } else if request.is_none() {
                prop_assert!(sizing.limit.0 <= memory);
                prop_assert!(max.is_none_or(|max| sizing.limit <= max));
                if gpus == 0 && workers > 0 {
                    prop_assert!(sizing.limit.0.saturating_mul(workers.into()) <= memory, "the gang fits an idle node");
                }
            }
        }
    }
}

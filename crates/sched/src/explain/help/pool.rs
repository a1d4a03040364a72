//! A bigger pool: how many more nodes of which kind would be enough.

use std::cmp::Reverse;

use super::super::Help;
use crate::place::{Level, Spot, Survey, workers};

/// A new node is as good as the number of workers that it holds while it is empty.
pub(super) fn more_nodes(base: &Survey<'_>, idle: &Survey<'_>) -> Option<Help> {
    // Another node would not be the one that it asks for.
    if base.gang.is_particular(base.snapshot.shapes().singular()) {
        return None;
    }
    let ways = base.needs().filter_map(|(way, _)| {
        let now = base.spots(way);
        let empty = idle.spots(way);
        fewest(base, &now, &empty)
    });
    let (count, like) = ways.min_by_key(|(count, _)| *count)?;
    let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
    let like = base.first_of(&like).name.clone();
    Some(Help::MoreNodes { count, like })
}

/// The fewest nodes that would do, and one like them.
fn fewest(base: &Survey<'_>, now: &[Spot], empty: &[Spot]) -> Option<(u64, Spot)> {
    let least = u64::from(base.gang.least());
    let depth = base.snapshot.levels().len();
    let largest = |spots: &[Spot]| {
        let spots = spots.iter().copied();
        spots.min_by_key(|spot| {
            let first = spot.members.trailing_zeros();
            (Reverse(spot.each), spot.chunk, first)
        })
    };
    let by_itself = |like: Spot| (u64::from(like.each) >= least).then_some((1, like));
    let beside = |like: Spot, has: u64| {
        let missing = least.saturating_sub(has);
        (missing.div_ceil(like.each.into()), like)
    };
    match base.level {
        Level::Unknown(_) => None,
        Level::Required(level) if level == depth => by_itself(largest(empty)?),
        Level::Required(level) => {
            let domains = base.domains(empty, level);
            let each = domains.filter_map(|domain| {
                let like = largest(domain)?;
                if base.is_alone(&like, level) {
                    return by_itself(like);
                }
                Some(beside(like, workers(within(now, domain))))
            });
            each.min_by_key(|(count, _)| *count)
        }
        Level::Anywhere | Level::Preferred => Some(beside(largest(empty)?, workers(now))),
    }
}

/// The spots that lie in a domain. What has room now has room when empty, so the domain's own spots bound them.
fn within<'a>(spots: &'a [Spot], domain: &[Spot]) -> &'a [Spot] {
    let (Some(first), Some(last)) = (domain.first(), domain.last()) else {
        return &[];
    };
    let from = spots.partition_point(|spot| spot.chunk < first.chunk);
    let to = spots.partition_point(|spot| spot.chunk <= last.chunk);
    &spots[from..to]
}

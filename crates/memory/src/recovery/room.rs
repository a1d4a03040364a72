//! A larger /dev/shm, more disk, another node.

use stoke_api::Bytes;

use super::{Case, Change, Plan, rounded_up};
use crate::diagnosis::Cause;

/// What container runtimes give for /dev/shm.
const SHM_DEFAULT: Bytes = Bytes::mib(64);
/// Loaders that need more than that need about this much.
const SHM_FIRST: Bytes = Bytes::gib(1);
/// Local disk where nobody ever said how much.
const STORAGE_FIRST: Bytes = Bytes::gib(20);
const STEP: u64 = 4;

pub fn more_shared_memory(case: &Case<'_>) -> Plan {
    let facts = &case.diagnosis.facts;
    let had = case.had.shm.or(facts.usage.map(|usage| usage.size));
    let had = had.unwrap_or(SHM_DEFAULT);
    let (most, why) = case.most_memory();
    // What is in /dev/shm is memory of the worker, which needs some for itself.
    let most_shm = Bytes(most.0 / 4 * 3);
    if had.0 >= most_shm.0 - most_shm.0 / 20 {
        return Err(format!("it had a /dev/shm of {} and {why}", had.human()));
    }
    let tried = facts.figures.tried.unwrap_or_default().0;
    let learned = case.advice.and_then(|advice| advice.shm);
    // Its size costs nothing until it is used. So it is at once what a machine gives its own, half of the memory.
    let wanted = [
        had.0
            .saturating_mul(if case.is_last_chance() { STEP } else { 2 }),
        had.0.saturating_add(tried.saturating_mul(2)),
        case.had.memory.0 / 2,
        SHM_FIRST.0,
        learned.unwrap_or_default().0,
    ];
    let wanted = wanted.into_iter().max().unwrap_or_default();
    let size = rounded_up(wanted.min(most_shm.0 - 1)).min(most_shm);
    let mut changes = vec![Change::Shm { size }];
    // Room that it did not use before is enough, where that was measured.
    let used = facts.peak.unwrap_or(case.had.memory);
    let needed = used.0.saturating_add(size.0.saturating_sub(had.0));
    if needed.min(most.0) > case.had.memory.0 {
        let limit = rounded_up(needed.min(most.0 - 1)).min(most);
        let request = None;
        changes.push(Change::Memory { limit, request });
    }
    Ok(changes)
}

pub fn more_storage(case: &Case<'_>) -> Plan {
    let facts = &case.diagnosis.facts;
    // The last attempt goes where there is most.
    let on_disk = case.diagnosis.cause == Cause::EphemeralStorage;
    if case.is_last_chance() && case.room.volumes && on_disk {
        return Err("a volume holds more than a node's disk".to_owned());
    }
    let had = case.had.storage.or(facts.usage.map(|usage| usage.size));
    let used = facts.usage.map_or(0, |usage| usage.peak.0);
    let learned = case.advice.and_then(|advice| advice.storage);
    let most = case.room.storage.unwrap_or(Bytes(u64::MAX));
    let wanted = match had {
        Some(_) if case.is_last_chance() && most.0 < u64::MAX => most.0,
        Some(had) => had.0.saturating_mul(STEP),
        None => STORAGE_FIRST.0,
    };
    let wanted = wanted
        .max(used.saturating_add(used / 2))
        .max(learned.unwrap_or_default().0);
    let size = rounded_up(wanted.min(most.0.saturating_sub(1))).min(most);
    if on_disk && had.is_some_and(|had| size.0 <= had.0.saturating_add(had.0 / 20)) {
        let most = most.human();
        return Err(format!("no node has more than {most} of local disk for it"));
    }
    let mut changes = vec![Change::Storage { size }];
    if !on_disk {
        changes.extend(other_node(case).unwrap_or_default());
    }
    Ok(changes)
}

pub fn scratch_volume(case: &Case<'_>) -> Plan {
    if !case.room.volumes {
        return Err("it can have no volume for temporary files".to_owned());
    }
    let had = case
        .had
        .storage
        .or(case.room.storage)
        .unwrap_or(STORAGE_FIRST);
    let had = case.tuning().scratch.unwrap_or(had);
    Ok(vec![Change::Scratch {
        size: rounded_up(had.0.saturating_mul(STEP)),
    }])
}

pub fn other_node(case: &Case<'_>) -> Plan {
    let node = &case.diagnosis.facts.node;
    if node.is_empty() || case.room.other_nodes == 0 {
        return Err("there is no other node for it".to_owned());
    }
    Ok(vec![Change::AvoidNodes {
        names: vec![node.clone()],
    }])
}

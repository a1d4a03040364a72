//! CPU and memory of a node are there for its GPUs. A GPU for which no CPU or no memory is left is stranded: nobody can use it.
//!
//! Each GPU of a node has an equal share of its CPU and memory. What lacks of the shares of the free GPUs is counted in thousandths of a GPU.

use super::need::Need;
use crate::gpu::units;
use crate::resources::Resources;
use crate::snapshot::{DEVICE, Room};

/// A GPU is as good as any while half of its share is there: few jobs use all of theirs, and every node has some daemons.
const TOLERATED: i128 = 500;

/// How a node's free GPUs and one of its resources stand to each other, and how a worker changes it.
struct Balance {
    /// GPUs that there is nothing for, in thousandths times `share`. Below zero there is some to spare.
    lack: i128,
    /// What one worker adds to it.
    step: i128,
    /// Of the resource, all there is.
    share: i128,
}

fn balances(need: &Need, room: &Room) -> [Balance; 2] {
    let whole = i128::from(DEVICE);
    let gpus = i128::from(units(&room.have));
    let shared: i128 = room.shared.iter().map(|free| i128::from(*free)).sum();
    let free_gpus = i128::from(units(&room.free)) * whole + shared;
    let asked = match need.part {
        Some(milli) => i128::from(milli),
        None => i128::from(units(&need.ask)) * whole,
    };
    [
        |resources: &Resources| resources.cpu.0,
        |resources: &Resources| resources.memory.0,
    ]
    .map(|of| {
        let [share, free, ask] = [&room.have, &room.free, &need.ask].map(|r| i128::from(of(r)));
        Balance {
            lack: free_gpus * share - free * gpus * whole,
            step: ask * gpus * whole - asked * share,
            share,
        }
    })
}

/// Of the `each` workers that a node has room for, how many strand no more than so many of its GPUs that are not stranded already.
pub(super) fn bearable(need: &Need, room: &Room, each: u32, gpus: u32) -> u32 {
    if units(&room.have) == 0 {
        return each;
    }
    let balances = balances(need, room);
    let limit = stranded_milli(&balances, 0).max(TOLERATED) + i128::from(gpus) * i128::from(DEVICE);
    let bearable = balances.iter().map(|balance| {
        if balance.step <= 0 || balance.share == 0 {
            return i128::from(each);
        }
        let spare = limit * balance.share - balance.lack;
        (spare / balance.step).clamp(0, i128::from(each))
    });
    bearable.min().unwrap_or_default() as u32
}

/// GPUs that so many workers strand; below zero where they use some that were stranded.
pub(super) fn stranded(need: &Need, room: &Room, workers: u32) -> i64 {
    if units(&room.have) == 0 {
        return 0;
    }
    let balances = balances(need, room);
    let gpus = |workers| (stranded_milli(&balances, workers) + TOLERATED - 1) / i128::from(DEVICE);
    i64::try_from(gpus(workers) - gpus(0)).unwrap_or(i64::MAX)
}

fn stranded_milli(balances: &[Balance], workers: u32) -> i128 {
    let of = |balance: &Balance| {
        let lack = balance.lack + balance.step * i128::from(workers);
        lack.checked_div(balance.share).unwrap_or(0).max(0)
    };
    balances.iter().map(of).max().unwrap_or(0)
}

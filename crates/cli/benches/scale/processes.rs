//! Where the CPU goes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use crate::rig::Rig;

/// What the kernel counts in here, whatever it counts in for itself.
const TICKS_PER_SECOND: f64 = 100.0;

/// By what each process is called.
pub type CpuSeconds = BTreeMap<String, f64>;

/// What every process of the testbed, this one and the operator have used so far.
pub fn cpu_seconds(rig: &Rig, operator: Option<u32>) -> Result<CpuSeconds> {
    let ledger = std::fs::read_to_string(rig.file("ledger"))?;
    let testbed = ledger.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_process = words.next()? == "process";
        let pid: u32 = words.next()?.parse().ok()?;
        let name = words.nth(1)?;
        is_process.then(|| (name.to_owned(), pid))
    });
    let own = [("bench".to_owned(), std::process::id())];
    let operator = operator.map(|pid| ("operator".to_owned(), pid));
    let all = testbed.chain(own).chain(operator);
    all.map(|(name, pid)| Ok((name, used(pid)?))).collect()
}

fn used(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold anything, so fields are counted from behind its bracket.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || -> Result<u64> { Ok(fields.next().context("too short")?.parse()?) };
    let ticks = ticks()? + ticks()?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

//! Less GPU memory needed, or more of it had.

use stoke_api::Bytes;

use super::{Case, Change, Plan, Tried};
use crate::diagnosis::{Cause, Shape};

/// A batch is not divided further: whoever had so large a one would have found out.
const DIVISOR_MAX: u32 = 1024;

pub fn smaller_micro_batch(case: &Case<'_>) -> Plan {
    if is_ignored(case.tried) {
        return Err(
            "a smaller micro-batch changed nothing: it does not follow STOKE_MICRO_BATCH_SCALE"
                .to_owned(),
        );
    }
    let divisor = case.tuning().micro_batch_divisor.unwrap_or(1);
    let mut step = if case.is_last_chance() { 8 } else { 2 };
    // One tensor that is larger than the GPU has to become smaller than half of it.
    let figures = &case.diagnosis.facts.figures;
    if let (
        Cause::GpuOutOfMemory {
            shape: Shape::TooBig,
            ..
        },
        Some(tried),
        Some(total),
    ) = (case.diagnosis.cause, figures.tried, figures.total)
    {
        let times = tried.0 / (total.0 / 2).max(1) + 1;
        step = step.max(
            u32::try_from(times)
                .unwrap_or(DIVISOR_MAX)
                .min(DIVISOR_MAX)
                .next_power_of_two(),
        );
    }
    let divisor = divisor.saturating_mul(step);
    if divisor > DIVISOR_MAX {
        return Err(format!(
            "a micro-batch of less than 1/{DIVISOR_MAX} is none"
        ));
    }
    Ok(vec![Change::MicroBatch { divisor }])
}

/// Did the job do the very same with a smaller micro-batch? What it asked for and what it had by then are the same to the byte, or what it
/// asked for is, twice, where it does not say what it had.
fn is_ignored(tried: &[Tried]) -> bool {
    let divided = |tried: &Tried| tried.tuning.micro_batch_divisor.unwrap_or(1);
    let mut same = 0;
    for pair in tried.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        let asked = after.finding.tried.is_some() && after.finding.tried == before.finding.tried;
        if !asked || divided(after) <= divided(before) {
            continue;
        }
        match (before.finding.used, after.finding.used) {
            // A GPU is as full every time; to the byte it is only of the very same work.
            (Some(before), Some(after)) if before == after => return true,
            (Some(_), Some(_)) => {}
            _ => same += 1,
        }
    }
    same >= 2
}

pub fn expandable_segments(case: &Case<'_>) -> Plan {
    if case.tuning().expandable_segments {
        return Err("its allocator had expandable segments".to_owned());
    }
    Ok(vec![Change::ExpandableSegments {}])
}

pub fn bigger_gpu(case: &Case<'_>) -> Plan {
    let figures = &case.diagnosis.facts.figures;
    // A message counts what the driver leaves; a type's name says a little more.
    let had = case.had.gpu_memory.or(figures.total);
    let Some(had) = had else {
        return Err("how much memory its GPU has is not known".to_owned());
    };
    let needed = match (figures.tried, figures.allocated.or(figures.own)) {
        (Some(tried), used) => tried.0.saturating_add(used.unwrap_or_default().0),
        (None, _) => 0,
    };
    let larger = |bytes: Bytes| bytes.0 > had.0.saturating_add(had.0 / 10) && bytes.0 > needed;
    let mut types: Vec<(Bytes, String)> = case
        .room
        .gpu_types
        .iter()
        .filter(|(_, memory)| larger(*memory))
        .map(|(name, memory)| (*memory, name.clone()))
        .collect();
    types.sort();
    if types.is_empty() {
        return Err(format!(
            "no GPU that it allows and that is there has enough more than {}",
            had.human()
        ));
    }
    Ok(vec![Change::GpuTypes {
        names: types.into_iter().map(|(_, name)| name).collect(),
    }])
}

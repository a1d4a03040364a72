//! How jobs went, a line each.

use jiff::Timestamp;
use serde::Serialize;
use stoke_api::Bytes;
use stoke_api::record::JobRecord;
use stoke_api::trainjob::Phase;

use super::table::Grid;
use crate::clock;

/// A record, and where its job was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    pub namespace: String,
    #[serde(flatten)]
    pub record: JobRecord,
}

pub fn table(told: &[Told], with_namespace: bool, now: Timestamp) -> String {
    let head = [
        "NAME", "ENDED", "PHASE", "WHY", "ATTEMPTS", "RAN", "GPU-TIME", "PEAK", "AGO",
    ];
    let mut head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    if with_namespace {
        head.insert(0, "NAMESPACE".to_owned());
    }
    let mut grid = Grid::new(head);
    for Told { namespace, record } in told {
        let mut cells = cells(record, now);
        if with_namespace {
            cells.insert(0, namespace.clone());
        }
        grid.push(cells);
    }
    grid.text()
}

fn cells(record: &JobRecord, now: Timestamp) -> Vec<String> {
    let at = i64::try_from(record.at).unwrap_or(i64::MAX);
    let at = Timestamp::from_second(at).unwrap_or(Timestamp::MAX);
    let none = || "<none>".to_owned();
    let why = match record.phase {
        Phase::Failed if !record.cause.is_empty() => &record.cause,
        _ => &record.reason,
    };
    vec![
        record.name.clone(),
        at.to_string(),
        format!("{:?}", record.phase),
        why.clone(),
        record.attempts.to_string(),
        clock::short(record.seconds),
        match record.gpu_seconds {
            0 => none(),
            seconds => clock::short(seconds),
        },
        record.peak.map_or_else(none, Bytes::human),
        clock::ago(at, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_line() {
        let told = |record: JobRecord| Told {
            namespace: "vision".to_owned(),
            record,
        };
        let told = [
            told(JobRecord {
                name: "resnet50".to_owned(),
                id: "0a1b".to_owned(),
                at: 1_794_700_000,
                phase: Phase::Complete,
                reason: "Succeeded".to_owned(),
                attempts: 3,
                seconds: 40_000,
                gpu_seconds: 320_000,
                peak: Some(Bytes::mib(5000)),
                ..JobRecord::default()
            }),
            told(JobRecord {
                name: "eval".to_owned(),
                at: 1_794_600_000,
                phase: Phase::Failed,
                reason: "RetriesExhausted".to_owned(),
                cause: "ContainerLimit".to_owned(),
                attempts: 4,
                failures: 4,
                ..JobRecord::default()
            }),
        ];
        let now = Timestamp::from_second(1_794_700_900).unwrap();
        let text = |wide| anstream::adapter::strip_str(&table(&told, wide, now)).to_string();
        insta::assert_snapshot!(text(false), @r"
        NAME       ENDED                  PHASE      WHY              ATTEMPTS   RAN     GPU-TIME   PEAK      AGO
        resnet50   2026-11-14T23:46:40Z   Complete   Succeeded        3          11h6m   3d16h      4.9 GiB   15m
        eval       2026-11-13T20:00:00Z   Failed     ContainerLimit   4          0s      <none>     <none>    1d4h
        ");
        assert!(text(true).starts_with("NAMESPACE"));
    }
}

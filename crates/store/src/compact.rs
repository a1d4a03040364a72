//! Forgetting old log entries.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, params};

use crate::{Error, Revision, Store, schema};

/// How much of the log to keep. An entry goes when any of the bounds says so; the newest entry always stays.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub changes_max: u64,
    pub bytes_max: u64,
    pub age_max: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            changes_max: 50_000,
            bytes_max: 256 << 20,
            age_max: Duration::from_secs(30 * 60),
        }
    }
}

/// Entries removed per write, so that compaction never holds up other writers for long.
const CHUNK: u64 = 1_000;

pub(crate) async fn run(store: &Store, retention: Retention) -> Result<Revision, Error> {
    let target = store
        .read(move |read| Ok::<_, Error>(target(read.connection(), retention)?))
        .await?;
    loop {
        let oldest = store
            .write(move |write| {
                let connection = write.connection();
                let oldest = schema::oldest_revision(connection)?;
                let until = Revision(target.0.min(oldest.0 + CHUNK));
                connection
                    .prepare_cached("DELETE FROM log WHERE revision <= ?")?
                    .execute(params![until])?;
                Ok::<_, Error>(schema::oldest_revision(connection)?)
            })
            .await?;
        if oldest >= target {
            return Ok(oldest);
        }
    }
}

/// The revision up to which the log is to be forgotten.
fn target(connection: &Connection, retention: Retention) -> rusqlite::Result<Revision> {
    let latest = schema::latest_revision(connection)?;
    let oldest = schema::oldest_revision(connection)?;
    let by_count = latest.0.saturating_sub(retention.changes_max);
    let cutoff_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_sub(retention.age_max)
        .as_millis() as i64;
    let by_age: Option<Revision> = connection
        .prepare_cached("SELECT MAX(revision) FROM log WHERE at_ms < ?")?
        .query_row([cutoff_ms], |row| row.get(0))?;
    let by_bytes: Option<Revision> = connection
        .prepare_cached(
            "SELECT MAX(revision) FROM (
                SELECT revision,
                       SUM(LENGTH(document) + IFNULL(LENGTH(previous), 0)) OVER (ORDER BY revision DESC) AS total
                FROM log
             ) WHERE total > ?",
        )?
        .query_row([retention.bytes_max as i64], |row| row.get(0))?;
    let wanted = [by_age, by_bytes]
        .into_iter()
        .flatten()
        .fold(by_count, |most, revision| most.max(revision.0));
    // The newest entry remembers the counter.
    Ok(Revision(wanted.min(latest.0 - 1).max(oldest.0)))
}

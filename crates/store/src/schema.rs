//! The tables, and how connections to them are set up.

use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rusqlite_migration::{M, Migrations};

use crate::{OpenError, Revision, private};

/// `log` has its small columns first, so that a scan that skips entries does not read their documents.
/// `previous` lets a watcher with a selector see that an object stopped matching, and lets a list be continued
/// at the revision at which it began.
const STEPS: &[M<'static>] = &[M::up(
    "CREATE TABLE object (
        resource  TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name      TEXT NOT NULL,
        revision  INTEGER NOT NULL,
        document  BLOB NOT NULL,
        PRIMARY KEY (resource, namespace, name)
    );
    CREATE TABLE log (
        revision  INTEGER PRIMARY KEY,
        at_ms     INTEGER NOT NULL,
        type      INTEGER NOT NULL,
        resource  TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name      TEXT NOT NULL,
        document  BLOB NOT NULL,
        previous  BLOB
    );",
)];
const MIGRATIONS: Migrations<'static> = Migrations::from_slice(STEPS);

/// How long a connection waits for a lock. Only a foreign process (a backup, the sqlite3 shell) can hold one.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn open_writer(path: &Path) -> Result<Connection, OpenError> {
    keep_private(path).map_err(|source| OpenError::Private {
        path: path.to_owned(),
        source,
    })?;
    let mut connection = Connection::open(path).map_err(OpenError::Sqlite)?;
    set_up_writer(&connection).map_err(OpenError::Sqlite)?;
    MIGRATIONS
        .to_latest(&mut connection)
        .map_err(OpenError::Migrate)?;
    Ok(connection)
}

/// SQLite gives the files it puts beside the database the database's own mode, but keeps those it finds. Must come
/// before SQLite opens the file: closing a file lets go of all of the process's locks on it.
fn keep_private(path: &Path) -> io::Result<()> {
    private::open(path)?;
    for suffix in ["-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        private::tighten(Path::new(&beside))?;
    }
    Ok(())
}

fn set_up_writer(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

pub(crate) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// The newest entry of the log is never compacted away, so it is also the memory of the counter.
pub(crate) fn latest_revision(connection: &Connection) -> rusqlite::Result<Revision> {
    let newest: Option<Revision> = connection
        .prepare_cached("SELECT MAX(revision) FROM log")?
        .query_row([], |row| row.get(0))?;
    Ok(newest.unwrap_or(Revision::FIRST))
}

/// The oldest revision from which every later change is still in the log.
pub(crate) fn oldest_revision(connection: &Connection) -> rusqlite::Result<Revision> {
    let oldest: Option<Revision> = connection
        .prepare_cached("SELECT MIN(revision) FROM log")?
        .query_row([], |row| row.get(0))?;
    Ok(oldest.map_or(Revision::FIRST, |revision| Revision(revision.0 - 1)))
}

//! The one thread that writes: takes what is queued, runs it in one SQLite transaction, commits once, and only
//! then answers. While a commit syncs, the next batch gathers, so that throughput grows with load while a lone
//! write waits for nobody.
//!
//! Invariant: a failed write leaves no trace, and does not harm its neighbours in the batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::change::{Change, Ring};
use crate::{Error, OpenError, Options, Revision, Write};

pub(crate) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(
        connection: Connection,
        revision: Revision,
        ring: Arc<Ring>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let (queue, jobs) = mpsc::channel(options.queued_writes_max);
        let mut batcher = Batcher {
            connection,
            revision,
            ring,
            batch_max: options.writes_per_commit_max,
        };
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || batcher.run(jobs))
            .map_err(OpenError::Thread)?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    pub(crate) async fn submit<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(&mut Write<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Closure {
            work: Some(work),
            result: None,
            answer,
        });
        let queue = self.queue.as_ref().ok_or(Error::Closed)?;
        queue.send(job).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        // The last handle may be dropped by a task on the writer's own thread: inside a closure it ran.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

trait Job: Send {
    /// Runs the work; says whether its changes are to be kept.
    fn run(&mut self, write: &mut Write<'_>) -> bool;
    /// Answers the caller: with the work's own result if the commit it was part of succeeded.
    fn finish(self: Box<Self>, commit: Result<(), Error>);
}

struct Closure<F, T, E> {
    work: Option<F>,
    result: Option<Result<T, E>>,
    answer: oneshot::Sender<Result<T, E>>,
}

impl<F, T, E> Job for Closure<F, T, E>
where
    F: FnOnce(&mut Write<'_>) -> Result<T, E> + Send,
    T: Send,
    E: From<Error> + Send,
{
    fn run(&mut self, write: &mut Write<'_>) -> bool {
        let Some(work) = self.work.take() else {
            return false;
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(write)))
            .unwrap_or_else(|_| Err(Error::Panicked.into()));
        let keep = result.is_ok();
        self.result = Some(result);
        keep
    }

    fn finish(self: Box<Self>, commit: Result<(), Error>) {
        let result = match commit {
            Ok(()) => self.result.unwrap_or_else(|| Err(E::from(Error::Panicked))),
            Err(error) => Err(error.into()),
        };
        // The caller may have gone; what is written stays written.
        let _ = self.answer.send(result);
    }
}

struct Batcher {
    connection: Connection,
    revision: Revision,
    ring: Arc<Ring>,
    batch_max: usize,
}

impl Batcher {
    fn run(&mut self, mut jobs: mpsc::Receiver<Box<dyn Job>>) {
        while let Some(first) = jobs.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < self.batch_max
                && let Ok(job) = jobs.try_recv()
            {
                batch.push(job);
            }
            self.commit(batch);
        }
    }

    fn commit(&mut self, mut batch: Vec<Box<dyn Job>>) {
        let outcome = self.transaction(&mut batch);
        match outcome {
            Ok(changes) => {
                if let Some(newest) = changes.last() {
                    self.revision = newest.revision;
                }
                self.ring.publish(changes);
                for job in batch {
                    job.finish(Ok(()));
                }
            }
            Err(error) => {
                if !self.connection.is_autocommit()
                    && let Err(error) = self.connection.execute_batch("ROLLBACK")
                {
                    tracing::error!(%error, "the store could not roll back");
                }
                for job in batch {
                    job.finish(Err(error.clone()));
                }
            }
        }
    }

    fn transaction(&mut self, batch: &mut [Box<dyn Job>]) -> Result<Vec<Change>, Error> {
        let connection = &self.connection;
        let now_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as i64);
        let mut revision = self.revision;
        let mut changes = Vec::new();
        execute(connection, "BEGIN IMMEDIATE")?;
        for job in batch {
            execute(connection, "SAVEPOINT work")?;
            let mut write = Write::new(connection, revision, now_ms);
            let keep = job.run(&mut write);
            // A full disk or an I/O error makes SQLite roll back the whole transaction by itself, and with it
            // the writes before this one.
            if connection.is_autocommit() {
                return Err(lost_transaction(connection));
            }
            if keep {
                execute(connection, "RELEASE work")?;
                revision = write.revision();
                changes.extend(write.into_changes());
            } else {
                execute(connection, "ROLLBACK TO work")?;
                execute(connection, "RELEASE work")?;
            }
        }
        execute(connection, "COMMIT")?;
        Ok(changes)
    }
}

fn execute(connection: &Connection, sql: &str) -> Result<(), Error> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// Asks SQLite, by a write that changes nothing, why it gave the transaction up.
fn lost_transaction(connection: &Connection) -> Error {
    match execute(connection, "BEGIN IMMEDIATE").and_then(|()| execute(connection, "ROLLBACK")) {
        Err(error) => error,
        Ok(()) => Error::DiskFull(Arc::new(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL),
            None,
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Error, Key, Options, Revision, Store};

    fn key(name: &str) -> Key {
        Key::new("things", "", name)
    }

    #[tokio::test]
    async fn a_full_disk_is_an_answer_and_not_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store.db"), &Options::default()).unwrap();
        // A page limit is how SQLite itself can be made to find the disk full.
        store
            .write(|write| -> Result<(), Error> {
                write.create(&key("small"), json!({"metadata": {}}))?;
                let pages: i64 =
                    write
                        .connection()
                        .query_row("PRAGMA max_page_count = 40", [], |row| row.get(0))?;
                assert_eq!(pages, 40);
                Ok(())
            })
            .await
            .unwrap();
        let big = "x".repeat(1 << 20);
        let refused = store
            .write(move |write| write.create(&key("big"), json!({"metadata": {}, "data": big})))
            .await;
        assert!(matches!(refused, Err(Error::DiskFull(_))), "{refused:?}");
        store
            .write(|write| write.create(&key("tiny"), json!({"metadata": {}})))
            .await
            .unwrap();
        assert_eq!(store.revision(), Revision(Revision::FIRST.0 + 2));
    }
}

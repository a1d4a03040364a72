//! Reading at one revision: single objects, ordered scans, and scans of a past that the log still covers.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Semaphore;

use crate::{Error, Key, Revision, Stored, schema};

/// Which objects to visit.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    pub resource: &'a str,
    /// Only this namespace; all if `None`.
    pub namespace: Option<&'a str>,
    /// Only objects after this namespace and name.
    pub after: Option<(&'a str, &'a str)>,
    /// As things were at this revision; as they are if `None`.
    pub at: Option<Revision>,
}

impl<'a> Scan<'a> {
    pub fn all(resource: &'a str) -> Self {
        Self {
            resource,
            namespace: None,
            after: None,
            at: None,
        }
    }

    pub fn namespace(resource: &'a str, namespace: &'a str) -> Self {
        Self {
            namespace: Some(namespace),
            ..Self::all(resource)
        }
    }
}

/// One object of a scan. The document is borrowed from the database's page cache.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub document: &'a [u8],
}

/// A consistent view of the store.
pub struct Read<'c> {
    connection: &'c Connection,
}

impl<'c> Read<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self { connection }
    }

    pub(crate) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// The revision of this view.
    pub fn revision(&self) -> Result<Revision, Error> {
        Ok(schema::latest_revision(self.connection)?)
    }

    pub fn get(&self, key: &Key) -> Result<Option<Stored>, Error> {
        let found = self
            .connection
            .prepare_cached(
                "SELECT revision, document FROM object WHERE resource = ? AND namespace = ? AND name = ?",
            )?
            .query_row(params![key.resource, key.namespace, key.name], |row| {
                Ok(Stored {
                    revision: row.get(0)?,
                    document: row.get::<_, Vec<u8>>(1)?.into(),
                })
            })
            .optional()?;
        Ok(found)
    }

    pub(crate) fn contains(&self, key: &Key) -> Result<bool, Error> {
        Ok(self
            .connection
            .prepare_cached(
                "SELECT 1 FROM object WHERE resource = ? AND namespace = ? AND name = ?",
            )?
            .exists(params![key.resource, key.namespace, key.name])?)
    }

    /// The resources that have objects, in order.
    pub fn resources(&self) -> Result<Vec<String>, Error> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT MIN(resource) FROM object WHERE resource > ?")?;
        let mut found: Vec<String> = Vec::new();
        // One index lookup per resource, where DISTINCT would visit every object.
        loop {
            let after = found.last().map_or("", String::as_str);
            match statement.query_row([after], |row| row.get::<_, Option<String>>(0))? {
                Some(next) => found.push(next),
                None => return Ok(found),
            }
        }
    }

    /// How many objects a scan of the present would visit.
    pub fn count(&self, scan: &Scan<'_>) -> Result<u64, Error> {
        let (namespace, name) = scan.after.unwrap_or_default();
        let count: i64 = match scan.namespace {
            Some(only) => self
                .connection
                .prepare_cached(
                    "SELECT COUNT(*) FROM object WHERE resource = ? AND namespace = ? AND name > ?",
                )?
                .query_row(params![scan.resource, only, name], |row| row.get(0))?,
            None => self
                .connection
                .prepare_cached(
                    "SELECT COUNT(*) FROM object WHERE resource = ? AND (namespace, name) > (?, ?)",
                )?
                .query_row(params![scan.resource, namespace, name], |row| row.get(0))?,
        };
        Ok(count as u64)
    }

    /// Visits objects in order of namespace and name until `visit` breaks.
    pub fn scan(
        &self,
        scan: &Scan<'_>,
        mut visit: impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let Some(at) = scan.at else {
            return self.scan_present(scan, visit);
        };
        let mut past = self.past(scan, at)?.into_iter().peekable();
        let mut stopped = false;
        self.scan_present(scan, |item| {
            let place = (item.namespace, item.name);
            let mut replaced = false;
            while let Some((key, _)) = past.peek() {
                let other = (key.0.as_str(), key.1.as_str());
                if other > place {
                    break;
                }
                replaced = other == place;
                if let Some((key, Some(document))) = past.next()
                    && visit(past_item(&key, &document)).is_break()
                {
                    stopped = true;
                    return ControlFlow::Break(());
                }
            }
            if !replaced && visit(item).is_break() {
                stopped = true;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        for (key, document) in past {
            if stopped {
                break;
            }
            if let Some(document) = document {
                stopped = visit(past_item(&key, &document)).is_break();
            }
        }
        Ok(())
    }

    fn scan_present(
        &self,
        scan: &Scan<'_>,
        mut visit: impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let (namespace, name) = scan.after.unwrap_or_default();
        let mut statement;
        let mut rows = if let Some(only) = scan.namespace {
            statement = self.connection.prepare_cached(
                "SELECT namespace, name, document FROM object
                 WHERE resource = ? AND namespace = ? AND name > ? ORDER BY name",
            )?;
            statement.query(params![scan.resource, only, name])?
        } else {
            statement = self.connection.prepare_cached(
                "SELECT namespace, name, document FROM object
                 WHERE resource = ? AND (namespace, name) > (?, ?) ORDER BY namespace, name",
            )?;
            statement.query(params![scan.resource, namespace, name])?
        };
        while let Some(row) = rows.next()? {
            let item = Item {
                namespace: row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?,
                name: row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?,
                document: row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?,
            };
            if visit(item).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// What the objects of `scan` that changed after `at` were at `at`: the state before their first change
    /// since, or `None` if they did not exist.
    fn past(&self, scan: &Scan<'_>, at: Revision) -> Result<Past, Error> {
        self.check_covered(at)?;
        let (namespace, name) = scan.after.unwrap_or_default();
        let mut past = Past::new();
        let mut statement = self.connection.prepare_cached(
            "SELECT namespace, name, previous FROM log WHERE revision > ? AND resource = ? ORDER BY revision",
        )?;
        let mut rows = statement.query(params![at, scan.resource])?;
        while let Some(row) = rows.next()? {
            let place: (String, String) = (row.get(0)?, row.get(1)?);
            let wanted = match scan.namespace {
                Some(only) => place.0 == only && place.1.as_str() > name,
                None => (place.0.as_str(), place.1.as_str()) > (namespace, name),
            };
            if wanted && !past.contains_key(&place) {
                past.insert(place, row.get::<_, Option<Vec<u8>>>(2)?.map(Bytes::from));
            }
        }
        Ok(past)
    }

    /// Whether every change after `at` can still be told.
    pub(crate) fn check_covered(&self, at: Revision) -> Result<(), Error> {
        let oldest = schema::oldest_revision(self.connection)?;
        if at < oldest {
            return Err(Error::Gone {
                requested: at,
                oldest,
            });
        }
        let latest = self.revision()?;
        if at > latest {
            return Err(Error::Future {
                requested: at,
                latest,
            });
        }
        Ok(())
    }
}

type Past = BTreeMap<(String, String), Option<Bytes>>;

fn past_item<'a>(key: &'a (String, String), document: &'a [u8]) -> Item<'a> {
    Item {
        namespace: &key.0,
        name: &key.1,
        document,
    }
}

/// The read connections: opened when first needed, at most as many as reads may run at once.
pub(crate) struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, readers_max: usize) -> Self {
        Self {
            path,
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(readers_max)),
        }
    }

    pub(crate) async fn run<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(&Read<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| Error::Closed)?;
        let idle = Arc::clone(&self.idle);
        let path = self.path.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let waiting = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match waiting {
                Some(connection) => connection,
                None => schema::open_reader(&path).map_err(Error::from)?,
            };
            let result = {
                // A transaction pins the snapshot; dropping it ends it.
                let snapshot = connection.unchecked_transaction().map_err(Error::from)?;
                work(&Read::new(&snapshot))
            };
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
            result
        });
        done.await.unwrap_or_else(|_| Err(Error::Panicked.into()))
    }
}

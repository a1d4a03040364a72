//! What the operator asked of the API server, by that server's own log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};

use anyhow::Result;
use serde::Deserialize;

use crate::rig::{ACCOUNT, Rig};

pub struct AuditLog {
    log: BufReader<File>,
    writes: BTreeMap<String, usize>,
    denied: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    user: User,
    verb: String,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Status,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    resource: String,
    subresource: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    code: u16,
}

impl AuditLog {
    /// From what is asked after this.
    pub fn open(rig: &Rig) -> Result<Self> {
        let mut file = File::open(rig.file("audit.log"))?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self {
            log: BufReader::new(file),
            writes: BTreeMap::new(),
            denied: 0,
        })
    }

    pub fn read_on(&mut self) -> Result<()> {
        let mut line = String::new();
        while self.log.read_line(&mut line)? > 0 {
            if line.contains(ACCOUNT) {
                self.take(serde_json::from_str(&line)?);
            }
            line.clear();
        }
        Ok(())
    }

    fn take(&mut self, entry: Entry) {
        if entry.user.username != ACCOUNT {
            return;
        }
        self.denied += usize::from(entry.response_status.code == 403);
        let writes = ["create", "update", "patch", "delete", "deletecollection"];
        if writes.contains(&entry.verb.as_str()) {
            let Object {
                resource,
                subresource,
            } = entry.object_ref;
            let of = if subresource.is_empty() { "" } else { "/" };
            let what = format!("{} {resource}{of}{subresource}", entry.verb);
            *self.writes.entry(what).or_default() += 1;
        }
    }

    /// How often each was written: `create pods`, `patch trainjobs/status`.
    pub fn writes(&self) -> &BTreeMap<String, usize> {
        &self.writes
    }

    pub fn denied(&self) -> usize {
        self.denied
    }
}

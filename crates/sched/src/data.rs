//! What jobs read that is copied to a node first, and which nodes have it already.
//!
//! It guides where a gang goes among places that fit, and never whether it does: nobody waits for a warm node while a cold one has room.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use stoke_api::Bytes;

/// Data that is copied once to each node that needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dataset {
    /// Absent where nobody knows yet: then it only breaks ties.
    pub size: Option<Bytes>,
    /// The nodes that have it.
    pub warm: BTreeSet<String>,
}

/// All that a gang reads: what a node lacks that has none of it, and what nodes have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Data<'a> {
    total: u64,
    on: BTreeMap<&'a str, u64>,
}

impl<'a> Data<'a> {
    /// One dataset more, with the nodes that have it or will.
    pub(crate) fn add(&mut self, size: Option<Bytes>, nodes: &BTreeSet<&'a str>) {
        let bytes = size.map_or(0, |size| size.0).max(1);
        self.total = self.total.saturating_add(bytes);
        for node in nodes {
            let has = self.on.entry(node).or_default();
            *has = has.saturating_add(bytes);
        }
    }

    /// Does it make a difference where a gang goes?
    pub fn is_anywhere(&self) -> bool {
        !self.on.is_empty()
    }

    /// Bytes that a node needs which has none of it.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// What nodes have of it, in bytes, by name.
    pub(crate) fn on(&self) -> impl Iterator<Item = (&'a str, u64)> {
        self.on.iter().map(|(node, bytes)| (*node, *bytes))
    }
}

impl<'a> FromIterator<&'a Dataset> for Data<'a> {
    fn from_iter<I: IntoIterator<Item = &'a Dataset>>(datasets: I) -> Self {
        let mut data = Self::default();
        for dataset in datasets {
            let warm = dataset.warm.iter().map(String::as_str).collect();
            data.add(dataset.size, &warm);
        }
        data
    }
}

/// What of a dataset lies on the nodes that a gang was given, and where it has to be copied to. Its `Display` is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fetch {
    pub dataset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Nodes that have it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<String>,
    /// Nodes that it is copied to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cold: Vec<String>,
}

impl Fetch {
    pub(crate) fn of(name: &str, dataset: &Dataset, nodes: &BTreeSet<&str>) -> Self {
        let (warm, cold): (Vec<&str>, Vec<&str>) =
            nodes.iter().partition(|node| dataset.warm.contains(**node));
        let owned = |nodes: Vec<&str>| nodes.into_iter().map(str::to_owned).collect();
        Self {
            dataset: name.to_owned(),
            size: dataset.size,
            warm: owned(warm),
            cold: owned(cold),
        }
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dataset)?;
        if let Some(size) = self.size {
            write!(f, " ({})", size.human())?;
        }
        match (self.warm.as_slice(), self.cold.as_slice()) {
            (warm, []) => write!(f, " is on {} already", Named(warm)),
            ([], cold) => write!(f, " is copied to {}", Named(cold)),
            (warm, cold) => write!(
                f,
                " is on {} already and is copied to {}",
                Named(warm),
                Named(cold)
            ),
        }
    }
}

/// The first few nodes by name.
struct Named<'a>(&'a [String]);

/// What is said of a gang of hundreds must still fit on a line.
const NAMED_MAX: usize = 3;

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (named, rest) = self.0.split_at(self.0.len().min(NAMED_MAX));
        f.write_str(&named.join(", "))?;
        match rest.len() {
            0 => Ok(()),
            1 => f.write_str(" and 1 more node"),
            more => write!(f, " and {more} more nodes"),
        }
    }
}

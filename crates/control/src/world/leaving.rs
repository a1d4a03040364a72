//! Nodes that go away, and who is on them.

use std::collections::BTreeMap;

use stoke_api::TrainJob;

use super::World;
use super::holding::live_attempt;
use crate::cluster::{Notice, Then};
use crate::mirror::Key;

impl World {
    /// Takes note of what is said of a node. Who is on other nodes that are now believed to be lost is to be looked at as well.
    pub(super) fn note(&mut self, node: &str, notice: Option<Notice>) -> Vec<Key> {
        match notice {
            Some(notice) => self.notices.insert(node.to_owned(), notice),
            None => self.notices.remove(node),
        };
        // What it was is remembered, for an outage also ends with nodes that are added, and those are there already.
        let is_outage = self.is_outage();
        let was_outage = std::mem::replace(&mut self.was_outage, is_outage);
        if !was_outage || is_outage {
            return Vec::new();
        }
        let silent = self.silent().filter(|silent| *silent != node);
        silent.flat_map(|node| self.jobs_on(node)).collect()
    }

    /// Not those whose machines are said to be off: that is knowledge, and no silence.
    fn silent(&self) -> impl Iterator<Item = &str> {
        let notices = self.notices.iter();
        notices
            .filter(|(_, notice)| notice.then == Then::Silent)
            .map(|(node, _)| node.as_str())
    }

    /// Where more than half of all nodes fall silent at once it is the way to them that is lost, or whoever asks after them, and what runs on
    /// them most likely runs on.
    fn is_outage(&self) -> bool {
        self.silent().count() * 2 > self.nodes.len()
    }

    /// What is said of the nodes that the job's attempt is on.
    pub fn notices_for(&self, job: &TrainJob) -> BTreeMap<String, Notice> {
        if self.notices.is_empty() {
            return BTreeMap::new();
        }
        let is_outage = self.is_outage();
        let nodes = live_attempt(job).map(|attempt| attempt.nodes.as_slice());
        let nodes = nodes.unwrap_or_default().iter();
        let told = nodes.filter_map(|node| Some((node.clone(), self.notices.get(node)?.clone())));
        told.filter(|(_, notice)| notice.then != Then::Silent || !is_outage)
            .collect()
    }
}

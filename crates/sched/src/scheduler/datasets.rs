//! Where the data is that jobs read.
//!
//! Jobs name datasets, and the caller tells where those are: that a node has become warm is one fact, however many jobs read the dataset, and
//! undoes nothing that was found out about any of them. Data that a job with room reads is on its way to that job's nodes, or there.

use std::collections::{BTreeMap, BTreeSet};

use super::Scheduler;
use super::job::{Job, JobId};
use crate::data::{Data, Dataset, Fetch};

#[derive(Debug, Clone, Default)]
pub struct Datasets {
    told: BTreeMap<String, Dataset>,
    /// By dataset, the nodes on which jobs that read it have room, and how many do.
    read_on: BTreeMap<String, BTreeMap<String, u32>>,
}

impl Datasets {
    /// What these are, as far as anyone said.
    pub fn of<'a>(&'a self, names: &[String]) -> Data<'a> {
        let mut data = Data::default();
        for (name, dataset) in self.known(names) {
            let reading = self.read_on.get(name).into_iter().flatten();
            let reading = reading.map(|(node, _)| node);
            let nodes: BTreeSet<&str> = dataset
                .warm
                .iter()
                .chain(reading)
                .map(String::as_str)
                .collect();
            data.add(dataset.size, &nodes);
        }
        data
    }

    /// Each once, however often it is named.
    fn known<'a, 'n>(
        &'a self,
        names: &'n [String],
    ) -> impl Iterator<Item = (&'n str, &'a Dataset)> {
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let known = names.into_iter();
        known.filter_map(|name| Some((name, self.told.get(name)?)))
    }

    /// A job that reads these has room on a node.
    pub fn read(&mut self, names: &[String], node: &str) {
        for name in names {
            let nodes = self.read_on.entry(name.clone()).or_default();
            *nodes.entry(node.to_owned()).or_default() += 1;
        }
    }

    /// It has no more.
    pub fn leave(&mut self, names: &[String], node: &str) {
        for name in names {
            let Some(nodes) = self.read_on.get_mut(name) else {
                continue;
            };
            if let Some(count) = nodes.get_mut(node) {
                *count -= 1;
                if *count == 0 {
                    nodes.remove(node);
                }
            }
            if nodes.is_empty() {
                self.read_on.remove(name);
            }
        }
    }
}

impl Scheduler {
    /// Data that is copied to nodes before jobs read it. Nobody who waits is decided on otherwise than where it goes.
    pub fn put_dataset(&mut self, name: &str, dataset: Dataset) {
        self.datasets.told.insert(name.to_owned(), dataset);
    }

    pub fn remove_dataset(&mut self, name: &str) {
        self.datasets.told.remove(name);
    }

    /// What of a job's data lies on these nodes, and what is copied there.
    pub fn fetches(&self, id: &JobId, nodes: &[String]) -> Vec<Fetch> {
        let Some(Job { datasets, .. }) = self.jobs.get(id).map(|entry| &entry.job) else {
            return Vec::new();
        };
        // Nodes without a name are yet to come.
        let nodes = nodes.iter().map(String::as_str);
        let nodes: BTreeSet<&str> = nodes.filter(|node| !node.is_empty()).collect();
        if nodes.is_empty() {
            return Vec::new();
        }
        let known = self.datasets.known(datasets);
        known
            .map(|(name, dataset)| Fetch::of(name, dataset, &nodes))
            .collect()
    }
}

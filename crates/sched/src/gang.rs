//! What a job asks of placement: so many equal workers, and which nodes they may run on.

use std::collections::{BTreeMap, BTreeSet};

use stoke_api::GpuRequest;
use stoke_api::trainjob::Spot;

use crate::resources::Resources;
use crate::snapshot::{Effect, Node, Taint};

/// Workers that are placed all together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gang {
    pub workers: u32,
    /// What each worker asks for. Its `gpus` are whole ones; [`Gang::gpus`] says what was really asked.
    pub ask: Resources,
    pub gpus: GpuRequest,
    /// GPU models it may run on, any of them. Empty: any.
    pub gpu_types: Vec<String>,
    /// Labels a node must have, all of them.
    pub selector: BTreeMap<String, String>,
    /// A node must satisfy one of them. Empty: every node does.
    pub terms: Vec<Term>,
    /// The nodes that each of its volumes can be reached from; a node must satisfy one term of every volume.
    pub volumes: Vec<Vec<Term>>,
    pub tolerations: Vec<Toleration>,
    pub spot: Spot,
    /// Nodes that are used only where there is no room without them: its workers did not start there of late.
    pub avoid: BTreeSet<String>,
}

impl Gang {
    pub(crate) fn selects(&self, node: &Node) -> bool {
        let labelled = self
            .selector
            .iter()
            .all(|(key, value)| node.labels.get(key) == Some(value));
        labelled && (self.terms.is_empty() || self.terms.iter().any(|term| term.matches(node)))
    }

    pub(crate) fn reaches_volumes(&self, node: &Node) -> bool {
        let reached = |terms: &Vec<Term>| terms.iter().any(|term| term.matches(node));
        self.volumes.iter().all(reached)
    }

    pub(crate) fn tolerates(&self, node: &Node) -> bool {
        let tolerated = |taint| self.tolerations.iter().any(|t| t.covers(taint));
        node.taints.iter().all(tolerated)
    }

    pub(crate) fn accepts_spot(&self, node: &Node) -> bool {
        match self.spot {
            Spot::Allowed => true,
            Spot::Never => !node.spot,
            Spot::Only => node.spot,
        }
    }
}

/// One alternative of a node affinity: all its requirements hold. As in Kubernetes, an empty one matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Term(pub Vec<Requirement>);

impl Term {
    fn matches(&self, node: &Node) -> bool {
        !self.0.is_empty() && self.0.iter().all(|requirement| requirement.holds(node))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub subject: Subject,
    pub operator: Operator,
}

/// What a requirement is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Label(String),
    NodeName,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

impl Requirement {
    fn holds(&self, node: &Node) -> bool {
        let value = match &self.subject {
            Subject::Label(key) => node.labels.get(key),
            Subject::NodeName => Some(&node.name),
        };
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt(than) => number().is_some_and(|number| number > *than),
            Operator::Lt(than) => number().is_some_and(|number| number < *than),
        }
    }
}

/// Which taints a gang does not mind. An absent part covers everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Toleration {
    pub key: Option<String>,
    pub value: Option<String>,
    pub effect: Option<Effect>,
}

impl Toleration {
    fn covers(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self
                .value
                .as_ref()
                .is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

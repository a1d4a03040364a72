//! What a job asks of placement: so many equal workers, and which nodes they may run on.

use std::collections::{BTreeMap, BTreeSet};

use stoke_api::trainjob::Spot;
use stoke_api::{GpuMilli, GpuRequest};

use crate::resources::Resources;
use crate::snapshot::{Effect, Taint};

/// The level of single nodes: innermost in every cluster, and never configured.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// Workers that are placed all together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gang {
    pub workers: u32,
    /// Elastic: so many are enough to begin with. None: all.
    pub min_workers: Option<u32>,
    /// What each worker asks for. Its `gpus` are what the node counts as GPUs; [`Gang::gpus`] says what was really asked, and where that is
    /// a part of a GPU, placement finds out what it is counted as.
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
    /// How near to each other its workers must be. None: as few nodes as can be, wherever they are.
    pub topology: Option<Topology>,
    /// Nodes that are used only where there is no room without them: its workers did not start there of late.
    pub avoid: BTreeSet<String>,
}

/// How near to each other the workers of a gang must be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topology {
    /// All in one domain of this level, which is the key of a label.
    Required { level: String },
    /// In as few domains as can be, and as tight ones.
    Preferred,
}

/// What requirements are held against.
#[derive(Clone, Copy)]
pub(crate) struct Described<'a> {
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
}

impl Gang {
    /// The same with these GPUs for each worker.
    #[must_use]
    pub fn with_gpus(&self, gpus: GpuRequest) -> Self {
        let mut gang = self.clone();
        gang.ask.gpus = gpus.whole();
        gang.gpus = gpus;
        gang
    }

    /// Fewer workers than this are of no use.
    pub fn least(&self) -> u32 {
        self.min_workers
            .map_or(self.workers, |least| least.clamp(1, self.workers.max(1)))
    }

    /// Does it take GPUs, or parts of them?
    pub(crate) fn wants_gpus(&self) -> bool {
        self.ask.gpus > 0 || self.wants_part()
    }

    pub(crate) fn wants_part(&self) -> bool {
        matches!(self.gpus, GpuRequest::Fraction(_) | GpuRequest::Mig(_))
    }

    /// Thousandths of one GPU, where it asks for a part of one.
    pub(crate) fn device_milli(&self) -> Option<u16> {
        match self.gpus {
            GpuRequest::Fraction(GpuMilli(milli)) => Some(milli.clamp(1, 1000) as u16),
            _ => None,
        }
    }

    pub(crate) fn selects(&self, node: Described<'_>) -> bool {
        let labelled = self
            .selector
            .iter()
            .all(|(key, value)| node.labels.get(key) == Some(value));
        labelled && (self.terms.is_empty() || self.terms.iter().any(|term| term.matches(node)))
    }

    pub(crate) fn reaches_volumes(&self, node: Described<'_>) -> bool {
        let reached = |terms: &Vec<Term>| terms.iter().any(|term| term.matches(node));
        self.volumes.iter().all(reached)
    }

    /// Those of the taints that keep it away.
    pub(crate) fn minded<'a>(&'a self, taints: &'a [Taint]) -> impl Iterator<Item = &'a Taint> {
        let tolerated = |taint| self.tolerations.iter().any(|t| t.covers(taint));
        taints.iter().filter(move |taint| !tolerated(taint))
    }

    pub(crate) fn accepts_spot(&self, is_spot: bool) -> bool {
        match self.spot {
            Spot::Allowed => true,
            Spot::Never => !is_spot,
            Spot::Only => is_spot,
        }
    }

    /// Does it ask of nodes what `singular` labels say, or what they are called? Then nodes cannot be judged by their kind.
    pub(crate) fn is_particular(&self, singular: &BTreeSet<String>) -> bool {
        let asks = |terms: &[Term]| {
            let requirements = terms.iter().flat_map(|term| &term.0);
            requirements.into_iter().any(|r| match &r.subject {
                Subject::Label(key) => singular.contains(key),
                Subject::NodeName => true,
            })
        };
        self.selector.keys().any(|key| singular.contains(key))
            || asks(&self.terms)
            || self.volumes.iter().any(|terms| asks(terms))
    }
}

/// One alternative of a node affinity: all its requirements hold. As in Kubernetes, an empty one matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Term(pub Vec<Requirement>);

impl Term {
    fn matches(&self, node: Described<'_>) -> bool {
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
    fn holds(&self, node: Described<'_>) -> bool {
        let value = match &self.subject {
            Subject::Label(key) => node.labels.get(key).map(String::as_str),
            Subject::NodeName => Some(node.name),
        };
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|v| v == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| v != value)),
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

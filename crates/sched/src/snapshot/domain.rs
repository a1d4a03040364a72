//! Where a node stands in the topology.

use std::sync::Arc;

use super::Node;

/// One step from the outside in. A node that lacks the label is alone there: nobody knows what it is near to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    In(Box<str>),
    Alone(Box<str>),
}

/// One step for each level.
pub(crate) type Path = Arc<[Step]>;

pub(super) fn path(levels: &[String], node: &Node) -> Path {
    let step = |level: &String| match node.labels.get(level) {
        Some(domain) => Step::In(domain.as_str().into()),
        None => Step::Alone(node.name.as_str().into()),
    };
    levels.iter().map(step).collect()
}

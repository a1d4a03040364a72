//! `stoke queue`: the queues as a tree, with what each uses of what it may.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use stoke_api::condition::{self, ConditionType};
use stoke_api::names::ANY_GPU_TYPE;
use stoke_api::queue::QueueGpus;
use stoke_api::{GpuAmount, Queue};

use super::table::Grid;
use crate::terminal::{RED, paint};

const HEAD: [&str; 8] = [
    "QUEUE",
    "WEIGHT",
    "RUNNING",
    "WAITING",
    "GPUS",
    "USED",
    "GUARANTEED",
    "CEILING",
];

/// A queue without a name stands for the jobs that name none.
pub fn tree(queues: &[Queue]) -> String {
    let by_name: BTreeMap<&str, &Queue> = queues.iter().map(|queue| (name(queue), queue)).collect();
    let mut below: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut tops = Vec::new();
    for (name, queue) in &by_name {
        match parent(queue).filter(|parent| by_name.contains_key(parent)) {
            Some(parent) => below.entry(parent).or_default().push(name),
            None => tops.push(*name),
        }
    }
    let mut tree = Tree {
        by_name,
        below,
        shown: BTreeSet::new(),
        grid: Grid::with_head(&HEAD),
    };
    // The one without a name comes last.
    tops.sort_by_key(|name| name.is_empty());
    for top in tops {
        tree.show(top, "", "");
    }
    // Those that are above themselves hang from nothing.
    let names: Vec<&str> = tree.by_name.keys().copied().collect();
    for name in names {
        tree.show(name, "", "");
    }
    let mut text = tree.grid.text();
    for queue in queues {
        if let Some(problem) = problem(queue) {
            let _ = writeln!(
                text,
                "\n{} {}: {problem}",
                paint(RED, "unusable:"),
                name(queue)
            );
        }
    }
    text
}

struct Tree<'a> {
    by_name: BTreeMap<&'a str, &'a Queue>,
    below: BTreeMap<&'a str, Vec<&'a str>>,
    shown: BTreeSet<&'a str>,
    grid: Grid,
}

impl<'a> Tree<'a> {
    /// `lead` stands before the queue's own name, `indent` before those below it.
    fn show(&mut self, name: &'a str, lead: &str, indent: &str) {
        let Some(queue) = self.by_name.get(name).filter(|_| self.shown.insert(name)) else {
            return;
        };
        for row in rows(queue, lead) {
            self.grid.push(row);
        }
        let below = self.below.get(name).cloned().unwrap_or_default();
        for (i, child) in below.iter().enumerate() {
            let (branch, gap) = if i + 1 == below.len() {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            self.show(
                child,
                &format!("{indent}{branch}"),
                &format!("{indent}{gap}"),
            );
        }
    }
}

/// One row for each type of GPU; what is of the queue as a whole stands in the first.
fn rows(queue: &Queue, lead: &str) -> Vec<Vec<String>> {
    let status = queue.status.clone().unwrap_or_default();
    let mut gpus: Vec<(&str, QueueGpus)> = Vec::new();
    let any = status.gpus.get(ANY_GPU_TYPE).copied();
    gpus.push((ANY_GPU_TYPE, any.unwrap_or_default()));
    let others = status.gpus.iter().filter(|(gpu, _)| *gpu != ANY_GPU_TYPE);
    gpus.extend(others.map(|(gpu, of)| (gpu.as_str(), *of)));
    let title = match name(queue) {
        "" => "(no queue)".to_owned(),
        name => format!("{lead}{name}"),
    };
    let whole = [
        title,
        queue.spec.weight.to_string(),
        status.running.to_string(),
        status.waiting.to_string(),
    ];
    let count = |count: Option<stoke_api::queue::GpuCount>| {
        count.map_or_else(|| "-".to_owned(), |count| count.0.to_string())
    };
    gpus.into_iter()
        .enumerate()
        .map(|(i, (gpu, of))| {
            let whole = if i == 0 {
                whole.clone()
            } else {
                Default::default()
            };
            let own = [
                gpu.to_owned(),
                used(&of),
                count(of.guaranteed),
                count(of.ceiling),
            ];
            whole.into_iter().chain(own).collect()
        })
        .collect()
}

/// `6.5`, or `10 (2 borrowed)` where that is more than is guaranteed.
fn used(of: &QueueGpus) -> String {
    let guaranteed = of.guaranteed.map(|count| GpuAmount::whole(count.0.into()));
    let over = guaranteed.map_or(0, |guaranteed| {
        of.used.milli.saturating_sub(guaranteed.milli)
    });
    match over {
        0 => of.used.to_string(),
        milli => format!("{} ({} borrowed)", of.used, GpuAmount { milli }),
    }
}

fn problem(queue: &Queue) -> Option<String> {
    let conditions = &queue.status.as_ref()?.conditions;
    let usable = condition::get(conditions, ConditionType::Usable)?;
    (usable.status == "False").then(|| usable.message.clone())
}

fn name(queue: &Queue) -> &str {
    queue.metadata.name.as_deref().unwrap_or_default()
}

fn parent(queue: &Queue) -> Option<&str> {
    queue.spec.parent.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn queue(name: &str, spec: Value, status: Value) -> Queue {
        let object = json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec, "status": status,
        });
        serde_json::from_value(object).expect("a queue")
    }

    fn shown(queues: &[Queue]) -> String {
        let lines = tree(queues);
        let plain = anstream::adapter::strip_str(&lines).to_string();
        plain
            .lines()
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn queues_are_a_tree() {
        let queues = [
            queue(
                "nlp",
                json!({"parent": "research", "weight": 2}),
                json!({"running": 3, "waiting": 1,
                "gpus": {"any": {"used": "2.5", "guaranteed": 4}, "h100": {"used": "2", "ceiling": 4}}}),
            ),
            queue(
                "research",
                json!({}),
                json!({"running": 5, "waiting": 1, "gpus": {"any": {"used": "12.5", "guaranteed": 8, "ceiling": 16}}}),
            ),
            queue(
                "vision",
                json!({"parent": "research"}),
                json!({"running": 2, "gpus": {"any": {"used": "10", "guaranteed": 4}}}),
            ),
            queue(
                "lost",
                json!({"parent": "nowhere"}),
                json!({"conditions": [{"type": "Usable", "status": "False", "reason": "ParentNotFound",
                "message": "its parent nowhere does not exist", "lastTransitionTime": "2026-11-15T11:50:01Z"}]}),
            ),
            queue("", json!({}), json!({"waiting": 2})),
        ];
        insta::assert_snapshot!(shown(&queues), @"
        QUEUE        WEIGHT   RUNNING   WAITING   GPUS   USED                  GUARANTEED   CEILING
        lost         1        0         0         any    0                     -            -
        research     1        5         1         any    12.5 (4.5 borrowed)   8            16
        ├─ nlp       2        3         1         any    2.5                   4            -
                                                  h100   2                     -            4
        └─ vision    1        2         0         any    10 (6 borrowed)       4            -
        (no queue)   1        0         2         any    0                     -            -

        unusable: lost: its parent nowhere does not exist
        ");
    }

    #[test]
    fn queues_above_themselves_are_shown_once() {
        let queues = [
            queue("a", json!({"parent": "b"}), json!({})),
            queue("b", json!({"parent": "a"}), json!({})),
        ];
        let text = shown(&queues);
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}

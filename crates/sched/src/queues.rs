//! Who may use how much: queues in a tree, what each is guaranteed and may not exceed, and what each uses.
//!
//! Invariant: what is used is the sum over the jobs that were told; a fault of one queue is no other's, but for those below it.

mod amount;
mod fault;
mod quota;
mod rights;
mod share;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stoke_api::quantity::GpuAmount;
use stoke_api::trainjob::Priority;
use stoke_api::{QueueSpec, Span};

pub use self::amount::{ANY, Mask, Milli, ModelId, Models, Use, milli_each};
pub use self::fault::QueueFault;
use self::quota::{Amounts, amount};
pub use self::quota::{Limit, QuotaShortage, whole};
pub use self::rights::{Ask, Part, Right, Short, When};
use self::rights::{Tally, residual};
use self::share::kept;
pub use self::share::{Past, Share};

/// A queue, as it is numbered now.
pub type QueueId = usize;

/// The one above all, which no job is in.
pub const TOP: QueueId = 0;
/// The one of jobs that name none.
pub const UNNAMED: QueueId = 1;

#[derive(Debug, Clone)]
pub struct Queues {
    list: Vec<Queue>,
    past: Arc<Vec<Past>>,
    by_name: Arc<BTreeMap<String, QueueId>>,
    specs: Arc<BTreeMap<String, QueueSpec>>,
    faults: Arc<BTreeMap<String, QueueFault>>,
    /// All there is, of nodes that are ready.
    pub capacity: Use,
    as_of: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Queue {
    name: Arc<str>,
    parent: QueueId,
    children: Arc<[QueueId]>,
    weight: u32,
    borrow: bool,
    ceiling: Amounts,
    guaranteed: Amounts,
    /// What is guaranteed to it and not to a queue below it.
    residual: Amounts,
    /// The nearest queue that says a guarantee, itself included; the top where none does.
    guarantor: QueueId,
    used: Use,
    /// GPUs of it and of all below it.
    all: Tally,
    /// GPUs of those of whom it is the guarantor, and of the production jobs among them.
    direct: Tally,
    firm: Tally,
    /// What its own jobs use by their priority, without those below it and those that leave.
    own: [Milli; 3],
}

/// What a job adds to its queue, or takes from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    pub used: Use,
    /// The part of it that was asked to end.
    pub leaving: Milli,
    pub priority: Priority,
}

const PRIORITIES: [Priority; 3] = [
    Priority::Experiment,
    Priority::Standard,
    Priority::Production,
];

impl Account {
    fn stays(&self) -> Milli {
        let mut stays = self.used.gpus;
        stays -= self.leaving;
        stays
    }

    fn rank(&self) -> usize {
        let known = PRIORITIES.iter().position(|known| *known == self.priority);
        known.unwrap_or_default()
    }
}

impl Default for Queues {
    fn default() -> Self {
        Self::new(BTreeMap::new(), &Models::default())
    }
}

impl Queues {
    pub fn new(specs: BTreeMap<String, QueueSpec>, models: &Models) -> Self {
        let faults = fault::find(&specs);
        let usable = specs.keys().filter(|name| !faults.contains_key(*name));
        let by_name: BTreeMap<String, QueueId> = usable.cloned().zip(UNNAMED + 1..).collect();
        let mut list = vec![Queue::unlimited(), Queue::unlimited()];
        for name in by_name.keys() {
            let spec = &specs[name];
            let parent = spec.parent.as_ref().and_then(|parent| by_name.get(parent));
            list.push(Queue {
                name: name.as_str().into(),
                parent: parent.copied().unwrap_or(TOP),
                weight: spec.weight.max(1),
                borrow: spec.borrow,
                ceiling: Amounts::of(&spec.ceiling, models),
                guaranteed: Amounts::of(&spec.guaranteed, models),
                residual: Amounts::of(&residual(&specs, name), models),
                ..Queue::unlimited()
            });
        }
        let mut children = vec![Vec::new(); list.len()];
        for (id, queue) in list.iter().enumerate().skip(1) {
            children[queue.parent].push(id);
        }
        for (queue, children) in list.iter_mut().zip(children) {
            queue.children = children.into();
        }
        let mut queues = Self {
            past: Arc::new(vec![Past::default(); list.len()]),
            list,
            by_name: by_name.into(),
            specs: specs.into(),
            faults: faults.into(),
            capacity: Use::default(),
            as_of: None,
        };
        for id in 0..queues.list.len() {
            let says = |at: &QueueId| !queues.list[*at].guaranteed.is_empty();
            let guarantor = queues.chain(id).find(says).unwrap_or(TOP);
            queues.list[id].guarantor = guarantor;
        }
        queues
    }

    /// The same queues over other models, with nothing used of them yet.
    pub fn anew(&self, models: &Models) -> Self {
        self.with(self.specs.as_ref().clone(), models)
    }

    /// Other queues, of which those that were there keep their past.
    pub fn with(&self, specs: BTreeMap<String, QueueSpec>, models: &Models) -> Self {
        let mut anew = Self::new(specs, models);
        anew.remember(&self.history());
        anew.capacity = self.capacity;
        anew
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The queue of this name that can be used; the empty name is that of jobs that name none.
    pub fn find(&self, name: &str) -> Option<QueueId> {
        if name.is_empty() {
            return Some(UNNAMED);
        }
        self.by_name.get(name).copied()
    }

    pub fn fault(&self, name: &str) -> Option<&QueueFault> {
        self.faults.get(name)
    }

    pub fn faults(&self) -> &BTreeMap<String, QueueFault> {
        &self.faults
    }

    pub fn specs(&self) -> &BTreeMap<String, QueueSpec> {
        &self.specs
    }

    pub fn name(&self, id: QueueId) -> &str {
        &self.list[id].name
    }

    pub fn parent(&self, id: QueueId) -> QueueId {
        self.list[id].parent
    }

    /// The queue and all above it, but for the top.
    pub fn chain(&self, id: QueueId) -> impl Iterator<Item = QueueId> {
        let above = move |id: &QueueId| Some(self.list[*id].parent);
        std::iter::successors(Some(id), above).take_while(|id| *id != TOP)
    }

    pub fn add(&mut self, id: QueueId, account: &Account) {
        self.list[id].own[account.rank()] += account.stays();
        self.each_above(id, |queue| queue.used += account.used);
        self.count(id, account.priority, |tally| {
            tally.used += account.used.gpus;
            tally.leaving += account.leaving;
        });
    }

    pub fn remove(&mut self, id: QueueId, account: &Account) {
        self.list[id].own[account.rank()] -= account.stays();
        self.each_above(id, |queue| queue.used -= account.used);
        self.count(id, account.priority, |tally| {
            tally.used -= account.used.gpus;
            tally.leaving -= account.leaving;
        });
    }

    /// Promises a job what those give back who leave, until [`Queues::release`].
    pub fn hold(&mut self, id: QueueId, gpus: Milli, priority: Priority) {
        self.count(id, priority, |tally| tally.held += gpus);
    }

    pub fn release(&mut self) {
        for queue in &mut self.list {
            for tally in [&mut queue.all, &mut queue.direct, &mut queue.firm] {
                tally.held = Milli::default();
            }
        }
    }

    /// Changes all counts that a job of a queue is in.
    fn count(&mut self, id: QueueId, priority: Priority, change: impl Fn(&mut Tally)) {
        self.each_above(id, |queue| change(&mut queue.all));
        let guarantor = self.list[id].guarantor;
        change(&mut self.list[guarantor].direct);
        if priority == Priority::Production {
            change(&mut self.list[guarantor].firm);
        }
    }

    fn each_above(&mut self, id: QueueId, change: impl Fn(&mut Queue)) {
        let mut at = id;
        while at != TOP {
            change(&mut self.list[at]);
            at = self.list[at].parent;
        }
        change(&mut self.list[TOP]);
    }

    pub fn share(&self, id: QueueId, models: &Models) -> Share {
        let queue = &self.list[id];
        let dominant = self.past[id].dominant(&queue.used, &self.capacity, models);
        Share(dominant / f64::from(queue.weight))
    }

    /// The share of its own jobs, without the queues below: among those, they count as one more of weight 1.
    pub fn own_share(&self, id: QueueId, models: &Models) -> Share {
        let mut own = self.list[id].used;
        for child in self.list[id].children.iter() {
            own -= self.list[*child].used;
        }
        Share(Past::default().dominant(&own, &self.capacity, models))
    }

    /// Takes note that time has passed since the last call with what is used now.
    pub fn pass_time(&mut self, now: Timestamp, half_life: Span, models: &Models) {
        let since = self.as_of.unwrap_or(now);
        if now > since {
            let kept = kept(since, now, half_life);
            let past = Arc::make_mut(&mut self.past).iter_mut();
            for (past, queue) in past.zip(&self.list) {
                past.pass(&queue.used, models, kept);
            }
        }
        self.as_of = Some(now.max(since));
    }

    pub fn turn_at(&self, id: QueueId) -> Option<Timestamp> {
        self.past[id].turn_at
    }

    pub fn take_turn(&mut self, id: QueueId, now: Timestamp) {
        Arc::make_mut(&mut self.past)[id].turn_at = Some(now);
    }

    pub fn history(&self) -> History {
        let named = self.list.iter().zip(self.past.iter()).skip(UNNAMED);
        History {
            as_of: self.as_of,
            queues: named
                .filter(|(_, past)| **past != Past::default())
                .map(|(queue, past)| (queue.name.to_string(), past.clone()))
                .collect(),
        }
    }

    pub fn remember(&mut self, history: &History) {
        self.as_of = history.as_of;
        for (name, past) in &history.queues {
            if let Some(id) = self.find(name) {
                Arc::make_mut(&mut self.past)[id] = past.clone();
            }
        }
    }

    /// GPUs in use of a queue and those below it, by the types that it names; `any` is all together.
    pub fn used_by_type(&self, id: QueueId) -> BTreeMap<String, GpuAmount> {
        let queue = &self.list[id];
        let named = queue.guaranteed.entries().iter();
        let named = named.chain(queue.ceiling.entries());
        let mut used: BTreeMap<String, GpuAmount> = named
            .map(|entry| {
                let used = queue.used.gpus.within(entry.mask);
                (entry.name.to_string(), amount(used))
            })
            .collect();
        used.insert(ANY.to_owned(), amount(queue.used.gpus.total()));
        used
    }
}

impl Queue {
    fn unlimited() -> Self {
        Self {
            name: "".into(),
            parent: TOP,
            children: Arc::default(),
            weight: 1,
            borrow: true,
            ceiling: Amounts::default(),
            guaranteed: Amounts::default(),
            residual: Amounts::default(),
            guarantor: TOP,
            used: Use::default(),
            all: Tally::default(),
            direct: Tally::default(),
            firm: Tally::default(),
            own: [Milli::default(); 3],
        }
    }
}

/// What queues have used, to be told again to a scheduler that starts anew.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    pub as_of: Option<Timestamp>,
    pub queues: BTreeMap<String, Past>,
}

/// How a queue stands, for people.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// Its own jobs, without those of the queues below it.
    pub waiting: u32,
    pub running: u32,
    /// GPUs in use of it and the queues below it, by the types that its guarantee and ceiling name, and `any` for all together.
    pub used: BTreeMap<String, GpuAmount>,
    /// Its part of the resource it uses most of, past use included, over its weight.
    pub share: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<QueueFault>,
}

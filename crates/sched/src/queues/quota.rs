//! Limits by GPU type: what is guaranteed, and what is never exceeded.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use stoke_api::quantity::GpuAmount;
use stoke_api::queue::GpuCount;

use super::amount::{ANY, Mask, Milli, Models};

/// So many GPUs of a type.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: Arc<str>,
    pub mask: Mask,
    pub milli: u64,
}

/// What a queue says of GPUs by type, narrow types before wide ones and `any` last.
///
/// A GPU counts against the narrowest type it is of that is not used up. So `a100: 4, any: 8` is four A100 and eight more of whatever type.
/// Where types overlap without one holding the other (`a100`, `80g`), the first by name is used up first.
#[derive(Debug, Clone, Default)]
pub struct Amounts(Arc<[Entry]>);

impl Amounts {
    pub fn of(said: &BTreeMap<String, GpuCount>, models: &Models) -> Self {
        let entries = said.iter().map(|(name, count)| Entry {
            name: name.as_str().into(),
            mask: models.of_type(name),
            milli: u64::from(count.0) * 1000,
        });
        Self::from_entries(entries.collect())
    }

    pub fn from_entries(mut entries: Vec<Entry>) -> Self {
        entries.sort_by(|a, b| {
            let width = |entry: &Entry| (&*entry.name == ANY, entry.mask.count());
            width(a).cmp(&width(b)).then_with(|| a.name.cmp(&b.name))
        });
        Self(entries.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// What of it is not covered by these amounts.
    pub fn uncovered(&self, mut used: Milli) -> Milli {
        for entry in self.0.iter() {
            used.draw(entry.mask, entry.milli);
        }
        used
    }

    /// Is so much more, on top of what is used, all covered? What is used beyond of one type is no reason to be denied another. Where nothing
    /// is said, nothing is covered.
    pub fn covers(&self, used: Milli, more: Milli) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut with = used;
        with += more;
        self.uncovered(with).total() == self.uncovered(used).total()
    }

    /// Takes these amounts out of what there is. False where there is too little.
    pub fn draw_from(&self, there: &mut Milli) -> bool {
        let mut enough = true;
        for entry in self.0.iter() {
            enough &= there.draw(entry.mask, entry.milli) == 0;
        }
        enough
    }

    /// The first limit that is exceeded, each for itself: a ceiling of `any` is one for all types together.
    pub fn exceeded(&self, used: Milli) -> Option<&Entry> {
        self.0
            .iter()
            .find(|entry| used.within(entry.mask) > entry.milli)
    }
}

/// Which limit of which queue keeps a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaShortage {
    pub queue: String,
    /// The type that the limit is of; `any` for all together.
    pub gpus: String,
    pub limit: Limit,
    pub used: GpuAmount,
    pub allowed: GpuAmount,
    pub asks: GpuAmount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    /// It may never use more.
    Ceiling,
    /// More than is guaranteed is borrowed, and production jobs do not borrow.
    ProductionBorrows,
    /// More than is guaranteed is borrowed, and the queue does not borrow.
    QueueBorrows,
}

impl fmt::Display for QuotaShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gpus,
            used,
            allowed,
            asks,
            ..
        } = self;
        let of = if gpus == ANY {
            String::new()
        } else {
            format!("{gpus} ")
        };
        let queue = if self.queue.is_empty() {
            "the queue of jobs that name none".to_owned()
        } else {
            format!("queue {}", self.queue)
        };
        match self.limit {
            Limit::Ceiling => write!(f, "{queue} may use {allowed} {of}GPUs and uses {used}")?,
            Limit::ProductionBorrows | Limit::QueueBorrows => {
                write!(
                    f,
                    "{queue} is guaranteed {allowed} {of}GPUs and uses {used}"
                )?;
            }
        }
        write!(f, "; this job asks for {asks}")?;
        f.write_str(match self.limit {
            Limit::Ceiling => "",
            Limit::ProductionBorrows => {
                ", and production jobs do not borrow what is guaranteed to others"
            }
            Limit::QueueBorrows => ", and the queue does not borrow",
        })
    }
}

pub fn amount(milli: u64) -> GpuAmount {
    GpuAmount { milli }
}

/// Whole GPUs that hold so much.
pub fn whole(milli: u64) -> u32 {
    u32::try_from(milli.div_ceil(1000)).unwrap_or(u32::MAX)
}

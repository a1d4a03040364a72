//! Who makes room in a cache: whoever was used the longest ago, and never one that is in use.

use std::fmt;

/// One version of a dataset that lies in a cache, or is on its way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub id: String,
    pub bytes: u64,
    /// When it was last used, on any clock that only grows.
    pub used: u64,
    pub pinned: bool,
}

/// What is missing even after everything that may go is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortfall {
    pub limit: u64,
    pub in_use: u64,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, in_use) = (
            crate::progress::amount(self.limit),
            crate::progress::amount(self.in_use),
        );
        write!(
            f,
            "the cache may hold {limit} (what was set, or what the disk has to spare), and {in_use} of it are in use"
        )
    }
}

/// Which versions go, in this order, so that `needed` bytes more stay within `limit`.
pub fn make_room(kept: &[Kept], needed: u64, limit: u64) -> Result<Vec<&Kept>, Shortfall> {
    let mut total: u64 = kept.iter().map(|kept| kept.bytes).sum();
    let mut free: Vec<&Kept> = kept.iter().filter(|kept| !kept.pinned).collect();
    free.sort_by(|a, b| (a.used, &a.id).cmp(&(b.used, &b.id)));
    let mut gone = Vec::new();
    let mut candidates = free.into_iter();
    while total.saturating_add(needed) > limit {
        let Some(next) = candidates.next() else {
            return Err(Shortfall {
                limit,
                in_use: total,
            });
        };
        total -= next.bytes;
        gone.push(next);
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(id: &str, bytes: u64, used: u64, pinned: bool) -> Kept {
        Kept {
            id: id.to_owned(),
            bytes,
            used,
            pinned,
        }
    }

    #[test]
    fn the_longest_unused_goes_and_one_in_use_never() {
        let all = [
            kept("new", 4, 9, false),
            kept("old", 4, 1, false),
            kept("older-in-use", 4, 0, true),
        ];
        let ids = |needed, limit| {
            make_room(&all, needed, limit)
                .map(|gone| gone.iter().map(|kept| kept.id.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(ids(0, 12), Ok(vec![]));
        assert_eq!(ids(1, 12), Ok(vec!["old"]));
        assert_eq!(ids(8, 12), Ok(vec!["old", "new"]));
        assert_eq!(
            ids(9, 12),
            Err(Shortfall {
                limit: 12,
                in_use: 4
            })
        );
        assert_eq!(
            ids(u64::MAX, 12),
            Err(Shortfall {
                limit: 12,
                in_use: 4
            })
        );
    }

    proptest! {
        #[test]
        fn nothing_goes_in_vain(
            versions in proptest::collection::vec((0u64..100, 0u64..10, any::<bool>()), 0..12), needed in 0u64..300, limit in 0u64..600,
        ) {
            let all: Vec<Kept> = versions.iter().enumerate().map(|(i, (bytes, used, pinned))| kept(&i.to_string(), *bytes, *used, *pinned)).collect();
            let total: u64 = all.iter().map(|kept| kept.bytes).sum();
            if let Ok(gone) = make_room(&all, needed, limit) {
                prop_assert!(gone.iter().all(|kept| !kept.pinned));
                let freed: u64 = gone.iter().map(|kept| kept.bytes).sum();
                prop_assert!(total - freed + needed <= limit);
                if let Some(last) = gone.last() {
                    prop_assert!(total - (freed - last.bytes) + needed > limit);
                }
            } else {
                let pinned: u64 = all.iter().filter(|kept| kept.pinned).map(|kept| kept.bytes).sum();
                prop_assert!(pinned + needed > limit);
            }
        }
    }
}

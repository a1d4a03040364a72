//! Which GPUs of a node are in use, on nodes whose devices we choose ourselves.

use stoke_api::names::GPU_MILLI_RESOURCE;
use stoke_sched::{Node, Other, Resources};

/// A whole GPU, in thousandths.
const WHOLE: u16 = 1000;

/// What a pod has of its node's GPUs.
#[derive(Debug, Clone, Copy)]
pub struct Taken<'a> {
    /// What it asks for.
    pub amount: &'a Resources,
    /// The devices it was given, where that is known.
    pub devices: Option<&'a [u32]>,
}

/// What is in use of each GPU of the node, in thousandths; none where the node's device plugin picks. Of a pod that does not say which it
/// has it is supposed that it has those that the node would give it.
pub fn devices<'a>(node: &Node, taken: impl IntoIterator<Item = Taken<'a>>) -> Option<Vec<u16>> {
    node.allocatable.others.get(&milli())?;
    let mut in_use = vec![0; node.allocatable.gpus as usize];
    let (told, untold): (Vec<_>, Vec<_>) = taken
        .into_iter()
        .filter_map(|taken| Some((share(taken.amount)?, taken)))
        .partition(|(_, taken)| taken.devices.is_some());
    for ((_, share), taken) in told {
        for device in taken.devices.into_iter().flatten() {
            if let Some(used) = in_use.get_mut(*device as usize) {
                *used = share.saturating_add(*used);
            }
        }
    }
    for ((count, share), _) in untold {
        for device in likely(&in_use, count, share) {
            in_use[device] = share.saturating_add(in_use[device]);
        }
    }
    Some(in_use)
}

/// How many devices a pod asks for, and how much of each.
fn share(amount: &Resources) -> Option<(u32, u16)> {
    let part = amount.others.get(&milli()).copied().unwrap_or(0);
    match (amount.gpus, u16::try_from(part)) {
        (0, Ok(0)) => None,
        (0, Ok(part)) => Some((1, part.min(WHOLE))),
        (0, Err(_)) => Some((1, WHOLE)),
        (count, _) => Some((count, WHOLE)),
    }
}

/// The fullest that have room, the first of those: what a node does by itself.
fn likely(in_use: &[u16], count: u32, share: u16) -> Vec<usize> {
    let has_room = |device: &usize| in_use[*device].saturating_add(share) <= WHOLE;
    let mut fitting: Vec<usize> = (0..in_use.len()).filter(has_room).collect();
    fitting.sort_by_key(|device| std::cmp::Reverse(in_use[*device]));
    fitting.truncate(count as usize);
    fitting
}

fn milli() -> Other {
    Other::Named(GPU_MILLI_RESOURCE.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(gpus: u32, part: u64) -> Resources {
        let part = (part > 0).then(|| (milli(), part));
        Resources {
            gpus,
            others: part.into_iter().collect(),
            ..Resources::default()
        }
    }

    fn node(gpus: u32, counted: bool) -> Node {
        Node {
            allocatable: asks(gpus, if counted { u64::from(gpus) * 1000 } else { 0 }),
            ..Node::default()
        }
    }

    #[test]
    fn devices_are_counted_where_we_choose_them() {
        let (whole, two, five) = (asks(1, 0), asks(2, 0), asks(5, 0));
        let (half, third) = (asks(0, 500), asks(0, 300));
        let on = |amount, devices| Taken {
            amount,
            devices: Some(devices),
        };
        let somewhere = |amount| Taken {
            amount,
            devices: None,
        };
        let table: [(&[Taken<'_>], [u16; 4]); 5] = [
            (&[], [0, 0, 0, 0]),
            (
                &[on(&half, &[2]), on(&third, &[2]), on(&whole, &[0])],
                [1000, 0, 800, 0],
            ),
            (&[somewhere(&half), on(&half, &[3])], [0, 0, 0, 1000]),
            (&[somewhere(&two), on(&third, &[0])], [300, 1000, 1000, 0]),
            // What cannot be is not made worse.
            (
                &[on(&whole, &[9]), somewhere(&five)],
                [1000, 1000, 1000, 1000],
            ),
        ];
        for (taken, expected) in table {
            let found = devices(&node(4, true), taken.iter().copied());
            assert_eq!(found.as_deref(), Some(expected.as_slice()), "{taken:?}");
        }
        assert_eq!(devices(&node(4, false), [on(&whole, &[0])]), None);
    }
}

//! Who holds what of this node: the node's own admission check.
//!
//! Pure. Invariant: what is held never exceeds what the node can allocate, and a GPU has at most one holder. The ledger
//! is the last line of defence: whoever placed the pod may have been wrong or late, and then the pod is turned away as a
//! kubelet would, instead of overcommitting everyone else.

use std::collections::BTreeMap;

use crate::gpu::Gpu;
use crate::resources::{Amounts, GPU};

/// Why a pod may not run here, in the kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

/// Why a resize is not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizeRefusal {
    /// The node could never hold it.
    Infeasible(String),
    /// Others hold it now; asked again when something is released.
    Deferred(String),
}

#[derive(Debug)]
struct Holding {
    amounts: Amounts,
    /// Ids of the GPUs held.
    gpus: Vec<String>,
}

/// The node's resources and who holds them, by pod uid.
#[derive(Debug)]
pub struct Ledger {
    allocatable: Amounts,
    gpus: Vec<Gpu>,
    holdings: BTreeMap<String, Holding>,
}

impl Ledger {
    pub fn new(allocatable: Amounts, gpus: Vec<Gpu>) -> Self {
        Self {
            allocatable,
            gpus,
            holdings: BTreeMap::new(),
        }
    }

    /// Books what a pod asks for and returns the GPUs it gets. `chosen` are the devices somebody already picked for it, by id
    /// or index.
    pub fn admit(
        &mut self,
        uid: &str,
        asked: &Amounts,
        chosen: Option<&[String]>,
    ) -> Result<Vec<Gpu>, Rejection> {
        self.release(uid);
        for (resource, wanted) in asked
            .iter()
            .filter(|(resource, wanted)| *resource != GPU && **wanted > 0)
        {
            let used = self.used(resource);
            let capacity = self.allocatable.get(resource).copied().unwrap_or(0);
            if wanted.saturating_add(used) > capacity {
                return Err(Rejection {
                    reason: format!("OutOf{resource}"),
                    message: format!(
                        "Pod was rejected: Node didn't have enough resource: {resource}, requested: {wanted}, used: {used}, capacity: {capacity}"
                    ),
                });
            }
        }
        let wanted = asked.get(GPU).copied().unwrap_or(0);
        let gpus = self.pick(wanted, chosen)?;
        let ids = gpus.iter().map(|gpu| gpu.id.clone()).collect();
        self.holdings.insert(
            uid.to_owned(),
            Holding {
                amounts: asked.clone(),
                gpus: ids,
            },
        );
        Ok(gpus)
    }

    fn pick(&self, wanted: u64, chosen: Option<&[String]>) -> Result<Vec<Gpu>, Rejection> {
        let rejection = |message: String| Rejection {
            reason: "UnexpectedAdmissionError".to_owned(),
            message,
        };
        let held: Vec<&String> = self
            .holdings
            .values()
            .flat_map(|holding| &holding.gpus)
            .collect();
        let free: Vec<&Gpu> = self
            .gpus
            .iter()
            .filter(|gpu| !held.contains(&&gpu.id))
            .collect();
        if wanted > free.len() as u64 {
            return Err(rejection(format!(
                "Pod was rejected: Allocate failed due to requested number of devices unavailable for {GPU}. Requested: {wanted}, Available: {}, which is unexpected",
                free.len()
            )));
        }
        let Some(chosen) = chosen else {
            return Ok(free.into_iter().take(wanted as usize).cloned().collect());
        };
        if chosen.len() as u64 != wanted {
            return Err(rejection(format!(
                "Pod was rejected: it asks for {wanted} of {GPU} but {} devices were chosen for it",
                chosen.len()
            )));
        }
        let mut picked: Vec<Gpu> = Vec::with_capacity(chosen.len());
        for name in chosen {
            let gpu = free
                .iter()
                .find(|gpu| gpu.is_called(name) && !picked.iter().any(|other| other.id == gpu.id));
            let gpu = gpu.ok_or_else(|| {
                rejection(format!(
                    "Pod was rejected: the chosen device {name} of {GPU} is unknown or already held"
                ))
            })?;
            picked.push((*gpu).clone());
        }
        Ok(picked)
    }

    /// Books what a pod was found to hold already, without asking whether it fits: it runs.
    pub fn restore(&mut self, uid: &str, held: Amounts, gpu_ids: Vec<String>) -> Vec<Gpu> {
        let gpus = gpu_ids
            .iter()
            .filter_map(|id| self.gpus.iter().find(|gpu| gpu.is_called(id)).cloned())
            .collect();
        self.holdings.insert(
            uid.to_owned(),
            Holding {
                amounts: held,
                gpus: gpu_ids,
            },
        );
        gpus
    }

    /// Changes what an admitted pod holds, all of it or nothing. GPUs cannot be resized.
    pub fn resize(&mut self, uid: &str, asked: &Amounts) -> Result<(), ResizeRefusal> {
        let current = self
            .holdings
            .get(uid)
            .map(|holding| holding.amounts.clone())
            .unwrap_or_default();
        for (resource, wanted) in asked {
            let held = current.get(resource).copied().unwrap_or(0);
            let used_by_others = self.used(resource).saturating_sub(held);
            let capacity = self.allocatable.get(resource).copied().unwrap_or(0);
            if *wanted <= held {
                continue;
            }
            if *wanted > capacity {
                return Err(ResizeRefusal::Infeasible(format!(
                    "Node didn't have enough capacity: {resource}, requested: {wanted}, capacity: {capacity}"
                )));
            }
            if wanted.saturating_add(used_by_others) > capacity {
                return Err(ResizeRefusal::Deferred(format!(
                    "Node didn't have enough resource: {resource}, requested: {wanted}, used: {used_by_others}, capacity: {capacity}"
                )));
            }
        }
        if let Some(holding) = self.holdings.get_mut(uid) {
            holding.amounts.clone_from(asked);
        }
        Ok(())
    }

    /// Frees what a pod held. Harmless when it holds nothing.
    pub fn release(&mut self, uid: &str) {
        self.holdings.remove(uid);
    }

    fn used(&self, resource: &str) -> u64 {
        self.holdings
            .values()
            .filter_map(|holding| holding.amounts.get(resource))
            .fold(0, |sum, amount| sum.saturating_add(*amount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::simulated;
    use crate::resources::{CPU, MEMORY, PODS};

    fn amounts(list: &[(&str, u64)]) -> Amounts {
        list.iter()
            .map(|(name, amount)| ((*name).to_owned(), *amount))
            .collect()
    }

    fn ledger() -> Ledger {
        Ledger::new(
            amounts(&[(CPU, 2000), (MEMORY, 1000), (PODS, 3), (GPU, 4)]),
            simulated(0, 4),
        )
    }

    fn ids(gpus: &[Gpu]) -> Vec<&str> {
        gpus.iter().map(|gpu| gpu.id.as_str()).collect()
    }

    #[test]
    fn turns_away_what_does_not_fit_in_the_kubelets_words() {
        let mut ledger = ledger();
        ledger
            .admit("a", &amounts(&[(MEMORY, 600)]), None)
            .expect("fits");
        let rejection = ledger
            .admit("b", &amounts(&[(MEMORY, 600)]), None)
            .expect_err("does not fit");
        assert_eq!(rejection.reason, "OutOfmemory");
        assert_eq!(
            rejection.message,
            "Pod was rejected: Node didn't have enough resource: memory, requested: 600, used: 600, capacity: 1000"
        );
        ledger.release("a");
        ledger
            .admit("b", &amounts(&[(MEMORY, 600)]), None)
            .expect("fits now");
        let unknown = ledger
            .admit("c", &amounts(&[("amd.com/gpu", 1)]), None)
            .expect_err("no such resource");
        assert_eq!(unknown.reason, "OutOfamd.com/gpu");
    }

    #[test]
    fn a_gpu_has_one_holder() {
        let mut ledger = ledger();
        let first = ledger
            .admit("a", &amounts(&[(GPU, 1)]), None)
            .expect("free");
        assert_eq!(ids(&first), ["SIM-0"]);
        let chosen = ["2".to_owned(), "SIM-1".to_owned()];
        let second = ledger
            .admit("b", &amounts(&[(GPU, 2)]), Some(&chosen))
            .expect("free");
        assert_eq!(
            ids(&second),
            ["SIM-2", "SIM-1"],
            "in the order they were chosen"
        );
        let taken = ledger
            .admit("c", &amounts(&[(GPU, 1)]), Some(&["0".to_owned()]))
            .expect_err("held");
        assert_eq!(taken.reason, "UnexpectedAdmissionError");
        let too_many = ledger
            .admit("c", &amounts(&[(GPU, 2)]), None)
            .expect_err("one left");
        assert!(
            too_many.message.contains("Requested: 2, Available: 1"),
            "{}",
            too_many.message
        );
        let last = ledger
            .admit("c", &amounts(&[(GPU, 1)]), None)
            .expect("one left");
        assert_eq!(ids(&last), ["SIM-3"]);
    }

    #[test]
    fn the_same_device_chosen_twice_is_refused() {
        let chosen = ["1".to_owned(), "SIM-1".to_owned()];
        assert!(
            ledger()
                .admit("a", &amounts(&[(GPU, 2)]), Some(&chosen))
                .is_err()
        );
    }

    #[test]
    fn a_resize_is_granted_deferred_or_infeasible() {
        let mut ledger = ledger();
        ledger
            .admit("a", &amounts(&[(MEMORY, 400)]), None)
            .expect("fits");
        ledger
            .admit("b", &amounts(&[(MEMORY, 400)]), None)
            .expect("fits");
        assert_eq!(ledger.resize("a", &amounts(&[(MEMORY, 600)])), Ok(()));
        assert!(matches!(
            ledger.resize("a", &amounts(&[(MEMORY, 700)])),
            Err(ResizeRefusal::Deferred(_))
        ));
        assert!(matches!(
            ledger.resize("a", &amounts(&[(MEMORY, 1700)])),
            Err(ResizeRefusal::Infeasible(_))
        ));
        assert_eq!(
            ledger.resize("a", &amounts(&[(MEMORY, 100)])),
            Ok(()),
            "shrinking always fits"
        );
        assert_eq!(ledger.resize("b", &amounts(&[(MEMORY, 900)])), Ok(()));
    }

    proptest::proptest! {
        #[test]
        fn never_holds_more_than_there_is(steps in proptest::collection::vec((0_u8..6, 0_u64..700, 0_u64..4, 0_u8..3), 1..60)) {
            let mut ledger = ledger();
            for (pod, memory, gpus, action) in steps {
                let uid = pod.to_string();
                let asked = amounts(&[(MEMORY, memory), (GPU, gpus), (PODS, 1)]);
                match action {
                    0 => { let _ = ledger.admit(&uid, &asked, None); }
                    1 => { let _ = ledger.resize(&uid, &amounts(&[(MEMORY, memory), (PODS, 1)])); }
                    _ => ledger.release(&uid),
                }
                proptest::prop_assert!(ledger.used(MEMORY) <= 1000);
                proptest::prop_assert!(ledger.used(PODS) <= 3);
                let mut held: Vec<&String> = ledger.holdings.values().flat_map(|holding| &holding.gpus).collect();
                let all = held.len();
                held.sort();
                held.dedup();
                proptest::prop_assert_eq!(held.len(), all);
            }
        }
    }
}

//! Who holds what of this node: the node's own admission check.
//!
//! Pure. Invariant: what is held never exceeds what the node can allocate, and a GPU has one holder, or several that asked for
//! parts of one and together have no more than it. The ledger is the last line of defence: whoever placed the pod may have been wrong or late, and then the pod is turned away as a
//! kubelet would, instead of overcommitting everyone else.

use std::collections::BTreeMap;

use crate::gpu::Gpu;
use crate::resources::{Amounts, GPU, GPU_MILLI};

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

/// A whole GPU, in thousandths.
const WHOLE: u64 = 1000;

#[derive(Debug)]
struct Holding {
    amounts: Amounts,
    /// Ids of the GPUs held.
    gpus: Vec<String>,
    /// What it has of each of them, in thousandths.
    share: u64,
}

impl Holding {
    fn new(amounts: Amounts, gpus: &[Gpu]) -> Self {
        let part = amounts.get(GPU_MILLI).copied().unwrap_or(0);
        Self {
            share: if part > 0 { part } else { WHOLE },
            gpus: gpus.iter().map(|gpu| gpu.id.clone()).collect(),
            amounts,
        }
    }
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
        let gpus = self.pick(asked, chosen).map_err(|message| Rejection {
            reason: "UnexpectedAdmissionError".to_owned(),
            message: format!("Pod was rejected: {message}"),
        })?;
        let holding = Holding::new(asked.clone(), &gpus);
        self.holdings.insert(uid.to_owned(), holding);
        Ok(gpus)
    }

    fn pick(&self, asked: &Amounts, chosen: Option<&[String]>) -> Result<Vec<Gpu>, String> {
        let of = |resource| asked.get(resource).copied().unwrap_or(0);
        let (count, share) = match (of(GPU), of(GPU_MILLI)) {
            (whole, 0) => (whole, WHOLE),
            (0, part) if part < WHOLE => (1, part),
            (0, _) => {
                return Err(format!(
                    "{GPU_MILLI} is a part of one GPU, less than {WHOLE}; whole ones are asked for as {GPU}"
                ));
            }
            _ => {
                return Err(format!(
                    "it asks for whole GPUs ({GPU}) and for a part of one ({GPU_MILLI}); a container may have either"
                ));
            }
        };
        match chosen {
            Some(chosen) => self.take(count, share, chosen),
            None => self.find(count, share),
        }
    }

    /// The devices somebody chose, if they are as free as they were thought to be.
    fn take(&self, count: u64, share: u64, chosen: &[String]) -> Result<Vec<Gpu>, String> {
        if chosen.len() as u64 != count {
            return Err(format!(
                "it asks for {count} of {GPU} but {} devices were chosen for it",
                chosen.len()
            ));
        }
        let mut picked: Vec<Gpu> = Vec::with_capacity(chosen.len());
        for name in chosen {
            let gpu = self.gpus.iter().find(|gpu| gpu.is_called(name));
            let gpu = gpu.ok_or_else(|| format!("there is no device {name} of {GPU} here"))?;
            if picked.iter().any(|other| other.id == gpu.id) {
                return Err(format!("the device {name} of {GPU} was chosen twice"));
            }
            let free = self.free(gpu);
            if free < share {
                return Err(match free {
                    0 => format!("the chosen device {name} of {GPU} is already held"),
                    _ => format!(
                        "the chosen device {name} of {GPU} has {free} of {WHOLE} thousandths free, {share} are asked for"
                    ),
                });
            }
            picked.push(gpu.clone());
        }
        Ok(picked)
    }

    /// The first free devices; for a part, the fullest that has room, so that whole ones stay whole.
    fn find(&self, count: u64, share: u64) -> Result<Vec<Gpu>, String> {
        let mut fitting: Vec<(u64, &Gpu)> = self
            .gpus
            .iter()
            .map(|gpu| (self.free(gpu), gpu))
            .filter(|(free, _)| *free >= share)
            .collect();
        fitting.sort_by_key(|(free, _)| *free);
        if count > fitting.len() as u64 {
            let (resource, requested, available) = if share < WHOLE {
                let most = self.gpus.iter().map(|gpu| self.free(gpu)).max();
                (GPU_MILLI, share, most.unwrap_or(0))
            } else {
                (GPU, count, fitting.len() as u64)
            };
            return Err(format!(
                "Allocate failed due to requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}, which is unexpected"
            ));
        }
        let fitting = fitting.into_iter().take(count as usize);
        Ok(fitting.map(|(_, gpu)| gpu.clone()).collect())
    }

    /// What nobody has of a device, in thousandths.
    fn free(&self, gpu: &Gpu) -> u64 {
        let holders = self
            .holdings
            .values()
            .filter(|holding| holding.gpus.contains(&gpu.id));
        let held = holders.fold(0_u64, |sum, holding| sum.saturating_add(holding.share));
        WHOLE.saturating_sub(held)
    }

    /// Books what a pod was found to hold already, without asking whether it fits: it runs.
    /// `names` are its GPUs by id or index; one that is no longer there is held by nobody.
    pub fn restore(&mut self, uid: &str, held: Amounts, names: &[String]) -> Vec<Gpu> {
        let called = |name: &String| self.gpus.iter().find(|gpu| gpu.is_called(name)).cloned();
        let gpus: Vec<Gpu> = names.iter().filter_map(called).collect();
        let holding = Holding::new(held, &gpus);
        self.holdings.insert(uid.to_owned(), holding);
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

    /// Who holds how much of a resource.
    pub fn held(&self, resource: &str) -> impl Iterator<Item = (&str, u64)> {
        self.holdings.iter().map(move |(uid, holding)| {
            let amount = holding.amounts.get(resource).copied().unwrap_or(0);
            (uid.as_str(), amount)
        })
    }

    pub fn allocatable(&self, resource: &str) -> u64 {
        self.allocatable.get(resource).copied().unwrap_or(0)
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
            amounts(&[
                (CPU, 2000),
                (MEMORY, 1000),
                (PODS, 6),
                (GPU, 4),
                (GPU_MILLI, 4000),
            ]),
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
    fn parts_share_a_gpu_with_parts_only() {
        let mut ledger = ledger();
        let part = |milli| amounts(&[(GPU_MILLI, milli)]);
        let on = |device: &str| Some([device.to_owned()]);
        let first = ledger.admit("a", &part(500), None).expect("free");
        assert_eq!(ids(&first), ["SIM-0"]);
        let second = ledger.admit("b", &part(400), None).expect("shares");
        assert_eq!(ids(&second), ["SIM-0"], "the fullest that has room");
        let third = ledger.admit("c", &part(400), None).expect("free");
        assert_eq!(ids(&third), ["SIM-1"]);
        let whole = ledger.admit("d", &amounts(&[(GPU, 2)]), None).expect("two");
        assert_eq!(ids(&whole), ["SIM-2", "SIM-3"], "none that is shared");

        let table = [
            (
                part(200),
                on("0"),
                "has 100 of 1000 thousandths free, 200 are asked for",
            ),
            (part(100), on("2"), "is already held"),
            (
                amounts(&[(GPU, 1)]),
                on("1"),
                "has 600 of 1000 thousandths free, 1000 are asked for",
            ),
            (part(100), on("7"), "there is no device 7"),
            (part(700), None, "Requested: 700, Available: 600"),
            (part(1000), None, "less than 1000"),
            (amounts(&[(GPU, 1), (GPU_MILLI, 500)]), None, "either"),
        ];
        for (asked, chosen, expected) in table {
            let refused = ledger
                .admit("e", &asked, chosen.as_ref().map(<[String; 1]>::as_slice))
                .expect_err(expected);
            assert_eq!(refused.reason, "UnexpectedAdmissionError");
            assert!(refused.message.contains(expected), "{}", refused.message);
        }
        let last = ledger.admit(
            "e",
            &part(100),
            on("0").as_ref().map(<[String; 1]>::as_slice),
        );
        assert_eq!(ids(&last.expect("room to the last thousandth")), ["SIM-0"]);
        for uid in ["a", "b", "e"] {
            ledger.release(uid);
        }
        let whole = ledger.admit("f", &amounts(&[(GPU, 1)]), None);
        assert_eq!(ids(&whole.expect("free again")), ["SIM-0"]);
    }

    #[test]
    fn what_ran_before_the_engine_keeps_its_part() {
        let mut ledger = ledger();
        ledger.restore("a", amounts(&[(GPU_MILLI, 600)]), &["SIM-0".to_owned()]);
        ledger.restore("b", amounts(&[(GPU, 1)]), &["1".to_owned()]);
        let next = ledger.admit("c", &amounts(&[(GPU_MILLI, 500)]), None);
        assert_eq!(ids(&next.expect("a device of its own")), ["SIM-2"]);
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
        fn never_holds_more_than_there_is(steps in proptest::collection::vec((0_u8..8, 0_u64..700, 0_u64..4, 0_u64..1100, 0_u8..5, 0_u8..5), 1..60)) {
            let mut ledger = ledger();
            for (pod, memory, gpus, milli, device, action) in steps {
                let uid = pod.to_string();
                let whole = amounts(&[(MEMORY, memory), (GPU, gpus), (PODS, 1)]);
                let part = amounts(&[(MEMORY, memory), (GPU_MILLI, milli), (PODS, 1)]);
                match action {
                    0 => { let _ = ledger.admit(&uid, &whole, None); }
                    1 => { let _ = ledger.admit(&uid, &part, None); }
                    2 => { let _ = ledger.admit(&uid, &part, Some(&[device.to_string()])); }
                    3 => { let _ = ledger.resize(&uid, &amounts(&[(MEMORY, memory), (PODS, 1)])); }
                    _ => ledger.release(&uid),
                }
                proptest::prop_assert!(ledger.used(MEMORY) <= 1000);
                proptest::prop_assert!(ledger.used(PODS) <= 6);
                for gpu in &ledger.gpus {
                    let holders = || ledger.holdings.values().filter(|holding| holding.gpus.contains(&gpu.id));
                    let held: u64 = holders().map(|holding| holding.share).sum();
                    proptest::prop_assert!(held <= WHOLE, "{} of {}", held, gpu.id);
                    proptest::prop_assert!(holders().count() < 2 || holders().all(|holding| holding.share < WHOLE));
                }
            }
        }
    }
}

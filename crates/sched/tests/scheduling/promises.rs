//! What holds whatever happens: clusters, queues and happenings drawn at random.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use stoke_api::trainjob::Priority;
use stoke_api::{QueueSpec, Span};
use stoke_sched::{
    Change, Constraint, Decision, Gang, Job, JobId, Node, Policy, Remedy, Running, is_of_type,
};

use crate::site::*;

#[derive(Debug, Clone)]
enum Happening {
    Submit {
        name: u8,
        queue: u8,
        priority: Priority,
        workers: u32,
        min: Option<u32>,
        gpus: u32,
        only: Option<&'static str>,
        limit: Option<u64>,
        reads: &'static [&'static str],
    },
    /// A dataset is on the nodes that have their bit set.
    Warm {
        dataset: &'static str,
        gib: u64,
        nodes: u8,
    },
    Withdraw(u8),
    End(u8),
    Saved(u8),
    /// Those who were asked to make room do.
    Obey,
    Node(u8),
    NodeGone(u8),
    Queues(Vec<(u8, u32, u32, bool)>),
    Pass(i64),
    Cycle,
}

const QUEUES: [&str; 4] = ["a", "b", "c", "d"];

pub fn any_priority() -> impl Strategy<Value = Priority> {
    prop_oneof![
        Just(Priority::Experiment),
        Just(Priority::Standard),
        Just(Priority::Production),
    ]
}

fn any_submit() -> impl Strategy<Value = Happening> {
    (
        0..10_u8,
        0..6_u8,
        any_priority(),
        1..4_u32,
        prop::option::weighted(0.3, 1..3_u32),
        0..5_u32,
        prop::option::weighted(0.3, prop_oneof![Just("a100"), Just("t4")]),
        prop::option::of(1..90_u64),
        prop::sample::select(READS.to_vec()),
    )
        .prop_map(
            |(name, queue, priority, workers, min, gpus, only, limit, reads)| Happening::Submit {
                name,
                queue,
                priority,
                workers,
                min: min.filter(|min| *min < workers),
                gpus,
                only,
                limit,
                reads,
            },
        )
}

const READS: [&[&str]; 4] = [&[], &["big"], &["small"], &["big", "small"]];

fn any_warmth() -> impl Strategy<Value = Happening> {
    let dataset = prop::sample::select(vec![("big", 2000_u64), ("small", 1)]);
    (dataset, 0..16_u8).prop_map(|((dataset, gib), nodes)| Happening::Warm {
        dataset,
        gib,
        nodes,
    })
}

fn any_happening() -> impl Strategy<Value = Happening> {
    let queue = (0..4_u8, 0..7_u32, 0..9_u32, prop::bool::weighted(0.8));
    prop_oneof![
        8 => any_submit(),
        2 => any_warmth(),
        1 => (0..10_u8).prop_map(Happening::Withdraw),
        4 => (0..10_u8).prop_map(Happening::End),
        1 => (0..10_u8).prop_map(Happening::Saved),
        3 => Just(Happening::Obey),
        3 => (0..4_u8).prop_map(Happening::Node),
        1 => (0..4_u8).prop_map(Happening::NodeGone),
        1 => prop::collection::vec(queue, 0..4).prop_map(Happening::Queues),
        3 => (1..100_i64).prop_map(Happening::Pass),
        8 => Just(Happening::Cycle),
    ]
}

/// The same name is always the same node, so that no node shrinks under what runs there.
fn drawn_node(number: u8) -> Node {
    match number {
        0 => node("n0", A100, 8),
        1 => node("n1", A100, 4),
        2 => node("n2", T4, 4),
        _ => node("n3", T4, 0),
    }
}

pub struct Drill {
    pub site: Site,
    pub now: i64,
}

impl Drill {
    fn new() -> Self {
        let policy = Policy {
            half_life: Span::hours(1),
            patience: Span::hours(2),
            hold: Span::minutes(30),
            // What came before is no part of what is.
            learns: false,
        };
        let nodes = (0..4).map(drawn_node);
        Self {
            site: Site::new(policy, nodes),
            now: 0,
        }
    }

    fn happen(&mut self, happening: &Happening) -> Vec<Decision> {
        let site = &mut self.site;
        match happening {
            Happening::Submit {
                name,
                queue,
                priority,
                workers,
                min,
                gpus,
                only,
                limit,
                reads,
            } => {
                let name = format!("j{name}");
                if !site.running.contains_key(&id(&name)) {
                    let job = reading(reads, job(&name, Gang::default(), self.now));
                    site.submit(Job {
                        queue: match queue {
                            4 => None,
                            5 => Some("missing".to_owned()),
                            queue => Some(QUEUES[usize::from(*queue)].to_owned()),
                        },
                        priority: *priority,
                        limit: limit.and_then(minutes),
                        gang: Arc::new(Gang {
                            gpu_types: only.iter().map(ToString::to_string).collect(),
                            min_workers: *min,
                            ..gang(*workers, *gpus)
                        }),
                        ..job
                    });
                }
            }
            Happening::Warm {
                dataset,
                gib,
                nodes,
            } => {
                let names = ["n0", "n1", "n2", "n3"];
                let warm = names.iter().enumerate();
                let warm = warm.filter(|(number, _)| nodes & (1 << number) != 0);
                let warm: Vec<&str> = warm.map(|(_, name)| *name).collect();
                site.put_dataset(dataset, *gib, &warm);
            }
            Happening::Withdraw(name) => {
                let name = id(&format!("j{name}"));
                if site.waiting.remove(&name).is_some() {
                    site.scheduler.withdraw(&name);
                }
            }
            Happening::End(name) => {
                site.end(&id(&format!("j{name}")));
            }
            Happening::Saved(name) => {
                if let Some(running) = site.running.get(&id(&format!("j{name}"))) {
                    let saved_at = Some(at(self.now));
                    site.run(Running {
                        saved_at,
                        ..running.clone()
                    });
                }
            }
            Happening::Obey => site.obey(at(self.now)),
            Happening::Node(number) => site.put_node(drawn_node(*number)),
            Happening::NodeGone(number) => site.remove_node(&format!("n{number}")),
            Happening::Queues(specs) => site.set_queues(drawn_queues(specs)),
            Happening::Pass(minutes) => self.now += minutes,
            Happening::Cycle => return self.cycle(),
        }
        Vec::new()
    }

    fn cycle(&mut self) -> Vec<Decision> {
        let now = at(self.now);
        let before = self.site.clone();
        let afresh = self.site.afresh().cycle(now);
        let decisions = self.site.cycle(now);
        assert_eq!(decisions, afresh, "a fresh scheduler decides the same");
        let mut again = before.scheduler.clone();
        assert_eq!(
            decisions,
            again.cycle(now),
            "the same facts, the same decisions"
        );
        assert_eq!(
            again.cycle(now),
            [],
            "decided once, whoever has not done it yet"
        );
        assert_eq!(self.site.scheduler.clone().cycle(now), [], "and done");
        check_alone(&before, now);
        self.check(&before, &decisions);
        decisions
    }

    fn check(&self, before: &Site, decisions: &[Decision]) {
        let mut asked = BTreeSet::new();
        for decision in decisions {
            match decision {
                Decision::Start { job, plan } => {
                    let gang = &before.waiting[job].gang;
                    let least = gang.min_workers.unwrap_or(gang.workers);
                    let workers = plan.nodes.len() as u32;
                    assert!((least..=gang.workers).contains(&workers), "{job} is whole");
                    self.check_ceilings(&before.waiting[job]);
                }
                Decision::Preempt { victims, .. } => {
                    assert!(!victims.is_empty());
                    for victim in victims {
                        check_victim(before, victim);
                        assert!(asked.insert(victim.clone()), "{victim} is asked once");
                    }
                }
                Decision::Shrink { job, to, .. } => {
                    check_victim(before, job);
                    let gang = &before.running[job].job.gang;
                    assert!(gang.min_workers.is_some_and(|min| min <= *to));
                    assert!((*to as usize) < before.running[job].plan.nodes.len());
                    assert!(asked.insert(job.clone()), "{job} is asked once");
                }
                Decision::Grow { job, plan } => {
                    let running = &before.running[job];
                    let workers = running.plan.nodes.len() + plan.nodes.len();
                    assert!(workers <= running.job.gang.workers as usize);
                    assert!(!plan.nodes.is_empty());
                    self.check_ceilings(&running.job);
                }
            }
        }
        for node in self.site.nodes.values() {
            let used = self.site.used(&node.name);
            let grown = self.grown(&node.name);
            assert!(
                used.gpus + grown <= node.allocatable.gpus,
                "{} has {} and {} are used",
                node.name,
                node.allocatable.gpus,
                used.gpus + grown,
            );
            assert!(used.cpu <= node.allocatable.cpu && used.memory <= node.allocatable.memory);
        }
    }

    /// GPUs of workers that are yet to come to a node.
    fn grown(&self, node: &str) -> u32 {
        let growing = self.site.running.values().filter_map(|running| {
            let Change::Grows { plan } = &running.change else {
                return None;
            };
            let here = plan.nodes.iter().filter(|name| *name == node).count() as u32;
            Some(here * running.job.gang.ask.gpus)
        });
        growing.sum()
    }

    /// No queue above a job that was given room uses more than its ceiling.
    fn check_ceilings(&self, job: &Job) {
        let Some(queue) = &job.queue else {
            return;
        };
        if job.gang.ask.gpus == 0 {
            return;
        }
        for name in chain(&self.site.queues, queue) {
            for (of, ceiling) in &self.site.queues[&name].ceiling {
                let used = self.used_by(&name, of);
                assert!(used <= ceiling.0, "{name} uses {used} of {of}");
            }
        }
    }

    fn used_by(&self, queue: &str, of: &str) -> u32 {
        let counts = |node: &String| {
            let gpu = self.site.nodes.get(node).and_then(|node| node.gpu.as_ref());
            of == "any" || gpu.is_some_and(|gpu| is_of_type(of, gpu))
        };
        let in_queue = |job: &Job| {
            let own = job.queue.as_deref().unwrap_or_default();
            chain(&self.site.queues, own)
                .iter()
                .any(|name| name == queue)
        };
        let running = self.site.running.values();
        let running = running.filter(|running| in_queue(&running.job));
        let used = running.map(|running| {
            let grown = match &running.change {
                Change::Grows { plan } => plan.nodes.as_slice(),
                _ => &[],
            };
            let nodes = running.plan.nodes.iter().chain(grown);
            nodes.filter(|node| counts(node)).count() as u32 * running.job.gang.ask.gpus
        });
        used.sum()
    }
}

/// Of those who wait, one alone starts or is made room for, whatever it reads: data decides only where.
fn check_alone(before: &Site, now: jiff::Timestamp) {
    let Some(waits) = before.waiting.values().next() else {
        return;
    };
    let becomes = |job: Job| {
        let mut alone = before.clone();
        alone.waiting = BTreeMap::from([(job.id.clone(), job)]);
        let decisions = alone.afresh().cycle(now);
        let starts = |decision: &Decision| matches!(decision, Decision::Start { .. });
        let makes_room = |decision: &Decision| {
            matches!(decision, Decision::Preempt { .. } | Decision::Shrink { .. })
        };
        (
            decisions.iter().any(starts),
            decisions.iter().filter(|it| makes_room(it)).count(),
        )
    };
    let without = reading(&[], waits.clone());
    assert_eq!(becomes(waits.clone()), becomes(without), "{waits:?}");
}

fn check_victim(before: &Site, victim: &JobId) {
    let running = &before.running[victim];
    assert_ne!(running.job.priority, Priority::Production);
    let is_asked = matches!(running.change, Change::Yields | Change::Shrinks { .. });
    assert!(!is_asked, "{victim} was not asked yet");
}

/// Each may be in one that comes before it, or in itself.
fn drawn_queues(specs: &[(u8, u32, u32, bool)]) -> Vec<(&'static str, QueueSpec)> {
    let queues = specs.iter().zip(QUEUES);
    let queues = queues.map(|((parent, guaranteed, ceiling, borrow), name)| {
        let parent = QUEUES.get(usize::from(*parent)).copied();
        let guaranteed = match guaranteed {
            0 => String::new(),
            n if n % 2 == 0 => format!("a100={n}"),
            n => format!("any={n}"),
        };
        let ceiling = match ceiling {
            0..=2 => String::new(),
            n if n % 2 == 0 => format!("a100={n}"),
            n => format!("any={n}"),
        };
        let parent = parent.filter(|parent| *parent < name);
        let spec = queue(parent, &guaranteed, &ceiling);
        (
            name,
            QueueSpec {
                borrow: *borrow,
                ..spec
            },
        )
    });
    queues.collect()
}

fn chain(queues: &BTreeMap<String, QueueSpec>, name: &str) -> Vec<String> {
    let parent = |name: &String| queues.get(name).and_then(|spec| spec.parent.clone());
    let first = queues.contains_key(name).then(|| name.to_owned());
    std::iter::successors(first, parent).take(9).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn nothing_is_promised_twice_and_nothing_depends_on_how_it_came_about(
        queues in prop::collection::vec((0..4_u8, 0..7_u32, 0..9_u32, prop::bool::weighted(0.8)), 0..4),
        happenings in prop::collection::vec(any_happening(), 1..40),
    ) {
        let mut drill = Drill::new();
        drill.happen(&Happening::Queues(queues));
        for happening in &happenings {
            drill.happen(happening);
        }
        drill.happen(&Happening::Cycle);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn what_is_said_to_help_helps(
        queues in prop::collection::vec((0..4_u8, 0..7_u32, 0..9_u32, Just(true)), 0..4),
        happenings in prop::collection::vec(any_happening(), 10..30),
    ) {
        let mut drill = Drill::new();
        drill.happen(&Happening::Queues(queues));
        for happening in &happenings {
            drill.happen(happening);
        }
        drill.happen(&Happening::Cycle);
        let now = at(drill.now);
        for name in drill.site.waiting.keys() {
            let wait = drill.site.scheduler.explain(name, now).expect("it waits");
            prop_assert!(!wait.to_string().is_empty());
            for remedy in &wait.helps {
                let mut granted = drill.site.clone();
                grant(&mut granted, name, remedy);
                let mut granted = granted.afresh();
                let decisions = granted.cycle(now);
                let starts = decisions.iter().any(|decision| {
                    matches!(decision, Decision::Start { job, .. } if job == name)
                });
                let is_coming = granted.waits(name).is_some_and(|wait| {
                    matches!(wait.constraint, Constraint::Coming { .. })
                });
                let helped = starts || is_coming;
                prop_assert!(helped, "{remedy} helps {name}: {decisions:?}");
            }
        }
    }
}

fn grant(site: &mut Site, name: &JobId, remedy: &Remedy) {
    match remedy {
        Remedy::FewerWorkers { workers } => {
            let mut job = site.waiting[name].clone();
            job.gang = Arc::new(Gang {
                workers: *workers,
                min_workers: None,
                ..job.gang.as_ref().clone()
            });
            site.submit(job);
        }
        Remedy::OtherGpuTypes { products } => {
            let mut job = site.waiting[name].clone();
            job.gang = Arc::new(Gang {
                gpu_types: products.clone(),
                ..job.gang.as_ref().clone()
            });
            site.submit(job);
        }
        Remedy::MoreNodes { like, count } => {
            let like = site.nodes[like].clone();
            for number in 0..*count {
                site.put_node(Node {
                    name: format!("new-{number}"),
                    ..like.clone()
                });
            }
        }
        Remedy::All { of } => {
            for remedy in of {
                grant(site, name, remedy);
            }
        }
        Remedy::RaiseCeiling { queue, gpus, to } => {
            let spec = site.queues.get_mut(queue).expect("the queue");
            spec.ceiling
                .insert(gpus.clone(), stoke_api::queue::GpuCount(*to));
        }
        Remedy::RaiseGuarantee { queue, gpus, to } => {
            let spec = site.queues.get_mut(queue).expect("the queue");
            spec.guaranteed
                .insert(gpus.clone(), stoke_api::queue::GpuCount(*to));
        }
    }
}

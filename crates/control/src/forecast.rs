//! What the scheduler would say of a cluster that was read at one moment: for commands that ask what would happen, or why nothing does.
//!
//! The objects go through the same mirrors, plans and accounts as in the controllers, so that both come to the same answer.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::runtime::watcher::Event;
use stoke_api::trainjob::Sizing;
use stoke_api::{Bytes, Dataset, JobProfile, Queue, TrainJob};
use stoke_sched::Scheduler;

use crate::config::Config;
use crate::mirror::Key;
use crate::trainjob::admission;
use crate::trainjob::observe::{Aside, observe};
use crate::trainjob::plan::next_size;
use crate::world::{Kind, World};

/// All that a scheduler decides by.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    pub nodes: Vec<Node>,
    pub pods: Vec<Pod>,
    /// Those that do not exist yet included: they are as good as submitted.
    pub jobs: Vec<TrainJob>,
    pub queues: Vec<Queue>,
    pub datasets: Vec<Dataset>,
    pub profiles: Vec<JobProfile>,
    pub claims: Vec<PersistentVolumeClaim>,
    pub volumes: Vec<PersistentVolume>,
}

/// What each worker of a job's next run gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRun {
    pub memory: Sizing,
    /// What its memory limit may be raised to while it runs.
    pub memory_max: Option<Bytes>,
}

impl Listed {
    /// What the next run of a job gets: its next attempt, or, where it is over, the first of a job that is submitted like it. The error says
    /// what is wrong with the job.
    ///
    /// Other jobs and pods have no say in that, and need not be listed; what its profile, its datasets and the nodes say has.
    pub fn next_run(
        self,
        mut job: TrainJob,
        config: &Config,
        now: Timestamp,
    ) -> Result<NextRun, String> {
        if job.is_finished() {
            job.status = None;
        }
        let key = Key::of(&job.metadata);
        let jobs = vec![job];
        let world = Self { jobs, ..self }.world(config);
        let observed = observe(&world, &key, Aside::default());
        let observed = observed.ok_or_else(|| format!("there is no job {key}"))?;
        let size = next_size(&observed, config, now)?;
        Ok(NextRun {
            memory: size.memory,
            memory_max: size.memory_max,
        })
    }

    /// A scheduler that knows all of it, and has decided nothing yet. Jobs are called `namespace/name`; one that waits for something else
    /// than room (a dataset, its next attempt, its author) is not in it.
    pub fn scheduler(self, config: &Config, now: Timestamp) -> Scheduler {
        let mut world = self.world(config);
        admission::look_at_all(&mut world, config, now);
        world.into_scheduler()
    }

    pub(crate) fn world(self, config: &Config) -> World {
        let mut world = World::new(config.clone());
        fill(&mut world, self.queues);
        fill(&mut world, self.nodes);
        fill(&mut world, self.datasets);
        fill(&mut world, self.profiles);
        fill(&mut world, self.volumes);
        fill(&mut world, self.claims);
        fill(&mut world, self.jobs);
        fill(&mut world, self.pods);
        debug_assert!(world.is_complete(), "every kind was listed");
        world
    }
}

fn fill<K: Kind>(world: &mut World, objects: Vec<K>) {
    world.watched(Event::<K>::Init);
    for object in objects {
        world.watched(Event::InitApply(object));
    }
    world.watched(Event::<K>::InitDone);
}

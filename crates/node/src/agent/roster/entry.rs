//! One pod of the node: what runs of it, what is known of its memory, and what is to be done for it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use stoke_api::contract::JobStatus;
use stoke_api::digest::ContainerDigest;
use stoke_api::risk::{MemoryRisk, Stage};
use stoke_memory::guard::{Action, Neighbour, Room, Shortage, Terms};

use super::{Labels, Outcome, Reading};
use crate::agent::deeds::{self, Deed, Who};
use crate::agent::layout::Qos;
use crate::agent::neighbours::NodeLook;
use crate::agent::outbox::Outbox;
use crate::cgroup::{CgroupSpec, MemorySample};
use crate::idle::{Idle, Signs};
use crate::vigil::{self, Vigil};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) who: Who,
    pub(super) labels: Labels,
    pub(super) cgroup_uid: String,
    pub(super) qos: Option<Qos>,
    /// What it was promised of the node's memory.
    pub(super) promised: u64,
    /// The worker of a job, and what may be done for it.
    pub(super) worker: Option<(String, Terms)>,
    /// What is to be said of its own memory.
    pub(super) risk: Option<MemoryRisk>,
    /// What is said of it, or about to be: its node may matter more.
    pub(super) told: Option<MemoryRisk>,
    /// What is said of a worker that does nothing, or about to be.
    pub(super) idle: Option<String>,
    pub(super) outbox: Outbox,
    /// What the kubelet last said against a change of its size.
    pub(super) objection: Option<String>,
    /// By the runtime's id: a restarted container is another one.
    pub(super) running: BTreeMap<String, Running>,
    pub(super) ended: BTreeMap<String, ContainerDigest>,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) name: String,
    pub(super) cgroup: Option<CgroupSpec>,
    pub(super) latest: Option<MemorySample>,
    pub(super) vigil: Vigil,
    /// Of a worker whose job wants to know whether it does anything.
    pub(super) idle: Option<Idle>,
    /// The limit that was last asked for, until it is in force or taken back.
    pub(super) sought: Option<u64>,
    /// Why it cannot be measured, once that lasts.
    pub(super) trouble: Option<String>,
    /// Passes in a row in which it was not found.
    pub(super) missed: u32,
}

impl Entry {
    pub(super) fn worker_name(&self) -> Option<&String> {
        self.worker.as_ref().map(|(name, _)| name)
    }

    /// What the kubelet says against a change of its size, once for each time. What it does not give is asked for no more, or it would be
    /// given when nobody needs it.
    pub(super) fn hear(&mut self, objection: Option<String>, asked: Option<u64>) {
        if self.objection == objection {
            return;
        }
        self.objection = objection;
        let Some(why) = self.objection.clone() else {
            return;
        };
        // The guard may have lost patience already, and what it asked for stands until it is taken back. What others ask for is theirs.
        let mut all = self.running.values_mut();
        let is_ours = |running: &&mut Running| {
            let sought = running.sought;
            sought.is_some_and(|sought| is_in_force(sought, asked))
        };
        let Some(running) = all.find(is_ours) else {
            return;
        };
        let Some(in_force) = running.latest.and_then(|sample| sample.limit_bytes) else {
            return;
        };
        running.sought = None;
        let (who, is_promised) = (self.who.clone(), self.qos == Some(Qos::Guaranteed));
        let deed = Deed::taking_back(who, &running.name, in_force, is_promised, &why);
        self.outbox.resize(deed);
        self.refuse(&why);
    }

    pub(super) fn refuse(&mut self, why: &str) {
        for running in self.running.values_mut() {
            running.vigil.refused(why.to_owned());
        }
    }

    pub(super) fn ask_again(&mut self) {
        for running in self.running.values_mut() {
            running.vigil.ask_again();
        }
    }

    /// Says how it stands with its memory, if that is not what it says.
    pub(super) fn tell(&mut self, shortage: Option<&Shortage>, now: Timestamp) {
        if self.worker.is_none() {
            return;
        }
        let risk = vigil::said(shortage, self.risk.as_ref(), self.told.as_ref(), now);
        if risk == self.told {
            return;
        }
        // What a guard does is logged with what it does.
        let before = self.told.as_ref().map(|told| told.stage);
        if let Some(risk) = &risk
            && matches!(risk.stage, Stage::Foreseen | Stage::NodeShort)
            && before != Some(risk.stage)
        {
            self.outbox.say(risk.why.clone());
        }
        self.outbox.tell(deeds::risk(risk.as_ref()));
        self.told = risk;
    }

    /// Gives what is to be logged.
    pub(super) fn record(&mut self, reading: Reading, around: &mut Around<'_>) -> Option<String> {
        /// A cgroup appears a moment after its container is said to run, and goes a moment before it is said to have ended.
        const MISSED_MAX: u32 = 10;
        let trouble = match reading.outcome {
            Outcome::Measured {
                cgroup,
                sample,
                said,
                cpu_usec,
            } => {
                self.look(&reading.id, &cgroup, &sample, &said, around);
                self.look_for_life(&reading.id, cpu_usec, said.step, around.at);
                let running = self.running.get_mut(&reading.id)?;
                running.latest = Some(sample);
                running.cgroup = Some(*cgroup);
                running.missed = 0;
                running.trouble = None;
                return None;
            }
            Outcome::Absent => {
                let running = self.running.get_mut(&reading.id)?;
                running.cgroup = None;
                running.latest = None;
                running.missed = running.missed.saturating_add(1);
                if running.missed < MISSED_MAX {
                    return None;
                }
                "its cgroup is not found".to_owned()
            }
            Outcome::Unreadable(why) => {
                self.running.get_mut(&reading.id)?.latest = None;
                why
            }
        };
        let running = self.running.get_mut(&reading.id)?;
        if running.trouble.as_ref() == Some(&trouble) {
            return None;
        }
        let Labels { namespace, pod, .. } = &self.labels;
        let line = format!("{namespace}/{pod} container {}: {trouble}", running.name);
        running.trouble = Some(trouble);
        Some(line)
    }

    /// One look at one of its containers.
    fn look(
        &mut self,
        id: &str,
        cgroup: &CgroupSpec,
        sample: &MemorySample,
        said: &JobStatus,
        around: &mut Around<'_>,
    ) {
        let Some(running) = self.running.get_mut(id) else {
            return;
        };
        let (at, now) = (around.at, around.now);
        let is_short = around.shortage.is_some();
        let room = || around.room(cgroup, &self.who.uid, self.promised);
        let action = running.vigil.look(at, sample, said, is_short, room);
        if running
            .sought
            .is_some_and(|sought| is_in_force(sought, sample.limit_bytes))
        {
            running.sought = None;
        }
        let risk = self.risk.as_ref();
        let is_awaited = risk.is_some_and(|risk| risk.checkpoint_asked_at.is_some());
        if let Some(age) = running.vigil.news_of_save(at, is_awaited) {
            if let Some(saved) = running.vigil.saved() {
                for told in deeds::seen(saved) {
                    self.outbox.tell(told);
                }
            } else {
                let saved = now.checked_sub(age).unwrap_or(now);
                self.outbox.tell(deeds::saved(saved));
            }
        }
        match action {
            Some(action) => self.act(id, &action, around),
            None => self.risk = running.vigil.forewarning(self.risk.as_ref(), now),
        }
        self.tell(around.shortage.as_ref(), now);
    }

    /// Says that a worker has done nothing for as long as its job allows, and takes that back when it does something: nothing is written
    /// of those that work.
    fn look_for_life(&mut self, id: &str, cpu_usec: Option<u64>, step: Option<u64>, at: Duration) {
        let running = self.running.get_mut(id);
        let Some(idle) = running.and_then(|running| running.idle.as_mut()) else {
            return;
        };
        if cpu_usec.is_none() || !idle.is_due(at) {
            return;
        }
        let signs = Signs {
            cpu_usec,
            step,
            ..Signs::default()
        };
        idle.look(at, signs);
        let told = idle.told();
        if told != self.idle {
            self.outbox.say(told.clone().unwrap_or_default());
            self.outbox.tell(deeds::idle(told.as_deref()));
            self.idle = told;
        }
    }

    fn act(&mut self, id: &str, action: &Action, around: &mut Around<'_>) {
        let Some(running) = self.running.get_mut(id) else {
            return;
        };
        if let Action::Raise { to, .. } | Action::GiveBack { to, .. } = action {
            running.sought = Some(*to);
            // The next one who looks for room finds it taken.
            if let Some(own) = around.neighbours.get_mut(&self.who.uid) {
                own.lent = own.lent.max(running.vigil.lent());
            }
        }
        let is_promised = self.qos == Some(Qos::Guaranteed);
        let deed = Deed::resizing(self.who.clone(), &running.name, action, is_promised);
        if let Some(deed) = deed {
            self.outbox.resize(deed);
        } else {
            self.outbox.say(action.to_string());
        }
        if let Action::AskCheckpoint { .. } | Action::AskInTime { .. } = action {
            self.outbox.tell(deeds::request(action, around.now));
        }
        if !matches!(action, Action::GiveBack { .. }) {
            let before = self.risk.as_ref();
            self.risk = running.vigil.risk(action, before, around.now);
        }
    }
}

/// What a look at a container needs to know of everything else.
pub(super) struct Around<'a> {
    /// Since any fixed moment.
    pub(super) at: Duration,
    pub(super) now: Timestamp,
    pub(super) look: &'a NodeLook,
    pub(super) shortage: Option<Shortage>,
    /// By uid.
    pub(super) neighbours: HashMap<String, Neighbour>,
}

impl Around<'_> {
    fn room(&self, cgroup: &CgroupSpec, own: &str, own_promise: u64) -> Room {
        let others = self.neighbours.iter().filter(|(uid, _)| *uid != own);
        let others = others.map(|(_, neighbour)| *neighbour).collect();
        self.look.node(cgroup.path(), others).room(own_promise)
    }
}

/// To 64 KiB: the kernel counts in pages, and some machines have large ones.
fn is_in_force(sought: u64, limit: Option<u64>) -> bool {
    limit.is_some_and(|limit| limit >> 16 == sought >> 16)
}

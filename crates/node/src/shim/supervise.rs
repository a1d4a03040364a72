//! The supervisor: the pod's containers from their first start to their last end.
//!
//! One thread, one queue of events, no waiting for anything else: every look at the world is short, and what takes longer
//! (reading pipes, talking to clients, a container's start) is done by other threads that send an event when it is done.
//!
//! Invariant: what happened is on disk before it is told to anyone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{WaitOptions, WaitStatus, wait};

use super::backoff::Restarts;
use super::exec::ExecRun;
use super::launch::Handshake;
use super::processes;
use super::protocol::{
    ContainerSpec, ContainerState, Exit, RestartPolicy, ShimSpec, ShimStatus, reason,
};
use super::run::{HELD_MAX, Orphans, Run, RunId, kill_pid, over_limit, start_error, with_cause};
use super::serve::{Asked, Board};

mod answer;
mod report;

/// How often something that is about to happen is looked at: leftovers dying, output draining.
const SOON: Duration = Duration::from_millis(5);
/// How often the counter of the kernel's kills is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often memory is summed up where no cgroup holds the limit.
const GUARD_EVERY: Duration = Duration::from_millis(200);
/// How often SIGKILL is repeated for what has not died of it yet.
const KILL_AGAIN: Duration = Duration::from_millis(250);
/// How long the last tidying up may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

pub(super) enum Event {
    /// A child has ended and waits to be collected; the sender waits for it.
    Child(SyncSender<()>),
    Handshake {
        id: RunId,
        at: Timestamp,
        handshake: Handshake,
    },
    ExecHandshake {
        number: u64,
        handshake: Handshake,
    },
    Asked(Asked),
    /// Something changed that a look will find.
    Look,
}

impl From<Asked> for Event {
    fn from(asked: Asked) -> Self {
        Self::Asked(asked)
    }
}

/// One container of the pod.
struct Slot {
    spec: ContainerSpec,
    is_init: bool,
    phase: Phase,
    restarts: Restarts,
    restart_count: u32,
    last: Option<Exit>,
    generation: u64,
    /// Restart it whatever its exit code: a liveness probe said so.
    restart_wanted: bool,
}

impl Slot {
    /// Whether a run that ended is followed by another.
    fn runs_again(&self, policy: RestartPolicy, failed: bool) -> bool {
        match policy {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => failed || self.restart_wanted,
            RestartPolicy::Always => failed || self.restart_wanted || !self.is_init,
        }
    }
}

enum Phase {
    /// Not its turn yet.
    Idle,
    Backoff {
        until: Instant,
        wait: Duration,
    },
    Active(Box<Run>),
    Done(Exit),
}

pub(super) struct Supervisor {
    dir: PathBuf,
    spec: ShimSpec,
    slots: Vec<Slot>,
    execs: Vec<ExecRun>,
    exec_number: u64,
    stop_reason: Option<String>,
    /// Something was left to be run when the first `Stop` came.
    cut_short: bool,
    /// No container is started any more.
    stopping: bool,
    finished: bool,
    written: Option<ShimStatus>,
    write_again_at: Option<Instant>,
    look_at: Instant,
    guard_at: Instant,
    board: Arc<Board>,
    events: Sender<Event>,
    /// Tells the thread that waits for children that there is one.
    spawned: Sender<()>,
}

impl Supervisor {
    /// `previous` is what an earlier shim of this pod wrote: its runs count as restarts, and their logs are kept.
    pub(super) fn new(
        dir: &Path,
        spec: ShimSpec,
        previous: Option<&ShimStatus>,
        board: Arc<Board>,
        events: Sender<Event>,
        spawned: Sender<()>,
    ) -> Self {
        let now = Instant::now();
        let slot = |is_init: bool| {
            move |container: &ContainerSpec| {
                let before = previous.and_then(|status| status.container(&container.name));
                let last = before.and_then(|status| match &status.state {
                    ContainerState::Terminated(exit) => Some(exit.clone()),
                    _ => status.last.clone(),
                });
                Slot {
                    spec: container.clone(),
                    is_init,
                    phase: Phase::Idle,
                    restarts: Restarts::new(spec.backoff),
                    restart_count: match (before, &last) {
                        (Some(before), Some(_)) => before.restart_count + 1,
                        _ => 0,
                    },
                    last,
                    generation: 0,
                    restart_wanted: false,
                }
            }
        };
        let init = spec.init.iter().map(slot(true));
        let slots = init
            .chain(spec.containers.iter().map(slot(false)))
            .collect();
        Self {
            dir: dir.to_owned(),
            spec,
            slots,
            execs: Vec::new(),
            exec_number: 0,
            stop_reason: None,
            cut_short: false,
            stopping: false,
            finished: false,
            written: None,
            write_again_at: None,
            look_at: now,
            guard_at: now,
            board,
            events,
            spawned,
        }
    }

    /// Runs the pod to its end.
    pub(super) fn run(&mut self, events: &Receiver<Event>) {
        loop {
            let now = Instant::now();
            self.step(now);
            self.publish(now);
            if self.finished && self.write_again_at.is_none() {
                return;
            }
            let wait = self
                .next_look(now)
                .saturating_duration_since(Instant::now());
            if let Ok(event) = events.recv_timeout(wait) {
                self.take(event);
                // Whatever else has come meanwhile, so that one status tells it all.
                while let Ok(event) = events.try_recv() {
                    self.take(event);
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Child(collected) => {
                self.collect_children();
                let _ = collected.send(());
            }
            Event::Handshake { id, at, handshake } => {
                if let Some(slot) = self.slots.get_mut(id.slot)
                    && slot.generation == id.generation
                    && let Phase::Active(run) = &mut slot.phase
                {
                    run.shake(handshake, at);
                }
            }
            Event::ExecHandshake { number, handshake } => {
                if let Some(exec) = self.execs.iter_mut().find(|exec| exec.number == number) {
                    exec.shake(handshake);
                }
            }
            Event::Asked(Asked { request, answer }) => {
                if let Some(response) = self.answer(request, &answer) {
                    // The client may have gone.
                    let _ = answer.send(response);
                }
            }
            Event::Look => {}
        }
    }

    fn collect_children(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            self.child_ended(pid.as_raw_pid() as u32, status);
        }
    }

    /// Whether something of the pod runs, or would still be started if nobody stopped it.
    fn has_work_left(&self) -> bool {
        let policy = self.spec.restart_policy;
        !self.finished
            && self.slots.iter().any(|slot| match &slot.phase {
                Phase::Idle | Phase::Backoff { .. } => true,
                Phase::Active(run) => run
                    .has_failed()
                    .is_none_or(|failed| slot.runs_again(policy, failed)),
                Phase::Done(_) => false,
            })
    }

    fn child_ended(&mut self, pid: u32, status: WaitStatus) {
        let now = Instant::now();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Phase::Active(run) = &mut slot.phase
                && run.pid == pid
                && !run.is_ending()
            {
                run.main_ended(status, now);
                self.execs
                    .iter()
                    .filter(|exec| exec.slot == index)
                    .for_each(ExecRun::kill);
                return;
            }
        }
        if let Some(exec) = self
            .execs
            .iter_mut()
            .find(|exec| exec.pid == pid && !exec.has_ended())
        {
            exec.main_ended(status, now);
        }
        // Otherwise an orphan that came to us; nobody asks how it ended.
    }

    fn step(&mut self, now: Instant) {
        let orphans = self.orphans();
        for index in 0..self.slots.len() {
            self.step_slot(index, now, &orphans);
        }
        self.look_at_memory(now, &orphans);
        self.execs.retain_mut(|exec| !exec.step(now));
        self.go_on(now);
    }

    fn step_slot(&mut self, index: usize, now: Instant, orphans: &Orphans) {
        let slot = &mut self.slots[index];
        match &mut slot.phase {
            Phase::Backoff { until, .. } if *until <= now => {
                slot.restart_count += 1;
                self.start(index, now);
            }
            Phase::Active(run) if run.is_over(now, orphans) => {
                if let Phase::Active(run) = std::mem::replace(&mut slot.phase, Phase::Idle) {
                    let exit = run.finish(slot.spec.memory_limit_bytes);
                    self.ended(index, exit, now);
                }
            }
            Phase::Active(run) if run.kill_at.is_some_and(|at| at <= now) && !run.is_ending() => {
                run.kill(orphans);
                run.kill_at = Some(now + KILL_AGAIN);
            }
            _ => {}
        }
    }

    /// A run is over: again, or for good.
    fn ended(&mut self, index: usize, exit: Exit, now: Instant) {
        let policy = self.spec.restart_policy;
        let slot = &mut self.slots[index];
        let again = slot.runs_again(policy, exit.exit_code != 0);
        slot.restart_wanted = false;
        if !again || self.stopping {
            slot.phase = Phase::Done(exit);
            return;
        }
        slot.last = Some(exit);
        let wait = slot.restarts.wait(now);
        slot.phase = Phase::Backoff {
            until: now + wait,
            wait,
        };
        self.step_slot(index, now, &Orphans::default());
    }

    /// Starts what is next, or sees that nothing is.
    fn go_on(&mut self, now: Instant) {
        if self.finished {
            return;
        }
        let failed_init = self.slots.iter().any(|slot| {
            slot.is_init && matches!(&slot.phase, Phase::Done(exit) if exit.exit_code != 0)
        });
        if !self.stopping && !failed_init {
            while let Some(index) = self.next_to_start() {
                self.start(index, now);
            }
        }
        let over = |slot: &Slot| match slot.phase {
            Phase::Done(_) => true,
            Phase::Idle => self.stopping || failed_init,
            Phase::Backoff { .. } | Phase::Active(_) => false,
        };
        if self.slots.iter().all(over) {
            self.finish();
        }
    }

    /// Init containers one after the other, then all others at once.
    fn next_to_start(&self) -> Option<usize> {
        let unfinished = self
            .slots
            .iter()
            .position(|slot| slot.is_init && !matches!(slot.phase, Phase::Done(_)));
        let index = unfinished.or_else(|| {
            self.slots
                .iter()
                .position(|slot| matches!(slot.phase, Phase::Idle))
        })?;
        matches!(self.slots[index].phase, Phase::Idle).then_some(index)
    }

    fn start(&mut self, index: usize, now: Instant) {
        let slot = &mut self.slots[index];
        slot.generation += 1;
        let id = RunId {
            slot: index,
            generation: slot.generation,
        };
        crate::logs::remove_before(
            &self.dir,
            &slot.spec.name,
            slot.restart_count.saturating_sub(1),
        );
        match Run::start(
            &self.dir,
            &self.spec,
            &slot.spec,
            slot.restart_count,
            id,
            &self.events,
        ) {
            Ok(run) => {
                slot.phase = Phase::Active(Box::new(run));
                let _ = self.spawned.send(());
            }
            Err(message) => {
                slot.phase = Phase::Idle;
                self.ended(index, start_error(message, Timestamp::now()), now);
            }
        }
    }

    fn finish(&mut self) {
        match &self.spec.cgroup {
            Some(cgroup) => {
                if let Err(error) = cgroup.remove(LEAVE_WITHIN) {
                    // The engine removes it as an orphan later.
                    eprintln!("{}", with_cause(&error));
                }
            }
            None => end_strays(),
        }
        self.finished = true;
    }

    fn look_at_memory(&mut self, now: Instant, orphans: &Orphans) {
        if self.look_at <= now {
            self.look_at = now + LOOK_EVERY;
            for slot in &mut self.slots {
                if let Phase::Active(run) = &mut slot.phase {
                    run.look_at_memory();
                    if slot.spec.memory_max_bytes.is_some() {
                        run.let_go_if_held(slot.spec.memory_limit_bytes, now);
                    }
                }
            }
        }
        if self.spec.cgroup.is_none() && self.guard_at <= now {
            self.guard_at = now + GUARD_EVERY;
            for slot in &mut self.slots {
                guard(slot, orphans, now);
            }
        }
    }

    fn orphans(&self) -> Orphans {
        if self.spec.cgroup.is_some() {
            return Orphans::default();
        }
        let mut pids = processes::children(std::process::id());
        let runs = self.slots.iter().filter_map(|slot| match &slot.phase {
            Phase::Active(run) => Some(run.pid),
            _ => None,
        });
        let known: Vec<u32> = runs.collect();
        for pid in known
            .iter()
            .copied()
            .chain(self.execs.iter().map(|exec| exec.pid))
        {
            pids.remove(&pid);
        }
        Orphans {
            pids,
            of_one: known.len() == 1,
        }
    }

    fn next_look(&self, now: Instant) -> Instant {
        let mut next = now + Duration::from_secs(3600);
        let mut at = |time: Instant| next = next.min(time);
        for slot in &self.slots {
            match &slot.phase {
                Phase::Backoff { until, .. } => at(*until),
                Phase::Active(run) => {
                    if run.is_ending() {
                        at(now + SOON);
                    } else {
                        run.kill_at.into_iter().for_each(&mut at);
                    }
                    at(self.look_at);
                    if run.cgroup.is_none() && slot.spec.memory_limit_bytes.is_some() {
                        at(self.guard_at);
                    }
                }
                Phase::Idle | Phase::Done(_) => {}
            }
        }
        self.execs
            .iter()
            .for_each(|exec| at(exec.next_look(now, SOON)));
        self.write_again_at.into_iter().for_each(&mut at);
        next
    }
}

/// Ends whoever is left of the pod though no container would own it: without a cgroup a process can shed all that it was
/// known by, but not that it descends from us.
fn end_strays() {
    let deadline = Instant::now() + LEAVE_WITHIN;
    loop {
        let strays = processes::descendants(std::process::id());
        if strays.is_empty() || Instant::now() >= deadline {
            return;
        }
        strays.into_iter().for_each(kill_pid);
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills a container that uses more memory than it may, where no cgroup does. One whose limit may be raised is given a moment for that.
fn guard(slot: &mut Slot, orphans: &Orphans, now: Instant) {
    let may_be_raised = slot.spec.memory_max_bytes > slot.spec.memory_limit_bytes;
    let (Some(limit), Phase::Active(run)) = (slot.spec.memory_limit_bytes, &mut slot.phase) else {
        return;
    };
    if run.is_ending() {
        return;
    }
    let Ok(sample) = run.sample(Some(limit), orphans) else {
        return;
    };
    if sample.usage_bytes <= limit {
        run.held_since = None;
        return;
    }
    let since = *run.held_since.get_or_insert(now);
    if !may_be_raised || now.saturating_duration_since(since) >= HELD_MAX {
        let message = format!(
            "{}: {} MiB in use",
            over_limit(Some(limit)),
            sample.usage_bytes >> 20
        );
        run.kill_reason = Some((reason::OOM_KILLED.to_owned(), Some(message)));
        run.kill(orphans);
    }
}

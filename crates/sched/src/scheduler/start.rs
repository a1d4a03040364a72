//! Gives a job its room.

use jiff::Timestamp;

use super::Holding;
use super::cycle::{Candidate, Cycle};
use super::job::{Change, Decision};
use super::room::part;
use crate::gang::Gang;
use crate::place::{Plan, find, find_near};
use crate::queues::{Account, Mask, When};

impl Cycle<'_> {
    /// Starts a job if there is room that is kept for nobody.
    pub fn start(&mut self, job: &Candidate, mask: Mask) -> bool {
        if self.s.shapes.is_turned_away(job.shape, mask) {
            return false;
        }
        let gang = self.s.shapes.gang(job.shape, mask, &self.s.room.models);
        let ends_by = self.ends_by(&job.id);
        let datasets = self.s.jobs[&job.id].job.datasets.clone();
        // Where its data is there may be GPUs that its queue has no more of. It does not wait for that.
        let tries = if datasets.is_empty() {
            &[false][..]
        } else {
            &[true, false]
        };
        for to_data in tries {
            let datasets: &[String] = if *to_data { &datasets } else { &[] };
            let Some(plan) = self.search(job, mask, &gang, ends_by, datasets) else {
                return false;
            };
            let workers = gang.workers as usize;
            if let Some(plan) = self.within_quota(job, &Plan::default(), plan, &gang, workers) {
                self.give_room(job, plan, ends_by);
                return true;
            }
        }
        false
    }

    /// Room for a job that is kept for nobody, or in time for whom it is kept. Where there was none for a shape there is none since.
    fn search(
        &mut self,
        job: &Candidate,
        mask: Mask,
        gang: &Gang,
        ends_by: Option<Timestamp>,
        datasets: &[String],
    ) -> Option<Plan> {
        let now = &self.s.room.now;
        let data = self.s.datasets.of(datasets);
        if self.found.full.insert((job.shape, mask)) {
            let open = self.found.views.open(now);
            if let Some(plan) = find_near(open, gang, &data) {
                self.found.full.remove(&(job.shape, mask));
                return Some(plan);
            }
            // Remembered beyond this cycle only where nobody could have it.
            if std::ptr::eq(open, now) || find(now, gang).is_none() {
                let models = &self.s.room.models;
                self.s.shapes.turn_away(job.shape, mask, models, now);
                return None;
            }
        }
        let is_short =
            !self.found.views.is_open_to_all() && self.found.views.are_all_after(ends_by);
        if !is_short || !self.found.full_for_short.insert((job.shape, mask)) {
            return None;
        }
        let found = find_near(self.found.views.kept(now), gang, &data)?;
        self.found.full_for_short.remove(&(job.shape, mask));
        Some(found)
    }

    /// As many of these workers as the queue allows beside others, and at least so many.
    pub fn within_quota(
        &self,
        job: &Candidate,
        beside: &Plan,
        plan: Plan,
        gang: &Gang,
        least: usize,
    ) -> Option<Plan> {
        let milli = self.s.shapes.get(job.shape).milli;
        if milli == 0 {
            return Some(plan);
        }
        let beside = self.s.room.used_by(beside, gang, milli).gpus;
        let counts = (least.max(1)..=plan.nodes.len()).rev();
        let mut fewer = counts.map(|workers| part(&plan, |rank, _| rank < workers));
        fewer.find(|fewer| {
            let mut gpus = self.s.room.used_by(fewer, gang, milli).gpus;
            gpus += beside;
            job.is_enough(&self.s.queues.admit(&job.asks(gpus, When::Now)))
        })
    }

    fn give_room(&mut self, job: &Candidate, plan: Plan, ends_by: Option<Timestamp>) {
        let Some(entry) = self.s.jobs.remove(&job.id) else {
            return;
        };
        self.s.lines[job.queue].leave(&entry.job);
        if job.is_overdue {
            self.s.queues.take_turn(job.queue, self.now);
            self.overdue[job.queue] = None;
        }
        let gang = entry.job.gang.clone();
        self.s.room.set_aside(&job.id, plan.clone(), gang.clone());
        self.found
            .views
            .start(&self.s.room.now, &plan, &gang, ends_by);
        let holding = Holding {
            plan: plan.clone(),
            since: self.now,
            ends_by,
            saved_at: None,
            change: Change::None,
            account: Account::default(),
            is_on_record: false,
        };
        let guarantor = self.s.queues.guarantor(job.queue);
        self.found.borrowers.remove(&guarantor);
        self.s.hold(entry.job, entry.queue, entry.shape, holding);
        self.decisions.push(Decision::Start {
            job: job.id.clone(),
            plan,
        });
    }
}

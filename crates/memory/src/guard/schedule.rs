//! A program that leaks begins anew from a checkpoint every so many steps of its own, before its memory is full.

/// Who has come to the end of it is asked once a run; whoever asks sees to the restart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    /// Steps that a run does at most; absent: as many as it likes.
    every: Option<u64>,
    /// As it counts them now, and what it had done when it last began to count anew, as some do with every epoch.
    done: u64,
    before: u64,
    is_asked: bool,
}

impl Schedule {
    pub(super) fn new(every: Option<u64>) -> Self {
        Self {
            every: every.filter(|steps| *steps > 0),
            done: 0,
            before: 0,
            is_asked: false,
        }
    }

    /// A program that tells no steps has done none that count.
    pub(super) fn follow(&mut self, done: Option<u64>) {
        let Some(done) = done else { return };
        if done < self.done {
            self.before = self.before.saturating_add(self.done);
        }
        self.done = done;
    }

    /// The steps it has done and those it may do, where it has not been asked yet.
    pub(super) fn due(&mut self) -> Option<(u64, u64)> {
        let done = self.before.saturating_add(self.done);
        let every = self.every.filter(|every| done >= *every)?;
        let was_asked = std::mem::replace(&mut self.is_asked, true);
        (!was_asked).then_some((done, every))
    }

    pub(super) fn ask_again(&mut self) {
        self.is_asked = false;
    }

    pub(super) fn is_asked(self) -> bool {
        self.is_asked
    }
}

//! What is to be done to one pod: its newest size, and what is to be written on it.
//!
//! Invariant: of each kind one patch is under way at most, so that an older one never arrives after a newer one; and what is to be
//! written stays here until it is written.

use serde_json::{Map, Value};
use stoke_api::names::{CHECKPOINT_REQUEST_ANNOTATION, MEMORY_RISK_ANNOTATION};

use super::deeds::{Change, Deed, Who};

/// After failures in a row it is left alone for 1, 2, 4 and then this many passes.
const REST_MAX: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Not under way yet; the newest takes the place of older ones.
    resize: Option<Deed>,
    is_resizing: bool,
    /// Not written yet, by name. `Null` takes one away.
    unsaid: Map<String, Value>,
    /// For the log, once.
    line: String,
    is_telling: bool,
    failures: u32,
    /// Passes to go before it is tried again.
    rest: u32,
}

impl Outbox {
    pub(super) fn resize(&mut self, deed: Deed) {
        self.resize = Some(deed);
    }

    pub(super) fn tell(&mut self, (name, value): (&str, Value)) {
        if name == MEMORY_RISK_ANNOTATION && value.is_null() {
            // The danger is over: a request that did not get through is not wanted any more.
            self.unsaid.remove(CHECKPOINT_REQUEST_ANNOTATION);
        }
        self.unsaid.insert(name.to_owned(), value);
        // What is new does not wait for what failed.
        self.rest = 0;
    }

    /// To be logged with what is written next.
    pub(super) fn say(&mut self, line: String) {
        self.line = line;
    }

    /// Another second has passed.
    pub(super) fn pass(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    /// A change of its size that can be made now.
    pub(super) fn next_resize(&mut self) -> Option<Deed> {
        if self.is_resizing {
            return None;
        }
        let next = self.resize.take();
        self.is_resizing = next.is_some();
        next
    }

    /// What can be written on it now.
    pub(super) fn next_telling(&mut self, who: &Who) -> Option<Deed> {
        if self.is_telling || self.rest > 0 || self.unsaid.is_empty() {
            return None;
        }
        self.is_telling = true;
        let (line, unsaid) = (
            std::mem::take(&mut self.line),
            std::mem::take(&mut self.unsaid),
        );
        Some(Deed::telling(who.clone(), line, unsaid))
    }

    /// What was under way is over.
    pub(super) fn done(&mut self, deed: &Deed, is_done: bool) {
        match &deed.change {
            Change::Resize(_) => self.is_resizing = false,
            Change::Annotate(sent) => {
                self.is_telling = false;
                if is_done {
                    self.failures = 0;
                } else {
                    self.put_back(sent);
                }
            }
        }
    }

    /// What is of the same kind and has waited for it.
    pub(super) fn next_after(&mut self, deed: &Deed) -> Option<Deed> {
        match deed.change {
            Change::Resize(_) => self.next_resize(),
            Change::Annotate(_) => self.next_telling(&deed.who),
        }
    }

    /// It is to have another size than the one that is under way.
    pub(super) fn has_newer_size(&self) -> bool {
        self.resize.is_some()
    }

    /// What was said anew meanwhile stands.
    fn put_back(&mut self, sent: &Map<String, Value>) {
        let is_over = self
            .unsaid
            .get(MEMORY_RISK_ANNOTATION)
            .is_some_and(Value::is_null);
        for (name, value) in sent {
            if !(is_over && name == CHECKPOINT_REQUEST_ANNOTATION) {
                let unsaid = self.unsaid.entry(name.clone());
                unsaid.or_insert_with(|| value.clone());
            }
        }
        self.rest = (1 << self.failures.min(8)).min(REST_MAX);
        self.failures = self.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn who() -> Who {
        Who {
            namespace: "ml".to_owned(),
            pod: "gpt-1-0".to_owned(),
            uid: "u".to_owned(),
        }
    }

    fn said(deed: Option<Deed>) -> Option<(Deed, String)> {
        let deed = deed?;
        let Change::Annotate(annotations) = &deed.change else {
            panic!("{deed:?}");
        };
        let text = Value::Object(annotations.clone()).to_string();
        Some((deed, text))
    }

    #[test]
    fn one_is_under_way_and_the_newest_comes_next() {
        let mut outbox = Outbox::default();
        outbox.tell(("a", json!(1)));
        let (first, text) = said(outbox.next_telling(&who())).unwrap();
        assert_eq!(text, r#"{"a":1}"#);
        outbox.tell(("a", json!(2)));
        outbox.tell(("a", json!(3)));
        outbox.tell(("b", json!(1)));
        assert_eq!(outbox.next_telling(&who()), None, "one at a time");
        outbox.done(&first, true);
        let (second, text) = said(outbox.next_after(&first)).unwrap();
        assert_eq!(text, r#"{"a":3,"b":1}"#);
        outbox.done(&second, true);
        assert_eq!(outbox.next_telling(&who()), None, "all is said");
    }

    #[test]
    fn what_is_lost_is_said_again_a_pass_later_unless_there_is_something_newer() {
        let mut outbox = Outbox::default();
        outbox.tell(("a", json!(1)));
        outbox.tell(("b", json!(1)));
        let (mut deed, _) = said(outbox.next_telling(&who())).unwrap();
        outbox.tell(("b", json!(2)));
        let mut waits = Vec::new();
        for _ in 0..6 {
            outbox.done(&deed, false);
            assert_eq!(outbox.next_after(&deed), None, "not at once");
            let mut passes = 0;
            deed = loop {
                passes += 1;
                outbox.pass();
                if let Some((deed, text)) = said(outbox.next_telling(&who())) {
                    assert_eq!(text, r#"{"a":1,"b":2}"#);
                    break deed;
                }
            };
            waits.push(passes);
        }
        assert_eq!(waits, [1, 2, 4, 8, 8, 8]);
        outbox.done(&deed, false);
        outbox.tell(("c", json!(1)));
        let (deed, text) = said(outbox.next_telling(&who())).unwrap();
        assert_eq!(text, r#"{"a":1,"b":2,"c":1}"#, "what is new does not wait");
        outbox.done(&deed, true);
        assert_eq!(outbox.next_after(&deed), None);
    }

    #[test]
    fn a_request_that_got_lost_is_not_made_once_the_danger_is_over() {
        for is_over_before in [true, false] {
            let mut outbox = Outbox::default();
            outbox.tell((MEMORY_RISK_ANNOTATION, json!("x")));
            outbox.tell((CHECKPOINT_REQUEST_ANNOTATION, json!("now")));
            let (deed, _) = said(outbox.next_telling(&who())).unwrap();
            let over = (MEMORY_RISK_ANNOTATION, Value::Null);
            if is_over_before {
                outbox.tell(over);
                outbox.done(&deed, false);
            } else {
                outbox.done(&deed, false);
                outbox.tell(over);
            }
            outbox.pass();
            let (_, text) = said(outbox.next_telling(&who())).unwrap();
            assert_eq!(text, r#"{"stokehold.dev/memory-risk":null}"#);
        }
    }
}

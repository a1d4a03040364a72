//! Contenders over one lease, with every delay, loss, crash and clock that can be thought of.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn options(identity: &str) -> LeaseOptions {
    LeaseOptions {
        namespace: "ns".to_owned(),
        name: "lease".to_owned(),
        identity: identity.to_owned(),
        lease_duration: seconds(15),
        renew_deadline: seconds(10),
        retry_period: seconds(2),
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn record(holder: &str, version: u64) -> Record {
    Record {
        holder: holder.to_owned(),
        duration: Some(seconds(15)),
        transitions: 0,
        version: version.to_string(),
    }
}

#[test]
fn times_that_cannot_work_are_refused() {
    let table = [
        (15, 10, 2, Ok(())),
        (2, 1, 0, Err(LeaseOptionsError::Period)),
        (0, 0, 2, Err(LeaseOptionsError::Duration)),
        (10, 10, 2, Err(LeaseOptionsError::Deadline)),
        (15, 10, 5, Err(LeaseOptionsError::Period)),
    ];
    for (lease, renew, retry, expected) in table {
        let options = LeaseOptions {
            lease_duration: seconds(lease),
            renew_deadline: seconds(renew),
            retry_period: seconds(retry),
            ..options("a")
        };
        assert_eq!(options.check(), expected, "{lease} {renew} {retry}");
    }
    let halves = LeaseOptions {
        lease_duration: Duration::from_millis(15_500),
        ..options("a")
    };
    assert_eq!(halves.check(), Err(LeaseOptionsError::Duration));
}

#[test]
fn a_free_lease_is_taken_at_once() {
    for (found, expected) in [
        (None, Step::Create),
        (Some(record("", 3)), Step::Take(record("", 3))),
        (Some(record("a", 3)), Step::Take(record("a", 3))),
    ] {
        let mut election = Election::new(&options("a"));
        assert_eq!(election.next(seconds(100)), Step::Read);
        election.read(found, seconds(100));
        assert_eq!(election.next(seconds(100)), expected);
        assert_eq!(election.leads_until(), None, "not before it is written");
    }
}

#[test]
fn anothers_lease_is_waited_for_from_when_it_was_seen_to_change() {
    let mut election = Election::new(&options("a"));
    // Whatever its times say: it may have been renewed just now.
    election.read(Some(record("b", 1)), seconds(100));
    assert_eq!(election.next(seconds(100)), Step::Wait(seconds(2)));
    election.read(Some(record("b", 1)), seconds(114));
    assert_eq!(election.next(seconds(114)), Step::Wait(seconds(1)));
    election.read(Some(record("b", 2)), seconds(114));
    assert_eq!(election.next(seconds(115)), Step::Wait(seconds(1)));
    election.read(Some(record("b", 2)), seconds(128));
    assert_eq!(election.next(seconds(129)), Step::Read);
    election.read(Some(record("b", 2)), seconds(129));
    assert_eq!(election.next(seconds(129)), Step::Take(record("b", 2)));
    assert_eq!(election.holder(), Some("b"));
}

#[test]
fn the_holders_own_duration_counts() {
    let long = Record {
        duration: Some(seconds(60)),
        ..record("b", 1)
    };
    let mut election = Election::new(&options("a"));
    election.read(Some(long.clone()), seconds(0));
    election.read(Some(long.clone()), seconds(59));
    assert!(matches!(election.next(seconds(59)), Step::Wait(_)));
    election.read(Some(long.clone()), seconds(60));
    assert_eq!(election.next(seconds(60)), Step::Take(long));
}

#[test]
fn a_leader_counts_from_when_it_began_to_renew() {
    let mut election = Election::new(&options("a"));
    election.read(None, seconds(1));
    election.wrote(record("a", 1), seconds(1), seconds(4));
    assert_eq!(election.leads_until(), Some(seconds(11)));
    assert_eq!(
        election.next(seconds(4)),
        Step::Take(record("a", 1)),
        "it is time again"
    );
    // A renewal without an answer may have been done, and counts for nothing until one is known to be.
    election.failed(seconds(5));
    assert_eq!(election.next(seconds(6)), Step::Read);
    election.read(Some(record("a", 2)), seconds(6));
    assert_eq!(election.leads_until(), Some(seconds(11)));
    election.wrote(record("a", 3), seconds(7), seconds(8));
    assert_eq!(election.leads_until(), Some(seconds(17)));
    assert_eq!(election.next(seconds(8)), Step::Wait(seconds(1)));
}

#[test]
fn who_gets_no_answer_asks_less_and_less_until_there_is_one() {
    let mut election = Election::new(&options("a"));
    let mut wait_after_failure = || {
        election.failed(seconds(100));
        match election.next(seconds(100)) {
            Step::Wait(wait) => wait,
            other => panic!("{other:?}"),
        }
    };
    let waits: Vec<u64> = (0..6).map(|_| wait_after_failure().as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 15, 15], "up to the lease's duration");
    election.conflicted(seconds(100));
    election.failed(seconds(100));
    assert_eq!(election.next(seconds(100)), Step::Wait(seconds(1)));
}

#[test]
fn who_finds_another_in_its_lease_leads_no_more() {
    for found in [Some(record("b", 9)), Some(record("", 9)), None] {
        let mut election = Election::new(&options("a"));
        election.wrote(record("a", 1), seconds(1), seconds(1));
        election.conflicted(seconds(3));
        assert_eq!(
            election.leads_until(),
            Some(seconds(11)),
            "it may have been anything"
        );
        election.read(found, seconds(4));
        assert_eq!(election.leads_until(), None);
    }
}

#[test]
fn a_lease_that_was_deleted_is_waited_for_as_if_it_were_there() {
    let mut election = Election::new(&options("a"));
    election.read(Some(record("b", 1)), seconds(100));
    // It may have been renewed until just now.
    election.read(None, seconds(110));
    assert_eq!(election.next(seconds(110)), Step::Wait(seconds(2)));
    assert_eq!(election.holder(), None);
    election.read(None, seconds(124));
    assert_eq!(election.next(seconds(124)), Step::Wait(seconds(1)));
    election.read(None, seconds(125));
    assert_eq!(election.next(seconds(125)), Step::Create);
    // Another was there first.
    election.conflicted(seconds(125));
    election.read(Some(record("c", 7)), seconds(126));
    assert_eq!(election.next(seconds(126)), Step::Wait(seconds(2)));
}

#[test]
fn who_leads_makes_its_deleted_lease_anew_at_once_and_who_has_led_does_not() {
    let mut election = Election::new(&options("a"));
    election.wrote(record("a", 1), seconds(1), seconds(1));
    election.conflicted(seconds(3));
    let mut late = election.clone();
    election.read(None, seconds(4));
    assert_eq!(election.leads_until(), None, "until it is written");
    assert_eq!(election.next(seconds(4)), Step::Create);
    late.read(None, seconds(12));
    assert!(matches!(late.next(seconds(12)), Step::Wait(_)));
}

/// One contender, with a clock of its own.
struct Contender {
    election: Election,
    /// Parts in a thousand of the true rate.
    rate: u64,
    offset: Duration,
    /// How many identities it has had.
    lives: u32,
    /// In true time: it believes to lead until then, and drops what it writes until then.
    believes_until: Duration,
    writes_until: Duration,
    /// A request is under way.
    busy: bool,
}

impl Contender {
    fn local(&self, at: Duration) -> Duration {
        self.offset + at * self.rate as u32 / 1000
    }

    fn real(&self, local: Duration) -> Duration {
        (local.saturating_sub(self.offset)) * 1000 / self.rate as u32
    }

    fn update_belief(&mut self) {
        let renewed = self.election.renewed();
        let until = |span: u64| renewed.map(|at| self.real(at + seconds(span)));
        // A fence lets nothing be under way longer than that.
        let (believes, writes) = (until(10), until(14));
        self.believes_until = believes.unwrap_or_default();
        self.writes_until = writes.unwrap_or_default();
    }
}

#[derive(Debug, Clone)]
enum Ask {
    Read,
    Write { holder: String, on: Option<String> },
}

#[derive(Debug)]
enum Happens {
    Step,
    Arrives {
        ask: Ask,
        began: Duration,
        back: Duration,
        lost: bool,
        deletes: bool,
        life: u32,
    },
    Answer {
        answer: Answer,
        began: Duration,
        life: u32,
    },
}

#[derive(Debug)]
enum Answer {
    Read(Option<Record>),
    Wrote(Record),
    Conflict,
    Lost,
}

/// What chance decides about one request.
#[derive(Debug, Clone, Copy)]
struct Luck {
    to_ms: u32,
    back_ms: u32,
    lost: bool,
    crash: bool,
    /// Someone deletes the lease just before it arrives.
    deletes: bool,
}

fn luck() -> impl Strategy<Value = Luck> {
    // Mostly quick; sometimes so slow that everything has changed meanwhile, as in a process that was stopped.
    let delay = prop_oneof![8 => 0..200_u32, 2 => 0..5_000_u32, 1 => 0..40_000_u32];
    (
        delay.clone(),
        delay,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.03),
        prop::bool::weighted(0.03),
    )
        .prop_map(|(to_ms, back_ms, lost, crash, deletes)| Luck {
            to_ms,
            back_ms,
            lost,
            crash,
            deletes,
        })
}

/// Runs contenders to the end of what chance has to say; gives how often one came to lead.
fn contend(clocks: &[(u64, u64)], luck: &[Luck]) -> Result<u32, TestCaseError> {
    let contender = |(i, (rate, offset)): (usize, &(u64, u64))| Contender {
        election: Election::new(&options(&format!("c{i}.0"))),
        rate: *rate,
        offset: Duration::from_millis(*offset),
        lives: 0,
        believes_until: Duration::ZERO,
        writes_until: Duration::ZERO,
        busy: false,
    };
    let mut contenders: Vec<Contender> = clocks.iter().enumerate().map(contender).collect();
    let mut events: BTreeMap<(Duration, u64), (usize, Happens)> = BTreeMap::new();
    let mut lease: Option<Record> = None;
    let mut version = 0;
    // The lease is deleted once at most, and when all have seen it: nobody can tell one that was from one that never was.
    let mut deleted = false;
    let mut order = contenders.len() as u64;
    for i in 0..contenders.len() {
        events.insert((Duration::ZERO, i as u64), (i, Happens::Step));
    }
    let mut luck = luck.iter();
    let mut led = 0;
    while let Some(((now, _), (i, event))) = events.pop_first() {
        let mut later = |at: Duration, i, event| {
            order += 1;
            events.insert((at, order), (i, event));
        };
        let everyone_has_seen_it = contenders.iter().all(|c| c.election.seen.is_some());
        let contender = &mut contenders[i];
        match event {
            Happens::Step if contender.busy => {}
            Happens::Step => {
                let local = contender.local(now);
                let ask = match contender.election.next(local) {
                    Step::Wait(wait) => {
                        let at = contender.real(local + wait) + Duration::from_millis(1);
                        later(at, i, Happens::Step);
                        continue;
                    }
                    Step::Read => Ask::Read,
                    step => Ask::Write {
                        holder: contender.election.identity.clone(),
                        on: match step {
                            Step::Take(record) => Some(record.version),
                            _ => None,
                        },
                    },
                };
                let Some(luck) = luck.next() else { break };
                let crash = luck.crash && !deleted;
                if crash {
                    contender.lives += 1;
                    let identity = format!("c{i}.{}", contender.lives);
                    contender.election = Election::new(&options(&identity));
                    contender.update_belief();
                }
                let arrives = Happens::Arrives {
                    ask,
                    began: local,
                    back: Duration::from_millis(u64::from(luck.back_ms)),
                    lost: luck.lost || crash,
                    deletes: luck.deletes,
                    // What a life before this one asked for arrives all the same.
                    life: contender.lives,
                };
                contender.busy = true;
                later(
                    now + Duration::from_millis(u64::from(luck.to_ms)),
                    i,
                    arrives,
                );
            }
            Happens::Arrives {
                ask,
                began,
                back,
                lost,
                deletes,
                life,
            } => {
                if deletes && !deleted && everyone_has_seen_it {
                    deleted = true;
                    lease = None;
                }
                let answer = match ask {
                    Ask::Read => Answer::Read(lease.clone()),
                    Ask::Write { holder, on } => {
                        if lease.as_ref().map(|lease| lease.version.clone()) == on {
                            version += 1;
                            let written = record(&holder, version);
                            lease = Some(written.clone());
                            Answer::Wrote(written)
                        } else {
                            Answer::Conflict
                        }
                    }
                };
                let answer = if lost { Answer::Lost } else { answer };
                later(
                    now + back,
                    i,
                    Happens::Answer {
                        answer,
                        began,
                        life,
                    },
                );
            }
            Happens::Answer {
                answer,
                began,
                life,
            } => {
                contender.busy = false;
                if life == contender.lives {
                    let local = contender.local(now);
                    match answer {
                        Answer::Read(record) => contender.election.read(record, local),
                        Answer::Wrote(record) => contender.election.wrote(record, began, local),
                        Answer::Conflict => contender.election.conflicted(local),
                        Answer::Lost => contender.election.failed(local),
                    }
                    let before = contender.believes_until;
                    contender.update_belief();
                    led += u32::from(before <= now && contender.believes_until > now);
                }
                later(now, i, Happens::Step);
            }
        }
        let believers = contenders.iter().filter(|c| c.believes_until > now);
        prop_assert!(believers.count() <= 1, "two lead at {now:?}");
        // Nobody writes while another already leads.
        let leads = contenders.iter().position(|c| c.believes_until > now);
        if let Some(leader) = leads {
            let writes = |(i, c): (usize, &Contender)| i != leader && c.writes_until > now;
            prop_assert!(
                !contenders.iter().enumerate().any(writes),
                "a loser's write is under way at {now:?}"
            );
        }
    }
    Ok(led)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Clocks begin anywhere and differ by some parts in a hundred in how fast they go.
    #[test]
    fn never_do_two_lead(
        clocks in prop::collection::vec((980..1020_u64, 0..1_000_000_u64), 2..5),
        luck in prop::collection::vec(luck(), 1..300),
    ) {
        contend(&clocks, &luck)?;
    }
}

#[test]
fn somebody_does_lead() {
    let luck = vec![
        Luck {
            to_ms: 10,
            back_ms: 10,
            lost: false,
            crash: false,
            deletes: false,
        };
        100
    ];
    let led = contend(&[(1000, 5), (1001, 70_000), (999, 0)], &luck).expect("one at a time");
    assert_eq!(led, 1, "one, all the time");
}

#[test]
fn somebody_leads_again_after_the_lease_was_deleted() {
    let calm = Luck {
        to_ms: 10,
        back_ms: 10,
        lost: false,
        crash: false,
        deletes: false,
    };
    let mut luck = vec![calm; 100];
    luck[50].deletes = true;
    let led = contend(&[(1000, 5), (1001, 70_000)], &luck).expect("one at a time");
    assert_eq!(led, 2);
}

//! Series of memory as training jobs make them, each known to leak or not.
//!
//! A series is a sum of parts. All amounts are relative to what the job holds when it has started, all parameters are drawn from wide
//! ranges: seconds to hours, a few per cent to twice as much.
//!
//! Where the limit is so much over the very run's own peak, a threshold just above that peak is right by construction; a limit learned
//! from another run is what such a rule meets in practice.

use crate::draw::Draw;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;

/// How much room the limit leaves over the highest the job holds when it does not leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// 15 % more.
    Tight,
    /// Twice as much.
    Roomy,
    /// 15 % more than an earlier run held, which held up to 7 % more or less than this one.
    Learned,
}

impl Room {
    pub const ALL: [Self; 3] = [Self::Tight, Self::Roomy, Self::Learned];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tight => "tight",
            Self::Roomy => "roomy",
            Self::Learned => "learned",
        }
    }

    fn times(self, draw: &mut Draw) -> f64 {
        match self {
            Self::Tight => 1.15,
            Self::Roomy => 2.0,
            Self::Learned => 1.15 * draw.between(0.93, 1.07),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub kind: &'static str,
    /// Seconds between samples.
    pub every: u64,
    /// MiB, one a sample. One that leaks ends when it is out of memory.
    pub held: Vec<f64>,
    pub limit: f64,
    /// When it leaked: from when, and when it is out of memory, or would have been but for a restart; in seconds.
    pub leaks: Vec<(f64, f64)>,
}

impl Series {
    pub fn leaks(&self) -> bool {
        !self.leaks.is_empty()
    }

    /// How far a leak was when `second` came: 0 when it began, 1 when out of memory. None where nothing leaked then.
    pub fn way(&self, second: f64) -> Option<f64> {
        let begun = self.leaks.iter().rev().find(|(onset, _)| *onset <= second);
        begun.map(|(onset, oom)| (second - onset) / (oom - onset))
    }
}

/// As many series as `count`, half of which leak, each kind as often as any other of its half.
pub fn set(seed: u64, count: usize, room: Room) -> Vec<Series> {
    (0..count).map(|index| one(seed, index, room)).collect()
}

fn one(seed: u64, index: usize, room: Room) -> Series {
    let mut draw = Draw::new(seed, index as u64);
    let kinds = if index.is_multiple_of(2) {
        SOUND
    } else {
        LEAKING
    };
    let (kind, shape) = kinds[index / 2 % kinds.len()];
    let mut plan = Plan::new(&mut draw);
    shape(&mut plan, &mut draw);
    plan.run(kind, room, &mut draw)
}

type Kind = (&'static str, fn(&mut Plan, &mut Draw));

const SOUND: &[Kind] = &[
    ("noise", |plan, draw| plan.make_noisy(draw)),
    ("sawtooth", |plan, draw| plan.parts.push(sawtooth(draw))),
    ("step", |plan, draw| plan.add_steps(draw)),
    ("cache fill", |plan, draw| plan.parts.push(cache(draw))),
    ("warm-up", |plan, draw| plan.start = Start::slow(draw)),
    ("epoch humps", |plan, draw| plan.parts.push(humps(draw))),
    ("restarts", |plan, draw| plan.add_restarts(draw)),
    ("mixed", |plan, draw| plan.mix(draw)),
];

const LEAKING: &[Kind] = &[
    ("slow leak", |plan, draw| {
        plan.leak_for(draw.scale(HOUR, 20.0 * HOUR), draw);
    }),
    ("fast leak", |plan, draw| {
        plan.leak_for(draw.scale(5.0 * MINUTE, HOUR), draw);
    }),
    ("sawtooth and leak", |plan, draw| {
        plan.parts.push(sawtooth(draw));
        plan.leak(draw);
    }),
    ("humps and leak", |plan, draw| {
        plan.parts.push(humps(draw));
        plan.leak(draw);
    }),
    ("cache fill and leak", |plan, draw| {
        plan.parts.push(cache(draw));
        plan.leak(draw);
    }),
    ("step and leak", |plan, draw| {
        plan.add_steps(draw);
        plan.leak(draw);
    }),
    ("leak in steps", |plan, draw| {
        plan.leak(draw);
        if let Some(leak) = &mut plan.leak {
            leak.every = leak.seconds / draw.between(8.0, 60.0);
        }
    }),
    ("warm-up and leak", |plan, draw| {
        plan.start = Start::slow(draw);
        plan.leak(draw);
    }),
    ("restarts and leak", |plan, draw| {
        plan.leak(draw);
        plan.add_restarts(draw);
    }),
    ("noise and leak", |plan, draw| {
        plan.make_noisy(draw);
        plan.leak(draw);
    }),
];

/// How something gets from 0 to 1.
#[derive(Debug, Clone, Copy)]
enum Rise {
    Straight,
    /// Fast at first, and never quite there.
    Filling,
    /// The same with a longer tail.
    Slowing,
    /// Slow at both ends.
    Gentle,
}

impl Rise {
    /// `x` is 1 when it is there, or nearly.
    fn at(self, x: f64) -> f64 {
        let x = x.max(0.0);
        match self {
            Self::Straight => x.min(1.0),
            Self::Filling => 1.0 - (-3.0 * x).exp(),
            Self::Slowing => 6.0 * x / (1.0 + 6.0 * x),
            Self::Gentle => (x.min(1.0) * std::f64::consts::FRAC_PI_2).sin().powi(2),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Start {
    seconds: f64,
    from: f64,
    rise: Rise,
}

impl Start {
    fn quick(draw: &mut Draw) -> Self {
        Self {
            seconds: draw.scale(2.0, 3.0 * MINUTE),
            // One in five is only seen when it has started.
            from: if draw.chance(0.2) {
                1.0
            } else {
                draw.between(0.01, 0.2)
            },
            rise: draw.pick(&[Rise::Straight, Rise::Filling, Rise::Gentle]),
        }
    }

    fn slow(draw: &mut Draw) -> Self {
        Self {
            seconds: draw.scale(2.0 * MINUTE, 40.0 * MINUTE),
            from: draw.between(0.01, 0.5),
            rise: draw.pick(&[Rise::Straight, Rise::Filling, Rise::Slowing, Rise::Gentle]),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Part {
    /// Garbage that is collected. Cycles differ from each other by `uneven`.
    Sawtooth {
        period: f64,
        amount: f64,
        uneven: f64,
        seed: u64,
    },
    Hump {
        period: f64,
        amount: f64,
        uneven: f64,
        seed: u64,
        part: f64,
        form: Form,
    },
    Step {
        at: f64,
        amount: f64,
    },
    Cache {
        from: f64,
        seconds: f64,
        amount: f64,
        rise: Rise,
    },
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Round,
    Triangle,
    Flat,
}

impl Part {
    fn at(&self, t: f64) -> f64 {
        match *self {
            Self::Sawtooth {
                period,
                amount,
                uneven,
                seed,
            } => amount * uneven_cycle(t / period, uneven, seed) * (t / period).fract(),
            Self::Hump {
                period,
                amount,
                uneven,
                seed,
                part,
                form,
            } => {
                let x = (t / period).fract() / part;
                let height = match form {
                    _ if x >= 1.0 => 0.0,
                    Form::Round => (x * std::f64::consts::PI).sin().powi(2),
                    Form::Triangle => 1.0 - (2.0 * x - 1.0).abs(),
                    Form::Flat => (x * 10.0).min((1.0 - x) * 10.0).min(1.0),
                };
                amount * uneven_cycle(t / period, uneven, seed) * height
            }
            Self::Step { at, amount } => {
                if t >= at {
                    amount
                } else {
                    0.0
                }
            }
            Self::Cache {
                from,
                seconds,
                amount,
                rise,
            } => amount * rise.at((t - from) / seconds),
        }
    }
}

fn uneven_cycle(cycles: f64, uneven: f64, seed: u64) -> f64 {
    1.0 + uneven * (Draw::new(seed, cycles as u64).unit() - 0.5)
}

fn sawtooth(draw: &mut Draw) -> Part {
    Part::Sawtooth {
        period: draw.scale(20.0, 40.0 * MINUTE),
        amount: draw.scale(0.05, 1.5),
        uneven: draw.between(0.0, 0.5),
        seed: draw.bits(),
    }
}

fn humps(draw: &mut Draw) -> Part {
    Part::Hump {
        period: draw.scale(3.0 * MINUTE, 2.0 * HOUR),
        amount: draw.scale(0.05, 1.0),
        uneven: draw.between(0.0, 0.4),
        seed: draw.bits(),
        part: draw.between(0.1, 1.0),
        form: draw.pick(&[Form::Round, Form::Triangle, Form::Flat]),
    }
}

fn cache(draw: &mut Draw) -> Part {
    Part::Cache {
        from: draw.unit().powi(3) * 2.0 * HOUR,
        seconds: draw.scale(5.0 * MINUTE, 5.0 * HOUR),
        amount: draw.scale(0.1, 2.0),
        rise: draw.pick(&[
            Rise::Filling,
            Rise::Filling,
            Rise::Slowing,
            Rise::Gentle,
            Rise::Straight,
        ]),
    }
}

#[derive(Debug, Clone, Copy)]
struct Leak {
    /// Since the process started.
    onset: f64,
    /// From then to the limit.
    seconds: f64,
    /// At once, or so much every so often.
    every: f64,
    /// Above 1 it gets faster.
    power: f64,
}

#[derive(Debug, Clone)]
struct Plan {
    /// MiB.
    base: f64,
    length: f64,
    start: Start,
    parts: Vec<Part>,
    /// Of single samples, and of what comes and goes within `slow_seconds`.
    noise: f64,
    slow: f64,
    slow_seconds: f64,
    /// Parts of the length, or of the way to the limit.
    restarts: Vec<f64>,
    leak: Option<Leak>,
    /// The leak is new since the last restart.
    new_leak: bool,
}

impl Plan {
    fn new(draw: &mut Draw) -> Self {
        Self {
            base: draw.scale(200.0, 200_000.0),
            length: draw.scale(HOUR, 24.0 * HOUR),
            start: Start::quick(draw),
            parts: Vec::new(),
            noise: draw.scale(0.0002, 0.01),
            slow: draw.scale(0.0002, 0.01),
            slow_seconds: draw.scale(20.0, 20.0 * MINUTE),
            restarts: Vec::new(),
            leak: None,
            new_leak: draw.chance(0.5),
        }
    }

    fn make_noisy(&mut self, draw: &mut Draw) {
        self.noise = draw.scale(0.003, 0.04);
        self.slow = draw.scale(0.003, 0.04);
    }

    fn add_steps(&mut self, draw: &mut Draw) {
        let length = self.length;
        for _ in 0..=draw.bits() % 3 {
            let up = draw.chance(0.75);
            let amount = draw.scale(0.05, 1.0);
            self.parts.push(Part::Step {
                at: draw.between(0.0, 0.9) * length.min(6.0 * HOUR),
                amount: if up { amount } else { -0.3 * amount },
            });
        }
    }

    fn add_restarts(&mut self, draw: &mut Draw) {
        let count = 1 + draw.bits() % 3;
        self.restarts = (0..count).map(|_| draw.between(0.1, 0.9)).collect();
        self.restarts.sort_by(f64::total_cmp);
        if self.leak.is_some() {
            self.restarts.truncate(1);
        }
    }

    fn mix(&mut self, draw: &mut Draw) {
        let makers: [fn(&mut Draw) -> Part; 3] = [sawtooth, humps, cache];
        for make in makers {
            if draw.chance(0.6) {
                self.parts.push(make(draw));
            }
        }
        if draw.chance(0.4) {
            self.add_steps(draw);
        }
        if draw.chance(0.3) {
            self.start = Start::slow(draw);
        }
    }

    fn leak(&mut self, draw: &mut Draw) {
        self.leak_for(draw.scale(8.0 * MINUTE, 20.0 * HOUR), draw);
    }

    fn leak_for(&mut self, seconds: f64, draw: &mut Draw) {
        let from_the_start = draw.chance(0.3);
        self.leak = Some(Leak {
            onset: if from_the_start {
                0.0
            } else {
                draw.scale(2.0 * MINUTE, 4.0 * HOUR)
            },
            seconds,
            every: 0.0,
            power: if draw.chance(0.2) {
                draw.between(0.9, 1.2)
            } else {
                1.0
            },
        });
    }

    fn run(&self, kind: &'static str, room: Room, draw: &mut Draw) -> Series {
        let once = self
            .leak
            .map_or(self.length, |leak| leak.onset + leak.seconds);
        let lives = self.lives(once);
        let leaking = self
            .leak
            .map_or(0.0, |leak| leak.seconds * 2.0 + 2.0 * HOUR);
        let length = lives.last().copied().unwrap_or(0.0) + once + leaking;
        let every = [1, 2, 5, 10, 15, 30];
        let every = every
            .into_iter()
            .find(|every| length / (*every as f64) < SAMPLES_MAX);
        let every = every.unwrap_or(60);
        let clean = self.clean(&lives, (length / every as f64) as usize, every, draw);
        let sized = ((lives.last().unwrap_or(&0.0) + once) / every as f64) as usize;
        let peak = clean.iter().take(sized).copied().fold(0.0, f64::max);
        let limit = peak * room.times(draw);
        let mut series = Series {
            kind,
            every,
            held: clean,
            limit,
            leaks: Vec::new(),
        };
        match self.leak {
            Some(leak) => self.let_leak(&mut series, &leak, &lives, limit - peak),
            None => series.held.truncate(sized),
        }
        series
    }

    /// When each process began.
    fn lives(&self, once: f64) -> Vec<f64> {
        let mut lives = vec![0.0];
        lives.extend(self.restarts.iter().map(|part| part * once));
        lives
    }

    fn clean(&self, lives: &[f64], count: usize, every: u64, draw: &mut Draw) -> Vec<f64> {
        let mut wander = 0.0;
        let keep = (-(every as f64) / self.slow_seconds).exp();
        let kick = (1.0 - keep * keep).sqrt();
        let mut clean = Vec::with_capacity(count);
        for sample in 0..count {
            let second = sample as f64 * every as f64;
            let born = lives.iter().rev().find(|born| **born <= second);
            let t = second - born.copied().unwrap_or(0.0);
            wander = keep * wander + kick * draw.normal();
            let grown = self.start.from
                + (1.0 - self.start.from) * self.start.rise.at(t / self.start.seconds);
            let parts: f64 = self.parts.iter().map(|part| part.at(t)).sum();
            let noise = 1.0 + self.noise * draw.normal() + self.slow * wander;
            clean.push(self.base * ((grown * noise) + grown * parts).max(0.005));
        }
        clean
    }

    fn let_leak(&self, series: &mut Series, leak: &Leak, lives: &[f64], room: f64) {
        for (index, born) in lives.iter().enumerate() {
            let last = index + 1 == lives.len();
            if !last && self.new_leak {
                continue;
            }
            let onset = born + leak.onset;
            let end = lives.get(index + 1).copied().unwrap_or(f64::MAX);
            if onset < end {
                series.leaks.push((onset, onset + leak.seconds));
            }
            let mut out = None;
            for (sample, held) in series.held.iter_mut().enumerate() {
                let second = sample as f64 * series.every as f64;
                if second < onset || second >= end {
                    continue;
                }
                let mut passed = second - onset;
                if leak.every > 0.0 {
                    passed = (passed / leak.every).floor() * leak.every;
                }
                *held += room * (passed / leak.seconds).powf(leak.power);
                if *held >= series.limit {
                    out = Some(sample);
                    break;
                }
            }
            if let Some(sample) = out {
                series.held.truncate(sample);
                let oom = sample as f64 * series.every as f64;
                if let Some(leak) = series.leaks.last_mut() {
                    leak.1 = oom;
                }
                return;
            }
        }
    }
}

const SAMPLES_MAX: f64 = 3000.0;

//! What worth promises: places that fit, the same every time, and the right one of two where it is plain which.

use proptest::prelude::*;

use super::*;

fn any_model(number: usize) -> Model {
    Model::new(number).expect("a small number")
}

fn ask(cores: u64, gpus: u32, milli: u16) -> Ask {
    Ask {
        cpu: cores * 1000,
        memory: 1,
        gpus,
        milli,
        models: Models::ANY,
    }
}

fn room(cores: u64, model: usize, free: &[u16]) -> Room {
    let memory = 1 << 20;
    Room::new(cores * 1000, memory, any_model(model), free.iter().copied())
}

/// The mix after these asks have come by turns, on a cluster of these rooms.
fn learned(asks: &[Ask], rooms: &[Room]) -> Mix {
    let mut mix = Mix::default();
    for turn in 0..200 {
        mix.observe(&asks[turn % asks.len()]);
    }
    mix.survey(rooms.iter());
    mix
}

fn score(mix: &Mix, room: &Room, ask: &Ask) -> i64 {
    let offer = mix.offer(room, &mix.worth(room), ask);
    offer.expect("it fits").score
}

const WHOLE_NODE: [u16; 8] = [WHOLE; 8];

#[test]
fn nothing_known_is_nothing_lost() {
    let mix = Mix::default();
    for room in [room(8, 0, &[1000, 300]), room(1, 1, &WHOLE_NODE)] {
        assert_eq!(score(&mix, &room, &ask(1, 1, 300)), 0);
    }
    assert!(!mix.is_due(), "there is nothing to learn from");
}

#[test]
fn a_gap_is_closed_by_what_closes_it() {
    let rooms = vec![room(96, 0, &WHOLE_NODE); 10];
    let mix = learned(&[ask(4, 1, 700), ask(4, 1, 300), ask(8, 1, 1000)], &rooms);
    let node = room(96, 0, &[1000, 1000, 700, 300]);
    let seat = |milli| {
        let ask = ask(4, 1, milli);
        mix.offer(&node, &mix.worth(&node), &ask)
            .map(|offer| offer.seat)
    };
    assert_eq!(seat(300), Some(Seat::Shared(300)));
    assert_eq!(seat(700), Some(Seat::Shared(700)));
}

/// 190 thousandths beside 810 are of no use to anyone: what is small goes there, not into a gap that others want.
#[test]
fn crumbs_are_used_first() {
    let rooms = vec![room(96, 0, &WHOLE_NODE); 10];
    let mix = learned(&[ask(4, 1, 810), ask(4, 1, 500), ask(4, 1, 160)], &rooms);
    let node = room(96, 0, &[1000, 190, 500]);
    let offer = mix.offer(&node, &mix.worth(&node), &ask(4, 1, 160));
    assert_eq!(offer.map(|offer| offer.seat), Some(Seat::Shared(190)));
}

#[test]
fn work_goes_where_its_cpu_is_missed_least() {
    let (rich, poor) = (room(96, 0, &[1000; 2]), room(24, 0, &[1000; 2]));
    let mix = learned(
        &[ask(8, 1, 1000), ask(16, 1, 1000)],
        &[rich.clone(), poor.clone()],
    );
    let no_gpu = ask(12, 0, 0);
    assert!(score(&mix, &rich, &no_gpu) > score(&mix, &poor, &no_gpu));
    let heavy = ask(16, 1, 1000);
    assert!(score(&mix, &rich, &heavy) > score(&mix, &poor, &heavy));
}

#[test]
fn memory_is_missed_as_cpu_is() {
    let with = |memory| Room::new(96_000, memory, any_model(0), [1000; 4]);
    let (rich, poor) = (with(1000), with(100));
    let asks = [
        Ask {
            memory: 20,
            ..ask(4, 1, 1000)
        },
        Ask {
            memory: 30,
            ..ask(4, 1, 1000)
        },
    ];
    let mix = learned(&asks, &[rich.clone(), poor.clone()]);
    let no_gpu = Ask {
        memory: 50,
        ..ask(1, 0, 0)
    };
    assert!(score(&mix, &rich, &no_gpu) > score(&mix, &poor, &no_gpu));
}

/// Work that could lie anywhere leaves a model alone that other work must have, and takes it when that has gone by.
#[test]
fn scarce_models_are_left_to_those_who_need_them() {
    let rooms: Vec<Room> = (0..40)
        .map(|at| room(96, usize::from(at < 4), &WHOLE_NODE))
        .collect();
    let only = Ask {
        models: Models::NONE.with(any_model(1)),
        ..ask(8, 1, 1000)
    };
    let mixed = learned(&[ask(8, 1, 1000), ask(8, 1, 1000), only], &rooms);
    let (common, scarce) = (&rooms[39], &rooms[0]);
    assert!(score(&mixed, common, &ask(8, 1, 1000)) > score(&mixed, scarce, &ask(8, 1, 1000)));
    assert!(mixed.offer(common, &mixed.worth(common), &only).is_none());

    let carefree = learned(&[ask(8, 1, 1000)], &rooms);
    assert_eq!(
        score(&carefree, common, &ask(8, 1, 1000)),
        score(&carefree, scarce, &ask(8, 1, 1000))
    );
}

/// The last node that could take eight is not broken into for one.
#[test]
fn room_for_large_work_is_kept_whole() {
    let (whole, broken) = (room(96, 0, &WHOLE_NODE), room(84, 0, &[1000; 7]));
    let rooms = [
        whole.clone(),
        broken.clone(),
        broken.clone(),
        broken.clone(),
    ];
    let mix = learned(&[ask(8, 1, 1000), ask(64, 8, 1000)], &rooms);
    assert!(score(&mix, &broken, &ask(8, 1, 1000)) > score(&mix, &whole, &ask(8, 1, 1000)));
}

#[test]
fn surveys_come_as_the_mix_grows_and_when_it_changes() {
    let rooms = [room(96, 0, &WHOLE_NODE)];
    let mut mix = Mix::default();
    let mut surveys = Vec::new();
    for count in 1..=1000_u64 {
        mix.observe(&ask(8, 1, 1000));
        if mix.is_due() {
            mix.survey(rooms.iter());
            surveys.push((count, mix.built_at));
        }
    }
    let built: Vec<u64> = surveys.iter().map(|(_, built)| *built).collect();
    assert_eq!(surveys[..4], [(1, 0), (50, 50), (100, 100), (200, 200)]);
    assert!(built.contains(&400) && built.contains(&800), "{built:?}");

    let mut long = mix.clone();
    for _ in 0..40_000 {
        long.observe(&ask(8, 1, 1000));
        if long.is_due() {
            long.survey(rooms.iter());
        }
    }
    assert_eq!(long.built_at, 12_800, "nothing has changed since");
    for _ in 0..4096 {
        long.observe(&ask(2, 1, 500));
        if long.is_due() {
            long.survey(rooms.iter());
        }
    }
    assert!(long.built_at > 40_000, "half of it is new");
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let gpus = prop_oneof![
        Just((0, 0)),
        (1_u16..1000).prop_map(|milli| (1, milli)),
        (1_u32..9).prop_map(|gpus| (gpus, WHOLE))
    ];
    let models = prop_oneof![
        Just(Models::ANY),
        (0_usize..3).prop_map(|model| Models::NONE.with(any_model(model)))
    ];
    (0_u64..40_000, 0_u64..100, gpus, models).prop_map(|(cpu, memory, (gpus, milli), models)| Ask {
        cpu,
        memory,
        gpus,
        milli,
        models,
    })
}

fn any_room() -> impl Strategy<Value = Room> {
    let free = prop_oneof![Just(WHOLE), 0_u16..1000];
    (
        0_u64..128_000,
        0_u64..1000,
        0_usize..3,
        prop::collection::vec(free, 0..9),
    )
        .prop_map(|(cpu, memory, model, free)| Room::new(cpu, memory, any_model(model), free))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever was learned, an ask is offered a seat exactly where it fits, and the seat is one of the room's.
    #[test]
    fn offers_are_places_that_fit(kinds in prop::collection::vec(any_ask(), 1..6), count in 0_usize..120, rooms in prop::collection::vec(any_room(), 1..12), ask in any_ask()) {
        let mut mix = Mix::default();
        kinds.iter().cycle().take(count).for_each(|kind| mix.observe(kind));
        let mut again = mix.clone();
        mix.survey(rooms.iter());
        again.survey(rooms.iter());
        for room in &rooms {
            let offer = mix.offer(room, &mix.worth(room), &ask);
            prop_assert_eq!(offer.is_some(), room.fits(&ask));
            prop_assert_eq!(offer, again.offer(room, &again.worth(room), &ask));
            if let Some(offer) = offer {
                prop_assert!(room.seats(&ask).any(|seat| seat == offer.seat));
                prop_assert!(offer.score.abs() < 100_000, "{:?}", offer);
            }
        }
    }

    /// Taking a seat takes exactly what was asked for, of one GPU or of whole ones.
    #[test]
    fn taking_takes_what_was_asked(room in any_room(), ask in any_ask()) {
        prop_assert_eq!(room.seats(&ask).next().is_some(), room.fits(&ask));
        for seat in room.seats(&ask) {
            let mut after = room.clone();
            after.take(&ask, seat);
            prop_assert_eq!(after.cpu + ask.cpu, room.cpu);
            prop_assert_eq!(after.memory + ask.memory, room.memory);
            prop_assert_eq!(after.idle_milli() + ask.gpu_milli(), room.idle_milli());
            prop_assert!(after.parts().is_sorted() && after.parts().iter().all(|part| (1..WHOLE).contains(part)));
            let devices = |room: &Room| room.whole as usize + room.parts().len();
            prop_assert!(devices(&after) <= devices(&room));
        }
    }

    /// A node is worth no more than its GPUs.
    #[test]
    fn worth_is_bounded(kinds in prop::collection::vec(any_ask(), 1..6), room in any_room()) {
        let mut mix = Mix::default();
        kinds.iter().cycle().take(60).for_each(|kind| mix.observe(kind));
        mix.survey(std::iter::once(&room));
        let gpus = mix.tables.gpus(&room);
        let worth = mix.tables.node(room.cpu, room.memory, gpus);
        let devices = f64::from(room.whole) + room.parts().len() as f64;
        prop_assert!((0.0..=devices + 1e-9).contains(&gpus), "{} of {}", gpus, devices);
        prop_assert!((0.0..=devices + 1e-9).contains(&worth), "{} of {}", worth, devices);
    }
}

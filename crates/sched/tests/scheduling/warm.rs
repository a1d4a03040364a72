//! Jobs go where their data is, if that costs nobody anything but worth.

use std::sync::Arc;

use stoke_sched::{Gang, Job, Policy};

use crate::site::*;

fn two_nodes() -> Site {
    Site::new(
        Policy::default(),
        [node("n1", A100, 4), node("n2", A100, 4)],
    )
}

#[test]
fn the_next_attempt_goes_back_to_where_its_data_is() {
    let mut site = two_nodes();
    site.put_dataset("imagenet", 150, &[]);
    site.submit(job("other", gang(1, 4), 0));
    site.submit(reading(&["imagenet"], job("trains", gang(1, 4), 1)));
    assert_eq!(
        told(&site.cycle(at(1))),
        "start other on n1\nstart trains on n2"
    );
    site.put_dataset("imagenet", 150, &["n2"]);
    site.end(&id("other"));
    site.leave(&id("trains"), at(2));
    assert_eq!(told(&site.clone().cycle(at(2))), "start trains on n2");
    site.put_dataset("imagenet", 150, &[]);
    assert_eq!(told(&site.cycle(at(2))), "start trains on n1");
}

#[test]
fn nobody_waits_for_a_warm_node_and_nobody_goes_first_for_one() {
    let mut site = two_nodes();
    site.put_dataset("imagenet", 2000, &["n1"]);
    site.submit(job("older", gang(1, 4), 0));
    site.submit(reading(&["imagenet"], job("younger", gang(1, 4), 1)));
    assert_eq!(
        told(&site.cycle(at(1))),
        "start older on n1\nstart younger on n2"
    );
}

#[test]
fn data_that_is_on_its_way_counts_as_there() {
    let mut site = two_nodes();
    site.put_dataset("imagenet", 2000, &[]);
    site.submit(job("blocks", gang(1, 3), 0));
    site.cycle(at(0));
    site.submit(reading(&["imagenet"], job("first", gang(1, 2), 1)));
    assert_eq!(told(&site.cycle(at(1))), "start first on n2");
    site.submit(reading(&["imagenet"], job("second", gang(1, 1), 2)));
    assert_eq!(
        told(&site.clone().cycle(at(2))),
        "start second on n2",
        "one copy for both"
    );
    site.end(&id("first"));
    assert_eq!(
        told(&site.cycle(at(2))),
        "start second on n1",
        "nobody copies it any more: the gap is filled"
    );
}

#[test]
fn a_queue_that_has_no_more_of_the_warm_gpus_gives_others() {
    let mut site = Site::new(Policy::default(), [node("a", A100, 8), node("t", T4, 8)]);
    site.set_queues([("q", queue(None, "", "a100=4"))]);
    site.put_dataset("imagenet", 2000, &["a"]);
    let wants = Job {
        queue: Some("q".to_owned()),
        ..reading(&["imagenet"], job("wants", gang(2, 4), 0))
    };
    site.submit(wants);
    assert_eq!(told(&site.cycle(at(0))), "start wants on t t");
}

#[test]
fn where_data_is_changes_nothing_for_those_who_wait() {
    let mut site = two_nodes();
    site.submit(job("holds", gang(2, 4), 0));
    site.submit(reading(&["imagenet"], job("waits", gang(1, 4), 1)));
    site.cycle(at(1));
    let why = site.scheduler.waits(&id("waits"));
    site.put_dataset("imagenet", 150, &["n2"]);
    assert_eq!(site.scheduler.waits(&id("waits")), why, "it was looked at");
    assert_eq!(told(&site.cycle(at(2))), "");
    site.end(&id("holds"));
    assert_eq!(told(&site.cycle(at(3))), "start waits on n2");
}

#[test]
fn an_elastic_gang_grows_to_where_its_data_is() {
    let nodes = ["n1", "n2", "n3"].map(|name| node(name, A100, 2));
    let mut site = Site::new(Policy::default(), nodes);
    site.put_dataset("imagenet", 150, &["n1", "n3"]);
    let elastic = Gang {
        min_workers: Some(1),
        ..gang(2, 2)
    };
    site.submit(reading(
        &["imagenet"],
        Job {
            gang: Arc::new(elastic),
            ..job("elastic", Gang::default(), 0)
        },
    ));
    assert_eq!(told(&site.cycle(at(0))), "start elastic on n1 n3");
}

#[test]
fn what_is_copied_where_is_told() {
    let mut site = two_nodes();
    site.put_dataset("imagenet", 150, &["n2"]);
    site.put_dataset("labels", 1, &[]);
    site.submit(reading(
        &["imagenet", "labels", "unheard"],
        job("trains", gang(2, 4), 0),
    ));
    site.cycle(at(0));
    let nodes = ["n1".to_owned(), "n2".to_owned()];
    let fetches = site.scheduler.fetches(&id("trains"), &nodes);
    let said: Vec<String> = fetches.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "imagenet (150 GiB) is on n2 already and is copied to n1",
            "labels (1.0 GiB) is copied to n1, n2",
        ]
    );
}

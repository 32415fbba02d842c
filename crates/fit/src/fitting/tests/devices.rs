//! Which GPUs a request gets.

use std::time::Duration;

use crate::EngineError;
use crate::device::Capability;
use crate::fitting::devices::*;
use crate::model::DeviceChoice;
use crate::worker::Gpu;

/// GPUs by name and GiB in use.
fn gpus(of: &[(&str, u64)]) -> Vec<Gpu> {
    let gpu = |(ordinal, (name, used)): (u32, &(&str, u64))| Gpu {
        ordinal,
        name: (*name).to_owned(),
        total_bytes: 80 << 30,
        free_bytes: (80 - used) << 30,
        capability: Capability::of((9, 0), 132),
        driver: None,
        cudnn: None,
    };
    (0..).zip(of).map(gpu).collect()
}

#[test]
fn ranks_take_gpus_that_are_alike_and_free_first() {
    let mixed = gpus(&[("A", 10), ("B", 0), ("A", 0), ("A", 0), ("B", 0)]);
    let take = |ranks| together(&DeviceChoice::Auto, &mixed, ranks);

    assert_eq!(take(1).unwrap(), ["cuda:1"]);
    assert_eq!(take(2).unwrap(), ["cuda:1", "cuda:4"]);
    assert_eq!(take(3).unwrap(), ["cuda:0", "cuda:2", "cuda:3"]);
    assert_eq!(
        take(4).unwrap_err(),
        "simulated: this machine has 5 GPUs, of which 3 are alike, and the request 4 ranks"
    );
}

#[test]
fn ranks_that_have_no_gpu_each_are_simulated_and_the_reader_told_why() {
    let one = gpus(&[("A", 0)]);

    let few = together(&DeviceChoice::Auto, &one, 2).unwrap_err();
    let named = together(&DeviceChoice::Cuda(0), &one, 2).unwrap_err();

    assert_eq!(
        few,
        "simulated: this machine has one GPU, and the request 2 ranks"
    );
    assert!(named.starts_with("simulated: the request names one GPU, cuda:0, and has 2 ranks"));
    assert_eq!(
        together(&DeviceChoice::Cuda(0), &one, 1).unwrap(),
        ["cuda:0"]
    );
}

#[test]
fn gpus_are_listed_once_for_requests_that_come_together() {
    let listed = Listed::default();
    let mut times = 0;
    let mut list = |age| {
        listed.no_older_than(age, || {
            times += 1;
            Inventory::default()
        });
    };

    list(Duration::MAX);
    list(Duration::MAX);
    list(Duration::ZERO);

    assert_eq!(times, 2);
}

#[test]
fn a_listing_whose_workers_crashed_is_not_cached() {
    let listed = Listed::default();
    let lost = Inventory {
        lost: Some("the worker ended while starting".to_owned()),
        ..Inventory::default()
    };

    let refused = resolve(&DeviceChoice::Cuda(0), || {
        listed.no_older_than(Duration::MAX, || lost)
    });
    let next = listed.no_older_than(Duration::MAX, Inventory::default);

    assert!(matches!(refused, Err(EngineError::DeviceFailed { .. })));
    assert_eq!(next.lost, None);
}

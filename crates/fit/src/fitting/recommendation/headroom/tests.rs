//! What is left free, by what is doubted and what was learnt.

use super::*;
use crate::graph::{Builder, Content, UntracedFunction};
use crate::search::headroom::Halved;
use crate::shape::DType;
use crate::shape::Extent;

#[test]
fn estimated_workspaces_keep_free_what_they_may_be_short_by() {
    let limit = Bytes(1000);
    let without = headroom(&[Uncertainty::Driver], limit);
    let short_by = |bytes| Uncertainty::Workspaces(Bytes(bytes));
    let with = headroom(&[Uncertainty::Driver, short_by(70)], limit);

    assert_eq!(with, without + Bytes(70));
    let much = [500, 5000].map(|bytes| headroom(&[short_by(bytes)], limit));
    assert_eq!(much, [Bytes(100); 2]);
    let measured = headroom(&[Uncertainty::GroupedVolumes], limit);
    assert_eq!(measured, Bytes(120));
}

#[test]
fn a_function_that_was_not_traced_is_a_doubt() {
    let mut builder = Builder::new("Net");
    let x = builder.input("x", DType::Float32, Vec::new(), Content::Normal);
    let mut graph = builder.finish(x, x);
    assert!(!of_graph(&graph).contains(&Uncertainty::Functions));

    graph.untraced_functions.push(UntracedFunction {
        name: "Swish".into(),
        reason: "it branches on values".into(),
    });

    assert!(of_graph(&graph).contains(&Uncertainty::Functions));
}

#[test]
fn operands_and_results_of_assumed_operators_are_counted() {
    let mut builder = Builder::new("Model");
    let shape = vec![Extent::BATCH, Extent::fixed(10)];
    let x = builder.input("x", DType::Float32, shape.clone(), Content::Normal);
    let op = crate::ops::Opaque {
        results: vec![(DType::Float32, shape)],
    };
    let y = builder.apply(Builder::ROOT, "y", op, &[x]).unwrap();
    let graph = builder.finish(y, y);

    let assumed = Assumed::of(&graph);

    let both = Uncertainty::Assumed(Bytes(2 * 8 * 10 * 4));
    assert_eq!(assumed.at(8), Some(both));
    assert_eq!(Assumed::default().at(8), None);
}

const LIMIT: Bytes = Bytes(1_000_000);
const DOUBTS: [Uncertainty; 2] = [Uncertainty::Driver, Uncertainty::Card];

/// So much at the least, after what these doubts keep was halved so often.
fn calibration(millionths: u32, times: usize) -> VariantHeadroom {
    let mut halved = Halved::default();
    (0..times).for_each(|_| halved.halve(&doubts(&DOUBTS, LIMIT)));
    let other = HeadroomCalibration {
        strategy: "none".to_owned(),
        share: Share(millionths),
        ..HeadroomCalibration::default()
    };
    // Below limits of so many bits.
    let near = HeadroomCalibration {
        limit: LIMIT.0.checked_ilog2(),
        halved,
        ..other.clone()
    };
    VariantHeadroom::Learnt([near, other].into())
}

#[test]
fn what_was_learnt_is_of_limits_within_a_factor_of_two() {
    let learnt = calibration(5_000, 1);
    let limit = LIMIT.0;
    for (limit, millionths) in [(limit, 7_500), (limit / 2, 15_000), (limit * 2, 15_000)] {
        let left = learnt.bytes(&DOUBTS, Bytes(limit));
        assert_eq!(left, Share(millionths).bytes(Bytes(limit)), "{limit}");
    }
    assert_eq!(learnt.with_unconfirmed(Share(20_000), LIMIT), None);
}

#[test]
fn what_was_learnt_adds_and_halves_the_doubts_that_it_is_about() {
    let of = |headroom: &VariantHeadroom, doubts: &[Uncertainty]| {
        let from = headroom.document(doubts, LIMIT).from;
        (headroom.bytes(doubts, LIMIT).0, from)
    };
    for (headroom, left, from) in [
        (VariantHeadroom::ByDoubts, 15_000, HeadroomFrom::Default),
        (calibration(30_000, 0), 30_000, HeadroomFrom::Learnt),
        (calibration(9_000, 0), 15_000, HeadroomFrom::Default),
        (calibration(5_000, 1), 7_500, HeadroomFrom::Learnt),
        (calibration(5_000, 9), 5_000, HeadroomFrom::Learnt),
        (VariantHeadroom::Asked(Share(1_000)), 1_000, HeadroomFrom::Asked),
        (VariantHeadroom::Asked(Share(0)), 0, HeadroomFrom::Asked),
    ] {
        assert_eq!(of(&headroom, &DOUBTS), (left, from), "{headroom:?}");
    }
    // An answer that doubts something else, too, or much more, keeps all of it.
    for (more, left) in [
        (Uncertainty::Workspaces(Bytes(100_000)), 115_000),
        (Uncertainty::Assumed(Bytes(2_000)), 17_000),
        (Uncertainty::Extrapolated(Bytes(16_000)), 17_000),
        (Uncertainty::Far(1), 17_500),
        (Uncertainty::Short(Bytes(1)), 15_001),
        (Uncertainty::Driver, 20_000),
    ] {
        let found = of(&calibration(5_000, 9), &[DOUBTS[0], DOUBTS[1], more]);
        assert_eq!(found, (left, HeadroomFrom::Default), "{more:?}");
    }
}

#[test]
fn what_the_document_says_is_the_very_share() {
    for limit in [(12 << 30) + 1, 24_564_989_952, 7] {
        let document = calibration(32_727, 1).document(&DOUBTS, Bytes(limit));
        assert!((document.fraction - 0.032_727).abs() < 1e-12);
    }
    let document = VariantHeadroom::ByDoubts.document(&DOUBTS, Bytes(24_564_989_952));
    assert!((document.fraction - 0.015).abs() < 1e-12);
}

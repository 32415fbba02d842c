//! Fits on a scripted device: memory that grows as the test says.

mod budget;
mod devices;
mod ranking;
mod script;
mod speed;
mod targets;
mod why;

use crate::fitting::answer::{Devices, answer};
use crate::fitting::engine::FitSpec;
use crate::fitting::probing::runner::Observer;
use crate::fitting::recommendation::headroom::Uncertainty;
use crate::limits::Cancel;
use crate::model::{HeadroomCalibration, SearchMode, Variant};
use crate::probe::Evidence;
use crate::units::{Bytes, Share};
use crate::{EngineError, Work};

use script::*;

#[test]
fn a_simulated_answer_keeps_headroom_below_the_largest_batch_without_retries() {
    let found = fit(&question(), &mut simulated(), None).recommendation;

    let largest = (found.max_batch, found.max_batch_without_retries);
    assert_eq!(largest, (110, 100));
    // One and a half per cent of 1200 MiB are 18 MiB, two samples.
    assert_eq!(found.micro_batch, 98);
    assert_eq!(found.evidence, Evidence::Simulated);
    assert_eq!(found.headroom_bytes, 20 * MIB);
    let why = "activations (100% of the peak); batch 101 flushes the";
    assert!(found.limited_by.starts_with(why), "{}", found.limited_by);
}

/// What outcomes taught, and what one other key alone asks for, in millionths.
fn taught(share: u32, unconfirmed: u32) -> FitSpec<'static> {
    let mut question = question();
    let calibration = HeadroomCalibration {
        strategy: "none".to_owned(),
        share: Share(share),
        unconfirmed: Share(unconfirmed),
        ..HeadroomCalibration::default()
    };
    let request = question.request.to_mut();
    *request = request.clone().with_calibration(vec![calibration]);
    question
}

#[test]
fn what_one_other_key_alone_asks_for_lowers_a_batch_by_a_twentieth_at_most() {
    // 18 MiB of doubts leave 98 samples, and 2 % leave 97. Unconfirmed 4 % leave 95, and more leaves no fewer than a twentieth less.
    for (share, unconfirmed, batch, left) in [
        (0, 0, 98, 0.015),
        (0, 10_000, 98, 0.015),
        (0, 40_000, 95, 0.04),
        (0, 200_000, 94, 0.049_999),
        (0, 1_000_000, 94, 0.049_999),
        (20_000, 200_000, 93, 0.058_333),
        (60_000, 40_000, 92, 0.06),
    ] {
        let mut question = taught(share, unconfirmed);
        let mut simulated = simulated();
        let found = fit(&question, &mut simulated, None).recommendation;
        let said = (found.micro_batch, found.headroom.fraction);
        assert_eq!(said, (batch, left), "{share} {unconfirmed}");
        let is_lowered = notes(&found, "another key");
        assert_eq!(is_lowered, unconfirmed > share && batch < 98);

        // 49 divides it, and no batch near it does.
        question.request.to_mut().target_batch = Some(98);
        let found = fit(&question, &mut simulated, None).recommendation;
        let halved = share > 0;
        assert_eq!(found.micro_batch, if halved { 49 } else { 98 });
    }
}

#[test]
fn two_real_probes_confirm_a_right_simulation() {
    let mut real = real();

    let found = fit(&question(), &mut simulated(), Some(&mut real));

    assert_eq!(real.asked, [(1, 100), (1, 101)]);
    let best = found.recommendation;
    let of_batches = (best.micro_batch, best.max_batch_without_retries);
    assert_eq!(of_batches, (100, 100));
    assert_eq!(best.evidence, Evidence::Probed);
    assert_eq!(best.step_ms, Some(100.0));
    assert_eq!(best.samples_per_second, Some(1000.0));
    assert_eq!(found.probes.len(), 2);
    let simulated = found.probes[0].report.simulated_peak_reserved_bytes;
    assert_eq!(simulated, Some(1200 * MIB));
}

#[test]
fn a_third_real_probe_confirms_what_leaves_headroom() {
    let mut real = real();
    real.uncertainties = vec![Uncertainty::Driver];

    let found = fit(&question(), &mut simulated(), Some(&mut real));

    // Half a per cent of 1200 MiB is 6 MiB, one sample.
    assert_eq!(real.asked, [(1, 100), (1, 101), (1, 99)]);
    let best = found.recommendation;
    let of_batches = (best.micro_batch, best.max_batch_without_retries);
    assert_eq!(of_batches, (99, 100));
    assert_eq!(best.headroom_bytes, 10 * MIB);
    assert!(notes(&best, "0.5% for where the GPU driver places memory"));
}

#[test]
fn memory_of_assumed_operators_adds_to_headroom() {
    // Of 100 samples 500 MiB are assumed, of 66 of them 330: with 860 MiB reserved they leave 10 of 1200, and
    // one sample more passes the limit by 5. What takes more than the limit leaves a batch, too.
    for (each, micro_batch, free) in [(5, 66, 340), (24, 29, 710)] {
        let mut simulated = simulated();
        simulated.uncertainties = Vec::new();
        simulated.assumed_per_sample = Bytes::mib(each);

        let best = fit(&question(), &mut simulated, None).recommendation;

        assert_eq!(best.max_batch_without_retries, 100);
        assert_eq!(best.micro_batch, micro_batch);
        assert_eq!(best.headroom_bytes, free * MIB);
        let margin = format!("{} for the operators that", Bytes::mib(each * micro_batch));
        let is_margin = |note: &String| note.contains("safety margin") && note.contains(&margin);
        assert!(best.notes.iter().any(is_margin), "{:?}", best.notes);
    }
}

#[test]
fn where_the_gpu_disagrees_it_is_right() {
    let mut real = real();
    real.fixed = 180;

    let found = fit(&question(), &mut simulated(), Some(&mut real));

    let best = found.recommendation;
    assert_eq!((best.max_batch, best.max_batch_without_retries), (102, 92));
    assert_eq!(best.micro_batch, 92);
    assert!(real.asked.len() <= 20, "{:?}", real.asked);
}

#[test]
fn a_model_without_kernels_is_answered_by_simulation_and_says_so() {
    let mut real = real();
    real.breaks_at = Some(100);

    let found = fit(&question(), &mut simulated(), Some(&mut real));

    let best = found.recommendation;
    assert_eq!((best.micro_batch, best.evidence), (98, Evidence::Simulated));
    assert!(notes(&best, "probes on the GPU failed: batch 100"));
}

#[test]
fn no_batch_above_the_graphs_largest_is_an_answer() {
    for (target_batch, micro_batch) in [(None, 63), (Some(128), 32)] {
        let mut question = question();
        question.ceiling = 63;
        question.request.to_mut().target_batch = target_batch;

        let found = fit(&question, &mut simulated(), None).recommendation;

        assert_eq!(found.micro_batch, micro_batch);
        assert_eq!((found.max_batch, found.max_batch_without_retries), (63, 63));
        let why = "the graph, which was exported for batches up to 63";
        assert_eq!(found.limited_by, why);
    }
}

#[test]
fn real_probes_alone_find_the_same() {
    let mut question = question();
    question.request.to_mut().search = SearchMode::Probes;
    let mut simulated = simulated();
    let mut real = real();

    let found = fit(&question, &mut simulated, Some(&mut real)).recommendation;

    let largest = (found.max_batch, found.max_batch_without_retries);
    assert_eq!(largest, (110, 100));
    assert!(simulated.asked.is_empty());
}

#[test]
fn a_hole_is_never_recommended() {
    for (holes, micro_batch) in [(vec![98, 97], 96), ((8..=99).collect(), 7), (vec![1], 98)] {
        let mut simulated = simulated();
        simulated.holes = holes;

        let found = fit(&question(), &mut simulated, None).recommendation;

        assert_eq!(found.micro_batch, micro_batch);
        assert_eq!(found.missing_bytes, None);
    }
}

#[test]
fn a_batch_of_one_without_headroom_is_not_recommended() {
    let mut simulated = simulated();
    simulated.fixed = 1080;
    let mut question = question();

    let found = fit(&question, &mut simulated, None).recommendation;

    // 1190 MiB of 1200 are reserved, and one and a half per cent is to be left free.
    assert_eq!((found.micro_batch, found.max_batch_without_retries), (0, 2));
    assert!(notes(&found, "a batch of one runs without retries"));
    question.budget = budget_within(limit(&question) + Bytes(found.missing_bytes.unwrap()));
    let found = fit(&question, &mut simulated, None).recommendation;
    assert_eq!(found.micro_batch, 1);
}

#[test]
fn a_gpu_that_is_lost_is_answered_for_by_simulation_and_not_asked_again() {
    let mut question = question();
    question.request.to_mut().variants.push(Variant {
        accumulation: 1,
        ..Variant::default()
    });
    let mut real = real();
    real.lost_after = 1;

    let found = fit(&question, &mut simulated(), Some(&mut real));

    assert_eq!(real.asked, [(1, 100), (1, 101)]);
    for variant in &found.variants {
        assert_eq!(variant.recommendation.evidence, Evidence::Simulated);
        assert_eq!(
            variant.recommendation.notes.last().unwrap(),
            "simulated, because the GPU's worker was lost and so was the one in its place: the worker ended \
             (signal: 9 (SIGKILL))"
        );
    }
}

#[test]
fn a_lost_gpu_is_an_error_where_only_real_probes_were_asked_for() {
    let mut question = question();
    question.request.to_mut().search = SearchMode::Probes;
    let cancel = Cancel::default();
    let observer = Observer::new(&Work::quiet(&cancel));
    let (mut simulated, mut real) = (simulated(), real());
    real.lost_after = 1;
    let devices = Devices {
        simulated: &mut simulated,
        real: Some(&mut real),
    };

    let ended = answer(&question, devices, &observer);

    assert!(matches!(ended, Err(EngineError::DeviceFailed { .. })));
}

#[test]
fn nothing_fits_says_how_much_is_missing() {
    let mut simulated = simulated();
    simulated.fixed = 1400;

    let found = fit(&question(), &mut simulated, None).recommendation;

    assert_eq!((found.micro_batch, found.max_batch), (0, 0));
    // 1410 MiB, the 100 that would be had with retries only, and one and a half per cent of the limit.
    let missing = Bytes(found.missing_bytes.unwrap());
    assert!(
        (Bytes::mib(332)..Bytes::mib(336)).contains(&missing),
        "{missing}"
    );
    assert!(found.limited_by.ends_with("batch 1: conv1 wants 10 MiB"));
}

#[test]
fn a_cancelled_fit_ends_before_the_next_probe() {
    let cancel = Cancel::default();
    let stop = |progress: crate::Progress| {
        if progress.probes_done >= 2 {
            cancel.cancel();
        }
    };
    let observer = Observer::new(&Work {
        cancel: &cancel,
        progress: &stop,
    });
    let mut simulated = simulated();
    let devices = Devices {
        simulated: &mut simulated,
        real: None,
    };

    let ended = answer(&question(), devices, &observer);

    assert_eq!(ended, Err(EngineError::Cancelled));
    assert_eq!(simulated.asked.len(), 3);
}

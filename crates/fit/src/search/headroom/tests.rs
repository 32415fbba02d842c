//! Headroom rises at once, sinks slowly, and stays within its bounds.

use proptest::prelude::*;

use super::*;
use crate::search::ask_tell::Outcome;
use crate::units::{Bytes, Share};

const ANSWER: Answered = Answered {
    micro_batch: 64,
    peak_reserved: Bytes(9_900),
    limit: Bytes(10_000),
    headroom: Share(5_000),
    retries: false,
};

fn seen(outcome: Outcome, peak: Option<u64>) -> TrainingRun {
    TrainingRun {
        batch: 64,
        outcome,
        peak_reserved: peak.map(Bytes),
        retries: None,
        steps: Some(100),
    }
}

/// Tells of a run where no keys are needed.
fn take(learnt: &mut HeadroomModel, lesson: Sample) -> bool {
    learnt.take(lesson, &mut [Reporter::of("")], 0)
}

fn percent(learnt: &HeadroomModel) -> f64 {
    learnt.share.fraction() * 100.0
}

#[test]
fn what_was_reserved_beyond_the_prediction_was_needed() {
    let fits = |peak| sample(&ANSWER, &seen(Outcome::Fits, Some(peak)));

    assert_eq!(fits(9_900), Ok(Sample::Needs(Share(0))));
    assert_eq!(fits(4_950), Ok(Sample::Needs(Share(0))));
    assert_eq!(fits(4_949), Err(RejectReason::Implausible));
    assert_eq!(fits(10_000), Ok(Sample::Needs(Share(10_000))));
    let small = Answered {
        peak_reserved: Bytes(100),
        ..ANSWER
    };
    // A tenth more of next to nothing is not a tenth of the limit.
    let found = sample(&small, &seen(Outcome::Fits, Some(110)));
    assert_eq!(found, Ok(Sample::Needs(Share(2_000))));
}

#[test]
fn running_out_of_memory_needs_more_headroom_than_there_was() {
    let more = Ok(Sample::NeedsMoreThan(Share(10_000)));
    assert_eq!(sample(&ANSWER, &seen(Outcome::OutOfMemory, None)), more);
    assert_eq!(sample(&ANSWER, &seen(Outcome::FitsWithRetries, None)), more);
    let retried = TrainingRun {
        retries: Some(1),
        ..seen(Outcome::Fits, Some(9_900))
    };
    assert_eq!(sample(&ANSWER, &retried), more);
    let smaller = TrainingRun {
        batch: 32,
        ..seen(Outcome::OutOfMemory, None)
    };
    assert_eq!(sample(&ANSWER, &smaller), more);
}

#[test]
fn retries_of_the_first_steps_count_as_headroom() {
    let retrying = Answered {
        peak_reserved: Bytes(9_999),
        retries: true,
        ..ANSWER
    };

    let gone = sample(&retrying, &seen(Outcome::OutOfMemory, None));
    let retried = sample(&retrying, &seen(Outcome::FitsWithRetries, Some(9_999)));

    assert_eq!(gone, Ok(Sample::NeedsMoreThan(Share(5_000))));
    assert_eq!(retried, Ok(Sample::Needs(Share(0))));
}

#[test]
fn what_says_nothing_about_the_answer_is_not_learnt_from() {
    let doubt = |seen: TrainingRun| sample(&ANSWER, &seen).unwrap_err();
    let fits = seen(Outcome::Fits, Some(9_000));

    assert_eq!(doubt(seen(Outcome::Crashed, None)), RejectReason::Crashed);
    assert_eq!(
        doubt(TrainingRun { batch: 65, ..fits }),
        RejectReason::LargerBatch
    );
    let larger = TrainingRun {
        batch: 65,
        ..seen(Outcome::OutOfMemory, None)
    };
    assert_eq!(doubt(larger), RejectReason::LargerBatch);
    assert_eq!(
        doubt(TrainingRun { batch: 63, ..fits }),
        RejectReason::SmallerBatch
    );
    assert_eq!(doubt(seen(Outcome::Fits, None)), RejectReason::NoPeak);
    for steps in [None, Some(2)] {
        assert_eq!(doubt(TrainingRun { steps, ..fits }), RejectReason::FewSteps);
    }
    let roomy = Answered {
        peak_reserved: Bytes(7_000),
        ..ANSWER
    };
    let refused = seen(Outcome::OutOfMemory, None);
    assert_eq!(sample(&roomy, &refused), Err(RejectReason::OtherCause));
    for doubt in RejectReason::ALL {
        assert_eq!(RejectReason::named(doubt.name()), Some(doubt));
    }
}

#[test]
fn a_miss_raises_at_once_and_twenty_that_agree_lower_by_half_of_the_way() {
    let mut learnt = HeadroomModel::begin(FLOOR);

    assert!(take(&mut learnt, Sample::Needs(Share(32_000))));
    assert!((percent(&learnt) - 3.6).abs() < 1e-9);

    for _ in 0..19 {
        assert!(!take(&mut learnt, Sample::Needs(Share(0))));
    }
    assert!(take(&mut learnt, Sample::Needs(Share(12_000))));
    // Needed were 1.2 % and a margin of 0.25 %.
    assert!((percent(&learnt) - f64::midpoint(3.6, 1.45)).abs() < 1e-9);
    assert_eq!((learnt.outcomes, learnt.misses), (21, 1));
}

#[test]
fn others_that_follow_the_same_answer_change_nothing() {
    let mut learnt = HeadroomModel::begin(FLOOR);
    for _ in 0..100 {
        take(&mut learnt, Sample::NeedsMoreThan(FLOOR));
    }
    assert_eq!(learnt.share, Share(10_000));
    // Answers that leave that free and fail all the same double it again.
    take(&mut learnt, Sample::NeedsMoreThan(Share(10_000)));
    assert_eq!(learnt.share, Share(20_000));
}

#[test]
fn one_miss_restarts_the_count() {
    let mut learnt = HeadroomModel::begin(Share(40_000));
    for _ in 0..19 {
        take(&mut learnt, Sample::Needs(Share(0)));
    }
    take(&mut learnt, Sample::Needs(Share(40_000)));
    let raised = learnt.share;
    for _ in 0..19 {
        take(&mut learnt, Sample::Needs(Share(0)));
    }
    assert_eq!(learnt.share, raised);
    take(&mut learnt, Sample::Needs(Share(0)));
    assert!(learnt.share < raised);
}

#[test]
fn one_model_says_nothing_about_others_and_two_do() {
    let raised = |need: u32| {
        let mut learnt = HeadroomModel::begin(FLOOR);
        take(&mut learnt, Sample::Needs(Share(need)));
        learnt
    };
    let agrees = raised(0);
    let others =
        |models: &[HeadroomModel]| of_others(models.iter().map(|learnt| (learnt.raised, "")));

    assert_eq!(others(&[]), None);
    assert_eq!(others(&[raised(32_000)]), None);
    assert_eq!(others(&[raised(32_000), agrees]), None);
    assert_eq!(
        others(&[raised(32_000), raised(16_000)]),
        Some(Share(18_500))
    );
    assert_eq!(
        others(&[raised(150_000), raised(150_000)]),
        Some(CEILING_OF_OTHERS)
    );
}

/// What keys tell one after the other, and what is left free then.
struct RunsOfKeys {
    learnt: HeadroomModel,
    reporters: Vec<Reporter>,
}

impl RunsOfKeys {
    fn begin(keys: usize) -> RunsOfKeys {
        RunsOfKeys {
            learnt: HeadroomModel::begin(FLOOR),
            reporters: (0..keys)
                .map(|key| Reporter::of(&format!("k{key}")))
                .collect(),
        }
    }

    fn by(&mut self, key: usize, lesson: Sample) -> Share {
        self.learnt.take(lesson, &mut self.reporters, key);
        self.learnt.share
    }
}

#[test]
fn headroom_sinks_by_agreement_of_several_keys() {
    let mut runs = RunsOfKeys::begin(3);
    runs.by(0, Sample::Needs(Share(32_000)));
    let taught = runs.learnt.share;

    for _ in 0..1_000 {
        assert_eq!(runs.by(1, Sample::Needs(Share(0))), taught);
        assert_eq!(runs.by(2, Sample::Needs(Share(0))), taught);
    }
    for _ in 0..5 {
        runs.by(0, Sample::Needs(Share(0)));
    }
    assert_eq!(runs.by(0, Sample::Needs(Share(0))), Share(20_500));
}

#[test]
fn what_anothers_miss_taught_stays_until_that_one_agrees() {
    let mut runs = RunsOfKeys::begin(5);
    runs.by(0, Sample::Needs(Share(32_000)));
    let taught = runs.learnt.share;

    for key in (1..5).cycle().take(200) {
        assert_eq!(runs.by(key, Sample::Needs(Share(0))), taught);
    }
}

#[test]
fn one_key_raises_headroom_by_a_little_and_two_by_all() {
    let mut runs = RunsOfKeys::begin(2);
    for free in [5_000, 10_000, 20_000, 40_000, 80_000, 160_000] {
        runs.by(0, Sample::NeedsMoreThan(Share(free)));
    }
    assert_eq!(runs.learnt.share, CEILING_OF_A_KEY);
    assert_eq!(runs.by(1, Sample::Needs(Share(80_000))), Share(90_000));
}

#[test]
fn lies_of_one_key_about_many_models_say_nothing_of_others() {
    let lies = [(Share(150_000), "liar"); 9];
    assert_eq!(of_others(lies.into_iter()), None);
    let also = (Share(16_000), "honest");
    assert_eq!(
        of_others(lies.into_iter().chain([also])),
        Some(Share(16_000))
    );
}

fn any_lesson() -> impl Strategy<Value = Sample> {
    prop_oneof![
        (0..=1_000_000u32).prop_map(|need| Sample::Needs(Share(need))),
        (0..30_000u32).prop_map(|need| Sample::Needs(Share(need))),
        Just(Sample::Needs(Share(0))),
        (0..=200_000u32).prop_map(|free| Sample::NeedsMoreThan(Share(free))),
    ]
}

proptest! {
    /// Ten keys train on a card that needs a little more than is predicted; one of them tells whatever it likes, as often as it likes.
    #[test]
    fn a_liar_costs_others_no_training_and_a_twentieth_at_most(
        need in 0..60_000u32,
        rounds in prop::collection::vec((0..9usize, prop::collection::vec(any_lesson(), 0..12)), 1..120),
    ) {
        let [mut with, mut without] = [RunsOfKeys::begin(10), RunsOfKeys::begin(10)];
        let mut died = [0, 0];
        for (key, lies) in rounds {
            for lie in lies {
                with.by(9, lie);
            }
            for (runs, died) in [&mut with, &mut without].into_iter().zip(&mut died) {
                let left = runs.learnt.share;
                if left.0 < need {
                    *died += 1;
                    runs.by(key, Sample::NeedsMoreThan(left));
                } else {
                    runs.by(key, Sample::Needs(Share(need)));
                }
            }
            prop_assert!(died[0] <= died[1], "{died:?}");
            let true_misses = with.reporters[..9].iter().map(|reporter| reporter.missed).max();
            let most = true_misses.unwrap_or_default().max(CEILING_OF_A_KEY);
            prop_assert!(with.learnt.share <= without.learnt.share.max(most));
        }
    }

    /// Whatever is told, headroom stays between floor and ceiling, never sinks but after twenty that agree, and covers what
    /// was last needed.
    #[test]
    fn headroom_stays_within_its_bounds(
        begin in 0..=1_000_000u32,
        lessons in prop::collection::vec(any_lesson(), 0..200),
    ) {
        let mut learnt = HeadroomModel::begin(Share(begin));
        let mut since = 0;
        for lesson in lessons {
            let before = learnt.share;
            take(&mut learnt, lesson);
            since += 1;
            prop_assert!((FLOOR..=CEILING).contains(&learnt.share));
            if learnt.share < before {
                prop_assert!(since >= AGREEING);
                since = 0;
            }
            if let Sample::Needs(need) = lesson {
                prop_assert!(learnt.share >= need.min(CEILING));
            }
            if learnt.agreed == 0 {
                since = 0;
            }
        }
    }
}

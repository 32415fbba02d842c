//! Headroom rises at once, sinks slowly, and stays within its bounds.

use proptest::prelude::*;

use super::*;
use crate::search::conversation::Outcome;
use crate::units::{Bytes, Share};

const ANSWER: Answered = Answered {
    micro_batch: 64,
    peak_reserved: Bytes(9_900),
    limit: Bytes(10_000),
};

fn seen(outcome: Outcome, peak: Option<u64>) -> Seen {
    Seen {
        batch: 64,
        outcome,
        peak_reserved: peak.map(Bytes),
        retries: None,
        steps: Some(100),
    }
}

fn percent(learnt: &Learnt) -> f64 {
    learnt.share.fraction() * 100.0
}

#[test]
fn what_was_reserved_beyond_the_prediction_was_needed() {
    let fits = |peak| lesson(&ANSWER, &seen(Outcome::Fits, Some(peak)));

    assert_eq!(fits(9_900), Ok(Lesson::Needs(Share(0))));
    assert_eq!(fits(1), Ok(Lesson::Needs(Share(0))));
    assert_eq!(fits(10_000), Ok(Lesson::Needs(Share(10_000))));
    let small = Answered {
        peak_reserved: Bytes(100),
        ..ANSWER
    };
    // A tenth more of next to nothing is not a tenth of the limit.
    let found = lesson(&small, &seen(Outcome::Fits, Some(110)));
    assert_eq!(found, Ok(Lesson::Needs(Share(2_000))));
}

#[test]
fn running_out_of_memory_needs_more_than_was_left_free() {
    let more = Ok(Lesson::NeedsMoreThan(Share(10_000)));
    assert_eq!(lesson(&ANSWER, &seen(Outcome::OutOfMemory, None)), more);
    assert_eq!(lesson(&ANSWER, &seen(Outcome::FitsWithRetries, None)), more);
    let retried = Seen {
        retries: Some(1),
        ..seen(Outcome::Fits, Some(9_900))
    };
    assert_eq!(lesson(&ANSWER, &retried), more);
    let smaller = Seen {
        batch: 32,
        ..seen(Outcome::OutOfMemory, None)
    };
    assert_eq!(lesson(&ANSWER, &smaller), more);
}

#[test]
fn what_says_nothing_about_the_answer_is_not_learnt_from() {
    let doubt = |seen: Seen| lesson(&ANSWER, &seen).unwrap_err();
    let fits = seen(Outcome::Fits, Some(9_000));

    assert_eq!(doubt(seen(Outcome::Crashed, None)), Doubt::Crashed);
    assert_eq!(doubt(Seen { batch: 65, ..fits }), Doubt::LargerBatch);
    let larger = Seen {
        batch: 65,
        ..seen(Outcome::OutOfMemory, None)
    };
    assert_eq!(doubt(larger), Doubt::LargerBatch);
    assert_eq!(doubt(Seen { batch: 63, ..fits }), Doubt::SmallerBatch);
    assert_eq!(doubt(seen(Outcome::Fits, None)), Doubt::NoPeak);
    for steps in [None, Some(2)] {
        assert_eq!(doubt(Seen { steps, ..fits }), Doubt::FewSteps);
    }
    let roomy = Answered {
        peak_reserved: Bytes(7_000),
        ..ANSWER
    };
    let refused = seen(Outcome::OutOfMemory, None);
    assert_eq!(lesson(&roomy, &refused), Err(Doubt::OtherCause));
    for doubt in Doubt::ALL {
        assert_eq!(Doubt::named(doubt.name()), Some(doubt));
    }
}

#[test]
fn a_miss_raises_at_once_and_twenty_that_agree_lower_by_half_of_the_way() {
    let mut learnt = Learnt::begin(FLOOR);

    assert!(learnt.take(Lesson::Needs(Share(32_000))));
    assert!((percent(&learnt) - 3.6).abs() < 1e-9);

    for _ in 0..19 {
        assert!(!learnt.take(Lesson::Needs(Share(0))));
    }
    assert!(learnt.take(Lesson::Needs(Share(12_000))));
    // Needed were 1.2 % and a margin of 0.25 %.
    assert!((percent(&learnt) - f64::midpoint(3.6, 1.45)).abs() < 1e-9);
    assert_eq!((learnt.outcomes, learnt.misses), (21, 1));
}

#[test]
fn others_that_follow_the_same_answer_change_nothing() {
    let mut learnt = Learnt::begin(FLOOR);
    for _ in 0..100 {
        learnt.take(Lesson::NeedsMoreThan(FLOOR));
    }
    assert_eq!(learnt.share, Share(10_000));
    // Answers that leave that free and fail all the same double it again.
    learnt.take(Lesson::NeedsMoreThan(Share(10_000)));
    assert_eq!(learnt.share, Share(20_000));
}

#[test]
fn one_miss_begins_the_count_anew() {
    let mut learnt = Learnt::begin(Share(40_000));
    for _ in 0..19 {
        learnt.take(Lesson::Needs(Share(0)));
    }
    learnt.take(Lesson::Needs(Share(40_000)));
    let raised = learnt.share;
    for _ in 0..19 {
        learnt.take(Lesson::Needs(Share(0)));
    }
    assert_eq!(learnt.share, raised);
    learnt.take(Lesson::Needs(Share(0)));
    assert!(learnt.share < raised);
}

#[test]
fn one_model_says_nothing_about_others_and_two_do() {
    let raised = |need: u32| {
        let mut learnt = Learnt::begin(FLOOR);
        learnt.take(Lesson::Needs(Share(need)));
        learnt
    };
    let agrees = raised(0);
    let others = |models: &[Learnt]| of_others(models.iter().copied());

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

fn any_lesson() -> impl Strategy<Value = Lesson> {
    prop_oneof![
        (0..=1_000_000u32).prop_map(|need| Lesson::Needs(Share(need))),
        (0..30_000u32).prop_map(|need| Lesson::Needs(Share(need))),
        Just(Lesson::Needs(Share(0))),
        (0..=200_000u32).prop_map(|free| Lesson::NeedsMoreThan(Share(free))),
    ]
}

proptest! {
    /// Whatever is told, headroom stays between floor and ceiling, never sinks but after twenty that agree, and covers what
    /// was last needed.
    #[test]
    fn headroom_stays_within_its_bounds(
        begin in 0..=1_000_000u32,
        lessons in prop::collection::vec(any_lesson(), 0..200),
    ) {
        let mut learnt = Learnt::begin(Share(begin));
        let mut since = 0;
        for lesson in lessons {
            let before = learnt.share;
            learnt.take(lesson);
            since += 1;
            prop_assert!((FLOOR..=CEILING).contains(&learnt.share));
            if learnt.share < before {
                prop_assert!(since >= AGREEING);
                since = 0;
            }
            if let Lesson::Needs(need) = lesson {
                prop_assert!(learnt.share >= need.min(CEILING));
            }
            if learnt.agreed == 0 {
                since = 0;
            }
        }
    }
}

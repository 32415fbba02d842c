//! Headroom rises at once, sinks slowly, and stays within its bounds.

use proptest::prelude::*;

use super::*;
use crate::search::conversation::Outcome;
use crate::units::{Bytes, Share};

const ANSWER: Answered = Answered {
    micro_batch: 64,
    peak_reserved: Bytes(9_900),
    limit: Bytes(10_000),
    headroom: Share(5_000),
    retries: false,
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

/// Tells of a run where no keys are needed.
fn take(learnt: &mut Learnt, lesson: Lesson) -> bool {
    learnt.take(lesson, &mut [Teller::of("")], 0)
}

fn percent(learnt: &Learnt) -> f64 {
    learnt.share.fraction() * 100.0
}

#[test]
fn what_was_reserved_beyond_the_prediction_was_needed() {
    let fits = |peak| lesson(&ANSWER, &seen(Outcome::Fits, Some(peak)));

    assert_eq!(fits(9_900), Ok(Lesson::Needs(Share(0))));
    assert_eq!(fits(4_950), Ok(Lesson::Needs(Share(0))));
    assert_eq!(fits(4_949), Err(Doubt::Implausible));
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
fn an_answer_whose_first_steps_retry_has_left_free_what_its_peak_does_not_show() {
    let retrying = Answered {
        peak_reserved: Bytes(9_999),
        retries: true,
        ..ANSWER
    };

    let gone = lesson(&retrying, &seen(Outcome::OutOfMemory, None));
    let retried = lesson(&retrying, &seen(Outcome::FitsWithRetries, Some(9_999)));

    assert_eq!(gone, Ok(Lesson::NeedsMoreThan(Share(5_000))));
    assert_eq!(retried, Ok(Lesson::Needs(Share(0))));
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

    assert!(take(&mut learnt, Lesson::Needs(Share(32_000))));
    assert!((percent(&learnt) - 3.6).abs() < 1e-9);

    for _ in 0..19 {
        assert!(!take(&mut learnt, Lesson::Needs(Share(0))));
    }
    assert!(take(&mut learnt, Lesson::Needs(Share(12_000))));
    // Needed were 1.2 % and a margin of 0.25 %.
    assert!((percent(&learnt) - f64::midpoint(3.6, 1.45)).abs() < 1e-9);
    assert_eq!((learnt.outcomes, learnt.misses), (21, 1));
}

#[test]
fn others_that_follow_the_same_answer_change_nothing() {
    let mut learnt = Learnt::begin(FLOOR);
    for _ in 0..100 {
        take(&mut learnt, Lesson::NeedsMoreThan(FLOOR));
    }
    assert_eq!(learnt.share, Share(10_000));
    // Answers that leave that free and fail all the same double it again.
    take(&mut learnt, Lesson::NeedsMoreThan(Share(10_000)));
    assert_eq!(learnt.share, Share(20_000));
}

#[test]
fn one_miss_begins_the_count_anew() {
    let mut learnt = Learnt::begin(Share(40_000));
    for _ in 0..19 {
        take(&mut learnt, Lesson::Needs(Share(0)));
    }
    take(&mut learnt, Lesson::Needs(Share(40_000)));
    let raised = learnt.share;
    for _ in 0..19 {
        take(&mut learnt, Lesson::Needs(Share(0)));
    }
    assert_eq!(learnt.share, raised);
    take(&mut learnt, Lesson::Needs(Share(0)));
    assert!(learnt.share < raised);
}

#[test]
fn one_model_says_nothing_about_others_and_two_do() {
    let raised = |need: u32| {
        let mut learnt = Learnt::begin(FLOOR);
        take(&mut learnt, Lesson::Needs(Share(need)));
        learnt
    };
    let agrees = raised(0);
    let others = |models: &[Learnt]| of_others(models.iter().map(|learnt| (learnt.raised, "")));

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
struct Told {
    learnt: Learnt,
    tellers: Vec<Teller>,
}

impl Told {
    fn begin(keys: usize) -> Told {
        Told {
            learnt: Learnt::begin(FLOOR),
            tellers: (0..keys)
                .map(|key| Teller::of(&format!("k{key}")))
                .collect(),
        }
    }

    fn by(&mut self, key: usize, lesson: Lesson) -> Share {
        self.learnt.take(lesson, &mut self.tellers, key);
        self.learnt.share
    }
}

#[test]
fn headroom_sinks_by_agreement_of_several_keys() {
    let mut told = Told::begin(3);
    told.by(0, Lesson::Needs(Share(32_000)));
    let taught = told.learnt.share;

    for _ in 0..1_000 {
        assert_eq!(told.by(1, Lesson::Needs(Share(0))), taught);
        assert_eq!(told.by(2, Lesson::Needs(Share(0))), taught);
    }
    for _ in 0..5 {
        told.by(0, Lesson::Needs(Share(0)));
    }
    assert_eq!(told.by(0, Lesson::Needs(Share(0))), Share(20_500));
}

#[test]
fn what_anothers_miss_taught_stays_until_that_one_agrees() {
    let mut told = Told::begin(5);
    told.by(0, Lesson::Needs(Share(32_000)));
    let taught = told.learnt.share;

    for key in (1..5).cycle().take(200) {
        assert_eq!(told.by(key, Lesson::Needs(Share(0))), taught);
    }
}

#[test]
fn one_key_raises_headroom_by_a_little_and_two_by_all() {
    let mut told = Told::begin(2);
    for free in [5_000, 10_000, 20_000, 40_000, 80_000, 160_000] {
        told.by(0, Lesson::NeedsMoreThan(Share(free)));
    }
    assert_eq!(told.learnt.share, CEILING_OF_A_KEY);
    assert_eq!(told.by(1, Lesson::Needs(Share(80_000))), Share(90_000));
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

fn any_lesson() -> impl Strategy<Value = Lesson> {
    prop_oneof![
        (0..=1_000_000u32).prop_map(|need| Lesson::Needs(Share(need))),
        (0..30_000u32).prop_map(|need| Lesson::Needs(Share(need))),
        Just(Lesson::Needs(Share(0))),
        (0..=200_000u32).prop_map(|free| Lesson::NeedsMoreThan(Share(free))),
    ]
}

proptest! {
    /// Ten keys train on a card that needs a little more than is predicted; one of them tells whatever it likes, as often as it likes.
    #[test]
    fn a_liar_costs_others_no_training_and_a_twentieth_at_most(
        need in 0..60_000u32,
        rounds in prop::collection::vec((0..9usize, prop::collection::vec(any_lesson(), 0..12)), 1..120),
    ) {
        let [mut with, mut without] = [Told::begin(10), Told::begin(10)];
        let mut died = [0, 0];
        for (key, lies) in rounds {
            for lie in lies {
                with.by(9, lie);
            }
            for (told, died) in [&mut with, &mut without].into_iter().zip(&mut died) {
                let left = told.learnt.share;
                if left.0 < need {
                    *died += 1;
                    told.by(key, Lesson::NeedsMoreThan(left));
                } else {
                    told.by(key, Lesson::Needs(Share(need)));
                }
            }
            prop_assert!(died[0] <= died[1], "{died:?}");
            let true_misses = with.tellers[..9].iter().map(|teller| teller.missed).max();
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
        let mut learnt = Learnt::begin(Share(begin));
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
            if let Lesson::Needs(need) = lesson {
                prop_assert!(learnt.share >= need.min(CEILING));
            }
            if learnt.agreed == 0 {
                since = 0;
            }
        }
    }
}

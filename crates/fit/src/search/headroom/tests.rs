//! Headroom rises at once, sinks slowly, and stays within its bounds.

mod liar;

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

/// What keys tell one after the other, and the headroom of each then.
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

    /// Where no keys are needed.
    fn open(share: Share) -> RunsOfKeys {
        RunsOfKeys {
            learnt: HeadroomModel::begin(share),
            reporters: vec![Reporter::of("")],
        }
    }

    /// A key tells; what its own answers leave free then.
    fn by(&mut self, key: usize, lesson: Sample) -> Share {
        self.about(&Doubts::default(), key, lesson);
        self.of(key)
    }

    /// A key tells of an answer with these doubts.
    fn about(&mut self, doubts: &Doubts, key: usize, lesson: Sample) {
        self.learnt.take(lesson, doubts, &mut self.reporters, key);
    }

    /// What an answer with these doubts leaves free.
    fn of_answers(&self, key: usize, doubts: &Doubts) -> Share {
        self.learnt.of_answers(self.reporters[key].missed, doubts)
    }

    fn of(&self, key: usize) -> Share {
        self.learnt.of(self.reporters[key].missed)
    }

    /// What the keys but this one ask for, each alone.
    fn unconfirmed(&self, key: usize) -> Share {
        let others = (0..self.reporters.len()).filter(|other| *other != key);
        others
            .map(|other| self.reporters[other].missed)
            .max()
            .unwrap_or_default()
    }
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
    for batch in [64, 32, 1] {
        let crowded = TrainingRun {
            batch,
            ..seen(Outcome::OutOfMemory, Some(4_949))
        };
        assert_eq!(doubt(crowded), RejectReason::OtherCause);
    }
    for doubt in RejectReason::ALL {
        assert_eq!(RejectReason::named(doubt.name()), Some(doubt));
    }
}

#[test]
fn a_miss_raises_at_once_and_twenty_that_agree_lower_by_half_of_the_way() {
    let mut runs = RunsOfKeys::open(FLOOR);

    assert_eq!(runs.by(0, Sample::Needs(Share(32_000))), Share(36_000));
    for _ in 0..19 {
        assert_eq!(runs.by(0, Sample::Needs(Share(0))), Share(36_000));
    }
    // Needed were 1.2 % and a margin of 0.25 %.
    let sunk = runs.by(0, Sample::Needs(Share(12_000)));
    assert_eq!(sunk, Share(u32::midpoint(36_000, 14_500)));
    assert_eq!((runs.learnt.outcomes, runs.learnt.misses), (21, 1));
}

#[test]
fn others_that_follow_the_same_answer_change_nothing() {
    let mut runs = RunsOfKeys::open(FLOOR);
    for _ in 0..100 {
        assert_eq!(runs.by(0, Sample::NeedsMoreThan(FLOOR)), Share(10_000));
    }
    // Answers that leave that free and fail all the same double it again.
    let doubled = runs.by(0, Sample::NeedsMoreThan(Share(10_000)));
    assert_eq!(doubled, Share(20_000));
}

#[test]
fn one_miss_restarts_the_count() {
    let mut runs = RunsOfKeys::open(Share(40_000));
    for _ in 0..19 {
        runs.by(0, Sample::Needs(Share(0)));
    }
    let raised = runs.by(0, Sample::Needs(Share(40_000)));
    for _ in 0..19 {
        assert_eq!(runs.by(0, Sample::Needs(Share(0))), raised);
    }
    assert!(runs.by(0, Sample::Needs(Share(0))) < raised);
}

#[test]
fn one_model_says_nothing_about_others_and_two_do() {
    let raised = |need: u32| {
        let mut runs = RunsOfKeys::open(FLOOR);
        runs.by(0, Sample::Needs(Share(need)));
        runs.learnt
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

#[test]
fn misses_of_a_key_count_fully_for_its_own_requests_and_for_others_once_two_agree() {
    let mut runs = RunsOfKeys::begin(3);
    for free in [5_000, 10_000, 20_000, 40_000, 80_000, 160_000] {
        runs.by(0, Sample::NeedsMoreThan(Share(free)));
    }

    assert_eq!((runs.of(0), runs.of(1)), (CEILING, FLOOR));
    assert_eq!(runs.unconfirmed(1), CEILING);
    assert_eq!(runs.by(1, Sample::Needs(Share(80_000))), Share(90_000));
    assert_eq!(runs.of(2), Share(90_000));
    assert_eq!(runs.of(0), CEILING);
}

#[test]
fn headroom_sinks_by_agreement_of_several_keys() {
    let mut runs = RunsOfKeys::begin(4);
    for key in 0..2 {
        runs.by(key, Sample::Needs(Share(32_000)));
    }
    assert_eq!(runs.of(3), Share(36_000));

    for _ in 0..1_000 {
        assert_eq!(runs.by(1, Sample::Needs(Share(0))), Share(36_000));
        assert_eq!(runs.by(2, Sample::Needs(Share(0))), Share(36_000));
    }
    for _ in 0..5 {
        runs.by(3, Sample::Needs(Share(0)));
    }
    assert_eq!(runs.by(3, Sample::Needs(Share(0))), Share(20_500));
    // One that did not agree keeps what its own misses taught it.
    assert_eq!((runs.of(0), runs.of(1)), (Share(36_000), Share(20_500)));
    // Two say that 1.85 % are needed.
    for key in [1, 2, 3].into_iter().cycle().take(20) {
        let need = if key == 1 { 16_000 } else { 0 };
        runs.by(key, Sample::Needs(Share(need)));
    }
    assert_eq!(runs.of(2), Share(19_500));
}

#[test]
fn what_follows_answers_of_an_agent_is_one_keys_word() {
    let mut runs = RunsOfKeys::begin(2);
    let through = ["k0/a", "k1/a", "k2/a", "k3/a"].map(Reporter::of);
    runs.reporters.extend(through);
    for key in 2..6 {
        runs.by(key, Sample::Needs(Share(150_000)));
    }
    assert_eq!(runs.learnt.share, FLOOR);
    for _ in 0..100 {
        for key in 2..6 {
            runs.by(key, Sample::Needs(Share(0)));
        }
    }
    assert_eq!(runs.learnt.agreed, AGREEING_OF_A_KEY);
    // Another key has seen it without the agent.
    runs.by(0, Sample::Needs(Share(32_000)));
    assert_eq!(runs.learnt.share, Share(36_000));
}

#[test]
fn one_key_is_one_witness_whoever_answers_it() {
    let mut runs = RunsOfKeys::begin(2);
    runs.reporters
        .extend(["k0/a", "k0/b", "k1/a"].map(Reporter::of));
    for key in [0, 2, 3] {
        runs.by(key, Sample::NeedsMoreThan(Share(160_000)));
    }
    assert_eq!(runs.learnt.share, FLOOR);
    for _ in 0..100 {
        for key in [0, 2, 3] {
            runs.by(key, Sample::Needs(Share(0)));
        }
    }
    assert_eq!(runs.learnt.agreed, AGREEING_OF_A_KEY);
    assert!(!runs.learnt.has_sunk);
    // Another key about another agent's answer.
    runs.by(0, Sample::Needs(Share(32_000)));
    runs.by(4, Sample::Needs(Share(16_000)));
    assert_eq!(runs.learnt.share, Share(18_500));
}

/// Doubts of every answer about a card, and those of scratch memory.
fn doubts(workspaces: u32) -> Doubts {
    let known = [(Doubt::Driver, 5_000), (Doubt::Card, 10_000)];
    let all = known.into_iter().chain([(Doubt::Workspaces, workspaces)]);
    all.map(|(doubt, share)| (doubt, Share(share))).collect()
}

#[test]
fn an_answer_speaks_for_those_with_its_doubts_alone() {
    let [plain, doubtful] = [0, 100_000].map(doubts);
    let mut runs = RunsOfKeys::begin(4);
    // What it leaves free for more than others doubt begins nothing of theirs, nor do needs within that.
    runs.about(&doubtful, 0, Sample::Needs(Share(80_000)));
    assert_eq!((runs.of(1), runs.unconfirmed(1)), (FLOOR, Share(0)));
    assert_eq!(runs.learnt.misses, 0);

    for turn in 0..20 {
        let lesson = Sample::Needs(Share(if turn == 0 { 4_500 } else { 0 }));
        runs.about(&plain, turn % 3, lesson);
    }
    let kept = |runs: &RunsOfKeys| [&plain, &doubtful].map(|it| runs.of_answers(3, it).0);
    assert_eq!(kept(&runs), [7_500, 115_000]);
    // Two that need more than half of it keep it whole, and one does not.
    for (needs, left) in [([4_000, 4_000, 0], 7_500), ([4_000, 0, 0], 5_000)] {
        for turn in 0..20 {
            runs.about(&plain, turn % 3, Sample::Needs(Share(needs[turn % 3])));
        }
        assert_eq!(kept(&runs), [left, 115_000], "{:?}", runs.reporters);
    }
    assert!(runs.of_answers(0, &plain) >= Share(6_500));
    // Those of one key do not do either.
    for _ in 0..100 {
        runs.about(&doubtful, 3, Sample::Needs(Share(0)));
    }
    assert_eq!(kept(&runs), [5_000, 115_000]);
    for turn in 0..20 {
        runs.about(&doubts(90_000), turn % 3, Sample::Needs(Share(0)));
    }
    assert_eq!(kept(&runs), [5_000, 57_500]);
}

#[test]
fn trainings_take_back_what_misses_of_their_kind_taught_alone() {
    let named = |it: Doubts, training: &str, limit: u64| it.of(training.to_owned(), Bytes(limit));
    let [fp32, larger, bf16] = [("fp32", 1 << 28), ("fp32", 1 << 30), ("bf16", 1 << 28)]
        .map(|(training, limit)| named(doubts(100_000), training, limit));
    let mut runs = RunsOfKeys::open(FLOOR);
    runs.about(&bf16, 0, Sample::NeedsMoreThan(Share(115_000)));

    (0..200).for_each(|_| runs.about(&fp32, 0, Sample::Needs(Share(0))));

    assert_eq!(runs.of(0), CEILING);
    let kept = [&fp32, &larger, &bf16].map(|it| runs.learnt.halved.kept(it).0);
    assert_eq!(kept[1..], [115_000; 2]);
    assert!(kept[0] <= 2 * FLOOR.0, "{kept:?}");
    (0..200).for_each(|_| runs.about(&bf16, 0, Sample::Needs(Share(0))));
    assert_eq!(runs.of(0), FLOOR);
}

#[test]
fn misses_of_one_key_do_not_keep_headroom_of_others_from_sinking() {
    let mut runs = RunsOfKeys::begin(5);
    for key in 0..2 {
        runs.by(key, Sample::Needs(Share(32_000)));
    }
    for round in 0..20 {
        runs.by(4, Sample::NeedsMoreThan(Share(160_000)));
        runs.by(4, Sample::Needs(Share(35_000)));
        runs.by(round % 3, Sample::Needs(Share(0)));
    }
    assert!(runs.of(3) < Share(36_000), "{:?}", runs.learnt);
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

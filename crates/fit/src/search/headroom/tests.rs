//! Headroom rises at once, sinks slowly, and stays within its bounds.

mod liar;
mod others;

use std::collections::BTreeMap;

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

/// What keys tell of ways to train a model, one after the other, and the headroom of each then.
struct RunsOfKeys {
    /// As answers begin.
    share: Share,
    keys: Vec<String>,
    ways: BTreeMap<&'static str, (HeadroomModel, Vec<Reporter>)>,
}

impl RunsOfKeys {
    fn begin(keys: usize) -> RunsOfKeys {
        RunsOfKeys {
            share: FLOOR,
            keys: (0..keys).map(|key| format!("k{key}")).collect(),
            ways: BTreeMap::new(),
        }
    }

    /// Where no keys are needed.
    fn open(share: Share) -> RunsOfKeys {
        RunsOfKeys {
            share,
            keys: vec![String::new()],
            ways: BTreeMap::new(),
        }
    }

    fn also(mut self, keys: &[&str]) -> RunsOfKeys {
        self.keys.extend(keys.iter().map(|&key| key.to_owned()));
        self
    }

    /// A key tells; what its own answers leave free then.
    fn by(&mut self, key: usize, lesson: Sample) -> Share {
        self.about("", &Doubts::default(), key, lesson);
        self.of(key)
    }

    /// A key tells of an answer for this way to train with these doubts.
    fn about(&mut self, way: &'static str, doubts: &Doubts, key: usize, lesson: Sample) {
        let owner = &self.keys[key];
        let others = self.ways.iter().filter(|(other, _)| **other != way);
        let others: Vec<_> = others.map(|(_, told)| told).collect();
        let mut missed: BTreeMap<String, Share> = BTreeMap::new();
        for one in others.iter().flat_map(|(_, reporters)| reporters) {
            let most = missed.entry(one.owner.clone()).or_default();
            *most = one.missed.max(*most);
        }
        let inherited = others.iter().map(|(learnt, _)| learnt.share).max();
        let begin = || (HeadroomModel::begin(self.share), Vec::new());
        let (learnt, reporters) = self.ways.entry(way).or_insert_with(begin);
        let known = reporters.iter().position(|one| one.owner == *owner);
        let place = known.unwrap_or_else(|| {
            reporters.push(Reporter::of(owner));
            reporters.len() - 1
        });
        let new = known.is_none().then_some(place);
        learnt.inherit(inherited.unwrap_or_default(), &missed, reporters, new);
        learnt.take(lesson, doubts, reporters, place);
    }

    /// What a key is taught of a way to train, and what others alone ask for.
    fn taught(&self, way: &str, key: &str) -> (Share, Share) {
        let told = self.ways.iter().map(|(name, (learnt, reporters))| {
            let by = |one: &Reporter| (one.owner.clone(), (one.missed, one.asks));
            let by = reporters.iter().map(by).collect();
            let learnt = learnt.clone();
            (*name, Told { learnt, by })
        });
        let told: BTreeMap<&str, Told> = told.collect();
        let mut ways = told.values();
        let Some(mut all) = ways.next().cloned() else {
            return (FLOOR, Share(0));
        };
        ways.for_each(|way| all.also(way));
        let (share, alone) = taught(told.get(way), &all, key, false);
        (share.max(FLOOR), alone)
    }

    /// What an answer for a way to train with these doubts leaves free.
    fn of_answers(&self, way: &str, key: usize, doubts: &Doubts) -> Share {
        let halved = self.ways.get(way).map(|(learnt, _)| learnt.halved.clone());
        let (share, _) = self.taught(way, &self.keys[key]);
        share.max(halved.unwrap_or_default().kept(doubts))
    }

    fn of(&self, key: usize) -> Share {
        self.taught("", &self.keys[key]).0
    }

    /// What the keys but this one ask for, each alone.
    fn unconfirmed(&self, way: &str, key: usize) -> Share {
        self.taught(way, &self.keys[key]).1
    }

    /// The one way to train.
    fn learnt(&self) -> &HeadroomModel {
        &self.ways[""].0
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
    assert_eq!((runs.learnt().outcomes, runs.learnt().misses), (21, 1));
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
fn misses_of_a_key_count_fully_for_its_own_requests_and_for_others_once_two_agree() {
    let mut runs = RunsOfKeys::begin(3);
    for free in [5_000, 10_000, 20_000, 40_000, 80_000, 160_000] {
        runs.by(0, Sample::NeedsMoreThan(Share(free)));
    }

    assert_eq!((runs.of(0), runs.of(1)), (CEILING, FLOOR));
    assert_eq!(runs.unconfirmed("", 1), CEILING);
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
    let mut runs = RunsOfKeys::begin(2).also(&["k0/a", "k1/a", "k2/a", "k3/a"]);
    for key in 2..6 {
        runs.by(key, Sample::Needs(Share(150_000)));
    }
    assert_eq!(runs.learnt().share, FLOOR);
    for _ in 0..100 {
        for key in 2..6 {
            runs.by(key, Sample::Needs(Share(0)));
        }
    }
    assert_eq!(runs.learnt().agreed, AGREEING_OF_A_KEY);
    // Another key has seen it without the agent.
    runs.by(0, Sample::Needs(Share(32_000)));
    assert_eq!(runs.learnt().share, Share(36_000));
}

#[test]
fn one_key_is_one_witness_whoever_answers_it() {
    let mut runs = RunsOfKeys::begin(2).also(&["k0/a", "k0/b", "k1/a"]);
    for key in [0, 2, 3] {
        runs.by(key, Sample::NeedsMoreThan(Share(160_000)));
    }
    assert_eq!(runs.learnt().share, FLOOR);
    for _ in 0..100 {
        for key in [0, 2, 3] {
            runs.by(key, Sample::Needs(Share(0)));
        }
    }
    assert_eq!(runs.learnt().agreed, AGREEING_OF_A_KEY);
    assert!(!runs.learnt().has_sunk);
    // Another key about another agent's answer.
    runs.by(0, Sample::Needs(Share(32_000)));
    runs.by(4, Sample::Needs(Share(16_000)));
    assert_eq!(runs.learnt().share, Share(18_500));
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
    runs.about("", &doubtful, 0, Sample::Needs(Share(80_000)));
    assert_eq!((runs.of(1), runs.unconfirmed("", 1)), (FLOOR, Share(0)));
    assert_eq!(runs.learnt().misses, 0);

    for turn in 0..20 {
        let lesson = Sample::Needs(Share(if turn == 0 { 3_000 } else { 0 }));
        runs.about("", &plain, turn % 3, lesson);
    }
    let kept = |runs: &RunsOfKeys| [&plain, &doubtful].map(|it| runs.of_answers("", 3, it).0);
    assert_eq!(kept(&runs), [7_500, 115_000]);
    // One that needs more than half of it keeps it whole.
    for (needs, left) in [([4_000, 0, 0], 7_500), ([0, 0, 0], 5_000)] {
        for turn in 0..20 {
            runs.about("", &plain, turn % 3, Sample::Needs(Share(needs[turn % 3])));
        }
        assert_eq!(kept(&runs), [left, 115_000], "{:?}", runs.learnt());
    }
    // Those of one key do not do either.
    for _ in 0..100 {
        runs.about("", &doubtful, 3, Sample::Needs(Share(0)));
    }
    assert_eq!(kept(&runs), [5_000, 115_000]);
    // The first twenty have one that needed nearly all.
    for turn in 0..40 {
        runs.about("", &doubts(90_000), turn % 3, Sample::Needs(Share(0)));
    }
    assert_eq!(kept(&runs), [5_000, 57_500]);
}

#[test]
fn trainings_take_back_what_misses_taught_of_their_way_to_train_alone() {
    let doubts = doubts(100_000);
    let mut runs = RunsOfKeys::open(FLOOR);
    runs.about("bf16", &doubts, 0, Sample::NeedsMoreThan(Share(115_000)));
    let shares = |runs: &RunsOfKeys| ["fp32", "bf16", "fp64"].map(|way| runs.taught(way, "").0);
    assert_eq!(shares(&runs), [CEILING; 3]);

    (0..19).for_each(|_| runs.about("fp32", &doubts, 0, Sample::Needs(Share(0))));
    assert_eq!(shares(&runs), [CEILING; 3]);
    runs.about("fp32", &doubts, 0, Sample::Needs(Share(0)));

    let half = Share(u32::midpoint(CEILING.0, FLOOR.0));
    assert_eq!(shares(&runs), [half, CEILING, CEILING]);
    (0..200).for_each(|_| runs.about("fp32", &doubts, 0, Sample::Needs(Share(0))));
    assert_eq!(shares(&runs), [FLOOR, CEILING, CEILING]);
    assert_eq!(runs.of_answers("bf16", 0, &doubts), CEILING);
    assert_eq!(runs.ways["bf16"].0.halved.kept(&doubts), doubts.total());
    (0..200).for_each(|_| runs.about("bf16", &doubts, 0, Sample::Needs(Share(0))));
    assert_eq!(shares(&runs), [FLOOR; 3]);
}

#[test]
fn a_key_keeps_what_its_misses_taught_it_until_it_agrees_itself() {
    let mut runs = RunsOfKeys::begin(5);
    let none = Doubts::default();
    runs.about("bf16", &none, 0, Sample::Needs(Share(80_000)));
    for turn in 0..200 {
        runs.about("fp32", &none, 1 + turn % 3, Sample::Needs(Share(0)));
    }
    let of = |runs: &RunsOfKeys, key: &str| runs.taught("fp32", key);
    // One way to train has sunk for others, and what one key asks of another one says nothing of it.
    assert_eq!(of(&runs, "k4"), (FLOOR, Share(0)));
    assert_eq!(of(&runs, "k0").0, Share(90_000));
    runs.about("fp32", &none, 0, Sample::Needs(Share(50_000)));
    assert_eq!(of(&runs, "k0").0, Share(90_000));
    assert_eq!(of(&runs, "k4"), (FLOOR, Share(0)));
    // What it copied confirms nobody's miss.
    runs.about("fp32", &none, 1, Sample::NeedsMoreThan(Share(100_000)));
    assert_eq!(of(&runs, "k4").0, FLOOR);
    for turn in 0..200 {
        let need = if turn % 4 == 0 { 50_000 } else { 0 };
        runs.about("fp32", &none, turn % 4, Sample::Needs(Share(need)));
    }
    assert!(
        (Share(56_250)..Share(60_000)).contains(&of(&runs, "k0").0),
        "{:?}",
        of(&runs, "k0")
    );
}

#[test]
fn needs_that_doubts_cover_raise_nothing() {
    let doubts = doubts(100_000);
    let mut runs = RunsOfKeys::begin(4);
    for turn in 0..200 {
        runs.about("bf16", &doubts, turn % 3, Sample::Needs(Share(80_000)));
    }
    for key in ["k0", "k3"] {
        assert_eq!(runs.taught("bf16", key), (FLOOR, Share(0)));
        assert_eq!(runs.taught("fp32", key), (FLOOR, Share(0)));
    }
    assert_eq!(runs.of_answers("bf16", 0, &doubts), doubts.total());
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
    assert!(runs.of(3) < Share(36_000), "{:?}", runs.learnt());
}

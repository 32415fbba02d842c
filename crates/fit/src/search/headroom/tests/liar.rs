//! What any mixture of true and false reports can do.

use proptest::prelude::*;

use super::*;

fn any_lesson() -> impl Strategy<Value = Sample> {
    prop_oneof![
        (0..=1_000_000u32).prop_map(|need| Sample::Needs(Share(need))),
        (0..30_000u32).prop_map(|need| Sample::Needs(Share(need))),
        Just(Sample::Needs(Share(0))),
        (0..=200_000u32).prop_map(|free| Sample::NeedsMoreThan(Share(free))),
    ]
}

/// A model whose weights take so much of the limit, and each sample so much, both in millionths.
#[derive(Debug, Clone, Copy)]
struct Memory {
    weights: u32,
    sample: u32,
}

impl Memory {
    fn batch(self, headroom: Share) -> u64 {
        (1_000_000u32.saturating_sub(headroom.0 + self.weights) / self.sample).into()
    }

    /// What is recommended, and what it leaves free.
    fn recommended(self, headroom: Share, unconfirmed: Share) -> (u64, Share) {
        let least = least_for_unconfirmed(self.batch(headroom));
        let batch = self.batch(headroom.max(unconfirmed)).max(least);
        let samples = u32::try_from(batch).unwrap() * self.sample;
        (batch, Share(1_000_000 - self.weights - samples))
    }
}

fn any_memory() -> impl Strategy<Value = Memory> {
    let parts = (0..800_000u32, 1..40_000u32);
    parts.prop_map(|(weights, sample)| Memory { weights, sample })
}

proptest! {
    /// Ten keys train a model on a card that needs a little more than is predicted, in two precisions within two limits, one with more doubts;
    /// one of them tells whatever it likes, as often as it likes, of answers of the service and of agents. Nor does anybody ever run out of
    /// memory by less than what answers are doubted by, which they keep free.
    #[test]
    fn a_liar_costs_others_no_training_and_a_twentieth_of_a_batch_at_most(
        need in prop_oneof![Just(0), 0..60_000u32],
        more in prop_oneof![Just(0), 0..90_000u32],
        workspaces in 0..=100_000u32,
        memory in [any_memory(), any_memory()],
        second in 0..60usize,
        rounds in prop::collection::vec(
            (0..9usize, 0..2usize, prop::collection::vec((any_lesson(), 0..3usize), 0..12)), 1..120),
    ) {
        let asked_of = [("fp32", 0), ("bf16", workspaces), ("bf16", 200_000)]
            .map(|(way, workspaces)| (way, doubts(workspaces)));
        let needs = [need, need + more];
        let mut without = RunsOfKeys::begin(10);
        let mut with = RunsOfKeys::begin(10).also(&["k9/a", "k9/b", "k9/c"]);
        let (mut died, mut reported) = ([0, 0], Share(0));
        for (turn, (key, asked, lies)) in rounds.into_iter().enumerate() {
            let asked = if turn < second { 0 } else { asked };
            for (turn, (lie, about)) in lies.into_iter().enumerate() {
                let (way, doubts) = &asked_of[about];
                with.about(way, doubts, 9 + turn % 4, lie);
            }
            // What keys that do not lie have asked for is no lie, even where it takes the liar's word to be believed.
            let reporters = with.ways.values().flat_map(|(_, reporters)| reporters);
            let honest = reporters.filter(|one| !one.owner.starts_with("k9"));
            reported = honest.map(|one| one.missed).max().max(Some(reported)).unwrap_or_default();
            for (other, about) in (0..18).map(|it| (it / 2, it % 2)) {
                let (memory, (way, doubts)) = (memory[about], &asked_of[about]);
                let (batch, _) = memory.recommended(with.of_answers(way, other, doubts), with.unconfirmed(way, other));
                let asked = memory.batch(without.of_answers(way, other, doubts).max(reported).max(doubts.total()));
                prop_assert!(batch * 20 >= asked * 19, "{batch} instead of {asked}");
            }
            let (memory, (way, doubts), need) = (memory[asked], &asked_of[asked], needs[asked]);
            // Of a way to train that two have not told of, nobody knows that it needs more than the others.
            let told = with.ways.get(way).into_iter().flat_map(|(_, reporters)| reporters);
            let is_known = told.filter(|one| !one.owner.starts_with("k9")).count() > 1;
            for (runs, died) in [&mut with, &mut without].into_iter().zip(&mut died) {
                let (_, left) = memory.recommended(runs.of_answers(way, key, doubts), runs.unconfirmed(way, key));
                let lesson = if left.0 < need {
                    prop_assert!(need > doubts.total().0, "{left:?} left, {need} needed");
                    *died += u32::from(is_known);
                    Sample::NeedsMoreThan(left)
                } else {
                    Sample::Needs(Share(need))
                };
                runs.about(way, doubts, key, lesson);
            }
            prop_assert!(died[0] <= died[1], "{died:?}");
        }
    }

    /// Whatever is told, headroom stays between floor and ceiling, never sinks but after twenty that agree, and covers what
    /// was last needed.
    #[test]
    fn headroom_stays_within_its_bounds(
        begin in 0..=1_000_000u32,
        lessons in prop::collection::vec(any_lesson(), 0..200),
    ) {
        let mut runs = RunsOfKeys::open(Share(begin));
        let mut since = 0;
        for lesson in lessons {
            let before = runs.of(0);
            let share = runs.by(0, lesson);
            since += 1;
            prop_assert!((FLOOR..=CEILING).contains(&share));
            if share < before {
                prop_assert!(since >= AGREEING);
                since = 0;
            }
            if let Sample::Needs(need) = lesson {
                prop_assert!(share >= need.min(CEILING));
            }
            if runs.learnt().agreed == 0 {
                since = 0;
            }
        }
    }
}

//! Searches that are told from outside, whatever they are told.

use std::collections::BTreeMap;

use batchfit::search::ask_tell::{
    AskTell, MOST_CRASHES, Observation, ObservationStatus, Outcome, Predicted, Prediction,
    SearchRequest,
};
use batchfit::search::{MAX_BATCH, Plan, PredictedBatches};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Fits),
        1 => Just(Outcome::FitsWithRetries),
        3 => Just(Outcome::OutOfMemory),
        1 => Just(Outcome::Crashed),
    ]
}

fn observation(largest: u64) -> impl Strategy<Value = Observation> {
    let bytes = prop_oneof![
        Just(None),
        (1..1_u64 << 34).prop_map(Some),
        (1..=1_u64 << 60).prop_map(Some)
    ];
    (1..=largest, outcome(), bytes).prop_map(|(batch, outcome, peak_reserved_bytes)| Observation {
        peak_reserved_bytes,
        ..Observation::new(batch, outcome)
    })
}

fn terms() -> impl Strategy<Value = SearchRequest> {
    let some = |most: u64| prop_oneof![Just(None), (1..=most).prop_map(Some)];
    // Less than 64 MiB is refused.
    let limit = prop_oneof![Just(None), (64_u64 << 20..=1 << 36).prop_map(Some)];
    (limit, some(5000), 1..5_u64, 1..200_u64, some(2000)).prop_map(
        |(memory_limit, target_batch, world_size, start_batch, max_batch)| {
            let start_batch = max_batch.map_or(start_batch, |most: u64| start_batch.min(most));
            let document = json!({
                "memory_limit": memory_limit,
                "target_batch": target_batch.map(|target: u64| target.max(world_size)),
                "world_size": world_size,
                "start_batch": start_batch,
                "max_batch": max_batch,
            });
            SearchRequest::parse(&document).unwrap()
        },
    )
}

/// What holds of everything that a search says.
fn check(
    conversation: &AskTell,
    predicted: Option<&Prediction>,
) -> Result<Option<u64>, TestCaseError> {
    let said = conversation.says(predicted);
    let terms = conversation.terms();
    if let Some(next) = said.next_batch {
        prop_assert!((1..=terms.ceiling()).contains(&next));
        let was_told = conversation
            .observations()
            .iter()
            .any(|told| told.batch == next);
        prop_assert!(!was_told, "{next} again");
    }
    let best = &said.recommendation;
    let of = |batch: u64| {
        conversation
            .observations()
            .iter()
            .filter(move |told| told.batch == batch)
    };
    if best.micro_batch > 0 {
        // It was seen to fit, and nothing else was seen of it but that it crashed.
        prop_assert!(of(best.micro_batch).any(|told| told.outcome == Outcome::Fits));
        let harmless =
            |told: &Observation| matches!(told.outcome, Outcome::Fits | Outcome::Crashed);
        prop_assert!(of(best.micro_batch).all(harmless));
        prop_assert!(best.micro_batch <= best.max_batch_without_retries);
        prop_assert!(best.max_batch_without_retries <= best.max_batch);
        prop_assert!(best.max_batch <= terms.ceiling());
        prop_assert_eq!(
            best.global_batch,
            best.micro_batch * best.accumulation_steps * terms.world_size
        );
        if let Some(target) = terms.target_batch {
            prop_assert_eq!(best.global_batch + best.shortfall, target);
        }
        if let (Some(limit), Some(peak)) = (best.limit_bytes, best.peak_reserved_bytes) {
            prop_assert!(peak <= limit);
        }
    } else {
        prop_assert_eq!((best.accumulation_steps, best.global_batch), (0, 0));
    }
    Ok(said.next_batch)
}

proptest! {
    /// Whatever is told, in whatever order: what it says holds, and telling it again changes nothing.
    #[test]
    fn anything_may_be_told(
        terms in terms(),
        avoid_out_of_memory: bool,
        told in vec(prop_oneof![observation(40), observation(MAX_BATCH)], 0..30),
        maxima in prop_oneof![Just(None), (0..3000_u64, 0..300_u64, prop_oneof![Just(None), (1..300_u64).prop_map(Some)]).prop_map(Some)],
    ) {
        let predicted = maxima.map(|(smooth, more, record_next)| Prediction::Several(Box::new(Predicted {
            maxima: PredictedBatches { max_batch: smooth + more, max_batch_steady: smooth, max_batch_without_retries: smooth },
            plan: (smooth > 0).then_some(Plan { micro_batch: smooth, accumulation_steps: 1, global_batch: smooth, shortfall: 0 }),
            record_next,
            limit: 1 << 60,
            ..Predicted::default()
        })));
        let mut conversation = AskTell::new(SearchRequest { avoid_out_of_memory, ..terms });
        for observation in &told {
            conversation.tell(observation.clone());
            check(&conversation, predicted.as_ref())?;
        }
        let said = conversation.says(predicted.as_ref());
        for observation in &told {
            prop_assert_eq!(conversation.tell(observation.clone()), ObservationStatus::Again);
        }
        prop_assert_eq!(conversation.says(predicted.as_ref()), said);
    }

    /// Whoever runs what is proposed comes to an end, whatever the runs come to.
    #[test]
    fn every_search_ends(
        terms in terms(),
        avoid_out_of_memory: bool,
        outcomes in vec((outcome(), prop_oneof![Just(None), (1..1_u64 << 37).prop_map(Some)]), 400),
    ) {
        let mut conversation = AskTell::new(SearchRequest { avoid_out_of_memory, ..terms });
        let mut outcomes = outcomes.into_iter();
        while let Some(batch) = check(&conversation, None)? {
            let Some((outcome, peak_reserved_bytes)) = outcomes.next() else {
                return Err(TestCaseError::fail("no end"));
            };
            let observation = Observation { peak_reserved_bytes, ..Observation::new(batch, outcome) };
            prop_assert_eq!(conversation.tell(observation), ObservationStatus::New);
        }
    }

    /// Memory that is affine in the batch, in segments of any size: nothing runs out of memory that need not, and all is
    /// used but for a segment and a sample.
    #[test]
    fn affine_memory_is_found_from_below(
        base in 0..8_u64 << 30,
        each in 1000..1_u64 << 30,
        limit in 4_u64 << 30..80 << 30,
        segment in prop_oneof![Just(512_u64), Just(2 << 20), Just(20 << 20)],
        start in 1..9_u64,
    ) {
        let bytes = |batch: u64| (base + each * batch).next_multiple_of(segment);
        let document = json!({"memory_limit": limit, "start_batch": start});
        let mut conversation = AskTell::new(SearchRequest::parse(&document).unwrap());
        let mut refused = BTreeMap::new();
        while let Some(batch) = conversation.says(None).next_batch {
            let mut observation = Observation::new(batch, Outcome::Fits);
            observation.peak_reserved_bytes = Some(bytes(batch));
            if bytes(batch) > limit {
                observation = Observation::new(batch, Outcome::OutOfMemory);
                refused.insert(batch, bytes(batch));
            }
            conversation.tell(observation);
        }
        let found = conversation.says(None).recommendation;
        let largest = found.micro_batch;
        if bytes(2 * start) <= limit {
            // Two runs tell the line, but for the rounding of segments: the batches that end in the same segment look alike,
            // and are halved by each run that is refused.
            let alike = (segment / each).checked_ilog2().map_or(0, |halvings| halvings as usize + 1);
            prop_assert!(refused.len() <= 2 + alike, "{:?}", conversation.observations());
            let is_near = largest == MAX_BATCH || bytes(largest) + each + 2 * segment > limit;
            prop_assert!(is_near, "{largest}: {:?}", conversation.observations());
        }
        let tried: Vec<u64> = conversation.observations().iter().map(|it| it.batch).collect();
        prop_assert!(tried.len() <= 40, "{}: {tried:?} {refused:?}", tried.len());
    }

    /// Without bytes the edge is exact, and few runs are spent.
    #[test]
    fn thresholds_are_exact(largest in 0..100_000_u64, start in 1..5000_u64) {
        let mut conversation = AskTell::new(SearchRequest::parse(&json!({"start_batch": start})).unwrap());
        while let Some(batch) = conversation.says(None).next_batch {
            let outcome = if batch <= largest { Outcome::Fits } else { Outcome::OutOfMemory };
            conversation.tell(Observation::new(batch, outcome));
        }
        prop_assert_eq!(conversation.says(None).recommendation.micro_batch, largest);
        prop_assert!(conversation.observations().len() <= 40);
    }

    /// A program that crashes at some batches, never at three in a row, comes to what fits.
    #[test]
    fn crashes_are_gone_around(largest in 2..500_u64, crash in 1..500_u64) {
        let mut conversation = AskTell::new(SearchRequest::default());
        while let Some(batch) = conversation.says(None).next_batch {
            let outcome = match batch {
                batch if batch == crash => Outcome::Crashed,
                batch if batch <= largest => Outcome::Fits,
                _ => Outcome::OutOfMemory,
            };
            conversation.tell(Observation::new(batch, outcome));
        }
        let said = conversation.says(None);
        let expected = if crash == largest { largest - 1 } else { largest };
        prop_assert!(!said.has_crashed && MOST_CRASHES == 3);
        prop_assert_eq!(said.recommendation.micro_batch, expected);
    }
}

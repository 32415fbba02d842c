use serde_json::json;

use super::*;
use crate::search::PredictedBatches;

const MIB: u64 = 1 << 20;

/// A program whose runs end in a way that follows from the batch.
type Program<'a> = &'a dyn Fn(u64) -> Observation;

/// Runs what is proposed until the end, and gives all batches that ran.
fn follow(conversation: &mut AskTell, program: Program<'_>) -> (Vec<u64>, Proposal) {
    let mut ran = Vec::new();
    loop {
        let said = conversation.says(None);
        let Some(batch) = said.next_batch else {
            return (ran, said);
        };
        assert!(ran.len() < 100, "no end: {ran:?}");
        assert!((1..=conversation.terms.ceiling()).contains(&batch));
        assert_eq!(
            conversation.tell(program(batch)),
            ObservationStatus::New,
            "{batch} again"
        );
        ran.push(batch);
    }
}

fn fits_up_to(largest: u64) -> impl Fn(u64) -> Observation {
    move |batch| {
        let fits = batch <= largest;
        Observation::new(
            batch,
            if fits {
                Outcome::Fits
            } else {
                Outcome::OutOfMemory
            },
        )
    }
}

/// Reserves `base + each * batch`, rounded up to segments of 2 MiB, and runs out of memory above the limit.
fn affine(base: u64, each: u64, limit: u64) -> impl Fn(u64) -> Observation {
    move |batch| {
        let bytes = (base + each * batch).next_multiple_of(2 * MIB);
        if bytes > limit {
            return Observation::new(batch, Outcome::OutOfMemory);
        }
        Observation {
            peak_reserved_bytes: Some(bytes),
            ..Observation::new(batch, Outcome::Fits)
        }
    }
}

fn terms(document: &serde_json::Value) -> SearchRequest {
    SearchRequest::parse(document).unwrap()
}

fn search(document: &serde_json::Value) -> AskTell {
    AskTell::new(terms(document))
}

#[test]
fn without_bytes_batches_double_and_then_the_middle_is_taken() {
    let mut conversation = search(&json!({}));

    let (ran, said) = follow(&mut conversation, &fits_up_to(21));

    assert_eq!(ran, [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]);
    let found = said.recommendation;
    assert_eq!((found.micro_batch, found.max_batch), (21, 21));
    assert_eq!(found.limited_by, "batch 22 ran out of memory");
    assert!(found.notes[0].contains("not known"), "{:?}", found.notes);
}

#[test]
fn a_start_that_does_not_fit_leads_down() {
    for (largest, expected) in [(0, 0), (1, 1), (5, 5), (99, 99)] {
        let mut conversation = search(&json!({"start_batch": 64}));
        let (_, said) = follow(&mut conversation, &fits_up_to(largest));
        assert_eq!(said.recommendation.micro_batch, expected);
    }
}

#[test]
fn with_bytes_and_a_limit_nothing_runs_out_of_memory() {
    for (base, each, gib) in [
        (0, 3 * MIB, 8),
        (900 * MIB, 7 * MIB, 24),
        (5000 * MIB, 100 * MIB, 12),
        (100 * MIB, 300_000, 16),
        (2000 * MIB, 2048 * MIB, 24),
        (3 * MIB, 1000, 80),
    ] {
        let limit = gib << 30;
        let program = affine(base, each, limit);
        let mut conversation = search(&json!({"memory_limit": limit}));

        let (ran, said) = follow(&mut conversation, &program);

        let largest = said.recommendation.micro_batch;
        let is_refused = |observation: &Observation| observation.outcome != Outcome::Fits;
        let failed = conversation
            .observations()
            .iter()
            .filter(|told| is_refused(told))
            .count();
        assert_eq!(failed, 0, "{ran:?}");
        assert!(ran.is_sorted(), "{ran:?}");
        // Rounding to segments decides about the last samples: no more than a segment is left.
        let reserved = said.recommendation.peak_reserved_bytes.unwrap();
        assert!(
            largest == MAX_BATCH || limit - reserved < each + 4 * MIB,
            "{ran:?}"
        );
        assert!(ran.len() <= 14, "{ran:?}");
    }
}

#[test]
fn the_limit_is_one_of_another_card_where_runs_exceed_it() {
    // This card has memory for all of it.
    let program = affine(1000 * MIB, 10 * MIB, u64::MAX);
    let mut conversation = search(&json!({"memory_limit": 8000 * MIB, "start_batch": 1024}));

    let (ran, said) = follow(&mut conversation, &program);

    assert_eq!(said.recommendation.micro_batch, 700, "{ran:?}");
    assert!(ran.len() < 9, "{ran:?}");
}

#[test]
fn a_line_that_leads_astray_is_left_for_bisection() {
    // Far more than the line from 40 on.
    let program = |batch: u64| {
        let told = affine(0, 10 * MIB, 1000 * MIB)(batch);
        if batch > 40 {
            Observation::new(batch, Outcome::OutOfMemory)
        } else {
            told
        }
    };
    let mut conversation = search(&json!({"memory_limit": 1000 * MIB}));

    let (ran, said) = follow(&mut conversation, &program);

    assert_eq!(said.recommendation.micro_batch, 40, "{ran:?}");
}

#[test]
fn one_peak_allows_what_is_in_proportion() {
    let mut conversation = search(&json!({"memory_limit": 1000 * MIB, "start_batch": 10}));
    conversation.tell(Observation {
        peak_reserved_bytes: Some(800 * MIB),
        ..Observation::new(10, Outcome::Fits)
    });

    assert_eq!(conversation.says(None).next_batch, Some(12));
}

#[test]
fn retries_are_not_recommended_and_not_looked_for() {
    let program = |batch: u64| match batch {
        0..=10 => Observation::new(batch, Outcome::Fits),
        11..=14 => Observation::new(batch, Outcome::FitsWithRetries),
        _ => Observation::new(batch, Outcome::OutOfMemory),
    };
    let mut conversation = search(&json!({}));

    let (_, said) = follow(&mut conversation, &program);

    let found = said.recommendation;
    assert_eq!(
        (found.micro_batch, found.max_batch_without_retries),
        (10, 10)
    );
    assert!((11..=14).contains(&found.max_batch));
    assert_eq!(
        found.limited_by,
        "batch 11 ran, but the allocator had to free its cache and retry"
    );
}

#[test]
fn a_hole_below_what_fits_is_told_and_not_recommended() {
    let with_a_hole = |batch: u64| {
        let outcome = if batch == 8 || batch > 21 {
            Outcome::OutOfMemory
        } else {
            Outcome::Fits
        };
        Observation::new(batch, outcome)
    };
    let mut conversation = search(&json!({"target_batch": 32}));
    for batch in [16, 8] {
        conversation.tell(with_a_hole(batch));
    }

    let (_, said) = follow(&mut conversation, &with_a_hole);
    let found = said.recommendation;
    assert_eq!((found.micro_batch, found.accumulation_steps), (16, 2));
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.starts_with("batch 8 does not fit though 21 does"))
    );

    // Where the hole is the plan's own batch, the next plan is taken, and run first.
    let mut conversation = search(&json!({"target_batch": 8, "max_batch": 7}));
    let without_four = |batch: u64| {
        let outcome = if batch == 4 {
            Outcome::OutOfMemory
        } else {
            Outcome::Fits
        };
        Observation::new(batch, outcome)
    };
    conversation.tell(without_four(7));
    conversation.tell(without_four(4));
    let (ran, said) = follow(&mut conversation, &without_four);
    assert_eq!(ran, [2]);
    assert_eq!(
        (
            said.recommendation.micro_batch,
            said.recommendation.accumulation_steps
        ),
        (2, 4)
    );
}

#[test]
fn contradictions_are_kept_and_count_as_not_fitting() {
    let mut conversation = search(&json!({}));
    follow(&mut conversation, &fits_up_to(4));

    conversation.tell(Observation::new(4, Outcome::OutOfMemory));

    let said = conversation.says(None);
    // Open again: three may fit.
    assert_eq!(said.next_batch, Some(3));
    let (_, said) = follow(&mut conversation, &fits_up_to(3));
    assert_eq!(said.recommendation.micro_batch, 3);
    let noise = "batch 4 was told to fit and to run out of memory";
    assert!(
        said.recommendation
            .notes
            .iter()
            .any(|note| note.starts_with(noise))
    );
}

#[test]
fn the_same_again_changes_nothing() {
    let mut conversation = search(&json!({}));
    let observation = Observation::new(1, Outcome::Crashed);

    assert_eq!(
        conversation.tell(observation.clone()),
        ObservationStatus::New
    );
    let said = conversation.says(None);
    assert_eq!(
        conversation.tell(observation.clone()),
        ObservationStatus::Again
    );
    assert_eq!(conversation.tell(observation), ObservationStatus::Again);
    assert_eq!(conversation.says(None), said);
    assert_eq!(conversation.observations().len(), 1);
}

#[test]
fn one_batch_that_crashes_is_gone_around() {
    // Batch normalization of one sample.
    let program = |batch: u64| match batch {
        1 => Observation::new(1, Outcome::Crashed),
        _ => fits_up_to(21)(batch),
    };
    let mut conversation = search(&json!({}));

    let (ran, said) = follow(&mut conversation, &program);

    assert_eq!(ran[..3], [1, 2, 4]);
    assert_eq!(said.recommendation.micro_batch, 21);
    assert!(!said.has_crashed);
}

#[test]
fn a_program_of_multiples_finds_its_largest() {
    // Takes multiples of eight alone.
    let program = |batch: u64| {
        if batch.is_multiple_of(8) {
            fits_up_to(100)(batch)
        } else {
            Observation::new(batch, Outcome::Crashed)
        }
    };
    let mut conversation = search(&json!({"start_batch": 8}));

    let (ran, said) = follow(&mut conversation, &program);

    assert_eq!(said.recommendation.micro_batch, 96, "{ran:?}");
}

#[test]
fn three_crashes_in_a_row_end_it_and_news_open_it_again() {
    let crash = |batch: u64| Observation::new(batch, Outcome::Crashed);
    let mut conversation = search(&json!({"start_batch": 4}));
    conversation.tell(Observation::new(4, Outcome::Fits));

    let (ran, said) = follow(&mut conversation, &crash);

    assert_eq!(ran.len(), MOST_CRASHES);
    assert!(said.has_crashed);
    assert_eq!(said.recommendation.micro_batch, 4);
    assert!(
        said.recommendation
            .limited_by
            .starts_with("crashes: 3 runs in a row")
    );
    conversation.tell(Observation::new(5, Outcome::Fits));
    assert!(conversation.says(None).next_batch.is_some());
}

#[test]
fn when_all_that_may_run_crashed_that_is_said() {
    let mut conversation = search(&json!({"max_batch": 2}));

    let (ran, said) = follow(&mut conversation, &|batch| {
        Observation::new(batch, Outcome::Crashed)
    });

    assert_eq!(ran, [1, 2]);
    assert!(said.has_crashed);
    assert_eq!(said.recommendation.micro_batch, 0);
}

#[test]
fn a_target_bounds_the_search_and_makes_the_plan() {
    let mut conversation = search(&json!({"target_batch": 1024, "world_size": 4}));
    let (ran, said) = follow(&mut conversation, &fits_up_to(1000));
    assert!(ran.iter().all(|batch| *batch <= 256), "{ran:?}");
    let found = said.recommendation;
    assert_eq!(
        (
            found.micro_batch,
            found.accumulation_steps,
            found.global_batch
        ),
        (256, 1, 1024)
    );

    // Of what fits, a divisor is taken, and run first.
    let mut conversation = search(&json!({"target_batch": 98}));
    let (ran, said) = follow(&mut conversation, &fits_up_to(50));
    assert_eq!(ran.last(), Some(&49));
    let found = said.recommendation;
    assert_eq!(
        (found.micro_batch, found.accumulation_steps, found.shortfall),
        (49, 2, 0)
    );
    assert_eq!(found.max_batch, 50);
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.contains("accumulation steps"))
    );
}

#[test]
fn the_ceiling_is_said_by_name() {
    for (document, limited_by) in [
        (
            json!({"max_batch": 9}),
            "max_batch: batches above 9 are not tried",
        ),
        (
            json!({"target_batch": 9}),
            "target_batch, of which this is each rank's share: batches above 9 are not tried",
        ),
    ] {
        let (_, said) = follow(&mut search(&document), &fits_up_to(100));
        assert_eq!(said.recommendation.micro_batch, 9);
        assert_eq!(said.recommendation.limited_by, limited_by);
    }
}

#[test]
fn recordings_say_where_to_record_and_what_to_confirm() {
    let maxima = PredictedBatches {
        max_batch: 105,
        max_batch_steady: 100,
        max_batch_without_retries: 100,
    };
    let of = |record_next| {
        Prediction::Several(Box::new(Predicted {
            maxima,
            record_next,
            ..Predicted::default()
        }))
    };
    let (far, near) = (of(Some(40)), of(None));
    let mut conversation = search(&json!({}));
    conversation.tell(Observation::new(1, Outcome::Fits));

    assert_eq!(conversation.says(Some(&far)).next_batch, Some(40));
    conversation.tell(Observation::new(40, Outcome::Fits));
    assert_eq!(conversation.says(Some(&near)).next_batch, Some(100));
    let mut wrong = conversation.clone();

    conversation.tell(Observation::new(100, Outcome::Fits));
    let said = conversation.says(Some(&near));
    assert_eq!(
        (said.next_batch, said.recommendation.micro_batch),
        (None, 100)
    );
    assert!(said.recommendation.limited_by.contains("recordings"));

    wrong.tell(Observation::new(100, Outcome::OutOfMemory));
    assert_eq!(wrong.says(Some(&near)).next_batch, Some(99));
}

#[test]
fn terms_are_refused_with_their_place() {
    for (document, pointer) in [
        (json!([]), ""),
        (json!({"memory_limit": "0.8"}), "/memory_limit"),
        (json!({"memory_limit": 0}), "/memory_limit"),
        (json!({"target_batch": 3, "world_size": 4}), "/target_batch"),
        (json!({"world_size": 0}), "/world_size"),
        (json!({"start_batch": 9, "max_batch": 8}), "/start_batch"),
        (json!({"max_batch": 1.5}), "/max_batch"),
        (json!({"max_batch": u64::MAX}), "/max_batch"),
        (json!({"allocator": "expandable:True"}), "/allocator"),
        (json!({"max_bach": 8}), "/max_bach"),
    ] {
        let refused = SearchRequest::parse(&document).unwrap_err();
        assert_eq!(refused.pointer, pointer, "{refused}");
    }
    let whole = terms(&json!({"memory_limit": "12GiB", "max_batch": 64.0, "start_batch": null}));
    assert_eq!(whole.memory_limit, Some(12 << 30));
    assert_eq!((whole.max_batch, whole.start_batch), (Some(64), 1));
    // What is stored is read again.
    assert_eq!(terms(&serde_json::to_value(&whole).unwrap()), whole);
}

#[test]
fn observations_are_refused_with_their_place() {
    for (document, pointer) in [
        (json!(7), ""),
        (json!({"outcome": "fits"}), ""),
        (json!({"batch": 1}), ""),
        (json!({"batch": 0, "outcome": "fits"}), "/batch"),
        (json!({"batch": -1, "outcome": "fits"}), "/batch"),
        (json!({"batch": 1u64 << 40, "outcome": "fits"}), "/batch"),
        (json!({"batch": 1, "outcome": "oom"}), "/outcome"),
        (json!({"batch": 1, "outcome": 3}), "/outcome"),
        (
            json!({"batch": 1, "outcome": "fits", "peak_reserved_bytes": -5}),
            "/peak_reserved_bytes",
        ),
        (
            json!({"batch": 1, "outcome": "fits", "recorded": "sha256:xyz"}),
            "/recorded",
        ),
        (json!({"batch": 1, "outcome": "fits", "peak": 5}), "/peak"),
    ] {
        let refused = Observation::parse(&document).unwrap_err();
        assert_eq!(refused.pointer, pointer, "{refused}");
    }
    for outcome in Outcome::ALL {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let document = json!({"batch": 4, "outcome": outcome.name(), "peak_reserved_bytes": 5, "recorded": digest});
        let read = Observation::parse(&document).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), document);
        assert_eq!(Outcome::named(outcome.name()), Some(outcome));
    }
}

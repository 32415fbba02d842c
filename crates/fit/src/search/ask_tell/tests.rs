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
        let told = conversation.tell(program(batch));
        assert_eq!(told, ObservationStatus::New, "{batch} again");
        ran.push(batch);
    }
}

/// A batch fits where this is so, or memory runs out.
fn fits_where(fits: impl Fn(u64) -> bool) -> impl Fn(u64) -> Observation {
    move |batch| {
        let outcome = [Outcome::OutOfMemory, Outcome::Fits][usize::from(fits(batch))];
        Observation::new(batch, outcome)
    }
}

fn fits_up_to(largest: u64) -> impl Fn(u64) -> Observation {
    fits_where(move |batch| batch <= largest)
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

fn search(document: &serde_json::Value) -> AskTell {
    AskTell::new(SearchRequest::parse(document).unwrap())
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
fn a_search_finds_the_largest_that_there_is() {
    let crashing = |batch, crashes: bool, largest| {
        let crashed = crashes.then(|| Observation::new(batch, Outcome::Crashed));
        crashed.unwrap_or_else(|| fits_up_to(largest)(batch))
    };
    let start = json!({"start_batch": 64});
    let (all, limit) = (json!({}), json!({"memory_limit": 1000 * MIB}));
    let rows: [(_, Program<'_>, u64); 8] = [
        (&start, &fits_up_to(0), 0),
        (&start, &fits_up_to(1), 1),
        (&start, &fits_up_to(5), 5),
        (&start, &fits_up_to(99), 99),
        // Batch normalization of one sample.
        (&all, &|batch| crashing(batch, batch == 1, 21), 21),
        // A program that takes multiples of eight alone.
        (
            &json!({"start_batch": 8}),
            &|batch| crashing(batch, batch % 8 > 0, 100),
            96,
        ),
        // Far more than the line through the bytes from 40 on.
        (
            &limit,
            &|batch| match batch {
                0..=40 => affine(0, 10 * MIB, 1000 * MIB)(batch),
                _ => fits_up_to(40)(batch),
            },
            40,
        ),
        // A card with memory for all of it, asked about a smaller one.
        (
            &json!({"memory_limit": 8000 * MIB, "start_batch": 1024}),
            &affine(1000 * MIB, 10 * MIB, u64::MAX),
            700,
        ),
    ];
    for (document, program, largest) in rows {
        let (ran, said) = follow(&mut search(document), program);
        assert_eq!(said.recommendation.micro_batch, largest, "{ran:?}");
        assert_eq!(said.has_crashed, largest == 96);
        // The line through the bytes leads there at once.
        assert!(largest != 700 || ran.len() < 9, "{ran:?}");
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
        let is_fit = |told: &Observation| told.outcome == Outcome::Fits;
        assert!(conversation.observations().iter().all(is_fit), "{ran:?}");
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
    assert_eq!(found.micro_batch, 10);
    assert_eq!(found.max_batch_without_retries, 10);
    assert!((11..=14).contains(&found.max_batch));
    assert_eq!(
        found.limited_by,
        "batch 11 ran, but the allocator had to free its cache and retry"
    );
}

#[test]
fn a_hole_below_what_fits_is_told_and_not_recommended() {
    let with_a_hole = fits_where(|batch| batch != 8 && batch <= 21);
    let mut conversation = search(&json!({"target_batch": 32}));
    for batch in [16, 8] {
        conversation.tell(with_a_hole(batch));
    }

    let (_, said) = follow(&mut conversation, &with_a_hole);
    let found = said.recommendation;
    assert_eq!((found.micro_batch, found.accumulation_steps), (16, 2));
    let told = |note: &String| note.starts_with("batch 8 does not fit though 21 does");
    assert!(found.notes.iter().any(told));

    // Where the hole is the plan's own batch, the next plan is taken, and run first.
    let mut conversation = search(&json!({"target_batch": 8, "max_batch": 7}));
    let without_four = fits_where(|batch| batch != 4);
    conversation.tell(without_four(7));
    conversation.tell(without_four(4));
    let (ran, said) = follow(&mut conversation, &without_four);
    assert_eq!(ran, [2]);
    let found = said.recommendation;
    assert_eq!((found.micro_batch, found.accumulation_steps), (2, 4));
}

#[test]
fn crashes_end_it_and_news_open_it_again() {
    let crash = |batch: u64| Observation::new(batch, Outcome::Crashed);
    // Three in a row, or all that there are.
    for (document, fits, ran) in [
        (json!({"start_batch": 4}), 4, vec![8, 16, 12]),
        (json!({"max_batch": 2}), 0, vec![1, 2]),
    ] {
        let mut conversation = search(&document);
        if fits > 0 {
            conversation.tell(Observation::new(fits, Outcome::Fits));
        }

        let (crashed, said) = follow(&mut conversation, &crash);

        assert_eq!(crashed, ran);
        assert!(said.has_crashed);
        assert_eq!(said.recommendation.micro_batch, fits);
        conversation.tell(Observation::new(ran[0], Outcome::Fits));
        assert!(!conversation.says(None).has_crashed);
    }
}

#[test]
fn a_target_bounds_the_search_and_makes_the_plan() {
    let mut conversation = search(&json!({"target_batch": 1024, "world_size": 4}));
    let (ran, said) = follow(&mut conversation, &fits_up_to(1000));
    assert!(ran.iter().all(|batch| *batch <= 256), "{ran:?}");
    let found = said.recommendation;
    assert_eq!((found.micro_batch, found.accumulation_steps), (256, 1));
    assert_eq!(found.global_batch, 1024);

    // Of what fits, a divisor is taken, and run first.
    let mut conversation = search(&json!({"target_batch": 98}));
    let (ran, said) = follow(&mut conversation, &fits_up_to(50));
    assert_eq!(ran.last(), Some(&49));
    let found = said.recommendation;
    assert_eq!((found.micro_batch, found.accumulation_steps), (49, 2));
    assert_eq!((found.shortfall, found.max_batch), (0, 50));
    let notes = found.notes.join("\n");
    assert!(notes.contains("accumulation steps"), "{notes}");
}

#[test]
fn the_ceiling_is_said_by_name() {
    for (document, limited_by) in [
        (json!({"max_batch": 9}), "max_batch"),
        (
            json!({"target_batch": 9}),
            "target_batch, of which this is each rank's share",
        ),
    ] {
        let (_, said) = follow(&mut search(&document), &fits_up_to(100));
        assert_eq!(said.recommendation.micro_batch, 9);
        let said = said.recommendation.limited_by;
        assert_eq!(said, format!("{limited_by}: batches above 9 are not tried"));
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
    assert_eq!(said.next_batch, None);
    assert_eq!(said.recommendation.micro_batch, 100);
    assert!(said.recommendation.limited_by.contains("recordings"));

    wrong.tell(Observation::new(100, Outcome::OutOfMemory));
    assert_eq!(wrong.says(Some(&near)).next_batch, Some(99));
}

#[test]
fn terms_are_refused_with_their_place() {
    for (document, pointer) in [
        (json!([]), ""),
        (json!({"memory_limit": 0}), "/memory_limit"),
        (json!({"target_batch": 3, "world_size": 4}), "/target_batch"),
        (json!({"world_size": 0}), "/world_size"),
        (json!({"start_batch": 9, "max_batch": 8}), "/start_batch"),
        (json!({"max_batch": 1.5}), "/max_batch"),
        (json!({"max_batch": u64::MAX}), "/max_batch"),
        (json!({"allocator": "expandable:True"}), "/allocator"),
    ] {
        let refused = SearchRequest::parse(&document).unwrap_err();
        assert_eq!(refused.pointer, pointer, "{refused}");
    }
    let document = json!({"memory_limit": "12GiB", "max_batch": 64.0, "start_batch": null});
    let whole = SearchRequest::parse(&document).unwrap();
    assert_eq!(whole.memory_limit, Some(12 << 30));
    assert_eq!((whole.max_batch, whole.start_batch), (Some(64), 1));
    // What is stored is read again.
    let stored = serde_json::to_value(&whole).unwrap();
    assert_eq!(SearchRequest::parse(&stored).unwrap(), whole);
}

#[test]
fn observations_are_read_as_they_are_written() {
    for document in [json!(7), json!({"outcome": "fits"}), json!({"batch": 1})] {
        assert_eq!(Observation::parse(&document).unwrap_err().pointer, "");
    }
    let good = json!({"batch": 1, "outcome": "fits"});
    for (member, wrong) in [
        ("batch", json!(0)),
        ("batch", json!(-1)),
        ("outcome", json!(3)),
        ("peak_reserved_bytes", json!(-5)),
        ("recorded", json!("sha256:xyz")),
        ("peak", json!(5)),
    ] {
        let mut document = good.clone();
        document[member] = wrong;
        let refused = Observation::parse(&document).unwrap_err();
        assert_eq!(refused.pointer, format!("/{member}"), "{refused}");
    }
    for outcome in Outcome::ALL {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let document = json!({"batch": 4, "outcome": outcome.name(), "peak_reserved_bytes": 5, "recorded": digest});
        let read = Observation::parse(&document).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), document);
        assert_eq!(Outcome::named(outcome.name()), Some(outcome));
    }
}

//! Ways to train one model.

use super::*;

#[tokio::test]
async fn what_one_key_raised_in_another_way_hides_nothing_of_others() {
    let db = in_memory(1).await;
    for model in ["0123456789abcdef", "fedcba9876543210"] {
        for (owner, way, free) in [
            ("a", "fp32", 20_000),
            ("b", "fp32", 20_000),
            ("liar", "bf16", 100_000),
        ] {
            let new = new_outcome(
                &format!("{model}/{way}/30"),
                Ok(Sample::NeedsMoreThan(Share(free))),
            );
            let owner = owner.to_owned();
            db.add_outcome(&NewOutcome { owner, ..new }).await.unwrap();
        }
    }
    assert_eq!(taught(&db, "c", "third"), Some((0, 40_000)));
}

#[tokio::test]
async fn what_was_learnt_is_of_the_way_to_train_and_its_limit() {
    let db = in_memory(1).await;
    let tell = async |way: &str, lesson: &Result<Sample, RejectReason>, times: usize| {
        for _ in 0..times {
            db.add_outcome(&new_outcome(way, *lesson)).await.unwrap();
        }
    };
    tell("0123456789abcdef/fp32/30", &MISS, 1).await;
    tell("0123456789abcdef/fp32/34", &AGREES, 200).await;
    tell("0123456789abcdef/bf16/30", &AGREES, 1).await;

    let of = |training: &str| {
        let taught = db.calibrations(&card(), "0123456789abcdef", training, ("", false));
        let taught = taught.into_iter().map(|it| (it.limit, it.share.0));
        taught.collect::<Vec<_>>()
    };
    assert_eq!(
        of("fp32"),
        [(Some(30), 36_000), (Some(34), 5_000), (None, 36_000)]
    );
    assert_eq!(of("bf16"), [(Some(30), 36_000), (None, 36_000)]);
    assert_eq!(of("fp64"), [(None, 36_000)]);
    // What is known of the way of answers of earlier versions alone is that of no other.
    tell("0123456789abcdef", &AGREES, 200).await;
    assert_eq!(of(""), [(None, 36_000)]);
    // They are one model of two.
    assert_eq!(calibration(&db, &card(), "b", "", false), None);
    let rows = db.learnt_rows(None, None, 9).await.unwrap();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row.share, row.has_sunk, row.outcomes))
        .collect();
    assert_eq!(rows, [(36_000, true, 402)]);
    tell("0123456789abcdef/fp32/30", &AGREES, 200).await;
    assert_eq!(of("fp64"), [(None, 5_000)]);
}

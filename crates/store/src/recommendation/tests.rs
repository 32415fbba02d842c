//! What no scenario tells: see [`crate::scenarios`].

use super::{StoredHeadroom, StoredRecommendation};
use crate::database::test_database::TestDatabase;
use crate::scenarios::{row, store};
use crate::units::Share;
use batchfit_fit::search::headroom::Doubt;

#[tokio::test]
async fn a_row_comes_out_as_it_was_stored() {
    let db = TestDatabase::new().await;
    db.add_answer("00001", 1, "mine", 1).await;
    let mut row = StoredRecommendation {
        id: "01J".to_owned(),
        model: "a model \u{1f600}\"".to_owned(),
        optimizer: None,
        optimizer_impl: None,
        mode: "inference".to_owned(),
        world_size: 1024,
        micro_batch: 0,
        global_batch: 2,
        max_batch: 3,
        max_batch_without_retries: 4,
        peak_allocated_bytes: 5 << 40,
        peak_reserved_bytes: 6,
        headroom_bytes: -7,
        step_ms: Some(0.2),
        optimizer_step_ms: Some(0.4),
        samples_per_second: Some(0.1),
        speed_from: Some("estimated".to_owned()),
        pareto: Some(false),
        strategy: "fsdp2".to_owned(),
        cudnn: None,
        headroom: Some(StoredHeadroom {
            share: Share(32_727),
            from: "learnt".to_owned(),
            outcomes: 40,
            doubts: [(Doubt::Driver, Share(5_000)), (Doubt::Far, Share(7_500))]
                .into_iter()
                .collect(),
        }),
        ..row(1, "NVIDIA H200", i64::MAX)
    };
    store(&db, &row).await;
    assert_eq!(db.recommendation("01J").await.unwrap().as_ref(), Some(&row));

    (row.id, row.rank) = ("01K".to_owned(), 3);
    row.samples_per_second = None;
    (row.step_ms, row.optimizer_step_ms) = (None, None);
    (row.speed_from, row.pareto) = (None, None);
    store(&db, &row).await;
    assert_eq!(db.recommendation("01K").await.unwrap(), Some(row));
    assert_eq!(db.recommendation("01L").await.unwrap(), None);
}

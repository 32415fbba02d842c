//! What is in memory follows what is in the table.

use super::{
    FilterColumn, NearestQuery, Outdated, RecommendationFilter, StoredHeadroom,
    StoredRecommendation,
};
use crate::database::test_database::TestDatabase;
use crate::model::ENGINE_DIGEST;
use crate::units::Share;
use crate::{Db, Time};
use batchfit_fit::search::headroom::Doubt;

/// A row of a fit of its own, as another process writes it.
async fn insert(db: &Db, number: u32, model: &str, world_size: u32) {
    let name = format!("{number:05}");
    db.add_answer(&name, number, model, world_size).await;
}

async fn store(db: &Db, row: &StoredRecommendation) {
    let mut transaction = db.pool.begin_alone("keep").await.unwrap();
    row.insert(&mut transaction).await.unwrap();
    transaction.commit("keep").await.unwrap();
}

async fn delete(db: &Db, which: &str) {
    let statement = format!("DELETE FROM recommendation WHERE {which}");
    db.run(statement).await.unwrap();
}

/// The numbers in the ids of a page, and of the next page's cursor.
type Page = (Vec<u32>, Option<u32>);

async fn page(
    db: &Db,
    facets: &[(FilterColumn, &str)],
    before: Option<u32>,
    limit: usize,
) -> Option<Page> {
    let filter = RecommendationFilter {
        facets: facets
            .iter()
            .map(|(facet, word)| (*facet, (*word).to_owned()))
            .collect(),
        before: before.map(|number| format!("answer{number:05}")),
        limit,
    };
    let page = db.recommendations(&filter).await.unwrap()?;
    let number = |id: &str| id.trim_start_matches("answer").parse().unwrap();
    let ids = page.items().map(|row| number(&row.id));
    Some((ids.collect(), page.next.as_deref().map(number)))
}

#[tokio::test]
async fn a_row_comes_out_as_it_was_stored() {
    let db = TestDatabase::new().await;
    insert(&db, 1, "mine", 1).await;
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

#[tokio::test]
async fn filters_combine_and_pages_follow_each_other() {
    let db = TestDatabase::new().await;
    for number in 1..=6 {
        let model = ["mine", "yours"][number as usize % 2];
        insert(&db, number, model, 1 + number / 4).await;
    }
    let mine = [(FilterColumn::Model, "mine")];

    let first = page(&db, &mine, None, 2).await.unwrap();
    let second = page(&db, &mine, first.1, 2).await.unwrap();

    assert_eq!(first, (vec![6, 4], Some(4)));
    assert_eq!(second, (vec![2], None));
    let both = [
        (FilterColumn::Model, "mine"),
        (FilterColumn::WorldSize, "1"),
    ];
    assert_eq!(page(&db, &both, None, 9).await.unwrap().0, [2]);
    let limit = [(FilterColumn::LimitBytes, "1000")];
    assert_eq!(
        page(&db, &limit, None, 6).await.unwrap(),
        (vec![6, 5, 4, 3, 2, 1], None)
    );
    // A text of another column is not one of this.
    for (facet, text) in [
        (FilterColumn::Gpu, "none such"),
        (FilterColumn::Gpu, "mine"),
        (FilterColumn::WorldSize, "1000"),
    ] {
        assert_eq!(
            page(&db, &[(facet, text)], None, 9).await.unwrap(),
            (vec![], None)
        );
    }
    assert_eq!(page(&db, &[], Some(7), 9).await, None);
}

#[tokio::test]
async fn rows_that_are_new_or_gone_are_noticed() {
    let db = TestDatabase::new().await;
    for number in 2..=5 {
        insert(&db, number, "mine", 1).await;
    }
    assert_eq!(page(&db, &[], None, 1).await.unwrap().0, [5]);

    // An id of earlier, stored later: another process made it.
    insert(&db, 1, "mine", 1).await;
    assert_eq!(page(&db, &[], Some(3), 9).await.unwrap().0, [2, 1]);

    delete(&db, "id IN ('answer00005', 'answer00003')").await;
    assert_eq!(
        page(&db, &[], None, 2).await.unwrap(),
        (vec![4, 2], Some(2))
    );
    assert_eq!(db.recommendation("answer00005").await.unwrap(), None);
    assert_eq!(page(&db, &[], Some(3), 9).await, None);

    // Numbers of rows that are gone are not given again.
    delete(&db, "true").await;
    assert_eq!(page(&db, &[], None, 2).await.unwrap(), (vec![], None));
    insert(&db, 9, "mine", 1).await;
    assert_eq!(page(&db, &[], None, 2).await.unwrap().0, [9]);
}

#[tokio::test]
async fn all_rows_are_read_again_where_many_are_gone() {
    let db = TestDatabase::new().await;
    let many = 12_000;
    insert(&db, 1, "mine", 1).await;
    let copies = format!(
        "WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < {many})
         INSERT INTO recommendation (id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode,
             limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
             peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second,
             batchfit_version, created_at, step_ms, optimizer_step_ms, speed_from, pareto, objective)
         SELECT 'answer' || substr(CAST(100000 + n AS TEXT), 2), fit_id, n, model, model_kind, device, gpu, precision, optimizer, optimizer_impl,
                checkpointing, mode, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch,
                max_batch_without_retries, peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence,
                samples_per_second, batchfit_version, created_at, step_ms, optimizer_step_ms, speed_from, pareto, objective
           FROM recommendation, n"
    );
    db.run(copies).await.unwrap();
    assert_eq!(page(&db, &[], None, 1).await.unwrap().0, [many]);
    assert_eq!(db.shelf.rows(), 12_000);

    // A few are dropped, and so many that their numbers are not kept are noticed.
    delete(&db, "id > 'answer11990'").await;
    assert_eq!(page(&db, &[], None, 1).await.unwrap().0, [11_990]);
    delete(&db, "id > 'answer00100'").await;
    assert_eq!(page(&db, &[], None, 1).await.unwrap().0, [100]);
    assert_eq!(db.shelf.rows(), 100);
}

/// A row of a model on a card, made now.
fn row(number: u32, gpu: &str, limit_bytes: i64) -> StoredRecommendation {
    StoredRecommendation {
        id: format!("answer{number:05}"),
        fit_id: "fit00001".to_owned(),
        rank: i64::from(number) + 1,
        model: "mine".to_owned(),
        model_kind: "preset".to_owned(),
        device: "cuda:0".to_owned(),
        gpu: gpu.to_owned(),
        precision: "fp32".to_owned(),
        optimizer: Some("adamw".to_owned()),
        optimizer_impl: Some("foreach".to_owned()),
        checkpointing: "none".to_owned(),
        mode: "train".to_owned(),
        limit_bytes,
        world_size: 1,
        micro_batch: 8,
        accumulation_steps: 1,
        global_batch: 8,
        max_batch: 10,
        max_batch_without_retries: 9,
        peak_allocated_bytes: 700,
        peak_reserved_bytes: 800,
        headroom_bytes: 200,
        limited_by: String::new(),
        evidence: "probed".to_owned(),
        step_ms: None,
        optimizer_step_ms: None,
        samples_per_second: None,
        speed_from: None,
        pareto: None,
        objective: "largest_batch".to_owned(),
        batchfit_version: "0.1.0".to_owned(),
        strategy: "none".to_owned(),
        driver: Some("570".to_owned()),
        cudnn: Some("9.19".to_owned()),
        pytorch: "2.11".to_owned(),
        headroom: Some(StoredHeadroom {
            share: Share(5_000),
            from: "default".to_owned(),
            outcomes: 0,
            doubts: [(Doubt::Driver, Share(5_000))].into_iter().collect(),
        }),
        created_at: Time(i64::from(number)),
        stale: None,
        model_digest: "00ff".to_owned(),
        training: "0123456789abcdef".to_owned(),
        rules: ENGINE_DIGEST.to_owned(),
    }
}

#[tokio::test]
async fn answers_of_another_driver_pytorch_or_batchfit_are_stale() {
    let db = TestDatabase::new().await;
    insert(&db, 1, "mine", 1).await;
    let old = row(2, "NVIDIA H200", 1000);
    store(&db, &old).await;
    let because = async |id: &str| {
        let found = db.recommendation(id).await.unwrap().unwrap();
        let because = found.stale.map(|stale| stale.because).unwrap_or_default();
        let what = because.into_iter().map(|Outdated { what, .. }| what);
        what.collect::<Vec<_>>()
    };
    assert_eq!(because("answer00002").await, [""; 0]);
    assert_eq!(because("answer00001").await, ["batchfit"]);

    let new = StoredRecommendation {
        driver: Some("580".to_owned()),
        ..row(3, "NVIDIA H200", 1000)
    };
    store(&db, &new).await;
    store(&db, &row(4, "NVIDIA L4", 1000)).await;
    let other = StoredRecommendation {
        pytorch: "2.12.0+cu130".to_owned(),
        rules: "other".to_owned(),
        ..row(5, "NVIDIA L4", 1000)
    };
    store(&db, &other).await;
    db.read_recommendations().await.unwrap();

    assert_eq!(because("answer00002").await, ["driver"]);
    assert_eq!(because("answer00003").await, [""; 0]);
    assert_eq!(because("answer00004").await, [""; 0]);
    assert_eq!(because("answer00005").await, ["batchfit", "pytorch"]);

    // Machines of agents may each have another driver.
    let of_agents = [
        ("h200", "570"),
        ("h200", "590"),
        ("node1/cuda:0", "570"),
        ("node2/cuda:0", "590"),
    ];
    for (number, (device, driver)) in (6..).zip(of_agents) {
        let row = StoredRecommendation {
            device: device.to_owned(),
            driver: Some(driver.to_owned()),
            ..row(number, "NVIDIA H200", 1000)
        };
        store(&db, &row).await;
    }
    db.read_recommendations().await.unwrap();
    for answer in 3..10 {
        let found = because(&format!("answer{answer:05}")).await;
        assert!(!found.contains(&"driver"), "{answer}: {found:?}");
    }
}

#[tokio::test]
async fn the_nearest_answer_differs_in_what_matters_least() {
    let db = TestDatabase::new().await;
    insert(&db, 1, "mine", 1).await;
    for (number, gpu, limit) in [
        (2, "NVIDIA H200", 1000),
        (3, "NVIDIA H200", 3000),
        (4, "NVIDIA L4", 2000),
        (5, "NVIDIA H200", 3000),
    ] {
        store(&db, &row(number, gpu, limit)).await;
    }
    let asked = NearestQuery {
        model_digest: "00ff".to_owned(),
        device: Some("cuda:0".to_owned()),
        gpu: Some("NVIDIA H200".to_owned()),
        precision: "fp32".to_owned(),
        optimizer: "adamw".to_owned(),
        checkpointing: "none".to_owned(),
        objective: "largest_batch".to_owned(),
        world_size: 1,
        limit_bytes: Some(2900),
    };
    let found = async |asked: NearestQuery| {
        let nearest = db.nearest(&asked).await.unwrap()?;
        let number: u32 = nearest.recommendation.id[6..].parse().unwrap();
        Some((number, nearest.differs))
    };

    // The newest of those with the nearest limit.
    assert_eq!(found(asked.clone()).await, Some((5, vec!["limit_bytes"])));
    let on_l4 = NearestQuery {
        gpu: Some("NVIDIA L4".to_owned()),
        limit_bytes: Some(2000),
        ..asked.clone()
    };
    assert_eq!(found(on_l4).await, Some((4, vec![])));
    let elsewhere = NearestQuery {
        gpu: Some("NVIDIA A100".to_owned()),
        device: Some("sim:a100-40g".to_owned()),
        limit_bytes: None,
        ..asked.clone()
    };
    assert_eq!(found(elsewhere).await, Some((5, vec!["gpu", "device"])));
    let in_half = NearestQuery {
        precision: "bf16".to_owned(),
        limit_bytes: Some(1000),
        ..asked.clone()
    };
    assert_eq!(found(in_half).await, Some((2, vec!["precision"])));
    let other_model = NearestQuery {
        model_digest: "ff00".to_owned(),
        ..asked
    };
    assert_eq!(found(other_model).await, None);
}

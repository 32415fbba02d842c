//! What is in memory follows what is in the table, whoever writes it.

use sqlx::Executor as _;

use super::{Facet, RecommendationFilter};
use crate::store::Db;

/// A row of a fit of its own, as another process writes it.
async fn insert(db: &Db, number: u32, model: &str, world_size: u32) {
    let rows = format!(
        "INSERT OR IGNORE INTO request (digest, text) VALUES ('asked', '{{}}');
         INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request_digest, result, created_at,
             finished_at)
         VALUES ('fit{number:05}', 'f{number}', '0.1.0', 'done', '{model}', 'sim:h200', 'simulated', 'asked', '{{}}', 1, 2);
         INSERT INTO recommendation VALUES ('answer{number:05}', 'fit{number:05}', 1, '{model}', 'preset', 'sim:h200',
             'NVIDIA H200', 'fp32', 'adamw', 'foreach', 'none', 'train', 1000, 8, 2, 16, 10, 9, 700, 800, 200,
             'activations', 'simulated', NULL, '0.1.0', {number}, {world_size}, '{{\"n\":{number}}}', NULL);"
    );
    db.pool.execute(sqlx::AssertSqlSafe(rows)).await.unwrap();
}

async fn page(
    db: &Db,
    facets: &[(Facet, &str)],
    before: Option<&str>,
    limit: usize,
) -> Option<(String, Option<String>)> {
    let filter = RecommendationFilter {
        facets: facets
            .iter()
            .map(|(facet, word)| (*facet, (*word).to_owned()))
            .collect(),
        before: before.map(str::to_owned),
        limit,
    };
    let page = db.recommendations(&filter).await.unwrap()?;
    Some((page.items, page.next))
}

async fn in_memory() -> Db {
    Db::open("sqlite::memory:").await.unwrap()
}

#[tokio::test]
async fn filters_combine_and_pages_follow_each_other() {
    let db = in_memory().await;
    for number in 1..=6 {
        let model = ["mine", "yours"][number as usize % 2];
        insert(&db, number, model, 1 + number / 4).await;
    }
    let mine = [(Facet::Model, "mine")];

    let first = page(&db, &mine, None, 2).await.unwrap();
    let second = page(&db, &mine, first.1.as_deref(), 2).await.unwrap();

    assert_eq!(
        first,
        (
            r#"{"n":6},{"n":4}"#.to_owned(),
            Some("answer00004".to_owned())
        )
    );
    assert_eq!(second, (r#"{"n":2}"#.to_owned(), None));
    let both = [(Facet::Model, "mine"), (Facet::WorldSize, "1")];
    assert_eq!(page(&db, &both, None, 9).await.unwrap().0, r#"{"n":2}"#);
    assert_eq!(
        page(&db, &[(Facet::Gpu, "none such")], None, 9)
            .await
            .unwrap()
            .0,
        ""
    );
    assert_eq!(page(&db, &[], Some("no such row"), 9).await, None);
}

#[tokio::test]
async fn rows_that_are_new_or_gone_are_noticed() {
    let db = in_memory().await;
    for number in 2..=5 {
        insert(&db, number, "mine", 1).await;
    }
    assert_eq!(page(&db, &[], None, 1).await.unwrap().0, r#"{"n":5}"#);

    // An id of earlier, stored later: another process made it.
    insert(&db, 1, "mine", 1).await;
    assert_eq!(
        page(&db, &[], Some("answer00003"), 9).await.unwrap().0,
        r#"{"n":2},{"n":1}"#
    );

    db.pool
        .execute("DELETE FROM recommendation WHERE id IN ('answer00005', 'answer00003')")
        .await
        .unwrap();
    let left = page(&db, &[], None, 2).await.unwrap();
    assert_eq!(
        left,
        (
            r#"{"n":4},{"n":2}"#.to_owned(),
            Some("answer00002".to_owned())
        )
    );
    assert_eq!(db.recommendation("answer00005").await.unwrap(), None);

    // The numbers of rows that are gone are not given again.
    db.pool.execute("DELETE FROM recommendation").await.unwrap();
    assert_eq!(page(&db, &[], None, 2).await.unwrap().0, "");
    insert(&db, 9, "mine", 1).await;
    assert_eq!(page(&db, &[], None, 2).await.unwrap().0, r#"{"n":9}"#);
}

#[tokio::test]
async fn all_rows_are_read_anew_when_many_are_gone() {
    let db = in_memory().await;
    for number in 1..=1500 {
        insert(&db, number, "mine", 1).await;
    }
    page(&db, &[], None, 1).await.unwrap();

    db.pool
        .execute("DELETE FROM recommendation WHERE id > 'answer00100'")
        .await
        .unwrap();
    assert_eq!(page(&db, &[], None, 1).await.unwrap().0, r#"{"n":100}"#);

    assert_eq!(db.shelf.rows(), 100);
}

#[tokio::test]
async fn those_who_ask_at_the_same_time_each_get_their_own() {
    let db = in_memory().await;
    for number in 1..=40 {
        insert(&db, number, "mine", 1).await;
    }
    let numbers: Vec<u32> = (1..=80).map(|number| 1 + number % 50).collect();
    let mut asked = tokio::task::JoinSet::new();
    for number in numbers {
        let db = db.clone();
        let asking = asked.spawn(async move {
            let id = format!("answer{number:05}");
            (number, db.recommendation(&id).await.unwrap())
        });
        // One who goes away takes nobody else's answer along.
        if number == 7 {
            asking.abort();
        }
    }

    let mut answers = 0;
    while let Some(asked) = asked.join_next().await {
        let Ok((number, document)) = asked else {
            continue;
        };
        let wanted = (number <= 40).then(|| format!("{{\"n\":{number}}}"));
        assert_eq!(document.as_deref(), wanted.as_deref());
        answers += 1;
    }
    assert_eq!(answers, 78);
}

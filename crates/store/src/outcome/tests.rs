//! What no scenario tells: see [`crate::scenarios`].

use crate::Db;
use crate::database::test_database::DatabaseLocation;
use crate::scenarios::answer;

#[tokio::test]
async fn what_another_process_learnt_is_noticed() {
    let place = DatabaseLocation::new();
    let here = Db::open(&place.database).await.unwrap();
    let there = Db::open(&place.database).await.unwrap();
    for (db, asked, expected) in [
        (&here, "answers 1", "ok"),
        (&there, "outcome a needs=32000", "15000 to 36000"),
        (&here, "outcome b needs=0", "15000 to 15000"),
        (&here, "taught a", "36000 of 1 of itself"),
        (&there, "read-learnt", "ok"),
        (&there, "taught b", "5000 of 1 of itself"),
    ] {
        assert_eq!(
            answer(db, asked).await.as_deref(),
            Some(expected),
            "{asked}"
        );
    }
}

use super::*;
use crate::database::test_database::TestDatabase;

const BOUNDS: SearchBounds = SearchBounds {
    searches: 3,
    of_a_key: 1,
    observations: 2,
    contested_ms: 100,
};

async fn add(db: &Db, id: &str, now: i64) -> bool {
    add_of(db, id, "", now).await
}

async fn add_of(db: &Db, id: &str, owner: &str, now: i64) -> bool {
    let terms = JsonText::from("{}");
    let idle = Time(now - 1000);
    let new = (&terms, owner);
    let added = db.add_search(id, new, BOUNDS, idle, Time(now)).await;
    added.unwrap()
}

#[tokio::test]
async fn each_key_has_a_part_of_the_room() {
    let db = TestDatabase::new().await;
    assert!(add_of(&db, "a", "greedy", 0).await);
    assert!(!add_of(&db, "b", "greedy", 0).await);
    assert!(add_of(&db, "c", "modest", 0).await);
    assert_eq!(db.search("c").await.unwrap().unwrap().owner, "modest");
    // Of what has ended, that of the key that has most goes first.
    assert!(db.cancel_search("c", Time(1)).await.unwrap());
    for (id, next) in [("a", "e"), ("e", "f"), ("f", "g")] {
        assert!(db.cancel_search(id, Time(2)).await.unwrap());
        assert!(add_of(&db, next, "greedy", 2).await);
    }
    assert!(db.search("c").await.unwrap().is_some());
}

#[tokio::test]
async fn searches_that_begin_together_make_room_for_each_other() {
    let db = TestDatabase::new().await;
    for id in ["a", "b", "c"] {
        assert!(add(&db, id, 0).await);
        assert!(db.cancel_search(id, Time(1)).await.unwrap());
    }

    let begun = tokio::join!(add(&db, "d", 2), add(&db, "e", 2), add(&db, "f", 2));

    assert_eq!(begun, (true, true, true));
}

async fn tell(db: &Db, id: &str, batch: u64) -> ObservationStatus {
    let told = Observation::new(batch, Outcome::Fits);
    db.add_observation(id, &told, BOUNDS, Time(1))
        .await
        .unwrap()
}

#[tokio::test]
async fn observations_are_kept_once_in_order_and_bounded() {
    let db = TestDatabase::new().await;
    assert!(add(&db, "a", 0).await);

    assert_eq!(tell(&db, "a", 2).await, ObservationStatus::New);
    assert_eq!(tell(&db, "a", 1).await, ObservationStatus::New);
    assert_eq!(tell(&db, "a", 2).await, ObservationStatus::Again);
    assert_eq!(tell(&db, "a", 4).await, ObservationStatus::Full);
    assert_eq!(tell(&db, "b", 4).await, ObservationStatus::Unknown);

    let read = db.search("a").await.unwrap().unwrap();
    let batches: Vec<u64> = read.observations.iter().map(|told| told.batch).collect();
    assert_eq!(batches, [2, 1]);
    assert!(db.cancel_search("a", Time(2)).await.unwrap());
    assert!(!db.cancel_search("a", Time(2)).await.unwrap());
    assert_eq!(tell(&db, "a", 2).await, ObservationStatus::Cancelled);
}

#[tokio::test]
async fn a_state_is_noted_for_what_was_told_alone() {
    let db = TestDatabase::new().await;
    add(&db, "a", 0).await;
    tell(&db, "a", 1).await;
    let state = async || db.search("a").await.unwrap().unwrap().state;

    db.note_search("a", SearchState::Done, None, 0)
        .await
        .unwrap();
    assert_eq!(state().await, SearchState::Active);
    db.note_search("a", SearchState::Done, None, 1)
        .await
        .unwrap();
    assert_eq!(state().await, SearchState::Done);
    assert!(!db.cancel_search("a", Time(2)).await.unwrap());
    db.note_search("a", SearchState::Active, None, 1)
        .await
        .unwrap();
    db.cancel_search("a", Time(2)).await.unwrap();
    db.note_search("a", SearchState::Done, None, 1)
        .await
        .unwrap();
    assert_eq!(state().await, SearchState::Cancelled);
}

#[tokio::test]
async fn there_is_room_as_long_as_old_ones_can_go() {
    let db = TestDatabase::new().await;
    for (id, now) in [("a", 0), ("b", 1), ("c", 2)] {
        assert!(add(&db, id, now).await);
    }
    assert!(!add(&db, "d", 3).await, "all three are under way");

    db.note_search("b", SearchState::Done, None, 0)
        .await
        .unwrap();
    assert!(add(&db, "e", 4).await);
    assert_eq!(db.search("b").await.unwrap(), None);

    // Nothing has ended, but `a` has had no observation for long.
    assert!(add(&db, "g", 105).await);
    assert_eq!(db.search("a").await.unwrap(), None);

    // `c` has been idle since 0, and what it was told goes with it.
    tell(&db, "c", 1).await;
    assert!(add(&db, "f", 2000).await);
    assert_eq!(db.search("c").await.unwrap(), None);
    assert!(db.search("f").await.unwrap().is_some());
}

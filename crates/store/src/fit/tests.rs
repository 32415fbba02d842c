//! What no scenario tells: see [`crate::scenarios`].

use super::*;
use crate::UploadSpace;
use crate::database::test_database::{TestDatabase, new_fit};
use crate::engine::Pool;

async fn queue(fits: &[(&str, &str)]) -> TestDatabase {
    let db = TestDatabase::new().await;
    let space = UploadSpace {
        bytes: u64::MAX,
        oldest: Time(0),
    };
    for (id, lane) in fits {
        let fit = new_fit(id, lane);
        let added = db.enqueue(&fit, Reuse::Finished, 100, space).await;
        assert_eq!(added.unwrap(), Enqueued::Added);
    }
    db
}

/// Claims for a holder, until 100 milliseconds later.
async fn claim_for(db: &Db, holder: &LeaseOwner, now: i64) -> Option<Claimed> {
    let until = Time(now + 100);
    let lease = Lease { holder, until };
    let claimed = db.claim(ParallelSimulated(2), lease, Time(now)).await;
    claimed.unwrap()
}

fn me() -> LeaseOwner {
    LeaseOwner::server("me")
}

#[tokio::test]
async fn a_start_takes_the_fits_of_servers_and_leaves_those_of_others() {
    let lanes = ["1", "2", "3"].map(|id| (id, "cuda:0"));
    let db = queue(&lanes).await;
    let [silent, alive] = ["silent", "alive"].map(|name| LeaseOwner::other(name.to_owned()));
    claim_for(&db, &LeaseOwner::server("earlier"), 1_000).await;
    claim_for(&db, &silent, 0).await;
    claim_for(&db, &alive, 1_000).await;

    db.recover().await.unwrap();

    let held = async || {
        let running = db.running_fits(None).await.unwrap();
        let held = running.into_iter().map(|held| held.holder.unwrap());
        held.collect::<Vec<_>>()
    };
    if db.is_shared() {
        assert_eq!(held().await.len(), 3, "servers watch each other");
    } else {
        assert_eq!(held().await, [silent, alive.clone()]);
    }
    db.expired(Time(1_001), &me(), 50).await.unwrap();
    assert_eq!(held().await.last(), Some(&alive));
}

#[tokio::test]
async fn cards_are_those_of_one_agent_that_stays() {
    let db = TestDatabase::new().await;
    let card = |kind: &str, simulated| serde_json::json!({"kind": kind, "simulated": simulated});
    let two = |kind: &str| [card(kind, false), card(kind, false)];
    for (name, duty, seen, cards) in [
        ("busy", "ready", 9, [card("h200", true), card("l4", true)]),
        (
            "both",
            "cordoned",
            9,
            [card("h200", false), card("h200", true)],
        ),
        ("ends", "draining", 9, two("l4")),
        ("lost", "ready", 4, two("l4")),
        ("more", "ready", 9, two("a100-40g")),
    ] {
        let cards = Value::from(cards.to_vec());
        let row = format!(
            "INSERT INTO agent (id, name, instance, owner, version, duty, cards, registered_at, seen_at, rules)
             VALUES ('{name}', '{name}', '', '', '', '{duty}', '{cards}', 1, {seen}, '')"
        );
        db.run(row).await.unwrap();
    }
    for (kind, is_simulated, most) in [
        ("h200", false, 1),
        ("h200", true, 1),
        ("l4", true, 1),
        ("l4", false, 0),
        ("a100-40g", false, 2),
        ("a100-80g", false, 0),
    ] {
        for count in 1..=3 {
            let has = db.has_cards(kind, is_simulated, count, Time(5)).await;
            assert_eq!(has.unwrap(), count <= most, "{count} {kind}");
        }
    }
    assert_eq!(db.agent_named("lost").await.unwrap().unwrap().id, "lost");
    assert_eq!(db.agent_named("h200").await.unwrap(), None);
}

/// SQLite says so when it commits, after the row.
#[tokio::test]
async fn what_a_full_disk_does_not_take_is_an_error() {
    let db = queue(&[("1", "simulated"), ("2", "simulated")]).await;
    let claimed = claim_for(&db, &me(), 1).await.unwrap();
    let Pool::Sqlite(_, writing) = &db.pool else {
        return;
    };
    let mut connection = writing.acquire().await.unwrap();
    let mut handle = connection.lock_handle().await.unwrap();
    handle.set_commit_hook(|| false);
    drop(handle);
    drop(connection);

    let renewed = db.renew(claimed.attempt(), Time(90), 5).await;
    assert!(renewed.is_err(), "{renewed:?}");
    let (holder, until) = (&me(), Time(90));
    let next = db.claim(ParallelSimulated(2), Lease { holder, until }, Time(2));
    let next = next.await;
    assert!(next.is_err(), "{next:?}");
}

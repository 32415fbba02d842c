//! Fits that agents are to answer, or have answered.

use super::*;
use crate::engine::Pool;

#[tokio::test]
async fn keys_take_turns_at_agents() {
    let db = TestDatabase::new().await;
    for (id, owner) in [("1", "a"), ("2", "a"), ("3", "b"), ("4", "b"), ("5", "a")] {
        ask(&db, id, owner, "agent h200 x1").await;
    }
    let order = async || {
        let waiting = db
            .waiting_for_agents(",agent h200 x1,", Time(2))
            .await
            .unwrap();
        let ids = waiting.into_iter().map(|(id, _lane)| id);
        ids.collect::<String>()
    };
    assert_eq!(order().await, "13245");
    claim_one(&db, &LeaseOwner::server("agent"), 1, 9).await;
    assert_eq!(order().await, "3425");
}

#[tokio::test]
async fn an_answer_is_that_of_a_fit_which_waits_for_its_next_attempt() {
    let db = queue(&[("1", "agent h200 x1"), ("2", "agent h200 x1")]).await;
    db.run("UPDATE fit SET fingerprint = 'same', owner = id")
        .await
        .unwrap();
    let holder = &LeaseOwner::server("agent");
    let claimed = claim_one(&db, holder, 1, 9).await;
    let answer = async |id: &str, number| {
        let attempt = attempt(id, number, holder);
        db.finish(attempt, &Value::Null, &[], Time(3))
            .await
            .unwrap()
    };
    assert!(answer("1", 1).await);

    let twins = db.waiting_twins(&claimed).await.unwrap();
    let twins: Vec<_> = twins
        .iter()
        .map(|twin| (&*twin.id, twin.attempts))
        .collect();
    assert_eq!(twins, [("2", 0)]);
    assert!(!answer("2", 2).await, "its next attempt is the first");
    assert!(answer("2", 1).await);
    let state = db.attempt_state(attempt("2", 1, holder)).await.unwrap();
    assert_eq!(state, Some(FitState::Done));
    assert!(!answer("2", 2).await, "it has ended");
}

#[tokio::test]
async fn an_agents_answer_is_given_where_agents_answer_until_its_key_is_revoked() {
    let db = queue(&[("1", "agent sim h200 x1")]).await;
    add_key(&db, "node", Scope::Agent).await;
    db.run("UPDATE fit SET state = 'done', result = '{}', finished_at = 2, answered_by = 'node'")
        .await
        .unwrap();
    let asked = async |lane: &str| {
        let again = NewFit {
            fingerprint: "1".to_owned(),
            ..new("2", lane)
        };
        let asked = add(&db, &again).await;
        db.run("DELETE FROM fit WHERE id = '2'").await.unwrap();
        asked
    };
    let known = Enqueued::Same("1".to_owned());
    let found = async || db.finished_fit("1", true).await.unwrap();

    assert_eq!(asked("agent sim h200 x1").await, known);
    assert_eq!(asked("simulated").await, Enqueued::Added);
    assert_eq!(found().await.as_deref(), Some("1"));
    assert!(db.revoke_key("node", Time(9)).await.unwrap());
    assert_eq!(asked("agent sim h200 x1").await, Enqueued::Added);
    assert_eq!(found().await, None);
}

#[tokio::test]
async fn what_an_agent_did_not_work_does_not_count_once() {
    let db = TestDatabase::new().await;
    add(&db, &limited(2)).await;
    let holder = crate::agent::holder("a");
    let claim = async |now| {
        claim_one(&db, &holder, now, now + 500)
            .await
            .timeout_seconds
    };
    assert_eq!(claim(1_000).await, Some(2));
    // No server is there for eight seconds, and no agent when there is one again.
    db.spare_agents(Time(9_500)).await.unwrap();
    let held = db.running_fits(Some(&holder)).await.unwrap();
    assert!(!held[0].is_overdue(500, Time(9_501)));
    assert_eq!(db.expired(Time(9_501), &me(), 500).await.unwrap(), 1);

    assert_eq!(claim(10_000).await, Some(2));
    // The lease of each later one does, and nothing after it.
    assert_eq!(db.expired(Time(19_000), &me(), 500).await.unwrap(), 1);
    assert_eq!(claim(20_000).await, Some(2));
    assert_eq!(db.expired(Time(29_000), &me(), 500).await.unwrap(), 1);
    assert_eq!(claim(30_000).await, Some(1));
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

#[tokio::test]
async fn a_clock_that_is_set_is_no_work() {
    const HOUR: i64 = 3_600_000;
    let db = TestDatabase::new().await;
    add(&db, &limited(60)).await;
    let holder = crate::agent::holder("a");
    let mut left = Vec::new();
    // Each attempt has a lease of ten seconds, and is given back, or lost, an hour early or late.
    for (number, set_by) in [-HOUR, HOUR, HOUR, -HOUR].into_iter().enumerate() {
        let claimed = claim_one(&db, &holder, 2 * HOUR, 2 * HOUR + 10_000).await;
        left.push(claimed.timeout_seconds.unwrap());
        let now = Time(2 * HOUR + set_by);
        if number == 2 {
            assert_eq!(db.expired(now, &me(), 10_000).await.unwrap(), 1);
        } else if number == 3 {
            // A server that starts then.
            db.spare_agents(Time(now.0 + 10_000)).await.unwrap();
            db.give_back(&holder, None, Time(now.0 + 5_000))
                .await
                .unwrap();
        } else {
            db.give_back(&holder, None, now).await.unwrap();
        }
    }
    let claimed = claim_one(&db, &holder, 0, 10_000).await;
    left.push(claimed.timeout_seconds.unwrap());
    assert_eq!(left, [60, 60, 50, 40, 35]);

    db.clock_was_set(HOUR).await.unwrap();
    let moved = &db.running_fits(Some(&holder)).await.unwrap()[0];
    assert_eq!(moved.lease_until, Some(Time(HOUR + 10_000)));
    assert_eq!(moved.time_limit, Some(Time(HOUR + 35_000)));
}

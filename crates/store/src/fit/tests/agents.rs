//! Fits that agents are to answer, or have answered.

use super::*;
use crate::engine::Connection;

#[tokio::test]
async fn keys_take_turns_at_agents() {
    let db = TestDatabase::new().await;
    for (id, owner) in [("1", "a"), ("2", "a"), ("3", "b"), ("4", "b"), ("5", "a")] {
        let fit = NewFit {
            owner: owner.to_owned(),
            ..new(id, "agent h200 x1")
        };
        db.enqueue(&fit, Reuse::Finished, 100, SPACE).await.unwrap();
    }
    let order = async || {
        let waiting = db
            .waiting_for_agents(",agent h200 x1,", Time(2))
            .await
            .unwrap();
        let ids = waiting.into_iter().map(|waiting| waiting.id);
        ids.collect::<String>()
    };
    assert_eq!(order().await, "13245");
    let (holder, until) = (&LeaseOwner::server("agent"), Time(9));
    let claimed = db.claim_one("1", Lease { holder, until }, 0, Time(1)).await;
    assert!(claimed.unwrap().is_some());
    assert_eq!(order().await, "3425");
}

#[tokio::test]
async fn an_answer_is_that_of_a_fit_which_waits_for_its_next_attempt() {
    let db = queue(&[("1", "agent h200 x1"), ("2", "agent h200 x1")]).await;
    db.run("UPDATE fit SET fingerprint = 'same', owner = id")
        .await
        .unwrap();
    let (holder, until) = (&LeaseOwner::server("agent"), Time(9));
    let claimed = db.claim_one("1", Lease { holder, until }, 0, Time(1)).await;
    let claimed = claimed.unwrap().unwrap();
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
    let issued = ApiKey::issue("k".to_owned(), "node", Scope::Agent, &[7; 32], Time(1));
    assert!(db.add_key(&issued.unwrap().0).await.unwrap());
    db.run("UPDATE fit SET state = 'done', result = '{}', finished_at = 2, answered_by = 'k'")
        .await
        .unwrap();
    let asked = async |lane: &str| {
        let again = NewFit {
            fingerprint: "1".to_owned(),
            ..new("2", lane)
        };
        let asked = db.enqueue(&again, Reuse::Finished, 10, SPACE).await;
        db.run("DELETE FROM fit WHERE id = '2'").await.unwrap();
        asked.unwrap()
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
    let fit = NewFit {
        terms: FitTerms {
            timeout_seconds: Some(2),
            ..FitTerms::default()
        },
        ..new("1", "agent h200 x1")
    };
    db.enqueue(&fit, Reuse::Finished, 1, SPACE).await.unwrap();
    let holder = crate::agent::holder("a");
    let claim = async |now| {
        let lease = Lease {
            holder: &holder,
            until: Time(now + 500),
        };
        let claimed = db.claim_one("1", lease, 0, Time(now)).await.unwrap();
        claimed.unwrap().timeout_seconds
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
    for (name, duty, seen, cards) in [
        ("busy", "ready", 9, [card("h200", true), card("l4", true)]),
        (
            "cordoned",
            "cordoned",
            9,
            [card("h200", false), card("h200", true)],
        ),
        (
            "ends",
            "draining",
            9,
            [card("l4", false), card("l4", false)],
        ),
        ("lost", "ready", 4, [card("l4", false), card("l4", false)]),
        (
            "more",
            "ready",
            9,
            [card("a100-40g", false), card("a100-40g", false)],
        ),
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
    let Connection::Sqlite(mut connection) = db.pool.acquire().await.unwrap() else {
        return;
    };
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

//! Fits that agents are to answer, or have answered.

use super::*;

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
        let ids = waiting.into_iter().map(|(id, _)| id);
        ids.collect::<String>()
    };
    assert_eq!(order().await, "13245");
    let (holder, until) = (&LeaseOwner::server("agent"), Time(9));
    let claimed = db.claim_one("1", Lease { holder, until }, 0, Time(1)).await;
    assert!(claimed.unwrap().is_some());
    assert_eq!(order().await, "3425");
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

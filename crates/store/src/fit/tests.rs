mod agents;

use super::*;
use crate::database::test_database::TestDatabase;
use crate::model::Priority;
use crate::{ApiKey, Scope, UploadSpace};

/// As much as there is.
const SPACE: UploadSpace = UploadSpace {
    bytes: u64::MAX,
    oldest: Time(0),
};

fn new(id: &str, lane: &str) -> NewFit {
    NewFit {
        id: id.to_owned(),
        fingerprint: id.to_owned(),
        batchfit_version: "0.1.0".to_owned(),
        model: "resnet18".to_owned(),
        model_digest: String::new(),
        taught: JsonText::from("[]"),
        device: lane.to_owned(),
        lane: lane.to_owned(),
        request: JsonText::from("null"),
        uploads: Vec::new(),
        aside: None,
        terms: FitTerms::default(),
        key: None,
        owner: String::new(),
        created_at: Time(0),
    }
}

/// A fit of this time limit, in seconds, for an agent.
fn limited(seconds: u32) -> NewFit {
    NewFit {
        terms: FitTerms {
            timeout_seconds: Some(seconds),
            ..FitTerms::default()
        },
        ..new("1", "agent h200 x1")
    }
}

async fn add(db: &Db, fit: &NewFit) -> Enqueued {
    let added = db.enqueue(fit, Reuse::Finished, 100, SPACE).await;
    added.unwrap()
}

/// Asks for a fit under a key.
async fn ask(db: &Db, id: &str, owner: &str, lane: &str) -> Enqueued {
    let owner = owner.to_owned();
    let fit = NewFit {
        owner,
        ..new(id, lane)
    };
    add(db, &fit).await
}

async fn queue(fits: &[(&str, &str)]) -> TestDatabase {
    let db = TestDatabase::new().await;
    for (id, lane) in fits {
        assert_eq!(ask(&db, id, "", lane).await, Enqueued::Added);
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

/// Claims the first fit for an agent that has none.
async fn claim_one(db: &Db, holder: &LeaseOwner, now: i64, until: i64) -> Claimed {
    let until = Time(until);
    let claimed = db
        .claim_one("1", Lease { holder, until }, 0, Time(now))
        .await;
    claimed.unwrap().unwrap()
}

/// A key, by the same name as its id.
async fn add_key(db: &Db, name: &str, scope: Scope) {
    let issued = ApiKey::issue(name.to_owned(), name, scope, &[7; 32], Time(1));
    assert!(db.add_key(&issued.unwrap().0).await.unwrap());
}

fn me() -> LeaseOwner {
    LeaseOwner::server("me")
}

async fn claim(db: &Db) -> Option<String> {
    claim_for(db, &me(), 1).await.map(|fit| fit.id)
}

/// An attempt of this server.
fn attempt<'a>(id: &'a str, number: i64, holder: &'a LeaseOwner) -> Attempt<'a> {
    Attempt { id, number, holder }
}

#[tokio::test]
async fn a_gpu_gets_one_fit_at_a_time_and_simulation_a_few() {
    let lanes = [
        ("1", "cuda:0"),
        ("2", "cuda:0"),
        ("3", "cuda:1"),
        ("4", "simulated"),
        ("5", "simulated"),
        ("6", "simulated"),
    ];
    let db = queue(&lanes).await;

    let mut claimed = Vec::new();
    while let Some(id) = claim(&db).await {
        claimed.push(id);
    }

    assert_eq!(claimed, ["1", "3", "4", "5"]);
}

#[tokio::test]
async fn keys_take_turns() {
    let db = TestDatabase::new().await;
    let here = [("1", "a"), ("2", "a"), ("3", "a"), ("4", "b"), ("5", "b")];
    // What waits for agents is in no other lane's way.
    let at_agents = [("01", "a"), ("02", "a"), ("03", "a")];
    for (id, owner) in at_agents.into_iter().chain(here) {
        let lane = ["cuda:0", "agent h200 x1"][usize::from(id.len() > 1)];
        ask(&db, id, owner, lane).await;
    }
    let mut claimed = Vec::new();
    for now in 1..=5 {
        let fit = claim_for(&db, &me(), now).await.unwrap();
        db.cancel(&fit.id, None, Time(now)).await.unwrap();
        claimed.push(fit.id);
    }
    assert_eq!(claimed, ["1", "4", "2", "5", "3"]);
    let at = async |lanes| db.waiting_for_agents(lanes, Time(6)).await.unwrap().len();
    assert_eq!(
        (at(",agent h200 x1,").await, at(",agent h200 x2,").await),
        (3, 0)
    );
}

/// Two at a time, and four for keys that run nothing: beside those that a key runs already which asks much.
#[tokio::test]
async fn a_revoked_key_waits_for_nothing() {
    let db = queue(&[]).await;
    for name in ["ci", "other"] {
        add_key(&db, name, Scope::Fit).await;
    }
    for (id, owner) in [("runs", "ci"), ("waits", "ci"), ("others", "other")] {
        ask(&db, id, owner, "sim").await;
        if id == "runs" {
            assert_eq!(claim(&db).await.as_deref(), Some("runs"));
        }
    }

    assert!(db.revoke_key("ci", Time(9)).await.unwrap());
    let cancelled = db.cancel_of_revoked_keys(Time(9)).await.unwrap();

    assert_eq!(cancelled, ["waits"]);
    for (id, state) in [
        ("runs", FitState::Running),
        ("waits", FitState::Cancelled),
        ("others", FitState::Queued),
    ] {
        assert_eq!(db.fit(id).await.unwrap().unwrap().state, state, "{id}");
    }
}

#[tokio::test]
async fn a_key_that_runs_much_takes_no_place_of_those_that_run_nothing() {
    let db = TestDatabase::new().await;
    let owners = ["a", "a", "a", "b", "c", "d", "e", "f"];
    let mut claimed = String::new();
    for (number, owner) in owners.into_iter().enumerate() {
        ask(&db, &number.to_string(), owner, "simulated").await;
        // The first three are claimed before any other key asks.
        if number >= 2 {
            while let Some(fit) = claim_for(&db, &me(), 1).await {
                claimed.push_str(owners[fit.id.parse::<usize>().unwrap()]);
            }
        }
    }
    assert_eq!(claimed, "aabcde");
}

#[tokio::test]
async fn a_key_has_a_part_of_the_queue() {
    let db = TestDatabase::new().await;
    let ask = async |id: usize, owner: &str| {
        let owner = owner.to_owned();
        let fit = NewFit {
            owner,
            ..new(&id.to_string(), "cuda:0")
        };
        db.enqueue(&fit, Reuse::Finished, 12, SPACE).await.unwrap()
    };
    let full = |waiting, of_key| Enqueued::QueueFull { waiting, of_key };
    // A quarter of twelve.
    for (id, owner) in ["a", "a", "a", "b"].into_iter().enumerate() {
        assert_eq!(ask(id, owner).await, Enqueued::Added);
    }
    assert_eq!(ask(4, "a").await, full(3, true));
    for id in 5..13 {
        assert_eq!(ask(id, "").await, Enqueued::Added);
    }
    assert_eq!(ask(13, "").await, full(12, false));
}

#[tokio::test]
async fn what_two_keys_ask_in_the_same_words_is_a_fit_of_each() {
    let db = TestDatabase::new().await;
    let terms = |priority, timeout| FitTerms {
        priority,
        timeout_seconds: Some(timeout),
    };
    let (soon, later) = (Priority::Interactive, Priority::Batch);
    let ask = async |id: &str, owner: &str, terms| {
        let fit = NewFit {
            fingerprint: "question".to_owned(),
            owner: owner.to_owned(),
            terms,
            ..new(id, "simulated")
        };
        add(&db, &fit).await
    };
    assert_eq!(ask("1", "a", terms(later, 20)).await, Enqueued::Added);
    assert_eq!(ask("2", "b", terms(soon, 900)).await, Enqueued::Added);
    let known = Enqueued::Same("1".to_owned());
    assert_eq!(ask("3", "a", terms(later, 30)).await, known);

    // Each has its own terms, and is cancelled by its own key alone.
    for (id, limit, other) in [("1", 30, "b"), ("2", 900, "a")] {
        assert_eq!(db.fit_timeout(id).await.unwrap(), Some(limit));
        assert!(!db.cancel(id, Some(other), Time(1)).await.unwrap());
    }
    assert!(db.cancel("1", Some("a"), Time(1)).await.unwrap());
    assert_eq!(claim(&db).await.as_deref(), Some("2"));
    // What is answered is known to all.
    db.run("UPDATE fit SET state = 'done', result = '{}', finished_at = 2 WHERE id = '2'")
        .await
        .unwrap();
    let known = Enqueued::Same("2".to_owned());
    assert_eq!(ask("4", "a", terms(later, 20)).await, known);
}

#[tokio::test]
async fn the_end_of_a_fit_makes_room_in_its_lane() {
    let db = queue(&[("1", "cuda:0"), ("2", "cuda:0")]).await;
    claim(&db).await;

    assert_eq!(claim(&db).await, None);
    assert!(
        db.fail(attempt("1", 1, &me()), &Value::from("lost"), Time(2))
            .await
            .unwrap()
    );
    assert_eq!(claim(&db).await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_fit_ends_once() {
    let db = queue(&[("1", "simulated")]).await;
    claim(&db).await;

    assert!(db.cancel("1", None, Time(2)).await.unwrap());
    assert!(!db.cancel("1", None, Time(3)).await.unwrap());
    let me = me();
    let first = attempt("1", 1, &me);
    let finished = db.finish(first, &Value::Null, &[], Time(3)).await;
    assert!(!finished.unwrap());
    assert!(!db.fail(first, &Value::Null, Time(3)).await.unwrap());
    assert!(!db.put_back(first).await.unwrap());
    assert_eq!(db.renew(first, Time(3), 100).await.unwrap(), None);
    let state = db.fit_state("1").await.unwrap();
    assert_eq!(state, Some(FitState::Cancelled));
}

#[tokio::test]
async fn an_interrupted_fit_is_queued_again_to_run_apart() {
    let db = queue(&[("1", "simulated"), ("2", "cuda:0"), ("3", "cuda:0")]).await;
    claim(&db).await.unwrap();
    claim(&db).await.unwrap();

    assert_eq!(db.interrupted().await.unwrap(), 2);

    let mut claimed = Vec::new();
    while let Some(fit) = claim_for(&db, &me(), 3).await {
        db.cancel(&fit.id, None, Time(3)).await.unwrap();
        claimed.push((fit.id, fit.attempts, fit.apart));
    }
    let expected = [("1", 2, true), ("2", 2, true), ("3", 1, false)];
    assert_eq!(
        claimed,
        expected.map(|(id, attempts, apart)| (id.to_owned(), attempts, apart))
    );
}

#[tokio::test]
async fn a_question_that_ended_its_process_runs_apart_when_asked_again() {
    let db = queue(&[("1", "simulated")]).await;
    claim(&db).await.unwrap();
    db.interrupted().await.unwrap();
    claim(&db).await.unwrap();
    db.fail(attempt("1", 2, &me()), &Value::from("died"), Time(2))
        .await
        .unwrap();

    let again = NewFit {
        fingerprint: "1".to_owned(),
        ..new("2", "simulated")
    };
    add(&db, &again).await;

    let claimed = claim_for(&db, &me(), 3).await;
    assert!(claimed.unwrap().apart);
}

#[tokio::test]
async fn what_a_clock_that_was_set_back_said_makes_nothing_old() {
    let ends = [
        ("1", 100),
        ("2", 5_000),
        ("3", 70),
        ("4", 4_900),
        ("5", 8_000),
    ];
    let db = queue(&ends.map(|(id, _)| (id, "simulated"))).await;
    for (id, end) in ends {
        assert!(db.cancel(id, None, Time(end)).await.unwrap());
    }

    // The third ended after the second, whatever the clock said; the fifth ended when it was ahead.
    let pruned = db.prune(Time(4_000), Time(6_000), 10).await.unwrap();
    let left = ends.map(|(id, _)| db.fit_state(id));
    let mut kept = Vec::new();
    for (left, (id, _)) in left.into_iter().zip(ends) {
        kept.extend(left.await.unwrap().map(|_| id));
    }

    assert_eq!((pruned.fits, kept), (1, vec!["2", "3", "4", "5"]));
}

#[tokio::test]
async fn only_a_silent_lease_owner_loses_its_fits() {
    let lanes = ["1", "2", "3"].map(|id| (id, "cuda:0"));
    let db = queue(&lanes).await;
    let holders = ["one", "two", "three"].map(LeaseOwner::server);
    let [one, two, three] = &holders;
    // A GPU of each has the same name.
    for holder in &holders {
        claim_for(&db, holder, 0).await.unwrap();
        assert_eq!(claim_for(&db, holder, 0).await, None);
    }

    let until = Time(500);
    let renewed = db.renew_all(Lease { holder: two, until }).await;
    assert_eq!(renewed.unwrap(), 1);
    // A holder that asks is alive, whatever the clock says.
    assert_eq!(db.expired(Time(100), three, 50).await.unwrap(), 0);
    assert_eq!(db.expired(Time(101), three, 50).await.unwrap(), 1);

    // What it says later counts no more, and the next attempt is apart.
    let lost = attempt("1", 1, one);
    let taken = claim_for(&db, two, 600).await;
    assert_eq!(taken, None, "its lane is taken");
    assert_eq!(db.renew(lost, Time(900), 100).await.unwrap(), None);
    assert!(!db.fail(lost, &Value::Null, Time(700)).await.unwrap());
    assert_eq!(
        db.attempt_state(lost).await.unwrap(),
        Some(FitState::Queued)
    );
    let again = claim_for(&db, one, 600).await.unwrap();
    assert_eq!((again.attempts, again.apart), (2, true));
    let finished = db.finish(lost, &Value::Null, &[], Time(700)).await;
    assert!(!finished.unwrap());
    assert_eq!(db.attempt_state(lost).await.unwrap(), None);
    let renewed = db.renew(again.attempt(), Time(900), 100).await;
    assert_eq!(renewed.unwrap(), Some(Time(900)));
    let finished = db
        .finish(again.attempt(), &Value::Null, &[], Time(700))
        .await;
    assert!(finished.unwrap());
    // Only its holder ends a fit.
    assert!(!db.put_back(attempt("2", 1, three)).await.unwrap());
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
async fn names_of_one_owner_push_out_none_of_another() {
    let db = queue(&[("1", "cuda:0")]).await;
    let named = |owner: &str, name: u32| IdempotencyKey {
        owner: owner.to_owned(),
        key: name.to_string(),
        body: String::new(),
    };
    for (owner, names) in [("modest", 0..1), ("greedy", 1..5)] {
        for name in names {
            let (key, now) = (named(owner, name), Time(name.into()));
            assert!(db.remember_key(&key, "1", now).await.unwrap());
        }
    }

    assert_eq!(db.sweep_keys(Time(0), 2).await.unwrap(), 2);

    let mut left = Vec::new();
    for (owner, name) in [("modest", 0), ("greedy", 2), ("greedy", 3), ("greedy", 4)] {
        left.push(
            db.asked_before(&named(owner, name))
                .await
                .unwrap()
                .is_some(),
        );
    }
    assert_eq!(left, [true, false, true, true]);
}

#[tokio::test]
async fn a_lease_ends_one_silence_after_the_time_limit() {
    let db = TestDatabase::new().await;
    add(&db, &limited(2)).await;
    let holder = crate::agent::holder("a");
    let lease = Lease {
        holder: &holder,
        until: Time(600),
    };
    // Another claim of the same agent came first.
    assert_eq!(db.claim_one("1", lease, 1, Time(100)).await.unwrap(), None);
    let claimed = claim_one(&db, &holder, 100, 600).await;
    let renew = async |until| db.renew(claimed.attempt(), Time(until), 500).await.unwrap();
    let overdue =
        async |now| db.running_fits(Some(&holder)).await.unwrap()[0].is_overdue(500, Time(now));

    assert_eq!(renew(2_599).await, Some(Time(2_599)));
    // It was silent since before its limit: another may have the fit.
    assert!(!overdue(9_000).await);
    assert_eq!(renew(9_000).await, Some(Time(2_600)));
    assert!(!overdue(2_600).await && overdue(2_601).await);
    // No server was there to be told, and as long counts as no work.
    db.spare_agents(Time(9_500)).await.unwrap();
    assert_eq!(renew(9_600).await, Some(Time(9_500)));
    assert!(!overdue(9_500).await && overdue(9_501).await);
    assert_eq!(db.running_fits(Some(&me())).await.unwrap(), []);

    // What it took counts, whether it is given back or lost.
    let attempt = Some(claimed.attempt());
    let back = db.give_back(&holder, attempt, Time(8_000)).await;
    assert_eq!(back.unwrap(), 1);
    let again = claim_one(&db, &holder, 5_000, 600).await;
    assert_eq!(again.timeout_seconds, Some(1));
    let renewed = db.renew(again.attempt(), Time(9_000), 500).await.unwrap();
    assert_eq!(renewed, Some(Time(6_500)));
    assert_eq!(db.expired(Time(6_600), &me(), 500).await.unwrap(), 1);
    let last = claim_one(&db, &holder, 7_000, 600).await;
    assert_eq!(last.timeout_seconds, Some(0));
}

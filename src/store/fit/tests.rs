use super::*;
use crate::store::UploadSpace;

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
        created_at: Time(0),
    }
}

async fn queue(fits: &[(&str, &str)]) -> Db {
    let db = Db::open("sqlite::memory:").await.unwrap();
    for (id, lane) in fits {
        let added = db.enqueue(&new(id, lane), Reuse::Finished, 10, SPACE).await;
        assert_eq!(added.unwrap(), Enqueued::Added);
    }
    db
}

async fn claim(db: &Db) -> Option<String> {
    let claimed = db.claim(ParallelSimulated(2), Time(1)).await.unwrap();
    claimed.map(|fit| fit.id)
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
async fn the_end_of_a_fit_makes_room_in_its_lane() {
    let db = queue(&[("1", "cuda:0"), ("2", "cuda:0")]).await;
    claim(&db).await;

    assert_eq!(claim(&db).await, None);
    assert!(
        db.fail("1", 1, &Value::from("lost"), Time(2))
            .await
            .unwrap()
    );
    assert_eq!(claim(&db).await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_fit_ends_once() {
    let db = queue(&[("1", "simulated")]).await;
    claim(&db).await;

    assert!(db.cancel("1", Time(2)).await.unwrap());
    assert!(!db.cancel("1", Time(3)).await.unwrap());
    assert!(!db.finish("1", 1, &Value::Null, &[], Time(3)).await.unwrap());
    assert!(!db.fail("1", 1, &Value::Null, Time(3)).await.unwrap());
    assert!(!db.put_back("1", 1).await.unwrap());
    let state = db.fit_state("1").await.unwrap();
    assert_eq!(state, Some(FitState::Cancelled));
}

#[tokio::test]
async fn an_interrupted_fit_is_queued_again_to_run_apart() {
    let db = queue(&[("1", "simulated"), ("2", "cuda:0"), ("3", "cuda:0")]).await;
    claim(&db).await.unwrap();
    claim(&db).await.unwrap();

    assert_eq!(db.recover().await.unwrap(), 2);

    let mut claimed = Vec::new();
    while let Some(fit) = db.claim(ParallelSimulated(2), Time(3)).await.unwrap() {
        db.cancel(&fit.id, Time(3)).await.unwrap();
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
    db.recover().await.unwrap();
    claim(&db).await.unwrap();
    db.fail("1", 2, &Value::from("died"), Time(2))
        .await
        .unwrap();

    let again = NewFit {
        fingerprint: "1".to_owned(),
        ..new("2", "simulated")
    };
    db.enqueue(&again, Reuse::Finished, 10, SPACE)
        .await
        .unwrap();

    let claimed = db.claim(ParallelSimulated(2), Time(3)).await.unwrap();
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
        assert!(db.cancel(id, Time(end)).await.unwrap());
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

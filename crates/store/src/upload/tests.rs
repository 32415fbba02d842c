use super::super::{
    Enqueued, FitState, FitTerms, Lease, LeaseOwner, NewFit, ParallelSimulated, Reuse,
};
use super::*;
use crate::database::test_database::TestDatabase;

/// Room for two and a half of the uploads here.
const SPACE: UploadSpace = UploadSpace {
    bytes: 2 * (OVERHEAD + 100) + OVERHEAD,
    oldest: Time(1_000),
};

fn new(contents: &str, created_at: i64) -> NewUpload {
    NewUpload {
        digest: Digest::of(contents.as_bytes()),
        names: Vec::new(),
        owner: String::new(),
        kind: UploadKind::Exported,
        bytes: contents.len(),
        about: JsonText::from("{}"),
        gzip: vec![0; 100],
        created_at: Time(created_at),
    }
}

async fn keep(db: &Db, contents: &str, created_at: i64) -> UploadStatus {
    db.keep_upload(&new(contents, created_at), SPACE)
        .await
        .unwrap()
}

async fn is_there(db: &Db, contents: &str) -> bool {
    let found = db.upload(&Digest::of(contents.as_bytes())).await.unwrap();
    found.is_some()
}

fn fit(id: &str, uploads: &[&str], aside: Option<NewUpload>) -> NewFit {
    NewFit {
        id: id.to_owned(),
        fingerprint: id.to_owned(),
        batchfit_version: "0.1.0".to_owned(),
        model: "exported-1".to_owned(),
        model_digest: String::new(),
        taught: JsonText::from("[]"),
        device: "sim:t4".to_owned(),
        lane: "simulated".to_owned(),
        request: JsonText::from("{}"),
        uploads: uploads
            .iter()
            .map(|contents| Digest::of(contents.as_bytes()))
            .collect(),
        aside,
        terms: FitTerms::default(),
        key: None,
        owner: String::new(),
        created_at: Time(2_000),
    }
}

/// Room for whatever these tests keep.
const ROOMY: UploadSpace = UploadSpace {
    bytes: 1 << 20,
    ..SPACE
};

async fn enqueue(db: &Db, fit: &NewFit, space: UploadSpace) -> Enqueued {
    db.enqueue(fit, Reuse::Finished, 10, space).await.unwrap()
}

async fn end(db: &Db, id: &str) {
    assert!(db.cancel(id, None, Time(3_000)).await.unwrap());
    assert_eq!(db.fit_state(id).await.unwrap(), Some(FitState::Cancelled));
}

#[tokio::test]
async fn an_upload_is_kept_once_and_found_by_all_its_names() {
    let db = TestDatabase::new().await;
    let named = |name: &str| NewUpload {
        names: vec![Digest::of(name.as_bytes())],
        ..new("a", 10)
    };
    assert_eq!(
        db.keep_upload(&named("a.gz"), SPACE).await.unwrap(),
        UploadStatus::Added
    );
    assert_eq!(
        db.keep_upload(&named("a.pt2"), SPACE).await.unwrap(),
        UploadStatus::There
    );

    for name in ["a", "a.gz", "a.pt2"] {
        let found = db.upload(&Digest::of(name.as_bytes())).await.unwrap();
        assert_eq!(found.unwrap().digest, Digest::of(b"a"), "{name}");
    }
    for way in 0..MOST_NAMES {
        let other = named(&way.to_string());
        db.keep_upload(&other, SPACE).await.unwrap();
    }
    assert!(!is_there(&db, "a.gz").await, "the oldest name gave way");
    assert!(is_there(&db, "7").await);

    let dropped = db.drop_upload(&Digest::of(b"7")).await.unwrap();
    assert_eq!(dropped, Dropped::Yes);
    assert!(!is_there(&db, "a").await && !is_there(&db, "6").await);
}

#[tokio::test]
async fn what_one_key_sends_takes_neither_names_nor_room_of_another() {
    let db = TestDatabase::new().await;
    let of = |owner: &str, contents: &str, name: &str| NewUpload {
        names: vec![Digest::of(name.as_bytes())],
        owner: owner.to_owned(),
        ..new(contents, 2_000)
    };
    // Room for two uploads of each key.
    let space = UploadSpace {
        bytes: 8 * (OVERHEAD + 100),
        ..SPACE
    };
    let keep = async |upload: NewUpload| db.keep_upload(&upload, space).await.unwrap();
    keep(of("victim", "a", "a.gz")).await;
    for way in 0..2 * MOST_NAMES {
        keep(of("greedy", "a", &way.to_string())).await;
        // Names of others are not taken over by sending what they name.
        keep(of("greedy", "a", "a.gz")).await;
    }
    assert!(is_there(&db, "a.gz").await && !is_there(&db, "0").await);

    // What came with a fit is nobody's until it is sent as well.
    let asked = fit("asks", &[], Some(of("", "b", "b")));
    assert_eq!(enqueue(&db, &asked, space).await, Enqueued::Added);
    assert_eq!(keep(of("greedy", "b", "b")).await, UploadStatus::Added);
    assert_eq!(keep(of("greedy", "c", "c")).await, UploadStatus::Added);
    let [taken, limit] = [2 * (OVERHEAD + 100); 2];
    let full = UploadStatus::Full { taken, limit };
    assert_eq!(keep(of("greedy", "d", "d")).await, full);
    assert_eq!(keep(of("victim", "d", "d")).await, UploadStatus::Added);
}

#[tokio::test]
async fn what_is_full_takes_no_more_until_something_may_go() {
    let db = TestDatabase::new().await;
    assert_eq!(keep(&db, "a", 1_000).await, UploadStatus::Added);
    assert_eq!(keep(&db, "b", 1_001).await, UploadStatus::Added);

    let (taken, limit) = (2 * (OVERHEAD + 100), SPACE.bytes);
    assert_eq!(
        keep(&db, "c", 1_002).await,
        UploadStatus::Full { taken, limit }
    );
    assert_eq!(keep(&db, "a", 1_002).await, UploadStatus::There);
    // A model that comes with a fit is kept all the same, and goes first.
    assert_eq!(
        enqueue(&db, &fit("1", &[], Some(new("with a fit", 2_000))), SPACE).await,
        Enqueued::Added
    );
    assert!(is_there(&db, "with a fit").await);
    end(&db, "1").await;
    db.drop_upload(&Digest::of(b"b")).await.unwrap();
    assert_eq!(keep(&db, "c", 1_002).await, UploadStatus::Added);
    assert!(!is_there(&db, "with a fit").await);

    let expired = UploadSpace {
        oldest: Time(1_003),
        ..SPACE
    };
    let kept = db.keep_upload(&new("d", 1_003), expired).await.unwrap();
    assert_eq!(kept, UploadStatus::Added);
    // One makes room, not both: the one unused for longest, or of those of one moment any.
    let left = [is_there(&db, "a").await, is_there(&db, "c").await];
    assert_eq!(left.iter().filter(|left| **left).count(), 1);
}

#[tokio::test]
async fn uploads_stay_while_something_refers_to_them() {
    let db = TestDatabase::new().await;
    for contents in ["needed", "not needed"] {
        db.keep_upload(&new(contents, 0), ROOMY).await.unwrap();
    }
    let aside = fit("1", &["needed"], Some(new("aside", 0)));
    assert_eq!(enqueue(&db, &aside, ROOMY).await, Enqueued::Added);

    assert_eq!(db.sweep_uploads(Time(1), 10).await.unwrap(), 1);
    assert!(is_there(&db, "needed").await && is_there(&db, "aside").await);
    let needed = Digest::of(b"needed");
    assert_eq!(db.drop_upload(&needed).await.unwrap(), Dropped::InUse);
    let found = db.upload(&needed).await.unwrap().unwrap();
    assert!(found.is_in_use && found.is_referred);

    end(&db, "1").await;
    // What came with the fit goes with it; what was uploaded stays with its answer, and may be dropped.
    assert_eq!(db.sweep_uploads(Time(1), 10).await.unwrap(), 1);
    assert!(!is_there(&db, "aside").await);
    let found = db.upload(&needed).await.unwrap().unwrap();
    assert!(!found.is_in_use && found.is_referred);
    assert_eq!(db.drop_upload(&needed).await.unwrap(), Dropped::Yes);
    assert_eq!(db.drop_upload(&needed).await.unwrap(), Dropped::Unknown);
}

#[tokio::test]
async fn a_fit_is_not_queued_without_its_uploads() {
    let db = TestDatabase::new().await;

    let gone = enqueue(&db, &fit("1", &["gone"], Some(new("aside", 0))), ROOMY).await;

    assert_eq!(gone, Enqueued::UploadGone(Digest::of(b"gone")));
    assert_eq!(db.fit_state("1").await.unwrap(), None);
    assert!(!is_there(&db, "aside").await, "all or nothing");
    let lease = Lease {
        holder: &LeaseOwner::server("me"),
        until: Time(2),
    };
    let claimed = db.claim(ParallelSimulated(2), lease, Time(1)).await;
    assert_eq!(claimed.unwrap(), None);
}

#[tokio::test]
async fn the_longest_unused_expire_a_few_at_a_time() {
    let db = TestDatabase::new().await;
    for (contents, created_at) in [("a", 3), ("b", 1), ("c", 2)] {
        let new = new(contents, created_at);
        db.keep_upload(&new, ROOMY).await.unwrap();
    }
    db.use_upload(&Digest::of(b"b"), "", Time(9)).await.unwrap();

    assert_eq!(db.sweep_uploads(Time(9), 1).await.unwrap(), 1);
    assert!(!is_there(&db, "c").await);
    assert_eq!(db.sweep_uploads(Time(9), 10).await.unwrap(), 1);
    assert!(!is_there(&db, "a").await && is_there(&db, "b").await);
}

#[tokio::test]
async fn what_a_key_sent_stays_for_its_own_use_alone() {
    let db = TestDatabase::new().await;
    let of = |owner: &str, contents: &str, created_at: i64| NewUpload {
        owner: owner.to_owned(),
        ..new(contents, created_at)
    };
    // Room for one upload of each key.
    let space = |oldest| UploadSpace {
        bytes: 4 * (OVERHEAD + 100),
        oldest: Time(oldest),
    };
    let keep = async |upload: NewUpload, oldest| {
        let kept = db.keep_upload(&upload, space(oldest)).await;
        kept.unwrap()
    };
    let used_at = async |contents: &str| {
        let found = db.upload(&Digest::of(contents.as_bytes())).await.unwrap();
        found.unwrap().used_at
    };
    let a = Digest::of(b"a");
    keep(of("victim", "a", 1_000), 0).await;
    // Neither by its name nor by its contents.
    db.use_upload(&a, "liar", Time(2_000)).await.unwrap();
    assert_eq!(keep(of("liar", "a", 2_000), 0).await, UploadStatus::There);
    assert_eq!(used_at("a").await, Time(1_000));
    db.use_upload(&a, "victim", Time(1_500)).await.unwrap();
    assert_eq!(used_at("a").await, Time(1_500));

    // What work of others needs stays, and is not in the way of its key.
    let needs = |id: &str, owner: &str| NewFit {
        owner: owner.to_owned(),
        ..fit(id, &["a"], None)
    };
    enqueue(&db, &needs("1", "liar"), ROOMY).await;
    let [taken, limit] = [OVERHEAD + 100; 2];
    let full = UploadStatus::Full { taken, limit };
    assert_eq!(keep(of("victim", "b", 1_600), 1_500).await, full);
    assert_eq!(
        keep(of("victim", "b", 1_600), 1_501).await,
        UploadStatus::Added
    );
    // What its own work needs is.
    db.drop_upload(&Digest::of(b"b")).await.unwrap();
    enqueue(&db, &needs("2", "victim"), ROOMY).await;
    assert_eq!(keep(of("victim", "b", 1_600), 1_501).await, full);

    // Whoever sends it then has it.
    assert_eq!(
        keep(of("liar", "a", 3_000), 1_501).await,
        UploadStatus::Added
    );
    assert_eq!(used_at("a").await, Time(3_000));
    assert_eq!(
        keep(of("victim", "b", 3_000), 1_501).await,
        UploadStatus::Added
    );
}

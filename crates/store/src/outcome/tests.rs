//! What is kept of outcomes, and what follows from them for answers.

mod ways;

use super::*;
use crate::database::test_database::{DatabaseLocation, TestDatabase};
use crate::fit::Attempt;
use crate::model::{CalibrationSource, HeadroomCalibration};
use crate::units::Bytes;
use batchfit_fit::search::ask_tell::Outcome;
use batchfit_fit::search::headroom::{Doubt, Halved};

async fn in_memory(recommendations: u32) -> TestDatabase {
    let db = TestDatabase::new().await;
    for number in 1..=recommendations {
        db.add_answer(&number.to_string(), number, "mine", 1).await;
    }
    db
}

fn card() -> LearntOn {
    LearntOn {
        gpu: "NVIDIA H200".to_owned(),
        source: "simulated".to_owned(),
        strategy: "none".to_owned(),
        driver: String::new(),
        pytorch: "2.11".to_owned(),
    }
}

fn new_outcome(model: &str, learning: Result<Sample, RejectReason>) -> NewOutcome {
    NewOutcome {
        recommendation_id: "answer1".to_owned(),
        seen: TrainingRun {
            batch: 8,
            outcome: Outcome::Fits,
            peak_reserved: Some(Bytes(991)),
            retries: Some(0),
            steps: Some(10),
        },
        environment: JsonText::from("{}"),
        learning: learning.map(|lesson| Learning {
            lesson,
            on: card(),
            way: model.to_owned(),
            model: "mine".to_owned(),
            doubts: doubts(),
            headroom: Share(15_000),
            of_others: Share(0),
            error: Some(1_000),
        }),
        owner: String::new(),
        named: None,
        created_at: Time(7),
    }
}

/// What is taught of a way to train.
fn calibration(
    db: &Db,
    on: &LearntOn,
    model: &str,
    owner: &str,
    is_for_agents: bool,
) -> Option<HeadroomCalibration> {
    db.lessons.calibration(on, model, owner, is_for_agents)
}

/// What answers about a card keep free that was not measured.
fn doubts() -> Doubts {
    let all = [(Doubt::Driver, Share(5_000)), (Doubt::Card, Share(10_000))];
    all.into_iter().collect()
}

const MISS: Result<Sample, RejectReason> = Ok(Sample::Needs(Share(32_000)));
const AGREES: Result<Sample, RejectReason> = Ok(Sample::Needs(Share(0)));

#[tokio::test]
async fn a_sample_changes_the_headroom_of_the_next_answer() {
    let db = in_memory(1).await;
    assert_eq!(calibration(&db, &card(), "a", "", false), None);
    let turns = db.learnt_turns();

    let OutcomeKept::New(kept) = db.add_outcome(&new_outcome("a", MISS)).await.unwrap() else {
        panic!("it is news");
    };

    assert_eq!(
        (kept.headroom_before, kept.headroom_after),
        (Some(15_000), Some(36_000))
    );
    let taught = calibration(&db, &card(), "a", "", false).unwrap();
    assert_eq!((taught.share, taught.halved.kinds()), (Share(36_000), 0));
    assert_eq!((taught.of, taught.outcomes), (CalibrationSource::Itself, 1));
    assert_ne!(db.learnt_turns(), turns);
    // One that agrees changes no answer, and twenty do.
    let turns = db.learnt_turns();
    for _ in 0..19 {
        db.add_outcome(&new_outcome("a", AGREES)).await.unwrap();
    }
    assert_eq!(db.learnt_turns(), turns);
    db.add_outcome(&new_outcome("a", AGREES)).await.unwrap();
    assert_ne!(db.learnt_turns(), turns);
    let taught = calibration(&db, &card(), "a", "", false).unwrap();
    assert!(taught.share < Share(36_000));
    assert_eq!(taught.halved.kept(&doubts()), Share(7_500));
    let [row] = db
        .learnt_rows(None, None, 9)
        .await
        .unwrap()
        .try_into()
        .unwrap();
    assert_eq!((row.outcomes, row.misses, row.peaks), (21, 1, 21));
    assert_eq!((row.error_sum, row.error_most), (21_000, 1_000));
}

/// The headroom of a key, and what is unconfirmed of it.
fn taught(db: &TestDatabase, model: &str, owner: &str) -> Option<(u32, u32)> {
    let taught = calibration(db, &card(), model, owner, false);
    taught.map(|taught| (taught.share.0, taught.unconfirmed.0))
}

#[tokio::test]
async fn misses_of_a_key_count_for_itself_and_are_unconfirmed_for_others() {
    let db = in_memory(1).await;
    let tell = async |owner: &str, model: &str, sample: Result<Sample, RejectReason>| {
        let owner = owner.to_owned();
        let new = new_outcome(model, sample);
        let kept = db.add_outcome(&NewOutcome { owner, ..new }).await.unwrap();
        let OutcomeKept::New(kept) = kept else {
            panic!("it is news");
        };
        (kept.headroom_before, kept.headroom_after)
    };
    let turns = db.learnt_turns();

    assert_eq!(tell("mine", "a", MISS).await, (Some(15_000), Some(36_000)));

    assert_ne!(db.learnt_turns(), turns);
    assert_eq!(taught(&db, "a", "mine"), Some((36_000, 0)));
    for owner in ["other", ""] {
        assert_eq!(taught(&db, "a", owner), Some((5_000, 36_000)));
    }
    let more = Ok(Sample::Needs(Share(64_000)));
    assert_eq!(tell("other", "a", more).await.1, Some(72_000));
    assert_eq!(taught(&db, "a", "mine"), Some((36_000, 72_000)));
    assert_eq!(taught(&db, "a", "third"), Some((36_000, 72_000)));
    // What two keys tell of other models, one cannot confirm for a new one, nor hide by what it tells of that.
    tell("mine", "b", MISS).await;
    assert_eq!(taught(&db, "c", "mine"), Some((0, 36_000)));
    tell("third", "c", AGREES).await;
    assert_eq!(taught(&db, "c", "mine"), Some((5_000, 36_000)));
}

#[tokio::test]
async fn what_keys_tell_of_answers_of_an_agent_is_the_word_of_its_key() {
    let db = in_memory(1).await;
    let holder = crate::agent::holder("a");
    let attempt = Attempt {
        id: "fit1",
        number: 1,
        holder: &holder,
    };
    let running = "UPDATE fit SET state = 'running', started_at = 1, attempts = 1, holder = 'agent a', result = NULL, finished_at = NULL";
    db.run(running.to_owned()).await.unwrap();
    let finish = async || {
        db.finish(attempt, &Value::Null, &[], Time(3))
            .await
            .unwrap()
    };
    assert!(!finish().await, "nobody knows whose the agent was");
    let agent = "INSERT INTO agent (id, name, instance, owner, version, duty, cards, registered_at, seen_at)
                 VALUES ('a', 'node', 'i', 'liar', '1', 'ready', '[]', 1, 2)";
    db.run(agent.to_owned()).await.unwrap();
    assert!(finish().await);
    // The service gives no such answer as its own.
    let of_service = db.finished_fit("f1", false).await.unwrap();
    assert_eq!(
        (of_service, db.finished_fit("f1", true).await.unwrap()),
        (None, Some("fit1".to_owned()))
    );

    for owner in ["one", "two", "liar"] {
        let owner = owner.to_owned();
        let mut new = new_outcome("a", MISS);
        // Doubts that it did not keep anything for hide no miss.
        let told = new.learning.as_mut().unwrap();
        told.doubts = [(Doubt::Driver, Share::ALL)].into_iter().collect();
        db.add_outcome(&NewOutcome { owner, ..new }).await.unwrap();
    }

    assert_eq!(taught(&db, "a", "third"), Some((5_000, 36_000)));
    // Its own word counts for each, where agents answer.
    assert_eq!(taught(&db, "a", "one"), Some((5_000, 36_000)));
    let own = calibration(&db, &card(), "a", "one", true).unwrap();
    assert_eq!(own.share, Share(36_000));
}

#[tokio::test]
async fn other_models_learn_from_two_and_other_cards_from_none() {
    let db = in_memory(1).await;
    db.add_outcome(&new_outcome("a", MISS)).await.unwrap();
    assert_eq!(calibration(&db, &card(), "c", "", false), None);

    db.add_outcome(&new_outcome("b", MISS)).await.unwrap();

    let taught = calibration(&db, &card(), "c", "", false).unwrap();
    assert_eq!(
        (taught.share, taught.of),
        (Share(36_000), CalibrationSource::Others)
    );
    // One that agrees does not undo it.
    let mut agrees = new_outcome("c", AGREES);
    agrees.learning.as_mut().unwrap().of_others = taught.share;
    db.add_outcome(&agrees).await.unwrap();
    let own = calibration(&db, &card(), "c", "", false).unwrap();
    assert_eq!(
        (own.share, own.of),
        (Share(36_000), CalibrationSource::Itself)
    );
    let elsewhere = LearntOn {
        gpu: "NVIDIA L4".to_owned(),
        ..card()
    };
    assert_eq!(calibration(&db, &elsewhere, "a", "", false), None);
}

#[tokio::test]
async fn doubted_outcomes_are_kept_and_teach_nothing() {
    let db = in_memory(1).await;

    let kept = db
        .add_outcome(&new_outcome("a", Err(RejectReason::NoPeak)))
        .await
        .unwrap();

    let OutcomeKept::New(kept) = kept else {
        panic!("it is news");
    };
    assert_eq!(kept.doubt.as_deref(), Some("no_peak"));
    assert_eq!(kept.headroom_after, None);
    assert_eq!(calibration(&db, &card(), "a", "", false), None);
    let count = db.learnt_count().await.unwrap();
    assert_eq!((count.outcomes, count.doubted), (0, 1));
}

#[tokio::test]
async fn a_training_with_a_name_counts_once() {
    let db = in_memory(2).await;
    let named = |body: &str, id: &str| NewOutcome {
        named: Some(("run".to_owned(), body.to_owned())),
        recommendation_id: id.to_owned(),
        ..new_outcome("a", MISS)
    };
    let add = async |new: NewOutcome| db.add_outcome(&new).await.unwrap();

    let OutcomeKept::New(first) = add(named("body", "answer1")).await else {
        panic!("it is news");
    };
    assert_eq!(
        add(named("body", "answer1")).await,
        OutcomeKept::Again(first)
    );
    assert_eq!(add(named("other", "answer1")).await, OutcomeKept::NameTaken);
    assert_eq!(add(named("body", "answer2")).await, OutcomeKept::NameTaken);
    let somebody_else = NewOutcome {
        owner: "key".to_owned(),
        ..named("body", "answer1")
    };
    assert!(matches!(add(somebody_else).await, OutcomeKept::New(_)));
    assert_eq!(db.learnt_count().await.unwrap().outcomes, 2);
    assert_eq!(add(named("body", "answer9")).await, OutcomeKept::Unknown);
}

#[tokio::test]
async fn one_key_pushes_out_its_own_outcomes() {
    let db = in_memory(101).await;
    let told = |first: i64, owner: &str, last: i64, recommendation: &str, batch: i64| {
        format!(
            "WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last})
             INSERT INTO outcome (recommendation, batch, outcome, environment, owner, created_at)
             SELECT {recommendation}, {batch}, 'crashed', '{{}}', '{owner}', n FROM n"
        )
    };
    let add = async || {
        let owner = "liar".to_owned();
        let outcome = new_outcome("a", AGREES);
        let outcome = NewOutcome { owner, ..outcome };
        db.add_outcome(&outcome).await.unwrap();
    };
    let kept = async |number: u32| {
        let kept = db.outcomes(&format!("answer{number}"), None, 9999).await;
        let kept = kept.unwrap();
        let honest = kept.iter().filter(|outcome| outcome.batch == 9).count();
        (kept.len(), honest)
    };
    db.run(told(1, "honest", 10, "1", 9)).await.unwrap();
    db.run(told(11, "liar", 1500, "1", 8)).await.unwrap();
    add().await;
    assert_eq!(kept(1).await, (1000, 10));

    // Of all: counted with the next one.
    let last = 100_096 + 5 * COUNTED_EACH - 1;
    let others = told(1502, "liar", last, "2 + n % 100", 8);
    db.run(others).await.unwrap();
    add().await;
    let mut all = 0;
    for number in 1..=101 {
        all += kept(number).await.0;
    }
    assert_eq!((all, kept(1).await.1), (100_000, 10));
}

#[tokio::test]
async fn outcomes_are_listed_newest_first_and_bounded() {
    let db = in_memory(2).await;
    let many = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500)
         INSERT INTO outcome (recommendation, batch, outcome, environment, owner, created_at)
         SELECT 1, 8, 'crashed', '{}', '', n FROM n";
    db.run(many).await.unwrap();
    db.add_outcome(&new_outcome("a", AGREES)).await.unwrap();

    let newest = db.outcomes("answer1", None, 2).await.unwrap();
    let numbers: Vec<i64> = newest.iter().map(|outcome| outcome.number).collect();
    assert_eq!(numbers, [1501, 1500]);
    let next = db.outcomes("answer1", Some(1500), 1).await.unwrap();
    assert_eq!(next[0].number, 1499);
    assert_eq!(
        db.outcomes("answer1", None, 9999).await.unwrap().len(),
        1000
    );
    assert_eq!(db.outcomes("answer2", None, 9).await.unwrap(), []);

    // They go with their recommendation; what was learnt stays.
    db.run("DELETE FROM recommendation WHERE id = 'answer1'")
        .await
        .unwrap();
    assert_eq!(db.outcomes("answer1", None, 9).await.unwrap(), []);
    assert!(calibration(&db, &card(), "a", "", false).is_some());
}

/// As much as is kept; what a liar told is that from this number on.
async fn with_most_learnt(lied_from: i64) -> TestDatabase {
    let db = in_memory(1).await;
    let many = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {})
         INSERT INTO learnt (model_digest, model, gpu, source, strategy, driver, pytorch, share, raised, needed, has_sunk, agreed,
             outcomes, misses, refused, peaks, error_sum, error_most, updated_at, changed, owner)
         SELECT 'm' || n, 'mine', 'NVIDIA H200', 'simulated', 'none', '', '2.11', 36000, 36000, 0, FALSE, 0, 1, 1, 0, 0, 0, 0, n - 20000, n,
                CASE WHEN n < {lied_from} THEN '' ELSE 'liar' END
           FROM n",
        learning::MOST_LEARNT
    );
    db.run(many).await.unwrap();
    db
}

#[tokio::test]
async fn what_was_learnt_longest_ago_makes_room() {
    let db = with_most_learnt(learning::MOST_LEARNT + 1).await;
    db.read_learnt().await.unwrap();
    let by = |model: &str| calibration(&db, &card(), model, "", false).unwrap().of;
    assert_eq!(by("m1"), CalibrationSource::Itself);
    let others = calibration(&db, &card(), "unknown", "", false).unwrap();
    assert_eq!(
        (others.of, others.outcomes),
        (CalibrationSource::Others, 10_000)
    );

    db.add_outcome(&new_outcome("a", MISS)).await.unwrap();

    assert_eq!(by("m1"), CalibrationSource::Others);
    assert_eq!(by("m2"), CalibrationSource::Itself);
    assert_eq!(by("a"), CalibrationSource::Itself);
    let others = calibration(&db, &card(), "unknown", "", false).unwrap();
    assert_eq!(others.outcomes, 10_000);
    assert_eq!(db.learnt_count().await.unwrap().models, 10_000);
}

#[tokio::test]
async fn what_one_key_tells_pushes_out_its_own() {
    // Several keys have told most of it.
    let db = with_most_learnt(6001).await;
    // What others told of it, too, is not the key's own.
    for (owner, model) in [("mine", "m6001"), ("liar", "a")] {
        let owner = owner.to_owned();
        let new = new_outcome(model, MISS);
        db.add_outcome(&NewOutcome { owner, ..new }).await.unwrap();
    }

    let known = |model: &str| calibration(&db, &card(), model, "", false).unwrap().of;
    assert_eq!(known("m1"), CalibrationSource::Itself);
    assert_eq!(known("m6001"), CalibrationSource::Itself);
    assert_eq!(known("m6002"), CalibrationSource::Others);
}

/// An agent with a real card answers for its kind: which driver it has is not known before.
#[tokio::test]
async fn a_kind_of_card_learns_from_machines_with_any_driver() {
    let on = |driver: &str| LearntOn {
        source: "probed".to_owned(),
        driver: driver.to_owned(),
        ..card()
    };
    let db = in_memory(1).await;
    for (driver, lesson) in [("570.86.15", MISS), ("580.95.5", AGREES)] {
        let mut outcome = new_outcome("a", lesson);
        outcome.learning.as_mut().unwrap().on = on(driver);
        db.add_outcome(&outcome).await.unwrap();
    }
    let of = |on: &LearntOn| calibration(&db, on, "a", "", true).map(|it| it.share);

    assert_eq!(of(&on("580.95.5")), Some(Share(5_000)));
    assert_eq!(of(&on("")), Some(Share(36_000)));
    assert_eq!(of(&card()), None);

    // A card of a liar's own, of whose driver nobody else has told.
    let sunk = "INSERT INTO learnt (model_digest, model, gpu, source, strategy, driver, pytorch, share, raised, needed, has_sunk, agreed,
            outcomes, misses, refused, peaks, error_sum, error_most, updated_at, changed, owner, halved)
        VALUES ('b', 'mine', 'NVIDIA H200', 'probed', 'none', '580.95.5', '2.11', 5000, 5000, 0, TRUE, 20, 20, 0, 0, 0, 0, 0, 1, 9, '', 'HALVED')";
    let mut halved = Halved::default();
    halved.halve(&doubts());
    let halved = serde_json::to_string(&halved).unwrap();
    db.run(sunk.replace("HALVED", &halved)).await.unwrap();
    let mut lie = new_outcome("b", MISS);
    lie.learning.as_mut().unwrap().on = on("liar");
    lie.owner = "liar".to_owned();
    db.add_outcome(&lie).await.unwrap();
    let taught = calibration(&db, &on(""), "b", "victim", true).unwrap();
    assert_eq!((taught.share, taught.halved.kinds()), (Share(5_000), 1));
    assert!(taught.unconfirmed > Share(5_000), "{taught:?}");
}

#[tokio::test]
async fn what_another_process_learnt_is_noticed() {
    let place = DatabaseLocation::new();
    let here = Db::open(&place.database).await.unwrap();
    let there = Db::open(&place.database).await.unwrap();
    here.add_answer("1", 1, "mine", 1).await;

    there.add_outcome(&new_outcome("a", MISS)).await.unwrap();
    here.add_outcome(&new_outcome("b", AGREES)).await.unwrap();

    let taught = calibration(&here, &card(), "a", "", false).unwrap();
    assert_eq!(taught.share, Share(36_000));
    there.read_learnt().await.unwrap();
    assert_eq!(
        calibration(&there, &card(), "b", "", false).unwrap().share,
        Share(5_000)
    );
}

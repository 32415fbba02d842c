//! Questions about outcomes, and what is learnt of them for answers that keep 0.5 % free for the driver and 1 % for the card.

use super::{Question, list, maybe, ok, read, spaced};
use crate::model::CalibrationSource;
use crate::outcome::NewOutcome;
use crate::units::{Bytes, Share};
use crate::{Db, JsonText, Learning, LearntOn, OutcomeKept, StoredOutcome, Time};
use batchfit_fit::search::ask_tell::Outcome;
use batchfit_fit::search::headroom::{Doubt, Doubts, RejectReason, Sample, TrainingRun};

pub(super) async fn answer(db: &Db, question: &Question<'_>) -> Option<String> {
    Some(match question.words[..] {
        ["answers", last] => {
            for number in 1..=read(last) {
                db.add_answer(&number.to_string(), number, "mine", 1).await;
            }
            ok(true)
        }
        // What the last of them came to, where it is told several times.
        ["outcome", way] => {
            let mut answer = String::new();
            for _ in 0..question.or("times", 1) {
                let kept = db.add_outcome(&new_outcome(question, way)).await;
                answer = match kept.unwrap() {
                    OutcomeKept::New(kept) => change(kept),
                    OutcomeKept::Again(kept) => format!("again {}", change(kept)),
                    OutcomeKept::NameTaken => "taken".to_owned(),
                    OutcomeKept::Unknown => "-".to_owned(),
                };
            }
            answer
        }
        ["taught", way] => {
            let (owner, on) = (question.text("owner"), card(question));
            let is_for_agents = question.or("agents", false);
            let taught = db.lessons.calibration(&on, way, &owner, is_for_agents);
            maybe(taught.map(|taught| {
                let of = match taught.of {
                    CalibrationSource::Itself => "itself",
                    CalibrationSource::Others => "others",
                };
                let (share, outcomes) = (taught.share.0, taught.outcomes);
                let also = |is_so, said: String| if is_so { said } else { String::new() };
                let unconfirmed = taught.unconfirmed.0;
                let unconfirmed = also(unconfirmed > 0, format!(", {unconfirmed} unconfirmed"));
                let kept = format!(", keeps {}", taught.halved.kept(&doubts()).0);
                let kept = also(taught.halved.kinds() > 0, kept);
                format!("{share} of {outcomes} of {of}{unconfirmed}{kept}")
            }))
        }
        ["ways", model, training] => {
            let taught = db.calibrations(&card(question), model, training, ("", false));
            list(
                taught
                    .iter()
                    .map(|it| format!("{}:{}", maybe(it.limit), it.share.0)),
            )
        }
        ["turns"] => db.learnt_turns().to_string(),
        ["read-learnt"] => ok(db.read_learnt().await.is_ok()),
        ["learnt"] => {
            let rows = db.learnt_rows(None, None, 9).await.unwrap().into_iter();
            list(rows.map(|row| {
                let sunk = if row.has_sunk { " sunk" } else { "" };
                let (share, all, misses, peaks) = (row.share, row.outcomes, row.misses, row.peaks);
                let (sum, most) = (row.error_sum, row.error_most);
                format!("{share}{sunk} of {all}, {misses} missed, {peaks} peaks off by {sum}, {most} at most;")
            }))
        }
        ["learnt-count"] => {
            let count = db.learnt_count().await.unwrap();
            format!(
                "{} of {}, {} doubted",
                count.outcomes, count.models, count.doubted
            )
        }
        ["listed", answer, before, limit] => {
            let listed = db.outcomes(answer, before.parse().ok(), read(limit)).await;
            list(listed.unwrap().into_iter().map(|outcome| outcome.number))
        }
        // How many outcomes of these answers, and how many of them are of a batch.
        ["kept", first, last, batch] => {
            let (mut all, mut of_batch) = (0, 0);
            for number in read::<u32>(first)..=read(last) {
                let kept = db.outcomes(&format!("answer{number}"), None, 9999).await;
                let kept = kept.unwrap();
                all += kept.len();
                of_batch += kept
                    .iter()
                    .filter(|it| it.batch == read::<i64>(batch))
                    .count();
            }
            format!("{all} {of_batch}")
        }
        _ => return None,
    })
}

/// What an outcome changed, or why nothing.
fn change(kept: StoredOutcome) -> String {
    kept.doubt.unwrap_or_else(|| {
        let [before, after] = [kept.headroom_before, kept.headroom_after].map(maybe);
        format!("{before} to {after}")
    })
}

fn card(question: &Question<'_>) -> LearntOn {
    LearntOn {
        gpu: spaced(&question.or("gpu", "NVIDIA_H200".to_owned())),
        source: question.or("source", "simulated".to_owned()),
        strategy: "none".to_owned(),
        driver: question.text("driver"),
        pytorch: "2.11".to_owned(),
    }
}

/// What answers about a card keep free that was not measured.
fn doubts() -> Doubts {
    let all = [(Doubt::Driver, Share(5_000)), (Doubt::Card, Share(10_000))];
    all.into_iter().collect()
}

fn new_outcome(question: &Question<'_>, way: &str) -> NewOutcome {
    let share = |name: &str| question.named.get(name).map(|it| Share(read(it)));
    let lesson = match (share("needs"), share("more-than")) {
        (Some(needs), _) => Ok(Sample::Needs(needs)),
        (None, Some(free)) => Ok(Sample::NeedsMoreThan(free)),
        (None, None) => Err(RejectReason::NoPeak),
    };
    let doubted = share("doubt").map(|all| [(Doubt::Driver, all)].into_iter().collect());
    let name = question.named.get("name");
    NewOutcome {
        recommendation_id: question.or("of", "answer1".to_owned()),
        seen: TrainingRun {
            batch: 8,
            outcome: Outcome::Fits,
            peak_reserved: Some(Bytes(991)),
            retries: Some(0),
            steps: Some(10),
        },
        environment: JsonText::from("{}"),
        learning: lesson.map(|lesson| Learning {
            lesson,
            on: card(question),
            way: way.to_owned(),
            model: "mine".to_owned(),
            doubts: doubted.unwrap_or_else(doubts),
            headroom: Share(15_000),
            of_others: share("others").unwrap_or_default(),
            error: Some(1_000),
        }),
        owner: question.text("owner"),
        named: name.map(|name| ((*name).to_owned(), question.text("body"))),
        created_at: Time(7),
    }
}

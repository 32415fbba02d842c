//! Questions about fits, and the keys and names under which they are asked.

use serde_json::Value;

use super::{Question, attempt, list, maybe, ok, read, spaced, time, together};
use crate::database::test_database::new_fit;
use crate::model::{Digest, Priority};
use crate::scenarios::uploads::{new_upload, said, space};
use crate::{
    ApiKey, Claimed, Db, Enqueued, FitState, FitTerms, IdempotencyKey, Lease, NewFit,
    ParallelSimulated, Reuse, Scope, Time,
};

pub(super) async fn answer(db: &Db, question: &Question<'_>) -> Option<String> {
    let holder = &question.owner("by");
    Some(match question.words[..] {
        ["add", ref ids @ .., lane] => {
            let mut answers = Vec::new();
            for id in ids {
                answers.push(add(db, question, id, lane).await);
            }
            together(answers)
        }
        // Until 100 milliseconds later.
        ["claim", now] => claim(db, question, now).await.unwrap_or("-".to_owned()),
        ["claim-all", now] => {
            let mut claimed = Vec::new();
            while let Some(fit) = claim(db, question, now).await {
                claimed.push(fit);
            }
            list(claimed)
        }
        ["cancel", id, now] => {
            let owner = question.named.get("owner").copied();
            ok(db.cancel(id, owner, time(now)).await.unwrap())
        }
        ["fail", id, number, now] => {
            let failed = db.fail(attempt(id, number, holder), &Value::Null, time(now));
            ok(failed.await.unwrap())
        }
        ["finish", id, number, now] => {
            let finished = db.finish(attempt(id, number, holder), &Value::Null, &[], time(now));
            ok(finished.await.unwrap())
        }
        ["put-back", id, number] => ok(db.put_back(attempt(id, number, holder)).await.unwrap()),
        ["state", ref ids @ ..] => {
            let mut states = Vec::new();
            for id in ids {
                states.push(maybe(db.fit_state(id).await.unwrap().map(FitState::name)));
            }
            together(states)
        }
        ["limit", id] => maybe(db.fit_timeout(id).await.unwrap()),
        ["waiting", lane, now] => {
            let lanes = format!(",{},", spaced(lane));
            let waiting = db.waiting_for_agents(&lanes, time(now)).await.unwrap();
            list(waiting.into_iter().map(|(id, _lane)| id))
        }
        ["twins", id, number] => {
            let (_, of) = db
                .attempted(attempt(id, number, holder))
                .await
                .unwrap()
                .unwrap();
            let twins = db.waiting_twins(&of).await.unwrap().into_iter();
            list(twins.map(|twin| format!("{} attempt {}", twin.id, twin.attempts)))
        }
        ["finished", fingerprint] => {
            let by_agents_too = question.or("agents", true);
            let found = db.finished_fit(fingerprint, by_agents_too).await;
            maybe(found.unwrap())
        }
        ["prune", oldest, now, most] => {
            let pruned = db.prune(time(oldest), time(now), read(most)).await;
            pruned.unwrap().fits.to_string()
        }
        ["key", name, scope] => {
            let scope = Scope::named(scope).unwrap();
            let issued = ApiKey::issue(name.to_owned(), name, scope, &[7; 32], Time(1));
            ok(db.add_key(&issued.unwrap().0).await.unwrap())
        }
        ["revoke", name, now] => ok(db.revoke_key(name, time(now)).await.unwrap()),
        ["cancel-of-revoked", now] => list(db.cancel_of_revoked_keys(time(now)).await.unwrap()),
        ["name", owner, name, fit, now] => {
            let key = key(owner, name);
            let kept = db.remember_key(&key, fit, time(now));
            ok(kept.await.unwrap())
        }
        ["named", owner, name] => {
            let before = db.asked_before(&key(owner, name)).await;
            maybe(before.unwrap().map(|before| before.fit_id))
        }
        ["sweep-names", oldest, most] => {
            let swept = db.sweep_keys(time(oldest), read(most)).await;
            swept.unwrap().to_string()
        }
        _ => return None,
    })
}

fn key(owner: &str, name: &str) -> IdempotencyKey {
    IdempotencyKey {
        owner: owner.to_owned(),
        key: name.to_owned(),
        body: String::new(),
    }
}

async fn add(db: &Db, question: &Question<'_>, id: &str, lane: &str) -> String {
    let uploads = question.all("uploads").into_iter();
    let aside = question.all("aside").into_iter().next();
    let fit = NewFit {
        fingerprint: question.or("same", id.to_owned()),
        owner: question.text("owner"),
        terms: FitTerms {
            priority: Priority::named(&question.or("priority", "batch".to_owned())).unwrap(),
            timeout_seconds: question.named.get("limit").map(|limit| read(limit)),
        },
        uploads: uploads.map(|it| Digest::of(it.as_bytes())).collect(),
        aside: aside.map(|contents| new_upload(&contents, question.or("at", 2_000))),
        ..new_fit(id, &spaced(lane))
    };
    let capacity = question.or("capacity", 100);
    let added = db.enqueue(&fit, Reuse::Finished, capacity, space(question));
    match added.await.unwrap() {
        Enqueued::Added => ok(true),
        Enqueued::Same(id) => format!("same as {id}"),
        Enqueued::KeyTaken => "taken".to_owned(),
        Enqueued::QueueFull { waiting, of_key } => {
            format!("{waiting} wait{}", if of_key { " of the key" } else { "" })
        }
        Enqueued::UploadGone(digest) => said(question, &digest) + " is gone",
    }
}

async fn claim(db: &Db, question: &Question<'_>, now: &str) -> Option<String> {
    let now = time(now);
    let holder = question.owner("by");
    let lease = Lease {
        holder: &holder,
        until: Time(now.0 + 100),
    };
    let Claimed {
        id,
        attempts,
        apart,
        ..
    } = db.claim(ParallelSimulated(2), lease, now).await.unwrap()?;
    let again = if attempts > 1 {
        format!(", attempt {attempts}")
    } else {
        String::new()
    };
    Some(id + &again + if apart { ", apart" } else { "" })
}

//! Questions about who works on fits, and until when.

use super::{Question, attempt, list, maybe, ok, read, time};
use crate::{Db, FitState, Lease, LeasedFit, Time};

pub(super) async fn answer(db: &Db, question: &Question<'_>) -> Option<String> {
    let holder = &question.owner("by");
    let silence = question.or("silence", 100);
    Some(match question.words[..] {
        // The first fit, for an agent. Says how long it may take.
        ["take", now, until] => {
            let lease = Lease {
                holder,
                until: time(until),
            };
            let held = question.or("held", 0);
            let claimed = db.claim_one("1", lease, held, time(now)).await.unwrap();
            maybe(claimed.map(|fit| {
                fit.timeout_seconds
                    .map_or("ok".to_owned(), |s| s.to_string())
            }))
        }
        ["renew", id, number, until] => {
            let renewed = db
                .renew(attempt(id, number, holder), time(until), silence)
                .await;
            maybe(renewed.unwrap().map(|until| until.0))
        }
        ["renew-all", until] => {
            let lease = Lease {
                holder,
                until: time(until),
            };
            db.renew_all(lease).await.unwrap().to_string()
        }
        ["expired", now] => {
            let expired = db.expired(time(now), holder, silence).await;
            expired.unwrap().to_string()
        }
        ["interrupted"] => db.interrupted().await.unwrap().to_string(),
        ["attempt", id, number] => {
            let state = db.attempt_state(attempt(id, number, holder)).await.unwrap();
            maybe(state.map(FitState::name))
        }
        // Whether the one that the holder works on is.
        ["overdue", now] => {
            let running = db.running_fits(Some(holder)).await.unwrap();
            ok(running[0].is_overdue(silence, time(now)))
        }
        // Until when it is the holder's, and until when it may be.
        ["held"] => {
            let running = db.running_fits(Some(holder)).await.unwrap();
            let until = |time: Option<Time>| maybe(time.map(|time| time.0));
            let held = |fit: &LeasedFit| until(fit.lease_until) + " " + &until(fit.time_limit);
            list(running.iter().map(held))
        }
        ["give-back", now] => {
            let given = db.give_back(holder, None, time(now)).await;
            given.unwrap().to_string()
        }
        ["give-back", id, number, now] => {
            let given = db.give_back(holder, Some(attempt(id, number, holder)), time(now));
            given.await.unwrap().to_string()
        }
        ["spare", until] => ok(db.spare_agents(time(until)).await.is_ok()),
        ["clock-was-set", by] => ok(db.clock_was_set(read(by)).await.is_ok()),
        _ => return None,
    })
}

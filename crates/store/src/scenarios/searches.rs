//! Questions about searches, of which there are three at most, one of a key, each of two observations.

use futures_util::future::join_all;

use super::{Question, list, maybe, ok, read, time, together};
use crate::{Db, JsonText, ObservationStatus, SearchBounds, SearchState, Time};
use batchfit_fit::search::ask_tell::{Observation, Outcome};

const BOUNDS: SearchBounds = SearchBounds {
    searches: 3,
    of_a_key: 1,
    observations: 2,
    contested_ms: 100,
};

pub(super) async fn answer(db: &Db, question: &Question<'_>) -> Option<String> {
    Some(match question.words[..] {
        // All at the same time.
        ["search", ref ids @ .., now] => {
            let (terms, owner) = (JsonText::from("{}"), question.text("owner"));
            let now = time(now);
            let idle = Time(now.0 - 1000);
            let begin = |id| db.add_search(id, (&terms, &owner), BOUNDS, idle, now);
            let added = join_all(ids.iter().copied().map(begin)).await;
            together(added.into_iter().map(|added| ok(added.unwrap())).collect())
        }
        ["tell", id, batch] => {
            let told = Observation::new(read(batch), Outcome::Fits);
            let status = db.add_observation(id, &told, BOUNDS, Time(1)).await;
            match status.unwrap() {
                ObservationStatus::New => ok(true),
                other => format!("{other:?}").to_lowercase(),
            }
        }
        ["told", id] => {
            let told = db.search(id).await.unwrap().unwrap().observations;
            list(told.into_iter().map(|told| told.batch))
        }
        ["search-state", id] => {
            let search = db.search(id).await.unwrap();
            maybe(search.map(|search| search.state.name()))
        }
        ["owner", id] => maybe(db.search(id).await.unwrap().map(|search| search.owner)),
        ["note", id, state, observations] => {
            let state = SearchState::named(state).unwrap();
            let noted = db.note_search(id, state, None, read(observations)).await;
            ok(noted.is_ok())
        }
        ["cancel-search", id, now] => ok(db.cancel_search(id, time(now)).await.unwrap()),
        _ => return None,
    })
}

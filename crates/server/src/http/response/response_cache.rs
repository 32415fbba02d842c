//! A cache of answers by request body.
//!
//! A launcher sends the same request at each start, from each of its ranks. While the fit of that body exists, its document is
//! sent without reading the request again. Answers that depend on more than the request (free memory of a GPU, an upload) are
//! not cached.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;

use crate::jobs::{JobError, Jobs};
use crate::lock;
use crate::model::Digest;
use crate::store::FitState;

/// What all answers may take, in bytes: some thousands of ordinary ones.
const SPACE: usize = 16 << 20;

/// The longest body whose answer is kept, and the longest answer. Other requests take longer than to look for their fit.
const LONGEST: usize = 256 << 10;

/// How long a fit is assumed to exist without a look: it may be deleted.
const FRESH: Duration = Duration::from_secs(1);

/// The answers, oldest first. Cloning it shares them.
#[derive(Debug, Clone, Default)]
pub(in crate::http) struct ResponseCache(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    by_question: HashMap<Digest, Known>,
    oldest_first: VecDeque<Digest>,
    bytes: usize,
}

/// An answer that is kept.
#[derive(Debug, Clone)]
struct Known {
    answer: Answer,
    /// When its fit was last seen to be there.
    seen: Instant,
    /// What was known of headroom and of cards then, by [`Jobs::turns`]: the answer may be another one since.
    turns: u64,
}

/// The answer to a question: a fit that is done.
#[derive(Debug, Clone)]
pub(in crate::http) struct Answer {
    /// The fit.
    pub(in crate::http) id: String,
    /// Its document.
    pub(in crate::http) document: Bytes,
}

impl ResponseCache {
    /// What the answer to this body is kept under, where it can be: what outcomes taught one key makes its answer another than that
    /// of others.
    pub(in crate::http) fn key(owner: &str, body: &[u8]) -> Option<Digest> {
        (body.len() <= LONGEST).then(|| Digest::of(&[owner.as_bytes(), body].join(&0)))
    }

    /// The answer to this question, if its fit is still there.
    pub(in crate::http) async fn find(
        &self,
        key: &Digest,
        jobs: &Jobs,
    ) -> Result<Option<Answer>, JobError> {
        let Some(known) = lock(&self.0).by_question.get(key).cloned() else {
            return Ok(None);
        };
        let is_of_today = || known.turns == jobs.turns();
        if known.seen.elapsed() < FRESH && is_of_today() {
            return Ok(Some(known.answer));
        }
        let state = jobs.db().fit_state(&known.answer.id).await?;
        // Another process may have learnt something.
        jobs.db().read_learnt().await?;
        let mut entries = lock(&self.0);
        if state == Some(FitState::Done) && is_of_today() {
            if let Some(known) = entries.by_question.get_mut(key) {
                known.seen = Instant::now();
            }
            return Ok(Some(known.answer));
        }
        entries.forget(key);
        Ok(None)
    }

    /// Keeps an answer, in the place of the oldest ones where there is no other.
    pub(in crate::http) fn keep(&self, key: Digest, answer: Answer, turns: u64) {
        if answer.document.len() > LONGEST {
            return;
        }
        let mut entries = lock(&self.0);
        entries.forget(&key);
        entries.bytes += answer.document.len();
        entries.oldest_first.push_back(key.clone());
        let seen = Instant::now();
        let known = Known {
            answer,
            seen,
            turns,
        };
        entries.by_question.insert(key, known);
        while entries.bytes > SPACE
            && let Some(oldest) = entries.oldest_first.front().cloned()
        {
            entries.forget(&oldest);
        }
    }
}

impl Entries {
    fn forget(&mut self, key: &Digest) {
        if let Some(known) = self.by_question.remove(key) {
            self.bytes -= known.answer.document.len();
            self.oldest_first.retain(|other| other != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::http::response::response_cache::*;

    fn answer(bytes: usize) -> Answer {
        Answer {
            id: "1".to_owned(),
            document: Bytes::from(vec![b' '; bytes]),
        }
    }

    #[test]
    fn the_oldest_answers_make_room_and_long_ones_are_not_kept() {
        let answers = ResponseCache::default();
        let key = |number: usize| ResponseCache::key("", number.to_string().as_bytes()).unwrap();

        for number in 0..100 {
            answers.keep(key(number), answer(LONGEST), 0);
        }
        answers.keep(key(100), answer(LONGEST + 1), 0);
        answers.keep(key(99), answer(LONGEST), 0);

        let entries = lock(&answers.0);
        assert_eq!(entries.bytes, SPACE);
        assert_eq!(entries.by_question.len(), SPACE / LONGEST);
        assert_eq!(entries.oldest_first.len(), entries.by_question.len());
        assert!(entries.by_question.contains_key(&key(99)));
        assert!(!entries.by_question.contains_key(&key(100)));
        assert!(!entries.by_question.contains_key(&key(0)));
        assert_eq!(ResponseCache::key("", &vec![0; LONGEST + 1]), None);
    }
}

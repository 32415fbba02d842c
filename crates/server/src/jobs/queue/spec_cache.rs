//! Requests that were just read, kept in memory until the runner claims their fits.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;
use tracing::Span;

use crate::lock;
use crate::model::Request;

/// Largest size of the models in requests that wait, beside the latest: see [`Request::size`]. About KiB.
const LARGEST: usize = 64_000;
/// Most requests that wait.
const MOST_REQUESTS: usize = 64;

/// Requests of queued fits, so that a graph that was read to be checked is not read again to be answered. Those that
/// have to wait long are dropped: the database has them too.
#[derive(Debug, Default)]
pub(in crate::jobs) struct SpecCache {
    waiting: Mutex<VecDeque<Waiting>>,
    /// How many fits that were taken up wait for the permit.
    wanted: AtomicUsize,
}

/// A request on its way.
#[derive(Debug)]
struct Waiting {
    /// The fit's name.
    id: String,
    request: Request,
    /// Of its model.
    size: usize,
    /// The permit under which a large model was read, and under which it is answered: so that no other is read in
    /// between.
    permit: Option<OwnedSemaphorePermit>,
    /// In which it was asked, for the log.
    span: Span,
}

/// A fit that was taken up waits for the permit.
#[derive(Debug)]
pub(in crate::jobs) struct PermitWaiter<'a>(&'a SpecCache);

impl Drop for PermitWaiter<'_> {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that was left and is taken back when this is dropped, unless it is to stay.
#[derive(Debug)]
pub(in crate::jobs) struct CacheEntryGuard<'a> {
    cache: &'a SpecCache,
    id: Option<String>,
}

impl SpecCache {
    /// Keeps a request for the runner that claims its fit.
    pub(in crate::jobs) fn leave(
        &self,
        id: &str,
        request: Request,
        permit: Option<OwnedSemaphorePermit>,
    ) -> CacheEntryGuard<'_> {
        let mut all = lock(&self.waiting);
        let is_wanted = self.wanted.load(Ordering::Relaxed) > 0;
        let permit = permit.filter(|_| !is_wanted);
        let size = request.size().unwrap_or(0);
        // So large a model is in memory under the permit alone.
        if size > LARGEST && permit.is_none() {
            return CacheEntryGuard {
                cache: self,
                id: None,
            };
        }
        all.push_back(Waiting {
            id: id.to_owned(),
            size,
            request,
            permit,
            span: Span::current(),
        });
        let latest = all.len() - 1;
        let mut size: usize = all.range(..latest).map(|waiting| waiting.size).sum();
        while all.len() > MOST_REQUESTS || size > LARGEST {
            size -= all.pop_front().map_or(0, |oldest| oldest.size);
        }
        CacheEntryGuard {
            cache: self,
            id: Some(id.to_owned()),
        }
    }

    /// The request of this fit, if it still waits, and its permit.
    pub(in crate::jobs) fn take(
        &self,
        id: &str,
    ) -> Option<(Request, Option<OwnedSemaphorePermit>)> {
        let mut all = lock(&self.waiting);
        let index = all.iter().position(|waiting| waiting.id == id)?;
        let waiting = all.remove(index)?;
        Some((waiting.request, waiting.permit))
    }

    /// Those that wait.
    pub(in crate::jobs) fn ids(&self) -> Vec<String> {
        let all = lock(&self.waiting);
        all.iter().map(|waiting| waiting.id.clone()).collect()
    }

    /// What the log says of all that is done for this fit: its id, and that of the request that asked for it, where that
    /// was asked of this process a moment ago.
    pub(in crate::jobs) fn span(&self, id: &str) -> Span {
        let all = lock(&self.waiting);
        let asked = all.iter().find(|waiting| waiting.id == id);
        let parent = asked.and_then(|waiting| waiting.span.id());
        tracing::info_span!(parent: parent, "fit", fit.id = id)
    }

    /// Lets go of the permit, and keeps it of no request until this is dropped: a fit that was taken up waits for it,
    /// and those that are left here are taken up after that one.
    pub(in crate::jobs) fn want_permit(&self) -> PermitWaiter<'_> {
        let mut all = lock(&self.waiting);
        self.wanted.fetch_add(1, Ordering::Relaxed);
        for waiting in all.iter_mut() {
            waiting.permit = None;
        }
        all.retain(|waiting| waiting.size <= LARGEST);
        PermitWaiter(self)
    }
}

impl CacheEntryGuard<'_> {
    /// It is to stay: the fit is queued.
    pub(in crate::jobs) fn stay(mut self) {
        self.id = None;
    }
}

impl Drop for CacheEntryGuard<'_> {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.cache.take(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use crate::jobs::queue::spec_cache::*;
    use crate::model::RequestDocument;

    /// A request for a model of so many layers.
    fn request(layers: usize) -> Request {
        of(r#"{"type": "relu"}"#, layers)
    }

    fn of(layer: &str, layers: usize) -> Request {
        let layers = vec![layer; layers].join(",");
        let input = r#""input": {"shape": [4]}"#;
        let text = format!(r#"{{"model": {{{input}, "layers": [{layers}]}}}}"#);
        let document = RequestDocument::from_json(text.as_bytes()).unwrap();
        let request = Request::parse(document).unwrap();
        request.lower().unwrap();
        request
    }

    #[test]
    fn a_request_is_taken_once() {
        let cache = SpecCache::default();
        cache.leave("1", request(1), None).stay();

        assert!(cache.take("2").is_none());
        assert!(cache.take("1").is_some());
        assert!(cache.take("1").is_none());
    }

    #[test]
    fn a_request_that_was_never_queued_leaves_its_permit() {
        let one = Arc::new(Semaphore::new(1));
        let permit = || Arc::clone(&one).try_acquire_owned().ok();
        let cache = SpecCache::default();

        let left = cache.leave("1", request(1), permit());
        assert!(permit().is_none());
        drop(left);
        assert!(cache.take("1").is_none());

        cache.leave("2", request(1), permit()).stay();
        assert!(permit().is_none());
        drop(cache.want_permit());
        assert!(permit().is_some());
        assert!(cache.take("2").is_some());

        let large = || of(r#"{"type": "linear", "out_features": 4}"#, 20_000);
        cache.leave("3", large(), permit()).stay();
        drop(cache.want_permit());
        assert!(
            cache.take("3").is_none(),
            "it is in memory without a permit"
        );
        cache.leave("4", large(), None).stay();
        assert!(cache.take("4").is_none());
    }

    /// Or else it waits for one that is answered after it, and both for ever.
    #[test]
    fn a_fit_that_was_taken_up_waits_for_none_that_is_left_later() {
        let large = Arc::new(Semaphore::new(1));
        let permit = || Arc::clone(&large).try_acquire_owned().ok();
        let cache = SpecCache::default();

        let read_meanwhile = permit();
        let wanted = cache.want_permit();
        cache.leave("1", request(1), read_meanwhile).stay();
        assert!(permit().is_some());
        drop(wanted);

        cache.leave("2", request(1), permit()).stay();
        assert!(permit().is_none());
    }

    #[test]
    fn the_oldest_make_room() {
        let cache = SpecCache::default();
        for id in ["1", "2", "3"] {
            cache.leave(id, request(LARGEST / 8), None).stay();
        }
        let taken = ["1", "2", "3"].map(|id| cache.take(id).is_some());
        assert_eq!(taken, [true, true, true]);

        for id in ["1", "2", "3", "4"] {
            cache.leave(id, request(LARGEST / 6), None).stay();
        }
        let taken = ["1", "2", "3", "4"].map(|id| cache.take(id).is_some());
        assert_eq!(taken, [false, false, true, true]);

        for id in 0..=MOST_REQUESTS {
            cache.leave(&id.to_string(), request(1), None).stay();
        }
        assert!(cache.take("0").is_none());
        assert!(cache.take("1").is_some());
    }
}

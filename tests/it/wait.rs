//! Waiting for events: the one place where tests look at a clock.
//!
//! A test never waits for time to pass and never asserts how long something took. It waits for what it needs, and [`HANG`] is only
//! there so that a hang ends with a sentence instead of a stuck run: far longer than anything takes on the slowest machine.

use std::time::{Duration, Instant};

/// After this a test takes what it waits for to be stuck.
pub(crate) const HANG: Duration = Duration::from_mins(5);

/// How long to pause between two looks at something that sends no event.
const PAUSE: Duration = Duration::from_millis(5);

/// What `future` gives.
///
/// # Panics
/// Where that takes longer than [`HANG`], with `what` was waited for.
pub(crate) async fn for_future<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(HANG, future).await;
    ended.unwrap_or_else(|_| panic!("waited {HANG:?} for {what}"))
}

/// What `look` gives once it gives something; asks again and again, on this thread.
///
/// # Panics
/// Where that takes longer than [`HANG`], with `what` was waited for.
pub(crate) fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < HANG, "waited {HANG:?} for {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until `look` gives true, on this thread.
///
/// # Panics
/// As [`until_some`].
pub(crate) fn until(what: &str, mut look: impl FnMut() -> bool) {
    until_some(what, || look().then_some(()));
}

/// As [`until_some`], without blocking the thread.
///
/// # Panics
/// As [`until_some`].
pub(crate) async fn until_some_async<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    for_future(what, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
    .await
}

/// As [`until`], without blocking the thread.
///
/// # Panics
/// As [`until_some`].
pub(crate) async fn until_async(what: &str, mut look: impl AsyncFnMut() -> bool) {
    until_some_async(what, async || look().await.then_some(())).await;
}

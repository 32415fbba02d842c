//! What a fit waits for, and what ends that.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::limits::Cancel;
use crate::store::StoreError;

/// What comes of waiting; `None` where the fit is cancelled first, taken by another, or the server ends: what it holds meanwhile goes then.
///
/// `ended` changes whenever a fit ends.
pub(super) async fn until_stopped<T>(
    mut ended: watch::Receiver<()>,
    (cancel, shutdown): (&Cancel, &CancellationToken),
    waiting: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        _ = ended.wait_for(|()| cancel.is_cancelled()) => None,
        () = shutdown.cancelled() => None,
        waited = waiting => Some(waited),
    }
}

/// Waits until the fit has been worked on for longer than it may be, and says how long that is. Its key may give it more
/// meanwhile by asking again, which `ask` finds out.
pub(super) async fn overdue<F>(mut allowed: Option<i64>, ask: impl Fn() -> F) -> u64
where
    F: Future<Output = Result<Option<i64>, StoreError>>,
{
    let begun = tokio::time::Instant::now();
    loop {
        let Some(seconds) = allowed else {
            return std::future::pending().await;
        };
        let seconds = seconds.unsigned_abs();
        tokio::time::sleep_until(begun + Duration::from_secs(seconds)).await;
        match ask().await {
            Ok(longer) if longer != allowed => allowed = longer,
            Ok(_) | Err(_) => return seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_fit_that_waits_for_its_place_goes_when_it_is_cancelled() {
        let (ended, cancel, shutdown) = <(watch::Sender<()>, Cancel, CancellationToken)>::default();
        let stops = (&cancel, &shutdown);
        let mut waits = pin!(until_stopped(ended.subscribe(), stops, pending::<()>()));
        for is_cancelled in [false, true] {
            if is_cancelled {
                cancel.cancel();
            }
            ended.send_replace(());
            tokio::select! {
                biased;
                waited = &mut waits => assert!(is_cancelled && waited.is_none()),
                () = ready(()) => assert!(!is_cancelled),
            }
        }
        // One that was cancelled before takes no place that is free.
        assert_eq!(
            until_stopped(ended.subscribe(), stops, ready(1)).await,
            None
        );
    }

    #[tokio::test]
    async fn a_longer_deadline_counts_when_the_first_one_passes() {
        assert_eq!(overdue(Some(0), || ready(Ok(Some(0)))).await, 0);

        let asked = Notify::new();
        let ask = || {
            asked.notify_one();
            ready(Ok(None))
        };
        tokio::select! {
            biased;
            _ = overdue(Some(0), ask) => panic!("it has all the time"),
            () = asked.notified() => {}
        }
    }
}

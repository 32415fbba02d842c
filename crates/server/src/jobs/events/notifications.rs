//! What other servers on the same database do.
//!
//! Nothing here runs where there is one server. See Note [News] in `store/src/engine/notifications.rs`: a notification wakes
//! those that wait, and the table has the truth, so it is also polled every few seconds and whenever notifications may be lost.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::to_raw_value;
use tokio::time::{MissedTickBehavior, sleep};

use crate::jobs::Progress;
use crate::jobs::events::Notification;
use crate::jobs::queue::Shared;
use crate::store::{FitState, Listener, Payload, StoreError};

/// How often the table is polled for changes without a notification.
const LOOK: Duration = Duration::from_secs(5);

/// How long is waited after the database could not be reached; at first, and at most.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const RETRY_AFTER_AT_MOST: Duration = Duration::from_secs(2);

/// How often a server tells how far its fits are. Followers on this server see each probe, followers on others the latest.
const TELL: Duration = Duration::from_millis(250);

/// Most fits of other servers of which it is known how far they are.
const MOST_ELSEWHERE: usize = 10_000;

/// How far the fits of other servers are.
#[derive(Debug, Default)]
pub(in crate::jobs) struct RemoteProgress(Mutex<HashMap<String, Progress>>);

impl RemoteProgress {
    pub(in crate::jobs) fn progress(&self, id: &str) -> Option<Progress> {
        self.lock().get(id).cloned()
    }

    fn note(&self, id: String, progress: Progress) {
        let mut all = self.lock();
        if all.len() < MOST_ELSEWHERE || all.contains_key(&id) {
            all.insert(id, progress);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Progress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens until the server ends.
pub(in crate::jobs) async fn listen(shared: Arc<Shared>) {
    let mut retry_after = RETRY_AFTER;
    while !shared.shutdown.is_cancelled() {
        let heard = match shared.db.listen().await {
            Ok(Some(listener)) => {
                retry_after = RETRY_AFTER;
                hear_all(&shared, listener).await
            }
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let Err(error) = heard else { return };
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "hears nothing from other servers: {error}"
        );
        tokio::select! {
            () = sleep(retry_after) => {}
            () = shared.shutdown.cancelled() => return,
        }
        retry_after = (2 * retry_after).min(RETRY_AFTER_AT_MOST);
    }
}

/// Hears until the server ends, or the database cannot be reached.
async fn hear_all(shared: &Shared, mut listener: Listener) -> Result<(), StoreError> {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let told = {
            // To the end: half of a message, or a connection that does not listen yet, would be lost.
            let next = listener.next();
            tokio::pin!(next);
            loop {
                tokio::select! {
                    told = &mut next => break told?,
                    _ = looks.tick() => look(shared).await?,
                    () = shared.shutdown.cancelled() => return Ok(()),
                }
            }
        };
        match told {
            Some(told) => hear(shared, told),
            None => look(shared).await?,
        }
    }
}

fn hear(shared: &Shared, told: Payload) {
    let is_mine = |holder: &str| holder == shared.holder.name();
    match told {
        Payload::State {
            fit,
            state,
            attempts,
            holder,
        } => has_changed(
            shared,
            &fit,
            state,
            attempts,
            holder.as_deref().is_some_and(is_mine),
        ),
        Payload::Progress {
            fit,
            holder,
            progress,
        } => {
            if !is_mine(&holder)
                && let Ok(progress) = serde_json::from_value::<Progress>(progress)
            {
                if let Some(log) = shared.events.find(&fit) {
                    log.push(Notification::Probe(progress.clone()));
                }
                shared.remote_progress.note(fit, progress);
            }
        }
    }
}

/// Takes note of where a fit stands.
fn has_changed(shared: &Shared, id: &str, state: FitState, attempts: i64, is_mine: bool) {
    shared.events.hear(id, state, attempts);
    match state {
        FitState::Queued => shared.wake.notify_one(),
        FitState::Running if is_mine => return,
        // Who works on it reads its request.
        FitState::Running => drop(shared.spec_cache.take(id)),
        FitState::Done | FitState::Failed | FitState::Cancelled => {
            drop(shared.spec_cache.take(id));
            if let Some(running) = shared.running(id)
                && !is_mine
            {
                running.cancel.cancel();
            }
            if state == FitState::Cancelled
                && let Some(running) = shared.running(id)
            {
                running.cancel.cancel();
            }
            shared.ended.send_replace(());
            shared.wake.notify_one();
        }
    }
    shared.remote_progress.lock().remove(id);
}

/// Looks up all fits that this server works on, or that its clients wait for.
async fn look(shared: &Shared) -> Result<(), StoreError> {
    let known = shared.events.unfinished();
    let waiting = shared.spec_cache.ids();
    let unfinished = shared.db.unfinished_fits().await?;
    let mut there = HashSet::new();
    let mut mine = HashSet::new();
    for fit in &unfinished {
        let is_mine = fit.holder.as_ref() == Some(&shared.holder);
        if fit.state == FitState::Running && is_mine {
            mine.insert(fit.id.clone());
        }
        there.insert(fit.id.clone());
        has_changed(shared, &fit.id, fit.state, fit.attempts, is_mine);
    }
    for id in known.into_iter().chain(waiting) {
        if there.contains(&id) {
            continue;
        }
        if let Some((state, attempts)) = shared.db.fit_attempts(&id).await? {
            has_changed(shared, &id, state, attempts, false);
        } else {
            // Dropped meanwhile.
            drop(shared.spec_cache.take(&id));
        }
    }
    shared
        .remote_progress
        .lock()
        .retain(|id, _| there.contains(id));
    Ok(())
}

/// Tells others how far the fits are that this server works on, until it ends.
pub(in crate::jobs) async fn publish_progress(shared: Arc<Shared>) {
    let mut told: HashMap<String, Progress> = HashMap::new();
    let mut beats = tokio::time::interval(TELL);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beats.tick() => {}
            () = shared.shutdown.cancelled() => return,
        }
        let now = shared.all_progress();
        for (id, progress) in &now {
            if told.get(id) == Some(progress) {
                continue;
            }
            let Ok(text) = to_raw_value(progress) else {
                continue;
            };
            // It is only informative.
            let holder = shared.holder.name();
            if let Err(error) = shared.db.tell_progress(id, holder, &text).await {
                tracing::debug!("could not tell how far fit {id} is: {error}");
                break;
            }
        }
        told = now;
    }
}

//! Leases of the fits that this server works on.
//!
//! See [`crate::store::Lease`]. A server renews all of its leases with one statement.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::clock::milliseconds;
use super::document::LARGE_LANE;
use super::queue::Shared;
use super::{DeviceKind, DeviceSummary};
use crate::store::{LeaseOwner, SIMULATED_LANE, StoreError, Time, chance};

/// How long a fit stays with a holder that says nothing. A server that is killed keeps its fits for as long; one that cannot
/// write to the database for as long loses them. Kubernetes gives a node up after 40 s, and etcd's leases are of seconds.
pub const LEASE: Duration = Duration::from_secs(30);

/// How often in that time a holder says that it is there: two of them may be lost.
const RENEWALS: u32 = 3;

/// By how many milliseconds a clock may differ from one that nobody sets before it was set. NTP steps by 128 or more.
const SET: u64 = 1_000;

/// The name of this server: of the machine, the process, and chance, because a container's first process is always the first.
pub(super) fn name() -> LeaseOwner {
    let machine = batchfit_platform::machine();
    let process = std::process::id();
    LeaseOwner::server(&format!("{machine} {process} {:08x}", chance() >> 32))
}

/// Of which lanes a server takes fits: of those that are simulated, and of its GPUs under each of their names, as
/// [`Db::claim_for`](crate::store::Db::claim_for) reads them.
pub(super) fn lanes_of(devices: &[DeviceSummary]) -> String {
    let real = devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Cuda && device.available);
    let named = real.flat_map(|device| [Some(device.device.as_str()), device.card.as_deref()]);
    let mut lanes: Vec<&str> = named.flatten().collect();
    if !lanes.is_empty() {
        lanes.push("auto");
    }
    // A card that no machine has is simulated under its own name.
    lanes.extend([SIMULATED_LANE, LARGE_LANE]);
    format!(",{},", lanes.join(","))
}

/// How it stands between this server and the database.
#[derive(Debug, Default)]
pub(super) struct Heartbeats(Mutex<Known>);

#[derive(Debug, Default, Clone, Copy)]
struct Known {
    /// Since when the database has answered each time.
    reached_since: Option<Instant>,
    /// What its clock last said, and when.
    clock: Option<(Instant, Time)>,
}

impl Known {
    /// What time it is where leases are counted.
    fn time(&self, at: Instant) -> Option<Time> {
        let (then, said) = self.clock?;
        let passed = milliseconds(at.saturating_duration_since(then));
        Some(Time(said.0.saturating_add(passed)))
    }
}

impl Heartbeats {
    fn known(&self) -> Known {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What time it is where leases are counted, by a clock that nobody sets; `now` before the first look.
    pub(super) fn time(&self, now: Time) -> Time {
        self.known().time(Instant::now()).unwrap_or(now)
    }

    /// By how many milliseconds the clock that says this was set since it was last looked at.
    fn set_by(&self, (at, there): (Instant, Time)) -> i64 {
        let expected = self.known().time(at).unwrap_or(there);
        let by = there.0.saturating_sub(expected.0);
        if by.unsigned_abs() > SET { by } else { 0 }
    }

    /// Until when what is taken or renewed now is held.
    pub(super) fn until(&self, now: Time, lease: Duration) -> Time {
        Time(self.time(now).0.saturating_add(milliseconds(lease)))
    }

    /// Whether leases that have passed say that their holders are gone: after a time in which no server reached the database, they
    /// have had time to renew them.
    pub(super) fn may_take(&self, lease: Duration) -> bool {
        let enough = lease / RENEWALS * 3 / 2;
        let since = self.known().reached_since;
        since.is_some_and(|since| since.elapsed() >= enough)
    }

    fn note(&self, reached: Option<(Instant, Time)>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reached {
            Some(clock) => {
                known.clock = Some(clock);
                known.reached_since.get_or_insert_with(Instant::now);
            }
            None => known.reached_since = None,
        }
    }
}

/// Renews what this server works on, until it ends.
pub(super) async fn renew(shared: Arc<Shared>) {
    let mut beats = tokio::time::interval(shared.limits.lease / RENEWALS);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beats.tick() => {}
            () = shared.shutdown.cancelled() => return,
        }
        // The next beat tries again.
        if let Err(error) = beat(&shared).await {
            shared.beats.note(None);
            tracing::warn!(error = &error as &dyn std::error::Error, "{error}");
        }
    }
}

async fn beat(shared: &Shared) -> Result<(), StoreError> {
    let asked = Instant::now();
    let there = shared.db.look_at_clock().await?;
    let read = (asked + asked.elapsed() / 2, there);
    let set_by = shared.beats.set_by(read);
    // Where several servers share a clock, each would move what runs.
    if set_by != 0 && !shared.db.is_shared() {
        tracing::warn!("the clock was set by {} s", set_by / 1_000);
        shared.db.clock_was_set(set_by).await?;
    }
    shared.beats.note(Some(read));
    if shared.works() {
        shared.db.renew_all(shared.lease(shared.db.now())).await?;
        if shared.db.is_shared() {
            give_up(shared).await?;
        }
    }
    let now = shared.db.now();
    for id in shared.db.cancel_of_revoked_keys(now).await? {
        shared.forget_cancelled(&id);
    }
    Ok(())
}

/// Stops the work on fits that are this server's no more: cancelled, or taken by another when it could not say that it is there.
async fn give_up(shared: &Shared) -> Result<(), StoreError> {
    let at_work = shared.at_work();
    let running = shared.db.running_fits(None).await?;
    let mine: HashSet<&str> = running
        .iter()
        .filter(|fit| fit.holder.as_ref() == Some(&shared.holder))
        .map(|fit| fit.id.as_str())
        .collect();
    for id in at_work.iter().filter(|id| !mine.contains(id.as_str())) {
        if let Some(running) = shared.running(id) {
            running.cancel.cancel();
        }
    }
    // It may wait for its turn.
    shared.ended.send_replace(());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: DeviceKind, card: &str) -> DeviceSummary {
        DeviceSummary {
            device: name.to_owned(),
            kind,
            card: Some(card.to_owned()),
            gpu: None,
            memory_bytes: None,
            usable_bytes: None,
            compute_capability: None,
            multiprocessors: None,
            driver: None,
            cudnn: None,
            available: true,
            missing: None,
            source: String::new(),
        }
    }

    #[test]
    fn leases_are_counted_by_a_clock_that_nobody_sets() {
        let (beats, begun) = (Heartbeats::default(), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(beats.set_by((begun, Time(5_000))), 0);
        beats.note(Some((begun, Time(5_000))));
        assert_eq!(beats.known().time(after(20)), Some(Time(25_000)));
        assert_eq!(beats.set_by((after(20), Time(25_900))), 0);
        for by in [-3_600_000, 3_600_000] {
            assert_eq!(beats.set_by((after(20), Time(25_000 + by))), by);
        }
        beats.note(None);
        assert_eq!(beats.known().time(after(1)), Some(Time(6_000)));
    }

    #[test]
    fn a_server_takes_what_is_simulated_and_its_gpus_under_all_their_names() {
        let simulated = device("sim:l4", DeviceKind::Simulated, "l4");
        let real = device("cuda:0", DeviceKind::Cuda, "h200");

        assert_eq!(
            lanes_of(std::slice::from_ref(&simulated)),
            ",simulated,simulated, large,"
        );
        assert_eq!(
            lanes_of(&[simulated, real]),
            ",cuda:0,h200,auto,simulated,simulated, large,"
        );
    }
}

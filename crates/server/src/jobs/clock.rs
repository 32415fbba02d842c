//! Whether the system's clock can be trusted when old rows are dropped.
//!
//! See Note [Clocks that jump].
//!
//! # Note [Clocks that jump]
//!
//! What expires is as old as the clock says: the database's own, where several servers use it (`Db::now`). A clock that goes ahead by days, because a machine woke up with a wrong one or
//! it was set, would make everything old at once. So the clock is compared with one that counts seconds (`Instant`), and
//! with the last moment that is noted in the database, which a server does every few minutes while it believes the clock. Where it
//! is ahead of them by more than [`LEAP`], nothing expires for [`HOLD`]: long enough for NTP or a person to set it right. If it is
//! still there then, it is believed. That costs one hour of room after a machine was switched off or slept. A clock that goes back
//! makes nothing older.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::Time;

/// How far ahead the clock may go between two looks. NTP steps by less; two looks are at most ten minutes apart.
const LEAP: Duration = Duration::from_hours(1);

/// How long nothing expires after it went further.
const HOLD: Duration = Duration::from_hours(1);

/// Before everything: nothing is as old.
const NEVER: Time = Time(i64::MIN);

/// What is known about the system's clock. Cheap to ask.
#[derive(Debug)]
pub(super) struct Clock(Mutex<Known>);

#[derive(Debug, Clone, Copy)]
struct Known {
    /// What it said when it was last looked at.
    last: Option<(Instant, Time)>,
    /// What it said when it was last believed.
    believed: Option<Time>,
    /// Until when it is not believed.
    doubted_until: Option<Instant>,
}

impl Clock {
    /// One that was seen to say `last` by a process before this one; `None` where that was not noted.
    pub(super) fn since(last: Option<Time>) -> Clock {
        Clock(Mutex::new(Known {
            last: last.map(|last| (Instant::now(), last)),
            believed: last,
            doubted_until: None,
        }))
    }

    /// Before which moment something is older than `age` when the clock says `now`, as far as that can be believed.
    pub(super) fn older_than(&self, age: Duration, now: Time) -> Time {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.older_than(age, Instant::now(), now)
    }

    /// What is to be noted for the next server: `now`, or the last one that was believed.
    pub(super) fn noted(&self, now: Time) -> Time {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.look(Instant::now(), now);
        known.believed.unwrap_or(now)
    }
}

impl Known {
    /// Whether the clock is believed.
    fn look(&mut self, at: Instant, now: Time) -> bool {
        if let Some((then, said)) = self.last.replace((at, now)) {
            let passed = milliseconds(at.saturating_duration_since(then));
            let ahead = now.0.saturating_sub(said.0).saturating_sub(passed);
            if ahead > milliseconds(LEAP) {
                tracing::warn!(
                    "the clock went ahead by {} minutes; nothing expires for {} minutes",
                    ahead / 60_000,
                    HOLD.as_secs() / 60
                );
                self.doubted_until = Some(at + HOLD);
            }
        }
        if self.doubted_until.is_some_and(|until| at < until) {
            return false;
        }
        self.doubted_until = None;
        self.believed = Some(now);
        true
    }

    fn older_than(&mut self, age: Duration, at: Instant, now: Time) -> Time {
        if self.look(at, now) {
            Time(now.0.saturating_sub(milliseconds(age)))
        } else {
            NEVER
        }
    }
}

/// As times in the database are counted.
pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);
    const NOW: i64 = 1_795_212_000_000;

    /// What happens, what the last server noted, what the clock says, and what expires.
    type Row = (
        &'static str,
        Option<i64>,
        &'static [(u64, i64)],
        &'static [Option<i64>],
    );

    /// What expires, in days before [`NOW`], as the clock says these days beside it, so many minutes after each other.
    fn expires(last: Option<i64>, said: &[(u64, i64)]) -> Vec<Option<i64>> {
        let day = milliseconds(DAY);
        let begun = Instant::now();
        let mut known = Known {
            last: last.map(|days| (begun, Time(NOW + days * day))),
            believed: None,
            doubted_until: None,
        };
        let mut at = begun;
        let look = |(minutes, days): &(u64, i64)| {
            at += Duration::from_mins(*minutes);
            let now = NOW + days * day + milliseconds(at - begun);
            let oldest = known.older_than(DAY, at, Time(now));
            (oldest != NEVER).then(|| (oldest.0 - milliseconds(at - begun) - NOW) / day)
        };
        said.iter().map(look).collect()
    }

    #[test]
    fn nothing_expires_while_the_clock_is_not_believed() {
        #[rustfmt::skip] // A row a line.
        let cases: [Row; 6] = [
            ("it goes as it should", None, &[(0, 0), (10, 0), (600, 0)], &[Some(-1); 3]),
            ("as the last server noted", Some(0), &[(0, 0)], &[Some(-1)]),
            ("it goes ahead for a while", None, &[(0, 0), (10, 3650), (10, 3650), (10, 0), (60, 0)], &[Some(-1), None, None, None, Some(-1)]),
            ("it stays ahead, and is believed after an hour", None, &[(0, 0), (10, 2), (59, 2), (1, 2)], &[Some(-1), None, None, Some(1)]),
            ("it is ahead of what the last server noted", Some(0), &[(0, 1), (60, 1)], &[None, Some(0)]),
            ("it goes back, and is doubted when it returns", None, &[(0, 0), (10, -3650), (10, 0), (60, 0)], &[Some(-1), Some(-3651), None, Some(-1)]),
        ];
        for (what, last, said, expected) in cases {
            assert_eq!(expires(last, said), expected, "{what}");
        }
    }

    #[test]
    fn a_moment_that_is_not_believed_is_not_noted() {
        let begun = Instant::now();
        let mut known = Known {
            last: Some((begun, Time(NOW))),
            believed: Some(Time(NOW)),
            doubted_until: None,
        };
        let ahead = Time(NOW + milliseconds(40 * DAY));

        assert!(!known.look(begun, ahead));
        assert_eq!(known.believed, Some(Time(NOW)));
        assert!(known.look(begun + HOLD, ahead));
        assert_eq!(known.believed, Some(ahead));
    }
}

//! How long to wait before something is tried again.

use std::time::Duration;

use crate::store::chance;

/// The first pause, and the longest.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(15);

/// Pauses that double, up to the longest; each is cut by chance to between half and all of it, so that a hundred agents that lost
/// their server at once do not all come back at once.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { next: FIRST }
    }
}

impl Backoff {
    /// The next pause.
    pub(super) fn pause(&mut self) -> Duration {
        let whole = self.next;
        self.next = (2 * whole).min(LONGEST);
        whole.mul_f64(0.5 + 0.5 * (chance() as f64 / u64::MAX as f64))
    }

    /// Begins again: it worked.
    pub(super) fn reset(&mut self) {
        *self = Backoff::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let mut whole = FIRST;
        for _ in 0..20 {
            let pause = backoff.pause();
            assert!(whole / 2 <= pause && pause <= whole, "{pause:?}");
            whole = (2 * whole).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }
}

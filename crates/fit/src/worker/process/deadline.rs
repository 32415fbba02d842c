//! How long a process is still waited for.

use std::time::{Duration, Instant};

/// Of a look that takes longer than it was to, at most so many times as long counts.
const MOST: u32 = 5;

/// What is left of a deadline.
///
/// Time counts as it is waited for, look by look. While this process is stopped it does not wait: a container that is paused, or a
/// machine that is suspended, stops children too, and what they answer afterwards is no less an answer.
#[derive(Debug, Clone, Copy)]
pub struct SuspendAwareDeadline {
    left: Duration,
}

impl SuspendAwareDeadline {
    /// A deadline after this much time.
    pub fn of(left: Duration) -> SuspendAwareDeadline {
        SuspendAwareDeadline { left }
    }

    /// Whether the deadline has passed. Look once more before you believe it: the answer may be there.
    pub fn is_over(&self) -> bool {
        self.left.is_zero()
    }

    /// At most so long is waited from now on.
    pub(crate) fn shorten(&mut self, most: Duration) {
        self.left = self.left.min(most);
    }

    /// Looks, for as long as is said or is left.
    pub fn look<T>(&mut self, within: Duration, look: impl FnOnce(Duration) -> T) -> T {
        let within = within.min(self.left);
        let begun = Instant::now();
        let seen = look(within);
        self.spend(begun.elapsed(), within);
        seen
    }

    fn spend(&mut self, took: Duration, within: Duration) {
        // A look at what is there already takes no time, and must come to an end.
        let least = Duration::from_micros(1);
        let took = took.min(MOST * within).max(least);
        self.left = self.left.saturating_sub(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(20);

    #[test]
    fn time_counts_as_it_is_waited_for() {
        let mut deadline = SuspendAwareDeadline::of(Duration::from_millis(50));

        deadline.spend(LOOK, LOOK);
        deadline.spend(2 * LOOK, LOOK);

        assert!(deadline.is_over());
        assert_eq!(deadline.look(LOOK, |within| within), Duration::ZERO);
    }

    #[test]
    fn time_in_which_this_process_was_stopped_does_not_count() {
        let mut deadline = SuspendAwareDeadline::of(Duration::from_secs(1));

        deadline.spend(Duration::from_hours(8), LOOK);

        assert_eq!(deadline.left, Duration::from_millis(900));
        deadline.shorten(LOOK);
        assert_eq!(deadline.left, LOOK);
    }
}

//! How much of a card is left for a probe, measured just before it.

use crate::device::sim::{CONTEXT_OVERHEAD, PROCESS_OVERHEAD};
use crate::units::Bytes;

/// What a process takes beyond its bare context while it trains: libraries load kernels as they need them.
const GROWTH: Bytes = Bytes(PROCESS_OVERHEAD.0 - CONTEXT_OVERHEAD.0);

/// A moment of a card, while our allocator holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// What is free.
    pub(super) free: Bytes,
    /// What this process holds, where the management library lists it: in most containers it does not.
    pub(super) own: Option<Bytes>,
}

/// A card's memory, since this process has a context on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreeMemory {
    total: Bytes,
    opened: Reading,
    others_when_opened: Bytes,
}

/// What a probe may have, and what it may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AvailableMemory {
    /// For the allocator.
    pub(super) room: Bytes,
    /// In other hands.
    pub(super) used_by_others: Bytes,
}

impl FreeMemory {
    /// `free_before` is what was free before the context was made, where that is known.
    pub(super) fn new(total: Bytes, free_before: Option<Bytes>, opened: Reading) -> FreeMemory {
        let by_difference = match free_before {
            Some(free) => total.saturating_sub(free),
            None => total
                .saturating_sub(opened.free)
                .saturating_sub(CONTEXT_OVERHEAD),
        };
        FreeMemory {
            total,
            opened,
            others_when_opened: listed_others(total, opened).unwrap_or(by_difference),
        }
    }

    /// All of the card's memory.
    pub(super) fn total(&self) -> Bytes {
        self.total
    }

    /// What this process holds while its allocator holds nothing: its context, and what libraries took.
    pub(super) fn outside(&self, now: Reading) -> Bytes {
        let by_difference = self.total.saturating_sub(now.free);
        now.own
            .unwrap_or(by_difference.saturating_sub(self.others_when_opened))
    }

    /// Takes what went since the card was opened to be this process's own for good: a communicator's buffers.
    pub(super) fn settle(&mut self, now: Reading) {
        self.opened = now;
    }

    /// What was left when the card was opened.
    pub(super) fn when_opened(&self) -> AvailableMemory {
        self.left(self.opened)
    }

    /// What is left now: what is free, less what our own context will still grow by.
    ///
    /// Where this process is not listed, whatever went since the card was opened counts as our growth up to what
    /// is expected of it, and as other processes' beyond.
    pub(super) fn left(&self, now: Reading) -> AvailableMemory {
        let went = self.opened.free.saturating_sub(now.free);
        let grown = match (self.opened.own, now.own) {
            (Some(then), Some(now)) => now.saturating_sub(then),
            (None, _) | (_, None) => went.min(GROWTH),
        };
        let came_back = now.free.saturating_sub(self.opened.free);
        let by_difference =
            (self.others_when_opened + went.saturating_sub(grown)).saturating_sub(came_back);
        AvailableMemory {
            room: now.free.saturating_sub(GROWTH.saturating_sub(grown)),
            used_by_others: listed_others(self.total, now).unwrap_or(by_difference),
        }
    }
}

fn listed_others(total: Bytes, reading: Reading) -> Option<Bytes> {
    let own = reading.own?;
    Some(total.saturating_sub(reading.free).saturating_sub(own))
}

/// Whether what a driver or library said means that memory ran out.
pub(super) fn is_lack_of_memory(cause: &str) -> bool {
    ["OUT_OF_MEMORY", "ALLOC_FAILED"]
        .iter()
        .any(|word| cause.contains(word))
}

/// Why a card could not even be opened, where that was for lack of memory.
///
/// `cause` is what failed. Libraries have many words for it, so the numbers count as well.
pub(super) fn no_room(total: Bytes, free: Bytes, cause: &str) -> Option<String> {
    (is_lack_of_memory(cause) || free < PROCESS_OVERHEAD).then(|| {
        format!(
            "the GPU has no room: a process needs {PROCESS_OVERHEAD} beside its tensors, {} of {total} are used by \
             other processes and {free} are free ({cause})",
            total.saturating_sub(free)
        )
    })
}

/// What a reader is told of a limit that other processes lowered.
pub(super) fn lowered(
    asked: Bytes,
    limit: Bytes,
    left: AvailableMemory,
    total: Bytes,
) -> Option<String> {
    (limit < asked).then(|| {
        format!(
            "the limit of this probe is {limit}, {} less than the {asked} that the fit began with: other \
             processes use {} of the GPU's {total}",
            asked.saturating_sub(limit),
            left.used_by_others
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: Bytes = Bytes::gib(16);

    fn reading(free: Bytes, own: Option<Bytes>) -> Reading {
        Reading { free, own }
    }

    /// A card of 16 GiB with 1 GiB in other hands and a context of half a GiB.
    fn memory_of(own: Option<Bytes>) -> FreeMemory {
        let opened = reading(Bytes::mib(14848), own);
        FreeMemory::new(TOTAL, Some(Bytes::gib(15)), opened)
    }

    #[test]
    fn what_our_growth_does_not_explain_is_others() {
        // At first what is free is left but for our own growth.
        let first = memory_of(None).when_opened();
        assert_eq!(first.room, Bytes::mib(14848 - 253));
        assert_eq!(first.used_by_others, Bytes::gib(1));

        let left = |free: u64| memory_of(None).left(reading(Bytes::mib(free), None));
        // Growth that was expected leaves the room as it was; what goes beyond went to others, and what they give back is left again.
        assert_eq!(left(14848 - 200), first);
        let taken = left(14848 - 253 - 4096);
        assert_eq!(taken.room, Bytes::mib(14848 - 253 - 4096));
        assert_eq!(taken.used_by_others, Bytes::gib(5));
        let given_back = left(14848 + 1024);
        assert_eq!(given_back.room, Bytes::mib(14848 + 1024 - 253));
        assert_eq!(given_back.used_by_others, Bytes::ZERO);
    }

    #[test]
    fn a_listed_process_tells_its_growth_from_others_exactly() {
        let opened = memory_of(Some(Bytes::mib(512)));

        let left = opened.left(reading(Bytes::mib(14848 - 100), Some(Bytes::mib(512 + 40))));

        assert_eq!(left.room, Bytes::mib(14848 - 100 - (253 - 40)));
        assert_eq!(left.used_by_others, Bytes::mib(1024 + 60));
    }

    #[test]
    fn a_card_without_enough_memory_says_what_uses_it() {
        let cause = "cuDevicePrimaryCtxRetain failed: CUDA_ERROR_OUT_OF_MEMORY";

        let said = no_room(TOTAL, Bytes::mib(600), cause).unwrap();

        assert_eq!(
            said,
            "the GPU has no room: a process needs 780.0 MiB beside its tensors, 15.41 GiB of 16.00 GiB are \
             used by other processes and 600.0 MiB are free (cuDevicePrimaryCtxRetain failed: \
             CUDA_ERROR_OUT_OF_MEMORY)"
        );
        assert!(no_room(TOTAL, Bytes::mib(100), "CUDNN_STATUS_INTERNAL_ERROR").is_some());
        assert_eq!(no_room(TOTAL, Bytes::gib(8), "no such kernel"), None);
    }

    #[test]
    fn a_lowered_limit_is_explained() {
        let left = AvailableMemory {
            room: Bytes::gib(10),
            used_by_others: Bytes::gib(5),
        };

        let said = lowered(Bytes::gib(14), left.room, left, TOTAL).unwrap();

        assert!(said.starts_with("the limit of this probe is 10.00 GiB, 4.00 GiB less"));
        assert!(said.ends_with("other processes use 5.00 GiB of the GPU's 16.00 GiB"));
        assert_eq!(lowered(Bytes::gib(10), Bytes::gib(10), left, TOTAL), None);
    }

    #[test]
    fn what_a_communicator_takes_is_ours_and_not_others() {
        let mut room = memory_of(None);
        let joined = reading(Bytes::mib(14848 - 936), None);

        room.settle(joined);

        let left = room.left(joined);
        assert_eq!(left.room, Bytes::mib(14848 - 936 - 253));
        assert_eq!(left.used_by_others, Bytes::gib(1));
        assert_eq!(room.outside(joined), Bytes::mib(512 + 936));
    }
}

//! What a process that trains with others leaves of a card.

use crate::device::sim::{PROCESS_OVERHEAD, RANK_OVERHEAD, SHARDED_OVERHEAD};
use crate::model::Parallel;
use crate::units::Bytes;

/// What is on a card for PyTorch's allocator, and how much of it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryBudget {
    /// The limit that the request names, if it does.
    pub(super) asked: Option<Bytes>,
    /// What a process has that trains alone; of ranks that were measured, what each has.
    pub(super) available: Bytes,
    /// Whether what ranks need to talk to each other is off it already.
    pub(super) is_of_rank: bool,
}

/// What a process holds outside its allocator, by how it trains with others.
pub(super) fn outside(parallel: &Parallel) -> Bytes {
    match parallel {
        // One rank communicates with no other.
        one if one.world_size() == 1 => PROCESS_OVERHEAD,
        Parallel::None => PROCESS_OVERHEAD,
        Parallel::Ddp(_) | Parallel::Zero1(_) => RANK_OVERHEAD,
        Parallel::Fsdp2(_) => SHARDED_OVERHEAD,
    }
}

/// How much of that is for talking to others.
pub(super) fn for_others(parallel: &Parallel) -> Bytes {
    outside(parallel).saturating_sub(PROCESS_OVERHEAD)
}

impl MemoryBudget {
    /// What each of several processes that train so has.
    pub(super) fn available(&self, parallel: &Parallel) -> Bytes {
        if self.is_of_rank {
            return self.available;
        }
        self.available.saturating_sub(for_others(parallel))
    }

    /// What its allocator may reserve: what was asked for, or all there is.
    pub(super) fn limit(&self, parallel: &Parallel) -> Bytes {
        let available = self.available(parallel);
        self.asked.map_or(available, |asked| asked.min(available))
    }

    /// What a reader is told where more is asked for than there is.
    pub(super) fn note<'a>(
        &self,
        strategies: impl Iterator<Item = &'a Parallel>,
    ) -> Option<String> {
        let asked = self.asked?;
        let least = strategies.map(|parallel| self.available(parallel)).min()?;
        (asked > least).then(|| {
            format!(
                "the memory limit of {asked} is more than the {least} that the device has for PyTorch's allocator; \
                 the answer is for {least}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Ddp, FullyShard};

    const AVAILABLE: Bytes = Bytes::gib(15);

    fn budget_of(asked: Option<Bytes>) -> MemoryBudget {
        MemoryBudget {
            asked,
            available: AVAILABLE,
            is_of_rank: false,
        }
    }

    fn limited(asked: Option<Bytes>) -> (Bytes, bool) {
        let alone = Parallel::None;
        let room = budget_of(asked);
        (
            room.limit(&alone),
            room.note([&alone].into_iter()).is_some(),
        )
    }

    #[test]
    fn without_a_limit_all_that_is_available_counts() {
        assert_eq!(limited(None), (AVAILABLE, false));
    }

    #[test]
    fn less_than_is_available_counts_as_asked() {
        assert_eq!(limited(Some(Bytes::gib(8))), (Bytes::gib(8), false));
    }

    #[test]
    fn more_than_is_available_is_cut_and_said() {
        assert_eq!(limited(Some(Bytes::gib(16))), (AVAILABLE, true));
    }

    #[test]
    fn each_strategy_pays_for_its_own_messages_and_one_gpu_for_none() {
        let ddp = Parallel::Ddp(Ddp {
            world_size: 2,
            ..Ddp::default()
        });
        let sharded = Parallel::Fsdp2(FullyShard {
            world_size: 2,
            ..FullyShard::default()
        });
        let left = |parallel: &Parallel| AVAILABLE.saturating_sub(budget_of(None).limit(parallel));

        assert_eq!(left(&Parallel::None), Bytes::ZERO);
        assert_eq!(left(&ddp), Bytes::mib(1613 - 780));
        assert_eq!(left(&sharded), Bytes::mib(1609 - 780));
        let measured = MemoryBudget {
            is_of_rank: true,
            ..budget_of(None)
        };
        assert_eq!(measured.limit(&ddp), AVAILABLE);
        let asked = budget_of(Some(AVAILABLE));
        assert!(asked.note([&Parallel::None, &ddp].into_iter()).is_some());
    }
}

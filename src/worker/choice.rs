//! Which GPU `auto` is.

use std::cmp::Reverse;
use std::path::Path;

use crate::units::Bytes;

use super::gpu_lock::{GpuLock, GpuLockError};

/// What may be in use on an idle GPU: less than a process with a context takes (527 MiB on an H200),
/// more than drivers keep for themselves.
const IDLE: Bytes = Bytes::mib(512);

/// A GPU that could be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// CUDA's number.
    pub(super) number: u32,
    /// Names the card itself.
    pub(super) uuid: String,
    /// All of its memory.
    pub(super) total: Bytes,
    /// What of it is free.
    pub(super) free: Bytes,
}

/// Puts idle ones first, in CUDA's order, and then those with the most free memory.
pub(super) fn by_preference(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by_key(|candidate| {
        let is_used = candidate.total.saturating_sub(candidate.free) > IDLE;
        let most_free = if is_used { candidate.free } else { Bytes::ZERO };
        (is_used, Reverse(most_free), candidate.number)
    });
    candidates
}

/// The first of them that is no other worker's; one alone is asked for again as often as `waits`.
pub(super) fn take_free(
    locks: &Path,
    candidates: &[Candidate],
    mut waits: impl FnMut() -> bool,
) -> Result<(u32, GpuLock), GpuLockError> {
    let mut last = None;
    for candidate in candidates {
        match GpuLock::take_while(locks, &candidate.uuid, || false) {
            Ok(turn) => return Ok((candidate.number, turn)),
            Err(busy @ GpuLockError::Busy(_)) => last = Some(busy),
            Err(error @ GpuLockError::Unusable { .. }) => return Err(error),
        }
    }
    match (candidates, last) {
        ([only], Some(_)) => {
            let turn = GpuLock::take_while(locks, &only.uuid, waits)?;
            Ok((only.number, turn))
        }
        ([_, ..], Some(busy)) => {
            // The caller tries again; meanwhile any of them may become free.
            while waits() {}
            Err(busy)
        }
        ([], _) | (_, None) => Err(GpuLockError::Unusable {
            path: locks.to_owned(),
            source: std::io::Error::other("there is no GPU to take"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(number: u32, used_mib: u64) -> Candidate {
        Candidate {
            number,
            uuid: format!("GPU-{number}"),
            total: Bytes::gib(80),
            free: Bytes::gib(80).saturating_sub(Bytes::mib(used_mib)),
        }
    }

    fn numbers(candidates: &[Candidate]) -> Vec<u32> {
        candidates
            .iter()
            .map(|candidate| candidate.number)
            .collect()
    }

    #[test]
    fn idle_gpus_come_first_and_then_the_emptiest() {
        let crowd = [
            candidate(0, 60_000),
            candidate(1, 10_000),
            candidate(2, 400),
            candidate(3, 0),
        ];

        assert_eq!(numbers(&by_preference(crowd.to_vec())), [2, 3, 1, 0]);
    }

    #[test]
    fn a_gpu_in_another_workers_hands_is_passed_over() {
        let locks = tempfile::tempdir().unwrap();
        let both = [candidate(0, 0), candidate(1, 0)];
        let take = || take_free(locks.path(), &both, || false);

        let (first, held) = take().unwrap();
        let (second, _also_held) = take().unwrap();
        let third = take();
        drop(held);
        let (fourth, _) = take().unwrap();

        assert_eq!((first, second, fourth), (0, 1, 0));
        assert!(matches!(third, Err(GpuLockError::Busy(_))));
    }

    #[test]
    fn a_gpu_alone_is_waited_for() {
        let locks = tempfile::tempdir().unwrap();
        let alone = [candidate(0, 0)];
        let mut held = Some(take_free(locks.path(), &alone, || false).unwrap());

        let waited = take_free(locks.path(), &alone, || held.take().is_some());
        let (number, turn) = waited.unwrap();

        assert_eq!(number, 0);
        assert!(turn.has_waited);
    }
}

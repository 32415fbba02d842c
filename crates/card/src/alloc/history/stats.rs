//! The numbers of `torch.cuda.memory_stats`, under PyTorch's names.

use std::collections::BTreeMap;

use crate::alloc::pool::PoolKind;
use crate::units::Bytes;

/// One statistic: `torch.cuda.memory_stats()["allocated_bytes.all.peak"]` is
/// `stats.all.allocated_bytes.peak`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// The value now.
    pub current: u64,
    /// The largest value since the start or the last reset of the peaks.
    pub peak: u64,
    /// The sum of all increases.
    pub allocated: u64,
    /// The sum of all decreases.
    pub freed: u64,
}

impl Stat {
    #[inline]
    pub(in crate::alloc) fn increase(&mut self, by: u64) {
        self.current += by;
        self.allocated += by;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(in crate::alloc) fn decrease(&mut self, by: u64) {
        // Below zero only for the oversize ones, when `max_split_size_mb` falls at run time.
        self.current = self.current.saturating_sub(by);
        self.freed += by;
    }

    /// Applies a difference of either sign at once, so that `allocated` and `freed` see the net only.
    #[inline]
    pub(in crate::alloc) fn change(&mut self, increase: u64, decrease: u64) {
        if increase >= decrease {
            self.increase(increase - decrease);
        } else {
            self.decrease(decrease - increase);
        }
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn count_again(&mut self, before: Stat, times: u64) {
        self.allocated += (self.allocated - before.allocated).saturating_mul(times);
        self.freed += (self.freed - before.freed).saturating_mul(times);
    }

    fn parts(self) -> [(&'static str, u64); 4] {
        [
            ("current", self.current),
            ("peak", self.peak),
            ("allocated", self.allocated),
            ("freed", self.freed),
        ]
    }
}

/// The statistics that exist for each pool and for both together. Counts first, then bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Blocks held by the caller.
    pub allocation: Stat,
    /// Segments held from the source, without expandable ones.
    pub segment: Stat,
    /// Blocks held by the caller or waiting for a stream to be done with them.
    pub active: Stat,
    /// Free blocks in segments that are cut into several, without expandable ones.
    pub inactive_split: Stat,
    /// Sizes of the blocks in `allocation`, rounding and unsplit remainders included.
    pub allocated_bytes: Stat,
    /// Sizes of the segments, and what is mapped of expandable ones.
    pub reserved_bytes: Stat,
    /// Sizes of the blocks in `active`.
    pub active_bytes: Stat,
    /// Sizes of the blocks in `inactive_split`.
    pub inactive_split_bytes: Stat,
    /// What callers asked for, before rounding, of the blocks in `active`.
    pub requested_bytes: Stat,
}

impl PoolStats {
    fn named_mut(&mut self) -> [(&'static str, &mut Stat); 9] {
        let PoolStats {
            allocation,
            segment,
            active,
            inactive_split,
            allocated_bytes,
            reserved_bytes,
            active_bytes,
            inactive_split_bytes,
            requested_bytes,
        } = self;
        [
            ("allocation", allocation),
            ("segment", segment),
            ("active", active),
            ("inactive_split", inactive_split),
            ("allocated_bytes", allocated_bytes),
            ("reserved_bytes", reserved_bytes),
            ("active_bytes", active_bytes),
            ("inactive_split_bytes", inactive_split_bytes),
            ("requested_bytes", requested_bytes),
        ]
    }
}

/// What `torch.cuda.memory_stats` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Both pools.
    pub all: PoolStats,
    /// Requests up to 1 MiB.
    pub small_pool: PoolStats,
    /// Larger requests.
    pub large_pool: PoolStats,
    /// Times the allocator gave back everything cached and asked the source again, in vain or not.
    pub num_alloc_retries: u64,
    /// Requests refused.
    pub num_ooms: u64,
    /// Times the allocator waited for every stream: before each release of the whole cache.
    pub num_sync_all_streams: u64,
    /// Segments taken from the source, and mappings into expandable ones.
    pub num_device_alloc: u64,
    /// Segments given back to the source, and ranges unmapped.
    pub num_device_free: u64,
    /// Blocks of at least `max_split_size_mb` held by the caller.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size_mb`.
    pub oversize_segments: Stat,
    /// `max_split_size_mb` when the allocator was made; later changes do not show. `None` is unlimited.
    pub max_split_size: Option<Bytes>,
}

impl Stats {
    /// The most the caller's blocks have held, like `torch.cuda.max_memory_allocated`.
    pub fn peak_allocated(&self) -> Bytes {
        Bytes(self.all.allocated_bytes.peak)
    }

    /// The most that was held from the source, like `torch.cuda.max_memory_reserved`.
    pub fn peak_reserved(&self) -> Bytes {
        Bytes(self.all.reserved_bytes.peak)
    }

    /// What the caller's blocks hold now, like `torch.cuda.memory_allocated`.
    pub fn allocated(&self) -> Bytes {
        Bytes(self.all.allocated_bytes.current)
    }

    /// What is held from the source now, like `torch.cuda.memory_reserved`.
    pub fn reserved(&self) -> Bytes {
        Bytes(self.all.reserved_bytes.current)
    }

    /// The statistics of one pool.
    pub fn pool(&self, kind: PoolKind) -> &PoolStats {
        match kind {
            PoolKind::Small => &self.small_pool,
            PoolKind::Large => &self.large_pool,
        }
    }

    /// Applies the same change to a pool and to the sum of both.
    pub(in crate::alloc) fn update(&mut self, kind: PoolKind, change: impl Fn(&mut PoolStats)) {
        change(&mut self.all);
        change(match kind {
            PoolKind::Small => &mut self.small_pool,
            PoolKind::Large => &mut self.large_pool,
        });
    }

    /// Counts of what goes beyond handing out free blocks: segments taken and given back, and refusals.
    pub fn upheavals(&self) -> [u64; 4] {
        [
            self.num_device_alloc,
            self.num_device_free,
            self.num_alloc_retries,
            self.num_ooms,
        ]
    }

    /// Counts what happened since `before` so many times more.
    pub(in crate::alloc) fn count_again(&mut self, before: &Stats, times: u64) {
        let Stats {
            all,
            small_pool,
            large_pool,
            oversize_allocations,
            oversize_segments,
            num_alloc_retries,
            num_ooms,
            num_sync_all_streams,
            num_device_alloc,
            num_device_free,
            max_split_size: _,
        } = self;
        let pools = [
            (all, before.all),
            (small_pool, before.small_pool),
            (large_pool, before.large_pool),
        ];
        for (pool, mut before) in pools {
            for ((_, stat), (_, before)) in pool.named_mut().into_iter().zip(before.named_mut()) {
                stat.count_again(*before, times);
            }
        }
        oversize_allocations.count_again(before.oversize_allocations, times);
        oversize_segments.count_again(before.oversize_segments, times);
        for (count, before) in [
            (num_alloc_retries, before.num_alloc_retries),
            (num_ooms, before.num_ooms),
            (num_sync_all_streams, before.num_sync_all_streams),
            (num_device_alloc, before.num_device_alloc),
            (num_device_free, before.num_device_free),
        ] {
            *count += (*count - before).saturating_mul(times);
        }
    }

    /// Sets every peak to the current value, like `torch.cuda.reset_peak_memory_stats`.
    pub(in crate::alloc) fn reset_peaks(&mut self) {
        for pool in [&mut self.all, &mut self.small_pool, &mut self.large_pool] {
            for (_, stat) in pool.named_mut() {
                stat.reset_peak();
            }
        }
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    /// The flat dictionary that `torch.cuda.memory_stats` returns: `allocated_bytes.all.peak` and so on,
    /// in the order of their names. An unlimited `max_split_size` is -1.
    pub fn memory_stats(&self) -> BTreeMap<String, i64> {
        let mut named = BTreeMap::new();
        let mut put = |name: String, value: u64| named.insert(name, signed(value));
        for (pool, stats) in [
            ("all", self.all),
            ("small_pool", self.small_pool),
            ("large_pool", self.large_pool),
        ] {
            for (name, stat) in { stats }.named_mut() {
                for (part, value) in stat.parts() {
                    put(format!("{name}.{pool}.{part}"), value);
                }
            }
        }
        for (name, stat) in [
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ] {
            for (part, value) in stat.parts() {
                put(format!("{name}.{part}"), value);
            }
        }
        for (name, count) in [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ] {
            put(name.to_owned(), count);
        }
        let max_split_size = self.max_split_size.map_or(-1, |size| signed(size.0));
        named.insert("max_split_size".to_owned(), max_split_size);
        named
    }
}

/// PyTorch's statistics are signed.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

//! The free blocks of a pool, ordered by size and then by address.

use super::block::BlockId;
use super::segment::Address;
use crate::units::Bytes;

/// A free block, as the search for the best fit sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FreeBlock {
    pub(super) size: Bytes,
    pub(super) address: Address,
    pub(super) id: BlockId,
}

/// Linear steps per power of two, as a power of two: sizes in one bin differ by an eighth at most.
const STEPS_LOG2: u32 = 3;
/// Enough bins for every size that a `u64` can hold, in units of 512 bytes.
const BINS: usize = 448;
const WORDS: usize = BINS / 64;

/// An ordered set of free blocks. PyTorch's `BlockPool::blocks`, for one stream.
///
/// PyTorch orders by (stream, size, address) and never lets streams share blocks, so a stream is a set
/// of its own. See Note [Free blocks in bins] for why this is not a `BTreeSet`.
#[derive(Debug, Clone)]
pub(super) struct FreeSet {
    /// Every size in a bin is below every size in the next. Each is sorted by size and address, the smallest
    /// last: it is the one that is taken most, and nothing has to move for it.
    bins: Box<[Vec<FreeBlock>]>,
    /// A bit for each bin, set while the bin has blocks.
    occupied: [u64; WORDS],
}

impl Default for FreeSet {
    fn default() -> Self {
        FreeSet {
            bins: vec![Vec::new(); BINS].into_boxed_slice(),
            occupied: [0; WORDS],
        }
    }
}

impl FreeSet {
    /// The smallest block of at least `size`; of several, the one with the lowest address.
    #[inline]
    pub(super) fn best_fit(&self, size: Bytes) -> Option<FreeBlock> {
        let bin = bin_of(size);
        let fitting = fitting(&self.bins[bin], size);
        if let Some(block) = fitting.last() {
            return Some(*block);
        }
        let next = self.occupied_from(bin + 1)?;
        self.bins[next].last().copied()
    }

    #[inline]
    pub(super) fn insert(&mut self, block: FreeBlock) {
        let bin = bin_of(block.size);
        let within = &mut self.bins[bin];
        let at = position(within, block.size, block.address);
        within.insert(at, block);
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, size: Bytes, address: Address) {
        let bin = bin_of(size);
        let within = &mut self.bins[bin];
        let at = position(within, size, address);
        assert!(
            within.get(at).is_some_and(|block| block.address == address),
            "every free block is in the free set of its pool: {size} at {address} is not",
        );
        within.remove(at);
        if within.is_empty() {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// All blocks, smallest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = FreeBlock> + '_ {
        self.bins_from(0)
    }

    /// The blocks of at least `size`, smallest first.
    pub(super) fn iter_from(&self, size: Bytes) -> impl Iterator<Item = FreeBlock> + '_ {
        let bin = bin_of(size);
        let fitting = fitting(&self.bins[bin], size).iter().rev().copied();
        fitting.chain(self.bins_from(bin + 1))
    }

    /// The blocks of a bin and those after it, smallest first.
    fn bins_from(&self, bin: usize) -> impl Iterator<Item = FreeBlock> + '_ {
        let mut from = bin;
        let bins = std::iter::from_fn(move || {
            let bin = self.occupied_from(from)?;
            from = bin + 1;
            Some(&self.bins[bin])
        });
        bins.flat_map(|within| within.iter().rev().copied())
    }

    /// Forgets all blocks and keeps the room for them.
    pub(super) fn clear(&mut self) {
        while let Some(bin) = self.occupied_from(0) {
            self.bins[bin].clear();
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
    }

    #[inline]
    fn occupied_from(&self, bin: usize) -> Option<usize> {
        let mut word = bin / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (bin % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[inline]
fn position(within: &[FreeBlock], size: Bytes, address: Address) -> usize {
    within.partition_point(|block| (block.size, block.address) > (size, address))
}

/// The blocks of at least `size`, largest first.
#[inline]
fn fitting(within: &[FreeBlock], size: Bytes) -> &[FreeBlock] {
    let fitting = within.partition_point(|block| block.size >= size);
    &within[..fitting]
}

/// The bin of a size: exact below 4 KiB, then eight bins for each power of two.
#[inline]
fn bin_of(size: Bytes) -> usize {
    let units = size.0 / super::size::MIN_BLOCK.0;
    if units < 1 << STEPS_LOG2 {
        return usize::try_from(units).expect("less than eight");
    }
    let exponent = units.ilog2();
    // The leading bit and the three after it: 8..16.
    let leading = usize::try_from(units >> (exponent - STEPS_LOG2)).expect("less than sixteen");
    ((exponent - STEPS_LOG2) as usize) * (1 << STEPS_LOG2) + leading
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_the_order_of_sizes() {
        let sizes = (0..55).flat_map(|power| (0..64).map(move |step| (64 + step) << power));
        let mut sizes: Vec<u64> = sizes.map(|n: u64| n.saturating_mul(8)).collect();
        sizes.sort_unstable();

        let bins: Vec<usize> = sizes.iter().map(|size| bin_of(Bytes(*size))).collect();

        assert!(bins.is_sorted());
        assert!(bin_of(Bytes(u64::MAX)) < BINS);
    }

    #[test]
    fn the_best_fit_is_the_smallest_and_then_the_lowest() {
        let mut set = FreeSet::default();
        for (size, address) in [(4096, 9), (1024, 7), (1024, 3), (1 << 30, 1)] {
            set.insert(FreeBlock {
                size: Bytes(size),
                address: Address(address),
                id: BlockId::from_index(1),
            });
        }

        let found = [512, 1024, 1025, 4097].map(|size| {
            let block = set.best_fit(Bytes(size)).unwrap();
            (block.size.0, block.address.0)
        });

        assert_eq!(found, [(1024, 3), (1024, 3), (4096, 9), (1 << 30, 1)]);
        assert_eq!(set.best_fit(Bytes((1 << 30) + 1)), None);
    }
}

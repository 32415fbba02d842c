//! The free blocks of a pool, ordered by size and then by address.

use std::collections::BTreeMap;

use super::block::BlockId;
use super::memory::segment::Address;
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
    /// Every size in a bin is below every size in the next.
    bins: Box<[Bin]>,
    /// A bit for each bin, set while the bin has blocks.
    occupied: [u64; WORDS],
}

impl Default for FreeSet {
    fn default() -> Self {
        FreeSet {
            bins: vec![Bin::default(); BINS].into_boxed_slice(),
            occupied: [0; WORDS],
        }
    }
}

/// Where a block was found, which holds until the set changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreeSlot {
    bin: usize,
    /// Among the few of the bin, if they are few.
    at: usize,
}

impl FreeSet {
    /// The smallest block of at least `size`; of several, the one with the lowest address.
    #[inline]
    pub(super) fn best_fit(&self, size: Bytes) -> Option<FreeBlock> {
        self.find(size).map(|(block, _)| block)
    }

    /// The same, and where it is.
    #[inline]
    pub(super) fn find(&self, size: Bytes) -> Option<(FreeBlock, FreeSlot)> {
        let bin = bin_of(size);
        if let Some((block, at)) = self.bins[bin].best_fit(size) {
            return Some((block, FreeSlot { bin, at }));
        }
        let bin = self.occupied_from(bin + 1)?;
        let (block, at) = self.bins[bin].smallest()?;
        Some((block, FreeSlot { bin, at }))
    }

    /// Removes a block that was found there.
    #[inline]
    pub(super) fn remove_at(&mut self, block: FreeBlock, FreeSlot { bin, at }: FreeSlot) {
        let within = &mut self.bins[bin];
        if within.many.is_empty() {
            let removed = within.few.remove(at);
            debug_assert_eq!(removed, block, "the set has not changed");
        } else {
            within.many.remove(&(block.size, block.address));
        }
        if within.is_empty() {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, block: FreeBlock) {
        let bin = bin_of(block.size);
        self.bins[bin].insert(block);
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, size: Bytes, address: Address) {
        let bin = bin_of(size);
        let within = &mut self.bins[bin];
        assert!(
            within.remove(size, address),
            "every free block is in the free set of its pool: {size} at {address} is not",
        );
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
        let fitting = self.bins[bin].iter_from(size);
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
        bins.flat_map(|within| within.iter_from(Bytes(0)))
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

/// More blocks than this in one bin are kept in a tree: moving this many to make room for one takes as long as
/// finding a place among thousands in a tree.
const FEW: usize = 256;

/// The free blocks of sizes that differ by an eighth at most. All of them are in one of its two forms.
#[derive(Debug, Clone, Default)]
struct Bin {
    /// Sorted by size and address, the smallest last: it is the one that is taken most, and nothing has to move
    /// for it.
    few: Vec<FreeBlock>,
    /// Where there are more than [`FEW`], until none is left.
    many: BTreeMap<(Bytes, Address), BlockId>,
}

impl Bin {
    #[inline]
    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }

    /// The smallest block, and where it is among the few.
    #[inline]
    fn smallest(&self) -> Option<(FreeBlock, usize)> {
        match self.few.last() {
            Some(block) => Some((*block, self.few.len() - 1)),
            None => Some((in_tree(self.many.first_key_value()?), 0)),
        }
    }

    /// The smallest block of at least `size`, and where it is among the few; of several, the one with the lowest
    /// address.
    #[inline]
    fn best_fit(&self, size: Bytes) -> Option<(FreeBlock, usize)> {
        if self.many.is_empty() {
            let fitting = self.fitting(size);
            return fitting.last().map(|block| (*block, fitting.len() - 1));
        }
        let found = self.many.range((size, Address(0))..).next()?;
        Some((in_tree(found), 0))
    }

    #[inline]
    fn insert(&mut self, block: FreeBlock) {
        let FreeBlock { size, address, id } = block;
        if !self.many.is_empty() {
            self.many.insert((size, address), id);
        } else if self.few.len() == FEW {
            let few = self.few.drain(..).rev();
            self.many = few
                .map(|block| ((block.size, block.address), block.id))
                .collect();
            self.many.insert((size, address), id);
        } else {
            let at = self.position(size, address);
            self.few.insert(at, block);
        }
    }

    /// Whether it was there.
    #[inline]
    fn remove(&mut self, size: Bytes, address: Address) -> bool {
        if self.many.is_empty() {
            let at = self.position(size, address);
            let found = self
                .few
                .get(at)
                .is_some_and(|block| block.address == address);
            if found {
                self.few.remove(at);
            }
            return found;
        }
        self.many.remove(&(size, address)).is_some()
    }

    fn clear(&mut self) {
        self.few.clear();
        self.many.clear();
    }

    /// The blocks of at least `size`, smallest first.
    fn iter_from(&self, size: Bytes) -> impl Iterator<Item = FreeBlock> + '_ {
        let few = self.fitting(size).iter().rev().copied();
        few.chain(self.many.range((size, Address(0))..).map(in_tree))
    }

    /// Where a block of this size and address is among the few, or belongs.
    #[inline]
    fn position(&self, size: Bytes, address: Address) -> usize {
        self.few
            .partition_point(|block| (block.size, block.address) > (size, address))
    }

    /// The few of at least `size`, largest first.
    #[inline]
    fn fitting(&self, size: Bytes) -> &[FreeBlock] {
        let fitting = self.few.partition_point(|block| block.size >= size);
        &self.few[..fitting]
    }
}

#[inline]
fn in_tree((&(size, address), &id): (&(Bytes, Address), &BlockId)) -> FreeBlock {
    FreeBlock { size, address, id }
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
    fn many_blocks_of_a_size_are_found_as_few_are() {
        let mut set = FreeSet::default();
        let count = 3 * FEW as u64;
        let block = |n: u64| FreeBlock {
            // Every other block is of the next size, in the same bin.
            size: Bytes((1 << 20) + 512 * (n % 2)),
            address: Address(n * 7919 % (count * 8)),
            id: BlockId::from_index(1),
        };
        let mut left: Vec<FreeBlock> = (0..count).map(block).collect();
        for block in &left {
            set.insert(*block);
        }
        left.sort_unstable();

        assert!(set.iter().eq(left.iter().copied()));
        let (smaller, larger) = left.split_at(left.len() / 2);
        assert!(set.iter_from(larger[0].size).eq(larger.iter().copied()));
        assert_eq!(set.best_fit(larger[0].size), Some(larger[0]));
        for block in larger {
            set.remove(block.size, block.address);
        }
        assert!(set.iter().eq(smaller.iter().copied()));
        assert_eq!(set.best_fit(larger[0].size), None);
        for block in smaller {
            set.remove(block.size, block.address);
        }
        assert_eq!(set.best_fit(Bytes(1)), None);
    }
}

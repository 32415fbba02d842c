//! Code that eager PyTorch runs and an export does not contain.

use crate::eager::Eager;
use crate::shape::Extent;

impl Eager {
    /// The packed-sequence check of Hugging Face's decoders without an attention mask, on position ids of
    /// this shape: eight small buffers, in the order in which an H200 recorded them.
    ///
    /// An export shows it only as position ids expanded to the batch that nobody reads.
    pub(crate) fn packed_sequence_check(&mut self, batch: Extent, positions: Extent) {
        let ids = batch * positions;
        let buffer = |eager: &mut Eager, count: Extent, bytes: u64| {
            eager.scratch_by("packed sequences", move |batch| bytes * count.at(batch))
        };
        let first = buffer(self, batch, 8);
        let joined = buffer(self, batch * (positions + Extent::ONE), 8);
        let differences = buffer(self, ids, 8);
        drop(joined);
        let breaks = buffer(self, ids, 1);
        let numbers = buffer(self, ids, 8);
        let sums = buffer(self, ids, 8);
        drop(sums);
        drop(breaks);
        let any = buffer(self, batch, 1);
        let all = buffer(self, Extent::ONE, 1);
        drop(any);
        drop(all);
        drop(first);
        drop(differences);
        drop(numbers);
    }
}

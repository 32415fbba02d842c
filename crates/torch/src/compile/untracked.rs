//! Code that eager PyTorch runs and an export does not contain.

use crate::eager::Eager;
use crate::shape::{DType, Extent};

impl Eager {
    /// The packed-sequence check of Hugging Face's decoders without an attention mask, on position ids of
    /// this shape: eight small buffers, in the order in which an H200 recorded them.
    ///
    /// An export shows it only as position ids expanded to the batch that nothing reads.
    pub fn packed_sequence_check(&mut self, batch: Extent, positions: Extent) {
        let ids = batch * positions;
        let first = self.scratch_of(batch, DType::Int64);
        let joined = self.scratch_of(batch * (positions + Extent::ONE), DType::Int64);
        let differences = self.scratch_of(ids, DType::Int64);
        drop(joined);
        let breaks = self.scratch_of(ids, DType::Bool);
        let numbers = self.scratch_of(ids, DType::Int64);
        let sums = self.scratch_of(ids, DType::Int64);
        drop((sums, breaks));
        let any = self.scratch_of(batch, DType::Bool);
        let all = self.scratch_of(Extent::ONE, DType::Bool);
        drop((any, all, first, differences, numbers));
    }
}

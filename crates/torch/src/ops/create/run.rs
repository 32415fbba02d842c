//! Tensors made out of nothing.

use crate::ops::prelude::*;
use crate::ops::{Create, CreatedOn, CreatedType};

impl Eager {
    /// What `randperm` takes besides its result (`randperm_out_cuda` in `Randperm.cu`): a seed's offset, positions and
    /// random keys to sort them by, of 32 bits where collisions are rare enough.
    fn shuffle(&mut self, count: Extent) {
        fn key(n: u64) -> u64 {
            if n <= 30_000 { 4 * n } else { 8 * n }
        }
        drop(self.scratch(8));
        let _positions = self.empty(&[count], DType::Int64);
        let mut keys =
            || self.scratch_by("random keys", count, |count, batch| key(count.at(batch)));
        let (_keys, _sorted) = (keys(), keys());
        // One block sorts a few; radix sort keeps a second copy of keys and positions otherwise.
        let _sort = self.scratch_by("sort", count, |count, batch| match count.at(batch) {
            few @ 0..=2_048 => few.min(1),
            many => key(many) + 8 * many + 33_279,
        });
    }

    /// `zeros`, `full`, `arange` and the like. `model` is the type of the model's parameters; `operand`
    /// that of the tensor that the result is to be like.
    pub fn create(&mut self, create: &Create, model: DType, operand: Option<&Tensor>) -> Tensor {
        let dtype = match (create.dtype, operand) {
            // A graph exported in float32 names float32 where the model's code names its own type.
            (CreatedType::OfModel(DType::Float32), _) => model,
            (CreatedType::OfOperand(_), Some(operand)) => operand.dtype,
            _ => create.recorded(),
        };
        let y = match create.place {
            CreatedOn::Card => self.empty(&create.shape, dtype),
            CreatedOn::Host => {
                let nowhere = self.scratch_of(Extent::ZERO, dtype);
                let mut y = TensorBody::over(&nowhere, create.shape.as_slice(), dtype);
                y.is_of_host = true;
                y.number = create.number();
                y
            }
        };
        if let Some(kernel) = create.kernel(dtype) {
            self.launch(kernel, &[], &[&y]);
        }
        if create.name == "randperm" {
            self.shuffle(create.shape[0]);
        }
        Tensor::new(y)
    }
}

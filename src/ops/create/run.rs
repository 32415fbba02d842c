//! Tensors made out of nothing.

use crate::eager::{Eager, Tensor, TensorBody};
use crate::ops::{Create, CreatedType, Place};
use crate::program::Kernel;
use crate::shape::{DType, contiguous_strides};

impl Eager {
    /// `zeros`, `full`, `arange` and the like. `model` is the type of the model's parameters; `operand`
    /// that of the tensor that the result is to be like.
    pub(crate) fn create(
        &mut self,
        create: &Create,
        model: DType,
        operand: Option<&Tensor>,
    ) -> Tensor {
        let dtype = match (create.dtype, operand) {
            // A graph exported in float32 names float32 where the model's code names its own type.
            (CreatedType::OfModel(DType::Float32), _) => model,
            (CreatedType::OfOperand(_), Some(operand)) => operand.dtype,
            (recorded, _) => match recorded {
                CreatedType::Fixed(dtype)
                | CreatedType::OfModel(dtype)
                | CreatedType::OfOperand(dtype) => dtype,
            },
        };
        let y = match create.place {
            Place::Card => self.empty(&create.shape, dtype),
            Place::Host => TensorBody {
                storage: self.scratch_by("host", |_| 0),
                dtype,
                offset: crate::shape::Extent::ZERO,
                shape: create.shape.clone(),
                strides: contiguous_strides(&create.shape),
                history: None,
                is_of_host: true,
                base: None,
            },
        };
        // A range of int64 from zero has a kernel of its own.
        let kernel = match (create.name, dtype) {
            ("arange", DType::Int64) => Kernel::Arange,
            (name, _) => Kernel::MemoryOnly(name),
        };
        self.launch(kernel, &[], &[&y]);
        Tensor::new(y)
    }
}

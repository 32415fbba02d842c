//! Autocast: which operands are cast, in which order, and how long the casts live.
//!
//! See Note [Autocast].

use std::collections::HashMap;

use super::autograd::OpRecord;
use super::process::Eager;
use super::tensor::{Tensor, TensorBody};
use crate::program::Kernel;
use crate::shape::{DType, MemoryFormat};

/// Casts of parameters, kept until the region ends.
#[derive(Debug, Default)]
pub struct CastCache {
    /// In the order in which they were made.
    casts: Vec<Tensor>,
    /// Where the cast of each parameter is.
    of_leaf: HashMap<usize, usize>,
}

impl CastCache {
    fn get(&self, leaf: usize) -> Option<Tensor> {
        self.of_leaf
            .get(&leaf)
            .map(|place| Tensor::clone(&self.casts[*place]))
    }

    fn keep(&mut self, leaf: usize, cast: &Tensor) {
        self.of_leaf.insert(leaf, self.casts.len());
        self.casts.push(Tensor::clone(cast));
    }

    /// Ends the region. PyTorch lets go of the casts in the order of a pointer-keyed hash table; any
    /// order is as good.
    pub fn clear(&mut self) {
        self.of_leaf.clear();
        for cast in self.casts.drain(..) {
            drop(cast);
        }
    }

    /// Takes the cache out, for a region entered while none was open.
    pub fn take(&mut self) -> CastCache {
        std::mem::take(self)
    }
}

impl Eager {
    /// The operand as an operation on autocast's low-precision list gets it.
    pub fn low(&mut self, tensor: &Tensor) -> Tensor {
        match self.autocast {
            Some(dtype) => self.autocast_to(tensor, dtype),
            None => Tensor::clone(tensor),
        }
    }

    /// The operand as an operation on autocast's float32 list gets it.
    pub fn high(&mut self, tensor: &Tensor) -> Tensor {
        match self.autocast {
            Some(_) => self.autocast_to(tensor, DType::Float32),
            None => Tensor::clone(tensor),
        }
    }

    fn autocast_to(&mut self, tensor: &Tensor, dtype: DType) -> Tensor {
        if tensor.dtype == dtype || !tensor.dtype.is_float() || tensor.dtype == DType::Float64 {
            return Tensor::clone(tensor);
        }
        // Only trained float32 parameters are cached, and only their casts to low precision.
        let Some(leaf) = tensor
            .leaf()
            .filter(|_| dtype.is_half() && tensor.dtype == DType::Float32)
            .map(|leaf| leaf.index)
        else {
            return self.cast(tensor, dtype);
        };
        if let Some(cast) = self.casts.get(leaf) {
            return cast;
        }
        // A cast that is kept leads back to its parameter even where it was made under `no_grad`, so that what uses it
        // afterwards is trained: the recorded steps of a target network (`target_network` in tests/record).
        let before = std::mem::replace(&mut self.grad_enabled, true);
        let cast = self.cast(tensor, dtype);
        self.grad_enabled = before;
        self.casts.keep(leaf, &cast);
        cast
    }

    /// Runs statements outside of autocast.
    pub fn without_autocast<T>(&mut self, statements: impl FnOnce(&mut Eager) -> T) -> T {
        let autocast = self.autocast.take();
        let result = statements(self);
        self.autocast = autocast;
        result
    }

    /// Operands that autocast makes float32, as the arguments of a C++ call: the last first.
    pub fn all_high(&mut self, operands: &[Tensor]) -> Vec<Tensor> {
        let mut operands = operands.to_vec();
        for operand in operands.iter_mut().rev() {
            *operand = self.high(operand);
        }
        operands
    }

    /// `to(dtype)`: an operation of its own, whose gradient is cast back.
    pub fn cast(&mut self, tensor: &Tensor, dtype: DType) -> Tensor {
        self.cast_in(tensor, dtype, false)
    }

    /// `to(dtype, memory_format=torch.contiguous_format)`: without a conversion a copy only of a channels-last tensor
    /// (`to_will_alias` compares `suggest_memory_format`).
    pub fn cast_row_major(&mut self, tensor: &Tensor, dtype: DType) -> Tensor {
        if tensor.dtype == dtype && tensor.suggested_format() == MemoryFormat::ChannelsLast {
            return self.contiguous(tensor);
        }
        self.cast_in(tensor, dtype, true)
    }

    fn cast_in(&mut self, tensor: &Tensor, dtype: DType, row_major: bool) -> Tensor {
        if tensor.dtype == dtype {
            return Tensor::clone(tensor);
        }
        let draft = OpRecord::new(self, &[Some(tensor)]);
        let output = if row_major {
            let output = self.empty(&tensor.shape, dtype);
            self.launch(Kernel::Copy, &[tensor], &[&output]);
            output
        } else {
            self.copied(tensor, dtype)
        };
        let from = tensor.dtype;
        draft.finish_one(self, output, move |eager, gradient, _| {
            eager.copy_as(gradient, from)
        })
    }

    /// A copy of a gradient in another type.
    pub fn copy_as(&mut self, tensor: &Tensor, dtype: DType) -> Tensor {
        Tensor::new(self.copied(tensor, dtype))
    }

    /// The same without a handle.
    pub fn copied(&mut self, tensor: &TensorBody, dtype: DType) -> TensorBody {
        let output = self.empty_like(tensor, dtype);
        self.launch(Kernel::Copy, &[tensor], &[&output]);
        output
    }
}

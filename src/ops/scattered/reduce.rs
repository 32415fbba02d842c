//! `scatter_reduce`: what its result and `scatter_reduce_backward` (`FunctionsManual.cpp`) take.

use super::{Combination, TRUTH};
use crate::eager::{Draft, Eager, Saved, Stop, Tensor};
use crate::program::Kernel;
use crate::shape::{DType, Extent, strides_like};

/// What the derivative depends on besides tensors.
#[derive(Clone, Copy)]
struct Reduced {
    reduce: Combination,
    include_self: bool,
}

impl Eager {
    /// `scatter_reduce`. A mean divides by how many elements went to each place.
    pub(super) fn scatter_reduce(
        &mut self,
        [x, index, source]: [&Tensor; 3],
        (reduce, include_self, in_place): (Combination, bool, bool),
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x), Some(source)]);
        draft.save(self, "index", index)?;
        // The derivative reads what the tensor was, of which an operation in place leaves nothing.
        let before = (in_place && draft.is_recorded()).then(|| self.unnamed_like(x));
        draft.save(self, "self", before.as_ref().unwrap_or(x))?;
        drop(before);
        draft.save(self, "src", source)?;
        let y = if in_place {
            x.alias(x.shape.clone(), x.strides.clone())
        } else {
            self.empty(&x.shape, x.dtype)
        };
        self.launch(
            Kernel::MemoryOnly("scatter_reduce"),
            &[x, index, source],
            &[&y],
        );
        if reduce == Combination::Mean {
            let ones = self.unnamed_like(source);
            let count = self.unnamed(&y.shape, y.dtype);
            drop(self.unnamed(&y.shape, TRUTH));
            drop(count);
            drop(ones);
        }
        draft.save(self, "result", &y.detached())?;
        let reduced = Reduced {
            reduce,
            include_self,
        };
        let y = draft.finish_into(
            self,
            in_place.then_some(x),
            y,
            move |eager, gradients, saved| {
                let Some(gradient) = &gradients[0] else {
                    return vec![None, None];
                };
                let [mut of_self, of_source] = eager.scatter_reduce_grad(reduced, gradient, saved);
                if !reduced.include_self {
                    let cleared = eager.unnamed(&of_self.shape, of_self.dtype);
                    of_self = cleared;
                }
                vec![Some(of_self), Some(of_source)]
            },
        );
        Ok(y)
    }

    fn unnamed(&mut self, shape: &[Extent], dtype: DType) -> Tensor {
        Tensor::new(self.empty(shape, dtype))
    }

    fn unnamed_like(&mut self, tensor: &Tensor) -> Tensor {
        let strides = strides_like(&tensor.shape, &tensor.strides);
        Tensor::new(self.empty_strided(&tensor.shape, strides, tensor.dtype))
    }

    /// Gradients of what was written into and of what was written, temporaries in the order of PyTorch's
    /// expressions.
    fn scatter_reduce_grad(
        &mut self,
        reduced: Reduced,
        gradient: &Tensor,
        saved: &Saved,
    ) -> [Tensor; 2] {
        let (x, source) = (saved.get("self"), saved.get("src"));
        let index = saved.get("index");
        let dtype = gradient.dtype;
        let (whole, part) = (gradient.shape.clone(), index.shape.clone());
        let of_whole = |eager: &mut Eager| eager.unnamed(&whole, dtype);
        let of_part = |eager: &mut Eager| eager.unnamed(&part, dtype);
        let truth_of_whole = |eager: &mut Eager| eager.unnamed(&whole, TRUTH);
        let truth_of_source = |eager: &mut Eager| eager.unnamed(&source.shape, TRUTH);
        match reduced.reduce {
            Combination::Sum => [Tensor::clone(gradient), of_part(self)],
            Combination::Mean => {
                let start = self.unnamed_like(gradient);
                let ones = self.unnamed_like(source);
                let count = of_whole(self);
                drop(ones);
                drop(start);
                drop(truth_of_whole(self));
                let of_self = of_whole(self);
                let counted = of_part(self);
                let gathered = of_part(self);
                let of_source = of_part(self);
                drop(gathered);
                drop(counted);
                drop(count);
                [of_self, of_source]
            }
            Combination::Extreme => {
                let value = of_part(self);
                let equal = truth_of_whole(self);
                let self_is_result = of_whole(self);
                drop(equal);
                let equal = truth_of_source(self);
                let source_is_result = of_part(self);
                drop(equal);
                let count = of_whole(self);
                let distributed = of_whole(self);
                let equal = truth_of_whole(self);
                let of_self = of_whole(self);
                drop(equal);
                let gathered = of_part(self);
                let equal = truth_of_source(self);
                let of_source = of_part(self);
                drop(equal);
                drop(gathered);
                drop(distributed);
                drop(count);
                drop(source_is_result);
                drop(self_is_result);
                drop(value);
                [of_self, of_source]
            }
            Combination::Product => self.scatter_product_grad([x, source], gradient, &part),
        }
    }

    fn scatter_product_grad(
        &mut self,
        [x, source]: [&Tensor; 2],
        gradient: &Tensor,
        part: &[Extent],
    ) -> [Tensor; 2] {
        let dtype = gradient.dtype;
        let zero = self.unnamed(&x.shape, TRUTH);
        let masked = self.unnamed_like(x);
        drop(zero);
        let masked_result = self.unnamed(&x.shape, dtype);
        let product = self.unnamed(&x.shape, dtype);
        let of_self = self.unnamed(&x.shape, dtype);
        drop(product);
        let source_zero = self.unnamed(&source.shape, TRUTH);
        let numbers = self.unnamed(&source.shape, dtype);
        let zeros = self.unnamed_like(x);
        let sums = self.unnamed(&x.shape, dtype);
        let count_of_zeros = self.unnamed(part, dtype);
        drop(sums);
        drop(zeros);
        drop(numbers);
        let is_one = self.unnamed(part, TRUTH);
        let single = self.unnamed(part, TRUTH);
        drop(is_one);
        let masked_source = self.unnamed(&source.shape, dtype);
        let masked_source_result = self.unnamed(&x.shape, dtype);
        let filled = self.unnamed(&source.shape, dtype);
        let product = self.unnamed(&x.shape, dtype);
        let gathered = self.unnamed(part, dtype);
        let quotient = self.unnamed(part, dtype);
        let other_product = self.unnamed(&x.shape, dtype);
        let other_gathered = self.unnamed(part, dtype);
        let of_source = self.unnamed(part, dtype);
        for temporary in [
            other_gathered,
            other_product,
            quotient,
            gathered,
            product,
            filled,
        ] {
            drop(temporary);
        }
        drop(masked_source_result);
        drop(masked_source);
        drop(single);
        drop(count_of_zeros);
        drop(source_zero);
        drop(masked_result);
        drop(masked);
        [of_self, of_source]
    }
}

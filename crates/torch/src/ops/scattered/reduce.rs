//! `scatter_reduce`: what its result and `scatter_reduce_backward` (`FunctionsManual.cpp`) take.

use super::{Combination, TRUTH, kernel};
use crate::ops::placing::{self, Combine};
use crate::ops::prelude::*;

/// `scatter_reduce(self, dim, index, src)`, besides its tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reduced {
    /// Along which dimension.
    pub(super) dim: usize,
    /// What becomes of several elements at one place.
    pub(super) reduce: Combination,
    /// Whether the element that is there counts too.
    pub(super) include_self: bool,
}

impl Combination {
    /// How one element is combined with another, and what leaves it as it is.
    fn pairwise(self) -> (Combine, f64) {
        match self {
            Combination::Sum | Combination::Mean => (Combine::Add, 0.0),
            Combination::Product => (Combine::Multiply, 1.0),
            Combination::Largest => (Combine::Largest, f64::NEG_INFINITY),
            Combination::Smallest => (Combine::Smallest, f64::INFINITY),
        }
    }
}

/// Each element by how many there are, rounded down where they are whole.
const MEAN: &str = "const T by = count == 0 ? (T)1 : (T)count; result = floor_if_whole((T)x, by);";

fn map(inputs: &[&'static str], body: &'static str) -> Generated {
    Generated::map("scatter_reduce", inputs, body)
}

impl Eager {
    /// `scatter_reduce`. A mean divides by how many elements went to each place.
    pub(super) fn scatter_reduce(
        &mut self,
        [x, index, source]: [&Tensor; 3],
        reduced: Reduced,
        in_place: bool,
    ) -> Output {
        let (dim, include_self) = (reduced.dim, reduced.include_self);
        let mut draft = OpRecord::new(self, &[Some(x), Some(source)]);
        draft.save(self, "index", index)?;
        // The derivative reads what the tensor was, of which an operation in place leaves nothing.
        let before = (in_place && draft.is_recorded()).then(|| self.unnamed_like(x));
        if let Some(before) = &before {
            self.launch(Kernel::Copy, &[x], &[before]);
        }
        draft.save(self, "self", before.as_ref().unwrap_or(x))?;
        drop(before);
        draft.save(self, "src", source)?;
        let y = self.written_or_copied(x, in_place);
        let (combine, start) = reduced.reduce.pairwise();
        if !include_self {
            self.scatter_along(&y, dim, index, (Combine::Replace, Err(start)));
        }
        self.scatter_along(&y, dim, index, (combine, Ok(&**source)));
        if reduced.reduce == Combination::Mean {
            let ones = self.unnamed_like(source);
            let count = self.unnamed(&y.shape, y.dtype);
            let own = if include_self { 1.0 } else { 0.0 };
            self.launch(Kernel::Fill(own), &[], &[&count]);
            self.scatter_along(&count, dim, index, (Combine::Add, Err(1.0)));
            self.launch(map(&["x", "count"], MEAN), &[&y, &count], &[&y]);
            drop(self.unnamed(&y.shape, TRUTH));
            drop((count, ones));
        }
        draft.save(self, "result", &y.detached())?;
        let written = in_place.then_some(x);
        draft.finish_into(self, written, y, move |eager, gradient, saved| {
            let [mut of_self, of_source] = eager.scatter_reduce_grad(reduced, gradient, saved);
            if !reduced.include_self {
                let cleared = eager.unnamed(&of_self.shape, of_self.dtype);
                eager.launch(Kernel::Copy, &[&of_self], &[&cleared]);
                let index = saved.get("index");
                let zero = (Combine::Replace, Err(0.0));
                eager.scatter_along(&cleared, reduced.dim, index, zero);
                of_self = cleared;
            }
            vec![Some(of_self), Some(of_source)]
        })
    }

    fn unnamed(&mut self, shape: &[Extent], dtype: DType) -> Tensor {
        Tensor::new(self.empty(shape, dtype))
    }

    fn unnamed_like(&mut self, tensor: &Tensor) -> Tensor {
        Tensor::new(self.empty_like(tensor, tensor.dtype))
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
        let gathered_from = |eager: &mut Eager, from: &TensorBody, into: &TensorBody| {
            let kernel = placing::gather(from.shape.len(), reduced.dim);
            eager.launch(kernel, &[from, index], &[into]);
        };
        let dim = reduced.dim;
        match reduced.reduce {
            Combination::Sum => {
                let of_source = of_part(self);
                gathered_from(self, gradient, &of_source);
                [Tensor::clone(gradient), of_source]
            }
            Combination::Mean => {
                let start = self.unnamed_like(gradient);
                let ones = self.unnamed_like(source);
                let count = of_whole(self);
                let own = if reduced.include_self { 1.0 } else { 0.0 };
                self.launch(Kernel::Fill(own), &[], &[&count]);
                self.scatter_along(&count, dim, index, (Combine::Add, Err(1.0)));
                drop((ones, start));
                drop(truth_of_whole(self));
                let of_self = of_whole(self);
                let body = "result = count == 0 ? (T)x : (T)x / (T)count;";
                let divided = map(&["x", "count"], body);
                self.launch(divided.clone(), &[gradient, &count], &[&of_self]);
                let counted = of_part(self);
                gathered_from(self, &count, &counted);
                let gathered = of_part(self);
                gathered_from(self, gradient, &gathered);
                let of_source = of_part(self);
                self.launch(divided, &[&gathered, &counted], &[&of_source]);
                drop((gathered, counted, count));
                [of_self, of_source]
            }
            Combination::Largest | Combination::Smallest => {
                let result = saved.get("result");
                let share = map(&["is", "share"], "result = is != 0 ? (T)share : (T)0;");
                let value = of_part(self);
                gathered_from(self, result, &value);
                let equal = truth_of_whole(self);
                let self_is_result = of_whole(self);
                let same = map(&["a", "b"], "result = a == b;");
                self.launch(same, &[x, result], &[&self_is_result]);
                drop(equal);
                let equal = truth_of_source(self);
                let source_is_result = of_part(self);
                let kernel = kernel::is_there(source.shape.len(), dim);
                self.launch(kernel, &[source, index, result], &[&source_is_result]);
                drop(equal);
                let count = of_whole(self);
                self.launch(Kernel::Copy, &[&self_is_result], &[&count]);
                let added = (Combine::Add, Ok(&*source_is_result));
                self.scatter_along(&count, dim, index, added);
                let distributed = of_whole(self);
                let kernel = map(&["x", "count"], "result = (T)x / (T)count;");
                self.launch(kernel, &[gradient, &count], &[&distributed]);
                let equal = truth_of_whole(self);
                let of_self = of_whole(self);
                self.launch(share.clone(), &[&self_is_result, &distributed], &[&of_self]);
                drop(equal);
                let gathered = of_part(self);
                gathered_from(self, &distributed, &gathered);
                let equal = truth_of_source(self);
                let of_source = of_part(self);
                self.launch(share, &[&source_is_result, &gathered], &[&of_source]);
                drop((equal, gathered, distributed, count));
                drop((source_is_result, self_is_result, value));
                [of_self, of_source]
            }
            Combination::Product => self.scatter_product_grad((reduced, saved), gradient, &part),
        }
    }

    /// The product of all others, for what went to a place and for what was there. Zeros are set apart: where an operand is
    /// the only one that is zero, its gradient is the product of the rest.
    fn scatter_product_grad(
        &mut self,
        (reduced, saved): (Reduced, &Saved),
        gradient: &Tensor,
        part: &[Extent],
    ) -> [Tensor; 2] {
        let (x, source, index) = (saved.get("self"), saved.get("src"), saved.get("index"));
        let (dtype, dim) = (gradient.dtype, reduced.dim);
        let without_zeros = "result = x == 0 ? (T)1 : (T)x;";
        let zero = self.unnamed(&x.shape, TRUTH);
        let masked = self.unnamed_like(x);
        self.launch(map(&["x"], without_zeros), &[x], &[&masked]);
        drop(zero);
        let masked_result = self.unnamed(&x.shape, dtype);
        self.launch(Kernel::Copy, &[&masked], &[&masked_result]);
        let multiplied = (Combine::Multiply, Ok(&**source));
        self.scatter_along(&masked_result, dim, index, multiplied);
        let product = self.unnamed(&x.shape, dtype);
        let of_self = self.unnamed(&x.shape, dtype);
        let body = "result = (T)grad * (T)all / (T)own;";
        let kernel = map(&["grad", "all", "own"], body);
        self.launch(kernel, &[gradient, &masked_result, &masked], &[&of_self]);
        drop(product);
        let source_zero = self.unnamed(&source.shape, TRUTH);
        let numbers = self.unnamed(&source.shape, dtype);
        self.launch(map(&["x"], "result = x == 0;"), &[source], &[&numbers]);
        let zeros = self.unnamed_like(x);
        let sums = self.unnamed(&x.shape, dtype);
        self.launch(Kernel::Fill(0.0), &[], &[&sums]);
        self.scatter_along(&sums, dim, index, (Combine::Add, Ok(&*numbers)));
        let count_of_zeros = self.unnamed(part, dtype);
        let gather = || placing::gather(part.len(), dim);
        self.launch(gather(), &[&sums, index], &[&count_of_zeros]);
        drop((sums, zeros, numbers));
        let is_one = self.unnamed(part, TRUTH);
        let single = self.unnamed(part, TRUTH);
        drop(is_one);
        let masked_source = self.unnamed(&source.shape, dtype);
        self.launch(map(&["x"], without_zeros), &[source], &[&masked_source]);
        let masked_source_result = self.unnamed(&x.shape, dtype);
        self.launch(Kernel::Copy, &[x], &[&masked_source_result]);
        if !reduced.include_self {
            let one = (Combine::Replace, Err(1.0));
            self.scatter_along(&masked_source_result, dim, index, one);
        }
        let multiplied = (Combine::Multiply, Ok(&*masked_source));
        self.scatter_along(&masked_source_result, dim, index, multiplied);
        let filled = self.unnamed(&source.shape, dtype);
        let product = self.unnamed(&x.shape, dtype);
        let kernel = map(&["a", "b"], "result = (T)a * (T)b;");
        self.launch(kernel, &[gradient, &masked_source_result], &[&product]);
        let gathered = self.unnamed(part, dtype);
        self.launch(gather(), &[&product, index], &[&gathered]);
        let quotient = self.unnamed(part, dtype);
        let other_product = self.unnamed(&x.shape, dtype);
        let other_gathered = self.unnamed(part, dtype);
        let of_source = self.unnamed(part, dtype);
        // With a zero elsewhere at the place nothing is left of the product.
        let body = "const T others = (T)zeros - (x == 0 ? (T)1 : (T)0); result = others > 0 ? (T)0 : (T)all / (x == 0 ? (T)1 : (T)x);";
        let kernel = map(&["all", "x", "zeros"], body);
        let seen = source.alias(part.to_vec(), source.strides.clone());
        self.launch(kernel, &[&gathered, &seen, &count_of_zeros], &[&of_source]);
        drop(seen);
        drop((
            other_gathered,
            other_product,
            quotient,
            gathered,
            product,
            filled,
        ));
        drop((masked_source_result, masked_source, single, count_of_zeros));
        drop((source_zero, masked_result, masked));
        [of_self, of_source]
    }
}

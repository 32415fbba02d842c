//! The largest or smallest element: its gradient goes evenly to all that are equal to it.

use super::Over;
use super::run::{Kind, squeezed};
use super::vector_norm::kept_shape;
use crate::eager::{Draft, Eager, Stop, Tensor};
use crate::program::Kernel;
use crate::shape::DType;

const NAME: Kernel = Kernel::MemoryOnly("amax");

impl Eager {
    /// `amax(dims)`, `max()` and those of the smallest (`scale_grad_by_count`, `evenly_distribute_backward`).
    pub(super) fn extreme(&mut self, x: &Tensor, over: Over<'_>) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let whole = self.reduced_by(x, over.dims, x.dtype, (NAME, Kind::Extreme));
        let y = squeezed(&whole, over.dims, over.keep);
        drop(whole);
        draft.save(self, "result", &y.detached())?;
        let (dims, named) = (over.dims.to_vec(), over.named);
        let kept = kept_shape(&x.shape, over.dims);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let gradient = eager.reshape(gradient, &kept);
            let equal = Tensor::new(eager.empty_like(x, DType::Bool));
            // What is no number is equal to a result that is none.
            let missing = (!named).then(|| {
                let result = eager.empty(&[], DType::Bool);
                (result, eager.empty_like(x, DType::Bool))
            });
            let count = eager.reduced_by(&equal, &dims, DType::Int64, (NAME, Kind::Sum));
            let share = eager.empty(&count.shape, gradient.dtype);
            let grad_x = eager.empty_like(x, gradient.dtype);
            eager.launch(NAME, &[&gradient, x, saved.get("result")], &[&grad_x]);
            drop(share);
            drop(count);
            if let Some((result, mask)) = missing {
                drop(mask);
                drop(result);
            }
            drop(equal);
            Tensor::new(grad_x)
        }))
    }
}

//! The largest or smallest element: its gradient goes evenly to all that are equal to it.

use super::run::Kind;
use super::vector_norm::kept_shape;
use super::{ReduceDims, kernel};
use crate::ops::prelude::*;

impl Eager {
    /// One of the results of `aminmax`, which has no derivative.
    pub(super) fn unsaved_extreme(
        &mut self,
        x: &Tensor,
        over: ReduceDims<'_>,
        largest: bool,
    ) -> Tensor {
        let by = (kernel::extreme(over.dims, largest), Kind::Extreme);
        Tensor::new(self.reduced_over(x, over, x.dtype, by))
    }

    /// `amax(dims)`, `max()` and those of the smallest (`scale_grad_by_count`, `evenly_distribute_backward`).
    pub(super) fn extreme(&mut self, x: &Tensor, over: ReduceDims<'_>, largest: bool) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let by = (kernel::extreme(over.dims, largest), Kind::Extreme);
        let y = self.reduced_over(x, over, x.dtype, by);
        draft.save(self, "result", &y.detached())?;
        let (dims, named) = (over.dims.to_vec(), over.named);
        let kept = kept_shape(&x.shape, over.dims);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let gradient = eager.reshape(gradient, &kept);
            let equal = Tensor::new(eager.empty_like(x, DType::Bool));
            // What is no number is equal to a result that is none.
            let _is_missing = (!named).then(|| eager.empty(&[], DType::Bool));
            let _missing = (!named).then(|| eager.empty_like(x, DType::Bool));
            let result = eager.reshape(saved.get("result"), &kept);
            eager.launch(kernel::equal_to_extreme(!named), &[x, &result], &[&equal]);
            let by = (kernel::count(&dims), Kind::Sum);
            let count = eager.reduced_by(&equal, &dims, DType::Int64, by);
            let _share = eager.empty(&count.shape, gradient.dtype);
            let grad_x = eager.empty_like(x, gradient.dtype);
            eager.computed(
                grad_x,
                kernel::shared_evenly(),
                &[&gradient, &equal, &count],
            )
        }))
    }
}

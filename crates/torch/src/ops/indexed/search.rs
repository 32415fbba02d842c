//! Looking values up in sorted or listed ones. None has a gradient.

use super::ordering;
use crate::ops::prelude::*;

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    // Where each value belongs.
    ("aten.searchsorted.Tensor", |args| {
        let operands = args.all(&["sorted_sequence", "self"])?;
        args.absent("sorter")?;
        let right = args.flag("right", false)? || args.text("side", "left")? == "right";
        let search = Function {
            name: "searchsorted",
            arguments: (places(args)?, right),
            infer: |(places, _), x| Ok(vec![(*places, x[1].1.clone())]),
            run: |&how, eager, x, _| Ok(vec![eager.search([&x[0], &x[1]], how)]),
        };
        Ok(search.on(operands))
    }),
    // The same with the operands exchanged.
    ("aten.bucketize.Tensor", |args| {
        let search = Function {
            name: "bucketize",
            arguments: (places(args)?, args.flag("right", false)?),
            infer: |(places, _), x| Ok(vec![(*places, x[0].1.clone())]),
            run: |&how, eager, x, _| Ok(vec![eager.search([&x[1], &x[0]], how)]),
        };
        Ok(search.on(args.all(&["self", "boundaries"])?))
    }),
    ("aten.isin.Tensor_Tensor", |args| {
        let is_in = Function {
            name: "isin",
            arguments: args.flag("invert", false)?,
            infer: |_, x| Ok(vec![(DType::Bool, x[0].1.clone())]),
            run: |invert, eager, x, _| Ok(vec![eager.is_in(&x[0], &x[1], *invert)]),
        };
        Ok(is_in.on(args.all(&["elements", "test_elements"])?))
    }),
];

/// The type of places.
fn places(args: &Arguments<'_>) -> Result<DType, String> {
    Ok(if args.flag("out_int32", false)? {
        DType::Int32
    } else {
        DType::Int64
    })
}

impl Eager {
    /// `searchsorted`, behind equal ones if `right`: values of another type than what they are looked up in are converted to it.
    fn search(&mut self, [sorted, values]: [&Tensor; 2], (places, right): (DType, bool)) -> Tensor {
        let y = self.empty(&values.shape, places);
        let dense = self.dense_copy(sorted);
        let values = if values.dtype == sorted.dtype {
            self.dense_copy(values)
        } else {
            self.copy_as(values, sorted.dtype)
        };
        let kernel = ordering::search(sorted.shape.len(), right);
        self.computed(y, kernel, &[&dense, &values])
    }

    /// `isin` of few: every element is compared with every one listed. PyTorch sorts both where more than ten times
    /// the elements' number to the power of 0.145 are listed (`isin_Tensor_Tensor_out`), in less memory than that.
    fn is_in(&mut self, elements: &Tensor, listed: &Tensor, invert: bool) -> Tensor {
        let (all, count) = (elements.numel(), listed.numel());
        let y = self.empty(&elements.shape, DType::Bool);
        let mut buffer = |for_few: bool, bytes: Extent| {
            let of = (all, count, for_few, bytes);
            self.scratch_by("isin", of, |&(all, count, for_few, bytes), batch| {
                let (all, count) = (all.at(batch) as f64, count.at(batch) as f64);
                let is_few = count < 10.0 * all.powf(0.145);
                if is_few == for_few {
                    bytes.at(batch)
                } else {
                    0
                }
            })
        };
        let _pairs = buffer(true, numel(&[all, count]));
        let _any = buffer(true, all);
        // Distinct elements with which of them each is, then all together sorted with their places, twice.
        let both = numel(&[all + count, Extent::fixed(8)]);
        let _sorted = [(); 6].map(|()| buffer(false, both));
        self.computed(y, ordering::is_in(invert), &[elements, listed])
    }
}

//! Looking values up in sorted or listed ones. None has a gradient.

use serde::Serialize;

use super::ordering;

use crate::aten::{Arguments, ValueId};
use crate::eager::{Eager, Outputs, Tensor};
use crate::ops::{Context, Operator, Reader};
use crate::shape::{DType, Extent, Mismatch, Type, numel};

/// Which operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Search {
    /// `searchsorted(sorted, values)`: where each value belongs; operands in that order.
    Sorted {
        /// The type of the places.
        places: DType,
        /// Whether behind equal ones.
        right: bool,
    },
    /// `bucketize(values, boundaries)`: the same with the operands exchanged.
    Bucketize {
        /// The type of the places.
        places: DType,
        /// Whether behind equal ones.
        right: bool,
    },
    /// `isin(elements, test_elements)`.
    IsIn {
        /// Whether those that are not.
        invert: bool,
    },
}

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.searchsorted.Tensor", |args| {
        let operands = args.all(&["sorted_sequence", "self"])?;
        args.absent("sorter")?;
        let right = args.flag("right", false)? || args.text("side", "left")? == "right";
        let places = places(args)?;
        Ok((Search::Sorted { places, right }.into(), operands))
    }),
    ("aten.bucketize.Tensor", |args| {
        let operands = args.all(&["self", "boundaries"])?;
        let places = places(args)?;
        let right = args.flag("right", false)?;
        Ok((Search::Bucketize { places, right }.into(), operands))
    }),
    ("aten.isin.Tensor_Tensor", |args| {
        let operands: Vec<ValueId> = args.all(&["elements", "test_elements"])?;
        let invert = args.flag("invert", false)?;
        Ok((Search::IsIn { invert }.into(), operands))
    }),
];

fn places(args: &Arguments<'_>) -> Result<DType, String> {
    Ok(if args.flag("out_int32", false)? {
        DType::Int32
    } else {
        DType::Int64
    })
}

impl Operator for Search {
    fn name(&self) -> &'static str {
        match self {
            Search::Sorted { .. } => "searchsorted",
            Search::Bucketize { .. } => "bucketize",
            Search::IsIn { .. } => "isin",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (2, 2)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let [first, second] = [0, 1].map(|at: usize| operands[at].1.clone());
        Ok(vec![match self {
            Search::Sorted { places, .. } => (*places, second),
            Search::Bucketize { places, .. } => (*places, first),
            Search::IsIn { .. } => (DType::Bool, first),
        }])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let (first, second) = (&operands[0], &operands[1]);
        Ok(vec![match self {
            Search::Sorted { places, right } => eager.search([first, second], *places, *right),
            Search::Bucketize { places, right } => eager.search([second, first], *places, *right),
            Search::IsIn { invert } => eager.is_in(first, second, *invert),
        }])
    }
}

impl Eager {
    /// `searchsorted`: values of another type than what they are looked up in are converted to it.
    fn search(&mut self, [sorted, values]: [&Tensor; 2], places: DType, right: bool) -> Tensor {
        let y = self.empty(&values.shape, places);
        let dense = self.dense_copy(sorted);
        let values = if values.dtype == sorted.dtype {
            self.dense_copy(values)
        } else {
            self.copy_as(values, sorted.dtype)
        };
        let kernel = ordering::search(sorted.shape.len(), right);
        self.launch(kernel, &[&dense, &values], &[&y]);
        drop(values);
        drop(dense);
        Tensor::new(y)
    }

    /// `isin` of few: every element is compared with every one listed. PyTorch sorts both where more than ten times
    /// the elements' number to the power of 0.145 are listed (`isin_Tensor_Tensor_out`), in less memory than that.
    fn is_in(&mut self, elements: &Tensor, listed: &Tensor, invert: bool) -> Tensor {
        let (all, count) = (elements.numel(), listed.numel());
        let y = self.empty(&elements.shape, DType::Bool);
        let mut buffer = |for_few: bool, bytes: Extent| {
            let of = (all, count, for_few, bytes);
            self.scratch_by("isin", of, |&(all, count, for_few, bytes), batch| {
                #[expect(clippy::cast_precision_loss, reason = "as PyTorch does it")]
                let (all, count) = (all.at(batch) as f64, count.at(batch) as f64);
                let is_few = count < 10.0 * all.powf(0.145);
                if is_few == for_few {
                    bytes.at(batch)
                } else {
                    0
                }
            })
        };
        let pairs = buffer(true, numel(&[all, count]));
        let any = buffer(true, all);
        // Distinct elements with which of them each is, then all together sorted with their places, twice.
        let both = numel(&[all + count, Extent::fixed(8)]);
        let sorted = [(); 6].map(|()| buffer(false, both));
        self.launch(ordering::is_in(invert), &[elements, listed], &[&y]);
        drop(sorted);
        drop(any);
        drop(pairs);
        Tensor::new(y)
    }
}

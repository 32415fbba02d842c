//! Running products and extremes.

mod kernel;

use serde::Serialize;

use super::{Context, Operator, Read, Reader};
use crate::aten::Arguments;
use crate::eager::{Eager, OpRecord, Outputs, Stop, Tensor, TensorBody};
use crate::ops::placing::Combine;
use crate::program::{Generated, Kernel};
use crate::shape::{DType, Mismatch, Type};

/// A running product or extreme along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Scan {
    /// What runs.
    pub function: Running,
    /// Along which dimension.
    pub dim: usize,
    /// The type to compute in, where the model's code says.
    pub dtype: Option<DType>,
}

/// What runs along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Running {
    /// `cumprod`.
    Product,
    /// `cummax`: values and positions.
    Largest,
    /// `cummin`: values and positions.
    Smallest,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.cumprod.default", |args| read(args, Running::Product)),
    ("aten.cummax.default", |args| read(args, Running::Largest)),
    ("aten.cummin.default", |args| read(args, Running::Smallest)),
];

fn read(args: &Arguments<'_>, function: Running) -> Result<Read, String> {
    let input = args.tensor("self")?;
    let scan = Scan {
        function,
        dim: args.dim("dim", None, args.shape(input).len())?,
        dtype: args.dtype("dtype")?,
    };
    Ok((scan.into(), vec![input]))
}

impl Operator for Scan {
    fn name(&self) -> &'static str {
        match self.function {
            Running::Product => "cumprod",
            Running::Largest => "cummax",
            Running::Smallest => "cummin",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        Ok(match self.function {
            Running::Product => {
                let own = if dtype.is_float() {
                    *dtype
                } else {
                    DType::Int64
                };
                vec![(self.dtype.unwrap_or(own), x.clone())]
            }
            Running::Largest | Running::Smallest => {
                vec![(*dtype, x.clone()), (DType::Int64, x.clone())]
            }
        })
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let x = &operands[0];
        match self.function {
            Running::Product => Ok(vec![eager.cumprod(x, self.dim, self.dtype)?]),
            Running::Largest | Running::Smallest => eager.running_extreme(x, *self),
        }
    }
}

impl Eager {
    /// `cumprod`, which autocast makes in float32, of a copy of its operand.
    fn cumprod(&mut self, x: &Tensor, dim: usize, dtype: Option<DType>) -> Result<Tensor, Stop> {
        let own = match self.autocast {
            Some(_) if x.dtype.is_half() => DType::Float32,
            _ if x.dtype.is_float() => x.dtype,
            _ => DType::Int64,
        };
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let y = self.empty(&x.shape, dtype.unwrap_or(own));
        let converted = (x.dtype != y.dtype).then(|| self.empty_like(x, y.dtype));
        self.launch(kernel::running_product(dim), &[x], &[&y]);
        drop(converted);
        draft.save(self, "result", &y.detached())?;
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            // `cumprod_backward` without zeros: `reversed_cumsum(output * grad) / input`.
            let (x, result) = (saved.get("self"), saved.get("result"));
            let cast = (gradient.dtype != x.dtype).then(|| eager.copy_as(gradient, x.dtype));
            let like = |eager: &mut Eager| eager.empty_like(result, result.dtype);
            let product = like(eager);
            let zeros = Tensor::new(eager.empty_like(x, DType::Bool));
            let is_zero = Generated::map("eq", ["x"], "result = x == 0;");
            eager.launch(is_zero.into(), &[x], &[&zeros]);
            eager.any_of(&zeros);
            let flipped = like(eager);
            let summed = like(eager);
            let reversed = like(eager);
            drop(summed);
            drop(flipped);
            let grad_x = like(eager);
            let inputs: [&TensorBody; 3] = [gradient, x, result];
            let kernel = kernel::running_product_backward(dim);
            eager.launch(kernel, &inputs, &[&grad_x]);
            drop(reversed);
            drop(zeros);
            drop(product);
            drop(cast);
            Tensor::new(grad_x)
        }))
    }

    /// `cummax` or `cummin`: the gradient is added up at the positions.
    fn running_extreme(&mut self, x: &Tensor, scan: Scan) -> Outputs {
        let dim = scan.dim;
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let y = self.empty(&x.shape, x.dtype);
        let positions = Tensor::new(self.empty(&x.shape, DType::Int64));
        let is_largest = scan.function == Running::Largest;
        let kernel = kernel::running_extreme(dim, is_largest);
        self.launch(kernel, &[x], &[&y, &positions]);
        draft.save(self, "indices", &positions)?;
        let y = draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.empty_like(saved.get("self"), gradient.dtype);
            eager.launch(Kernel::Fill(0.0), &[], &[&grad_x]);
            let added = (Combine::Add, Ok(&**gradient));
            eager.scatter_along(&grad_x, dim, saved.get("indices"), added);
            Tensor::new(grad_x)
        });
        Ok(vec![y, positions])
    }
}

//! Running products and extremes.

mod kernel;

use crate::ops::placing::Combine;
use crate::ops::prelude::*;

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.cumprod.default", |args| {
        let (input, dim) = along(args)?;
        let product = Function {
            name: "cumprod",
            arguments: (dim, args.dtype("dtype")?),
            infer: |(_, dtype), x| {
                let own = if x[0].0.is_float() {
                    x[0].0
                } else {
                    DType::Int64
                };
                Ok(vec![(dtype.unwrap_or(own), x[0].1.clone())])
            },
            run: |&(dim, dtype), eager, x, _| Ok(vec![eager.cumprod(&x[0], dim, dtype)?]),
        };
        Ok(product.on(vec![input]))
    }),
    ("aten.cummax.default", |args| extreme(args, "cummax")),
    ("aten.cummin.default", |args| extreme(args, "cummin")),
];

/// The operand, and along which dimension something runs.
fn along(args: &Arguments<'_>) -> Result<(ValueId, usize), String> {
    let input = args.tensor("self")?;
    Ok((input, args.dim("dim", None, args.shape(input).len())?))
}

/// `cummax` and `cummin`: values and positions.
fn extreme(args: &Arguments<'_>, name: &'static str) -> Result<Read, String> {
    let (input, dim) = along(args)?;
    let extreme = Function {
        name,
        arguments: (dim, name == "cummax"),
        infer: |_, x| Ok(vec![x[0].clone(), (DType::Int64, x[0].1.clone())]),
        run: |&(dim, largest), eager, x, _| eager.running_extreme(&x[0], dim, largest),
    };
    Ok(extreme.on(vec![input]))
}

impl Eager {
    /// `cumprod`, which autocast makes in float32, of a copy of its operand.
    fn cumprod(&mut self, x: &Tensor, dim: usize, dtype: Option<DType>) -> Output {
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
            let _cast = (gradient.dtype != x.dtype).then(|| eager.copy_as(gradient, x.dtype));
            let like = |eager: &mut Eager| eager.empty_like(result, result.dtype);
            let _product = like(eager);
            let zeros = Tensor::new(eager.empty_like(x, DType::Bool));
            let is_zero = Generated::map("eq", ["x"], "result = x == 0;");
            eager.launch(is_zero, &[x], &[&zeros]);
            eager.any_of(&zeros);
            let flipped = like(eager);
            let summed = like(eager);
            let _reversed = like(eager);
            drop((summed, flipped));
            let grad_x = like(eager);
            let inputs: [&TensorBody; 3] = [gradient, x, result];
            let kernel = kernel::running_product_backward(dim);
            eager.computed(grad_x, kernel, &inputs)
        }))
    }

    /// `cummax` or `cummin`: the gradient is added up at the positions.
    fn running_extreme(&mut self, x: &Tensor, dim: usize, largest: bool) -> Outputs {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let y = self.empty(&x.shape, x.dtype);
        let positions = Tensor::new(self.empty(&x.shape, DType::Int64));
        let kernel = kernel::running_extreme(dim, largest);
        self.launch(kernel, &[x], &[&y, &positions]);
        draft.save(self, "indices", &positions)?;
        let y = draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.zeros_like(saved.get("self"), gradient.dtype);
            let added = (Combine::Add, Ok(&**gradient));
            eager.scatter_along(&grad_x, dim, saved.get("indices"), added);
            Tensor::new(grad_x)
        });
        Ok(vec![y, positions])
    }
}

//! Weights as directions and lengths: `torch.nn.utils.weight_norm`.

use crate::ops::prelude::*;
use crate::ops::reduce::kept_shape;

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten._weight_norm.default", |args| weight_norm(args, false)),
    ("aten._weight_norm_interface.default", |args| {
        weight_norm(args, true)
    }),
];

/// `_weight_norm(v, g)`: `v` scaled to the norms `g` along all dimensions but one, the first or the last. Norms may be a result as well.
fn weight_norm(args: &Arguments<'_>, with_norms: bool) -> Result<Read, String> {
    let operands = args.all(&["v", "g"])?;
    let rank = args.shape(operands[0]).len();
    let dim = args.dim("dim", Some(0), rank)?;
    if dim != 0 && dim + 1 != rank {
        return Err("it keeps a dimension that is neither the first nor the last".into());
    }
    let norm = Function {
        name: "weight_norm",
        arguments: (dim, with_norms),
        infer: |(dim, with_norms), x| {
            let [(dtype, v), (norms, g)] = [&x[0], &x[1]];
            let others: Vec<usize> = (0..v.len()).filter(|own| own != dim).collect();
            let expected = kept_shape(v, &others);
            if *g != expected {
                return Err(format!("the norms are {g:?}, not {expected:?}"));
            }
            let mut results = vec![(*dtype, v.clone())];
            results.extend(with_norms.then(|| (*norms, g.clone())));
            Ok(results)
        },
        run: |(dim, with_norms), eager, x, _| {
            let mut results = eager.weight_norm(&x[0], &x[1], *dim)?;
            results.truncate(1 + usize::from(*with_norms));
            Ok(results)
        },
    };
    Ok(norm.on(operands))
}

impl Eager {
    /// `_weight_norm_interface`: saves both operands and the norms, in float32 for half weights.
    fn weight_norm(&mut self, v: &Tensor, g: &Tensor, dim: usize) -> Outputs {
        let mut draft = OpRecord::new(self, &[Some(v), Some(g)]);
        draft.save(self, "g", g)?;
        draft.save(self, "v", v)?;
        let accumulated = if v.dtype.is_half() {
            DType::Float32
        } else {
            v.dtype
        };
        let y = self.empty(&v.shape, v.dtype);
        let norms = Tensor::new(self.empty(&g.shape, accumulated));
        let dims: Vec<usize> = (0..v.shape.len()).filter(|own| *own != dim).collect();
        self.launch(scaled(&dims), &[v, g], &[&y, &norms]);
        draft.save(self, "norms", &norms)?;
        let y = draft.finish_single(self, y, move |eager, gradient, saved| {
            let (v, g) = (saved.get("v"), saved.get("g"));
            let gradient = eager.dense_copy(gradient);
            let grad_v = eager.empty(&v.shape, v.dtype);
            let grad_g = eager.empty(&g.shape, g.dtype);
            let inputs = [&*gradient, v, g, saved.get("norms")];
            eager.launch(scaled_grad(&dims), &inputs, &[&grad_v, &grad_g]);
            vec![Some(Tensor::new(grad_v)), Some(Tensor::new(grad_g))]
        });
        Ok(vec![y, norms])
    }
}

/// `weight_norm_fwd_first_dim_kernel` in WeightNorm.cu.
fn scaled(dims: &[usize]) -> Generated {
    let body = include_str!("weight/forward.cu");
    Generated::rows("weight_norm", ["v", "g"], ["w", "norms"], dims, body)
}

/// `weight_norm_bwd_first_dim_kernel` in WeightNorm.cu.
fn scaled_grad(dims: &[usize]) -> Generated {
    let body = include_str!("weight/backward.cu");
    let inputs = ["grad", "v", "g", "norms"];
    Generated::rows("weight_norm", inputs, ["grad_v", "grad_g"], dims, body)
}

//! Looking up planes and volumes at places that are computed: `grid_sample` and the grids of affine maps.

use super::grid::{self, Lookup};
use crate::ops::prelude::*;

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.grid_sampler.default", |args| {
        let operands = args.all(&["input", "grid"])?;
        let sample = Function {
            name: "grid_sampler",
            arguments: Lookup {
                interpolation: args.int("interpolation_mode", None)?,
                padding: args.int("padding_mode", None)?,
                align_corners: args.flag("align_corners", false)?,
                sides: args.shape(operands[0]).len().saturating_sub(2),
            },
            infer: |_, x| Ok(vec![sampled(&x[0], &x[1].1)?]),
            run: |lookup, eager, x, context| {
                let shape = &context.results[0];
                Ok(vec![eager.grid_sample(*lookup, [&x[0], &x[1]], shape)?])
            },
        };
        Ok(sample.on(operands))
    }),
    // For results of this size: batch, channels, sides.
    ("aten.affine_grid_generator.default", |args| {
        let grid = Function {
            name: "affine_grid_generator",
            arguments: (
                args.whole_lengths("size")?,
                args.flag("align_corners", false)?,
            ),
            infer: |(size, _), x| Ok(vec![mapped(&x[0], size)?]),
            run: |(size, align_corners), eager, x, context| {
                let shape = &context.results[0];
                Ok(vec![eager.affine_grid(
                    &x[0],
                    (size, *align_corners),
                    shape,
                )])
            },
        };
        Ok(grid.on(args.all(&["theta"])?))
    }),
];

fn sampled((dtype, x): &Type, grid: &[Extent]) -> Result<Type, Mismatch> {
    let ([n, channels, sides @ ..], [samples, places @ .., last]) = (x.as_slice(), grid) else {
        return Err(format!("input {x:?} and grid {grid:?} must have channels"));
    };
    let rank = Extent::fixed(sides.len() as u64);
    if !(2..=3).contains(&sides.len())
        || places.len() != sides.len()
        || n != samples
        || *last != rank
    {
        return Err(format!("the grid {grid:?} does not fit the input {x:?}"));
    }
    Ok((*dtype, [&[*n, *channels], places].concat()))
}

fn mapped((dtype, maps): &Type, size: &[Extent]) -> Result<Type, Mismatch> {
    let [n, _, sides @ ..] = size else {
        return Err(format!("the size {size:?} has no channels"));
    };
    let rank = sides.len() as u64;
    if !(2..=3).contains(&rank) || *maps != [*n, rank.into(), (rank + 1).into()] {
        return Err(format!("the maps {maps:?} do not fit the size {size:?}"));
    }
    Ok((*dtype, [&[*n], sides, &[rank.into()]].concat()))
}

impl Eager {
    /// `grid_sample`; autocast runs it in the widest type of its operands. Saves both and makes both gradients,
    /// cuDNN's kernel as well as PyTorch's own. Seen on an H200 (2.11).
    fn grid_sample(&mut self, lookup: Lookup, [x, grid]: [&Tensor; 2], shape: &[Extent]) -> Output {
        let (x, grid) = match self.autocast {
            Some(_)
                if [x, grid]
                    .iter()
                    .any(|operand| operand.dtype == DType::Float32) =>
            {
                (self.high(x), self.high(grid))
            }
            Some(_) | None => (Tensor::clone(x), Tensor::clone(grid)),
        };
        let mut draft = OpRecord::new(self, &[Some(&x), Some(&grid)]);
        draft.save(self, "grid", &grid)?;
        draft.save(self, "input", &x)?;
        let y = self.empty(shape, x.dtype);
        self.launch(lookup.forward(), &[&x, &grid], &[&y]);
        let wants = [x.requires_grad(), grid.requires_grad()];
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let (x, grid) = (saved.get("input"), saved.get("grid"));
            let grad_x = wants[0].then(|| Tensor::new(eager.empty(&x.shape, x.dtype)));
            let grad_grid = Tensor::new(eager.empty(&grid.shape, grid.dtype));
            let inputs: [&TensorBody; 3] = [gradient, x, grid];
            eager.launch(lookup.grid_backward(), &inputs, &[&grad_grid]);
            if let Some(grad_x) = &grad_x {
                eager.launch(Kernel::Fill(0.0), &[], &[grad_x]);
                eager.launch(lookup.input_backward(), &inputs, &[grad_x]);
            }
            vec![grad_x, Some(grad_grid).filter(|_| wants[1])]
        }))
    }

    /// `affine_grid`: coordinates of all places and a one beside them, times the maps; made again for the gradient.
    fn affine_grid(
        &mut self,
        theta: &Tensor,
        (size, align_corners): (&[Extent], bool),
        shape: &[Extent],
    ) -> Tensor {
        let sides = size.len() - 2;
        let draft = OpRecord::new(self, &[Some(theta)]);
        let size = size.to_vec();
        let base = self.base_grid(&size, align_corners, theta.dtype);
        let y = self.empty(shape, theta.dtype);
        self.launch(grid::affine(sides), &[&base, theta], &[&y]);
        drop(base);
        let maps = theta.shape.clone();
        draft.finish_single(self, y, move |eager, gradient, _| {
            let base = eager.base_grid(&size, align_corners, gradient.dtype);
            // The product is made transposed.
            let (rows, columns) = (maps[1], maps[2]);
            let strides = vec![rows * columns, Extent::ONE, rows];
            let grad_theta = eager.empty_strided(&maps, strides, gradient.dtype);
            let kernel = grid::affine_backward(sides);
            vec![Some(eager.computed(grad_theta, kernel, &[&base, gradient]))]
        })
    }

    /// `make_base_grid_4D` and `5D`: for each side, last first, a range and what scales it.
    fn base_grid(&mut self, size: &[Extent], align_corners: bool, dtype: DType) -> Tensor {
        let [n, _, sides @ ..] = size else {
            unreachable!("checked when the graph was built")
        };
        let coordinates = Extent::fixed(sides.len() as u64 + 1);
        let base = self.empty(&[*n, numel(sides), coordinates], dtype);
        for side in sides.iter().rev() {
            drop([(); 3].map(|()| self.empty(&[*side], dtype)));
        }
        let lengths: Option<Vec<u64>> = sides.iter().map(|side| side.as_fixed()).collect();
        let kernel = match lengths {
            Some(lengths) => grid::base(&lengths, align_corners).into(),
            // A list of numbers in a formula is the same for every batch.
            None => Kernel::MemoryOnly("affine_grid of sides that depend on the batch"),
        };
        self.computed(base, kernel, &[])
    }
}

//! Products of vectors, and of tensors over some of their dimensions; distances between vectors.

mod distance;
mod kernel;
mod run;

use crate::ops::prelude::*;

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.outer.default aten.ger.default", |args| {
        let outer = Function {
            name: "outer",
            arguments: (),
            infer: outer,
            run: |(), eager, x, _| {
                let column = eager.unsqueeze(&x[0], 1);
                Ok(vec![eager.mul(&column, &x[1])?])
            },
        };
        Ok(outer.on(args.all(&["self", "vec2"])?))
    }),
    ("aten.dot.default", |args| dot(args, ["self", "tensor"])),
    ("aten.vdot.default", |args| dot(args, ["self", "other"])),
    ("aten.mv.default", |args| {
        let product = Function {
            name: "mv",
            arguments: (),
            infer: |(), x| matrix_vector(&x[0], &x[1]),
            run: |(), eager, x, _| Ok(vec![eager.matrix_vector(None, [&x[0], &x[1]])?]),
        };
        Ok(product.on(args.all(&["self", "vec"])?))
    }),
    ("aten.addmv.default", |args| {
        if args.always("alpha", 1.0).is_err() {
            return super::scripted::read_as("scaled.addmv", args);
        }
        let product = Function {
            name: "addmv",
            arguments: args.number_or("beta", 1.0)?,
            infer: |_, x| matrix_vector(&x[1], &x[2]),
            run: |beta, eager, x, _| {
                let summand = Some((&x[0], *beta));
                Ok(vec![eager.matrix_vector(summand, [&x[1], &x[2]])?])
            },
        };
        Ok(product.on(args.all(&["self", "mat", "vec"])?))
    }),
    ("aten.tensordot.default", |args| {
        let operands = args.all(&["self", "other"])?;
        let rank = |at: usize| args.shape(operands[at]).len();
        let left = args.dims("dims_self", rank(0))?;
        let right = args.dims("dims_other", rank(1))?;
        Ok(tensordot(left, right).on(operands))
    }),
    ("aten.inner.default", |args| {
        let operands = args.all(&["self", "other"])?;
        let last = |at: usize| args.shape(operands[at]).len().checked_sub(1);
        match (last(0), last(1)) {
            (Some(0), Some(0)) => dot(args, ["self", "other"]),
            (Some(left), Some(right)) => Ok(tensordot(vec![left], vec![right]).on(operands)),
            _ => Err("a factor is a scalar".into()),
        }
    }),
    ("aten.linalg_cross.default", |args| cross(args, Some(-1))),
    ("aten.cross.default", |args| cross(args, None)),
    ("aten.cdist.default", |args| {
        let mode = args.int("compute_mode", Some(0))?;
        if mode != 0 {
            return Err(format!(
                "its compute mode is {mode}; only the usual is supported"
            ));
        }
        let distances = Function {
            name: "cdist",
            arguments: args.number_or("p", 2.0)?,
            infer: |_, x| distances(&x[0], &x[1]),
            run: |norm, eager, x, _| Ok(vec![eager.distances([&x[0], &x[1]], *norm)?]),
        };
        Ok(distances.on(args.all(&["x1", "x2"])?))
    }),
];

/// The sum of products of two vectors.
fn dot(args: &Arguments<'_>, operands: [&str; 2]) -> Result<Read, String> {
    let dot = Function {
        name: "dot",
        arguments: (),
        infer: |(), x| match x {
            [(dtype, a), (_, b)] if a == b && a.len() == 1 => Ok(vec![(*dtype, Vec::new())]),
            _ => Err(apart(x)),
        },
        run: |(), eager, x, _| Ok(vec![eager.dot(&x[0], &x[1])?]),
    };
    Ok(dot.on(args.all(&operands)?))
}

/// A sum over these dimensions of the first and of the second, in the same order.
fn tensordot(left: Vec<usize>, right: Vec<usize>) -> Function<[Vec<usize>; 2]> {
    Function {
        name: "tensordot",
        arguments: [left, right],
        infer: |[left, right], x| {
            let (dtype, a) = &x[0];
            let b = &x[1].1;
            let mut pairs = left.iter().zip(right);
            if left.len() != right.len() || !pairs.all(|(i, j)| a[*i] == b[*j]) {
                return Err(apart(x));
            }
            let kept = |shape: &[Extent], dims: &[usize]| -> Vec<Extent> {
                let all = shape.iter().enumerate();
                all.filter(|(i, _)| !dims.contains(i))
                    .map(|(_, n)| *n)
                    .collect()
            };
            Ok(vec![(*dtype, [kept(a, left), kept(b, right)].concat())])
        },
        run: |[left, right], eager, x, _| Ok(vec![eager.tensordot([&x[0], &x[1]], [left, right])?]),
    }
}

fn cross(args: &Arguments<'_>, default: Option<i64>) -> Result<Read, String> {
    let operands = args.all(&["self", "other"])?;
    let shape = args.shape(operands[0]);
    let dim = match args.dim("dim", default, shape.len()) {
        Ok(dim) => dim,
        // Without one, the first that has three elements.
        Err(problem) => {
            let three = shape.iter().position(|length| *length == Extent::fixed(3));
            three.filter(|_| !args.has("dim")).ok_or(problem)?
        }
    };
    let cross = Function {
        name: "cross",
        arguments: dim,
        infer: |_, x| Ok(vec![(x[0].0, broadcast(&x[0].1, &x[1].1)?)]),
        run: |dim, eager, x, _| Ok(vec![eager.cross(&x[0], &x[1], *dim)?]),
    };
    Ok(cross.on(operands))
}

/// Why the first two operands have no product.
fn apart(operands: &[Type]) -> Mismatch {
    let (a, b) = (&operands[0].1, &operands[1].1);
    format!("{a:?} and {b:?} do not fit together")
}

/// An outer product is an elementwise one, which promotes types; the others take two of one type.
fn outer<A>(_: &A, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    match operands {
        [(first, a), (second, b)] if a.len() == 1 && b.len() == 1 => {
            Ok(vec![(first.promote(*second), vec![a[0], b[0]])])
        }
        _ => Err(apart(operands)),
    }
}

fn matrix_vector(matrix: &Type, vector: &Type) -> Result<Vec<Type>, Mismatch> {
    match (&matrix.1[..], &vector.1[..]) {
        ([rows, inner], [length]) if inner == length => Ok(vec![(matrix.0, vec![*rows])]),
        (a, b) => Err(format!("{a:?} and {b:?} do not fit together")),
    }
}

/// Distances between every two rows.
fn distances(of: &Type, to: &Type) -> Result<Vec<Type>, Mismatch> {
    let ((dtype, a), (_, b)) = (of, to);
    match (a.as_slice(), b.as_slice()) {
        ([stack @ .., rows, width], [other_stack @ .., others, other_width])
            if width == other_width =>
        {
            let stack = broadcast(stack, other_stack)?;
            Ok(vec![(*dtype, [&stack[..], &[*rows, *others]].concat())])
        }
        _ => Err(format!("{a:?} and {b:?} do not fit together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::DType;

    #[test]
    fn an_outer_product_promotes_types() {
        let vector = |dtype, length| (dtype, vec![Extent::fixed(length)]);
        let operands = [vector(DType::Float32, 80), vector(DType::Float64, 2)];

        let results = outer(&(), &operands).unwrap();

        let shape = vec![Extent::fixed(80), Extent::fixed(2)];
        assert_eq!(results, [(DType::Float64, shape)]);
    }
}

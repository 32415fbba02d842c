//! Complex numbers: made of real ones, seen as real ones, and what has a real result.

use super::call::like_first;
use crate::ops::prelude::*;
use crate::ops::view::gradient_view;

type Infer = fn(&(), &[Type]) -> Result<Vec<Type>, Mismatch>;
type Run = fn(&(), &mut Eager, &[Tensor], &Context<'_>) -> Outputs;

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.view_as_real.default", |args| {
        of_one(args, "view_as_real", two_parts, |(), eager, x, _| {
            let view = eager.seen_as(&x[0], as_real(&x[0]), as_complex);
            Ok(vec![viewed(&x[0], view)])
        })
    }),
    ("aten.view_as_complex.default", |args| {
        // What has its parts apart is copied by the model itself; PyTorch refuses it.
        of_one(args, "view_as_complex", of_pairs, |(), eager, x, _| {
            let view = eager.seen_as(&x[0], as_complex(&x[0]), as_real);
            Ok(vec![viewed(&x[0], view)])
        })
    }),
    ("aten.real.default", |args| {
        let infer: Infer = |(), x| Ok(vec![(x[0].0.real(), x[0].1.clone())]);
        of_one(args, "real", infer, |(), eager, x, _| {
            Ok(vec![if x[0].dtype.is_complex() {
                viewed(&x[0], eager.part_of_complex(&x[0], 0))
            } else {
                Tensor::clone(&x[0])
            }])
        })
    }),
    ("aten.imag.default", |args| {
        of_one(args, "imag", one_part, |(), eager, x, _| {
            Ok(vec![viewed(&x[0], eager.part_of_complex(&x[0], 1))])
        })
    }),
    // It only marks a view.
    ("aten.conj.default aten._conj.default", |args| {
        of_one(args, "conj", like_first, |(), eager, x, _| {
            let same = |x: &TensorBody| x.same();
            let marked = eager.seen_as(&x[0], same(&x[0]), same);
            Ok(vec![viewed(&x[0], marked)])
        })
    }),
    ("aten.polar.default", |args| {
        let polar = Function {
            name: "polar",
            arguments: (),
            infer: of_parts,
            run: |(), eager, x, _| Ok(vec![eager.polar(&x[0], &x[1])?]),
        };
        Ok(polar.on(args.all(&["abs", "angle"])?))
    }),
    ("aten.complex.default", |args| {
        let complex = Function {
            name: "complex",
            arguments: (),
            infer: of_parts,
            run: |(), eager, x, _| Ok(vec![eager.complex_of_parts(&x[0], &x[1])?]),
        };
        Ok(complex.on(args.all(&["real", "imag"])?))
    }),
];

fn of_one(
    args: &Arguments<'_>,
    name: &'static str,
    infer: Infer,
    run: Run,
) -> Result<Read, String> {
    let function = Function {
        name,
        arguments: (),
        infer,
        run,
    };
    Ok(function.on(args.all(&["self"])?))
}

/// `abs` and `angle` of complex numbers, which are more than elementwise functions; those of real ones are in a table.
pub(super) fn of_complex(args: &Arguments<'_>) -> Option<Result<Read, String>> {
    let (name, run): (_, Run) = match args.target {
        "aten.abs.default" | "aten.absolute.default" => {
            ("abs", |(), eager, x, _| Ok(vec![eager.complex_abs(&x[0])?]))
        }
        "aten.angle.default" => ("angle", |(), eager, x, _| {
            Ok(vec![eager.complex_angle(&x[0])?])
        }),
        _ => return None,
    };
    let x = args.tensor("self").ok()?;
    let is_complex = args.typed(x).0.is_complex();
    is_complex.then(|| of_one(args, name, one_part, run))
}

/// One real number for each complex one.
fn one_part<A>(_: &A, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    let (dtype, x) = &operands[0];
    if !dtype.is_complex() {
        return Err(format!("{dtype} is not complex"));
    }
    Ok(vec![(dtype.real(), x.clone())])
}

/// Two of them, along a last dimension.
fn two_parts<A>(_: &A, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    let mut parts = one_part(&(), operands)?;
    parts[0].1.push(Extent::fixed(2));
    Ok(parts)
}

/// A complex number for each pair along the last dimension.
fn of_pairs<A>(_: &A, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    let (dtype, x) = &operands[0];
    match x.split_last() {
        Some((last, lead)) if *last == Extent::fixed(2) && makes_complex(*dtype) => {
            Ok(vec![(dtype.complex(), lead.to_vec())])
        }
        _ => Err(format!(
            "{x:?} of {dtype} has no last dimension of two parts"
        )),
    }
}

/// A complex number for each two of the operands.
fn of_parts<A>(_: &A, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    let [(first, x), (second, y)] = operands else {
        return Err("it has no two operands".into());
    };
    let whole = broadcast(x, y)?;
    if first != second || !makes_complex(*first) {
        return Err(format!(
            "parts of {first} and {second} make no complex number"
        ));
    }
    Ok(vec![(first.complex(), whole)])
}

fn makes_complex(dtype: DType) -> bool {
    matches!(dtype, DType::Float32 | DType::Float64)
}

/// The parts of complex numbers as a last dimension of two.
fn as_real(x: &TensorBody) -> TensorBody {
    let two = Extent::fixed(2);
    let shape = [&*x.shape, &[two]].concat();
    let mut strides: Vec<Extent> = x.strides.iter().map(|stride| *stride * two).collect();
    strides.push(Extent::ONE);
    let mut view = x.alias(shape, strides);
    view.dtype = x.dtype.real();
    view.offset = x.offset * two;
    view
}

/// Pairs of real numbers as complex ones.
fn as_complex(x: &TensorBody) -> TensorBody {
    let last = x.shape.len() - 1;
    let half = |stride: &Extent| stride.checked_div(Extent::fixed(2)).unwrap_or(*stride);
    let strides: Sizes = x.strides[..last].iter().map(half).collect();
    let mut view = x.alias(x.shape[..last].to_vec(), strides);
    view.dtype = x.dtype.complex();
    view.offset = half(&x.offset);
    view
}

impl Eager {
    /// A view, whose gradient is seen the other way.
    fn seen_as(
        &mut self,
        x: &Tensor,
        view: TensorBody,
        back: fn(&TensorBody) -> TensorBody,
    ) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        draft.finish_one(self, view, move |eager, gradient, _| {
            // Parts that lie apart cannot be seen as one number.
            let gradient = if gradient.strides.last() == Some(&Extent::ONE) {
                Tensor::clone(gradient)
            } else {
                eager.dense_copy(gradient)
            };
            gradient_view(&gradient, back(&gradient))
        })
    }

    /// `real` or `imag`: every other number, as a view; the gradient has zeros for the other part.
    fn part_of_complex(&mut self, x: &Tensor, part: u64) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let mut view = x.real_part();
        view.offset = view.offset + Extent::fixed(part);
        let complex = x.dtype;
        draft.finish_one(self, view, move |eager, gradient, _| {
            // Made as pairs of real numbers, and seen as complex ones.
            let grad_x = Tensor::new(eager.empty(&gradient.shape, complex));
            eager.launch(Kernel::MemoryOnly("complex"), &[gradient], &[&grad_x]);
            gradient_view(&grad_x, grad_x.same())
        })
    }

    /// `polar`: saves its result. The gradients are real parts of complex products.
    fn polar(&mut self, abs: &Tensor, angle: &Tensor) -> Output {
        let mut draft = OpRecord::new(self, &[Some(abs), Some(angle)]);
        let complex = abs.dtype.complex();
        let y = self.broadcast_like(&[abs, angle], complex);
        self.launch(Kernel::MemoryOnly("polar"), &[abs, angle], &[&y]);
        draft.save(self, "result", &y.detached())?;
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let result = saved.get("result");
            // The conjugate gradient is copied for each product.
            let mut product = || {
                let [_first, _second, product] =
                    [(); 3].map(|()| eager.empty_like(result, complex));
                Tensor::new(product)
            };
            let (of_angle, of_abs) = (product(), product());
            eager.launch(
                Kernel::MemoryOnly("polar"),
                &[gradient, result],
                &[&of_abs, &of_angle],
            );
            let views =
                [&of_abs, &of_angle].map(|product| gradient_view(product, product.real_part()));
            views.into_iter().map(Some).collect()
        }))
    }

    /// `complex`: the gradients are the parts of the incoming one. Saves its operands all the same.
    fn complex_of_parts(&mut self, real: &Tensor, imag: &Tensor) -> Output {
        let mut draft = OpRecord::new(self, &[Some(real), Some(imag)]);
        draft.save(self, "imag", imag)?;
        draft.save(self, "real", real)?;
        let y = self.broadcast_like(&[real, imag], real.dtype.complex());
        self.launch(Kernel::MemoryOnly("complex"), &[real, imag], &[&y]);
        Ok(draft.finish_single(self, y, move |_, gradient, _| {
            let mut imag = gradient.real_part();
            imag.offset = imag.offset + Extent::ONE;
            let views = [gradient.real_part(), imag];
            views.map(|view| Some(gradient_view(gradient, view))).into()
        }))
    }

    /// `abs`: its result goes through complex numbers. Saves the operand; the gradient is it times the sign.
    fn complex_abs(&mut self, x: &Tensor) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let y = self.empty_like(x, x.dtype.real());
        let _through = self.empty_like(x, x.dtype);
        self.launch(Kernel::MemoryOnly("abs"), &[x], &[&y]);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let sign = eager.empty_like(x, x.dtype);
            let grad_x = eager.empty_like(x, x.dtype);
            eager.computed(grad_x, Kernel::MemoryOnly("abs"), &[gradient, &sign])
        }))
    }

    /// `angle` of complex numbers (`angle_backward`).
    fn complex_angle(&mut self, x: &Tensor) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let _through = self.empty_like(x, x.dtype);
        let y = self.empty_like(x, x.dtype.real());
        self.launch(Kernel::MemoryOnly("angle"), &[x], &[&y]);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let mut made = |dtype: DType| eager.empty_like(x, dtype);
            let (real, complex) = (x.dtype.real(), x.dtype);
            // The modulus, by way of complex numbers; then quotients, of which the result is one.
            let _modulus = made(real);
            drop(made(complex));
            let _square = made(real);
            let _quotients = [made(complex), made(complex), made(complex)];
            let _zero = eager.empty(&[], complex);
            let _mask = eager.empty_like(x, DType::Bool);
            let grad_x = eager.empty_like(x, complex);
            eager.computed(grad_x, Kernel::MemoryOnly("angle"), &[gradient, x])
        }))
    }
}

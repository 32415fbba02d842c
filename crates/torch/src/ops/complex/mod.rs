//! Complex numbers: made of real ones, seen as real ones, and what has a real result.

use serde::Serialize;

use super::{Context, Operator, Reader};
use crate::aten::Arguments;
use crate::eager::{Eager, OpRecord, Outputs, Stop, Tensor, TensorBody, viewed};
use crate::ops::view::gradient_view;
use crate::program::Kernel;
use crate::shape::{DType, Extent, Mismatch, Sizes, Type, strides_like};

/// See the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Complex {
    /// `view_as_real(input)`: a last dimension of two.
    ViewAsReal,
    /// `view_as_complex(input)`.
    ViewAsComplex,
    /// `input.real`.
    Real,
    /// `input.imag`.
    Imag,
    /// `input.conj()`, which only marks a view.
    Conj,
    /// `polar(abs, angle)`.
    Polar,
    /// `complex(real, imag)`.
    OfParts,
    /// `abs(input)` of complex numbers.
    Abs,
    /// `angle(input)` of complex numbers.
    Angle,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.view_as_real.default", |args| {
        of_one(args, Complex::ViewAsReal)
    }),
    ("aten.view_as_complex.default", |args| {
        of_one(args, Complex::ViewAsComplex)
    }),
    ("aten.real.default", |args| of_one(args, Complex::Real)),
    ("aten.imag.default", |args| of_one(args, Complex::Imag)),
    ("aten.conj.default aten._conj.default", |args| {
        of_one(args, Complex::Conj)
    }),
    ("aten.polar.default", |args| {
        Ok((Complex::Polar.into(), args.all(&["abs", "angle"])?))
    }),
    ("aten.complex.default", |args| {
        Ok((Complex::OfParts.into(), args.all(&["real", "imag"])?))
    }),
];

fn of_one(args: &Arguments<'_>, complex: Complex) -> Result<super::Read, String> {
    Ok((complex.into(), args.all(&["self"])?))
}

/// `abs` and `angle` of complex numbers, which are more than elementwise functions; those of real ones are in a table.
pub(super) fn of_complex(args: &Arguments<'_>) -> Option<Result<super::Read, String>> {
    let complex = match args.target {
        "aten.abs.default" | "aten.absolute.default" => Complex::Abs,
        "aten.angle.default" => Complex::Angle,
        _ => return None,
    };
    let x = args.tensor("self").ok()?;
    args.typed(x).0.is_complex().then(|| of_one(args, complex))
}

impl Operator for Complex {
    fn name(&self) -> &'static str {
        match self {
            Complex::ViewAsReal => "view_as_real",
            Complex::ViewAsComplex => "view_as_complex",
            Complex::Real => "real",
            Complex::Imag => "imag",
            Complex::Conj => "conj",
            Complex::Polar => "polar",
            Complex::OfParts => "complex",
            Complex::Abs => "abs",
            Complex::Angle => "angle",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let wants_complex = matches!(
            self,
            Complex::ViewAsReal | Complex::Imag | Complex::Abs | Complex::Angle
        );
        if wants_complex && !dtype.is_complex() {
            return Err(format!("{dtype} is not complex"));
        }
        Ok(vec![match self {
            Complex::ViewAsReal => (dtype.real(), [x.as_slice(), &[Extent::fixed(2)]].concat()),
            Complex::ViewAsComplex => match x.as_slice() {
                [lead @ .., last]
                    if *last == Extent::fixed(2)
                        && matches!(dtype, DType::Float32 | DType::Float64) =>
                {
                    (dtype.complex(), lead.to_vec())
                }
                _ => {
                    return Err(format!(
                        "{x:?} of {dtype} has no last dimension of two parts"
                    ));
                }
            },
            Complex::Real | Complex::Imag | Complex::Abs | Complex::Angle => {
                (dtype.real(), x.clone())
            }
            Complex::Conj => (*dtype, x.clone()),
            Complex::Polar | Complex::OfParts => {
                let (second, y) = &operands[1];
                let whole = crate::shape::broadcast(x, y)?;
                if dtype != second || !matches!(dtype, DType::Float32 | DType::Float64) {
                    return Err(format!(
                        "parts of {dtype} and {second} make no complex number"
                    ));
                }
                (dtype.complex(), whole)
            }
        }])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let x = &operands[0];
        Ok(vec![match self {
            Complex::ViewAsReal => viewed(x, eager.seen_as(x, as_real(x), as_complex)),
            Complex::ViewAsComplex => {
                // What has its parts apart is copied by the model itself; PyTorch refuses it.
                viewed(x, eager.seen_as(x, as_complex(x), as_real))
            }
            Complex::Real if !x.dtype.is_complex() => Tensor::clone(x),
            Complex::Real => viewed(x, eager.part_of_complex(x, 0)),
            Complex::Imag => viewed(x, eager.part_of_complex(x, 1)),
            Complex::Conj => {
                let view = x.alias(x.shape.clone(), x.strides.clone());
                let marked = eager.seen_as(x, view, |gradient| {
                    gradient.alias(gradient.shape.clone(), gradient.strides.clone())
                });
                viewed(x, marked)
            }
            Complex::Polar => eager.polar(x, &operands[1])?,
            Complex::OfParts => eager.complex_of_parts(x, &operands[1])?,
            Complex::Abs => eager.complex_abs(x)?,
            Complex::Angle => eager.complex_angle(x)?,
        }])
    }
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
            gradient_view(
                &grad_x,
                grad_x.alias(grad_x.shape.clone(), grad_x.strides.clone()),
            )
        })
    }

    /// `polar`: saves its result. The gradients are real parts of complex products.
    fn polar(&mut self, abs: &Tensor, angle: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = OpRecord::new(self, &[Some(abs), Some(angle)]);
        let complex = abs.dtype.complex();
        let y = self.broadcast_like(&[abs, angle], complex);
        self.launch(Kernel::MemoryOnly("polar"), &[abs, angle], &[&y]);
        draft.save(self, "result", &y.detached())?;
        let y = draft.finish_single(self, y, move |eager, gradient, saved| {
            let result = saved.get("result");
            let like = |eager: &mut Eager| {
                let strides = strides_like(&result.shape, &result.strides);
                eager.empty_strided(&result.shape, strides, complex)
            };
            // The conjugate gradient is copied for each product.
            let of_angle = {
                let _first = like(eager);
                let _second = like(eager);
                let product = like(eager);
                Tensor::new(product)
            };
            let of_abs = {
                let _first = like(eager);
                let _second = like(eager);
                let product = like(eager);
                Tensor::new(product)
            };
            eager.launch(
                Kernel::MemoryOnly("polar"),
                &[gradient, result],
                &[&of_abs, &of_angle],
            );
            let views =
                [&of_abs, &of_angle].map(|product| gradient_view(product, product.real_part()));
            views.into_iter().map(Some).collect()
        });
        Ok(y)
    }

    /// `complex`: the gradients are the parts of the incoming one. Saves its operands all the same.
    fn complex_of_parts(&mut self, real: &Tensor, imag: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = OpRecord::new(self, &[Some(real), Some(imag)]);
        draft.save(self, "imag", imag)?;
        draft.save(self, "real", real)?;
        let y = self.broadcast_like(&[real, imag], real.dtype.complex());
        self.launch(Kernel::MemoryOnly("complex"), &[real, imag], &[&y]);
        let y = draft.finish_single(self, y, move |_, gradient, _| {
            let mut imag = gradient.real_part();
            imag.offset = imag.offset + Extent::ONE;
            let views = [gradient.real_part(), imag];
            views.map(|view| Some(gradient_view(gradient, view))).into()
        });
        Ok(y)
    }

    /// `abs`: its result goes through complex numbers. Saves the operand; the gradient is it times the sign.
    fn complex_abs(&mut self, x: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let strides = strides_like(&x.shape, &x.strides);
        let y = self.empty_strided(&x.shape, strides.clone(), x.dtype.real());
        let _through = self.empty_strided(&x.shape, strides, x.dtype);
        self.launch(Kernel::MemoryOnly("abs"), &[x], &[&y]);
        let y = draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let strides = strides_like(&x.shape, &x.strides);
            let sign = eager.empty_strided(&x.shape, strides.clone(), x.dtype);
            let grad_x = eager.empty_strided(&x.shape, strides, x.dtype);
            eager.launch(Kernel::MemoryOnly("abs"), &[gradient, &sign], &[&grad_x]);
            Tensor::new(grad_x)
        });
        Ok(y)
    }

    /// `angle` of complex numbers (`angle_backward`).
    fn complex_angle(&mut self, x: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let strides = strides_like(&x.shape, &x.strides);
        let _through = self.empty_strided(&x.shape, strides.clone(), x.dtype);
        let y = self.empty_strided(&x.shape, strides, x.dtype.real());
        self.launch(Kernel::MemoryOnly("angle"), &[x], &[&y]);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let strides = strides_like(&x.shape, &x.strides);
            let mut made = |dtype: DType| eager.empty_strided(&x.shape, strides.clone(), dtype);
            let (real, complex) = (x.dtype.real(), x.dtype);
            // The modulus, by way of complex numbers; then quotients, of which the result is one.
            let _modulus = made(real);
            drop(made(complex));
            let _square = made(real);
            let _quotients = [made(complex), made(complex), made(complex)];
            let _zero = eager.empty(&[], complex);
            let _mask = eager.empty_strided(&x.shape, strides.clone(), DType::Bool);
            let grad_x = eager.empty_strided(&x.shape, strides.clone(), complex);
            eager.launch(Kernel::MemoryOnly("angle"), &[gradient, x], &[&grad_x]);
            Tensor::new(grad_x)
        }))
    }
}

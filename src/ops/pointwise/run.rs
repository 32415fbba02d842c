//! Elementwise functions of tensors that broadcast: one table says what each takes.
//!
//! Every row was read off the allocator's history of PyTorch 2.11, forward and backward, in float32, in
//! bfloat16 and under autocast.

use crate::eager::{Draft, Eager, Saved, Stop, Tensor, TensorBody};
use crate::ops::{Function, Pointwise};
use crate::program::{Kernel, Placement};
use crate::shape::{DType, Extent, broadcast, contiguous_strides, is_dense, strides_like};

/// A temporary of a derivative formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Temporary {
    /// As large as the gradient.
    Like,
    /// A truth value for each element of the gradient.
    Mask,
    /// One number of the gradient's type.
    Number,
}

/// What a derivative formula reads besides the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// The operand at this position.
    Operand(usize),
    /// The result.
    Result,
}

/// The gradient of one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gradient {
    /// There is none.
    None,
    /// The incoming one, without a copy.
    Pass,
    /// A new tensor: temporaries before it and after it, which all go once it is made.
    Made {
        reads: &'static [Read],
        before: &'static [Temporary],
        after: &'static [Temporary],
    },
}

const fn made(reads: &'static [Read], before: &'static [Temporary]) -> Gradient {
    Gradient::Made {
        reads,
        before,
        after: &[],
    }
}

const FIRST: Read = Read::Operand(0);
const SECOND: Read = Read::Operand(1);
const BOTH: &[Read] = &[FIRST, SECOND];

/// The derivative by the operand at `position`, of `count` operands.
#[expect(
    clippy::match_same_arms,
    clippy::unnested_or_patterns,
    reason = "a table with a row for each function"
)]
fn gradient(function: Function, position: usize, count: usize) -> Gradient {
    use Temporary::{Like, Mask, Number};
    match (function, position) {
        (Function::Add | Function::Sub, 0)
        | (Function::Add, 1)
        | (Function::Remainder, 0)
        | (Function::CopyInto, 1) => Gradient::Pass,
        (Function::Sub, _)
        | (Function::SubFrom | Function::Neg | Function::Step, 0)
        | (Function::Fill | Function::CopyInto, 0) => made(&[], &[]),
        (Function::Mul | Function::Div, 0) if count == 1 => made(&[], &[]),
        (Function::Mul, 1) => made(&[FIRST], &[]),
        (Function::Mul | Function::Div, 0) => made(&[SECOND], &[]),
        (Function::Div, _) => made(BOTH, &[Like, Like, Like]),
        (Function::Minimum | Function::Maximum, _) => Gradient::Made {
            reads: BOTH,
            before: &[Like, Mask],
            after: &[Mask],
        },
        (Function::Pow, 0) => made(BOTH, &[Like, Like, Like, Number, Mask]),
        (Function::Pow, _) => made(
            &[FIRST, SECOND, Read::Result],
            &[Mask, Like, Like, Number, Like],
        ),
        (Function::PowOf | Function::Exp2 | Function::Expm1 | Function::Sqrt, _) => {
            made(&[Read::Result], &[Like])
        }
        (Function::Clamp(2), 0) => made(&[FIRST], &[Number, Mask, Mask]),
        (Function::Clamp(_), 0) => made(&[FIRST], &[Number, Mask]),
        (Function::Where, 1 | 2) => made(&[FIRST], &[Number]),
        (Function::MaskedFill, 0) => made(&[SECOND], &[]),
        (Function::Abs | Function::Log1p, 0) => made(&[FIRST], &[Like]),
        (Function::Exp, 0) => made(&[Read::Result], &[]),
        (Function::Log, 0) => made(&[FIRST], &[]),
        (Function::Reciprocal | Function::Tan, 0) => made(&[Read::Result], &[Like, Like]),
        (Function::Erf, 0) => made(&[FIRST], &[Like, Like, Like, Like]),
        _ => Gradient::None,
    }
}

/// Whether autocast runs a function in float32.
fn runs_high(function: Function) -> bool {
    matches!(
        function,
        Function::Pow
            | Function::PowOf
            | Function::Exp
            | Function::Expm1
            | Function::Log
            | Function::Log1p
            | Function::Reciprocal
            | Function::Tan
    )
}

/// Saved operands by position: a node lets go of `other` before `self`.
const NAMES: [&str; 3] = ["first", "second", "third"];

impl Eager {
    /// An elementwise function.
    pub(crate) fn pointwise(&mut self, op: Pointwise, operands: &[Tensor]) -> Result<Tensor, Stop> {
        let high = op.placement == Placement::New && runs_high(op.function);
        let mut operands = operands.to_vec();
        if high {
            for operand in operands.iter_mut().rev() {
                *operand = self.high(operand);
            }
        }
        let types: Vec<(DType, bool)> = operands
            .iter()
            .map(|operand| (operand.dtype, operand.shape.is_empty()))
            .collect();
        let dtype = op.result_type(&types);
        let rules: Vec<Gradient> = (0..operands.len())
            .map(|position| gradient(op.function, position, operands.len()))
            .collect();
        let wanted: Vec<bool> = operands
            .iter()
            .zip(&rules)
            .map(|(operand, rule)| operand.requires_grad() && *rule != Gradient::None)
            .collect();
        let inputs: Vec<Option<&Tensor>> = operands
            .iter()
            .zip(&wanted)
            .map(|(operand, wanted)| wanted.then_some(operand))
            .collect();
        let mut draft = Draft::new(self, &inputs);
        let reads = |read: Read| {
            rules.iter().zip(&wanted).any(|(rule, wanted)| {
                *wanted && matches!(rule, Gradient::Made { reads, .. } if reads.contains(&read))
            })
        };
        for position in (0..operands.len()).rev() {
            if !reads(Read::Operand(position)) || !draft.is_recorded() {
                continue;
            }
            // What is overwritten is cloned for the derivative.
            if position == 0 && op.placement == Placement::InPlace {
                let copy = Tensor::new(self.empty_as(&operands[0]));
                self.launch(Kernel::Copy, &[&operands[0]], &[&copy]);
                draft.save(self, NAMES[position], &copy)?;
            } else {
                draft.save(self, NAMES[position], &operands[position])?;
            }
        }
        let y = self.pointwise_result(op, &operands, dtype);
        if reads(Read::Result) {
            let kept = Tensor::new(y.alias(y.shape.clone(), y.strides.clone()));
            draft.save(self, "result", &kept)?;
        }
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(incoming) = &gradients[0] else {
                return vec![None; rules.len()];
            };
            // From the last argument to the first, which is by name: `other`, then `self`.
            let mut results = vec![None; rules.len()];
            for (position, rule) in rules.iter().enumerate().rev() {
                if wanted[position] {
                    results[position] = eager.pointwise_grad(op, *rule, incoming, saved);
                }
            }
            results
        });
        Ok(y)
    }

    fn pointwise_result(&mut self, op: Pointwise, operands: &[Tensor], dtype: DType) -> TensorBody {
        let inputs: Vec<&TensorBody> = operands.iter().map(|operand| &**operand).collect();
        if op.placement == Placement::InPlace {
            let x = &operands[0];
            let y = x.alias(x.shape.clone(), x.strides.clone());
            self.launch(Kernel::MemoryOnly(op.aten_name()), &inputs, &[&y]);
            return y;
        }
        let mut held = Vec::new();
        if op.function == Function::Where {
            // Branches of another type are converted first, and numbers become tensors.
            for branch in operands[1..].iter().filter(|branch| branch.dtype != dtype) {
                held.push(self.empty_with(branch, dtype));
            }
            for _ in operands.len()..3 {
                held.push(self.empty(&[], dtype));
            }
        }
        let y = self.broadcast_like(&inputs, dtype);
        if op.function == Function::PowOf {
            drop(self.scratch(8));
        }
        self.launch(Kernel::MemoryOnly(op.aten_name()), &inputs, &[&y]);
        while let Some(last) = held.pop() {
            drop(last);
        }
        y
    }

    fn pointwise_grad(
        &mut self,
        op: Pointwise,
        rule: Gradient,
        incoming: &Tensor,
        saved: &Saved,
    ) -> Option<Tensor> {
        let (reads, before, after) = match rule {
            Gradient::None => return None,
            Gradient::Pass => return Some(Tensor::clone(incoming)),
            Gradient::Made {
                reads,
                before,
                after,
            } => (reads, before, after),
        };
        let mut temporaries = Vec::new();
        for temporary in before {
            temporaries.push(self.temporary(*temporary, incoming));
        }
        let result = match op.function {
            // Chosen by a mask, whose order comes first.
            Function::Where | Function::Clamp(_) => {
                self.broadcast_like(&[&**saved.get(NAMES[0]), &**incoming], incoming.dtype)
            }
            // A contiguous copy, overwritten.
            Function::MaskedFill => self.empty(&incoming.shape, incoming.dtype),
            _ => self.empty_as(incoming),
        };
        for temporary in after {
            temporaries.push(self.temporary(*temporary, incoming));
        }
        let mut inputs: Vec<&TensorBody> = vec![incoming];
        inputs.extend(reads.iter().map(|read| match read {
            Read::Operand(position) => &**saved.get(NAMES[*position]),
            Read::Result => &**saved.get("result"),
        }));
        self.launch(Kernel::MemoryOnly(op.aten_name()), &inputs, &[&result]);
        while let Some(last) = temporaries.pop() {
            drop(last);
        }
        Some(Tensor::new(result))
    }

    fn temporary(&mut self, temporary: Temporary, gradient: &Tensor) -> TensorBody {
        match temporary {
            Temporary::Like => self.empty_as(gradient),
            Temporary::Mask => self.empty_with(gradient, DType::Bool),
            Temporary::Number => self.empty(&[], gradient.dtype),
        }
    }

    /// A tensor like this one, under the preserve format.
    fn empty_as(&mut self, tensor: &TensorBody) -> TensorBody {
        self.empty_with(tensor, tensor.dtype)
    }

    fn empty_with(&mut self, tensor: &TensorBody, dtype: DType) -> TensorBody {
        let strides = strides_like(&tensor.shape, &tensor.strides);
        self.empty_strided(&tensor.shape, strides, dtype)
    }

    /// The result of an elementwise function: laid out like the first operand of its shape, a dense one
    /// if there is one.
    pub(crate) fn broadcast_like(&mut self, operands: &[&TensorBody], dtype: DType) -> TensorBody {
        let shape: Vec<Extent> = operands
            .iter()
            .map(|operand| operand.shape.clone())
            .reduce(|a, b| broadcast(&a, &b).expect("checked when the graph was built"))
            .unwrap_or_default();
        let whole = |tensor: &&&TensorBody| tensor.shape == shape;
        let model = operands
            .iter()
            .find(|tensor| whole(tensor) && is_dense(&tensor.shape, &tensor.strides))
            .or_else(|| operands.iter().find(whole));
        let strides = match model {
            Some(model) => strides_like(&model.shape, &model.strides),
            None => contiguous_strides(&shape),
        };
        self.empty_strided(&shape, strides, dtype)
    }
}

//! Derivative formulas: what they read, and what they take and give back.

use std::rc::Rc;

use super::Elementwise;
use super::kernel::LaunchDetail;
use super::row::{Forward, Gradient, Order, Read, Step, Temporary};
use crate::eager::Storage;
use crate::ops::prelude::*;

/// The derivative of one call: a formula for each operand whose gradient is wanted.
#[derive(Clone)]
pub(super) struct Derivative {
    op: Elementwise,
    gradients: [Gradient; 3],
    wanted: [bool; 3],
    /// What operands are like, where their gradients take after them.
    likes: [Option<Like>; 3],
}

/// What a tensor is like.
#[derive(Clone)]
struct Like {
    shape: Sizes,
    strides: Sizes,
    dtype: DType,
}

impl Derivative {
    /// The derivative of a call on these operands, by position.
    pub(super) fn new(op: &Elementwise, operands: &[Option<Tensor>]) -> Derivative {
        let mut gradients = op.row.gradients;
        if let (Placement::InPlace, Some([first, second])) = (op.placement(), op.row.in_place) {
            gradients[..2].copy_from_slice(&[first, second]);
        }
        for gradient in &mut gradients {
            if let Gradient::By(cases) = *gradient {
                *gradient = op.chosen(cases, None).unwrap_or_default();
            }
        }
        let mut wanted = [false; 3];
        let mut likes = [None, None, None];
        for (position, operand) in operands.iter().enumerate() {
            let is_trained = operand
                .as_ref()
                .is_some_and(|tensor| tensor.requires_grad());
            let has_formula =
                op.row.together.is_some() || !matches!(gradients[position], Gradient::None);
            wanted[position] = is_trained && has_formula;
            if let (Gradient::Zeros(_) | Gradient::Converted, Some(tensor)) =
                (gradients[position], operand)
            {
                likes[position] = Some(Like {
                    shape: tensor.shape.clone(),
                    strides: strides_like(&tensor.shape, &tensor.strides),
                    dtype: tensor.dtype,
                });
            }
        }
        Derivative {
            op: op.clone(),
            gradients,
            wanted,
            likes,
        }
    }

    /// Whether the gradient of the operand at this position is wanted.
    pub(super) fn wants(&self, position: usize) -> bool {
        self.wanted[position]
    }

    /// Whether there is a formula by any operand.
    pub(super) fn exists(&self) -> bool {
        let has_formula = |gradient: &Gradient| !matches!(gradient, Gradient::None);
        self.op.row.together.is_some() || self.gradients.iter().any(has_formula)
    }

    /// Positions of the operands that are tensors.
    pub(super) fn positions(&self) -> Vec<usize> {
        self.op.positions().collect()
    }

    /// Whether something is saved: what a formula that is wanted reads, and what several formulas read, wanted or
    /// not (`guard_for` in PyTorch's `gen_variable_type.py`); results always.
    pub(super) fn saves(&self, read: Read) -> bool {
        if let Some(together) = self.op.row.together {
            return together.reads.contains(&read);
        }
        let readers = self.gradients.iter().zip(self.wanted);
        let mut readers = readers.filter(|(gradient, _)| reads(gradient).contains(&read));
        let is_wanted = readers.clone().any(|(_, wanted)| wanted);
        is_wanted
            || readers.clone().count() > 1
            || (read == Read::Result && readers.next().is_some())
    }

    /// Runs backward: the gradients by position.
    pub(super) fn run(
        &self,
        eager: &mut Eager,
        incoming: &Tensor,
        saved: &Saved,
    ) -> [Option<Tensor>; 3] {
        let mut results = [None, None, None];
        if let Some(together) = self.op.row.together {
            let steps = (together.steps)(&self.op, self.wanted);
            let order = Order::Gradient;
            self.steps(
                eager,
                (incoming, saved),
                (&steps, together.reads, order),
                &mut results,
            );
            return results;
        }
        for position in self.op.by_name() {
            if !self.wanted[position] {
                continue;
            }
            let gradient = self.gradients[position];
            match gradient {
                Gradient::None | Gradient::By(_) => {}
                Gradient::Pass => results[position] = Some(Tensor::clone(incoming)),
                Gradient::Converted => {
                    let like = self.likes[position]
                        .as_ref()
                        .expect("kept when it was recorded");
                    // Of complex numbers, the engine takes the real parts.
                    let passes = like.dtype == incoming.dtype || incoming.dtype.is_complex();
                    results[position] = Some(if passes {
                        Tensor::clone(incoming)
                    } else {
                        eager.copy_as(incoming, like.dtype)
                    });
                }
                Gradient::Zeros(_) => {
                    let Like {
                        shape,
                        strides,
                        dtype,
                    } = self.likes[position]
                        .clone()
                        .expect("kept when it was recorded");
                    let gradient = eager.empty_strided(&shape, strides, dtype);
                    eager.launch(Kernel::Fill(0.0), &[], &[&gradient]);
                    results[position] = Some(Tensor::new(gradient));
                }
                Gradient::Made {
                    reads,
                    before,
                    after,
                    order,
                } => {
                    let steps = steps_of(position, before, after);
                    let _conjugates = self.conjugates(eager, saved, reads);
                    self.steps(
                        eager,
                        (incoming, saved),
                        (&steps, reads, order),
                        &mut results,
                    );
                }
                Gradient::Steps { reads, steps } => {
                    let formula = (steps, reads, Order::Gradient);
                    self.steps(eager, (incoming, saved), formula, &mut results);
                }
            }
        }
        results
    }

    /// Copies of the complex numbers that are read: a formula takes their conjugates, which kernels cannot read
    /// in place (`ConjugateFallback.cpp`).
    fn conjugates(&self, eager: &mut Eager, saved: &Saved, reads: &[Read]) -> Vec<TensorBody> {
        let names = &self.op.row.operands;
        let read = reads.iter().filter_map(|read| match read {
            Read::Operand(position) => saved.find(names[*position]),
            Read::Result => saved.find("result"),
        });
        let complex = read.filter(|tensor| tensor.dtype.is_complex());
        complex
            .map(|tensor| eager.empty_like(tensor, tensor.dtype))
            .collect()
    }

    fn steps(
        &self,
        eager: &mut Eager,
        (incoming, saved): (&Tensor, &Saved),
        (steps, reads, order): (&[Step], &[Read], Order),
        results: &mut [Option<Tensor>; 3],
    ) {
        let names = &self.op.row.operands;
        let operand = |position: usize| saved.find(names[position]);
        let given: Vec<(&'static str, &TensorBody)> = reads
            .iter()
            .filter_map(|read| {
                let name = match read {
                    Read::Operand(position) => names[*position],
                    Read::Result => "result",
                };
                Some((name, &**saved.find(name)?))
            })
            .collect();
        let read: Vec<&TensorBody> = given.iter().map(|(_, tensor)| *tensor).collect();
        let mut held: Vec<Option<Temporaries>> = Vec::new();
        for step in steps {
            match step {
                Step::Make(temporary) => {
                    held.push(Some(eager.temporary(*temporary, incoming, &operand)));
                }
                Step::Give(position) => {
                    let gradient = eager.gradient_like(incoming, &read, order);
                    let told = LaunchDetail::to(eager);
                    let launched = self.op.gradient_launch(*position, incoming, &given, told);
                    let inputs: Vec<&TensorBody> = launched.inputs.iter().collect();
                    eager.launch(launched.kernel, &inputs, &[&gradient]);
                    let gradient = Tensor::new(gradient);
                    if self.wanted[*position] {
                        results[*position] = Some(Tensor::clone(&gradient));
                    }
                    held.push(Some(Temporaries::Tensor(gradient)));
                }
                Step::Free(number) => drop(held[*number].take()),
            }
        }
    }
}

/// What a formula reads.
fn reads(gradient: &Gradient) -> &'static [Read] {
    match gradient {
        Gradient::None | Gradient::Pass | Gradient::Converted | Gradient::By(_) => &[],
        Gradient::Zeros(reads) | Gradient::Made { reads, .. } | Gradient::Steps { reads, .. } => {
            reads
        }
    }
}

/// Temporaries, the gradient, temporaries, and all but the gradient go again, the last first.
fn steps_of(position: usize, before: &[Temporary], after: &[Temporary]) -> Vec<Step> {
    let make = |temporary: &Temporary| Step::Make(*temporary);
    let mut steps: Vec<Step> = before.iter().map(make).collect();
    steps.push(Step::Give(position));
    steps.extend(after.iter().map(make));
    let last = before.len() + after.len();
    let gone = (0..=last).rev().filter(|number| *number != before.len());
    steps.extend(gone.map(Step::Free));
    steps
}

/// Memory that a formula holds. Only its being there counts.
enum Temporaries {
    Nothing,
    Tensor(#[expect(dead_code, reason = "held until it is dropped")] Tensor),
    Bytes(#[expect(dead_code, reason = "held until it is dropped")] Rc<Storage>),
}

impl Eager {
    fn temporary<'a>(
        &mut self,
        temporary: Temporary,
        like: &TensorBody,
        operand: &impl Fn(usize) -> Option<&'a Tensor>,
    ) -> Temporaries {
        // A number in the place of an operand takes what the others do.
        let of = |position: usize| operand(position).map_or(like, |tensor| &**tensor);
        let body = match temporary {
            Temporary::Like => self.empty_like(like, like.dtype),
            Temporary::Mask => self.empty_like(like, DType::Bool),
            Temporary::Number => self.empty(&[], like.dtype),
            Temporary::Of(position) => self.empty_like(of(position), of(position).dtype),
            Temporary::MaskOf(position) => self.empty_like(of(position), DType::Bool),
            Temporary::Float(position) if of(position).dtype == DType::Float32 => {
                return Temporaries::Nothing;
            }
            Temporary::Float(position) => self.empty_like(of(position), DType::Float32),
            Temporary::Bytes(bytes) => return Temporaries::Bytes(self.scratch(bytes)),
        };
        Temporaries::Tensor(Tensor::new(body))
    }

    fn gradient_like(
        &mut self,
        incoming: &Tensor,
        read: &[&TensorBody],
        order: Order,
    ) -> TensorBody {
        let read = read.iter().copied();
        let incoming: &TensorBody = incoming;
        let operands: Vec<&TensorBody> = match order {
            Order::Contiguous => return self.empty(&incoming.shape, incoming.dtype),
            Order::Gradient => std::iter::once(incoming).chain(read).collect(),
            Order::Read => read.chain(std::iter::once(incoming)).collect(),
        };
        self.broadcast_like(&operands, incoming.dtype)
    }

    /// The result of a call that allocates more than that.
    pub(super) fn result_by_steps(
        &mut self,
        steps: &[Step],
        (op, tensors): (&Elementwise, &[Tensor]),
        dtype: DType,
    ) -> TensorBody {
        let inputs: Vec<&TensorBody> = tensors.iter().map(|tensor| &**tensor).collect();
        let mut result = None;
        let mut held: Vec<Option<Temporaries>> = Vec::new();
        for step in steps {
            match step {
                Step::Make(temporary) => {
                    let operand = |position: usize| tensors.get(position);
                    held.push(Some(self.temporary(*temporary, inputs[0], &operand)));
                }
                Step::Give(_) => {
                    result = Some(self.plain_result(op, &inputs, dtype));
                    held.push(None);
                }
                Step::Free(number) => drop(held[*number].take()),
            }
        }
        result.expect("a formula gives a result")
    }
}

impl Elementwise {
    /// Positions of the operands by their names: the order in which PyTorch computes gradients and lets go of what
    /// it saved (`torchgen` sorts both).
    pub(super) fn by_name(&self) -> Vec<usize> {
        let names = &self.row.operands;
        let mut positions: Vec<usize> = (0..names.len()).collect();
        positions.sort_unstable_by_key(|position| names[*position]);
        positions
    }

    /// What it allocates besides its result, on a first operand of this type.
    pub(super) fn forward_steps(&self, dtype: DType) -> Option<&'static [Step]> {
        match self.row.forward {
            Forward::Steps(steps) => Some(steps),
            Forward::OfFractions(steps) => dtype.is_float().then_some(steps),
            Forward::Plain | Forward::Where | Forward::Prelu => None,
        }
    }
}

//! What eager PyTorch does for an elementwise operator.

use super::formula::Derivative;
use super::kernel::LaunchDetail;
use super::row::{Casts, Forward, Read};
use super::{Elementwise, Operand};
use crate::ops::prelude::*;
use crate::shape::is_dense;

impl Eager {
    /// An elementwise operator.
    pub fn elementwise(&mut self, op: &Elementwise, tensors: &[Tensor]) -> Output {
        let mut tensors = self.cast_operands(op, tensors);
        if let Forward::Prelu = op.row.forward {
            tensors[1] = self.weight_of_channels(&tensors[0], &tensors[1]);
        }
        let types: Vec<(DType, bool)> = tensors
            .iter()
            .map(|tensor| (tensor.dtype, tensor.shape.is_empty()))
            .collect();
        let dtype = op.result_type(&types);
        let mut operands: Vec<Option<Tensor>> = vec![None; op.operands.len()];
        for (position, tensor) in op.positions().zip(&tensors) {
            operands[position] = Some(Tensor::clone(tensor));
        }
        let derivative = Derivative::new(op, &operands);
        let inputs: Vec<Option<&Tensor>> = op
            .positions()
            .zip(&tensors)
            .map(|(position, tensor)| derivative.wants(position).then_some(tensor))
            .collect();
        let mut draft = OpRecord::new(self, &inputs);
        for position in op.by_name() {
            let Some(operand) = &operands[position] else {
                continue;
            };
            if !derivative.saves(Read::Operand(position)) || !draft.is_recorded() {
                continue;
            }
            let name = op.row.operands[position];
            // What is overwritten is cloned for the derivative.
            if position == 0 && op.placement() == Placement::InPlace {
                let copy = Tensor::new(self.empty_like(operand, operand.dtype));
                self.launch(Kernel::Copy, &[operand], &[&copy]);
                draft.save(self, name, &copy)?;
            } else {
                draft.save(self, name, operand)?;
            }
        }
        drop(operands);
        let y = self.elementwise_result(op, &tensors, dtype);
        if op.placement() == Placement::InPlace && !derivative.exists() {
            // What was overwritten keeps its history.
            tensors[0].count_write();
            return Ok(Tensor::clone(&tensors[0]));
        }
        if derivative.saves(Read::Result) {
            draft.save(self, "result", &y.detached())?;
        }
        let written = (op.placement() == Placement::InPlace).then(|| &tensors[0]);
        draft.finish_into(self, written, y, move |eager, incoming, saved| {
            let mut results = derivative.run(eager, incoming, saved);
            let taken = derivative.positions().into_iter();
            taken.map(|position| results[position].take()).collect()
        })
    }

    /// An elementwise operator by its name, on tensors alone.
    pub fn apply(&mut self, target: &str, tensors: &[&Tensor]) -> Output {
        let tensors: Vec<Tensor> = tensors.iter().copied().map(Tensor::clone).collect();
        self.elementwise(&Elementwise::of(target), &tensors)
    }

    /// Operands as the operator gets them. Arguments of a C++ call are made from the last to the first.
    fn cast_operands(&mut self, op: &Elementwise, tensors: &[Tensor]) -> Vec<Tensor> {
        let mut tensors = tensors.to_vec();
        let is_new = op.placement() == Placement::New;
        let floats = tensors.iter().map(|tensor| tensor.dtype);
        let widest = floats
            .filter(|dtype| dtype.is_float())
            .reduce(DType::promote);
        for tensor in tensors.iter_mut().rev() {
            *tensor = match op.row.casts {
                Casts::High if is_new => self.high(tensor),
                Casts::Low if is_new => self.low(tensor),
                Casts::Widest if is_new && self.autocast.is_some() && tensor.dtype.is_float() => {
                    self.cast(tensor, widest.unwrap_or(tensor.dtype))
                }
                Casts::Double => self.cast(tensor, DType::Float64),
                Casts::None | Casts::High | Casts::Low | Casts::Widest => continue,
            };
        }
        tensors
    }

    /// One slope, or one for each channel, seen as something that broadcasts (`prelu` in `Activation.cpp`).
    fn weight_of_channels(&mut self, x: &Tensor, weight: &Tensor) -> Tensor {
        let mut seen = vec![Extent::ONE; x.shape.len()];
        if seen.len() > 1 {
            seen[1] = weight.numel();
        }
        self.reshape(weight, &seen)
    }

    fn elementwise_result(
        &mut self,
        op: &Elementwise,
        tensors: &[Tensor],
        dtype: DType,
    ) -> TensorBody {
        let mut held = Vec::new();
        if let Forward::Where = op.row.forward {
            // Branches of another type are converted first, and numbers become tensors (`where` in
            // `TensorCompare.cpp`).
            for branch in tensors[1..].iter().filter(|branch| branch.dtype != dtype) {
                held.push(self.empty_like(branch, dtype));
            }
            let numbers = op
                .operands
                .iter()
                .filter(|operand| **operand != Operand::Tensor);
            for _ in numbers {
                held.push(self.empty(&[], dtype));
            }
        }
        let inputs: Vec<&TensorBody> = tensors.iter().map(|tensor| &**tensor).collect();
        let y = match op.forward_steps(tensors[0].dtype) {
            Some(steps) => self.result_by_steps(steps, (op, tensors), dtype),
            None => self.plain_result(op, &inputs, dtype),
        };
        let launched = op.forward_launch(&inputs, &y, LaunchDetail::to(self));
        let read: Vec<&TensorBody> = launched.inputs.iter().collect();
        self.launch(launched.kernel, &read, &[&y]);
        held.drain(..).rev().for_each(drop);
        y
    }

    /// A new tensor for the result, or the first operand again.
    pub(super) fn plain_result(
        &mut self,
        op: &Elementwise,
        inputs: &[&TensorBody],
        dtype: DType,
    ) -> TensorBody {
        match op.placement() {
            Placement::New => self.broadcast_like(inputs, dtype),
            Placement::InPlace => inputs[0].same(),
        }
    }

    /// A tensor like this one, under the preserve format.
    pub fn empty_like(&mut self, tensor: &TensorBody, dtype: DType) -> TensorBody {
        let strides = strides_like(&tensor.shape, &tensor.strides);
        self.empty_strided(&tensor.shape, strides, dtype)
    }

    /// Zeros laid out like a tensor.
    pub fn zeros_like(&mut self, tensor: &TensorBody, dtype: DType) -> TensorBody {
        let zeros = self.empty_like(tensor, dtype);
        self.launch(Kernel::Fill(0.0), &[], &[&zeros]);
        zeros
    }

    /// The result of an elementwise function: laid out like the first operand of its shape, a dense one
    /// if there is one.
    pub fn broadcast_like(&mut self, operands: &[&TensorBody], dtype: DType) -> TensorBody {
        let shape: Sizes = operands
            .iter()
            .map(|operand| operand.shape.clone())
            .reduce(|a, b| {
                if a == b {
                    return a;
                }
                let wide = broadcast(&a, &b).expect("checked when the graph was built");
                Sizes::from(wide)
            })
            .unwrap_or_default();
        let whole = |tensor: &&&TensorBody| tensor.shape == shape;
        let model = operands
            .iter()
            .find(|tensor| whole(tensor) && is_dense(&tensor.shape, &tensor.strides))
            .or_else(|| operands.iter().find(whole));
        let strides = match model {
            Some(model) => strides_like(&model.shape, &model.strides),
            None => Sizes::from(contiguous_strides(&shape)),
        };
        self.empty_strided(&shape, strides, dtype)
    }
}

/// The tensor seen under a shape it broadcasts to.
pub fn expanded(tensor: &TensorBody, shape: &[Extent]) -> TensorBody {
    let missing = shape.len() - tensor.shape.len();
    let stride = |i: usize| match i.checked_sub(missing) {
        Some(own) if tensor.shape[own] == shape[i] => tensor.strides[own],
        Some(_) | None => Extent::ZERO,
    };
    let strides: Sizes = (0..shape.len()).map(stride).collect();
    let mut view = tensor.alias(shape, strides);
    view.offset = tensor.offset;
    view
}

//! Numbers in the host's memory among the operands of a launch.
//!
//! A kernel cannot read them: they become constants of it, as PyTorch's kernels take such tensors by value
//! (`opmath_gpu_kernel_with_scalars` in `Loops.cuh`).

use super::tensor::TensorBody;
use crate::program::{Form, Generated, Kernel, Number};
use crate::shape::DType;

/// A launch that reads no memory of the host's.
pub(super) fn by_value<'a>(
    kernel: Kernel,
    inputs: &[&'a TensorBody],
) -> (Kernel, Vec<&'a TensorBody>) {
    if !inputs.iter().any(|input| input.is_of_host) {
        return (kernel, inputs.to_vec());
    }
    let on_card = || {
        inputs
            .iter()
            .filter(|input| !input.is_of_host)
            .copied()
            .collect()
    };
    let generated = match kernel {
        Kernel::Copy if let Some(number) = inputs[0].number => {
            return (Kernel::Fill(number), Vec::new());
        }
        Kernel::Copy => Generated::map("copy", ["x"], "result = x;"),
        Kernel::Generated(generated) => *generated,
        Kernel::MemoryOnly(name) => return (Kernel::MemoryOnly(name), on_card()),
        _ => {
            return (
                Kernel::MemoryOnly("a kernel of numbers of the host's"),
                on_card(),
            );
        }
    };
    let is_value = matches!(generated.form, Form::Map(_) | Form::Reduce { .. });
    let mut converted = Generated {
        inputs: Vec::new(),
        ..generated
    };
    let mut read = Vec::new();
    for (name, input) in generated.inputs.into_iter().zip(inputs) {
        match input.number {
            _ if !input.is_of_host => {
                converted.inputs.push(name);
                read.push(*input);
            }
            Some(number) if is_value => {
                converted
                    .numbers
                    .push((name, constant(input.dtype, number)));
            }
            Some(_) | None => {
                let unknown = "a number that the export does not spell out";
                return (Kernel::MemoryOnly(unknown), on_card());
            }
        }
    }
    (converted.into(), read)
}

/// A tensor's number as a constant of its kind.
#[expect(clippy::cast_possible_truncation, reason = "it was a whole number")]
fn constant(dtype: DType, number: f64) -> Number {
    match dtype {
        DType::Bool => Number::Truth(number != 0.0),
        DType::Int64 | DType::Int32 | DType::UInt8 => Number::Whole(number as i64),
        _ => Number::Real(number),
    }
}

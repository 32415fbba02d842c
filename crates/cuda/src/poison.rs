//! Finds elements that a launch leaves unwritten: poison.cu.
//!
//! Memory that is used again holds plausible numbers, which hide such a mistake from a comparison of
//! results. So everything that a launch only writes is filled with a pattern that no launch makes, and
//! looked for it afterwards.

use crate::device::LaunchError;
use crate::program::{Call, Kernel};

use super::driver::gpu::Gpu;
use super::driver::memory::{download, upload};
use super::layout::{Loop, MAX_RANK, Operand, Operands, fixed};
use super::nvrtc::kernels::Queue;
use super::plan::{Arguments, Plan, Step};
use super::shared::{Layout, Shared as _, shared_with_kernels};

shared_with_kernels! {
    #[derive(Clone, Copy)]
    struct PoisonArguments {
        address: u64,
        strides: [i64; MAX_RANK],
        shape: [i64; MAX_RANK],
        count: i64,
        rank: i32,
        size: i32,
        found: u64,
    }
}

/// For the kernels' compiler to check.
pub(super) const LAYOUTS: &[Layout] = &[PoisonArguments::LAYOUT];

// SAFETY: repeats `PoisonArguments` in poison.cu, the parameter of its kernels.
unsafe impl Arguments for PoisonArguments {}

/// Poisons what a launch is about to write.
pub(super) fn fill(
    queue: &mut Queue,
    call: &Call,
    operands: &Operands<'_>,
) -> Result<(), LaunchError> {
    for position in written_outputs(call) {
        visit(
            queue,
            operands,
            "poison_fill",
            &seen(call, operands, position)?,
            0,
        )?;
    }
    Ok(())
}

/// Fails where a launch left poison. `label` is what the program calls its first output.
pub(super) fn check(
    queue: &mut Queue,
    call: &Call,
    operands: &Operands<'_>,
    label: &str,
) -> Result<(), LaunchError> {
    // The launch is through with the scratch memory.
    let found = queue.scratch().0;
    let gpu = queue.gpu().clone();
    for position in written_outputs(call) {
        let out = seen(call, operands, position)?;
        upload(
            &gpu,
            found,
            &[0_u64, u64::MAX].map(u64::to_le_bytes).concat(),
        )?;
        visit(queue, operands, "poison_count", &out, found)?;
        let (left, first) = counted(&gpu, found)?;
        if left > 0 {
            return Err(operands.failed(format!(
                "it left {left} of the {} elements of output {position}, {} {:?}, as they were; the first is \
                 number {first} (`{label}`)",
                out.count(),
                out.dtype,
                out.shape,
            )));
        }
    }
    Ok(())
}

fn counted(gpu: &Gpu, found: u64) -> Result<(u64, u64), LaunchError> {
    let bytes = download(gpu, found, 16)?;
    let word = |from: usize| {
        let bytes = bytes.get(from..from + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    Ok((word(0), word(8)))
}

/// Positions of the outputs that a launch writes without reading them first.
fn written_outputs(call: &Call) -> Vec<usize> {
    let updates = |position: usize| match &call.kernel {
        Kernel::Generated(generated) => generated.may_keep(position),
        // With a flag it may skip the step.
        Kernel::SgdMomentum { first } => position == 0 || !*first || call.inputs.len() > 1,
        Kernel::Sgd | Kernel::Adam { .. } | Kernel::Unscale | Kernel::ScalerUpdate => true,
        // Running statistics.
        Kernel::BatchNorm { .. } => position >= 3,
        _ => false,
    };
    let is_read = |position: usize| {
        let tensor = call.outputs[position].tensor;
        call.inputs.iter().any(|input| input.tensor == tensor)
    };
    // The pattern is no number; of integers it is -1, which they may well be.
    let is_told = |position: usize| call.outputs[position].dtype.is_float();
    (0..call.outputs.len())
        .filter(|position| is_told(*position) && !updates(*position) && !is_read(*position))
        .collect()
}

/// The part of an output that is meant to be written.
fn seen(call: &Call, operands: &Operands<'_>, position: usize) -> Result<Operand, LaunchError> {
    let mut out = operands.output(position)?.clone();
    if matches!(call.kernel, Kernel::Attention { .. }) && position == 1 {
        // PyTorch rounds the number of rows up and leaves the rest alone.
        let queries = operands.input(0)?.shape.get(2);
        if let (Some(rows), Some(queries)) = (out.shape.get_mut(2), queries) {
            *rows = (*rows).min(*queries);
        }
    }
    Ok(out)
}

fn visit(
    queue: &mut Queue,
    operands: &Operands<'_>,
    kernel: &'static str,
    out: &Operand,
    found: u64,
) -> Result<(), LaunchError> {
    if out.count() == 0 {
        return Ok(());
    }
    let steps = Loop::in_order(&out.shape, [&out.strides]);
    let too_many = || operands.unsupported("more than six separate dimensions");
    let arguments = PoisonArguments {
        address: out.address,
        strides: fixed(&steps.strides[0]).ok_or_else(too_many)?,
        shape: fixed(&steps.shape).ok_or_else(too_many)?,
        count: out.count().cast_signed(),
        rank: i32::try_from(steps.shape.len()).unwrap_or(i32::MAX),
        size: i32::try_from(out.dtype.size()).unwrap_or(i32::MAX),
        found,
    };
    let mut plan = Plan::new(queue.target());
    let grid = plan.spread(out.count());
    plan.launch(kernel, grid, &arguments);
    for step in &plan.steps {
        if let Step::Kernel(kernel) = step {
            queue.launch(kernel)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Binary, TensorId, View};
    use crate::shape::{DType, Extent};

    fn view(tensor: u32) -> View {
        View {
            tensor: TensorId(tensor),
            dtype: DType::Float32,
            offset: Extent::ZERO,
            shape: crate::shape::Sizes::default(),
            strides: crate::shape::Sizes::default(),
        }
    }

    fn call(kernel: Kernel, inputs: &[u32], outputs: &[u32]) -> Call {
        Call {
            kernel,
            inputs: inputs.iter().copied().map(view).collect(),
            outputs: outputs.iter().copied().map(view).collect(),
            workspace: None,
        }
    }

    #[test]
    fn what_a_launch_updates_keeps_its_values() {
        let sum = call(Kernel::Binary(Binary::Add), &[1, 2], &[1]);
        let norm = Kernel::BatchNorm {
            momentum: 0.1,
            eps: 1e-5,
        };
        let norm = call(norm, &[1, 2, 3], &[4, 5, 6, 7, 8]);
        let later = call(Kernel::SgdMomentum { first: false }, &[1], &[2, 3]);

        assert_eq!(written_outputs(&sum), [0; 0]);
        assert_eq!(written_outputs(&norm), [0, 1, 2]);
        assert_eq!(written_outputs(&later), [0; 0]);
    }

    #[test]
    fn what_a_launch_makes_is_poisoned() {
        let sum = call(Kernel::Binary(Binary::Add), &[1, 2], &[3]);
        let first = call(Kernel::SgdMomentum { first: true }, &[1], &[2, 3]);

        assert_eq!(written_outputs(&sum), [0]);
        assert_eq!(written_outputs(&first), [1]);
    }
}

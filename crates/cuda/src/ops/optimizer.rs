//! Launches of optimizers and of the gradient scaler: optimizer.cu.

use std::collections::HashMap;

use crate::ops::prelude::*;
use crate::program::TensorId;
use crate::shape::Extent;

use super::elementwise::single;

/// Learning rate of plain SGD and SGD with momentum. The values change nothing about memory or time; a
/// small one keeps the losses of a probe finite.
const SGD_RATE: f32 = 1e-4;
/// Learning rate of Adam and `AdamW`.
const ADAM_RATE: f32 = 1e-5;
/// Share of the momentum that stays.
const MOMENTUM: f32 = 0.9;
/// `PyTorch`'s defaults for Adam.
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f32 = 1e-8;
/// `PyTorch`'s default for `AdamW`.
const WEIGHT_DECAY: f32 = 0.01;
/// Steps without an infinity before `GradScaler` doubles its scale.
pub(super) const GROWTH_INTERVAL: i32 = 2000;

shared_with_kernels! {
    #[derive(Clone, Copy, Default)]
    struct OptimizerArguments {
        grad: Array,
        parameter: Array,
        first: Array,
        second: Array,
        found_inf: u64,
        scale: u64,
        growth_tracker: u64,
        count: i64,
        rate: f32,
        momentum: f32,
        beta1: f32,
        beta2: f32,
        eps: f32,
        weight_decay: f32,
        correction1: f32,
        correction2: f32,
        growth_interval: i32,
        is_first: i32,
    }
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[OptimizerArguments::LAYOUT];

// SAFETY: repeats `OptimizerArguments` in optimizer.cu, the parameter of its kernels.
unsafe impl Arguments for OptimizerArguments {}

/// The steps that each parameter has seen. Several may lie in one tensor.
pub(crate) type StepCounts = HashMap<(TensorId, Extent), u32>;

fn common(operands: &Operands<'_>) -> Result<OptimizerArguments, LaunchError> {
    Ok(OptimizerArguments {
        grad: operands.dense_input(0)?,
        parameter: operands.dense_output(0)?,
        found_inf: operands.optional_dense_input(1)?.address,
        count: operands.output(0)?.count().cast_signed(),
        ..OptimizerArguments::default()
    })
}

fn launch(plan: &mut Plan, kernel: &'static str, arguments: &OptimizerArguments) {
    if arguments.count > 0 {
        let grid = plan.spread(arguments.count.cast_unsigned().div_ceil(4));
        plan.launch(kernel, grid, arguments);
    }
}

/// Queues `gradient (, found_inf) -> parameter`.
pub(crate) fn sgd(plan: &mut Plan, operands: &Operands<'_>, rate: Option<f32>) -> Queued {
    let arguments = OptimizerArguments {
        rate: rate.unwrap_or(SGD_RATE),
        ..common(operands)?
    };
    launch(plan, "sgd", &arguments);
    Ok(())
}

/// Queues `gradient (, found_inf) -> parameter, momentum`.
pub(crate) fn sgd_momentum(
    plan: &mut Plan,
    operands: &Operands<'_>,
    first: bool,
    rate: Option<f32>,
) -> Queued {
    let arguments = OptimizerArguments {
        first: operands.dense_output(1)?,
        rate: rate.unwrap_or(SGD_RATE),
        momentum: MOMENTUM,
        is_first: i32::from(first),
        ..common(operands)?
    };
    launch(plan, "sgd_momentum", &arguments);
    Ok(())
}

/// Queues `gradient (, found_inf) -> parameter, exp_avg, exp_avg_sq`, as the parameter's step of this
/// number; the first is 1.
pub(crate) fn adam(
    plan: &mut Plan,
    operands: &Operands<'_>,
    step: u32,
    decoupled: bool,
    rate: Option<f32>,
) -> Queued {
    let step = i32::try_from(step).unwrap_or(i32::MAX);
    let arguments = OptimizerArguments {
        first: operands.dense_output(1)?,
        second: operands.dense_output(2)?,
        rate: rate.unwrap_or(ADAM_RATE),
        beta1: single(BETA1),
        beta2: single(BETA2),
        eps: EPS,
        weight_decay: if decoupled { WEIGHT_DECAY } else { 0.0 },
        correction1: single(1.0 - BETA1.powi(step)),
        correction2: single(1.0 - BETA2.powi(step)),
        ..common(operands)?
    };
    launch(plan, "adam", &arguments);
    Ok(())
}

/// Queues `scale, gradients -> found_inf, gradients`: a launch for each gradient. Sets `found_inf` where
/// it finds an infinity and never clears it.
pub(crate) fn unscale(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let scale = operands.dense_input(0)?.address;
    let found_inf = operands.dense_output(0)?.address;
    for (position, grad) in operands.inputs().iter().enumerate().skip(1) {
        let arguments = OptimizerArguments {
            grad: operands.dense_input(position)?,
            found_inf,
            scale,
            count: grad.count().cast_signed(),
            ..OptimizerArguments::default()
        };
        launch(plan, "unscale", &arguments);
    }
    Ok(())
}

/// Queues `found_inf -> scale, growth_tracker`.
pub(crate) fn update_scale(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let arguments = OptimizerArguments {
        found_inf: operands.dense_input(0)?.address,
        scale: operands.dense_output(0)?.address,
        growth_tracker: operands.dense_output(1)?.address,
        growth_interval: GROWTH_INTERVAL,
        ..OptimizerArguments::default()
    };
    let one_thread = Grid {
        blocks: [1, 1],
        threads: [1, 1],
    };
    plan.launch("update_scale", one_thread, &arguments);
    Ok(())
}

//! Launches of normalizations: `batch_norm.cu` and `layer_norm.cu`.

use super::elementwise::single;
use crate::ops::prelude::*;

shared_with_kernels! {
    #[derive(Clone, Copy, Default)]
    struct BatchNormArguments {
        x: Array,
        y: Array,
        grad: Array,
        weight: Array,
        bias: Array,
        mean: Array,
        inverse_std: Array,
        running_mean: Array,
        running_var: Array,
        grad_weight: Array,
        grad_bias: Array,
        partial: u64,
        samples: i64,
        channels: i64,
        area: i64,
        splits: i64,
        momentum: f32,
        eps: f32,
    }
}

// SAFETY: repeats `BatchNormArguments` in batch_norm.cu, the parameter of the `batch_norm` kernels.
unsafe impl Arguments for BatchNormArguments {}

/// A `[samples, channels, area]` tensor cut into work.
struct Planes {
    samples: u64,
    channels: u64,
    area: u64,
}

impl Planes {
    /// Elements that a thread reads at once: as many as planes are a multiple of.
    fn width(&self) -> u64 {
        match self.area % 8 {
            0 => 8,
            4 => 4,
            _ => 1,
        }
    }

    /// Blocks that reduce one channel each, or a part of it.
    fn by_channel(&self, plan: &Plan) -> (u64, Grid) {
        let (_, room) = plan.scratch();
        let elements = self.samples * self.area;
        let splits = (plan.multiprocessors() * 8)
            .div_ceil(self.channels)
            .min(elements / (256 * 16))
            // Two sums for each split, and two means behind them.
            .min((room.0 / 4 / self.channels / 2).saturating_sub(1))
            .clamp(1, 1024);
        let grid = Grid {
            blocks: [clamp(self.channels), clamp(splits)],
            threads: [256, 1],
        };
        (splits, grid)
    }

    /// Blocks of 256 threads that each write planes, or a part of one.
    fn by_plane(&self) -> Grid {
        let groups = self.area.div_ceil(self.width());
        let across = groups.next_power_of_two().min(256);
        let planes = self.samples * self.channels;
        Grid {
            blocks: [
                clamp(planes.div_ceil(256 / across).min(1 << 20)),
                clamp(groups.div_ceil(256 * 4).min(16)),
            ],
            threads: [clamp(across), clamp(256 / across)],
        }
    }
}

fn planes_of(operands: &Operands<'_>, position: usize) -> Result<Planes, LaunchError> {
    let shape = &operands.input(position)?.shape;
    match shape.as_slice() {
        [samples, channels, rest @ ..] => Ok(Planes {
            samples: *samples,
            channels: *channels,
            area: rest.iter().product(),
        }),
        _ => Err(operands.failed(format!("{shape:?} has no channels"))),
    }
}

fn batch_norm_arguments(plan: &Plan, planes: &Planes, splits: u64) -> BatchNormArguments {
    BatchNormArguments {
        partial: plan.scratch().0,
        samples: planes.samples.cast_signed(),
        channels: planes.channels.cast_signed(),
        area: planes.area.cast_signed(),
        splits: splits.cast_signed(),
        ..BatchNormArguments::default()
    }
}

/// Queues `x, weight, bias -> y, mean, inverse_std, running_mean, running_var`.
pub(crate) fn batch_norm(
    plan: &mut Plan,
    operands: &Operands<'_>,
    momentum: f64,
    eps: f64,
) -> Queued {
    let planes = planes_of(operands, 0)?;
    if operands.input(0)?.count() == 0 {
        return Ok(());
    }
    let (splits, reducing) = planes.by_channel(plan);
    let arguments = BatchNormArguments {
        x: operands.dense_input(0)?,
        weight: operands.optional_dense_input(1)?,
        bias: operands.optional_dense_input(2)?,
        y: operands.dense_output(0)?,
        mean: operands.dense_output(1)?,
        inverse_std: operands.dense_output(2)?,
        running_mean: operands.optional_dense_output(3)?,
        running_var: operands.optional_dense_output(4)?,
        momentum: single(momentum),
        eps: single(eps),
        ..batch_norm_arguments(plan, &planes, splits)
    };
    let (statistics, apply) = match planes.width() {
        8 => ("batch_norm_statistics8", "batch_norm_apply8"),
        4 => ("batch_norm_statistics4", "batch_norm_apply4"),
        _ => ("batch_norm_statistics1", "batch_norm_apply1"),
    };
    plan.launch(statistics, reducing, &arguments);
    let grid = plan.spread(planes.channels);
    plan.launch("batch_norm_finish", grid, &arguments);
    plan.launch(apply, planes.by_plane(), &arguments);
    Ok(())
}

/// Queues `x, weight, bias, running_mean, running_var -> y`.
pub(crate) fn batch_norm_inference(plan: &mut Plan, operands: &Operands<'_>, eps: f64) -> Queued {
    let planes = planes_of(operands, 0)?;
    if operands.input(0)?.count() == 0 {
        return Ok(());
    }
    let arguments = BatchNormArguments {
        x: operands.dense_input(0)?,
        weight: operands.dense_input(1)?,
        bias: operands.dense_input(2)?,
        mean: operands.dense_input(3)?,
        inverse_std: operands.dense_input(4)?,
        y: operands.dense_output(0)?,
        eps: single(eps),
        ..batch_norm_arguments(plan, &planes, 1)
    };
    let kernel = match planes.width() {
        8 => "batch_norm_inference8",
        4 => "batch_norm_inference4",
        _ => "batch_norm_inference1",
    };
    plan.launch(kernel, planes.by_plane(), &arguments);
    Ok(())
}

/// Queues `grad, x, weight, mean, inverse_std -> grad_x, grad_weight, grad_bias`.
pub(crate) fn batch_norm_grad(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let planes = planes_of(operands, 1)?;
    if operands.input(1)?.count() == 0 {
        return Ok(());
    }
    let (splits, reducing) = planes.by_channel(plan);
    let arguments = BatchNormArguments {
        grad: operands.dense_input(0)?,
        x: operands.dense_input(1)?,
        weight: operands.dense_input(2)?,
        mean: operands.dense_input(3)?,
        inverse_std: operands.dense_input(4)?,
        y: operands.dense_output(0)?,
        grad_weight: operands.optional_dense_output(1)?,
        grad_bias: operands.optional_dense_output(2)?,
        ..batch_norm_arguments(plan, &planes, splits)
    };
    let (sums, input) = match planes.width() {
        8 => ("batch_norm_grad_sums8", "batch_norm_grad_input8"),
        4 => ("batch_norm_grad_sums4", "batch_norm_grad_input4"),
        _ => ("batch_norm_grad_sums1", "batch_norm_grad_input1"),
    };
    plan.launch(sums, reducing, &arguments);
    let grid = plan.spread(planes.channels);
    plan.launch("batch_norm_grad_finish", grid, &arguments);
    plan.launch(input, planes.by_plane(), &arguments);
    Ok(())
}

shared_with_kernels! {
    #[derive(Clone, Copy, Default)]
    struct LayerNormArguments {
        x: Array,
        y: Array,
        grad: Array,
        weight: Array,
        bias: Array,
        mean: Array,
        inverse_std: Array,
        grad_weight: Array,
        grad_bias: Array,
        partial: u64,
        rows: i64,
        width: i64,
        splits: i64,
        eps: f32,
        unused: i32,
    }
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[BatchNormArguments::LAYOUT, LayerNormArguments::LAYOUT];

// SAFETY: repeats `LayerNormArguments` in layer_norm.cu, the parameter of the `layer_norm` kernels.
unsafe impl Arguments for LayerNormArguments {}

/// Rows and their width: the width is the weight's, or else what the means leave.
fn rows_of(operands: &Operands<'_>, x: usize, rows: u64) -> Result<(u64, u64), LaunchError> {
    let count = operands.input(x)?.count();
    if rows == 0 || !count.is_multiple_of(rows) {
        return Err(operands.failed(format!("{count} elements are not {rows} rows")));
    }
    Ok((rows, count / rows))
}

/// The kernels for rows of this width that a warp holds in its registers.
fn warp_kernels(width: u64) -> Option<[&'static str; 2]> {
    if !width.is_multiple_of(4) {
        return None;
    }
    match width {
        ..=1024 => Some(["layer_norm_warp8", "layer_norm_grad_warp8"]),
        1025..=2048 => Some(["layer_norm_warp16", "layer_norm_grad_warp16"]),
        _ => None,
    }
}

fn warp_per_row(blocks: u64) -> Grid {
    Grid {
        blocks: [clamp(blocks), 1],
        threads: [32, 4],
    }
}

fn block_per_row(rows: u64, width: u64) -> Grid {
    Grid {
        blocks: [clamp(rows.min(1 << 20)), 1],
        threads: [clamp(width.next_multiple_of(32).clamp(32, 256)), 1],
    }
}

/// Queues `x, weight, bias -> y, mean, inverse_std` over rows.
pub(crate) fn layer_norm(plan: &mut Plan, operands: &Operands<'_>, eps: f64) -> Queued {
    if operands.input(0)?.count() == 0 {
        return Ok(());
    }
    let (rows, width) = rows_of(operands, 0, operands.output(1)?.count())?;
    let arguments = LayerNormArguments {
        x: operands.dense_input(0)?,
        weight: operands.optional_dense_input(1)?,
        bias: operands.optional_dense_input(2)?,
        y: operands.dense_output(0)?,
        mean: operands.dense_output(1)?,
        inverse_std: operands.dense_output(2)?,
        rows: rows.cast_signed(),
        width: width.cast_signed(),
        eps: single(eps),
        ..LayerNormArguments::default()
    };
    if let Some([kernel, _]) = warp_kernels(width) {
        let grid = warp_per_row(rows.div_ceil(4).min(1 << 20));
        plan.launch(kernel, grid, &arguments);
        return Ok(());
    }
    plan.launch("layer_norm", block_per_row(rows, width), &arguments);
    Ok(())
}

/// Queues `grad, x, weight, mean, inverse_std -> grad_x, grad_weight, grad_bias`.
pub(crate) fn layer_norm_grad(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    if operands.input(1)?.count() == 0 {
        return Ok(());
    }
    let (rows, width) = rows_of(operands, 1, operands.input(3)?.count())?;
    let (partial, room) = plan.scratch();
    let columns = width.div_ceil(32);
    let most = (room.0 / 8 / width).min(1024);
    if most == 0 {
        return Err(operands.unsupported("rows this long"));
    }
    let by_warp = warp_kernels(width);
    let splits = match by_warp {
        // As many blocks as run at once, each with its part of the sums.
        Some(_) => (plan.multiprocessors() * 4).min(rows.div_ceil(8)),
        None => (plan.multiprocessors() * 8)
            .div_ceil(columns)
            .min(rows / 64),
    }
    .clamp(1, most);
    let arguments = LayerNormArguments {
        grad: operands.dense_input(0)?,
        x: operands.dense_input(1)?,
        weight: operands.dense_input(2)?,
        mean: operands.dense_input(3)?,
        inverse_std: operands.dense_input(4)?,
        y: operands.dense_output(0)?,
        grad_weight: operands.optional_dense_output(1)?,
        grad_bias: operands.optional_dense_output(2)?,
        partial,
        rows: rows.cast_signed(),
        width: width.cast_signed(),
        splits: splits.cast_signed(),
        ..LayerNormArguments::default()
    };
    let by_column = |splits| Grid {
        blocks: [clamp(columns), clamp(splits)],
        threads: [32, 8],
    };
    if let Some([_, kernel]) = by_warp {
        plan.launch(kernel, warp_per_row(splits), &arguments);
    } else {
        let grid = block_per_row(rows, width);
        plan.launch("layer_norm_grad_input", grid, &arguments);
        plan.launch("layer_norm_grad_sums", by_column(splits), &arguments);
    }
    plan.launch("layer_norm_grad_finish", by_column(1), &arguments);
    Ok(())
}

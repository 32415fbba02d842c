//! Launches of pooling: pool.cu.

use crate::ops::prelude::*;
use crate::shape::Window;

shared_with_kernels! {
    #[derive(Clone, Copy)]
    struct PoolArguments {
        input: Array,
        out: Array,
        indices: u64,
        planes: i64,
        height: i32,
        width: i32,
        out_height: i32,
        out_width: i32,
        kernel: [i32; 2],
        stride: [i32; 2],
        padding: [i32; 2],
        dilation: [i32; 2],
    }
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[PoolArguments::LAYOUT];

// SAFETY: repeats `PoolArguments` in pool.cu, the parameter of its kernels.
unsafe impl Arguments for PoolArguments {}

/// Queues `x -> y, indices`.
pub(crate) fn max_pool(plan: &mut Plan, operands: &Operands<'_>, window: &Window) -> Queued {
    let mut arguments = arguments(operands, operands.input(0)?, operands.output(0)?, window)?;
    arguments.indices = operands.dense_output(1)?.address;
    launch(plan, operands, "max_pool", &arguments)
}

/// Queues `grad, indices -> grad_x`.
pub(crate) fn max_pool_grad(plan: &mut Plan, operands: &Operands<'_>, window: &Window) -> Queued {
    let mut arguments = arguments(operands, operands.output(0)?, operands.input(0)?, window)?;
    arguments.indices = operands.dense_input(1)?.address;
    let (x, y) = (operands.output(0)?, operands.input(0)?);
    let tiles = window.stride == window.kernel
        && window.padding == [0; 3]
        && window.dilation == [1; 3]
        && (2..4).all(|d| {
            x.shape
                .get(d)
                .zip(y.shape.get(d))
                .is_some_and(|(x, y)| *x == y * window.kernel[d - 1])
        });
    if tiles && y.count() > 0 {
        let grid = plan.spread(y.count());
        plan.launch("max_pool_grad_tiles", grid, &arguments);
        return Ok(());
    }
    launch(plan, operands, "max_pool_grad", &arguments)
}

/// Queues `x -> y`.
pub(crate) fn adaptive_avg_pool(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let window = Window::of([1, 1]);
    let arguments = arguments(operands, operands.input(0)?, operands.output(0)?, &window)?;
    launch(plan, operands, "adaptive_avg_pool", &arguments)
}

/// Queues `grad -> grad_x`.
pub(crate) fn adaptive_avg_pool_grad(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let window = Window::of([1, 1]);
    let arguments = arguments(operands, operands.output(0)?, operands.input(0)?, &window)?;
    launch(plan, operands, "adaptive_avg_pool_grad", &arguments)
}

/// `x` is what is pooled and `y` the result, whichever of them is read.
fn arguments(
    operands: &Operands<'_>,
    x: &Operand,
    y: &Operand,
    window: &Window,
) -> Result<PoolArguments, LaunchError> {
    let ([.., height, width], [.., out_height, out_width]) = (&x.shape[..], &y.shape[..]) else {
        return Err(operands.failed(format!("{:?} is no plane", x.shape)));
    };
    let planes = x.count() / (height * width).max(1);
    // Within a plane 32 bits do, with room for the products that regions are computed by.
    if height.max(out_height) * height.max(width).max(out_width) > 1 << 30 {
        return Err(operands.unsupported("planes this large"));
    }
    let small = |length: u64| i32::try_from(length).unwrap_or(i32::MAX);
    if window.kernel[0] != 1 || x.shape.len() > 4 {
        return Err(operands.unsupported("pools of volumes"));
    }
    let pair = |[_, height, width]: [u64; 3]| [height, width].map(small);
    Ok(PoolArguments {
        input: operands.dense_input(0)?,
        out: operands.dense_output(0)?,
        indices: 0,
        planes: planes.cast_signed(),
        height: small(*height),
        width: small(*width),
        out_height: small(*out_height),
        out_width: small(*out_width),
        kernel: pair(window.kernel),
        stride: pair(window.stride),
        padding: pair(window.padding),
        dilation: pair(window.dilation),
    })
}

fn launch(
    plan: &mut Plan,
    operands: &Operands<'_>,
    kernel: &'static str,
    arguments: &PoolArguments,
) -> Queued {
    let count = operands.output(0)?.count();
    if count == 0 {
        return Ok(());
    }
    let grid = plan.spread(count);
    plan.launch(kernel, grid, arguments);
    Ok(())
}

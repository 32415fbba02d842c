//! Launches of attention by kernels of our own: `attention.cu` and `attention_tensor.cu`.
//!
//! They run what cuDNN does not ([`super::fused_attention`]): float32, where PyTorch has a kernel that makes three
//! products in TF32 of each, as ours does; and half types in layouts that cuDNN does not take. They need no more
//! scratch memory than PyTorch's kernels do (the program allocates theirs, these leave it alone).

use crate::device::LaunchError;
use crate::shape::DType;

use super::elementwise::single;
use crate::device::cuda::layout::{Array, Operand, Operands};
use crate::device::cuda::plan::{Arguments, Grid, Plan, clamp};

/// Positions that a block works on at a time. Must agree with `TILE` in `attention_arguments.cu`.
const TILE: u64 = 64;
/// Row length of a tile in shared memory. Must agree with `PITCH` in attention.cu.
const PITCH: u64 = 68;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct View4 {
    array: Array,
    strides: [i64; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AttentionArguments {
    query: View4,
    key: View4,
    value: View4,
    out: View4,
    grad: View4,
    grad_query: View4,
    grad_key: View4,
    grad_value: View4,
    bias: View4,
    grad_bias: View4,
    log_sum_exp: u64,
    log_sum_exp_strides: [i64; 3],
    delta: u64,
    seed: u64,
    first_sample: i64,
    query_heads: i64,
    key_heads: i64,
    queries: i32,
    keys: i32,
    width: i32,
    is_causal: i32,
    scale: f32,
    dropout: f32,
    inverse_scale: f32,
    unused: f32,
}

// SAFETY: repeats `AttentionArguments` in attention_arguments.cu, the parameter of its kernels.
unsafe impl Arguments for AttentionArguments {}

/// What an attention does beside attending.
#[derive(Debug, Clone, Copy)]
pub(in crate::device::cuda) struct Attention {
    /// Whether later positions are hidden.
    pub(in crate::device::cuda) causal: bool,
    /// Share of attention weights dropped.
    pub(in crate::device::cuda) dropout: f64,
    /// What scores are multiplied by.
    pub(in crate::device::cuda) scale: f64,
    /// The key of its random draws; the same in the backward pass.
    pub(in crate::device::cuda) seed: u64,
}

/// Lengths that decide the grids.
struct Extents {
    samples: u64,
    query_heads: u64,
    key_heads: u64,
    queries: u64,
    keys: u64,
    width: u64,
}

fn view(operands: &Operands<'_>, operand: &Operand) -> Result<View4, LaunchError> {
    match operand.strides[..] {
        [batch, head, position, feature] => Ok(View4 {
            array: operand.array(),
            strides: [batch, head, position, feature].map(u64::cast_signed),
        }),
        _ => Err(operands.failed(format!("{:?} is not four-dimensional", operand.shape))),
    }
}

/// A mask or its gradient, seen for all scores; nothing where there is none.
fn of_scores(
    operands: &Operands<'_>,
    operand: Option<&Operand>,
    [query, key]: [&Operand; 2],
) -> Result<View4, LaunchError> {
    let Some(operand) = operand else {
        return Ok(View4::default());
    };
    let (&[samples, heads, queries, _], &[_, _, keys, _]) = (&query.shape[..], &key.shape[..])
    else {
        return Err(operands.failed(format!("{:?} is not four-dimensional", query.shape)));
    };
    let strides = operand.strides_under(&[samples, heads, queries, keys]);
    match strides.as_deref() {
        Some(&[batch, head, position, feature]) => Ok(View4 {
            array: operand.array(),
            strides: [batch, head, position, feature].map(u64::cast_signed),
        }),
        _ => Err(operands.failed(format!("{:?} is no mask of these scores", operand.shape))),
    }
}

fn common(
    operands: &Operands<'_>,
    [query, key, value]: [&Operand; 3],
    log_sum_exp: Option<&Operand>,
    attention: Attention,
) -> Result<(Extents, AttentionArguments), LaunchError> {
    let (&[samples, query_heads, queries, width], &[_, key_heads, keys, _]) =
        (&query.shape[..], &key.shape[..])
    else {
        return Err(operands.failed(format!("{:?} is not four-dimensional", query.shape)));
    };
    // Without a backward pass there are none to keep.
    let (row_sums, row_strides) = match log_sum_exp {
        None => (0, [0; 3]),
        Some(rows) => match rows.strides[..] {
            [batch, head, position] => (rows.address, [batch, head, position]),
            _ => return Err(operands.failed(format!("{:?} is no list of rows", rows.shape))),
        },
    };
    if value.shape.last() != Some(&width) {
        return Err(operands.unsupported("values of another width than queries"));
    }
    if width > 128 {
        return Err(operands.unsupported("heads wider than 128"));
    }
    if key_heads == 0 || !query_heads.is_multiple_of(key_heads) {
        return Err(operands.failed(format!("{query_heads} heads share {key_heads}")));
    }
    let length = |length: u64| i32::try_from(length).unwrap_or(i32::MAX);
    let arguments = AttentionArguments {
        log_sum_exp: row_sums,
        log_sum_exp_strides: row_strides.map(u64::cast_signed),
        seed: attention.seed,
        query_heads: query_heads.cast_signed(),
        key_heads: key_heads.cast_signed(),
        queries: length(queries),
        keys: length(keys),
        width: length(width),
        is_causal: i32::from(attention.causal),
        scale: single(attention.scale),
        dropout: single(attention.dropout),
        inverse_scale: single(1.0 / attention.scale),
        ..AttentionArguments::default()
    };
    let extents = Extents {
        samples,
        query_heads,
        key_heads,
        queries,
        keys,
        width,
    };
    Ok((extents, arguments))
}

/// The kernels for one kind of operands.
struct Kernels {
    forward: &'static str,
    delta: &'static str,
    grad_queries: &'static str,
    grad_keys: &'static str,
    threads: u32,
    /// Bytes that a block of each pass shares.
    forward_shared: u32,
    backward_shared: u32,
}

impl Extents {
    /// Float32 heads of up to 64 features run on tensor cores where there are any for them.
    fn kernels(&self, plan: &Plan, dtype: DType) -> Kernels {
        let has_tf32 = plan.target.compute >= (8, 0);
        if has_tf32 && dtype == DType::Float32 && self.width <= TILE {
            let tile = TILE * TILE * 4;
            return Kernels {
                forward: "attention_tensor",
                delta: "attention_tensor_delta",
                grad_queries: "attention_tensor_grad_queries",
                grad_keys: "attention_tensor_grad_keys",
                threads: 128,
                forward_shared: small(2 * tile),
                backward_shared: small(4 * tile),
            };
        }
        let is_wide = self.width > 64;
        let features = if is_wide { 128 } else { 64 };
        // So many tiles, and one of scores.
        let shared = |tiles: u64| small((tiles * features * PITCH + TILE * PITCH) * 4);
        let [forward, grad_queries, grad_keys] = if is_wide {
            [
                "attention128",
                "attention_grad_queries128",
                "attention_grad_keys128",
            ]
        } else {
            [
                "attention64",
                "attention_grad_queries64",
                "attention_grad_keys64",
            ]
        };
        Kernels {
            forward,
            delta: "attention_delta",
            grad_queries,
            grad_keys,
            threads: 256,
            forward_shared: shared(2),
            backward_shared: shared(3),
        }
    }
}

impl Kernels {
    fn grid(&self, heads: u64, positions: u64) -> Grid {
        Grid {
            blocks: [clamp(heads), clamp(positions.div_ceil(TILE))],
            threads: [self.threads, 1],
        }
    }
}

fn small(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Refuses what a block of the card cannot share.
fn expect_room(plan: &Plan, operands: &Operands<'_>, shared: u32) -> Result<(), LaunchError> {
    if shared > plan.target.shared_memory {
        return Err(operands.unsupported("heads this wide on this card"));
    }
    Ok(())
}

/// Queues `query, key, value (, bias) -> out, log_sum_exp`.
pub(in crate::device::cuda) fn attention(
    plan: &mut Plan,
    operands: &Operands<'_>,
    attention: Attention,
) -> Result<(), LaunchError> {
    let (query, value) = (operands.input(0)?, operands.input(2)?);
    let row_sums = operands.output(1).ok();
    let all = [query, operands.input(1)?, value];
    let (extents, arguments) = common(operands, all, row_sums, attention)?;
    if query.count() == 0 {
        return Ok(());
    }
    let arguments = AttentionArguments {
        query: view(operands, query)?,
        key: view(operands, all[1])?,
        value: view(operands, value)?,
        out: view(operands, operands.output(0)?)?,
        bias: of_scores(operands, operands.optional_input(3), [query, all[1]])?,
        ..arguments
    };
    let kernels = extents.kernels(plan, query.dtype);
    let grid = kernels.grid(extents.samples * extents.query_heads, extents.queries);
    let shared = kernels.forward_shared;
    expect_room(plan, operands, shared)?;
    plan.launch_with_shared(kernels.forward, grid, shared, &arguments);
    Ok(())
}

/// Queues `grad, query, key, value, out, log_sum_exp (, bias) -> grad_query, grad_key, grad_value (, grad_bias)`.
pub(in crate::device::cuda) fn attention_grad(
    plan: &mut Plan,
    operands: &Operands<'_>,
    attention: Attention,
) -> Result<(), LaunchError> {
    let (query, value) = (operands.input(1)?, operands.input(3)?);
    let row_sums = Some(operands.input(5)?);
    let all = [query, operands.input(2)?, value];
    let (extents, arguments) = common(operands, all, row_sums, attention)?;
    if query.count() == 0 {
        return Ok(());
    }
    let (delta, room) = plan.scratch();
    let arguments = AttentionArguments {
        grad: view(operands, operands.input(0)?)?,
        query: view(operands, query)?,
        key: view(operands, all[1])?,
        value: view(operands, value)?,
        out: view(operands, operands.input(4)?)?,
        grad_query: view(operands, operands.output(0)?)?,
        grad_key: view(operands, operands.output(1)?)?,
        grad_value: view(operands, operands.output(2)?)?,
        bias: of_scores(operands, operands.optional_input(6), [query, all[1]])?,
        grad_bias: of_scores(operands, operands.outputs().get(3), [query, all[1]])?,
        delta,
        ..arguments
    };
    let rows = extents.query_heads * extents.queries;
    // As many samples at a time as there is room for a number per row.
    let at_once = (room.0 / 4 / rows).min(u64::from(u16::MAX));
    if at_once == 0 {
        return Err(operands.unsupported("sequences this long"));
    }
    let kernels = extents.kernels(plan, query.dtype);
    let shared = kernels.backward_shared;
    expect_room(plan, operands, shared)?;
    let mut first = 0;
    while first < extents.samples {
        let samples = at_once.min(extents.samples - first);
        let arguments = AttentionArguments {
            first_sample: first.cast_signed(),
            ..arguments
        };
        let grid = Grid {
            blocks: [clamp(rows.div_ceil(8)), clamp(samples)],
            threads: [32, 8],
        };
        plan.launch(kernels.delta, grid, &arguments);
        let grid = kernels.grid(samples * extents.query_heads, extents.queries);
        plan.launch_with_shared(kernels.grad_queries, grid, shared, &arguments);
        let grid = kernels.grid(samples * extents.key_heads, extents.keys);
        plan.launch_with_shared(kernels.grad_keys, grid, shared, &arguments);
        first += samples;
    }
    Ok(())
}

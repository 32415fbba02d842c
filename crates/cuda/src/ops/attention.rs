//! Launches of attention by kernels of our own: `attention.cu` and `attention_tensor.cu`.
//!
//! They run what cuDNN does not ([`super::fused_attention`]): float32, where PyTorch has a kernel that makes three
//! products in TF32 of each, as ours does; half types in layouts that cuDNN does not take, or with a mask whose gradient is
//! wanted. They need no more scratch memory than PyTorch's kernels do (the program allocates theirs, these leave it alone).

use std::ptr;

use super::elementwise::single;
use crate::ops::prelude::*;

/// Positions that a block works on at a time. Must agree with `TILE` in `attention_arguments.cu`.
pub(crate) const TILE: u64 = 64;
/// The compute capability from which on units multiply bfloat16 and TF32 operands.
const TENSOR_CORES: (u32, u32) = (8, 0);
/// Row length of a tile in shared memory. Must agree with `PITCH` in attention.cu.
pub(crate) const PITCH: u64 = 68;

shared_with_kernels! {
    #[derive(Clone, Copy, Default)]
    struct View4 {
        array: Array,
        strides: [i64; 4],
    }
}

shared_with_kernels! {
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
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[View4::LAYOUT, AttentionArguments::LAYOUT];

// SAFETY: repeats `AttentionArguments` in attention_arguments.cu, the parameter of its kernels.
unsafe impl Arguments for AttentionArguments {}

/// What an attention does beside attending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    /// Whether later positions are hidden.
    pub(crate) causal: bool,
    /// Share of attention weights dropped.
    pub(crate) dropout: f64,
    /// What scores are multiplied by.
    pub(crate) scale: f64,
    /// The key of its random draws; the same in the backward pass.
    pub(crate) seed: u64,
}

/// Lengths that decide the grids.
struct Extents {
    samples: u64,
    query_heads: u64,
    key_heads: u64,
    queries: u64,
    keys: u64,
}

impl View4 {
    /// An operand under four strides; `None` where these are not so many.
    fn of(operand: &Operand, strides: &[u64]) -> Option<View4> {
        let strides = <[u64; 4]>::try_from(strides).ok()?;
        Some(View4 {
            array: operand.array(),
            strides: strides.map(u64::cast_signed),
        })
    }
}

fn view(operands: &Operands<'_>, operand: &Operand) -> Result<View4, LaunchError> {
    View4::of(operand, &operand.strides)
        .ok_or_else(|| operands.failed(format!("{:?} is not four-dimensional", operand.shape)))
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
    strides
        .and_then(|strides| View4::of(operand, &strides))
        .ok_or_else(|| operands.failed(format!("{:?} is no mask of these scores", operand.shape)))
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
    };
    Ok((extents, arguments))
}

/// The kernels for one kind of operands.
struct Kernels {
    forward: &'static str,
    /// Sums of products of results and gradients, where the queries' gradients do not make them.
    delta: Option<&'static str>,
    grad_queries: &'static str,
    grad_keys: &'static str,
    threads: u32,
    /// Bytes that a block of each pass shares.
    forward_shared: u32,
    backward_shared: u32,
}

/// The names of `attention_tensor.cu`'s kernels for an element type: forward, queries' and keys' gradients.
macro_rules! on_tensor_cores {
    ($dtype:literal, $features:expr) => {
        match $features {
            32 => on_tensor_cores!(@ $dtype, "32"),
            64 => on_tensor_cores!(@ $dtype, "64"),
            _ => on_tensor_cores!(@ $dtype, "128"),
        }
    };
    (@ $dtype:literal, $features:literal) => {
        [
            concat!("attention_", $dtype, "_", $features),
            concat!("attention_grad_queries_", $dtype, "_", $features),
            concat!("attention_grad_keys_", $dtype, "_", $features),
        ]
    };
}

impl Kernels {
    /// Those on tensor cores, where all operands have one type that they take.
    fn on_tensor_cores(dtype: DType, width: u64) -> Option<Kernels> {
        let features = match width {
            ..=32 => 32,
            33..=64 => 64,
            _ => 128,
        };
        let [forward, grad_queries, grad_keys] = match dtype {
            DType::Float32 => on_tensor_cores!("float32", features),
            DType::Float16 => on_tensor_cores!("float16", features),
            DType::BFloat16 => on_tensor_cores!("bfloat16", features),
            DType::Float64
            | DType::Complex64
            | DType::Complex128
            | DType::Int64
            | DType::Int32
            | DType::UInt8
            | DType::Bool => return None,
        };
        let tile = TILE * features * dtype.size();
        // As `BUFFERS` says.
        let buffers = if dtype == DType::Float32 && features > 64 {
            1
        } else {
            2
        };
        Some(Kernels {
            forward,
            delta: None,
            grad_queries,
            grad_keys,
            threads: 128,
            forward_shared: small(2 * tile),
            backward_shared: small(buffers * 2 * tile),
        })
    }

    /// Those on multiply-add units.
    fn on_any_card(width: u64) -> Kernels {
        let is_wide = width > 64;
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
            delta: Some("attention_delta"),
            grad_queries,
            grad_keys,
            threads: 256,
            forward_shared: shared(2),
            backward_shared: shared(3),
        }
    }

    /// For these operands. Query, key, value and mask decide, which both passes of an attention have: they must go the
    /// same way, because they draw what is dropped in different orders.
    fn of(
        plan: &Plan,
        operands: &Operands<'_>,
        [query, key, value]: [&Operand; 3],
        (bias, row_sums): (Option<&Operand>, Option<&Operand>),
    ) -> Result<Kernels, LaunchError> {
        let width = query.shape.last().copied().unwrap_or(0);
        let is_of_type = |operand: &Operand| operand.dtype == query.dtype;
        let has_cores = plan.target.compute >= TENSOR_CORES
            && [key, value].into_iter().chain(bias).all(is_of_type);
        let Some(kernels) = has_cores
            .then(|| Kernels::on_tensor_cores(query.dtype, width))
            .flatten()
        else {
            return Ok(Kernels::on_any_card(width));
        };
        let is_row_sums = |operand: &Operand| row_sums.is_some_and(|rows| ptr::eq(rows, operand));
        let mut all = operands.inputs().iter().chain(operands.outputs());
        if !all.all(|operand| is_of_type(operand) || is_row_sums(operand)) {
            return Err(operands.unsupported("operands of different types"));
        }
        Ok(kernels)
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
fn expect_room(plan: &Plan, operands: &Operands<'_>, shared: u32) -> Queued {
    if shared > plan.target.shared_memory {
        return Err(operands.unsupported("heads this wide on this card"));
    }
    Ok(())
}

/// Queues `query, key, value (, bias) -> out, log_sum_exp`.
pub(crate) fn attention(plan: &mut Plan, operands: &Operands<'_>, attention: Attention) -> Queued {
    let (query, value) = (operands.input(0)?, operands.input(2)?);
    let (bias, row_sums) = (operands.optional_input(3), operands.output(1).ok());
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
        bias: of_scores(operands, bias, [query, all[1]])?,
        ..arguments
    };
    let kernels = Kernels::of(plan, operands, all, (bias, row_sums))?;
    let grid = kernels.grid(extents.samples * extents.query_heads, extents.queries);
    let shared = kernels.forward_shared;
    expect_room(plan, operands, shared)?;
    plan.launch_with_shared(kernels.forward, grid, shared, &arguments);
    Ok(())
}

/// Queues `grad, query, key, value, out, log_sum_exp (, bias) -> grad_query, grad_key, grad_value (, grad_bias)`.
pub(crate) fn attention_grad(
    plan: &mut Plan,
    operands: &Operands<'_>,
    attention: Attention,
) -> Queued {
    let (query, value) = (operands.input(1)?, operands.input(3)?);
    let (bias, row_sums) = (operands.optional_input(6), Some(operands.input(5)?));
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
        bias: of_scores(operands, bias, [query, all[1]])?,
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
    let kernels = Kernels::of(plan, operands, all, (bias, row_sums))?;
    let shared = kernels.backward_shared;
    expect_room(plan, operands, shared)?;
    let mut first = 0;
    while first < extents.samples {
        let samples = at_once.min(extents.samples - first);
        let arguments = AttentionArguments {
            first_sample: first.cast_signed(),
            ..arguments
        };
        if let Some(delta) = kernels.delta {
            let grid = Grid {
                blocks: [clamp(rows.div_ceil(8)), clamp(samples)],
                threads: [32, 8],
            };
            plan.launch(delta, grid, &arguments);
        }
        let grid = kernels.grid(samples * extents.query_heads, extents.queries);
        plan.launch_with_shared(kernels.grad_queries, grid, shared, &arguments);
        let grid = kernels.grid(samples * extents.key_heads, extents.keys);
        plan.launch_with_shared(kernels.grad_keys, grid, shared, &arguments);
        first += samples;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvrtc::files::file_of;

    /// What a block may share on the cards of Ampere's, Ada's and Blackwell's smaller chips.
    const LEAST_SHARED: u32 = 99 << 10;

    #[test]
    fn all_kernels_on_tensor_cores_have_a_file_and_room() {
        for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
            for width in [1, 32, 33, 64, 65, 128] {
                let kernels = Kernels::on_tensor_cores(dtype, width).unwrap();

                for name in [kernels.forward, kernels.grad_queries, kernels.grad_keys] {
                    assert!(file_of(name).is_some(), "no file has {name}");
                }
                assert!(kernels.forward_shared.max(kernels.backward_shared) <= LEAST_SHARED);
            }
        }
        assert!(Kernels::on_tensor_cores(DType::Float64, 64).is_none());
    }
}

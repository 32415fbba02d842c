//! Launches of elementwise kernels: elementwise.cu.

use crate::generate::divider_parts;
use crate::layout::{Loop, MAX_RANK, fixed};
use crate::ops::prelude::*;
use crate::program::{Binary, Unary};

/// What a map computes. Must agree with `Function` in elementwise.cu.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Map {
    Copy,
    Fill(f64),
    Scale(f64),
    Shift(f64),
    Power(f64),
    PowerGrad(f64),
    Binary(Binary),
    Arange,
    Unary(Unary),
    UnaryGrad(Unary),
}

impl Map {
    fn number_and_constant(self) -> (i32, f64) {
        match self {
            Map::Copy => (0, 0.0),
            Map::Fill(value) => (1, value),
            Map::Scale(value) => (2, value),
            Map::Shift(value) => (3, value),
            Map::Power(exponent) => (4, exponent),
            Map::PowerGrad(exponent) => (5, exponent),
            Map::Binary(Binary::Add) => (6, 0.0),
            Map::Binary(Binary::Mul) => (7, 0.0),
            Map::Arange => (8, 0.0),
            Map::Unary(function) => (10 + unary_number(function), 0.0),
            Map::UnaryGrad(function) => (20 + unary_number(function), 0.0),
        }
    }

    fn operands(self) -> usize {
        match self {
            Map::Fill(_) | Map::Arange => 0,
            Map::Copy | Map::Scale(_) | Map::Shift(_) | Map::Power(_) | Map::Unary(_) => 1,
            Map::PowerGrad(_) | Map::Binary(_) | Map::UnaryGrad(_) => 2,
        }
    }
}

fn unary_number(function: Unary) -> i32 {
    match function {
        Unary::Relu => 0,
        Unary::Gelu => 1,
        Unary::GeluTanh => 2,
        Unary::Tanh => 3,
        Unary::Silu => 4,
        Unary::Sigmoid => 5,
        Unary::Relu6 => 6,
        Unary::Rsqrt => 7,
        Unary::Cos => 8,
        Unary::Sin => 9,
    }
}

shared_with_kernels! {
    #[derive(Clone, Copy, Default)]
    struct Strided {
        array: Array,
        strides: [i64; MAX_RANK],
    }
}

shared_with_kernels! {
    #[derive(Clone, Copy)]
    struct MapArguments {
        out: Strided,
        a: Strided,
        b: Strided,
        shape: [i64; MAX_RANK],
        factors: [u32; MAX_RANK],
        shifts: [u32; MAX_RANK],
        count: i64,
        rank: i32,
        function: i32,
        operands: i32,
        number: f32,
        is_short: i32,
    }
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[Strided::LAYOUT, MapArguments::LAYOUT];

// SAFETY: repeats `MapArguments` in elementwise.cu, the parameter of the `map` kernels.
unsafe impl Arguments for MapArguments {}

/// Queues an elementwise operation, broadcast to the shape of the result.
pub(crate) fn map(plan: &mut Plan, operands: &Operands<'_>, function: Map) -> Queued {
    let out = operands.output(0)?;
    if out.count() == 0 {
        return Ok(());
    }
    let read = (0..function.operands())
        .map(|position| operands.input(position))
        .collect::<Result<Vec<_>, _>>()?;
    // Without an operand, the result itself stands in: its strides constrain nothing.
    let a = read.first().copied().unwrap_or(out);
    let b = read.get(1).copied().unwrap_or(a);
    let mismatch = || operands.failed(format!("{:?} does not broadcast to the result", a.shape));
    let a_strides = a.strides_under(&out.shape).ok_or_else(mismatch)?;
    let b_strides = b.strides_under(&out.shape).ok_or_else(mismatch)?;
    let strides: [&[u64]; 3] = [&out.strides, &a_strides, &b_strides];
    // What is counted out keeps its order; the rest may be visited in any.
    let steps = if function == Map::Arange {
        Loop::in_order(&out.shape, strides)
    } else {
        Loop::over(&out.shape, strides)
    };
    let (number, constant) = function.number_and_constant();
    let innermost = steps.shape.last().copied().unwrap_or(1);
    let dense = dense_kernel(function, &steps, out, &read);
    let (kernel, work) = match innermost % 8 {
        _ if let Some(dense) = &dense => (dense.kernel, out.count() / dense.group),
        // Eight float32 would be two loads, between which a warp leaves gaps.
        0 if out.dtype.is_half() => ("map8", out.count() / 8),
        0 | 4 => ("map4", out.count() / 4),
        _ => ("map1", out.count()),
    };
    let too_many = || operands.unsupported("more than six separate dimensions");
    let seen = |operand: &Operand, strides: &[u64]| {
        fixed(strides)
            .map(|strides| Strided {
                array: operand.array(),
                strides,
            })
            .ok_or_else(too_many)
    };
    let mut groups = steps.shape.clone();
    if let Some(last) = groups.last_mut() {
        *last = *last * work / out.count();
    }
    let (mut factors, mut shifts) = ([0; MAX_RANK], [0; MAX_RANK]);
    for ((factor, shift), length) in factors.iter_mut().zip(&mut shifts).zip(&groups) {
        (*factor, *shift) = divider_parts(*length);
    }
    let arguments = MapArguments {
        out: seen(out, &steps.strides[0])?,
        a: seen(a, &steps.strides[1])?,
        b: seen(b, &steps.strides[2])?,
        shape: fixed(&groups).ok_or_else(too_many)?,
        factors,
        shifts,
        is_short: i32::from(work < 1 << 31),
        count: work.cast_signed(),
        rank: i32::try_from(steps.shape.len()).unwrap_or(i32::MAX),
        function: number,
        operands: i32::try_from(read.len()).unwrap_or(i32::MAX),
        number: single(constant),
    };
    let grid = match dense {
        Some(dense) => Grid {
            blocks: [clamp(work.div_ceil(256 * dense.groups_a_thread)), 1],
            threads: [256, 1],
        },
        None => plan.spread(work),
    };
    plan.launch(kernel, grid, &arguments);
    Ok(())
}

/// A kernel for operands without gaps.
struct Dense {
    kernel: &'static str,
    /// Elements in a group.
    group: u64,
    groups_a_thread: u64,
}

/// The kernel for a loop over neighbours alone, from starts that are aligned for wide loads.
fn dense_kernel(function: Map, steps: &Loop<3>, out: &Operand, read: &[&Operand]) -> Option<Dense> {
    let operands = || read.iter().copied().chain([out]);
    let is_taken = operands().all(|operand| {
        let has_kernel = operand.dtype.is_half() || operand.dtype == DType::Float32;
        has_kernel && operand.address.is_multiple_of(16)
    });
    if !is_taken {
        return None;
    }
    let is_medium = match function {
        Map::Copy
        | Map::Fill(_)
        | Map::Scale(_)
        | Map::Shift(_)
        | Map::Binary(_)
        | Map::Unary(Unary::Relu | Unary::Relu6)
        | Map::UnaryGrad(
            Unary::Relu | Unary::Relu6 | Unary::Tanh | Unary::Sigmoid | Unary::Rsqrt,
        ) => false,
        Map::Unary(Unary::Cos | Unary::Sin)
        | Map::UnaryGrad(Unary::Cos | Unary::Sin)
        | Map::Arange => return None,
        Map::Unary(_) | Map::UnaryGrad(_) => true,
        // Powers that are multiplied out.
        Map::Power(exponent) | Map::PowerGrad(exponent) => {
            let is = |whole: f64| (exponent - whole).abs() < f64::EPSILON;
            if !(is(2.0) || is(3.0)) {
                return None;
            }
            true
        }
    };
    let all_half = operands().all(|operand| operand.dtype.is_half());
    let dense = |kernel, group, groups_a_thread| Dense {
        kernel,
        group,
        groups_a_thread,
    };
    let is_flat = steps.shape.len() == 1 && steps.strides.iter().all(|strides| strides[0] == 1);
    if !is_flat {
        let has_runs = all_half && !is_medium && runs_of_eight(steps, read.len());
        return has_runs.then_some(dense("map_runs8", 8, 2));
    }
    let dense = match (is_medium, all_half) {
        (false, true) => dense("map_light8", 8, 2),
        (false, false) => dense("map_light4", 4, 4),
        (true, true) => dense("map_medium8", 8, 2),
        (true, false) => dense("map_medium4", 4, 2),
    };
    out.count().is_multiple_of(dense.group).then_some(dense)
}

/// Whether runs along the last dimension are whole groups of eight from aligned starts; the second operand may
/// stand still in them.
fn runs_of_eight(steps: &Loop<3>, operands: usize) -> bool {
    let Some(((length, outer), last)) = steps.shape.split_last().zip(Some(steps.shape.len() - 1))
    else {
        return false;
    };
    let goes = |strides: &Vec<u64>| {
        strides[last] == 1
            && strides[..outer.len()]
                .iter()
                .all(|stride| stride.is_multiple_of(8))
    };
    let [out, a, b] = &steps.strides;
    length.is_multiple_of(8)
        && goes(out)
        && (operands == 0 || goes(a))
        && (operands < 2 || b[last] == 0 || goes(b))
}

/// Kernels compute in float32.
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn single(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dividers_divide() {
        for length in [1, 2, 3, 7, 64, 1000, 50_257, 65_535, 1 << 20, (1 << 31) - 1] {
            let (factor, shift) = divider_parts(length);
            let around = [
                0,
                1,
                length - 1,
                length,
                length + 1,
                12_345_678,
                (1 << 31) - 1,
            ];
            for index in around.into_iter().filter(|index| *index < 1 << 31) {
                let high = (index * u64::from(factor)) >> 32;

                assert_eq!(
                    (high + index) >> shift,
                    index / length,
                    "{index} / {length}"
                );
            }
        }
    }
}

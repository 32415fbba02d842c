//! A thread for each element of an operand's shape, which reads and writes by coordinates.

use super::dims::is_short;
use super::source::{Writer, divider_of};
use super::{GeneratedLaunch, NoKernel, Operation};

/// Threads of a block.
const THREADS: u32 = 128;

pub(super) fn launches(
    operation: &Operation<'_>,
    over: usize,
    without: &[usize],
    body: &str,
) -> Result<Vec<GeneratedLaunch>, NoKernel> {
    let shape = visited(operation, over)?;
    let count: u64 = visited_lengths(shape, without).product();
    if count == 0 {
        return Ok(Vec::new());
    }
    let is_short = count < 1 << 31 && operation.operands().all(|named| is_short(named.operand));

    let mut writer = Writer::default();
    let total = writer.word(count);
    writer.declare_types(operation);
    writer.line("KERNEL(kernel)\n{");
    writer.line("    const I thread = (I)((i64)blockIdx.x * blockDim.x + threadIdx.x);");
    writer.line(format_args!("    if (thread >= (I){total}) return;"));
    writer.declare(operation);
    coordinates(&mut writer, "thread", shape, without, is_short);
    tensors(&mut writer, operation);
    writer.line(format_args!("    {body}\n}}\nENTRY(kernel)"));
    Ok(writer.launch(is_short, (count, THREADS), [THREADS, 1]))
}

/// The shape of the operand that is visited.
pub(super) fn visited<'a>(operation: &Operation<'a>, over: usize) -> Result<&'a [u64], NoKernel> {
    let named = operation.operands().nth(over);
    named
        .map(|named| &*named.operand.shape)
        .ok_or(NoKernel::Misuse(
            "a formula visits an operand that it has not",
        ))
}

/// Lengths of the dimensions that are visited.
pub(super) fn visited_lengths(shape: &[u64], without: &[usize]) -> impl Iterator<Item = u64> {
    let visited = (0..shape.len()).filter(|d| !without.contains(d));
    visited.map(|d| shape[d])
}

/// Breaks a number down into the coordinates `i` of the dimensions that are visited.
pub(super) fn coordinates(
    writer: &mut Writer,
    number: &str,
    shape: &[u64],
    without: &[usize],
    is_short: bool,
) {
    writer.line(format_args!(
        "    I rest = {number}, i[{}] = {{}};",
        shape.len().max(1)
    ));
    let visited = (0..shape.len()).rev().filter(|d| !without.contains(d));
    for d in visited {
        let length_word = writer.word(shape[d]);
        let quotient = if is_short {
            let divider = writer.word(divider_of(shape[d]));
            format!("(I)quotient((u32)rest, (u64){divider})")
        } else {
            format!("rest / (I){length_word}")
        };
        writer.line(format_args!(
            "    {{ const I next = {quotient}; i[{d}] = rest - next * (I){length_word}; rest = next; }}"
        ));
    }
    writer.line("    (void)i; (void)rest;");
}

/// Declares all operands as read by coordinates.
pub(super) fn tensors(writer: &mut Writer, operation: &Operation<'_>) {
    for position in 0..operation.operands().count() {
        writer.tensor(operation, position);
    }
}

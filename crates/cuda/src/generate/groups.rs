//! A group of threads for each element of an operand's shape, which read and write by coordinates.

use super::dims::is_short;
use super::each::{coordinates, tensors, visited, visited_lengths};
use super::map::mentions;
use super::source::Writer;
use super::{GeneratedLaunch, NoKernel, Operation, Resources, lanes, lanes_of_text};

/// Warps for each multiprocessor that parts are made for: enough to hide each other's waits, few enough that what all of
/// them read stays cheap.
const PARTS: u64 = 16;

/// Into how many parts, each of a warp, each of so many rows is split where a formula says `part`.
pub(crate) fn parts(resources: Resources, rows: u64) -> u64 {
    (resources.multiprocessors * PARTS).div_ceil(rows.max(1))
}

pub(super) fn launches(
    operation: &Operation<'_>,
    over: usize,
    without: &[usize],
    body: &str,
) -> Result<Vec<GeneratedLaunch>, NoKernel> {
    let shape = visited(operation, over)?;
    let rows: u64 = visited_lengths(shape, without).product();
    if rows == 0 {
        return Ok(Vec::new());
    }
    let length: u64 = without.iter().map(|d| shape[*d]).product();
    let has_parts = mentions(body, "part");
    let parts = if has_parts {
        parts(operation.resources, rows)
    } else {
        1
    };
    let (lanes, groups_in_block) = lanes(if has_parts { 1 } else { length });
    let groups = rows * parts;
    let is_short = groups < 1 << 31
        && shape.iter().product::<u64>() < 1 << 31
        && operation.operands().all(|named| is_short(named.operand));

    let mut writer = Writer::default();
    let (count, parts_word) = (writer.word(groups), writer.word(parts));
    writer.line(lanes_of_text(lanes));
    writer.declare_types(operation);
    writer.line(if lanes == 1024 {
        "KERNEL_OF(1024, kernel)\n{"
    } else {
        "KERNEL(kernel)\n{"
    });
    writer.line(
        "    const I group = (I)((i64)blockIdx.x * blockDim.y + threadIdx.y), lane = (I)threadIdx.x;",
    );
    writer.line(format_args!("    if (group >= (I){count}) return;"));
    writer.line(format_args!(
        "    const I parts = (I){parts_word}, row = group / parts, part = group - row * parts; (void)part; (void)lane;"
    ));
    writer.declare(operation);
    coordinates(&mut writer, "row", shape, without, is_short);
    tensors(&mut writer, operation);
    writer.line(format_args!("    {body}\n}}\nENTRY(kernel)"));
    Ok(writer.launch(
        is_short,
        (groups, groups_in_block),
        [lanes, groups_in_block],
    ))
}

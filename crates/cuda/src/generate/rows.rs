//! Rows: threads work together on all elements along some dimensions.

use super::dims::{Dims, is_short, strides_under};
use super::source::{Writer, element};
use super::{GeneratedLaunch, NoKernel, Operation, lanes, lanes_of_text};

pub(super) fn launches(
    operation: &Operation<'_>,
    dims: &[usize],
    tables: &[&'static str],
    body: &str,
) -> Result<Vec<GeneratedLaunch>, NoKernel> {
    let Some(first) = operation.inputs.first() else {
        return Err(NoKernel::Misuse("a formula over rows has no input"));
    };
    let shape = &first.operand.shape;
    let of_rows = || {
        operation
            .operands()
            .filter(|named| !tables.contains(&named.name))
    };
    let strides = strides_under(of_rows(), shape)?;
    let (within, across): (Vec<usize>, Vec<usize>) =
        (0..shape.len()).partition(|d| dims.contains(d));
    let within = Dims::merged(shape, &strides, &within);
    let across = Dims::merged(shape, &strides, &across);
    let (length, rows) = (within.count(), across.count());
    if rows == 0 {
        return Ok(Vec::new());
    }
    let whole = across.around(&within);
    let is_short = whole.is_short() && operation.operands().all(|named| is_short(named.operand));
    let (lanes, rows_in_block) = lanes(length);
    let names: Vec<&str> = of_rows().map(|named| named.name).collect();

    let mut writer = Writer::default();
    let (count, n) = (writer.word(rows), writer.word(length));
    writer.line(lanes_of_text(lanes));
    writer.declare_types(operation);
    writer.line(format_args!(
        "KERNEL_OF({}, kernel)\n{{",
        lanes * rows_in_block
    ));
    writer.line(
        "    const I row = (I)((i64)blockIdx.x * blockDim.y + threadIdx.y), lane = (I)threadIdx.x;",
    );
    writer.line(format_args!("    if (row >= (I){count}) return;"));
    writer.line(format_args!(
        "    const I n = (I){n}; const bool is_first = lane == 0; (void)n; (void)is_first;"
    ));
    writer.declare(operation);
    for name in &names {
        writer.line(format_args!("    I {name}_at = 0;"));
    }
    writer.offsets("row", &names, &across, is_short, 1);
    let lengths = writer.array(&within.lengths);
    let mut strides = within.strides.iter();
    for (position, named) in operation.operands().enumerate() {
        if tables.contains(&named.name) {
            writer.tensor(operation, position);
            continue;
        }
        let strides = strides.next().map_or(&[][..], |strides| strides);
        let (name, of) = (named.name, element(named.operand.dtype));
        let start = writer.address(operation, position);
        let strides = writer.array(strides);
        let rank = within.rank();
        writer.line(format_args!(
            "    const Row<{of}, {rank}> {name} = {{({of}*){start} + {name}_at, {lengths}, {strides}}};"
        ));
    }
    writer.line(format_args!("    {body}\n}}\nENTRY(kernel)"));
    Ok(writer.launch(is_short, (rows, rows_in_block), [lanes, rows_in_block]))
}

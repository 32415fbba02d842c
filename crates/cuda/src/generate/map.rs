//! Maps: a formula for each element of the first output.

use super::dims::{Dims, strides_under};
use super::source::{Writer, element};
use super::{GeneratedLaunch, NoKernel, Operation};
use crate::layout::Operand;

/// Threads of a block.
const THREADS: u32 = 256;

/// How an operand goes along the innermost dimension.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Along {
    /// Neighbours, in groups.
    Group,
    /// It stands still.
    Still,
    /// One element at a time.
    Element,
}

pub(super) fn launches(
    operation: &Operation<'_>,
    body: &str,
) -> Result<Vec<GeneratedLaunch>, NoKernel> {
    let shape = &operation.outputs[0].operand.shape;
    let strides = strides_under(operation.operands(), shape)?;
    let names_index =
        mentions(body, "index") && operation.operands().all(|named| named.name != "index");
    let mut order: Vec<usize> = (0..shape.len()).collect();
    let result = operation.inputs.len();
    if !names_index {
        // Neighbours of the result are visited as neighbours.
        order.sort_by_key(|d| std::cmp::Reverse(strides[result][*d]));
    }
    let dims = Dims::merged(shape, &strides, &order);
    if dims.count() == 0 {
        return Ok(Vec::new());
    }
    let is_short = dims.is_short();
    let operands: Vec<&Operand> = operation.operands().map(|named| named.operand).collect();
    let width = width_of(&operands, &dims);
    let along: Vec<Along> = dims
        .strides
        .iter()
        .map(|strides| along(strides, width))
        .collect();
    let names: Vec<&str> = operation.operands().map(|named| named.name).collect();

    let mut writer = Writer::default();
    let groups = dims.count() / width;
    let count = writer.word(groups);
    writer.declare_types(operation);
    writer.line("KERNEL(kernel)\n{");
    writer.line("    const I group = (I)((i64)blockIdx.x * blockDim.x + threadIdx.x);");
    writer.line(format_args!("    if (group >= (I){count}) return;"));
    writer.declare(operation);
    for name in &names {
        writer.line(format_args!("    I {name}_at = 0;"));
    }
    writer.offsets("group", &names, &dims, is_short, width);
    write_loads(&mut writer, operation, &along, width);
    writer.line(format_args!(
        "#pragma unroll\n    for (int v = 0; v < {width}; ++v) {{"
    ));
    if names_index {
        writer.line(format_args!(
            "        const i64 index = (i64)group * {width} + v; (void)index;"
        ));
    }
    write_element(&mut writer, operation, &along, body);
    writer.line("    }");
    write_stores(&mut writer, operation, &along[result..], width);
    writer.line("}\nENTRY(kernel)");
    Ok(writer.launch(is_short, (groups, THREADS), [THREADS, 1]))
}

/// Where operands begin, and what is read.
fn write_loads(writer: &mut Writer, operation: &Operation<'_>, along: &[Along], width: u64) {
    for (position, (named, along)) in operation.operands().zip(along).enumerate() {
        let (name, of) = (named.name, element(named.operand.dtype));
        let start = writer.address(operation, position);
        writer.line(format_args!(
            "    {of}* const {name}_start = ({of}*){start} + {name}_at;"
        ));
        match along {
            Along::Group => writer.line(format_args!("    Group<{of}, {width}> {name}_group;")),
            Along::Still | Along::Element => writer.line(format_args!("    {of} {name}_one;")),
        }
    }
    for (named, along) in operation.inputs.iter().zip(along) {
        let (name, of) = (named.name, element(named.operand.dtype));
        writer.line(match along {
            Along::Group => {
                format!("    {name}_group = *(const Group<{of}, {width}>*){name}_start;")
            }
            Along::Still | Along::Element => format!("    {name}_one = *{name}_start;"),
        });
    }
}

/// One element: inputs as values, the formula, outputs rounded.
fn write_element(writer: &mut Writer, operation: &Operation<'_>, along: &[Along], body: &str) {
    for (named, along) in operation.inputs.iter().zip(along) {
        let name = named.name;
        writer.line(format_args!(
            "        const auto {name} = widened({});",
            place(name, *along)
        ));
    }
    for named in &operation.outputs {
        let of = element(named.operand.dtype);
        writer.line(format_args!(
            "        typename Computed<{of}>::Type {};",
            named.name
        ));
    }
    writer.line(format_args!("        {body}"));
    for (named, along) in operation
        .outputs
        .iter()
        .zip(&along[operation.inputs.len()..])
    {
        let (name, of) = (named.name, element(named.operand.dtype));
        writer.line(format_args!(
            "        {} = Narrow<{of}>::from({name});",
            place(name, *along)
        ));
    }
}

/// What is written.
fn write_stores(writer: &mut Writer, operation: &Operation<'_>, along: &[Along], width: u64) {
    for (named, along) in operation.outputs.iter().zip(along) {
        let (name, of) = (named.name, element(named.operand.dtype));
        writer.line(match along {
            Along::Group => format!("    *(Group<{of}, {width}>*){name}_start = {name}_group;"),
            Along::Still | Along::Element => format!("    *{name}_start = {name}_one;"),
        });
    }
}

/// Where a formula's element is kept.
fn place(name: &str, along: Along) -> String {
    match along {
        Along::Group => format!("{name}_group.at[v]"),
        Along::Still | Along::Element => format!("{name}_one"),
    }
}

/// How many neighbours a thread takes: 16 bytes of the widest elements, if all operands allow it.
fn width_of(operands: &[&Operand], dims: &Dims) -> u64 {
    let widest = operands
        .iter()
        .map(|operand| operand.dtype.size())
        .max()
        .unwrap_or(8);
    let mut width = 16 / widest.clamp(2, 16);
    while width > 1 && !allows(operands, dims, width) {
        width /= 2;
    }
    width
}

fn allows(operands: &[&Operand], dims: &Dims, width: u64) -> bool {
    let last = dims.rank() - 1;
    dims.lengths[last].is_multiple_of(width)
        && operands
            .iter()
            .zip(&dims.strides)
            .all(|(operand, strides)| {
                let starts_aligned = || {
                    let outer = strides[..last].iter();
                    operand
                        .address
                        .is_multiple_of((width * operand.dtype.size()).min(16))
                        && outer.clone().all(|stride| stride.is_multiple_of(width))
                };
                strides[last] == 0 || strides[last] == 1 && starts_aligned()
            })
}

fn along(strides: &[u64], width: u64) -> Along {
    match strides.last() {
        Some(0) => Along::Still,
        Some(_) if width > 1 => Along::Group,
        Some(_) | None => Along::Element,
    }
}

/// Whether a formula uses a name.
pub(super) fn mentions(body: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    body.split(|c| !is_part(c)).any(|word| word == name)
}

//! A thread for each element of an operand's shape, which reads and writes by coordinates.

use super::dims::is_short;
use super::source::{Writer, divider_of, element};
use super::{GeneratedLaunch, NoKernel, Operation};

/// Threads of a block.
const THREADS: u32 = 128;

pub(super) fn launches(
    operation: &Operation<'_>,
    over: usize,
    without: &[usize],
    body: &str,
) -> Result<Vec<GeneratedLaunch>, NoKernel> {
    let Some(visited) = operation.operands().nth(over) else {
        return Err(NoKernel::Misuse(
            "a formula visits an operand that it has not",
        ));
    };
    let shape = &visited.operand.shape;
    let length = |d: usize| if without.contains(&d) { 1 } else { shape[d] };
    let lengths: Vec<u64> = (0..shape.len()).map(length).collect();
    let count: u64 = lengths.iter().product();
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
    writer.line(format_args!(
        "    I rest = thread, i[{}] = {{}};",
        shape.len().max(1)
    ));
    for (d, length) in lengths
        .iter()
        .enumerate()
        .rev()
        .filter(|(d, _)| !without.contains(d))
    {
        let length_word = writer.word(*length);
        let quotient = if is_short {
            let divider = writer.word(divider_of(*length));
            format!("(I)quotient((u32)rest, (u64){divider})")
        } else {
            format!("rest / (I){length_word}")
        };
        writer.line(format_args!(
            "    {{ const I next = {quotient}; i[{d}] = rest - next * (I){length_word}; rest = next; }}"
        ));
    }
    writer.line("    (void)i; (void)rest;");
    for (position, named) in operation.operands().enumerate() {
        let (name, of, operand) = (named.name, element(named.operand.dtype), named.operand);
        let start = format!("(parameters.words + {})", writer.words.len());
        writer.address(operation, position);
        writer
            .words
            .extend(operand.shape.iter().chain(&operand.strides));
        let rank = operand.shape.len();
        writer.line(format_args!(
            "    const Tensor<{of}, {rank}> {name} = {{({of}*){start}[0], {start}}};"
        ));
    }
    writer.line(format_args!("    {body}\n}}\nENTRY(kernel)"));
    let (source, words, changing) = writer.finish(is_short, &["kernel"]);
    Ok(vec![GeneratedLaunch {
        source,
        entry: "kernel",
        blocks: [count.div_ceil(u64::from(THREADS)), 1],
        threads: [THREADS, 1],
        work: count,
        words,
        changing,
    }])
}

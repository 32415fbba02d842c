//! Reductions: elements combined over some dimensions, in the same order each time.

use super::dims::{Dims, strides_under};
use super::source::{Writer, element};
use super::{GeneratedLaunch, NoKernel, Operation};
use crate::program::Form;

/// Threads of a block.
const THREADS: u64 = 256;
/// Room for a state between blocks: none is larger.
const STATE: u64 = 32;

pub(super) fn launches(
    operation: &Operation<'_>,
    over: &[usize],
) -> Result<Vec<GeneratedLaunch>, NoKernel> {
    let Form::Reduce {
        state,
        start,
        step,
        merge,
        finish,
        ..
    } = &operation.generated.form
    else {
        return Err(NoKernel::Misuse("not a reduction"));
    };
    let Some(first) = operation.inputs.first() else {
        return Err(NoKernel::Misuse("a reduction has no input"));
    };
    let shape = &first.operand.shape;
    let strides = strides_under(operation.operands(), shape)?;
    let (reduced, kept): (Vec<usize>, Vec<usize>) =
        (0..shape.len()).partition(|d| over.contains(d));
    let inputs = operation.inputs.len();
    let reduced = Dims::merged(shape, &strides[..inputs], &reduced);
    let kept = Dims::merged(shape, &strides, &kept);
    let (count, results) = (reduced.count(), kept.count());
    if results == 0 {
        return Ok(Vec::new());
    }
    let whole = Dims {
        lengths: [&kept.lengths[..], &reduced.lengths].concat(),
        strides: kept
            .strides
            .iter()
            .zip(&reduced.strides)
            .map(|(k, r)| [&k[..], r].concat())
            .collect(),
    };
    let is_short = whole.is_short() && kept.is_short();
    // Threads of a warp read neighbours: along the reduced dimensions, or along the kept ones.
    let innermost = |dims: &Dims| dims.strides[0].last().copied().unwrap_or(0);
    let is_along = results == 1
        || count > 1 && (innermost(&kept) == 0 || innermost(&reduced) < innermost(&kept));
    let threads = if is_along {
        let lanes = count.div_ceil(4).next_power_of_two().clamp(1, THREADS);
        [lanes, THREADS / lanes]
    } else {
        [32, THREADS / 32]
    };
    let (in_block, lanes) = if is_along {
        (threads[1], threads[0])
    } else {
        (threads[0], threads[1])
    };
    let blocks = results.div_ceil(in_block);
    let wanted = (operation.resources.multiprocessors * 4).div_ceil(blocks);
    let most = (operation.resources.scratch.1 / STATE / results).min(1024);
    let splits = wanted.min(count / (lanes * 16)).min(most).max(1);

    let mut writer = Writer::default();
    let (results_word, count_word) = (writer.word(results), writer.word(count));
    let splits_word = writer.word(splits);
    let partial = writer.word(operation.resources.scratch.0);
    writer.declare_types(operation);
    writer.line(format_args!("typedef {state} State;"));
    // Both kernels finish a result.
    writer.line("DEVICE void finish(const Parameters& parameters, I kept, State s)\n{");
    writer.declare(operation);
    writer.line(format_args!(
        "    const i64 count = {count_word}; (void)count; (void)s;"
    ));
    let outputs: Vec<&str> = operation.outputs.iter().map(|named| named.name).collect();
    let of_outputs = Dims {
        lengths: kept.lengths.clone(),
        strides: kept.strides[inputs..].to_vec(),
    };
    for named in &operation.outputs {
        let (name, of) = (named.name, element(named.operand.dtype));
        writer.line(format_args!(
            "    I {name}_at = 0; typename Computed<{of}>::Type {name};"
        ));
    }
    writer.offsets("kept", &outputs, &of_outputs, is_short, 1);
    writer.line(format_args!("    {finish}"));
    for named in &operation.outputs {
        let (name, of) = (named.name, element(named.operand.dtype));
        let start = writer.word(named.operand.address);
        writer.line(format_args!(
            "    (({of}*){start})[{name}_at] = Narrow<{of}>::from({name});"
        ));
    }
    writer.line("}");

    writer.line("KERNEL(kernel)\n{");
    let (kept_index, lane, lane_count) = if is_along {
        (
            "(I)((i64)blockIdx.x * blockDim.y + threadIdx.y)",
            "threadIdx.x",
            "blockDim.x",
        )
    } else {
        (
            "(I)((i64)blockIdx.x * blockDim.x + threadIdx.x)",
            "threadIdx.y",
            "blockDim.y",
        )
    };
    writer.line(format_args!(
        "    const I kept = {kept_index}, lane = (I){lane}, lanes = (I){lane_count};"
    ));
    writer.line(format_args!(
        "    const I count = (I){count_word}; const bool is_any = kept < (I){results_word};"
    ));
    writer.line(format_args!("    const i64 begin = (i64)count * blockIdx.y / gridDim.y, end = (i64)count * (blockIdx.y + 1) / gridDim.y;"));
    writer.declare(operation);
    writer.line(format_args!("    State s; {start}"));
    writer.line("    if (is_any) {");
    let names: Vec<&str> = operation.inputs.iter().map(|named| named.name).collect();
    for name in &names {
        writer.line(format_args!("    I {name}_at = 0;"));
    }
    let of_inputs = Dims {
        lengths: kept.lengths.clone(),
        strides: kept.strides[..inputs].to_vec(),
    };
    writer.offsets("kept", &names, &of_inputs, is_short, 1);
    for named in &operation.inputs {
        let (name, of) = (named.name, element(named.operand.dtype));
        let start = writer.word(named.operand.address);
        writer.line(format_args!(
            "    const {of}* const {name}_start = (const {of}*){start} + {name}_at;"
        ));
    }
    writer.line("    for (I j = (I)begin + lane; j < (I)end; j += lanes) {");
    for name in &names {
        writer.line(format_args!("    I {name}_at = 0;"));
    }
    writer.offsets("j", &names, &reduced, is_short, 1);
    for name in &names {
        writer.line(format_args!(
            "    const auto {name} = widened({name}_start[{name}_at]); (void){name};"
        ));
    }
    writer.line(format_args!("    {step}\n    }}\n    }}"));
    writer.line("#ifndef ON_HOST");
    writer.line(format_args!("    __shared__ State states[{THREADS}];"));
    writer.line("    const int place = threadIdx.y * blockDim.x + threadIdx.x;");
    let neighbour = if is_along { "1" } else { "(int)blockDim.x" };
    writer.line("    states[place] = s;\n    for (int half = (int)lanes / 2; half > 0; half /= 2) {\n    __syncthreads();");
    writer.line(format_args!("    if ((int)lane < half) {{ State o = states[place + half * {neighbour}]; {merge} states[place] = s; }}\n    }}"));
    writer.line("#endif");
    writer.line("    if (lane != 0 || !is_any) return;");
    writer.line("    if (gridDim.y == 1) finish(parameters, kept, s);");
    writer.line(format_args!(
        "    else ((State*){partial})[(i64)blockIdx.y * {results_word} + kept] = s;"
    ));
    writer.line("}\nENTRY(kernel)");

    writer.line("KERNEL(collect)\n{");
    writer.line("    const I kept = (I)((i64)blockIdx.x * blockDim.x + threadIdx.x);");
    writer.line(format_args!("    if (kept >= (I){results_word}) return;"));
    writer.line(format_args!(
        "    const State* const states = (const State*){partial} + kept;"
    ));
    writer.declare(operation);
    writer.line("    State s = states[0];");
    writer.line(format_args!("    for (i64 split = 1; split < {splits_word}; ++split) {{ State o = states[split * {results_word}]; {merge} }}"));
    writer.line(format_args!(
        "    static_assert(sizeof(State) <= {STATE}, \"room for a state\");"
    ));
    writer.line("    finish(parameters, kept, s);\n}\nENTRY(collect)");
    let (source, words) = writer.finish(is_short);
    let mut launches = vec![GeneratedLaunch {
        source: source.clone(),
        entry: "kernel",
        blocks: [blocks, splits],
        threads: threads.map(|threads| u32::try_from(threads).unwrap_or(1)),
        work: results,
        words: words.clone(),
    }];
    if splits > 1 {
        launches.push(GeneratedLaunch {
            source,
            entry: "collect",
            blocks: [results.div_ceil(128), 1],
            threads: [128, 1],
            work: results,
            words,
        });
    }
    Ok(launches)
}

//! Reductions: elements combined over some dimensions, in the same order each time.

use super::dims::{Dims, strides_under};
use super::source::{Writer, element};
use super::{GeneratedLaunch, NoKernel, Operation};
use crate::program::Form;

/// Threads of a block.
const THREADS: u64 = 256;
/// Room for a state between blocks: none is larger.
const STATE: u64 = 32;

/// The formulas of a reduction.
struct Formulas<'a> {
    state: &'a str,
    start: &'a str,
    step: &'a str,
    merge: &'a str,
    finish: &'a str,
}

/// A reduction as its kernels see it.
struct Reduction<'a> {
    operation: &'a Operation<'a>,
    formulas: Formulas<'a>,
    /// The dimensions that go away, with the strides of inputs.
    reduced: Dims,
    /// Those that stay, with the strides of inputs and of outputs.
    kept: Dims,
    is_short: bool,
    /// Whether neighbouring threads work on the same result.
    is_along: bool,
}

/// How the parameter calls what both kernels need.
struct ParameterNames {
    results: String,
    count: String,
    splits: String,
    partial: String,
}

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
    let reduced = Dims::merged(shape, &strides[..operation.inputs.len()], &reduced);
    let kept = Dims::merged(shape, &strides, &kept);
    let (count, results) = (reduced.count(), kept.count());
    if results == 0 {
        return Ok(Vec::new());
    }
    let whole = kept.around(&reduced);
    // Threads of a warp read neighbours: along the reduced dimensions, or along the kept ones.
    let innermost = |dims: &Dims| dims.strides[0].last().copied().unwrap_or(0);
    let reduction = Reduction {
        operation,
        formulas: Formulas {
            state,
            start,
            step,
            merge,
            finish,
        },
        is_short: whole.is_short() && kept.is_short(),
        is_along: results == 1
            || count > 1 && (innermost(&kept) == 0 || innermost(&reduced) < innermost(&kept)),
        reduced,
        kept,
    };
    Ok(reduction.launches(count, results))
}

impl Reduction<'_> {
    fn launches(&self, count: u64, results: u64) -> Vec<GeneratedLaunch> {
        let threads = if self.is_along {
            let lanes = count.div_ceil(4).next_power_of_two().clamp(1, THREADS);
            [lanes, THREADS / lanes]
        } else {
            [32, THREADS / 32]
        };
        let [in_block, lanes] = if self.is_along {
            [threads[1], threads[0]]
        } else {
            threads
        };
        let resources = self.operation.resources;
        let blocks = results.div_ceil(in_block);
        let wanted = (resources.multiprocessors * 4).div_ceil(blocks);
        let most = (resources.scratch.1 / STATE / results).min(1024);
        let splits = wanted.min(count / (lanes * 16)).min(most).max(1);
        let mut writer = Writer::default();
        let words = ParameterNames {
            results: writer.word(results),
            count: writer.word(count),
            splits: writer.word(splits),
            partial: writer.word(resources.scratch.0),
        };
        writer.declare_types(self.operation);
        writer.line(format_args!("typedef {} State;", self.formulas.state));
        self.write_finish(&mut writer, &words);
        self.write_kernel(&mut writer, &words);
        self.write_collect(&mut writer, &words);
        let (source, words, changing) = writer.finish(self.is_short, &["kernel", "collect"]);
        let mut launches = vec![GeneratedLaunch {
            source: source.clone(),
            entry: "kernel",
            blocks: [blocks, splits],
            threads: threads.map(|threads| u32::try_from(threads).unwrap_or(1)),
            work: results,
            words: words.clone(),
            changing: changing.clone(),
        }];
        if splits > 1 {
            launches.push(GeneratedLaunch {
                source,
                entry: "collect",
                blocks: [results.div_ceil(128), 1],
                threads: [128, 1],
                work: results,
                words,
                changing,
            });
        }
        launches
    }

    /// What makes a result of a state, for both kernels.
    fn write_finish(&self, writer: &mut Writer, words: &ParameterNames) {
        let inputs = self.operation.inputs.len();
        writer.line("DEVICE void finish(const Parameters& parameters, I kept, State s)\n{");
        writer.declare(self.operation);
        writer.line(format_args!(
            "    const i64 count = {}; (void)count; (void)s;",
            words.count
        ));
        let outputs: Vec<&str> = self
            .operation
            .outputs
            .iter()
            .map(|named| named.name)
            .collect();
        let of_outputs = Dims {
            lengths: self.kept.lengths.clone(),
            strides: self.kept.strides[inputs..].to_vec(),
        };
        for named in &self.operation.outputs {
            let (name, of) = (named.name, element(named.operand.dtype));
            writer.line(format_args!(
                "    I {name}_at = 0; typename Computed<{of}>::Type {name};"
            ));
        }
        writer.offsets("kept", &outputs, &of_outputs, self.is_short, 1);
        writer.line(format_args!("    {}", self.formulas.finish));
        for (position, named) in self.operation.outputs.iter().enumerate() {
            let (name, of) = (named.name, element(named.operand.dtype));
            let start = writer.address(self.operation, inputs + position);
            writer.line(format_args!(
                "    (({of}*){start})[{name}_at] = Narrow<{of}>::from({name});"
            ));
        }
        writer.line("}");
    }

    /// The kernel that combines elements, of each result or of part of it.
    fn write_kernel(&self, writer: &mut Writer, words: &ParameterNames) {
        let (across, along) = if self.is_along {
            ("y", "x")
        } else {
            ("x", "y")
        };
        writer.line("KERNEL(kernel)\n{");
        writer.line(format_args!(
            "    const I kept = (I)((i64)blockIdx.x * blockDim.{across} + threadIdx.{across}), \
             lane = (I)threadIdx.{along}, lanes = (I)blockDim.{along};"
        ));
        writer.line(format_args!(
            "    const i64 count = {}; const bool is_any = kept < (I){};",
            words.count, words.results
        ));
        writer.line(
            "    const i64 begin = count * blockIdx.y / gridDim.y, end = count * (blockIdx.y + 1) / gridDim.y;",
        );
        writer.declare(self.operation);
        writer.line(format_args!("    State s; {}", self.formulas.start));
        writer.line("    if (is_any) {");
        self.write_loop(writer);
        writer.line("    }\n#ifndef ON_HOST");
        writer.line(format_args!("    __shared__ State states[{THREADS}];"));
        writer.line("    const int place = threadIdx.y * blockDim.x + threadIdx.x;");
        writer.line("    states[place] = s;");
        writer.line(
            "    for (int half = (int)lanes / 2; half > 0; half /= 2) {\n        __syncthreads();",
        );
        let neighbour = if self.is_along {
            "1"
        } else {
            "(int)blockDim.x"
        };
        writer.line(format_args!(
            "        if ((int)lane < half) {{ State o = states[place + half * {neighbour}]; {} states[place] = s; }}\n    }}",
            self.formulas.merge
        ));
        writer.line("#endif\n    if (lane != 0 || !is_any) return;");
        writer.line("    if (gridDim.y == 1) finish(parameters, kept, s);");
        writer.line(format_args!(
            "    else ((State*){})[(i64)blockIdx.y * {} + kept] = s;\n}}\nENTRY(kernel)",
            words.partial, words.results
        ));
    }

    /// A thread's elements.
    fn write_loop(&self, writer: &mut Writer) {
        let inputs = &self.operation.inputs;
        let names: Vec<&str> = inputs.iter().map(|named| named.name).collect();
        for name in &names {
            writer.line(format_args!("    I {name}_at = 0;"));
        }
        let of_inputs = Dims {
            lengths: self.kept.lengths.clone(),
            strides: self.kept.strides[..inputs.len()].to_vec(),
        };
        writer.offsets("kept", &names, &of_inputs, self.is_short, 1);
        for (position, named) in inputs.iter().enumerate() {
            let (name, of) = (named.name, element(named.operand.dtype));
            let start = writer.address(self.operation, position);
            writer.line(format_args!(
                "    const {of}* const {name}_start = (const {of}*){start} + {name}_at;"
            ));
        }
        writer.line("    for (I j = (I)begin + lane; j < (I)end; j += lanes) {");
        for name in &names {
            writer.line(format_args!("    I {name}_at = 0;"));
        }
        writer.offsets("j", &names, &self.reduced, self.is_short, 1);
        for name in &names {
            writer.line(format_args!(
                "    const auto {name} = widened({name}_start[{name}_at]); (void){name};"
            ));
        }
        writer.line(format_args!("    {}\n    }}", self.formulas.step));
    }

    /// The kernel that puts parts of results together, in order.
    fn write_collect(&self, writer: &mut Writer, words: &ParameterNames) {
        let ParameterNames {
            results,
            splits,
            partial,
            ..
        } = words;
        writer.line("KERNEL(collect)\n{");
        writer.line("    const I kept = (I)((i64)blockIdx.x * blockDim.x + threadIdx.x);");
        writer.line(format_args!("    if (kept >= (I){results}) return;"));
        writer.line(format_args!(
            "    const State* const states = (const State*){partial} + kept;"
        ));
        writer.declare(self.operation);
        writer.line("    State s = states[0];");
        writer.line(format_args!(
            "    for (i64 split = 1; split < {splits}; ++split) {{ State o = states[split * {results}]; {} }}",
            self.formulas.merge
        ));
        writer.line(format_args!(
            "    static_assert(sizeof(State) <= {STATE}, \"room for a state\");"
        ));
        writer.line("    finish(parameters, kept, s);\n}\nENTRY(collect)");
    }
}

//! The text of a kernel and its parameter, as they are put together.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use super::dims::Dims;
use super::{GeneratedLaunch, Named, Operation};
use crate::program::Number;
use crate::shape::DType;

/// What comes before each text.
const PRELUDE: &str = concat!(include_str!("common.cuh"), include_str!("prelude.cuh"));

/// The text of a kernel, to be compiled behind [`PRELUDE`] and the type of its indices.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Source {
    is_short: bool,
    /// Words of the parameter.
    words: usize,
    entries: &'static [&'static str],
    body: Arc<str>,
}

impl Source {
    /// The kernels in it.
    pub(crate) fn entries(&self) -> &'static [&'static str] {
        self.entries
    }

    /// All that a compiler reads.
    pub(crate) fn text(&self) -> String {
        self.head() + &self.definitions()
    }

    fn head(&self) -> String {
        let index = if self.is_short { "int" } else { "long long" };
        format!("typedef {index} I;\n{PRELUDE}\n")
    }

    fn definitions(&self) -> String {
        format!(
            "struct Parameters {{ long long words[{}]; }};\n{}",
            self.words, self.body
        )
    }

    /// Texts as one, for a host: each in a namespace of its own, with a pointer `{entry}_{number}` to each kernel.
    #[cfg(test)]
    pub(super) fn together(sources: &[Source]) -> String {
        let mut text = sources[0].head();
        for (number, source) in sources.iter().enumerate() {
            assert_eq!(source.is_short, sources[0].is_short, "one type of indices");
            let _ = writeln!(text, "namespace n{number} {{\n{}}}", source.definitions());
            for name in source.entries {
                let pointer = format!("extern \"C\" void* const {name}_{number}");
                let _ = writeln!(text, "{pointer} = (void*)n{number}::{name};");
            }
        }
        text
    }
}

/// A text and a parameter under construction. The parameter is an array of 64-bit words, so that both sides agree on
/// where each one lies.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) text: String,
    pub(super) words: Vec<u64>,
    /// What of the words changes from launch to launch.
    pub(super) changing: Changing,
}

/// Which words of a parameter change when a call is launched again at the same batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changing {
    /// Words that are addresses, each with the operand's position: inputs first, as many as the formula names.
    pub(crate) addresses: Vec<(usize, usize)>,
    /// How many inputs the formula names; a call may have more.
    pub(crate) inputs: usize,
    /// Words that are keys of random numbers.
    pub(crate) seeds: Vec<usize>,
}

impl Writer {
    /// Adds lines.
    pub(super) fn line(&mut self, line: impl fmt::Display) {
        let _ = writeln!(self.text, "{line}");
    }

    /// Adds a word to the parameter; gives how the text calls it.
    pub(super) fn word(&mut self, word: u64) -> String {
        self.words.push(word);
        format!("parameters.words[{}]", self.words.len() - 1)
    }

    /// Adds the address of the operand at this position; gives how the text calls it.
    pub(super) fn address(&mut self, operation: &Operation<'_>, position: usize) -> String {
        let named = operation.operands().nth(position);
        let address = named.map_or(0, |named| named.operand.address);
        // Partial results stay where they are.
        if address != operation.resources.scratch.0 {
            self.changing.inputs = operation.inputs.len();
            self.changing.addresses.push((self.words.len(), position));
        }
        self.word(address)
    }

    /// Adds an array to the parameter; gives how the text calls its start.
    pub(super) fn array(&mut self, words: &[u64]) -> String {
        let start = format!("(parameters.words + {})", self.words.len());
        // An empty array has no start.
        self.words.extend(words);
        if words.is_empty() {
            self.words.push(0);
        }
        start
    }

    /// Declares the constants that formulas may call.
    pub(super) fn declare(&mut self, operation: &Operation<'_>) {
        let (result, promoted) = types(operation);
        let fraction = [promoted, result].into_iter().find(|of| of.is_fraction());
        let fraction = fraction.unwrap_or(Computed::Double);
        for (name, number) in &operation.generated.numbers {
            let line = match number {
                Number::Real(value) => {
                    let word = self.word(value.to_bits());
                    format!("const {fraction} {name} = ({fraction})to_double({word});")
                }
                Number::Whole(value) => {
                    let word = self.word(value.cast_unsigned());
                    format!("const i64 {name} = {word};")
                }
                Number::Truth(value) => {
                    let word = self.word(u64::from(*value));
                    format!("const bool {name} = {word} != 0;")
                }
                Number::Length(extent) => {
                    let word = self.word(extent.at(operation.resources.batch));
                    format!("const i64 {name} = {word};")
                }
                Number::List(values) => {
                    let words: Vec<u64> =
                        values.iter().map(|value| value.cast_unsigned()).collect();
                    let start = self.array(&words);
                    format!("const i64* const {name} = {start};")
                }
                Number::Seed => {
                    self.changing.seeds.push(self.words.len());
                    let word = self.word(operation.resources.seed);
                    format!("const u64 {name} = (u64){word};")
                }
            };
            self.line(format_args!("    {line}"));
        }
    }

    /// Declares the types `T` and `P`.
    pub(super) fn declare_types(&mut self, operation: &Operation<'_>) {
        let (result, promoted) = types(operation);
        self.line(format_args!("typedef {result} T; typedef {promoted} P;"));
    }

    /// Declares the operand at this position as one that is read by coordinates.
    pub(super) fn tensor(&mut self, operation: &Operation<'_>, position: usize) {
        let Some(named) = operation.operands().nth(position) else {
            return;
        };
        let (name, of, operand) = (named.name, element(named.operand.dtype), named.operand);
        let start = format!("(parameters.words + {})", self.words.len());
        self.address(operation, position);
        self.words
            .extend(operand.shape.iter().chain(&operand.strides));
        let rank = operand.shape.len();
        self.line(format_args!(
            "    const Tensor<{of}, {rank}> {name} = {{({of}*){start}[0], {start}}};"
        ));
    }

    /// Breaks `{number}` down into an index in each of the dimensions and adds up each operand's offset, `{name}_at`.
    /// `scale` multiplies the innermost index.
    pub(super) fn offsets(
        &mut self,
        number: &str,
        names: &[&str],
        dims: &Dims,
        is_short: bool,
        scale: u64,
    ) {
        let last = dims.rank() - 1;
        self.line(format_args!("    I rest_{number} = {number};"));
        for d in (0..dims.rank()).rev() {
            let at = format!("{number}_{d}");
            if d == 0 {
                self.line(format_args!("    const I {at} = rest_{number};"));
            } else {
                // The innermost index counts groups.
                let length = if d == last {
                    dims.lengths[d] / scale
                } else {
                    dims.lengths[d]
                };
                let length_word = self.word(length);
                let quotient = if is_short {
                    let divider = self.word(divider_of(length));
                    format!("(I)quotient((u32)rest_{number}, (u64){divider})")
                } else {
                    format!("rest_{number} / (I){length_word}")
                };
                self.line(format_args!("    const I next_{at} = {quotient};"));
                self.line(format_args!(
                    "    const I {at} = rest_{number} - next_{at} * (I){length_word};"
                ));
                self.line(format_args!("    rest_{number} = next_{at};"));
            }
            for (name, strides) in names.iter().zip(&dims.strides) {
                let factor = if d == last { scale } else { 1 };
                match strides[d] * factor {
                    0 => {}
                    // Neighbours are common enough for a text of their own.
                    1 => self.line(format_args!("    {name}_at += {at};")),
                    stride => {
                        let stride = self.word(stride);
                        self.line(format_args!("    {name}_at += {at} * (I){stride};"));
                    }
                }
            }
        }
    }

    /// The launch of the one kernel of this text: so many pieces of work, of which each block does some.
    pub(super) fn launch(
        self,
        is_short: bool,
        (work, of_block): (u64, u32),
        threads: [u32; 2],
    ) -> Vec<GeneratedLaunch> {
        let (source, words, changing) = self.finish(is_short, &["kernel"]);
        vec![GeneratedLaunch {
            source,
            entry: "kernel",
            blocks: [work.div_ceil(u64::from(of_block)), 1],
            threads,
            work,
            words,
            changing,
        }]
    }

    /// The whole text around what was written.
    pub(super) fn finish(
        self,
        is_short: bool,
        entries: &'static [&'static str],
    ) -> (Source, Vec<u64>, Changing) {
        let source = Source {
            is_short,
            words: self.words.len(),
            entries,
            body: self.text.into(),
        };
        (source, self.words, self.changing)
    }
}

/// The types `T` and `P` of a formula.
fn types(operation: &Operation<'_>) -> (Computed, Computed) {
    let of = |named: &Named<'_>| Computed::of(named.operand.dtype);
    let result = operation.outputs.first().map_or(Computed::Float, of);
    let mut numbers = operation.generated.numbers.iter();
    let has_fraction = numbers.any(|(_, number)| matches!(number, Number::Real(_)));
    let promoted = operation.inputs.iter().map(of).max();
    let promoted = match promoted {
        Some(promoted) if has_fraction && !promoted.is_fraction() => {
            Some(Computed::Float.max(result))
        }
        promoted => promoted,
    };
    (result, promoted.unwrap_or(result))
}

/// A factor and a shift that divide a number below 2^31: `(high half of n * factor + n) >> shift`.
pub(crate) fn divider_parts(length: u64) -> (u32, u32) {
    let length = length.clamp(1, 1 << 31);
    let shift = length.next_power_of_two().trailing_zeros();
    let factor = (((1_u64 << shift) - length) << 32) / length + 1;
    (u32::try_from(factor).unwrap_or(u32::MAX), shift)
}

/// The same in the low and the high half of a word.
pub(crate) fn divider_of(length: u64) -> u64 {
    let (factor, shift) = divider_parts(length);
    u64::from(shift) << 32 | u64::from(factor)
}

/// How an element lies in memory.
pub(crate) fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::Float32 => "float",
        DType::Float16 => "f16",
        DType::BFloat16 => "bf16",
        DType::Float64 => "double",
        DType::Int64 => "i64",
        DType::Int32 => "int",
        DType::UInt8 => "u8",
        DType::Bool => "bool",
        // Operands of a launch are never: see `Operands::of`.
        DType::Complex64 | DType::Complex128 => "void",
    }
}

/// The type in which an element is computed, in the order in which they promote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Computed {
    Bool,
    Whole,
    Float,
    Double,
}

impl Computed {
    fn of(dtype: DType) -> Computed {
        match dtype {
            DType::Bool => Computed::Bool,
            DType::Int64 | DType::Int32 | DType::UInt8 => Computed::Whole,
            DType::Float32 | DType::Float16 | DType::BFloat16 => Computed::Float,
            DType::Float64 | DType::Complex64 | DType::Complex128 => Computed::Double,
        }
    }

    fn is_fraction(self) -> bool {
        self >= Computed::Float
    }
}

impl fmt::Display for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Computed::Bool => "bool",
            Computed::Whole => "i64",
            Computed::Float => "float",
            Computed::Double => "double",
        })
    }
}

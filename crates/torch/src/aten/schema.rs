//! The parts of PyTorch's serialized export (`torch._export.serde`, schema major 8) that are read.
//!
//! Everything else in the document is skipped. Names borrow from the text: a graph of a few megabytes is
//! mostly names and sizes.
#![expect(
    missing_docs,
    reason = "members are called as in PyTorch's `schema.py`, which documents them"
)]

use std::fmt;

use serde::de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::number::{Whole, whole};
use crate::limits::{List, Table, Text, count_names, count_node, spend};

/// The whole document.
#[derive(Debug, Deserialize)]
pub struct Document<'a> {
    #[serde(borrow)]
    pub graph_module: GraphModule<'a>,
    /// By symbol, the sizes that the graph holds for.
    #[serde(borrow, default)]
    pub range_constraints: Table<'a, RangeConstraint>,
    /// What batchfit's own exporter adds; see [`super::side_table`].
    #[serde(borrow, default)]
    pub batchfit: Option<&'a RawValue>,
    /// The PyTorch that exported it.
    #[serde(borrow, default)]
    pub torch_version: Option<Text<'a>>,
}

/// The sizes that a symbol stands for; PyTorch leaves out a bound that is infinite.
#[derive(Debug, Deserialize)]
pub struct RangeConstraint {
    #[serde(default)]
    pub max_val: Option<Whole>,
}

#[derive(Debug, Deserialize)]
pub struct GraphModule<'a> {
    #[serde(borrow)]
    pub graph: GraphText<'a>,
    #[serde(borrow)]
    pub signature: Signature<'a>,
}

/// A graph, the outer one or one nested in a node.
#[derive(Debug, Deserialize)]
pub struct GraphText<'a> {
    #[serde(borrow)]
    pub inputs: List<Arg<'a>>,
    #[serde(borrow)]
    pub outputs: List<Arg<'a>>,
    #[serde(borrow)]
    pub nodes: List<ExportedNode<'a>>,
    #[serde(borrow)]
    pub tensor_values: Table<'a, TensorMeta<'a>>,
    #[serde(borrow, default)]
    pub sym_int_values: Table<'a, ExportedSize<'a>>,
    #[serde(borrow, default)]
    pub sym_float_values: Table<'a, Fraction<'a>>,
}

#[derive(Debug, Deserialize)]
pub struct ExportedNode<'a> {
    #[serde(borrow, deserialize_with = "counted")]
    pub target: Text<'a>,
    #[serde(borrow)]
    pub inputs: List<NamedArg<'a>>,
    #[serde(borrow)]
    pub outputs: List<Arg<'a>>,
    #[serde(borrow, default)]
    pub metadata: Metadata<'a>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Metadata<'a> {
    /// `key,path,class` of every module being called, outermost first, separated by semicolons.
    #[serde(borrow, default)]
    pub nn_module_stack: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub struct NamedArg<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow)]
    pub arg: Arg<'a>,
}

#[derive(Debug, Deserialize)]
pub struct TensorMeta<'a> {
    pub dtype: u32,
    #[serde(borrow, deserialize_with = "shape")]
    pub sizes: List<ExportedSize<'a>>,
    #[serde(default)]
    pub strides: Strides,
    #[serde(default)]
    pub requires_grad: bool,
}

/// How far apart neighbours of each dimension are, of a tensor of at most five dimensions in which all of that is numbers; otherwise nothing is known.
#[derive(Debug, Default)]
pub struct Strides {
    steps: [u64; 5],
    rank: usize,
}

impl Strides {
    /// The steps; none where nothing is known.
    pub fn known(&self) -> &[u64] {
        self.steps.get(..self.rank).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Strides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A stride that is a number; all others are passed over.
        #[derive(Deserialize)]
        struct Stride {
            #[serde(default)]
            as_int: Option<u64>,
        }
        struct StridesVisitor;
        impl<'de> Visitor<'de> for StridesVisitor {
            type Value = Strides;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strides")
            }

            fn visit_unit<E>(self) -> Result<Strides, E> {
                Ok(Strides::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strides, A::Error> {
                let mut strides = Strides::default();
                let mut is_known = true;
                while let Some(Stride { as_int }) = items.next_element()? {
                    match (strides.steps.get_mut(strides.rank), as_int) {
                        (Some(step), Some(stride)) => {
                            *step = stride;
                            strides.rank += 1;
                        }
                        _ => is_known = false,
                    }
                }
                Ok(if is_known {
                    strides
                } else {
                    Strides::default()
                })
            }
        }
        deserializer.deserialize_any(StridesVisitor)
    }
}

#[derive(Debug, Deserialize)]
pub struct Name<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
}

/// An item of a list whose items may be missing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionalName<'a> {
    #[serde(borrow)]
    AsTensor(Name<'a>),
    AsNone(bool),
}

/// A length: a number or an expression of symbols.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportedSize<'a> {
    AsInt(#[serde(deserialize_with = "whole")] i64),
    #[serde(borrow)]
    AsExpr(Expression<'a>),
}

#[derive(Debug, Deserialize)]
pub struct Expression<'a> {
    #[serde(borrow)]
    pub expr_str: Text<'a>,
    /// Its value for the batch that the graph was traced with, where that is known.
    #[serde(default)]
    pub hint: Option<Hint>,
}

/// A symbolic size's value while tracing.
#[derive(Debug, Clone, Copy, Deserialize)]
pub enum Hint {
    #[serde(rename = "as_int", deserialize_with = "whole")]
    Int(i64),
    #[serde(rename = "as_float")]
    Float(f64),
    #[serde(rename = "as_bool")]
    Bool(bool),
}

impl Hint {
    /// As a number.
    pub fn number(self) -> Option<f64> {
        match self {
            Hint::Int(value) => Some(value as f64),
            Hint::Float(value) => Some(value),
            Hint::Bool(_) => None,
        }
    }
}

/// A number that is no whole one: itself or an expression of symbols.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fraction<'a> {
    AsFloat(f64),
    #[serde(borrow)]
    AsExpr(Expression<'a>),
}

/// A number that is no whole one, or the name of a symbolic one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloat<'a> {
    AsFloat(f64),
    #[serde(borrow)]
    AsName(Text<'a>),
}

/// A number, or the name of a symbolic one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymInt<'a> {
    AsInt(#[serde(deserialize_with = "whole")] i64),
    #[serde(borrow)]
    AsName(Text<'a>),
}

#[derive(Debug, Deserialize)]
pub struct Nested<'a> {
    #[serde(borrow)]
    pub graph: GraphText<'a>,
}

#[derive(Debug, Deserialize)]
pub struct Signature<'a> {
    #[serde(borrow)]
    pub input_specs: List<InputSpec<'a>>,
}

/// What one input of the outer graph is.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec<'a> {
    #[serde(borrow)]
    Parameter(ParameterSpec<'a>),
    #[serde(borrow)]
    Buffer(BufferSpec<'a>),
    #[serde(borrow)]
    TensorConstant(ConstantSpec<'a>),
    #[serde(borrow)]
    UserInput(UserInputSpec<'a>),
}

#[derive(Debug, Deserialize)]
pub struct ParameterSpec<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub parameter_name: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub struct BufferSpec<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub buffer_name: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub struct ConstantSpec<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub tensor_constant_name: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub struct UserInputSpec<'a> {
    #[serde(borrow)]
    pub arg: Arg<'a>,
}

/// An argument or a result. Kinds that no operator read here takes are kept by name only, so that they
/// are refused where they are used and not where they are read.
#[derive(Debug)]
pub enum Arg<'a> {
    None,
    Tensor(Text<'a>),
    Tensors(List<Text<'a>>),
    OptionalTensors(List<Option<Text<'a>>>),
    Int(i64),
    Ints(List<i64>),
    SymInt(SymInt<'a>),
    SymInts(List<SymInt<'a>>),
    SymFloat(SymFloat<'a>),
    /// A symbolic truth value; only checks of sizes make these.
    Symbolic,
    Float(f64),
    Floats(List<f64>),
    Complex(f64, f64),
    Bool(bool),
    Text(Text<'a>),
    ScalarType(u32),
    MemoryFormat(u32),
    Graph(Box<Nested<'a>>),
    Other,
}

impl<'de: 'a, 'a> Deserialize<'de> for Arg<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ArgVisitor)
    }
}

/// Reads `{"as_KIND": VALUE}`.
struct ArgVisitor;

impl<'de> Visitor<'de> for ArgVisitor {
    type Value = Arg<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an argument such as {\"as_int\": 1}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Arg<'de>, M::Error> {
        let Some(kind) = map.next_key::<Text<'de>>()? else {
            return Err(de::Error::custom("an argument without a kind"));
        };
        let arg = match kind.as_ref() {
            "as_tensor" => {
                count_names(1)?;
                Arg::Tensor(map.next_value::<Name>()?.name)
            }
            "as_tensors" => {
                let names = map.next_value::<List<Name>>()?;
                count_names(names.len())?;
                Arg::Tensors(names.map(|name| name.name))
            }
            "as_optional_tensors" => {
                let items = map.next_value::<List<OptionalName>>()?;
                count_names(items.len())?;
                let name = |item| match item {
                    OptionalName::AsTensor(name) => Some(name.name),
                    OptionalName::AsNone(_) => None,
                };
                Arg::OptionalTensors(items.map(name))
            }
            "as_int" => Arg::Int(map.next_value::<Whole>()?.0),
            "as_ints" => {
                let numbers = short(map.next_value::<List<Whole>>()?)?;
                Arg::Ints(numbers.map(|number| number.0))
            }
            "as_sym_int" => Arg::SymInt(map.next_value()?),
            "as_sym_ints" => Arg::SymInts(short(map.next_value()?)?),
            "as_float" => Arg::Float(map.next_value::<Float>()?.0),
            "as_floats" => {
                let values = map.next_value::<List<Float>>()?;
                Arg::Floats(values.map(|value| value.0))
            }
            "as_complex" => {
                let ComplexValue { real, imag } = map.next_value()?;
                Arg::Complex(real, imag)
            }
            "as_bool" => Arg::Bool(map.next_value()?),
            "as_string" => Arg::Text(map.next_value()?),
            "as_scalar_type" => Arg::ScalarType(map.next_value()?),
            "as_memory_format" => Arg::MemoryFormat(map.next_value()?),
            "as_graph" => {
                let nested = map.next_value::<Nested<'de>>()?;
                spend(size_of::<Nested<'de>>())?;
                Arg::Graph(Box::new(nested))
            }
            "as_sym_float" => Arg::SymFloat(map.next_value()?),
            "as_sym_bool" => {
                map.next_value::<IgnoredAny>()?;
                Arg::Symbolic
            }
            "as_none" => {
                map.next_value::<IgnoredAny>()?;
                Arg::None
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
                Arg::Other
            }
        };
        if map.next_key::<IgnoredAny>()?.is_some() {
            return Err(de::Error::custom("an argument of two kinds"));
        }
        Ok(arg)
    }
}

/// A node's target, which each has one of.
fn counted<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Text<'a>, D::Error> {
    count_node()?;
    Text::deserialize(deserializer)
}

/// Most numbers of one argument: lengths, dimensions, or the pieces of a `split`.
const MOST_NUMBERS: usize = 4096;

/// A list of lengths or dimensions. Each number costs a hundred times its text in the shapes that are made of it.
fn short<T, E: de::Error>(list: List<T>) -> Result<List<T>, E> {
    if list.len() > MOST_NUMBERS {
        let numbers = list.len();
        return Err(E::custom(format!(
            "an argument has {numbers} numbers; at most {MOST_NUMBERS} are read"
        )));
    }
    Ok(list)
}

/// Most dimensions of a tensor: PyTorch's kernels take no more (`dim_bitset_size` in `WrapDimUtilsMulti.h`).
const MOST_DIMENSIONS: usize = 64;

fn shape<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<List<ExportedSize<'a>>, D::Error> {
    let sizes = List::<ExportedSize<'a>>::deserialize(deserializer)?;
    if sizes.len() > MOST_DIMENSIONS {
        return Err(de::Error::custom(format!(
            "a tensor has {} dimensions; at most {MOST_DIMENSIONS} are read",
            sizes.len()
        )));
    }
    Ok(sizes)
}

/// A complex number.
#[derive(Deserialize)]
struct ComplexValue {
    real: f64,
    imag: f64,
}

/// PyTorch writes numbers that JSON has no form for as strings.
struct Float(f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FloatVisitor;
        impl Visitor<'_> for FloatVisitor {
            type Value = Float;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"Infinity\", \"-Infinity\" or \"NaN\"")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Float, E> {
                Ok(Float(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Float, E> {
                Ok(Float(value as f64))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Float, E> {
                Ok(Float(value as f64))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Float, E> {
                match text {
                    "Infinity" => Ok(Float(f64::INFINITY)),
                    "-Infinity" => Ok(Float(f64::NEG_INFINITY)),
                    "NaN" => Ok(Float(f64::NAN)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(FloatVisitor)
    }
}

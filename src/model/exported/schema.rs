//! The parts of PyTorch's serialized export (`torch._export.serde`, schema major 8) that are read.
//!
//! Everything else in the document is skipped. Names borrow from the text: a graph of a few megabytes is
//! mostly names and sizes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The whole document.
#[derive(Debug, Deserialize)]
pub(super) struct Document<'a> {
    #[serde(borrow)]
    pub(super) graph_module: GraphModule<'a>,
    /// What batchfit's own exporter adds; see [`super::side_table`].
    #[serde(default)]
    pub(super) batchfit: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct GraphModule<'a> {
    #[serde(borrow)]
    pub(super) graph: GraphText<'a>,
    #[serde(borrow)]
    pub(super) signature: Signature<'a>,
}

/// A graph, the outer one or one nested in a node.
#[derive(Debug, Deserialize)]
pub(super) struct GraphText<'a> {
    #[serde(borrow)]
    pub(super) inputs: Vec<Arg<'a>>,
    #[serde(borrow)]
    pub(super) outputs: Vec<Arg<'a>>,
    #[serde(borrow)]
    pub(super) nodes: Vec<Node<'a>>,
    #[serde(borrow)]
    pub(super) tensor_values: HashMap<Cow<'a, str>, Tensor<'a>>,
    #[serde(borrow, default)]
    pub(super) sym_int_values: HashMap<Cow<'a, str>, Size<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node<'a> {
    #[serde(borrow)]
    pub(super) target: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) inputs: Vec<NamedArg<'a>>,
    #[serde(borrow)]
    pub(super) outputs: Vec<Arg<'a>>,
    #[serde(borrow, default)]
    pub(super) metadata: Metadata<'a>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Metadata<'a> {
    /// `key,path,class` of every module being called, outermost first, separated by semicolons.
    #[serde(borrow, default)]
    pub(super) nn_module_stack: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedArg<'a> {
    #[serde(borrow, default)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) arg: Arg<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Tensor<'a> {
    pub(super) dtype: u32,
    #[serde(borrow)]
    pub(super) sizes: Vec<Size<'a>>,
    #[serde(default)]
    pub(super) requires_grad: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Name<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
}

/// An item of a list whose items may be missing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OptionalName<'a> {
    #[serde(borrow)]
    AsTensor(Name<'a>),
    AsNone(#[expect(dead_code, reason = "always true")] bool),
}

/// A length: a number or an expression of symbols.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Size<'a> {
    AsInt(i64),
    #[serde(borrow)]
    AsExpr(Expression<'a>),
}

#[derive(Debug, Deserialize)]
pub(super) struct Expression<'a> {
    #[serde(borrow)]
    pub(super) expr_str: Cow<'a, str>,
}

/// A number, or the name of a symbolic one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymInt<'a> {
    AsInt(i64),
    #[serde(borrow)]
    AsName(Cow<'a, str>),
}

#[derive(Debug, Deserialize)]
pub(super) struct Nested<'a> {
    #[serde(borrow)]
    pub(super) graph: GraphText<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Signature<'a> {
    #[serde(borrow)]
    pub(super) input_specs: Vec<InputSpec<'a>>,
}

/// What one input of the outer graph is.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec<'a> {
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
pub(super) struct ParameterSpec<'a> {
    #[serde(borrow)]
    pub(super) arg: Name<'a>,
    #[serde(borrow)]
    pub(super) parameter_name: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct BufferSpec<'a> {
    #[serde(borrow)]
    pub(super) arg: Name<'a>,
    #[serde(borrow)]
    pub(super) buffer_name: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConstantSpec<'a> {
    #[serde(borrow)]
    pub(super) arg: Name<'a>,
    #[serde(borrow)]
    pub(super) tensor_constant_name: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct UserInputSpec<'a> {
    #[serde(borrow)]
    pub(super) arg: Arg<'a>,
}

/// An argument or a result. Kinds that no operator read here takes are kept by name only, so that they
/// are refused where they are used and not where they are read.
#[derive(Debug)]
pub(super) enum Arg<'a> {
    None,
    Tensor(Cow<'a, str>),
    Tensors(Vec<Cow<'a, str>>),
    OptionalTensors(Vec<Option<Cow<'a, str>>>),
    Int(i64),
    Ints(Vec<i64>),
    SymInt(SymInt<'a>),
    SymInts(Vec<SymInt<'a>>),
    /// A symbolic truth value or fraction; only checks of sizes make these.
    Symbolic,
    Float(f64),
    Floats(Vec<f64>),
    Bool(bool),
    Text(Cow<'a, str>),
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
        let arg = match kind.0.as_ref() {
            "as_tensor" => Arg::Tensor(map.next_value::<Name>()?.name),
            "as_tensors" => {
                let names = map.next_value::<Vec<Name>>()?;
                Arg::Tensors(names.into_iter().map(|name| name.name).collect())
            }
            "as_optional_tensors" => {
                let items = map.next_value::<Vec<OptionalName>>()?;
                let name = |item| match item {
                    OptionalName::AsTensor(name) => Some(name.name),
                    OptionalName::AsNone(_) => None,
                };
                Arg::OptionalTensors(items.into_iter().map(name).collect())
            }
            "as_int" => Arg::Int(map.next_value()?),
            "as_ints" => Arg::Ints(map.next_value()?),
            "as_sym_int" => Arg::SymInt(map.next_value()?),
            "as_sym_ints" => Arg::SymInts(map.next_value()?),
            "as_float" => Arg::Float(map.next_value::<Float>()?.0),
            "as_floats" => {
                let values = map.next_value::<Vec<Float>>()?;
                Arg::Floats(values.into_iter().map(|value| value.0).collect())
            }
            "as_bool" => Arg::Bool(map.next_value()?),
            "as_string" => Arg::Text(map.next_value::<Text<'de>>()?.0),
            "as_scalar_type" => Arg::ScalarType(map.next_value()?),
            "as_memory_format" => Arg::MemoryFormat(map.next_value()?),
            "as_graph" => Arg::Graph(map.next_value()?),
            "as_sym_bool" | "as_sym_float" => {
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

/// A string that borrows where it can.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

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
                #[expect(clippy::cast_precision_loss, reason = "such attributes are small")]
                Ok(Float(value as f64))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Float, E> {
                #[expect(clippy::cast_precision_loss, reason = "such attributes are small")]
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

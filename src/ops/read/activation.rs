//! Elementwise functions of one tensor, and dropout.

use super::Lowered;
use crate::aten::Arguments;
use crate::ops::Op;
use crate::program::{Placement, Unary};

/// Functions by the names of their operators, without `aten.`, `.default` and trailing underscore.
const FUNCTIONS: &[(&str, Unary)] = &[
    ("celu", Unary::Elu),
    ("cos", Unary::Cos),
    ("elu", Unary::Elu),
    ("gelu", Unary::Gelu),
    ("hardsigmoid", Unary::Hardsigmoid),
    ("hardswish", Unary::Hardswish),
    ("hardtanh", Unary::Hardtanh),
    ("leaky_relu", Unary::LeakyRelu),
    ("log_sigmoid", Unary::LogSigmoid),
    ("mish", Unary::Mish),
    ("relu", Unary::Relu),
    ("relu6", Unary::Relu6),
    ("rsqrt", Unary::Rsqrt),
    ("selu", Unary::Elu),
    ("sigmoid", Unary::Sigmoid),
    ("silu", Unary::Silu),
    ("sin", Unary::Sin),
    ("softplus", Unary::Softplus),
    ("tanh", Unary::Tanh),
    ("threshold", Unary::Threshold),
];

/// Operators of this file that are not in [`FUNCTIONS`].
const DROPOUTS: &[&str] = &["dropout", "feature_dropout"];

/// The names that a misspelt operator may have meant.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let functions = FUNCTIONS.iter().map(|(name, _)| *name);
    functions.chain(DROPOUTS.iter().copied())
}

/// What a node does, or `None` for an operator of another family.
pub(super) fn lower(target: &str, args: &Arguments<'_>) -> Result<Option<Lowered>, String> {
    let name = target.strip_prefix("aten.");
    let Some(name) = name.and_then(|name| name.strip_suffix(".default")) else {
        return Ok(None);
    };
    let (name, in_place) = match name.strip_suffix('_') {
        Some(name) => (name, Placement::InPlace),
        None => (name, Placement::New),
    };
    if DROPOUTS.contains(&name) {
        let (p, train) = (args.number("p")?, args.flag("train", true)?);
        let op = match (name, in_place) {
            ("dropout", Placement::New) => Op::Dropout { p, train },
            (name, in_place) => Op::NoiseDropout {
                p,
                train,
                in_place,
                features: name == "feature_dropout",
            },
        };
        let operand = if args.has("input") { "input" } else { "self" };
        return Ok(Some((op, vec![args.tensor(operand)?])));
    }
    let Some((_, function)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
        return Ok(None);
    };
    let function = match function {
        Unary::Gelu => match args.text("approximate", "none")? {
            "none" => Unary::Gelu,
            "tanh" => Unary::GeluTanh,
            other => return Err(format!("its argument \"approximate\" is {other:?}")),
        },
        Unary::Hardtanh
            if args.number_or("min_val", -1.0)?.eq(&0.0)
                && args.number_or("max_val", 1.0)?.eq(&6.0) =>
        {
            Unary::Relu6
        }
        other => *other,
    };
    let op = Op::Unary { function, in_place };
    Ok(Some((op, vec![args.tensor("self")?])))
}

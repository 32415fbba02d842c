//! Elementwise operators of tensors and numbers.

use super::Lowered;
use crate::aten::Arguments;
use crate::ops::{Function, Op, Pointwise};
use crate::program::Placement;

/// How the arguments of an operator become operands.
#[derive(Clone, Copy)]
enum Form {
    /// These arguments, each a tensor or a number.
    Operands(&'static [&'static str]),
    /// `self`, and bounds that count their number.
    Bounds,
}

const ONE: Form = Form::Operands(&["self"]);
const TWO: Form = Form::Operands(&["self", "other"]);
const POWER: Form = Form::Operands(&["self", "exponent"]);
const WHERE: Form = Form::Operands(&["condition", "self", "other"]);
const FILL: Form = Form::Operands(&["self", "mask", "value"]);

/// Operators by their names without `aten.`, overload and trailing underscore.
const FAMILIES: &[(&str, Function, Form)] = &[
    ("sub", Function::Sub, TWO),
    ("subtract", Function::Sub, TWO),
    ("rsub", Function::SubFrom, TWO),
    ("add", Function::Add, TWO),
    ("mul", Function::Mul, TWO),
    ("multiply", Function::Mul, TWO),
    ("div", Function::Div, TWO),
    ("divide", Function::Div, TWO),
    ("true_divide", Function::Div, TWO),
    ("floor_divide", Function::Quotient, TWO),
    ("remainder", Function::Remainder, TWO),
    ("fmod", Function::Remainder, TWO),
    ("minimum", Function::Minimum, TWO),
    ("maximum", Function::Maximum, TWO),
    ("min", Function::Minimum, TWO),
    ("max", Function::Maximum, TWO),
    ("pow", Function::Pow, POWER),
    ("clamp", Function::Clamp(2), Form::Bounds),
    ("clip", Function::Clamp(2), Form::Bounds),
    ("clamp_min", Function::Clamp(1), ONE),
    ("clamp_max", Function::Clamp(1), ONE),
    ("eq", Function::Truth, TWO),
    ("ne", Function::Truth, TWO),
    ("lt", Function::Truth, TWO),
    ("le", Function::Truth, TWO),
    ("gt", Function::Truth, TWO),
    ("ge", Function::Truth, TWO),
    ("isnan", Function::Truth, ONE),
    ("isinf", Function::Truth, ONE),
    ("isfinite", Function::Truth, ONE),
    ("logical_not", Function::Truth, ONE),
    ("logical_and", Function::Truth, TWO),
    ("logical_or", Function::Truth, TWO),
    ("logical_xor", Function::Truth, TWO),
    ("bitwise_not", Function::Bitwise, ONE),
    ("bitwise_and", Function::Bitwise, TWO),
    ("bitwise_or", Function::Bitwise, TWO),
    ("bitwise_xor", Function::Bitwise, TWO),
    ("__and__", Function::Bitwise, TWO),
    ("__or__", Function::Bitwise, TWO),
    ("__xor__", Function::Bitwise, TWO),
    ("__lshift__", Function::Bitwise, TWO),
    ("__rshift__", Function::Bitwise, TWO),
    ("where", Function::Where, WHERE),
    ("masked_fill", Function::MaskedFill, FILL),
    ("fill", Function::Fill, ONE),
    ("bernoulli", Function::Fill, ONE),
    ("uniform", Function::Fill, ONE),
    ("normal", Function::Fill, ONE),
    ("zero", Function::Fill, ONE),
    ("copy", Function::CopyInto, Form::Operands(&["self", "src"])),
    ("abs", Function::Abs, ONE),
    ("sign", Function::Step, ONE),
    ("floor", Function::Step, ONE),
    ("ceil", Function::Step, ONE),
    ("round", Function::Step, ONE),
    ("trunc", Function::Step, ONE),
    ("neg", Function::Neg, ONE),
    ("exp", Function::Exp, ONE),
    ("exp2", Function::Exp2, ONE),
    ("expm1", Function::Expm1, ONE),
    ("log", Function::Log, ONE),
    ("log1p", Function::Log1p, ONE),
    ("sqrt", Function::Sqrt, ONE),
    ("reciprocal", Function::Reciprocal, ONE),
    ("erf", Function::Erf, ONE),
    ("tan", Function::Tan, ONE),
];

/// Overloads whose arguments are not those of the family's others.
const OTHERS: &[&str] = &[
    "aten.max.dim",
    "aten.min.dim",
    "aten.max.default",
    "aten.min.default",
];

/// The names that a misspelt operator may have meant.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, ..)| *name)
}

fn family(target: &str) -> Option<(Function, Form, Placement)> {
    if OTHERS.contains(&target) {
        return None;
    }
    let name = target.strip_prefix("aten.")?;
    let (name, overload) = name.split_once('.')?;
    if overload.contains("out") {
        return None;
    }
    let find = |name: &str| FAMILIES.iter().find(|(known, ..)| *known == name);
    let placed = match (find(name), name.strip_suffix('_').and_then(find)) {
        (Some(family), _) => (family, Placement::New),
        (None, Some(family)) => (family, Placement::InPlace),
        (None, None) => return None,
    };
    let ((_, function, form), placement) = placed;
    Some((*function, *form, placement))
}

/// What a node does, or `None` for an operator of another family.
pub(super) fn lower(target: &str, args: &Arguments<'_>) -> Result<Option<Lowered>, String> {
    let Some((mut function, form, placement)) = family(target) else {
        return Ok(None);
    };
    let names: &[&str] = match form {
        Form::Operands(names) => names,
        Form::Bounds => &["self"],
    };
    let mut operands = Vec::new();
    let mut number = None;
    for name in names {
        if !args.has(name) {
            continue;
        }
        match args.number_kind(name) {
            Some(kind) => number = Some(kind),
            None => operands.push(args.tensor(name)?),
        }
    }
    if let Form::Bounds = form {
        let bounds = ["min", "max"].into_iter().filter(|name| args.has(name));
        function = Function::Clamp(if bounds.count() == 2 { 2 } else { 1 });
        for name in ["min", "max"].into_iter().filter(|name| args.has(name)) {
            match args.number_kind(name) {
                Some(kind) => number = number.max(Some(kind)),
                None => operands.push(args.tensor(name)?),
            }
        }
    }
    match function {
        // An offset times a factor: the product is not a tensor of its own.
        Function::Add | Function::Sub if args.has("alpha") => args.always("alpha", 1.0)?,
        Function::Div if args.text("rounding_mode", "none")? != "none" => {
            function = Function::Quotient;
        }
        Function::Pow if args.number_kind("self").is_some() => function = Function::PowOf,
        // The type of what is filled in does not count.
        Function::MaskedFill | Function::Fill | Function::CopyInto => number = None,
        _ => {}
    }
    if operands.is_empty() {
        return Err("it reads no tensor".into());
    }
    if placement == Placement::InPlace && args.number_kind("self").is_some() {
        return Err("it writes over a number".into());
    }
    let op = Pointwise {
        function,
        placement,
        number,
    };
    Ok(Some((Op::Pointwise(op), operands)))
}

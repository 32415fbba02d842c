//! Reading elementwise operators of tensors and numbers.

use super::{Function, Pointwise};
use crate::aten::Arguments;
use crate::ops::{Read, Reader};
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

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.sub.Tensor", read),
    ("aten.sub.Scalar", read),
    ("aten.sub_.Tensor", read),
    ("aten.sub_.Scalar", read),
    ("aten.subtract.Tensor", read),
    ("aten.subtract.Scalar", read),
    ("aten.subtract_.Tensor", read),
    ("aten.subtract_.Scalar", read),
    ("aten.rsub.Tensor", read),
    ("aten.rsub.Scalar", read),
    ("aten.add.Scalar", read),
    ("aten.add_.Scalar", read),
    ("aten.mul.Scalar", read),
    ("aten.mul_.Tensor", read),
    ("aten.mul_.Scalar", read),
    ("aten.multiply.Tensor", read),
    ("aten.multiply.Scalar", read),
    ("aten.multiply_.Tensor", read),
    ("aten.multiply_.Scalar", read),
    ("aten.div.Tensor", read),
    ("aten.div.Scalar", read),
    ("aten.div.Tensor_mode", read),
    ("aten.div.Scalar_mode", read),
    ("aten.div_.Tensor", read),
    ("aten.div_.Tensor_mode", read),
    ("aten.div_.Scalar", read),
    ("aten.div_.Scalar_mode", read),
    ("aten.divide.Tensor", read),
    ("aten.divide.Scalar", read),
    ("aten.divide.Tensor_mode", read),
    ("aten.divide.Scalar_mode", read),
    ("aten.divide_.Tensor", read),
    ("aten.divide_.Tensor_mode", read),
    ("aten.divide_.Scalar_mode", read),
    ("aten.divide_.Scalar", read),
    ("aten.true_divide.Tensor", read),
    ("aten.true_divide.Scalar", read),
    ("aten.true_divide_.Tensor", read),
    ("aten.true_divide_.Scalar", read),
    ("aten.floor_divide.default", read),
    ("aten.floor_divide.Scalar", read),
    ("aten.floor_divide_.Tensor", read),
    ("aten.floor_divide_.Scalar", read),
    ("aten.remainder.Tensor", read),
    ("aten.remainder.Scalar", read),
    ("aten.remainder.Scalar_Tensor", read),
    ("aten.remainder_.Tensor", read),
    ("aten.remainder_.Scalar", read),
    ("aten.fmod.Tensor", read),
    ("aten.fmod.Scalar", read),
    ("aten.fmod_.Tensor", read),
    ("aten.fmod_.Scalar", read),
    ("aten.minimum.default", read),
    ("aten.maximum.default", read),
    ("aten.min.other", read),
    ("aten.max.other", read),
    ("aten.pow.Tensor_Tensor", read),
    ("aten.pow.Scalar", read),
    ("aten.pow_.Scalar", read),
    ("aten.pow_.Tensor", read),
    ("aten.clamp.default", read),
    ("aten.clamp.Tensor", read),
    ("aten.clamp_.default", read),
    ("aten.clamp_.Tensor", read),
    ("aten.clip.default", read),
    ("aten.clip.Tensor", read),
    ("aten.clip_.default", read),
    ("aten.clip_.Tensor", read),
    ("aten.clamp_min.default", read),
    ("aten.clamp_min.Tensor", read),
    ("aten.clamp_min_.default", read),
    ("aten.clamp_min_.Tensor", read),
    ("aten.clamp_max.default", read),
    ("aten.clamp_max.Tensor", read),
    ("aten.clamp_max_.default", read),
    ("aten.clamp_max_.Tensor", read),
    ("aten.eq.Tensor", read),
    ("aten.eq.Scalar", read),
    ("aten.eq_.Scalar", read),
    ("aten.eq_.Tensor", read),
    ("aten.ne.Tensor", read),
    ("aten.ne.Scalar", read),
    ("aten.ne_.Scalar", read),
    ("aten.ne_.Tensor", read),
    ("aten.lt.Tensor", read),
    ("aten.lt.Scalar", read),
    ("aten.lt_.Scalar", read),
    ("aten.lt_.Tensor", read),
    ("aten.le.Tensor", read),
    ("aten.le.Scalar", read),
    ("aten.le_.Scalar", read),
    ("aten.le_.Tensor", read),
    ("aten.gt.Tensor", read),
    ("aten.gt.Scalar", read),
    ("aten.gt_.Scalar", read),
    ("aten.gt_.Tensor", read),
    ("aten.ge.Tensor", read),
    ("aten.ge.Scalar", read),
    ("aten.ge_.Scalar", read),
    ("aten.ge_.Tensor", read),
    ("aten.isnan.default", read),
    ("aten.isinf.default", read),
    ("aten.isfinite.default", read),
    ("aten.logical_not.default", read),
    ("aten.logical_not_.default", read),
    ("aten.logical_and.default", read),
    ("aten.logical_and_.default", read),
    ("aten.logical_or.default", read),
    ("aten.logical_or_.default", read),
    ("aten.logical_xor.default", read),
    ("aten.logical_xor_.default", read),
    ("aten.bitwise_not.default", read),
    ("aten.bitwise_not_.default", read),
    ("aten.bitwise_and.Tensor", read),
    ("aten.bitwise_and.Scalar", read),
    ("aten.bitwise_and.Scalar_Tensor", read),
    ("aten.bitwise_and_.Tensor", read),
    ("aten.bitwise_and_.Scalar", read),
    ("aten.bitwise_or.Tensor", read),
    ("aten.bitwise_or.Scalar", read),
    ("aten.bitwise_or.Scalar_Tensor", read),
    ("aten.bitwise_or_.Tensor", read),
    ("aten.bitwise_or_.Scalar", read),
    ("aten.bitwise_xor.Tensor", read),
    ("aten.bitwise_xor.Scalar", read),
    ("aten.bitwise_xor.Scalar_Tensor", read),
    ("aten.bitwise_xor_.Tensor", read),
    ("aten.bitwise_xor_.Scalar", read),
    ("aten.__and__.Scalar", read),
    ("aten.__and__.Tensor", read),
    ("aten.__or__.Tensor", read),
    ("aten.__or__.Scalar", read),
    ("aten.__xor__.Tensor", read),
    ("aten.__xor__.Scalar", read),
    ("aten.__lshift__.Tensor", read),
    ("aten.__lshift__.Scalar", read),
    ("aten.__rshift__.Tensor", read),
    ("aten.__rshift__.Scalar", read),
    ("aten.where.self", read),
    ("aten.where.ScalarOther", read),
    ("aten.where.ScalarSelf", read),
    ("aten.where.Scalar", read),
    ("aten.masked_fill.Scalar", read),
    ("aten.masked_fill.Tensor", read),
    ("aten.masked_fill_.Scalar", read),
    ("aten.masked_fill_.Tensor", read),
    ("aten.fill.Scalar", read),
    ("aten.fill.Tensor", read),
    ("aten.fill_.Scalar", read),
    ("aten.fill_.Tensor", read),
    ("aten.bernoulli.default", read),
    ("aten.bernoulli.p", read),
    ("aten.bernoulli.Tensor", read),
    ("aten.bernoulli_.Tensor", read),
    ("aten.bernoulli_.float", read),
    ("aten.uniform.default", read),
    ("aten.uniform_.default", read),
    ("aten.normal.Tensor_float", read),
    ("aten.normal.Tensor_Tensor", read),
    ("aten.normal_.default", read),
    ("aten.zero.default", read),
    ("aten.zero_.default", read),
    ("aten.copy.default", read),
    ("aten.copy_.default", read),
    ("aten.copy_.Tensor", read),
    ("aten.abs.default", read),
    ("aten.abs_.default", read),
    ("aten.sign.default", read),
    ("aten.sign_.default", read),
    ("aten.floor.default", read),
    ("aten.floor_.default", read),
    ("aten.ceil.default", read),
    ("aten.ceil_.default", read),
    ("aten.round.default", read),
    ("aten.round.decimals", read),
    ("aten.round_.default", read),
    ("aten.round_.decimals", read),
    ("aten.trunc.default", read),
    ("aten.trunc_.default", read),
    ("aten.neg_.default", read),
    ("aten.exp.default", read),
    ("aten.exp_.default", read),
    ("aten.exp2.default", read),
    ("aten.exp2_.default", read),
    ("aten.expm1.default", read),
    ("aten.expm1_.default", read),
    ("aten.log.default", read),
    ("aten.log_.default", read),
    ("aten.log1p.default", read),
    ("aten.log1p_.default", read),
    ("aten.sqrt.default", read),
    ("aten.sqrt_.default", read),
    ("aten.reciprocal.default", read),
    ("aten.reciprocal_.default", read),
    ("aten.erf.default", read),
    ("aten.erf_.default", read),
    ("aten.tan.default", read),
    ("aten.tan_.default", read),
];

pub(in crate::ops) fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let name = args.target.strip_prefix("aten.").unwrap_or(args.target);
    let name = name.split_once('.').map_or(name, |(name, _)| name);
    let placement = args.placement();
    let find = |name: &str| FAMILIES.iter().find(|(known, ..)| *known == name);
    let family = find(name).or_else(|| name.strip_suffix('_').and_then(find));
    let (_, function, form) = family.ok_or_else(|| format!("{name} is no such function"))?;
    let (mut function, form) = (*function, *form);
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
    Ok((op.into(), operands))
}

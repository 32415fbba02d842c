//! Reading elementwise functions of one tensor.

use super::{Function, Unary};
use crate::aten::Arguments;
use crate::ops::{Read, Reader};


/// Functions by the names of their operators, without `aten.`, `.default` and trailing underscore.
const FUNCTIONS: &[(&str, Function)] = &[
    ("celu", Function::Elu),
    ("cos", Function::Cos),
    ("elu", Function::Elu),
    ("gelu", Function::Gelu),
    ("hardsigmoid", Function::Hardsigmoid),
    ("hardswish", Function::Hardswish),
    ("hardtanh", Function::Hardtanh),
    ("leaky_relu", Function::LeakyRelu),
    ("log_sigmoid", Function::LogSigmoid),
    ("mish", Function::Mish),
    ("relu", Function::Relu),
    ("relu6", Function::Relu6),
    ("rsqrt", Function::Rsqrt),
    ("selu", Function::Elu),
    ("sigmoid", Function::Sigmoid),
    ("silu", Function::Silu),
    ("sin", Function::Sin),
    ("softplus", Function::Softplus),
    ("tanh", Function::Tanh),
    ("threshold", Function::Threshold),
];

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.celu.default", read),
    ("aten.celu_.default", read),
    ("aten.cos.default", read),
    ("aten.cos_.default", read),
    ("aten.elu.default", read),
    ("aten.elu_.default", read),
    ("aten.gelu.default", read),
    ("aten.gelu_.default", read),
    ("aten.hardsigmoid.default", read),
    ("aten.hardsigmoid_.default", read),
    ("aten.hardswish.default", read),
    ("aten.hardswish_.default", read),
    ("aten.hardtanh.default", read),
    ("aten.hardtanh_.default", read),
    ("aten.leaky_relu.default", read),
    ("aten.leaky_relu_.default", read),
    ("aten.log_sigmoid.default", read),
    ("aten.mish.default", read),
    ("aten.mish_.default", read),
    ("aten.relu.default", read),
    ("aten.relu_.default", read),
    ("aten.relu6.default", read),
    ("aten.relu6_.default", read),
    ("aten.rsqrt.default", read),
    ("aten.rsqrt_.default", read),
    ("aten.selu.default", read),
    ("aten.selu_.default", read),
    ("aten.sigmoid.default", read),
    ("aten.sigmoid_.default", read),
    ("aten.silu.default", read),
    ("aten.silu_.default", read),
    ("aten.sin.default", read),
    ("aten.sin_.default", read),
    ("aten.softplus.default", read),
    ("aten.tanh.default", read),
    ("aten.tanh_.default", read),
    ("aten.threshold.default", read),
    ("aten.threshold_.default", read),
];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let name = args.target.strip_prefix("aten.").unwrap_or(args.target);
    let name = name.split_once('.').map_or(name, |(name, _)| name);
    let placement = args.placement();
    let name = name.strip_suffix('_').unwrap_or(name);
    let function = FUNCTIONS.iter().find(|(known, _)| *known == name);
    let (_, function) = function.ok_or_else(|| format!("{name} is no such function"))?;
    let function = match function {
        Function::Gelu => match args.text("approximate", "none")? {
            "none" => Function::Gelu,
            "tanh" => Function::GeluTanh,
            other => return Err(format!("its argument \"approximate\" is {other:?}")),
        },
        Function::Hardtanh
            if args.number_or("min_val", -1.0)?.eq(&0.0)
                && args.number_or("max_val", 1.0)?.eq(&6.0) =>
        {
            Function::Relu6
        }
        other => *other,
    };
    let unary = Unary {
        function,
        placement,
    };
    Ok((unary.into(), vec![args.tensor("self")?]))
}

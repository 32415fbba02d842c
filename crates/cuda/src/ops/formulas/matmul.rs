//! Matrix products.

use super::Written;
use crate::ops::prelude::*;

/// A matrix product, with leading dimensions that broadcast.
pub(super) fn product(operands: &Operands<'_>) -> Result<Written, LaunchError> {
    let (a, b, out) = (operands.input(0)?, operands.input(1)?, operands.output(0)?);
    let rank = out.shape.len();
    let seen = |operand: &Operand| {
        let (own, matrix) = operand.shape.split_at(operand.shape.len().checked_sub(2)?);
        let leading = Operand {
            shape: own.to_vec(),
            strides: operand.strides[..own.len()].to_vec(),
            ..operand.clone()
        };
        let around = out.shape.get(..rank.checked_sub(2)?)?;
        Some(Operand {
            shape: [around, matrix].concat(),
            strides: [
                &leading.strides_under(around)?[..],
                &operand.strides[own.len()..],
            ]
            .concat(),
            ..operand.clone()
        })
    };
    let mismatch = || {
        operands.failed(format!(
            "{:?} times {:?} is not {:?}",
            a.shape, b.shape, out.shape
        ))
    };
    let (a, b) = (seen(a).ok_or_else(mismatch)?, seen(b).ok_or_else(mismatch)?);
    let mut inputs = vec![a, b];
    let mut names = vec!["a", "b"];
    let mut start = "0";
    if let Some(bias) = operands.optional_input(2) {
        names.push("bias");
        inputs.push(bias.clone());
        start = "bias(i[R - 1])";
    }
    let body = format!(
        "const int R = {rank}; T s = 0; I of_a[R], of_b[R];
    for (int d = 0; d < R; ++d) of_a[d] = of_b[d] = i[d];
    for (I k = 0; k < (I)a.size(R - 1); ++k) {{ of_a[R - 1] = of_b[R - 2] = k; s += (T)a.at(of_a) * (T)b.at(of_b); }}
    y.set_at(s + (T){start}, i);"
    );
    let over = names.len();
    let form = Form::each(over, body);
    Ok(Written {
        generated: Generated::of("matmul", names, ["y"], form),
        inputs,
        outputs: vec![out.clone()],
    })
}

//! `softmax` and `log_softmax`.

mod run;

use crate::ops::prelude::*;

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.softmax.int", |args| softmax(args, "softmax")),
    ("aten.log_softmax.int", |args| softmax(args, "log_softmax")),
];

/// `softmax(input, dim, dtype)`, or its logarithm.
fn softmax(args: &Arguments<'_>, name: &'static str) -> Result<Read, String> {
    let input = args.tensor("self")?;
    let dim = args.dim("dim", None, args.shape(input).len())?;
    let softmax = Function {
        name,
        arguments: (dim, name == "log_softmax", args.dtype("dtype")?),
        infer: |(.., dtype), x| Ok(vec![(dtype.unwrap_or(x[0].0), x[0].1.clone())]),
        run: |&(dim, log, dtype), eager, x, _| Ok(vec![eager.softmax(&x[0], (dim, log), dtype)?]),
    };
    Ok(softmax.on(vec![input]))
}

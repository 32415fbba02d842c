//! Attention, a row of threads for each query and for each key, of heads up to 1024 wide and in any layout. Slow beside
//! the tuned kernels: for what those do not take.

use super::Written;
use crate::ops::prelude::*;

/// Wider heads do not fit the threads' registers.
const WIDEST: u64 = 1024;

/// What all formulas begin with: how many of a row's elements each thread keeps. Elements are `j`, of which a thread's
/// s-th is `lane + s * LANES`.
const KEPT: &str = "
    const int KEPT = (1024 + LANES - 1) / LANES;";

/// A row is a query. Keys and values are reached from their first, by steps.
const FORWARD: &str = include_str!("attention/forward.cu");

/// A row is a query too.
const GRAD_QUERY: &str = include_str!("attention/grad_query.cu");

/// A row is a key, which all queries of its heads attend to.
const GRAD_KEY: &str = include_str!("attention/grad_key.cu");

/// Four-dimensional operands of a call with fewer key heads than query heads, or as many.
struct Heads {
    samples: u64,
    /// Key heads.
    shared: u64,
    /// Query heads of a key head.
    group: u64,
}

impl Heads {
    /// An operand with query heads, seen as samples, key heads, heads of a group, positions, width: the first element
    /// of each row unless `whole`.
    fn of_queries(&self, operand: &Operand, positions: u64, whole: bool) -> Operand {
        let s = &operand.strides;
        let width = operand.shape.get(3).filter(|_| whole).copied().unwrap_or(1);
        Operand {
            shape: vec![self.samples, self.shared, self.group, positions, width],
            strides: vec![
                s[0],
                s[1] * self.group,
                s[1],
                s[2],
                s.get(3).copied().unwrap_or(0),
            ],
            ..operand.clone()
        }
    }

    /// The first key's, as it broadcasts to queries.
    fn of_first_key(&self, operand: &Operand) -> Operand {
        Operand {
            shape: vec![self.samples, self.shared, 1, 1, 1],
            strides: vec![operand.strides[0], operand.strides[1], 0, 0, 0],
            ..operand.clone()
        }
    }

    /// The first element of the first query of the first head of a group, as it broadcasts to keys.
    fn of_first_query(&self, operand: &Operand) -> Operand {
        Operand {
            shape: vec![self.samples, self.shared, 1, 1],
            strides: vec![operand.strides[0], operand.strides[1] * self.group, 0, 0],
            ..operand.clone()
        }
    }

    /// The first element of each key's row.
    fn of_keys(operand: &Operand) -> Operand {
        let mut shape = operand.shape.clone();
        shape[3] = 1;
        Operand {
            shape,
            ..operand.clone()
        }
    }
}

/// The formulas of an attention without dropout, or of its gradient.
#[expect(clippy::too_many_lines, reason = "three formulas and their steps")]
pub(super) fn formulas_of(operands: &Operands<'_>) -> Result<Option<Vec<Written>>, LaunchError> {
    let (is_gradient, causal, dropout, scale) = match *operands.kernel() {
        Kernel::Attention {
            causal,
            dropout,
            scale,
        } => (false, causal, dropout, scale),
        Kernel::AttentionGrad {
            causal,
            dropout,
            scale,
        } => (true, causal, dropout, scale),
        _ => return Ok(None),
    };
    if dropout > 0.0 {
        return Err(operands.unsupported("dropout in heads of such a layout"));
    }
    let most_inputs = if is_gradient { 6 } else { 3 };
    if operands.inputs().len() > most_inputs {
        return Err(operands.unsupported("a mask over heads of such a layout"));
    }
    let first = usize::from(is_gradient);
    let [query, key, value] = [first, first + 1, first + 2].map(|at| operands.input(at));
    let (query, key, value) = (query?, key?, value?);
    let (&[samples, heads, queries, own], &[_, key_heads, keys, _], &[_, _, _, width]) =
        (&query.shape[..], &key.shape[..], &value.shape[..])
    else {
        return Err(operands.failed(format!("{:?} is not four-dimensional", query.shape)));
    };
    if own.max(width) > WIDEST {
        return Err(operands.unsupported("heads wider than 1024"));
    }
    if key_heads == 0 || !heads.is_multiple_of(key_heads) {
        return Err(operands.failed(format!("{heads} heads share {key_heads}")));
    }
    let seen = Heads {
        samples,
        shared: key_heads,
        group: heads / key_heads,
    };
    let finished = |mut generated: Generated, steps: &[(&'static str, u64)]| {
        let common = [("queries", queries), ("keys", keys), ("width", width)];
        for (name, step) in common.iter().chain(steps) {
            generated = generated.with(name, Number::Whole(step.cast_signed()));
        }
        generated
            .with("causal", Number::Truth(causal))
            .with("scale", Number::Real(scale))
    };
    let steps_of_keys = [
        ("key_step", key.strides[2]),
        ("key_next", key.strides[3]),
        ("value_step", value.strides[2]),
        ("value_next", value.strides[3]),
    ];
    if !is_gradient {
        let out = operands.output(0)?;
        let mut outputs = vec![seen.of_queries(out, queries, false)];
        let mut names = vec!["out"];
        let mut body = format!("{KEPT}{TYPE}{FORWARD}", TYPE = type_of("out"));
        if let Some(sums) = operands.outputs().get(1) {
            outputs.push(seen.of_queries(sums, queries, false));
            names.push("sums");
            body.push_str("\n    if (is_first) sums.set(top + log(total), 0);");
        }
        let inputs = ["query", "key", "value"];
        let generated = Generated::rows("scaled_dot_product_attention", inputs, names, [4], body);
        let generated = finished(generated, &steps_of_keys).with("out_next", whole(out.strides[3]));
        return Ok(Some(vec![Written {
            generated,
            inputs: vec![
                seen.of_queries(query, queries, true),
                seen.of_first_key(key),
                seen.of_first_key(value),
            ],
            outputs,
        }]));
    }
    let (grad, out, sums) = (operands.input(0)?, operands.input(4)?, operands.input(5)?);
    let grads = [0, 1, 2].map(|at| operands.output(at));
    let [grad_query, grad_key, grad_value] = grads;
    let (grad_query, grad_key, grad_value) = (grad_query?, grad_key?, grad_value?);
    let name = "scaled_dot_product_attention";
    let inputs = ["query", "key", "value", "grad", "out", "sums"];
    let generated = Generated::rows(
        name,
        inputs,
        ["grad_query"],
        [4],
        format!("{KEPT}{GRAD_QUERY}"),
    );
    let of_query = Written {
        generated: finished(generated, &steps_of_keys)
            .with("grad_next", whole(grad.strides[3]))
            .with("out_next", whole(out.strides[3])),
        inputs: vec![
            seen.of_queries(query, queries, true),
            seen.of_first_key(key),
            seen.of_first_key(value),
            seen.of_queries(grad, queries, false),
            seen.of_queries(out, queries, false),
            seen.of_queries(sums, queries, false),
        ],
        outputs: vec![seen.of_queries(grad_query, queries, true)],
    };
    let inputs = ["key", "value", "query", "grad", "out", "sums"];
    let body = format!("{KEPT}{TYPE}{GRAD_KEY}", TYPE = type_of("grad_value"));
    let generated = Generated::rows(name, inputs, ["grad_key", "grad_value"], [3], body);
    let steps = [
        ("heads", seen.group),
        ("query_head", query.strides[1]),
        ("query_step", query.strides[2]),
        ("query_next", query.strides[3]),
        ("grad_head", grad.strides[1]),
        ("grad_step", grad.strides[2]),
        ("grad_next", grad.strides[3]),
        ("out_head", out.strides[1]),
        ("out_step", out.strides[2]),
        ("out_next", out.strides[3]),
        ("sums_head", sums.strides[1]),
        ("sums_step", sums.strides[2]),
        ("value_next", value.strides[3]),
        ("grad_value_next", grad_value.strides[3]),
    ];
    let of_key = Written {
        generated: finished(generated, &steps),
        inputs: vec![
            key.clone(),
            Heads::of_keys(value),
            seen.of_first_query(query),
            seen.of_first_query(grad),
            seen.of_first_query(out),
            seen.of_first_query(sums),
        ],
        outputs: vec![grad_key.clone(), Heads::of_keys(grad_value)],
    };
    Ok(Some(vec![of_query, of_key]))
}

fn whole(step: u64) -> Number {
    Number::Whole(step.cast_signed())
}

/// The type `O` in which an operand's elements lie.
fn type_of(operand: &str) -> String {
    format!("\n    typedef typename Element<decltype({operand})>::Type O;")
}

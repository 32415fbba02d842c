//! `scaled_dot_product_attention`.

mod math;
mod run;
mod sizes;

use crate::ops::prelude::*;

/// `scaled_dot_product_attention(query, key, value[, mask])`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Attention {
    /// Whether later positions are hidden.
    pub causal: bool,
    /// Share of attention weights dropped.
    pub dropout: f64,
    /// Whether fewer key and value heads than query heads are repeated; else they broadcast.
    pub grouped: bool,
    /// What scores are multiplied by, where it is not one over the root of the heads' width.
    pub scale: Option<f64>,
}

pub(super) const ATEN: &[(&str, Reader)] =
    &[("aten.scaled_dot_product_attention.default", |args| {
        let attention = Attention {
            scale: args.if_given("scale", |name| args.number(name))?,
            causal: args.flag("is_causal", false)?,
            dropout: args.number_or("dropout_p", 0.0)?,
            grouped: args.flag("enable_gqa", false)?,
        };
        let operands = args.all_and(&["query", "key", "value"], &["attn_mask"])?;
        Ok((attention.into(), operands))
    })];

impl Operator for Attention {
    fn name(&self) -> &'static str {
        "scaled_dot_product_attention"
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shapes: Vec<&[Extent]> = operands.iter().map(|(_, shape)| shape.as_slice()).collect();
        Ok(vec![(operands[0].0, attend(&shapes, self.grouped)?)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let asked = if context.inference {
            Attention {
                dropout: 0.0,
                ..*self
            }
        } else {
            *self
        };
        let [query, key, value] = [0, 1, 2].map(|at| &operands[at]);
        Ok(vec![eager.attention(
            [query, key, value],
            operands.get(3),
            asked,
        )?])
    }
}

/// Attention of other than four dimensions: of equally many matrices.
fn attend_in_stacks(operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let problem = || format!("{operands:?} do not fit together");
    let split = |shape: &[Extent]| {
        let (lead, matrix) = shape.split_at_checked(shape.len().checked_sub(2)?)?;
        Some((lead.to_vec(), matrix[0], matrix[1]))
    };
    let all = operands.iter().take(3).map(|shape| split(shape));
    let all = all.collect::<Option<Vec<_>>>().ok_or_else(problem)?;
    let [
        (lead, rows, width),
        (of_keys, keys, key_width),
        (of_values, values, value_width),
    ] = all.try_into().map_err(|_| problem())?;
    if lead != of_keys || lead != of_values || width != key_width || keys != values {
        return Err(problem());
    }
    let scores = [&lead[..], &[rows, keys]].concat();
    if let Some(mask) = operands.get(3)
        && (mask.is_empty() || broadcast(mask, &scores)? != scores)
    {
        return Err(format!("the mask {mask:?} does not fit scores {scores:?}"));
    }
    Ok([&lead[..], &[rows, value_width]].concat())
}

fn attend(operands: &[&[Extent]], grouped: bool) -> Result<Vec<Extent>, Mismatch> {
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    if q.len() != 4 {
        return attend_in_stacks(operands);
    }
    let heads = |shape: &[Extent]| shape[1].as_fixed().filter(|heads| *heads > 0);
    let fits = [q, k, v].iter().all(|shape| shape.len() == 4)
        && q[0] == k[0]
        && k[..3] == v[..3]
        && q[3] == k[3]
        && match (heads(q), heads(k)) {
            // One head is broadcast to all; several are repeated only where that is asked for.
            (Some(of_q), Some(of_k)) => {
                of_q == of_k || of_k == 1 || (grouped && of_q.is_multiple_of(of_k))
            }
            _ => q[1] == k[1],
        };
    if !fits {
        return Err(format!(
            "query {q:?}, key {k:?} and value {v:?} do not fit together"
        ));
    }
    if let Some(mask) = operands.get(3) {
        let scores = [q[0], q[1], q[2], k[2]];
        if mask.is_empty() || broadcast(mask, &scores)? != scores {
            return Err(format!("the mask {mask:?} does not fit scores {scores:?}"));
        }
    }
    Ok(vec![q[0], q[1], q[2], v[3]])
}

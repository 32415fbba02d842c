//! Normalizations.

mod group;
pub mod kernel;
mod run;
pub(in crate::ops) mod weight;

use crate::ops::prelude::*;

/// What is normalized. Operands are `input`, then `weight` and `bias` where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Norm {
    /// `batch_norm(input, weight, bias, running_mean, running_var)`.
    Batch {
        /// Whether batch statistics are used and running ones updated.
        training: bool,
        /// Share of the new statistics in the running ones.
        momentum: f64,
        /// Added to the variance.
        eps: f64,
    },
    /// `batch_norm` in training without a weight, a bias or running statistics; the last two may follow.
    PlainBatch {
        /// Whether there is a weight.
        weight: bool,
        /// Whether there is a bias.
        bias: bool,
        /// Share of the new statistics in running ones, where there are any.
        momentum: f64,
        /// Added to the variance.
        eps: f64,
    },
    /// `layer_norm(input[, weight[, bias]])` over the last `dims` dimensions.
    Layer {
        /// How many trailing dimensions are normalized.
        dims: usize,
        /// Added to the variance.
        eps: f64,
    },
    /// `rms_norm(input[, weight])` over the last `dims` dimensions.
    Rms {
        /// How many trailing dimensions are normalized.
        dims: usize,
        /// Added to the mean of squares; unless told, the machine epsilon of what is computed in.
        eps: Option<f64>,
    },
    /// `group_norm`.
    Group {
        /// How many groups the channels form.
        groups: u64,
        /// Added to the variance.
        eps: f64,
    },
    /// `instance_norm` with the statistics of its input. A bias without a weight is none.
    Instance {
        /// Added to the variance.
        eps: f64,
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.batch_norm.default", read),
    ("aten.layer_norm.default", read),
    ("aten.group_norm.default", read),
    ("aten.instance_norm.default", read),
    ("aten.rms_norm.default", |args| {
        let dims = args.lengths("normalized_shape")?.len();
        let operands = args.all_and(&["input"], &["weight"])?;
        let eps = args.if_given("eps", |name| args.number(name))?;
        Ok((Norm::Rms { dims, eps }.into(), operands))
    }),
];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let target = args.target;
    let given = |optional: &[&str]| args.all_and(&["input"], optional);
    let momentum = || args.number_or("momentum", 0.1);
    let eps = args.number_or("eps", 1e-5)?;
    let (weight, bias) = (args.has("weight"), args.has("bias"));
    let names = ["weight", "bias", "running_mean", "running_var"];
    Ok(match target {
        "aten.layer_norm.default" => {
            let dims = args.lengths("normalized_shape")?.len();
            (Norm::Layer { dims, eps }.into(), given(&names[..2])?)
        }
        "aten.batch_norm.default" => {
            let training = args.flag("training", false)?;
            let operands = given(&names)?;
            if operands.len() == 1 + names.len() {
                let momentum = momentum()?;
                let op = Norm::Batch {
                    training,
                    momentum,
                    eps,
                };
                return Ok((op.into(), operands));
            }
            if !training {
                return Err("it lacks a weight, a bias or statistics, outside of training".into());
            }
            let op = Norm::PlainBatch {
                weight,
                bias,
                momentum: momentum()?,
                eps,
            };
            (op.into(), operands)
        }
        "aten.group_norm.default" => {
            let groups = args.count("num_groups", None)?;
            let op = Norm::Group { groups, eps };
            (op.into(), given(&names[..2])?)
        }
        _ => {
            if !args.flag("use_input_stats", true)? || args.has("running_mean") {
                return Err("only instance norms without running statistics are supported".into());
            }
            (Norm::Instance { eps }.into(), given(&names[..2])?)
        }
    })
}

impl Operator for Norm {
    fn name(&self) -> &'static str {
        match self {
            Norm::Batch { .. } | Norm::PlainBatch { .. } => "batch_norm",
            Norm::Layer { .. } => "layer_norm",
            Norm::Rms { .. } => "rms_norm",
            Norm::Group { .. } => "group_norm",
            Norm::Instance { .. } => "instance_norm",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shapes: Vec<&[Extent]> = operands.iter().map(|(_, shape)| shape.as_slice()).collect();
        let shape = match *self {
            Norm::Batch { .. } => by_channel(&shapes)?,
            Norm::Layer { dims, .. } | Norm::Rms { dims, .. } => layer_norm(&shapes, dims)?,
            Norm::PlainBatch { .. } | Norm::Group { .. } | Norm::Instance { .. } => {
                fitting(*self, &shapes)?
            }
        };
        Ok(vec![(operands[0].0, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let (x, second, third) = (&operands[0], operands.get(1), operands.get(2));
        Ok(vec![match *self {
            Norm::Batch {
                training,
                momentum,
                eps,
            } => {
                let all = [0, 1, 2, 3, 4].map(|at| &operands[at]);
                if training && !context.inference {
                    eager.batch_norm(all, momentum, eps)?
                } else {
                    eager.batch_norm_inference(all, eps)?
                }
            }
            Norm::PlainBatch {
                weight,
                bias,
                momentum,
                eps,
            } => {
                let of = |there: bool, at: usize| operands.get(at).filter(|_| there);
                let parameters = [of(weight, 1), of(bias, 1 + usize::from(weight))];
                let behind = operands.get(1 + usize::from(weight) + usize::from(bias)..);
                let running = match behind {
                    Some([mean, var]) => Some((momentum, [mean, var])),
                    _ => None,
                };
                eager.native_batch_norm(x, parameters, running, eps)?
            }
            Norm::Layer { dims, eps } => eager.layer_norm(x, [second, third], dims, eps)?,
            Norm::Rms { dims, eps } => eager.rms_norm(x, second, dims, eps)?,
            Norm::Group { groups, eps } => eager.group_norm((groups, eps), x, second, third)?,
            Norm::Instance { eps } => eager.instance_norm(x, second, third, eps)?,
        }])
    }
}

/// The type in which statistics are kept.
fn accumulated(dtype: DType) -> DType {
    if dtype == DType::Float64 {
        DType::Float64
    } else {
        DType::Float32
    }
}

/// The first operand's shape, if all others have this one.
fn with_all(
    operands: &[&[Extent]],
    expected: &[Extent],
    what: &str,
) -> Result<Vec<Extent>, Mismatch> {
    let others = operands.iter().enumerate().skip(1);
    match others.into_iter().find(|(_, shape)| **shape != expected) {
        Some((i, shape)) => Err(format!("operand {i} is {shape:?}, not {what}")),
        None => Ok(operands[0].to_vec()),
    }
}

/// The same where they have a value for each channel.
fn by_channel(operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let [_, channels, ..] = operands[0] else {
        return Err("the input has no channels".into());
    };
    with_all(operands, &[*channels], &format!("[{channels}]"))
}

fn layer_norm(operands: &[&[Extent]], dims: usize) -> Result<Vec<Extent>, Mismatch> {
    let x = operands[0];
    if dims == 0 || dims > x.len() {
        return Err(format!("cannot normalize {dims} dimensions of {x:?}"));
    }
    let what = format!("the last {dims} of {x:?}");
    with_all(operands, &x[x.len() - dims..], &what)
}

/// The same of those that do not take every input with channels.
fn fitting(norm: Norm, operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let shape = by_channel(operands)?;
    let whole = shape[1].as_fixed().filter(|channels| *channels > 0);
    let fits = match norm {
        Norm::Group { groups, .. } => {
            groups > 0 && whole.is_some_and(|channels| channels.is_multiple_of(groups))
        }
        Norm::PlainBatch { .. } => shape.len() >= 2,
        Norm::Instance { .. } | Norm::Batch { .. } | Norm::Layer { .. } | Norm::Rms { .. } => {
            shape.len() >= 3
        }
    };
    fits.then_some(shape)
        .ok_or_else(|| format!("cannot normalize {:?} like this", operands[0]))
}

//! Whether an exported graph can run in the precisions asked for.

use std::collections::BTreeSet;

use crate::graph::{Graph, ParameterKind};
use crate::ops::{Cast, Op};
use crate::shape::DType;
use batchfit_models::RequestError;
use batchfit_step::{Mode, OptimizerImpl, Parallel, Precision, Variant};

/// What to add to the answer, or why a graph, whose type the request may ask for, cannot run in one of these variants.
///
/// A graph is exported in the dtype that its parameters will have: casts in the model's code, such as
/// `.to(input_dtype)`, are frozen into it.
pub(crate) fn compare(
    graph: &Graph,
    variants: &[Variant],
    asked: Option<DType>,
) -> Result<Vec<String>, RequestError> {
    let dtypes: BTreeSet<DType> = graph
        .parameters
        .iter()
        .filter(|parameter| parameter.kind != ParameterKind::Buffer)
        .map(|parameter| graph.value(parameter.value).dtype)
        .filter(|dtype| dtype.is_float())
        .collect();
    let exported = match Vec::from_iter(dtypes)[..] {
        [] => return Ok(Vec::new()),
        [exported] => exported,
        // Parameters of several types are the model's own doing.
        ref several => return Ok(of_several(several, variants)),
    };
    let mut notes = Vec::new();
    for variant in variants {
        let precision = variant.precision;
        // What operations see, not what shards are stored in.
        let gathered = match &variant.parallel {
            Parallel::Fsdp2(options) => options.mixed_precision.param_dtype,
            Parallel::None | Parallel::Ddp(_) | Parallel::Zero1(_) => None,
        };
        let unless_gathered = match precision.autocast() {
            Some(_) => precision.stored(exported),
            None => precision.parameters(),
        };
        let wanted = gathered.unwrap_or(unless_gathered);
        let name = precision.name();
        if wanted == exported {
            if let Some(why) = cannot_unscale(exported, variant) {
                return Err(RequestError::at(
                    "/training/precision",
                    format!("{name} cannot train {exported} parameters: {why}"),
                ));
            }
            continue;
        }
        // Float32 is converted, unless somebody wants it.
        if exported != DType::Float32 || asked.is_some() {
            let mut own = Precision::ALL.iter().rev();
            let own = own.find(|own| own.parameters() == exported);
            let ask = own.map_or(String::new(), |own| format!("ask for {}, or ", own.name()));
            return Err(RequestError::at(
                "/training/precision",
                format!(
                    "{name} needs {wanted} weights, but the model has {exported} ones; {ask}load or export it in {wanted}"
                ),
            ));
        }
        let note = format!(
            "casts in the model's code are simulated as they are for float32 parameters, not for {wanted} ones; a graph exported \
             in {wanted} is exact"
        );
        if has_float_cast(graph) && !notes.contains(&note) {
            notes.push(note);
        }
    }
    Ok(notes)
}

/// What becomes of a model whose parameters have several types, where that may surprise.
fn of_several(dtypes: &[DType], variants: &[Variant]) -> Vec<String> {
    let names: Vec<String> = dtypes.iter().map(DType::to_string).collect();
    let names = names.join(" and ");
    let mut notes: Vec<String> = variants
        .iter()
        .filter_map(|variant| {
            let (name, wanted) = (variant.precision.name(), variant.precision.parameters());
            match (variant.precision.autocast(), wanted) {
                (Some(_), _) => None,
                (None, DType::Float32) => Some(format!(
                    "the graph's parameters are {names}, as exported: {name} is training without autocast, and \
                     converts none of them"
                )),
                (None, _) => Some(format!(
                    "the graph's parameters are {names}, and {name} makes all of them {wanted}; ask for fp32 to \
                     train them in the types that they were exported in"
                )),
            }
        })
        .collect();
    notes.dedup();
    notes
}

/// Why `GradScaler.step` raises an error on gradients of this type, as PyTorch 2.11 was seen to.
fn cannot_unscale(stored: DType, variant: &Variant) -> Option<&'static str> {
    if variant.mode == Mode::Inference || variant.precision != Precision::AmpFp16 {
        return None;
    }
    match stored {
        DType::BFloat16 => Some(
            "PyTorch's GradScaler does not take bfloat16 gradients; ask for amp_bf16, or for float32 \
             parameters: `--with param_dtype=fp32`, or a graph exported so",
        ),
        // A fused optimizer divides by the scale itself.
        DType::Float16 if variant.optimizer_impl != OptimizerImpl::Fused => Some(
            "PyTorch's GradScaler refuses to unscale float16 gradients; ask for the optimizer_impl fused \
             (`--optimizer-impl fused`), or for float32 parameters: `--with param_dtype=fp32`, or a graph exported so",
        ),
        _ => None,
    }
}

fn has_float_cast(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| {
        matches!(node.op, Op::Cast(Cast(to, _)) if to.is_float())
            && graph.value(node.inputs[0]).dtype.is_float()
    })
}

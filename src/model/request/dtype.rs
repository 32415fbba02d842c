//! Whether an exported graph can run in the precisions asked for.

use crate::graph::{Graph, ParameterKind};
use crate::model::invalid::Invalid;
use crate::ops::{Cast, Op};
use crate::shape::DType;
use batchfit_step::Parallel;
use batchfit_step::{Mode, OptimizerImpl, Precision, Variant};

/// What to add to the answer, or why a graph cannot run in one of these variants.
///
/// A graph is exported in the dtype that its parameters will have: casts in the model's code, such as
/// `.to(input_dtype)`, are frozen into it.
pub(super) fn compare(graph: &Graph, variants: &[Variant]) -> Result<Vec<String>, Invalid> {
    let mut dtypes = graph
        .parameters
        .iter()
        .filter(|parameter| parameter.kind != ParameterKind::Buffer)
        .map(|parameter| graph.value(parameter.value).dtype)
        .filter(|dtype| dtype.is_float());
    let Some(exported) = dtypes.next() else {
        return Ok(Vec::new());
    };
    if dtypes.any(|dtype| dtype != exported) {
        // Parameters of several dtypes are the model's own doing; nothing can be said about them.
        return Ok(Vec::new());
    }
    let mut notes = Vec::new();
    for variant in variants {
        let precision = variant.precision;
        // What operations see, not what shards are stored in.
        let gathered = match &variant.parallel {
            Parallel::Fsdp2(options) => options.mixed_precision.param_dtype,
            Parallel::None | Parallel::Ddp(_) | Parallel::Zero1(_) => None,
        };
        let wanted = gathered.unwrap_or_else(|| precision.stored(exported));
        let name = precision.name();
        if wanted == exported {
            if let Some(why) = cannot_unscale(exported, variant) {
                return Err(Invalid::at(
                    "/training/precision",
                    format!("{name} cannot train {exported} parameters: {why}"),
                ));
            }
            continue;
        }
        if exported != DType::Float32 {
            return Err(Invalid::at(
                "/training/precision",
                format!(
                    "{name} needs {wanted} parameters, but the graph was exported with {exported} ones; \
                     export it in {wanted}"
                ),
            ));
        }
        let note = format!(
            "the graph was exported in float32 and contains casts, which {name} may not make as the \
             model would; export it in {wanted} to be exact"
        );
        if has_float_cast(graph) && !notes.contains(&note) {
            notes.push(note);
        }
    }
    Ok(notes)
}

/// Why `GradScaler.step` raises an error on gradients of this type, as PyTorch 2.11 was seen to.
fn cannot_unscale(stored: DType, variant: &Variant) -> Option<&'static str> {
    if variant.mode == Mode::Inference || variant.precision != Precision::AmpFp16 {
        return None;
    }
    match stored {
        DType::BFloat16 => Some(
            "PyTorch's GradScaler does not take bfloat16 gradients; ask for amp_bf16, or for float32 \
             parameters: `param_dtype` fp32, or a graph exported so",
        ),
        // A fused optimizer divides by the scale itself.
        DType::Float16 if variant.optimizer_impl != OptimizerImpl::Fused => Some(
            "PyTorch's GradScaler refuses to unscale float16 gradients; ask for the optimizer_impl fused, \
             or for float32 parameters: `param_dtype` fp32, or a graph exported so",
        ),
        _ => None,
    }
}

fn has_float_cast(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| {
        matches!(node.op, Op::Cast(Cast(to)) if to.is_float())
            && graph.value(node.inputs[0]).dtype.is_float()
    })
}

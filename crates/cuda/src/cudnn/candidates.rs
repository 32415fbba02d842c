//! The plans of a convolution in the order in which PyTorch tries them.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t as Mode,
    cudnnBackendNumericalNote_t,
};

use crate::program::Convolution;
use crate::shape::DType;
use crate::units::Bytes;

use super::absent::logging;
use super::descriptor::{Descriptor, NumericalNote};
use super::graph::Graph;
use super::plan::{ExecutionPlan, engine_of};
use super::{CudnnError, Handle, Offer, OperationGraph};

/// Whether fp32 convolutions may run on tensor cores. PyTorch allows it by default
/// (`torch.backends.cudnn.allow_tf32`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tf32 {
    /// Tensor cores may be used.
    #[default]
    Allowed,
    /// Only full fp32 arithmetic.
    Off,
}

/// The plans of a convolution in order, up to the first that needs no workspace: that one cannot
/// be refused, so nothing after it is ever tried.
///
/// `alignment` divides the addresses of all tensors: at most [`ALIGNMENT`](super::ALIGNMENT), which PyTorch states for
/// those at the start of a block.
///
/// A depthwise layer that PyTorch runs with kernels of its own has only that last plan here.
/// Takes a few milliseconds, because no kernel is compiled. See Note [Plan order].
pub fn list_plans(
    handle: &Handle,
    convolution: &Convolution,
    alignment: u64,
    tf32: Tf32,
) -> Result<Vec<ExecutionPlan>, CudnnError> {
    let graph = OperationGraph::build(Some(handle), convolution, alignment)?;
    let wants_full_fp32 = convolution.dtype == DType::Float32 && tf32 == Tf32::Off;
    let plans_of = |mode| heuristic_plans(handle, &graph, mode, wants_full_fp32);
    let mut plans = plans_of(Mode::CUDNN_HEUR_MODE_INSTANT)?;
    let needs_none = |plan: &ExecutionPlan| plan.workspace() == Bytes::ZERO;
    if !plans.iter().any(needs_none) {
        // Where there is no fallback list there is nothing more to try; that alone is no error.
        plans.extend(plans_of(Mode::CUDNN_HEUR_MODE_FALLBACK).unwrap_or_default());
    }
    if let Some(end) = plans.iter().position(needs_none) {
        plans.truncate(end + 1);
        if !convolution.uses_cudnn() {
            plans.drain(..end);
        }
    }
    if plans.is_empty() {
        Err(CudnnError::NoEngine)
    } else {
        Ok(plans)
    }
}

/// The plans of one heuristic mode; those that cannot be built are passed over.
fn heuristic_plans(
    handle: &Handle,
    graph: &OperationGraph,
    mode: Mode,
    wants_full_fp32: bool,
) -> Result<Vec<ExecutionPlan>, CudnnError> {
    let configs = configurations(graph.descriptor(), mode, None, None)?;
    let mut plans = Vec::with_capacity(configs.len());
    for config in configs {
        if is_allowed(&config, wants_full_fp32)? {
            plans.extend(ExecutionPlan::of(handle, config)?);
        }
    }
    Ok(plans)
}

/// The plan of a convolution that PyTorch tries first: of [`list_plans`] the first, fifty times as fast, because cuDNN looks at no more
/// configurations than it is asked for.
pub(super) fn first_offer(
    handle: &Handle,
    convolution: &Convolution,
    alignment: u64,
    tf32: Tf32,
) -> Result<Offer, CudnnError> {
    let graph = OperationGraph::build(Some(handle), convolution, alignment)?;
    let wants_full_fp32 = convolution.dtype == DType::Float32 && tf32 == Tf32::Off;
    let offer = |config: Descriptor| {
        let Some(plan) = ExecutionPlan::of(handle, config)? else {
            return Ok(None);
        };
        Ok(Some(Offer {
            tag: plan.tag()?,
            workspace: plan.workspace(),
        }))
    };
    first_of(graph.descriptor(), None, wants_full_fp32, offer)?.ok_or(CudnnError::NoEngine)
}

/// How many configurations are asked for until one is found: seldom more than one.
const ASKED_FOR: [usize; 4] = [1, 4, 16, MOST_PLANS];

/// Lists of plans are at most this long.
pub(super) const MOST_PLANS: usize = 128;

/// What `made` makes of the first configuration that PyTorch allows, and of which it makes something; `None` of none.
pub(super) fn first_of<T>(
    graph: &Descriptor,
    absent: Option<Absent<'_>>,
    wants_full_fp32: bool,
    made: impl Fn(Descriptor) -> Result<Option<T>, CudnnError>,
) -> Result<Option<T>, CudnnError> {
    let modes = [
        Mode::CUDNN_HEUR_MODE_INSTANT,
        Mode::CUDNN_HEUR_MODE_FALLBACK,
    ];
    for mode in modes {
        let mut seen = 0;
        for most in ASKED_FOR {
            let configs = match configurations(graph, mode, absent, Some(most)) {
                // Where there is no fallback list there is nothing more to try; that alone is no error.
                Err(_) if mode == Mode::CUDNN_HEUR_MODE_FALLBACK => Vec::new(),
                configs => configs?,
            };
            let found = configs.len();
            for config in configs.into_iter().skip(seen) {
                if is_allowed(&config, wants_full_fp32)?
                    && let Some(first) = made(config)?
                {
                    return Ok(Some(first));
                }
            }
            if found < most {
                break;
            }
            seen = found;
        }
    }
    Ok(None)
}

/// A card that is not there, as heuristics are told of it.
#[derive(Clone, Copy)]
pub(super) struct Absent<'a> {
    /// Its description.
    pub(super) card: &'a Descriptor,
    /// Whether cuDNN is to log which engines it refuses.
    pub(super) is_logged: bool,
}

/// The engine configurations of one heuristic mode, best first: all, or so many. `absent` is a card that is not there.
pub(super) fn configurations(
    graph: &Descriptor,
    mode: Mode,
    absent: Option<Absent<'_>>,
    most: Option<usize>,
) -> Result<Vec<Descriptor>, CudnnError> {
    let mut heuristics = Descriptor::create(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.set_descriptors(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
    heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
    if let Some(absent) = absent {
        let card = &[absent.card];
        heuristics.set_descriptors(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, card)?;
    }
    let heuristics = heuristics.finalize()?;
    let results = Name::CUDNN_ATTR_ENGINEHEUR_RESULTS;
    let listed = heuristics.count(results, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR)?;
    let count = most.map_or(listed, |most| listed.min(most));
    let read =
        || heuristics.read_descriptors(results, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, count);
    if absent.is_some_and(|absent| absent.is_logged) {
        logging(read)
    } else {
        read()
    }
}

/// The first plan of one heuristic mode that can be built, ready to run.
pub(super) fn first_plan(
    handle: &Handle,
    graph: &Graph,
    mode: Mode,
) -> Result<ExecutionPlan, CudnnError> {
    let mut refusal = CudnnError::NoEngine;
    for config in configurations(&graph.descriptor, mode, None, None)? {
        match ExecutionPlan::ready_with(handle, config, graph.numbers.clone()) {
            Ok(plan) => return Ok(plan),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// PyTorch's filter on an engine's numerical notes.
pub(super) fn is_allowed(config: &Descriptor, wants_full_fp32: bool) -> Result<bool, CudnnError> {
    const DOWN_CONVERT: NumericalNote =
        NumericalNote(cudnnBackendNumericalNote_t::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS as u32);
    const TENSOR_CORE: NumericalNote =
        NumericalNote(cudnnBackendNumericalNote_t::CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32);
    // Room for more notes than any engine has.
    let mut notes = [NumericalNote(u32::MAX); 32];
    let count = engine_of(config)?.read(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &mut notes)?;
    let notes = &notes[..count];
    let is_too_coarse = wants_full_fp32 && notes.contains(&TENSOR_CORE);
    Ok(!is_too_coarse && !notes.contains(&DOWN_CONVERT))
}

//! From a graph and a variant to the program of a training step.
//!
//! The compiler runs the model once as eager PyTorch would, on tensors that have shapes and owners but no
//! values. Every rule about what is saved, when it dies and in which order the backward pass runs is in
//! here; nothing outside knows about autograd.
#![doc = include_str!("NOTES.md")]

mod casts;
mod checkpoint;
mod construction;
mod forward;
mod functions;
mod lifetimes;
mod optimizer;
mod parallel;
mod random_inputs;
mod scopes;
mod step;
mod untracked;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::eager::{Eager, Stop};
use crate::graph::{Graph, Parameter, ParameterKind, ValueId};
use crate::limits::Cancel;
use crate::ops::{LossFunction, Op};
use batchfit_step::{Checkpointing, Globs, Mode, Parallel, Variant};
pub use parallel::{MOST_CLASSES, RankClass, rank_classes};

use crate::program::{Capability, Program};
use crate::shape::{DType, numel};

/// Why there is no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Checkpointing was asked for and nothing matches.
    #[error(
        "no module to checkpoint: the model has no repeated blocks; name modules instead, as in \
         {{\"modules\": [\"layer*.*\"]}}"
    )]
    NoRepeatedBlocks,
    /// A glob was given and nothing matches.
    #[error("no module matches {glob}; there are {paths}")]
    NoSuchModules {
        /// What was asked for.
        glob: String,
        /// The paths that exist, as globs.
        paths: String,
    },
    /// A glob of units was given and nothing matches.
    #[error("no module matches {glob}, which should name units of fully_shard; there are {paths}")]
    NoSuchUnits {
        /// What was asked for.
        glob: String,
        /// The paths that exist, as globs.
        paths: String,
    },
    /// `label_smoothing` is of `cross_entropy` alone.
    #[error(
        "the loss of this model is no cross_entropy, which alone takes label_smoothing: leave it out"
    )]
    NoCrossEntropy,
    /// `fully_shard` refuses a parameter without dimensions.
    #[error(
        "fully_shard cannot cut the parameter {path}, which is a single number without a dimension; PyTorch refuses it too: make it a \
         tensor of one element"
    )]
    ScalarParameter {
        /// Its path.
        path: String,
    },
    /// `DistributedDataParallel` refuses a model that is not trained.
    #[error(
        "DistributedDataParallel refuses a model without a parameter that is trained; set the strategy to \"none\""
    )]
    NothingTrained,
    /// Batch norm refuses statistics in another type than its parameters are gathered in.
    #[error(
        "batch norm in {module} fails in PyTorch under this mixed precision: parameters are gathered in {gathered}, and its running \
         statistics stay {stored}; leave param_dtype out, and ask for autocast as in \"precision\": \"amp_bf16\""
    )]
    BatchNormUnderMixedPrecision {
        /// The path of the module.
        module: String,
        /// The type of parameters in the forward pass.
        gathered: DType,
        /// The type of the statistics.
        stored: DType,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

#[doc(hidden)]
pub use step::compile_unrolled;

/// Compiles the step program of a graph under a variant, for a card: of the first rank, with its launches.
pub fn compile(
    graph: &Graph,
    variant: &Variant,
    capability: Capability,
) -> Result<Program, CompileError> {
    let graph = Arc::new(graph.clone());
    let process = Process::default();
    compile_process(
        &graph,
        variant,
        (capability, process),
        Launches::Kept,
        &Cancel::NEVER,
    )
}

/// Which of the processes that train together a program is of, and how what depends on time goes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Process {
    /// Which, from 0. Ranks differ in which parts of the parameters and of the optimizer's state are theirs.
    pub rank: u64,
    /// Whether the memory of DDP's first buckets is free before others take their place, and not only with the first message of the
    /// backward pass after that. See Note [DDP].
    pub buckets_go_early: bool,
}

/// Whether a program says what its operations compute, or only what they allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launches {
    /// For a GPU.
    Kept,
    /// For a simulation: launches are nine tenths of a program.
    LeftOut,
}

/// What something that is `exported` in a graph is stored in. A graph in the type that `fully_shard` gathers parameters in says
/// nothing of what shards are.
fn stored(variant: &Variant, exported: DType) -> DType {
    let gathered = match &variant.parallel {
        Parallel::Fsdp2(options) => options.mixed_precision.param_dtype,
        Parallel::None | Parallel::Ddp(_) | Parallel::Zero1(_) => None,
    };
    if gathered == Some(exported) && variant.precision.autocast().is_none() {
        variant.precision.parameters()
    } else {
        variant.precision.stored(exported)
    }
}

/// Compiles the program of one process. Fails soon after `cancel`, before the next operation.
pub fn compile_process(
    graph: &Arc<Graph>,
    variant: &Variant,
    (capability, process): (Capability, Process),
    launches: Launches,
    cancel: &Cancel,
) -> Result<Program, CompileError> {
    check_checkpointing(graph, variant)?;
    check_parallel(graph, variant)?;
    let smoothed = smoothed(graph, variant)?;
    let graph = smoothed.as_ref().unwrap_or(graph);
    let mut eager = Eager::new(capability, cancel);
    eager.rank = process.rank;
    eager.buckets_go_early = process.buckets_go_early;
    if launches == Launches::LeftOut {
        eager.leave_out_launches();
    }
    let training = step::Training::construct(eager, Arc::clone(graph), variant);
    let program = training.and_then(step::Training::into_program);
    program.map_err(|stop| match stop {
        Stop::Cancelled => CompileError::Cancelled,
        Stop::Restored => unreachable!("only a recomputation stops early, and its caller goes on"),
    })
}

/// The graph with `label_smoothing` in each cross entropy, where the variant asks for it.
pub fn smoothed(graph: &Arc<Graph>, variant: &Variant) -> Result<Option<Arc<Graph>>, CompileError> {
    let Some(share) = variant.label_smoothing else {
        return Ok(None);
    };
    let mut graph = Graph::clone(graph);
    let mut found = false;
    for node in &mut graph.nodes {
        if let Op::Loss(loss) = &mut node.op
            && let LossFunction::CrossEntropy { smoothing, .. }
            | LossFunction::SoftCrossEntropy { smoothing } = &mut loss.function
        {
            *smoothing = share.into();
            found = true;
        }
    }
    found
        .then(|| Some(Arc::new(graph)))
        .ok_or(CompileError::NoCrossEntropy)
}

/// A repeated block of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The module's path.
    pub path: String,
    /// Its forward operations, and the elements of what they make at a batch of eight: blocks in which both are the same are taken to
    /// be alike.
    pub likeness: (usize, u64),
}

/// The repeated blocks of a model, which checkpointing per block runs twice, in the order in which they are called.
pub fn blocks(graph: &Graph) -> Vec<Block> {
    const BATCH: u64 = 8;
    let chosen = checkpoint::repeated_blocks(graph);
    let mut blocks: Vec<Block> = Vec::new();
    for node in &graph.nodes {
        let Some(id) = graph.callers(node.module).find(|id| chosen[id.0 as usize]) else {
            continue;
        };
        let path = &graph.module(id).path;
        let known = blocks.iter().position(|block| block.path == *path);
        let index = known.unwrap_or_else(|| {
            blocks.push(Block {
                path: path.clone(),
                likeness: (0, 0),
            });
            blocks.len() - 1
        });
        let made = node.outputs.iter();
        let made = made.map(|id| numel(&graph.value(*id).shape).at(BATCH));
        let (operations, elements) = &mut blocks[index].likeness;
        *operations += 1;
        *elements = made.fold(*elements, u64::saturating_add);
    }
    blocks
}

/// What of a forward pass runs a second time in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recomputed {
    /// Calls of modules that are checkpointed.
    pub calls: usize,
    /// Operations in them.
    pub operations: usize,
    /// All operations of the forward pass.
    pub of_operations: usize,
}

impl Recomputed {
    /// The part of the operations that run twice, from 0 to 1.
    pub fn share(self) -> f64 {
        self.operations as f64 / self.of_operations.max(1) as f64
    }
}

/// What checkpointing has a graph compute twice.
pub fn recomputed(graph: &Graph, variant: &Variant) -> Recomputed {
    let regions = match variant.mode {
        Mode::Train => checkpoint::regions(graph, &variant.checkpointing),
        Mode::Inference => Vec::new(),
    };
    Recomputed {
        calls: regions.len(),
        operations: regions.iter().map(ExactSizeIterator::len).sum(),
        of_operations: graph.nodes.len(),
    }
}

/// Whether what a variant asks to checkpoint is there.
pub fn check_checkpointing(graph: &Graph, variant: &Variant) -> Result<(), CompileError> {
    if variant.mode != Mode::Train {
        return Ok(());
    }
    match &variant.checkpointing {
        Checkpointing::Modules(globs) => {
            let called: BTreeSet<&str> = graph.modules.iter().map(|it| it.path.as_str()).collect();
            let globs = Globs::new(globs);
            match globs.unmatched(called.iter().copied()) {
                None => Ok(()),
                Some(glob) => Err(CompileError::NoSuchModules {
                    glob: glob.to_owned(),
                    paths: in_short(called.into_iter()),
                }),
            }
        }
        per_block => {
            let nothing = *per_block == Checkpointing::PerBlock
                && checkpoint::regions(graph, per_block).is_empty();
            let refused = nothing.then_some(CompileError::NoRepeatedBlocks);
            refused.map_or(Ok(()), Err)
        }
    }
}

/// Paths as globs, with a star for each number: those least deep, and how many more there are.
pub fn in_short<'a>(paths: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 12;
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let starred = |path: &str| {
        let names = path.split('.');
        let names = names.map(|name| if is_number(name) { "*" } else { name });
        names.collect::<Vec<_>>().join(".")
    };
    let globs: BTreeSet<(usize, String)> = paths
        .filter(|path| !path.is_empty())
        .map(|path| (path.matches('.').count(), starred(path)))
        .collect();
    let shown: Vec<&str> = globs.iter().take(SHOWN).map(|(_, glob)| &**glob).collect();
    match globs.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Whether a model can be wrapped as a variant asks.
pub fn check_parallel(graph: &Graph, variant: &Variant) -> Result<(), CompileError> {
    let options = match &variant.parallel {
        Parallel::None => return Ok(()),
        Parallel::Ddp(_) | Parallel::Zero1(_) => {
            let is_trained = |one: &Parameter| one.kind == ParameterKind::Trained;
            let trains = graph.parameters.iter().any(is_trained);
            return trains.then_some(()).ok_or(CompileError::NothingTrained);
        }
        Parallel::Fsdp2(options) => options,
    };
    let globs = options.units.as_deref().unwrap_or_default();
    let modules = parallel::modules(graph);
    if let Some(glob) = Globs::new(globs).unmatched(modules.iter().copied()) {
        return Err(CompileError::NoSuchUnits {
            glob: glob.to_owned(),
            paths: in_short(modules.into_iter()),
        });
    }
    let is_number = |parameter: &&Parameter| {
        parameter.kind != ParameterKind::Buffer && graph.value(parameter.value).shape.is_empty()
    };
    if let Some(number) = graph.parameters.iter().find(is_number) {
        return Err(CompileError::ScalarParameter {
            path: number.path.clone(),
        });
    }
    let Some(gathered) = options.mixed_precision.param_dtype else {
        return Ok(());
    };
    let stored = |parameter: &Parameter| {
        let dtype = graph.value(parameter.value).dtype;
        (parameter.value, stored(variant, dtype))
    };
    let buffers = graph.parameters.iter();
    let buffers = buffers.filter(|parameter| parameter.kind == ParameterKind::Buffer);
    let others: BTreeMap<ValueId, DType> = buffers
        .map(stored)
        .filter(|(_, dtype)| dtype.is_float() && *dtype != gathered)
        .collect();
    for node in graph
        .nodes
        .iter()
        .filter(|node| node.op.name() == "batch_norm")
    {
        if let Some(stored) = node.inputs.iter().find_map(|id| others.get(id)) {
            return Err(CompileError::BatchNormUnderMixedPrecision {
                module: graph.module(node.module).path.clone(),
                gathered,
                stored: *stored,
            });
        }
    }
    Ok(())
}

//! The forward graph: what a model computes, before autocast and autograd.
//!
//! Values are tensors with a dtype and a shape that may contain the symbolic batch; nodes are operations
//! on them, in the order PyTorch would execute them. A graph is made by a [`Builder`], which infers every
//! shape and refuses what does not fit, so a finished [`Graph`] needs no further checks.

mod builder;
mod function_call;
pub mod positions;
mod releases;

use serde::Serialize;

use crate::ops::Op;
use crate::shape::{DType, Extent, numel};

pub use crate::aten::ValueId;
pub use builder::{Builder, GraphError};
pub use function_call::{FunctionCall, FunctionOutput, UntracedFunction};
pub use positions::{only_arranges, positions};
pub use releases::{Lifetimes, Releases};

/// Names a module of one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ModuleId(pub u32);

/// A tensor of the forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Its name: the parameter's path, the input's name, or the name of the node that makes it.
    pub name: String,
    /// Element type before autocast.
    pub dtype: DType,
    /// Lengths of its dimensions.
    pub shape: Vec<Extent>,
}

/// The class of a call that the model's own code passes to `torch.utils.checkpoint.checkpoint`.
pub const CHECKPOINTED: &str = "torch.utils.checkpoint.checkpoint";

/// The same with `use_reentrant=True`, which is PyTorch's default.
pub const REENTRANT: &str = "torch.utils.checkpoint.CheckpointFunction";

/// A module call site: what `nn_module_stack` of an exported graph names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Module {
    /// The path from the model's root, such as `layer3.0.conv2`; empty for the root.
    pub path: String,
    /// The class, such as `torchvision.models.resnet.Bottleneck`.
    pub class: String,
    /// The module that calls it.
    pub parent: Option<ModuleId>,
}

/// One operation of the forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Its operands, in the order [`Op`] documents; trailing optional ones may be missing.
    pub inputs: Vec<ValueId>,
    /// Its results.
    pub outputs: Vec<ValueId>,
    /// The module whose `forward` runs it.
    pub module: ModuleId,
    /// False inside a `no_grad` region.
    pub grad_enabled: bool,
    /// False where the model's code switches autocast off.
    pub autocast_enabled: bool,
}

/// A parameter or buffer, in the order of `model.parameters()` and `model.buffers()`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// The value that holds it.
    pub value: ValueId,
    /// Its path, such as `layer3.0.conv2.weight`.
    pub path: String,
    /// What it is.
    pub kind: ParameterKind,
    /// Whether it lies channels-last in memory, as `model.to(memory_format=torch.channels_last)` has weights of convolutions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// What a module holds under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ParameterKind {
    /// Trained by the optimizer.
    Trained,
    /// A parameter with `requires_grad` off.
    Frozen,
    /// Not a parameter: running statistics, tables.
    Buffer,
}

/// What a batch tensor is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Content {
    /// Normally distributed values.
    Normal,
    /// Indices below this bound.
    Below(u64),
}

/// A tensor that the training loop makes for each micro-step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Input {
    /// The value that holds it.
    pub value: ValueId,
    /// What the loop fills it with.
    pub content: Content,
}

/// A model's forward pass with its loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// All tensors; [`ValueId`] is an index.
    pub values: Vec<Value>,
    /// All modules; [`ModuleId`] is an index, and the first is the root.
    pub modules: Vec<Module>,
    /// Operations in execution order.
    pub nodes: Vec<Node>,
    /// Parameters in registration order, then buffers.
    pub parameters: Vec<Parameter>,
    /// The batch, in the order in which the loop makes it.
    pub inputs: Vec<Input>,
    /// What the model itself returns: where inference ends.
    pub prediction: ValueId,
    /// The scalar that is trained on.
    pub loss: ValueId,
    /// Whether the model's own `forward` computes the loss, as Hugging Face's do that are given labels; else the training loop
    /// does, from the prediction.
    pub loss_is_model_output: bool,
    /// When Python lets go of values, where the export recorded it.
    pub releases: Option<Releases>,
    /// Calls of custom functions, in order; their nodes do not overlap.
    pub functions: Vec<FunctionCall>,
    /// Custom functions that autograd is taken to look inside of, each once.
    pub untraced_functions: Vec<UntracedFunction>,
    /// The largest batch that the graph holds for, where it was exported with one: for a larger one the model's code
    /// takes another path.
    pub max_batch: Option<u64>,
}

/// Whether a class is that of no module, but of a call that the model's own code checkpoints.
pub fn is_checkpoint(class: &str) -> bool {
    [CHECKPOINTED, REENTRANT].contains(&class)
}

impl Module {
    /// See [`is_checkpoint`].
    pub fn is_checkpoint(&self) -> bool {
        is_checkpoint(&self.class)
    }
}

impl Graph {
    /// The tensor of this name.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The module of this id.
    pub fn module(&self, id: ModuleId) -> &Module {
        &self.modules[id.0 as usize]
    }

    /// How it is known when values die.
    pub fn lifetimes(&self) -> Lifetimes {
        match self.releases {
            Some(_) => Lifetimes::Recorded,
            None => Lifetimes::Assumed,
        }
    }

    /// Operations, with those of custom functions' backward passes.
    pub fn operations(&self) -> usize {
        let calls = self.functions.iter();
        self.nodes.len() + calls.map(|call| call.backward.operations()).sum::<usize>()
    }

    /// Operations, their operands and results, and parameters, all counted as one: what memory and time grow with.
    pub fn size(&self) -> usize {
        let names = self
            .nodes
            .iter()
            .map(|node| node.inputs.len() + node.outputs.len());
        let calls = self.functions.iter().map(|call| call.backward.size());
        self.nodes.len() + names.sum::<usize>() + self.parameters.len() + calls.sum::<usize>()
    }

    /// Elements of all parameters, trained or not.
    pub fn parameter_count(&self) -> u64 {
        self.parameters
            .iter()
            .filter(|parameter| parameter.kind != ParameterKind::Buffer)
            .map(|parameter| numel(&self.value(parameter.value).shape).at(1))
            .sum()
    }

    /// The module and everything that calls it, innermost first.
    pub fn callers(&self, module: ModuleId) -> impl Iterator<Item = ModuleId> + '_ {
        std::iter::successors(Some(module), |id| self.module(*id).parent)
    }
}

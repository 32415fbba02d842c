//! Calls of custom `torch.autograd.Function`s, which autograd does not look inside of.

use std::ops::Range;

use serde::Serialize;

use super::{Graph, ValueId};
use crate::shape::DType;

/// A call whose backward pass is known.
///
/// Its nodes run without gradients. Only what it saves stays, and its gradients come from a graph of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionCall {
    /// The function's class.
    pub name: String,
    /// The nodes of its `forward`; never empty.
    pub nodes: Range<usize>,
    /// The arguments that are tensors, each with its gradient in the backward graph, where it gets one.
    pub inputs: Vec<(ValueId, Option<ValueId>)>,
    /// The results that are tensors.
    pub outputs: Vec<FunctionOutput>,
    /// What `save_for_backward` got, each with its value in the backward graph.
    pub saved: Vec<(ValueId, ValueId)>,
    /// Attributes of `ctx`, each with its value in the backward graph. They live until the step's whole
    /// autograd graph dies.
    pub held: Vec<(ValueId, ValueId)>,
    /// What `custom_fwd` casts inputs to, and runs without autocast then.
    pub cast_inputs: Option<DType>,
    /// Whether `custom_bwd` runs the backward pass under the autocast of the forward pass.
    pub backward_autocast: bool,
    /// The backward pass, which runs without gradients. Its inputs are what is saved and held and the
    /// gradients of outputs; its loss is one of these and means nothing.
    pub backward: Graph,
}

/// A result of a custom function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FunctionOutput {
    /// The tensor.
    pub value: ValueId,
    /// What stands for its gradient in the backward graph: zeros, where none arrives.
    pub gradient: Option<ValueId>,
    /// Whether it requires a gradient.
    pub differentiable: bool,
}

/// A custom function whose backward pass could not be traced. Autograd is taken to look inside of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UntracedFunction {
    /// The function's class.
    pub name: String,
    /// Why, as a clause.
    pub reason: String,
}

impl FunctionCall {
    /// The values of the forward pass that the call itself names.
    pub fn named(&self) -> impl Iterator<Item = ValueId> + '_ {
        let inputs = self.inputs.iter().map(|(id, _)| *id);
        let outputs = self.outputs.iter().map(|output| output.value);
        inputs.chain(outputs).chain(self.kept())
    }

    /// What outlives the nodes, apart from results.
    pub fn kept(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.saved.iter().chain(&self.held).map(|(id, _)| *id)
    }
}

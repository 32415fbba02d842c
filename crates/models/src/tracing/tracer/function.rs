//! Calls of custom `torch.autograd.Function`s.

use std::collections::BTreeSet;

use super::{State, Tensor, Tracer};
use crate::graph::{Builder, Content, FunctionCall, FunctionOutput, Graph, ValueId};
use crate::tracing::ModulePath;

impl Tracer {
    /// `Function.apply(input)` of a function of one tensor that saves its input and makes another tensor of its shape.
    /// `backward` gets what was saved and the gradient of the result, and returns that of the input.
    pub(crate) fn function(
        &self,
        name: &str,
        input: &Tensor,
        forward: impl FnOnce(&Tensor) -> Tensor,
        backward: impl FnOnce(&Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let start = self.0.borrow().builder.nodes().len();
        let output = forward(input);
        let end = self.0.borrow().builder.nodes().len();
        if self.0.borrow().error.is_some() || end == start {
            return output;
        }
        let inside = Tracer::new(&self.class(), self.dtype());
        let place = self.place();
        let saved = inside.like("saved", input);
        let gradient = inside.like("gradient", &output);
        let given = inside.in_module(&place, || backward(&saved, &gradient));
        let result = given.id();
        drop(given);
        let (saved_id, gradient_id) = (saved.id(), gradient.id());
        drop((saved, gradient));
        let graph = match inside.finish_backward(gradient_id) {
            Ok(graph) => graph,
            Err(error) => {
                self.0.borrow_mut().fail(error);
                return output;
            }
        };
        self.0.borrow_mut().functions.push(FunctionCall {
            name: name.to_owned(),
            nodes: start..end,
            inputs: vec![(input.id(), Some(result))],
            outputs: vec![FunctionOutput {
                value: output.id(),
                gradient: Some(gradient_id),
                differentiable: true,
            }],
            saved: vec![(input.id(), saved_id)],
            held: Vec::new(),
            cast_inputs: None,
            backward_autocast: false,
            backward: graph,
        });
        output
    }

    /// The class of the module being called.
    fn class(&self) -> String {
        let state = self.0.borrow();
        let call = *state.calls.last().expect("the root is always being called");
        state.builder.module_name(call).1.to_owned()
    }

    /// The module being called.
    fn place(&self) -> ModulePath {
        let path = self.0.borrow().module();
        ModulePath::new(path, self.class())
    }

    /// An input as another tracer's tensor is.
    fn like(&self, name: &str, tensor: &Tensor) -> Tensor {
        let dtype = tensor.dtype().dtype;
        let shape = tensor.shape();
        let id = self
            .0
            .borrow_mut()
            .builder
            .input(name, dtype, shape, Content::Normal);
        self.named(vec![id], false)
    }

    /// The graph of a backward pass, which has no loss: `any` of its values stands for one.
    fn finish_backward(self, any: ValueId) -> Result<Graph, crate::graph::GraphError> {
        let mut state = self.0.borrow_mut();
        state.is_over = true;
        let State {
            builder,
            releases,
            error,
            ..
        } = &mut *state;
        if let Some(error) = error.take() {
            return Err(error);
        }
        let builder = std::mem::replace(builder, Builder::new(""));
        let mut releases = std::mem::take(releases);
        let made = builder.nodes().iter().flat_map(|node| &node.outputs);
        releases.watched = made.copied().collect::<BTreeSet<_>>();
        let mut graph = builder.finish(any, any);
        graph.releases = Some(releases);
        Ok(graph)
    }
}

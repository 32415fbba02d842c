//! Makes graphs, one operation at a time, inferring every shape.

use std::collections::HashMap;

use super::{
    Content, Graph, Input, Module, ModuleId, Node, Parameter, ParameterKind, Value, ValueId,
};
use crate::limits::{begin_graph, grow, weight_of_rank};
use crate::ops::{Op, infer};
use crate::shape::{DType, Extent, is_oversize};

/// Why an operation was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot apply {op}{}: {problem}", path_within(module))]
pub struct GraphError {
    /// The operation's name.
    pub op: &'static str,
    /// The path of the module that runs it; empty for the root.
    pub module: String,
    /// What does not fit, with the sizes.
    pub problem: String,
}

fn path_within(module: &str) -> String {
    match module {
        "" => String::new(),
        path => format!(" in `{path}`"),
    }
}

/// Collects modules, parameters, inputs and operations in PyTorch's order.
#[derive(Debug)]
pub struct Builder {
    values: Vec<Value>,
    modules: Vec<Module>,
    /// Modules by path and by how often they had been called before.
    by_call: HashMap<(String, u32), ModuleId>,
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
    inputs: Vec<Input>,
    grad_enabled: bool,
    autocast_enabled: bool,
    /// Operands and results of all operations, and inputs, by [`weight_of_rank`].
    names: usize,
}

impl Builder {
    /// The module that everything else is inside of.
    pub const ROOT: ModuleId = ModuleId(0);

    /// A graph with nothing but a root module of this class.
    pub fn new(root_class: &str) -> Builder {
        begin_graph();
        Builder::empty(root_class)
    }

    fn empty(root_class: &str) -> Builder {
        let root = Module {
            path: String::new(),
            class: root_class.to_owned(),
            parent: None,
        };
        Builder {
            values: Vec::new(),
            modules: vec![root],
            by_call: HashMap::from([((String::new(), 0), Builder::ROOT)]),
            nodes: Vec::new(),
            parameters: Vec::new(),
            inputs: Vec::new(),
            grad_enabled: true,
            autocast_enabled: true,
            names: 0,
        }
    }

    /// The first call of the module at this path, made on first mention. `parent` is the module that
    /// calls it.
    pub fn module(&mut self, path: &str, class: &str, parent: ModuleId) -> ModuleId {
        self.call(path, class, parent, 0)
    }

    /// A later call of a module that is used more than once, such as the shared `relu` of a residual
    /// block: `earlier` says how many calls came before. Kept apart because what a call holds alive ends
    /// with that call.
    pub fn call(&mut self, path: &str, class: &str, parent: ModuleId, earlier: u32) -> ModuleId {
        let key = (path.to_owned(), earlier);
        if let Some(id) = self.by_call.get(&key) {
            return *id;
        }
        let id = ModuleId(u32::try_from(self.modules.len()).expect("fewer than 2^32 modules"));
        self.modules.push(Module {
            path: path.to_owned(),
            class: class.to_owned(),
            parent: Some(parent),
        });
        self.by_call.insert(key, id);
        id
    }

    /// Adds a parameter or buffer. Call in the order of `model.parameters()`, then buffers.
    pub fn parameter(
        &mut self,
        path: &str,
        kind: ParameterKind,
        dtype: DType,
        shape: Vec<Extent>,
    ) -> ValueId {
        // Nothing is kept of what is more than the thread may make: the first operation is refused then.
        if let (Some(last), Err(_)) = (self.parameters.last(), self.room_for(0)) {
            return last.value;
        }
        let value = self.add_value(path.to_owned(), dtype, shape);
        self.parameters.push(Parameter {
            value,
            path: path.to_owned(),
            kind,
            channels_last: false,
        });
        value
    }

    /// Says that the parameter that was added last lies channels-last.
    pub fn lay_last_channels_last(&mut self) {
        if let Some(last) = self.parameters.last_mut() {
            last.channels_last = true;
        }
    }

    /// Adds a tensor of the batch. Call in the order in which the training loop makes them.
    pub fn input(
        &mut self,
        name: &str,
        dtype: DType,
        shape: Vec<Extent>,
        content: Content,
    ) -> ValueId {
        // As with parameters.
        self.names += weight_of_rank(shape.len());
        if let (Some(last), Err(_)) = (self.inputs.last(), self.room_for(0)) {
            return last.value;
        }
        let value = self.add_value(name.to_owned(), dtype, shape);
        self.inputs.push(Input { value, content });
        value
    }

    /// Operations added from here on run with gradients on or off.
    pub fn set_grad_enabled(&mut self, enabled: bool) {
        self.grad_enabled = enabled;
    }

    /// Operations added from here on run under autocast, if the variant has it, or never.
    pub fn set_autocast_enabled(&mut self, enabled: bool) {
        self.autocast_enabled = enabled;
    }

    /// What a value counts in the size of the graph.
    pub fn weight_of(&self, id: ValueId) -> usize {
        weight_of_rank(self.value(id).shape.len())
    }

    /// An error where the graph may not grow by this much: to ask before many shapes are copied.
    pub fn room_for(&self, more: usize) -> Result<(), String> {
        grow(self.size() + more)
    }

    fn size(&self) -> usize {
        self.nodes.len() + self.names + self.parameters.len()
    }

    /// A graph that is kept together with this one, whose size counts in its own.
    #[must_use]
    pub fn inner(&self, root_class: &str) -> Builder {
        Builder {
            names: self.size(),
            ..Builder::empty(root_class)
        }
    }

    /// Says that an inner graph is kept.
    pub fn keep(&mut self, inner: &Builder) {
        self.names += inner.size().saturating_sub(self.size());
    }

    /// Adds an operation with one result.
    pub fn apply(
        &mut self,
        module: ModuleId,
        name: &str,
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> Result<ValueId, GraphError> {
        Ok(self.apply_many(module, &[name], op, inputs)?[0])
    }

    /// Adds an operation; `names` are its results' (missing ones are made from the first).
    pub fn apply_many(
        &mut self,
        module: ModuleId,
        names: &[&str],
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, GraphError> {
        let op = op.into();
        let read = inputs.iter();
        self.names += read.map(|id| self.weight_of(*id)).sum::<usize>();
        let size = self.size() + 1;
        let results = grow(size + 1)
            .and_then(|()| {
                let operands = inputs.iter().map(|id| self.value(*id));
                let operands: Vec<_> = operands.map(|it| (it.dtype, it.shape.clone())).collect();
                infer(&op, &operands)
            })
            .and_then(|results| {
                // One operation may have tens of thousands.
                let made = results.iter();
                let made = made
                    .map(|(_, shape)| weight_of_rank(shape.len()))
                    .sum::<usize>();
                self.names += made;
                grow(size + made)?;
                let oversize = results.iter().find(|(_, shape)| is_oversize(shape));
                oversize.map_or(Ok(()), |(_, shape)| {
                    Err(format!("the result {shape:?} is too large for any device"))
                })?;
                Ok(results)
            })
            .map_err(|problem| GraphError {
                op: op.name(),
                module: self.modules[module.0 as usize].path.clone(),
                problem,
            })?;
        let outputs = results
            .into_iter()
            .enumerate()
            .map(|(i, (dtype, shape))| {
                let name = match names.get(i) {
                    Some(name) => (*name).to_owned(),
                    None => format!("{}_{i}", names.first().unwrap_or(&op.name())),
                };
                self.add_value(name, dtype, shape)
            })
            .collect::<Vec<_>>();
        self.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            module,
            grad_enabled: self.grad_enabled,
            autocast_enabled: self.autocast_enabled,
        });
        Ok(outputs)
    }

    /// The tensor of this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The path and the class of a module.
    pub fn module_name(&self, id: ModuleId) -> (&str, &str) {
        let module = &self.modules[id.0 as usize];
        (&module.path, &module.class)
    }

    /// The operations added so far.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The finished graph: `prediction` is what the model returns, `loss` the scalar trained on.
    pub fn finish(self, prediction: ValueId, loss: ValueId) -> Graph {
        Graph {
            values: self.values,
            modules: self.modules,
            nodes: self.nodes,
            parameters: self.parameters,
            inputs: self.inputs,
            prediction,
            loss,
            loss_is_model_output: false,
            releases: None,
            functions: Vec::new(),
            untraced_functions: Vec::new(),
            max_batch: None,
        }
    }

    fn add_value(&mut self, name: String, dtype: DType, shape: Vec<Extent>) -> ValueId {
        let id = ValueId(u32::try_from(self.values.len()).expect("fewer than 2^32 values"));
        self.values.push(Value { name, dtype, shape });
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_of_a_module_is_made_once() {
        let mut builder = Builder::new("Net");
        let first = builder.module("relu", "ReLU", Builder::ROOT);
        let second = builder.call("relu", "ReLU", Builder::ROOT, 1);

        assert_ne!(first, second);
        assert_eq!(builder.call("relu", "ReLU", Builder::ROOT, 0), first);
        assert_eq!(builder.call("relu", "ReLU", Builder::ROOT, 1), second);
    }

    #[test]
    fn parameters_beyond_the_limit_are_not_kept() {
        let (kept, is_larger) = crate::limits::graphs_within(3, 0, || {
            let mut builder = Builder::new("Net");
            for index in 0..10 {
                let kind = ParameterKind::Trained;
                builder.parameter(&format!("{index}"), kind, DType::Float32, vec![Extent::ONE]);
            }
            builder.parameters.len()
        });

        assert_eq!((kept, is_larger), (4, true));
    }

    #[test]
    fn results_beyond_the_limit_are_not_kept() {
        let (kept, is_larger) = crate::limits::graphs_within(20, 0, || {
            let mut builder = Builder::new("Net");
            let shape = vec![Extent::ZERO];
            let x = builder.input("x", DType::Float32, shape, Content::Normal);
            for _ in 0..10 {
                let lengths = vec![Extent::ZERO; 16];
                let parts = crate::ops::View::Split { lengths, dim: 0 };
                let _ = builder.apply_many(Builder::ROOT, &["part"], parts, &[x]);
            }
            builder.values.len()
        });

        assert_eq!((kept, is_larger), (17, true));
    }

    #[test]
    fn dimensions_count_in_the_size_of_a_graph() {
        let (kept, is_larger) = crate::limits::graphs_within(100, 0, || {
            let mut builder = Builder::new("Net");
            let shape = vec![Extent::ONE; 64];
            let x = builder.input("x", DType::Float32, shape, Content::Normal);
            for _ in 0..10 {
                let _ = builder.apply(Builder::ROOT, "y", crate::ops::View::Alias, &[x]);
            }
            builder.values.len()
        });

        assert_eq!((kept, is_larger), (3, true));
    }

    #[test]
    fn results_that_no_device_holds_are_refused() {
        let mut builder = Builder::new("Net");
        let shape = vec![Extent::BATCH, Extent::ONE];
        let x = builder.input("x", DType::Float32, shape, Content::Normal);
        let wide = vec![Extent::BATCH, Extent::fixed(1 << 51)];

        let error = builder
            .apply(Builder::ROOT, "wide", crate::ops::View::Expand(wide), &[x])
            .unwrap_err();

        assert!(
            error
                .to_string()
                .starts_with("cannot apply expand: the result"),
            "{error}"
        );
    }
}

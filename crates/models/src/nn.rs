//! Layers as `torch.nn` makes them: the parameters each holds, and the operations its `forward` runs, in
//! PyTorch's order and under PyTorch's names.

use std::collections::HashMap;

use crate::aten::Constant;
use crate::graph::{Builder, Content, Graph, GraphError, ModuleId, ParameterKind, Value, ValueId};
use crate::ops::{Convolution, Elementwise, Embedding, Linear, Loss, Norm, Op, View};
use crate::program::{Placement, Unary};
use crate::shape::{DType, Extent, Window, is_oversize};

/// A network being built. Parameters may be added while operations are: [`Net::finish`] puts values into
/// the order of an exported graph.
#[derive(Debug)]
pub(crate) struct Net {
    builder: Builder,
    /// How many values have been named after each operation.
    named: HashMap<&'static str, u32>,
}

/// A module call to be made: its path, the module that calls it, and how often it was called before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) path: &'a str,
    pub(crate) parent: ModuleId,
    pub(crate) earlier: u32,
}

impl<'a> At<'a> {
    /// The first call of the module at this path.
    pub(crate) fn new(path: &'a str, parent: ModuleId) -> At<'a> {
        At {
            path,
            parent,
            earlier: 0,
        }
    }
}

/// Whether a layer has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    With,
    Without,
}

/// What `batch_norm` adds and keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    pub(crate) momentum: f64,
    pub(crate) eps: f64,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm {
            momentum: 0.1,
            eps: 1e-5,
        }
    }
}

impl Net {
    /// A network whose root is of this class.
    pub(crate) fn new(class: &str) -> Net {
        Net {
            builder: Builder::new(class),
            named: HashMap::new(),
        }
    }

    /// A tensor of the batch.
    pub(crate) fn input(
        &mut self,
        name: &str,
        dtype: DType,
        shape: Vec<Extent>,
        content: Content,
    ) -> ValueId {
        self.builder.input(name, dtype, shape, content)
    }

    /// The tensor of this id.
    pub(crate) fn value(&self, id: ValueId) -> &Value {
        self.builder.value(id)
    }

    /// A module that calls others.
    pub(crate) fn module(&mut self, at: At<'_>, class: &str) -> ModuleId {
        self.builder.call(at.path, class, at.parent, at.earlier)
    }

    /// An operation, run by `module`, with one result.
    pub(crate) fn apply(
        &mut self,
        module: ModuleId,
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> Result<ValueId, GraphError> {
        let op = op.into();
        let base = traced_name(&op);
        let earlier = self.named.entry(base).or_default();
        let name = match *earlier {
            0 => base.to_owned(),
            earlier => format!("{base}_{earlier}"),
        };
        *earlier += 1;
        self.builder.apply(module, &name, op, inputs)
    }

    /// `torch.nn.Conv2d`. The window's kernel is the weight's.
    pub(crate) fn conv2d(
        &mut self,
        at: At<'_>,
        input: ValueId,
        out_channels: u64,
        window: Window,
        bias: Bias,
    ) -> Result<ValueId, GraphError> {
        let module = self.module(at, "torch.nn.modules.conv.Conv2d");
        let problem = |problem: String| GraphError {
            op: "conv2d",
            module: at.path.to_owned(),
            problem,
        };
        let shape = &self.value(input).shape;
        let channels = match shape.as_slice() {
            [_, channels, _, _] => channels.as_fixed(),
            _ => None,
        };
        let channels = channels.ok_or_else(|| {
            problem(format!(
                "the input {shape:?} is not [batch, channels, height, width]"
            ))
        })?;
        if window.groups == 0
            || [channels, out_channels]
                .iter()
                .any(|n| !n.is_multiple_of(window.groups))
        {
            return Err(problem(format!(
                "{} groups do not divide {channels} input and {out_channels} output channels",
                window.groups
            )));
        }
        let weight = [
            out_channels,
            channels / window.groups,
            window.kernel[1],
            window.kernel[2],
        ];
        let mut operands = vec![input, self.parameter(at.path, "weight", "conv2d", &weight)?];
        if bias == Bias::With {
            operands.push(self.parameter(at.path, "bias", "conv2d", &[out_channels])?);
        }
        self.apply(module, Convolution::Plain(window), &operands)
    }

    /// `torch.nn.BatchNorm2d` in training mode: its counter, then the normalization.
    pub(crate) fn batch_norm2d(
        &mut self,
        at: At<'_>,
        input: ValueId,
        norm: BatchNorm,
    ) -> Result<ValueId, GraphError> {
        let module = self.module(at, "torch.nn.modules.batchnorm.BatchNorm2d");
        let shape = &self.value(input).shape;
        let channels = match shape.as_slice() {
            [_, channels, _, _] => channels.as_fixed(),
            _ => None,
        };
        let channels = channels.ok_or_else(|| GraphError {
            op: "batch_norm",
            module: at.path.to_owned(),
            problem: format!("the input {shape:?} is not [batch, channels, height, width]"),
        })?;
        let weight = self.parameter(at.path, "weight", "batch_norm", &[channels])?;
        let bias = self.parameter(at.path, "bias", "batch_norm", &[channels])?;
        let statistics = vec![Extent::fixed(channels)];
        let mean = self.buffer(at.path, "running_mean", DType::Float32, statistics.clone());
        let var = self.buffer(at.path, "running_var", DType::Float32, statistics);
        let tracked = self.buffer(at.path, "num_batches_tracked", DType::Int64, Vec::new());
        self.apply(
            module,
            Elementwise::of("aten.add_.Tensor").with("other", Constant::Whole(1)),
            &[tracked],
        )?;
        let op = Norm::Batch {
            training: true,
            momentum: norm.momentum,
            eps: norm.eps,
        };
        self.apply(module, op, &[input, weight, bias, mean, var])
    }

    /// `torch.nn.Linear`.
    pub(crate) fn linear(
        &mut self,
        at: At<'_>,
        input: ValueId,
        out_features: u64,
        bias: Bias,
    ) -> Result<ValueId, GraphError> {
        let module = self.module(at, "torch.nn.modules.linear.Linear");
        let shape = &self.value(input).shape;
        let features = match shape.as_slice() {
            [_, .., features] => features.as_fixed(),
            _ => None,
        };
        let features = features.ok_or_else(|| GraphError {
            op: "linear",
            module: at.path.to_owned(),
            problem: format!("the input {shape:?} is not [batch, ..., features]"),
        })?;
        let weight = self.parameter(at.path, "weight", "linear", &[out_features, features])?;
        let mut operands = vec![input, weight];
        if bias == Bias::With {
            operands.push(self.parameter(at.path, "bias", "linear", &[out_features])?);
        }
        self.apply(module, Linear::Linear, &operands)
    }

    /// `torch.nn.LayerNorm` over the last dimensions, of these lengths.
    pub(crate) fn layer_norm(
        &mut self,
        at: At<'_>,
        input: ValueId,
        normalized_shape: &[u64],
        eps: f64,
    ) -> Result<ValueId, GraphError> {
        let module = self.module(at, "torch.nn.modules.normalization.LayerNorm");
        let weight = self.parameter(at.path, "weight", "layer_norm", normalized_shape)?;
        let bias = self.parameter(at.path, "bias", "layer_norm", normalized_shape)?;
        let op = Norm::Layer {
            dims: normalized_shape.len(),
            eps,
        };
        self.apply(module, op, &[input, weight, bias])
    }

    /// `torch.nn.Embedding`.
    pub(crate) fn embedding(
        &mut self,
        at: At<'_>,
        indices: ValueId,
        num_embeddings: u64,
        embedding_dim: u64,
    ) -> Result<ValueId, GraphError> {
        let module = self.module(at, "torch.nn.modules.sparse.Embedding");
        let weight = self.parameter(
            at.path,
            "weight",
            "embedding",
            &[num_embeddings, embedding_dim],
        )?;
        self.apply(module, Embedding { padding: None }, &[weight, indices])
    }

    /// `x.flatten(start)`, run by `module`.
    pub(crate) fn flatten(
        &mut self,
        module: ModuleId,
        input: ValueId,
        start: usize,
    ) -> Result<ValueId, GraphError> {
        let shape = &self.value(input).shape;
        let Some((kept, joined)) = shape.split_at_checked(start).filter(|(_, j)| !j.is_empty())
        else {
            return Err(GraphError {
                op: "flatten",
                module: String::new(),
                problem: format!("there is no dimension {start} in {shape:?}"),
            });
        };
        let mut to = kept.to_vec();
        to.push(crate::shape::numel(joined));
        self.apply(module, View::Reshape(to), &[input])
    }

    /// The finished graph, its values in the order of an exported one: parameters, buffers, batch, then
    /// results.
    pub(crate) fn finish(self, prediction: ValueId, loss: ValueId) -> Graph {
        in_order_of_exports(self.builder.finish(prediction, loss))
    }

    fn parameter(
        &mut self,
        path: &str,
        name: &str,
        op: &'static str,
        sizes: &[u64],
    ) -> Result<ValueId, GraphError> {
        let shape: Vec<Extent> = sizes.iter().copied().map(Extent::fixed).collect();
        if is_oversize(&shape) {
            return Err(GraphError {
                op,
                module: path.to_owned(),
                problem: format!("the {name} {sizes:?} is too large for any device"),
            });
        }
        let path = format!("{path}.{name}");
        Ok(self
            .builder
            .parameter(&path, ParameterKind::Trained, DType::Float32, shape))
    }

    fn buffer(&mut self, path: &str, name: &str, dtype: DType, shape: Vec<Extent>) -> ValueId {
        let path = format!("{path}.{name}");
        self.builder
            .parameter(&path, ParameterKind::Buffer, dtype, shape)
    }
}

/// A graph with its values in the order of an exported one: parameters, buffers, batch, then results.
pub(crate) fn in_order_of_exports(mut graph: Graph) -> Graph {
    graph
        .parameters
        .sort_by_key(|parameter| parameter.kind == ParameterKind::Buffer);
    let held = graph.parameters.iter().map(|parameter| parameter.value);
    let batch = graph.inputs.iter().map(|input| input.value);
    let results = graph
        .nodes
        .iter()
        .flat_map(|node| node.outputs.iter().copied());
    let order: Vec<ValueId> = held.chain(batch).chain(results).collect();
    let mut position = vec![ValueId(0); graph.values.len()];
    for (new, old) in (0..).map(ValueId).zip(&order) {
        position[old.0 as usize] = new;
    }
    let place = |id: &mut ValueId| *id = position[id.0 as usize];

    graph.values = order
        .iter()
        .map(|old| graph.values[old.0 as usize].clone())
        .collect();
    graph
        .parameters
        .iter_mut()
        .for_each(|parameter| place(&mut parameter.value));
    graph
        .inputs
        .iter_mut()
        .for_each(|input| place(&mut input.value));
    for node in &mut graph.nodes {
        node.inputs.iter_mut().for_each(place);
        node.outputs.iter_mut().for_each(place);
    }
    if let Some(releases) = &mut graph.releases {
        let watched = std::mem::take(&mut releases.watched);
        let watched = watched.into_iter().map(|id| position[id.0 as usize]);
        releases.watched = watched.collect();
        releases.after.values_mut().flatten().for_each(place);
        let checks = releases.packed_checks.iter_mut();
        checks.for_each(|(_, id)| place(id));
        releases.dtypes_of.values_mut().flatten().for_each(place);
    }
    for call in &mut graph.functions {
        call.inputs.iter_mut().for_each(|(id, _)| place(id));
        call.outputs
            .iter_mut()
            .for_each(|out| place(&mut out.value));
        let kept = call.saved.iter_mut().chain(&mut call.held);
        kept.for_each(|(id, _)| place(id));
    }
    place(&mut graph.prediction);
    place(&mut graph.loss);
    graph
}

/// The name that tracing gives to the first result of an operation.
fn traced_name(op: &Op) -> &'static str {
    match op {
        Op::View(View::Reshape(_)) => "flatten",
        Op::Loss(Loss::CROSS_ENTROPY) => "cross_entropy_loss",
        op => op.name(),
    }
}

/// An elementwise function.
pub(crate) fn unary(function: Unary, placement: Placement) -> Op {
    let target = match placement {
        Placement::New => format!("aten.{}.default", function.name()),
        Placement::InPlace => format!("aten.{}_.default", function.name()),
    };
    let op = Elementwise::of(&target);
    match function {
        Unary::GeluTanh => op.with("approximate", Constant::Text("tanh".into())),
        Unary::Relu
        | Unary::Gelu
        | Unary::Tanh
        | Unary::Silu
        | Unary::Sigmoid
        | Unary::Relu6
        | Unary::Rsqrt
        | Unary::Cos
        | Unary::Sin => op,
    }
    .into()
}

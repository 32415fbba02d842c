//! Runs the graph's operations in order, and lets values die when Python would.
//!
//! See Note [How long values live].

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::checkpoint::{Frame, regions};
use super::eager::{Eager, Stop};
use super::lifetimes::{deaths, packed_checks};
use super::ops::Direction;
use super::tensor::Tensor;
use crate::graph::{DType, Graph, Node, Op, ParameterKind, Placement, ValueId};
use crate::model::{Mode, Variant};

/// Values alive in Python, by name.
pub(super) type Environment = BTreeMap<ValueId, Tensor>;

/// A graph made ready to run: parameters on the device, lifetimes known.
pub(super) struct Forward {
    graph: Rc<Graph>,
    parameters: BTreeMap<ValueId, Tensor>,
    /// The values that die after each node.
    deaths: Vec<Vec<ValueId>>,
    labels: Vec<Arc<str>>,
    /// Nodes at which eager PyTorch also looks for packed sequences.
    packed_checks: Vec<usize>,
    regions: Vec<Range<usize>>,
    mode: Mode,
    /// What the model's parameters are stored in.
    parameter_type: DType,
}

impl Forward {
    /// Prepares a graph whose parameters have been constructed.
    pub(super) fn new(
        graph: &Rc<Graph>,
        variant: &Variant,
        parameters: BTreeMap<ValueId, Tensor>,
    ) -> Forward {
        let label = |node: &Node| {
            let path = &graph.module(node.module).path;
            let space = if path.is_empty() { "" } else { " " };
            Arc::from(format!("{path}{space}{}", node.op.name()))
        };
        Forward {
            deaths: deaths(graph),
            packed_checks: packed_checks(graph),
            labels: graph.nodes.iter().map(label).collect(),
            regions: match variant.mode {
                Mode::Train => regions(graph, &variant.checkpointing),
                Mode::Inference => Vec::new(),
            },
            graph: Rc::clone(graph),
            parameters,
            mode: variant.mode,
            parameter_type: variant.precision.parameters(),
        }
    }

    /// The nodes that run: all of them, or up to the prediction in inference.
    pub(super) fn nodes(&self) -> Range<usize> {
        let last = match self.mode {
            Mode::Train => self.graph.loss,
            Mode::Inference => self.graph.prediction,
        };
        let made = self
            .graph
            .nodes
            .iter()
            .position(|node| node.outputs.contains(&last));
        0..made.map_or(0, |node| node + 1)
    }

    /// Runs these nodes on these values.
    pub(super) fn run(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        nodes: Range<usize>,
    ) -> Result<(), Stop> {
        let mut next = nodes.start;
        while next < nodes.end {
            let region = self
                .regions
                .iter()
                .find(|r| r.start == next && **r != nodes);
            if let Some(region) = region {
                let inputs = self.read_from_outside(region, environment);
                let frame = Frame::new(self, region.clone(), inputs, eager.autocast);
                eager.dropping(&frame, |eager| self.run(eager, environment, region.clone()))?;
                next = region.end;
            } else {
                self.step(eager, environment, next)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Runs one node and lets go of what dies with it.
    fn step(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        index: usize,
    ) -> Result<(), Stop> {
        let node = &self.graph.nodes[index];
        eager.set_label(&self.labels[index]);
        let grad_enabled = eager.grad_enabled;
        eager.grad_enabled &= node.grad_enabled;
        let result = self.execute(eager, environment, node);
        eager.grad_enabled = grad_enabled;
        for (id, tensor) in node.outputs.iter().zip(result?) {
            environment.insert(*id, tensor);
        }
        if self.packed_checks.contains(&index)
            && let Op::Expand(shape) = &node.op
        {
            eager.packed_sequence_check(shape[0], shape[1]);
        }
        for id in &self.deaths[index] {
            environment.remove(id);
        }
        Ok(())
    }

    /// Values that a region reads and does not make, parameters apart.
    fn read_from_outside(
        &self,
        region: &Range<usize>,
        environment: &Environment,
    ) -> Vec<(ValueId, Tensor)> {
        let mut read: Vec<ValueId> = self.graph.nodes[region.clone()]
            .iter()
            .flat_map(|node| node.inputs.clone())
            .collect();
        read.sort_unstable();
        read.dedup();
        read.into_iter()
            .filter_map(|id| {
                environment
                    .get(&id)
                    .map(|tensor| (id, Tensor::clone(tensor)))
            })
            .collect()
    }

    fn execute(
        &self,
        eager: &mut Eager,
        environment: &Environment,
        node: &Node,
    ) -> Result<Vec<Tensor>, Stop> {
        let operand = |index: usize| -> Option<Tensor> {
            let id = node.inputs.get(index)?;
            environment
                .get(id)
                .or_else(|| self.parameters.get(id))
                .map(Tensor::clone)
        };
        let the = |index: usize| operand(index).expect("nodes run after what they read");
        let inference = self.mode == Mode::Inference;
        let one = match &node.op {
            Op::Linear => eager.linear(&the(0), &the(1), operand(2).as_ref())?,
            Op::Addmm => eager.addmm(&the(0), &the(1), &the(2))?,
            Op::Conv2d(window) => {
                let (plain, bias) = (Direction::Plain, operand(2));
                eager.convolution(window, plain, [&the(0), &the(1)], bias.as_ref())?
            }
            Op::ConvTranspose2d(window) => {
                let (transposed, bias) = (Direction::Transposed, operand(2));
                eager.convolution(window, transposed, [&the(0), &the(1)], bias.as_ref())?
            }
            Op::Matmul => eager.matmul(&the(0), &the(1))?,
            Op::Bmm => eager.bmm(&the(0), &the(1))?,
            Op::Baddbmm { scaled } => eager.baddbmm([&the(0), &the(1), &the(2)], *scaled)?,
            Op::Pointwise(pointwise) => {
                let operands: Vec<Tensor> = (0..node.inputs.len()).map(the).collect();
                eager.pointwise(*pointwise, &operands)?
            }
            Op::Indexed(indexed) => {
                let operands: Vec<Tensor> = (0..node.inputs.len()).map(the).collect();
                let shape = |id: &ValueId| self.graph.value(*id).shape.clone();
                let shapes: Vec<_> = node.outputs.iter().map(shape).collect();
                return eager.indexed(indexed, &operands, &shapes);
            }
            Op::Create(create) => eager.create(create, self.parameter_type, operand(0).as_ref()),
            Op::Softmax { log, dtype } => eager.softmax(&the(0), *log, *dtype)?,
            Op::BatchNorm {
                training,
                momentum,
                eps,
            } => {
                let operands = [&the(0), &the(1), &the(2), &the(3), &the(4)];
                if *training && !inference {
                    eager.batch_norm(operands, *momentum, *eps)?
                } else {
                    eager.batch_norm_inference(operands, *eps)?
                }
            }
            Op::LayerNorm { dims, eps } => {
                eager.layer_norm(&the(0), &the(1), &the(2), *dims, *eps)?
            }
            Op::Unary { function, in_place } => eager.unary(*function, *in_place, &the(0))?,
            Op::Add(Placement::New) => eager.add(&the(0), &the(1)),
            Op::Add(Placement::InPlace) => eager.add_in_place(&the(0), &the(1)),
            Op::Mul => eager.mul(&the(0), &the(1))?,
            Op::AddScalar(_, Placement::InPlace) if inference && self.is_buffer(node.inputs[0]) => {
                the(0)
            }
            Op::AddScalar(scalar, placement) => eager.add_scalar(&the(0), *scalar, *placement),
            Op::MulScalar(scalar) => eager.mul_scalar(&the(0), *scalar),
            Op::PowScalar(exponent) => eager.pow_scalar(&the(0), *exponent)?,
            Op::Dropout { p, train } if *train && !inference && *p > 0.0 => {
                eager.dropout(&the(0), *p)?
            }
            Op::Dropout { .. } | Op::Alias => the(0),
            Op::MaxPool2d(window) => eager.max_pool2d(*window, &the(0))?,
            Op::AdaptiveAvgPool2d { output } => eager.adaptive_avg_pool2d(*output, &the(0))?,
            Op::Embedding => eager.embedding(&the(0), &the(1))?,
            Op::Reshape(shape) => eager.reshape(&the(0), shape),
            Op::Permute(order) => eager.permute(&the(0), order),
            Op::Unsqueeze(dim) => eager.unsqueeze(&the(0), *dim),
            Op::Expand(shape) => eager.expand(&the(0), shape),
            Op::Slice {
                dim,
                start,
                end,
                step,
            } => eager.slice(&the(0), *dim, (*start, *end, *step)),
            Op::Select { dim, index } => eager.select(&the(0), *dim, *index),
            Op::Gather { dim } => eager.gather(&the(0), &the(1), *dim)?,
            Op::Reduce {
                function,
                dims,
                keep,
            } => eager.reduction(*function, &the(0), dims, *keep),
            Op::Split { lengths, dim } => return Ok(eager.split(&the(0), lengths, *dim)),
            Op::Unbind { dim } => return Ok(eager.unbind(&the(0), *dim)),
            Op::Cat { dim } => {
                let parts: Vec<Tensor> = (0..node.inputs.len()).map(the).collect();
                eager.cat(&parts, *dim)
            }
            Op::Stack { dim } => {
                let parts: Vec<Tensor> = (0..node.inputs.len()).map(the).collect();
                eager.stack(&parts, *dim)
            }
            Op::Roll { dims } => eager.roll(&the(0), *dims),
            Op::Flip => eager.flip(&the(0)),
            Op::Repeat(times) => eager.repeat(&the(0), times),
            Op::Contiguous => eager.contiguous(&the(0)),
            Op::Clone => eager.clone_of(&the(0)),
            Op::Detach => the(0).detached(),
            // A graph is exported in float32; in a pure half run its casts to float32 that only undo
            // an earlier cast are the identity. See Note [Casts in an exported graph].
            Op::Cast(dtype) => eager.cast(&the(0), *dtype),
            Op::PadLast { before, after } => eager.pad_last(&the(0), *before, *after),
            Op::Arange(end) => eager.arange(*end),
            Op::Attention {
                causal,
                dropout,
                grouped,
            } => {
                let dropout = if inference { 0.0 } else { *dropout };
                eager.attention([&the(0), &the(1), &the(2)], *causal, dropout, *grouped)?
            }
            Op::CrossEntropy => eager.cross_entropy(&the(0), &the(1))?,
        };
        Ok(vec![one])
    }

    fn is_buffer(&self, id: ValueId) -> bool {
        self.graph
            .parameters
            .iter()
            .any(|parameter| parameter.value == id && parameter.kind == ParameterKind::Buffer)
    }
}

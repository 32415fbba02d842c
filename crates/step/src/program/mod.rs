//! The program of a training step: a flat list of allocations, launches and frees.
//!
//! It is compiled once for a graph and a variant; sizes are functions of the batch, so one program serves
//! every batch. It is the common currency between what produces steps (the compiler, recorded traces) and
//! what runs them (probes, on simulated or real memory).

mod architecture;
mod capability;
mod communication;
mod convolution;
mod generated;
mod kernel;
mod operand;
mod unary;
mod work;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::shape::{DType, Extent};
use crate::units::Bytes;

pub use architecture::{ARCHITECTURES, Architecture, AttentionKernels, Flash};
pub use capability::Capability;
pub use convolution::{
    Convolution, ConvolutionLayer, ConvolutionPass, ConvolutionShape, Operands, Operation,
};
pub use generated::{Form, Generated, Number, Text};
pub use kernel::{Binary, Call, Collective, Initial, Kernel, Reduction, View};
pub use operand::Operand;
pub use unary::{Placement, Unary};
pub use work::{Host, Mask, Moving, Tick, Timeline, Updating, Work, WorkId};

/// Names an allocation of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// Names a size of one program. Most tensors are as large as others, so there are few.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeId(pub u32);

/// Names a convolution of one program. Those that a library cannot tell apart are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConvolutionId(pub u32);

listed! {
    /// What an allocation is for: the categories of a report.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum Category {
        /// Parameters and buffers.
        Parameters,
        /// Gradients of parameters.
        Gradients,
        /// What the optimizer keeps between steps.
        OptimizerState,
        /// What a step of the optimizer takes and gives back.
        OptimizerScratch,
        /// The batch.
        Batch,
        /// Results of the forward pass, and what it saves for the backward pass.
        Activations,
        /// Gradients of activations.
        ActivationGradients,
        /// Scratch memory that libraries ask for.
        Workspace,
        /// Buckets of gradients, and messages to other GPUs.
        Communication,
    }
}

/// How large an allocation is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Size {
    /// So many elements of this type.
    Elements(Extent, DType),
    /// The same for every batch.
    Fixed(Bytes),
    /// Any function of the batch: scratch buffers whose shape follows from a library's launch rules.
    /// Zero means that no allocation takes place.
    Function(SizeFunction),
    /// Whatever the plan for this convolution wants at this batch.
    Workspace(ConvolutionId),
}

impl Size {
    /// Bytes at a batch size; `None` for a convolution's workspace, which depends on the plan. Saturates: a
    /// size past `u64` fits nowhere anyway.
    pub fn at(&self, batch: u64) -> Option<Bytes> {
        match self {
            Size::Elements(count, dtype) => {
                Some(Bytes(count.at(batch).saturating_mul(dtype.size())))
            }
            Size::Fixed(bytes) => Some(*bytes),
            Size::Function(function) => Some(Bytes((function.bytes)(batch))),
            Size::Workspace(_) => None,
        }
    }
}

/// A rule for the size of a scratch buffer.
#[derive(Clone)]
pub struct SizeFunction {
    /// The rule's name, for dumps.
    pub name: &'static str,
    /// Bytes at a batch size.
    pub bytes: Arc<dyn Fn(u64) -> u64 + Send + Sync>,
}

impl std::fmt::Debug for SizeFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}(b)", self.name)
    }
}

impl PartialEq for SizeFunction {
    fn eq(&self, other: &SizeFunction) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.bytes, &other.bytes)
    }
}

impl Eq for SizeFunction {}

impl Hash for SizeFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.bytes).cast::<()>().hash(state);
    }
}

/// An allocation of the program.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// How large.
    pub size: SizeId,
    /// What for.
    pub category: Category,
    /// Which parameter, input or operation: `layer3.0.conv2.weight`, `layer3.0.bn2 batch_norm`.
    pub label: Arc<str>,
    /// The stream that it is allocated on; 0 is the default one.
    pub stream: u8,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq)]
pub enum Instruction {
    /// Allocate a tensor.
    Allocate(TensorId),
    /// Launch an operation on allocated tensors.
    Launch(Box<Call>),
    /// Free a tensor.
    Free(TensorId),
}

/// Instructions that run a number of times in a row.
///
/// What is to run more than once frees all that it allocates, and frees nothing else: then the same names serve
/// every time, and a step of a million micro-steps takes no more room than one of two.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// In order.
    pub instructions: Vec<Instruction>,
    /// How often they run.
    pub times: u32,
}

impl Section {
    /// Instructions that run once.
    pub fn once(instructions: Vec<Instruction>) -> Section {
        Section {
            instructions,
            times: 1,
        }
    }
}

/// Construction and training steps of one graph under one variant.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// All allocations; [`TensorId`] is an index.
    pub tensors: Vec<Tensor>,
    /// How large tensors are; [`SizeId`] is an index.
    pub sizes: Vec<Size>,
    /// All convolutions that want workspaces, each once; [`ConvolutionId`] is an index.
    pub convolutions: Vec<ConvolutionShape>,
    /// `model.to("cuda")`.
    pub construction: Vec<Instruction>,
    /// The steps: the first also makes library workspaces and optimizer state, and the last of these is every later one.
    pub steps: Vec<Vec<Section>>,
    /// Batches that go through the model in each step.
    pub micro_steps: u32,
    /// What a later step asks of the card and of the host.
    pub timeline: Timeline,
    /// Bytes that the process keeps in the host's memory for as long as it trains, because they are offloaded there.
    pub host_bytes: u64,
}

impl Program {
    /// The allocation of this name.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// The paths of parameters that were moved into a buffer with others, by the buffer and the elements before them.
    pub fn parts(&self) -> HashMap<(TensorId, Extent), Arc<str>> {
        let part = |instruction: &Instruction| {
            let Instruction::Launch(call) = instruction else {
                return None;
            };
            let (from, to) = (call.inputs.first()?, call.outputs.first()?);
            let is_moved = call.kernel == Kernel::Copy
                && [from, to]
                    .iter()
                    .all(|view| self.tensor(view.tensor).category == Category::Parameters);
            let path = Arc::clone(&self.tensor(from.tensor).label);
            is_moved.then_some(((to.tensor, to.offset), path))
        };
        self.construction.iter().filter_map(part).collect()
    }

    /// How large an allocation is.
    pub fn size(&self, id: TensorId) -> &Size {
        &self.sizes[self.tensor(id).size.0 as usize]
    }

    /// Bytes of every size, by [`SizeId`]; zero for convolutions' workspaces, which depend on the plan.
    pub fn sizes_at(&self, batch: u64) -> Vec<Bytes> {
        let bytes = |size: &Size| size.at(batch).unwrap_or(Bytes::ZERO);
        self.sizes.iter().map(bytes).collect()
    }

    /// Bytes of every tensor at a batch size; zero for convolutions' workspaces, which depend on the plan.
    pub fn bytes_at(&self, batch: u64) -> Vec<Bytes> {
        let by_size = self.sizes_at(batch);
        let tensors = self.tensors.iter();
        tensors
            .map(|tensor| by_size[tensor.size.0 as usize])
            .collect()
    }

    /// The convolution of this name.
    pub fn convolution(&self, id: ConvolutionId) -> &ConvolutionShape {
        &self.convolutions[id.0 as usize]
    }

    /// Each of `count` steps.
    pub fn steps(&self, count: usize) -> impl Iterator<Item = &[Section]> {
        let last = self.steps.last().into_iter().cycle();
        let steps = self.steps.iter().chain(last).take(count);
        steps.map(Vec::as_slice)
    }

    /// Whether the last step frees all that it allocates and nothing else, as what runs again should: then it ends
    /// with the tensors that it began with.
    pub fn last_step_is_closed(&self) -> bool {
        let mut is_alive = vec![false; self.tensors.len()];
        let mut alive = 0_usize;
        for section in self.steps.last().into_iter().flatten() {
            for instruction in &section.instructions {
                let (id, allocates) = match instruction {
                    Instruction::Allocate(id) => (id, true),
                    Instruction::Free(id) => (id, false),
                    Instruction::Launch(_) => continue,
                };
                let is_alive = &mut is_alive[id.0 as usize];
                if *is_alive == allocates {
                    return false;
                }
                *is_alive = allocates;
                alive = if allocates { alive + 1 } else { alive - 1 };
            }
        }
        alive == 0
    }

    /// Every instruction of construction and of `count` steps, those that run again too.
    pub fn unrolled(&self, count: usize) -> impl Iterator<Item = &Instruction> {
        let sections = self.steps(count).flatten();
        let repeated = sections.flat_map(|section| {
            std::iter::repeat_n(&section.instructions, section.times as usize).flatten()
        });
        self.construction.iter().chain(repeated)
    }

    /// How many instructions [`Program::unrolled`] gives.
    pub fn unrolled_length(&self, count: usize) -> u64 {
        let sections = self.steps(count).flatten();
        let lengths =
            sections.map(|section| section.instructions.len() as u64 * u64::from(section.times));
        self.construction.len() as u64 + lengths.sum::<u64>()
    }
}

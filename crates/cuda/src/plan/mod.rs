//! What a launch does, decided before anything is queued.
//!
//! [`steps`] is a pure function of a call, its operands' addresses and what is known of the card: it gives the kernels and
//! library calls that make up the launch, or the reason why there are none. So what a GPU cannot run is known without
//! one: [`survey`].

mod calls;
mod gaps;

use std::ffi::c_void;
use std::ptr;

use crate::device::LaunchError;
use crate::units::Bytes;

use super::generate::{Changing, GeneratedLaunch, Source};
use super::layout::{Operand, Operands};
use super::nccl::CollectiveCall;
use super::ops::convolution::ConvolutionCall;
use super::ops::fused_attention::FusedCall;
use super::ops::matmul::Product;
use super::shared::Shared;

pub(super) use calls::{Context, is_source, steps};
pub use gaps::{Gap, Sources, Survey, listed, survey};

/// The parameter of a kernel: a struct passed by value.
///
/// # Safety
///
/// Every kernel it is launched with takes exactly one parameter, a struct of the same name (whose fields are then the
/// same: `check_kernels`).
pub(super) unsafe trait Arguments: Shared + Copy + 'static {}

/// How many blocks, and how many threads in each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) blocks: [u32; 2],
    pub(super) threads: [u32; 2],
}

/// What is known of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u64,
    /// Bytes that a block may share when its kernel asks for them.
    pub shared_memory: u32,
    /// Memory for partial results: its address and its size.
    pub scratch: (u64, Bytes),
}

/// Room for partial sums and the matrix library's workspace. Large enough for two float32 sums of every
/// entry of a position table (1024 x 768), and what cuBLAS wants for splitting a product.
pub(super) const SCRATCH: Bytes = Bytes::mib(16);

impl Target {
    /// A card of this kind, with the scratch memory that a launcher takes.
    pub fn of(capability: &crate::device::Capability) -> Target {
        Target {
            compute: capability.compute,
            multiprocessors: capability.multiprocessors.max(1),
            shared_memory: shared_memory(capability.compute),
            scratch: (1 << 20, SCRATCH),
        }
    }
}

/// Bytes that a block may share at most ("Maximum amount of shared memory per thread block", CUDA C++ Programming Guide,
/// table of technical specifications per compute capability).
pub(super) fn shared_memory((major, minor): (u32, u32)) -> u32 {
    let kib = match (major, minor) {
        (0..=6, _) => 48,
        (7, 0..=4) => 96,
        (7, _) => 64,
        (8, 0 | 7) => 163,
        (9..=11, _) => 227,
        (8 | 12.., _) => 99,
    };
    kib << 10
}

/// Which code a kernel is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Code {
    /// One of those written by hand.
    Written(&'static str),
    /// A generated one: its text, and its name there.
    Generated(Source, &'static str),
}

impl Code {
    /// The name of the kernel.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Code::Written(name) | Code::Generated(_, name) => name,
        }
    }
}

/// A kernel to be queued.
pub(super) struct KernelLaunch {
    pub(super) code: Code,
    pub(super) grid: Grid,
    /// Bytes that its blocks share beyond those it declares.
    pub(super) shared: u32,
    pub(super) parameter: Box<dyn Parameter>,
}

/// One thing to be queued.
pub(super) enum Step {
    Kernel(KernelLaunch),
    Product(Product),
    Convolution(ConvolutionCall),
    /// Attention by the library, or by other kernels where it takes it not.
    FusedAttention(Box<FusedCall>),
    /// The loss to be read back.
    ObserveLoss(Operand),
    /// What all ranks do together.
    Collective(CollectiveCall),
}

/// A kernel's parameter, whatever its type.
pub(super) trait Parameter {
    /// Where it lies, for as long as it lives.
    fn address(&self) -> *mut c_void;

    /// Brings up to date what changes when the same call is launched again.
    fn update(&mut self, operands: &Operands<'_>, seed: u64);
}

struct Passed<A>(A);

impl<A: Arguments> Parameter for Passed<A> {
    fn address(&self) -> *mut c_void {
        ptr::from_ref(&self.0).cast_mut().cast()
    }

    // Made again for each launch.
    fn update(&mut self, _operands: &Operands<'_>, _seed: u64) {}
}

/// The parameter of a generated kernel.
pub(super) struct KernelParameter {
    words: Vec<u64>,
    changing: Changing,
}

impl Parameter for KernelParameter {
    fn address(&self) -> *mut c_void {
        self.words.as_ptr().cast_mut().cast()
    }

    fn update(&mut self, operands: &Operands<'_>, seed: u64) {
        for (word, position) in &self.changing.addresses {
            let operand = match position.checked_sub(self.changing.inputs) {
                None => operands.inputs().get(*position),
                Some(output) => operands.outputs().get(output),
            };
            if let (Some(word), Some(operand)) = (self.words.get_mut(*word), operand) {
                *word = operand.address;
            }
        }
        for word in &self.changing.seeds {
            if let Some(word) = self.words.get_mut(*word) {
                *word = seed;
            }
        }
    }
}

/// Whether kernels or a library take a call.
pub(super) type Queued = Result<(), LaunchError>;

/// The steps of a launch, as they are found.
pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) steps: Vec<Step>,
}

impl Plan {
    pub(super) fn new(target: Target) -> Plan {
        Plan {
            target,
            steps: Vec::new(),
        }
    }

    /// Adds a kernel.
    pub(super) fn launch<A: Arguments>(&mut self, kernel: &'static str, grid: Grid, arguments: &A) {
        self.launch_with_shared(kernel, grid, 0, arguments);
    }

    /// Adds a kernel whose blocks share so many bytes beyond those it declares.
    pub(super) fn launch_with_shared<A: Arguments>(
        &mut self,
        kernel: &'static str,
        grid: Grid,
        shared: u32,
        arguments: &A,
    ) {
        self.steps.push(Step::Kernel(KernelLaunch {
            code: Code::Written(kernel),
            grid,
            shared,
            parameter: Box::new(Passed(*arguments)),
        }));
    }

    /// Adds a generated kernel.
    pub(super) fn launch_generated(&mut self, launch: GeneratedLaunch) {
        self.steps.push(Step::Kernel(KernelLaunch {
            code: Code::Generated(launch.source, launch.entry),
            grid: Grid {
                blocks: launch.blocks.map(clamp),
                threads: launch.threads,
            },
            shared: 0,
            parameter: Box::new(KernelParameter {
                words: launch.words,
                changing: launch.changing,
            }),
        }));
    }

    /// Blocks of 256 threads for so many independent pieces of work, which the kernel loops over: enough
    /// to fill the card, no more.
    pub(super) fn spread(&self, work: u64) -> Grid {
        let full = self.multiprocessors() * 32;
        Grid {
            blocks: [clamp(work.div_ceil(256).min(full)), 1],
            threads: [256, 1],
        }
    }

    /// Multiprocessors of the card.
    pub(super) fn multiprocessors(&self) -> u64 {
        self.target.multiprocessors
    }

    /// Scratch memory, to be used before the next launch only.
    pub(super) fn scratch(&self) -> (u64, Bytes) {
        self.target.scratch
    }
}

/// A block count as the driver wants it: at least one.
pub(super) fn clamp(blocks: u64) -> u32 {
    u32::try_from(blocks.max(1)).unwrap_or(i32::MAX as u32)
}

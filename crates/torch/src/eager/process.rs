//! PyTorch's eager mode without values: the state that operations run in.

use std::cell::Cell;
use std::fmt;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;

use super::autocast::CastCache;
use super::autograd::{Hook, OpRecord, Slot};
use super::checkpoint::{Frame, Recomputation};
use super::host_number::by_value;
use super::recorder::{Recorder, Storage};
use super::tensor::{History, Leaf, Tensor, TensorBody};
use crate::limits::Cancel;
use crate::program::{
    Architecture, Call, Capability, Category, ConvolutionShape, Host, Kernel, Operand, Size, Work,
};
use crate::shape::{DType, Extent, Sizes, contiguous_strides};
use crate::units::Bytes;

/// What an operation makes, or why it stopped.
pub type Outputs = Result<Vec<Tensor>, Stop>;

/// The same of one that has one result.
pub type Output = Result<Tensor, Stop>;

/// Why operations stop before the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Early stop of a recomputation: everything that was saved is there again.
    ///
    /// It unwinds like the exception that `torch.utils.checkpoint` raises from the pack hook.
    Restored,
    /// Compilation was cancelled.
    Cancelled,
}

/// Which of the two threads runs: each has its own library handles, and so its own workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thread {
    /// The Python thread.
    Main,
    /// The autograd engine's device thread.
    Backward,
}

/// Workspaces that a thread's library handles keep.
#[derive(Debug, Default)]
struct Handles {
    blas: Option<Rc<Storage>>,
    blas_lt: Option<Rc<Storage>>,
}

/// What happens to tensors that operations save.
#[derive(Debug)]
enum Packing {
    /// They are kept.
    Keep,
    /// A checkpointed region runs forward: they are dropped.
    Drop(Rc<Frame>),
    /// A checkpointed region runs again: they are put where the first run left notes.
    Restore(Recomputation),
}

/// Is told of each parameter's gradient when a backward pass has completed it.
pub trait Watcher: fmt::Debug {
    /// The gradient is where the leaf keeps it; what was added to it is still there.
    fn gradient_is_ready(&self, eager: &mut Eager, leaf: &Leaf);
}

/// The state of one emulated process.
#[derive(Debug)]
pub struct Eager {
    /// Who is told of gradients.
    pub watcher: Option<Rc<dyn Watcher>>,
    recorder: Recorder,
    /// Becomes true when compilation is cancelled.
    cancel: Cancel,
    pub capability: Capability,
    /// Which of the processes that train together this is, from 0.
    pub rank: u64,
    /// Whether DDP's first buckets are gone before those that replace them are made.
    pub buckets_go_early: bool,
    /// False under `no_grad`.
    pub grad_enabled: bool,
    /// What autocast casts to, inside its region.
    pub autocast: Option<DType>,
    pub casts: CastCache,
    pub thread: Thread,
    main: Handles,
    backward: Handles,
    packing: Packing,
    /// What libraries made once and keep, by name.
    kept: Vec<(&'static str, Rc<Storage>)>,
    /// Attributes of custom functions' contexts, whose backward passes have run.
    contexts: Vec<Tensor>,
    sequence: Cell<u64>,
    label: Arc<str>,
    category: Category,
    /// The current stream: what is allocated belongs to it.
    stream: u8,
    /// Whether the program says what is computed, and not only what is allocated.
    with_launches: bool,
}

impl Eager {
    /// A fresh process on a card, which stops soon after `cancel` becomes true.
    pub fn new(capability: Capability, cancel: &Cancel) -> Eager {
        Eager {
            watcher: None,
            recorder: Recorder::default(),
            cancel: cancel.clone(),
            capability,
            rank: 0,
            buckets_go_early: false,
            grad_enabled: true,
            autocast: None,
            casts: CastCache::default(),
            thread: Thread::Main,
            main: Handles::default(),
            backward: Handles::default(),
            packing: Packing::Keep,
            kept: Vec::new(),
            contexts: Vec::new(),
            sequence: Cell::new(0),
            label: Arc::from(""),
            category: Category::Parameters,
            stream: 0,
            with_launches: true,
        }
    }

    /// Emits no launches from here on.
    pub fn leave_out_launches(&mut self) {
        self.with_launches = false;
    }

    /// Whether it emits launches.
    pub fn emits_launches(&self) -> bool {
        self.with_launches
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// An error when compilation is cancelled. Called before every operation.
    pub fn go_on(&self) -> Result<(), Stop> {
        if self.cancel.is_cancelled() {
            return Err(Stop::Cancelled);
        }
        Ok(())
    }

    /// Allocations from here on are for this.
    pub fn set_category(&mut self, category: Category) {
        self.category = category;
    }

    pub fn category(&self) -> Category {
        self.category
    }

    /// Allocations from here on are made by this.
    pub fn set_label(&mut self, label: &Arc<str>) {
        self.label = Arc::clone(label);
    }

    pub fn label(&self) -> Arc<str> {
        Arc::clone(&self.label)
    }

    pub fn next_sequence(&self) -> u64 {
        self.sequence.set(self.sequence.get() + 1);
        self.sequence.get()
    }

    /// A tensor with row-major strides.
    pub fn empty(&mut self, shape: impl Into<Sizes>, dtype: DType) -> TensorBody {
        let shape = shape.into();
        let strides = contiguous_strides(&shape);
        self.empty_strided(shape, strides, dtype)
    }

    /// A tensor with these strides, which are dense.
    pub fn empty_strided(
        &mut self,
        shape: impl Into<Sizes>,
        strides: impl Into<Sizes>,
        dtype: DType,
    ) -> TensorBody {
        let shape = shape.into();
        let size = Size::Elements(crate::shape::numel(&shape), dtype);
        let (category, label) = (self.category, &self.label);
        let storage = self.recorder.allocate(size, category, label, self.stream);
        TensorBody::of(storage, shape, strides, dtype)
    }

    /// A row of elements that takes no memory before its storage is allocated.
    pub fn declare(&mut self, elements: u64, dtype: DType) -> TensorBody {
        let count = Extent::fixed(elements);
        let size = Size::Elements(count, dtype);
        let storage = self
            .recorder
            .declare(size, self.category, &self.label, self.stream);
        TensorBody::over(&storage, vec![count], dtype)
    }

    /// Does something with another current stream.
    pub fn on_stream<T>(&mut self, stream: u8, run: impl FnOnce(&mut Eager) -> T) -> T {
        let before = std::mem::replace(&mut self.stream, stream);
        let result = run(self);
        self.stream = before;
        result
    }

    /// A scratch buffer of fixed size.
    pub fn scratch(&mut self, bytes: u64) -> Rc<Storage> {
        self.workspace(Size::Fixed(Bytes(bytes)))
    }

    /// A scratch buffer whose bytes are a rule of some values and the batch; no allocation where the rule gives zero.
    pub fn scratch_by<T>(
        &mut self,
        name: &'static str,
        of: T,
        rule: fn(&T, u64) -> u64,
    ) -> Rc<Storage>
    where
        T: Copy + Eq + Hash + Send + Sync + 'static,
    {
        let size = self.recorder.function(name, of, rule);
        self.workspace(size)
    }

    /// A scratch buffer of so many elements.
    pub fn scratch_of(&mut self, elements: Extent, dtype: DType) -> Rc<Storage> {
        self.workspace(Size::Elements(elements, dtype))
    }

    fn workspace(&mut self, size: Size) -> Rc<Storage> {
        self.recorder
            .allocate(size, Category::Workspace, &self.label, self.stream)
    }

    /// Emits a launch.
    pub fn launch(
        &mut self,
        kernel: impl Into<Kernel>,
        inputs: &[&TensorBody],
        outputs: &[&TensorBody],
    ) {
        self.launch_with(kernel.into(), inputs, outputs, None);
    }

    /// Launches what computes a tensor that was made for it.
    pub fn computed(
        &mut self,
        result: TensorBody,
        kernel: impl Into<Kernel>,
        inputs: &[&TensorBody],
    ) -> Tensor {
        self.launch(kernel, inputs, &[&result]);
        Tensor::new(result)
    }

    /// A tensor of zeros with row-major strides.
    pub fn zeros(&mut self, shape: impl Into<Sizes>, dtype: DType) -> TensorBody {
        let zeros = self.empty(shape, dtype);
        self.launch(Kernel::Fill(0.0), &[], &[&zeros]);
        zeros
    }

    /// Emits a launch that may use scratch memory.
    pub fn launch_with(
        &mut self,
        kernel: Kernel,
        inputs: &[&TensorBody],
        outputs: &[&TensorBody],
        workspace: Option<&Storage>,
    ) {
        if outputs.iter().any(|output| output.is_of_host) {
            return;
        }
        self.note_launch(&kernel, inputs, outputs);
        // What a number of the host's is filled with happens there.
        // What is sent to other ranks is counted where nothing is computed, too.
        if !self.with_launches && !matches!(kernel, Kernel::Collective(_)) {
            return;
        }
        let (kernel, inputs) = by_value(kernel, inputs);
        let views = |tensors: &[&TensorBody]| tensors.iter().map(|t| t.view()).collect();
        self.recorder.launch(Call {
            kernel,
            inputs: views(&inputs),
            outputs: views(outputs),
            workspace: workspace.map(Storage::id),
        });
    }

    /// Notes what a launch costs the host and the card.
    fn note_launch<'a>(
        &self,
        kernel: &Kernel,
        inputs: &[&'a TensorBody],
        outputs: &[&'a TensorBody],
    ) {
        let on_card = |tensors: &[&'a TensorBody]| -> Vec<Operand<'a>> {
            let on_card = tensors.iter().filter(|tensor| !tensor.is_of_host);
            on_card
                .map(|tensor| Operand {
                    dtype: tensor.dtype,
                    shape: &tensor.shape,
                    strides: &tensor.strides,
                })
                .collect()
        };
        let (inputs, outputs) = (on_card(inputs), on_card(outputs));
        if let Some(work) = Work::of(kernel, &inputs, &outputs) {
            self.queue(work);
        }
    }

    /// Notes a piece of work that the running thread queues.
    pub fn queue(&self, work: Work) {
        if self.thread == Thread::Backward {
            self.recorder.note(Host::BackwardLaunch, 1);
        }
        self.recorder.queue(work);
    }

    /// Emits a convolution between the allocation and the free of its workspace.
    pub fn convolve(
        &mut self,
        shape: ConvolutionShape,
        inputs: [&TensorBody; 2],
        output: &TensorBody,
    ) {
        let convolution = self.recorder.convolution(&shape);
        let workspace = self.workspace(Size::Workspace(convolution));
        let kernel = Kernel::Convolution(shape);
        self.launch_with(kernel, &inputs, &[output], Some(&workspace));
    }

    /// How many elements like a tensor's the memory holds that it is part of.
    pub fn elements_of_storage(&self, tensor: &TensorBody) -> Extent {
        match self.recorder.size(tensor.storage.id()) {
            Size::Elements(count, dtype) if dtype.size() == tensor.dtype.size() => count,
            Size::Elements(..) | Size::Fixed(_) | Size::Function(_) | Size::Workspace(_) => {
                tensor.numel()
            }
        }
    }

    /// Says what an allocation turned out to be for.
    pub fn relabel(&mut self, tensor: &Tensor, category: Category, label: &Arc<str>) {
        self.recorder.relabel(tensor.storage.id(), category, label);
    }

    /// Gets the cuBLAS handle of the running thread: its workspace is made on first use and kept.
    ///
    /// See Note [Library workspaces].
    pub fn use_blas(&mut self) {
        if self.handles().blas.is_none() {
            let bytes = Architecture::of(self.capability.compute).blas_workspace;
            let workspace = self.named_scratch("cuBLAS workspace", bytes);
            self.handles().blas = Some(workspace);
        }
    }

    /// Gets the cuBLASLt workspace of the running thread, and with it the cuBLAS one.
    pub fn use_blas_lt(&mut self) {
        self.use_blas();
        if self.handles().blas_lt.is_none() {
            let workspace = self.named_scratch("cuBLASLt workspace", 1 << 20);
            self.handles().blas_lt = Some(workspace);
        }
    }

    /// A buffer that a library makes for the first who needs it, and keeps.
    pub fn keep_scratch(&mut self, name: &'static str, bytes: u64) {
        let buffer = self.named_scratch(name, bytes);
        self.kept.push((name, buffer));
    }

    fn named_scratch(&mut self, name: &str, bytes: u64) -> Rc<Storage> {
        let label = std::mem::replace(&mut self.label, Arc::from(name));
        let buffer = self.scratch(bytes);
        self.label = label;
        buffer
    }

    /// Whether [`Eager::keep_scratch`] made a buffer of this name.
    pub fn keeps(&self, name: &str) -> bool {
        self.kept.iter().any(|(kept, _)| *kept == name)
    }

    fn handles(&mut self) -> &mut Handles {
        match self.thread {
            Thread::Main => &mut self.main,
            Thread::Backward => &mut self.backward,
        }
    }

    /// Has a hook run when the gradient of what an operation made is known.
    pub fn hook(&self, tensor: &TensorBody, hook: Hook) {
        if let Some(History::Made(node, _)) = self.history_of(tensor) {
            node.hooks.borrow_mut().push(hook);
        }
    }

    /// The same tensors as results of an operation of their own, which tells when their gradients are known.
    pub fn pass_through(
        &mut self,
        tensors: &[Tensor],
        told: impl FnOnce(&mut Eager) + 'static,
    ) -> Vec<Tensor> {
        let inputs: Vec<Option<&Tensor>> = tensors.iter().map(Some).collect();
        let draft = OpRecord::new(self, &inputs);
        let same = |tensor: &Tensor| tensor.same();
        let outputs = tensors.iter().map(same).collect();
        draft.finish_many(self, outputs, move |eager, gradients, _| {
            told(eager);
            gradients.to_vec()
        })
    }

    /// Keeps attributes of a custom function's context: nothing lets go of them before the last tensor that
    /// has a history does.
    pub fn hold_until_graph_dies(&mut self, attributes: Vec<Tensor>) {
        self.contexts.extend(attributes);
    }

    /// The last tensor that has a history goes, and with it the autograd graph.
    pub fn graph_dies(&mut self) {
        for attribute in self.contexts.drain(..) {
            drop(attribute);
        }
    }

    /// What the graph keeps of a tensor that an operation saves.
    pub fn pack(&mut self, tensor: &Tensor) -> Result<Slot, Stop> {
        match &mut self.packing {
            Packing::Keep => Ok(Slot::Held(tensor.detached())),
            Packing::Drop(frame) => Ok(Slot::Recomputed(Rc::clone(frame), frame.note())),
            Packing::Restore(recomputation) => {
                recomputation.restore(tensor)?;
                Ok(Slot::Held(tensor.detached()))
            }
        }
    }

    /// Runs `region` with what it saves dropped and noted in `frame`.
    pub fn dropping<T>(&mut self, frame: &Rc<Frame>, region: impl FnOnce(&mut Eager) -> T) -> T {
        self.packing(Packing::Drop(Rc::clone(frame)), region)
    }

    /// Runs `region` again, restoring what `frame` noted.
    pub fn restoring<T>(&mut self, frame: &Rc<Frame>, region: impl FnOnce(&mut Eager) -> T) -> T {
        self.packing(Packing::Restore(Recomputation::of(frame)), region)
    }

    fn packing<T>(&mut self, packing: Packing, region: impl FnOnce(&mut Eager) -> T) -> T {
        let before = std::mem::replace(&mut self.packing, packing);
        let result = region(self);
        self.packing = before;
        result
    }
}

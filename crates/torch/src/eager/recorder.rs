//! The program under construction, and memory as the compiler owns it.
//!
//! A [`Storage`] is one allocation. It is shared by reference count exactly where PyTorch shares it, and
//! dropping the last handle emits the free: ownership in the compiler *is* ownership in PyTorch.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;

use crate::program::{
    Call, Category, ConvolutionId, ConvolutionShape, Host, Instruction, Size, SizeFunction, SizeId,
    Tensor, TensorId, Tick, Work, WorkId,
};

/// What has been emitted so far.
#[derive(Debug, Default)]
struct Recorded {
    tensors: Vec<Tensor>,
    sizes: Vec<Size>,
    size_ids: HashMap<Size, SizeId>,
    /// Sizes that follow a rule: by the rule and the type of what it is of, a map from what it is of.
    functions: HashMap<(usize, TypeId), Box<dyn Any>>,
    instructions: Vec<Instruction>,
    convolutions: Vec<ConvolutionShape>,
    convolution_ids: HashMap<ConvolutionShape, ConvolutionId>,
    ticks: Vec<Tick>,
    works: Vec<Work>,
    work_ids: HashMap<Work, WorkId>,
    host_bytes: u64,
}

/// Where allocations, launches and frees are written down.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Rc<RefCell<Recorded>>);

impl Recorder {
    /// Emits an allocation on a stream.
    pub fn allocate(
        &self,
        size: Size,
        category: Category,
        label: &Arc<str>,
        stream: u8,
    ) -> Rc<Storage> {
        let storage = self.declare(size, category, label, stream);
        storage.allocate();
        storage
    }

    /// Names an allocation that does not take place yet.
    pub fn declare(
        &self,
        size: Size,
        category: Category,
        label: &Arc<str>,
        stream: u8,
    ) -> Rc<Storage> {
        let recording = &mut *self.0.borrow_mut();
        let id = TensorId(u32::try_from(recording.tensors.len()).expect("fewer than 2^32 tensors"));
        let next = u32::try_from(recording.sizes.len()).expect("fewer sizes than tensors");
        let size_id = *recording.size_ids.entry(size).or_insert_with_key(|size| {
            recording.sizes.push(size.clone());
            SizeId(next)
        });
        recording.tensors.push(Tensor {
            size: size_id,
            category,
            label: Arc::clone(label),
            stream,
        });
        Rc::new(Storage {
            id,
            recorder: self.clone(),
            is_allocated: Cell::new(false),
        })
    }

    /// A size that is `rule` of these values and the batch: the same one for the same values.
    pub fn function<T>(&self, name: &'static str, of: T, rule: fn(&T, u64) -> u64) -> Size
    where
        T: Copy + Eq + Hash + Send + Sync + 'static,
    {
        let recording = &mut *self.0.borrow_mut();
        let known = recording
            .functions
            .entry((rule as usize, TypeId::of::<T>()));
        let known = known.or_insert_with(|| Box::new(HashMap::<T, SizeFunction>::new()));
        let known: Option<&mut HashMap<T, SizeFunction>> = known.downcast_mut();
        let function = known
            .expect("kept by its type")
            .entry(of)
            .or_insert_with(|| SizeFunction {
                name,
                bytes: Arc::new(move |batch| rule(&of, batch)),
            });
        Size::Function(function.clone())
    }

    fn emit(&self, instruction: Instruction) {
        self.0.borrow_mut().instructions.push(instruction);
    }

    /// Emits a launch.
    pub fn launch(&self, call: Call) {
        self.emit(Instruction::Launch(Box::new(call)));
    }

    /// Notes that a piece of work is queued.
    pub fn queue(&self, work: Work) {
        let recording = &mut *self.0.borrow_mut();
        let next = u32::try_from(recording.works.len()).expect("fewer than 2^32 launches");
        let id = *recording.work_ids.entry(work).or_insert_with_key(|work| {
            recording.works.push(work.clone());
            WorkId(next)
        });
        recording.ticks.push(Tick::Queue(id));
    }

    /// Notes what the host does.
    pub fn note(&self, host: Host, times: u32) {
        let ticks = &mut self.0.borrow_mut().ticks;
        match ticks.last_mut() {
            Some(Tick::Host(last, count)) if *last == host => *count = count.saturating_add(times),
            _ => ticks.push(Tick::Host(host, times)),
        }
    }

    /// Notes bytes that the training keeps in the host's memory for good.
    pub fn keep_on_host(&self, bytes: u64) {
        let host_bytes = &mut self.0.borrow_mut().host_bytes;
        *host_bytes = host_bytes.saturating_add(bytes);
    }

    /// What the training keeps in the host's memory for good.
    pub fn host_bytes(&self) -> u64 {
        self.0.borrow().host_bytes
    }

    /// Notes that the host waits for the card.
    pub fn wait(&self) {
        self.0.borrow_mut().ticks.push(Tick::Wait);
    }

    /// Takes out what was noted since the last call.
    pub fn take_ticks(&self) -> Vec<Tick> {
        let mut ticks = std::mem::take(&mut self.0.borrow_mut().ticks);
        ticks.shrink_to_fit();
        ticks
    }

    /// Takes out the pieces of work; the end of a compilation.
    pub fn take_works(&self) -> Vec<Work> {
        let mut recording = self.0.borrow_mut();
        recording.work_ids.clear();
        std::mem::take(&mut recording.works)
    }

    /// The name of a convolution.
    pub fn convolution(&self, shape: &ConvolutionShape) -> ConvolutionId {
        let recording = &mut *self.0.borrow_mut();
        *recording.convolution_ids.entry(*shape).or_insert_with(|| {
            let id = u32::try_from(recording.convolutions.len());
            recording.convolutions.push(*shape);
            ConvolutionId(id.expect("fewer than 2^32 convolutions"))
        })
    }

    /// How large an allocation is.
    pub fn size(&self, id: TensorId) -> Size {
        let recording = self.0.borrow();
        recording.sizes[recording.tensors[id.0 as usize].size.0 as usize].clone()
    }

    /// Says what an allocation turned out to be for.
    pub fn relabel(&self, id: TensorId, category: Category, label: &Arc<str>) {
        let tensor = &mut self.0.borrow_mut().tensors[id.0 as usize];
        tensor.category = category;
        tensor.label = Arc::clone(label);
    }

    /// Takes out what was emitted since the last call.
    pub fn take_section(&self) -> Vec<Instruction> {
        let mut instructions = std::mem::take(&mut self.0.borrow_mut().instructions);
        instructions.shrink_to_fit();
        instructions
    }

    /// Takes out the allocations' descriptions; the end of a compilation.
    pub fn take_tensors(&self) -> Vec<Tensor> {
        let mut tensors = std::mem::take(&mut self.0.borrow_mut().tensors);
        tensors.shrink_to_fit();
        tensors
    }

    /// Takes out how large they are; the end of a compilation.
    pub fn take_sizes(&self) -> Vec<Size> {
        let mut recording = self.0.borrow_mut();
        recording.size_ids.clear();
        recording.functions.clear();
        std::mem::take(&mut recording.sizes)
    }

    /// Takes out the convolutions; the end of a compilation.
    pub fn take_convolutions(&self) -> Vec<ConvolutionShape> {
        let mut recording = self.0.borrow_mut();
        recording.convolution_ids.clear();
        std::mem::take(&mut recording.convolutions)
    }
}

/// One allocation, freed with its last owner; or before, as `untyped_storage().resize_(0)` does.
#[derive(Debug)]
pub struct Storage {
    id: TensorId,
    recorder: Recorder,
    is_allocated: Cell<bool>,
}

impl Storage {
    /// Its name in the program.
    pub fn id(&self) -> TensorId {
        self.id
    }

    /// Emits the allocation, where there is none.
    pub fn allocate(&self) {
        if !self.is_allocated.replace(true) {
            self.recorder.emit(Instruction::Allocate(self.id));
        }
    }

    /// Emits the free, even where it still has owners.
    pub fn free(&self) {
        if self.is_allocated.replace(false) {
            self.recorder.emit(Instruction::Free(self.id));
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.free();
    }
}

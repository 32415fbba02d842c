//! The program under construction, and memory as the compiler owns it.
//!
//! A [`Storage`] is one allocation. It is shared by reference count exactly where PyTorch shares it, and
//! dropping the last handle emits the free: ownership in the compiler *is* ownership in PyTorch.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::program::{
    Call, Category, ConvolutionId, ConvolutionShape, Instruction, Size, SizeId, Tensor, TensorId,
};
use crate::shape::{DType, Extent};

/// What has been emitted so far.
#[derive(Debug, Default)]
struct Recorded {
    tensors: Vec<Tensor>,
    sizes: Vec<Size>,
    /// Those of so many elements of a type.
    size_ids: HashMap<(Extent, DType), SizeId>,
    instructions: Vec<Instruction>,
    convolutions: Vec<ConvolutionShape>,
    convolution_ids: HashMap<ConvolutionShape, ConvolutionId>,
}

/// Where allocations, launches and frees are written down.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorder(Rc<RefCell<Recorded>>);

impl Recorder {
    /// Emits an allocation.
    pub(crate) fn allocate(&self, size: Size, category: Category, label: &Arc<str>) -> Rc<Storage> {
        let recording = &mut *self.0.borrow_mut();
        let id = TensorId(u32::try_from(recording.tensors.len()).expect("fewer than 2^32 tensors"));
        let next = u32::try_from(recording.sizes.len()).expect("fewer sizes than tensors");
        let size_id = match &size {
            Size::Elements(count, dtype) => {
                let known = recording.size_ids.entry((*count, *dtype));
                *known.or_insert(SizeId(next))
            }
            Size::Fixed(_) | Size::Function(_) | Size::Workspace(_) => SizeId(next),
        };
        if size_id.0 == next {
            recording.sizes.push(size);
        }
        recording.tensors.push(Tensor {
            size: size_id,
            category,
            label: Arc::clone(label),
        });
        recording.instructions.push(Instruction::Allocate(id));
        Rc::new(Storage {
            id,
            recorder: self.clone(),
        })
    }

    /// Emits a launch.
    pub(crate) fn launch(&self, call: Call) {
        self.0
            .borrow_mut()
            .instructions
            .push(Instruction::Launch(Box::new(call)));
    }

    /// The name of a convolution.
    pub(crate) fn convolution(&self, shape: &ConvolutionShape) -> ConvolutionId {
        let recording = &mut *self.0.borrow_mut();
        *recording.convolution_ids.entry(*shape).or_insert_with(|| {
            let id = u32::try_from(recording.convolutions.len());
            recording.convolutions.push(*shape);
            ConvolutionId(id.expect("fewer than 2^32 convolutions"))
        })
    }

    /// How large an allocation is.
    pub(crate) fn size(&self, id: TensorId) -> Size {
        let recording = self.0.borrow();
        recording.sizes[recording.tensors[id.0 as usize].size.0 as usize].clone()
    }

    /// Says what an allocation turned out to be for.
    pub(crate) fn relabel(&self, id: TensorId, category: Category, label: &Arc<str>) {
        let tensor = &mut self.0.borrow_mut().tensors[id.0 as usize];
        tensor.category = category;
        tensor.label = Arc::clone(label);
    }

    /// Takes out what was emitted since the last call.
    pub(crate) fn take_section(&self) -> Vec<Instruction> {
        std::mem::take(&mut self.0.borrow_mut().instructions)
    }

    /// Takes out the allocations' descriptions; the end of a compilation.
    pub(crate) fn take_tensors(&self) -> Vec<Tensor> {
        std::mem::take(&mut self.0.borrow_mut().tensors)
    }

    /// Takes out how large they are; the end of a compilation.
    pub(crate) fn take_sizes(&self) -> Vec<Size> {
        let mut recording = self.0.borrow_mut();
        recording.size_ids.clear();
        std::mem::take(&mut recording.sizes)
    }

    /// Takes out the convolutions; the end of a compilation.
    pub(crate) fn take_convolutions(&self) -> Vec<ConvolutionShape> {
        let mut recording = self.0.borrow_mut();
        recording.convolution_ids.clear();
        std::mem::take(&mut recording.convolutions)
    }
}

/// One allocation, freed with its last owner.
#[derive(Debug)]
pub(crate) struct Storage {
    id: TensorId,
    recorder: Recorder,
}

impl Storage {
    /// Its name in the program.
    pub(crate) fn id(&self) -> TensorId {
        self.id
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.recorder
            .0
            .borrow_mut()
            .instructions
            .push(Instruction::Free(self.id));
    }
}

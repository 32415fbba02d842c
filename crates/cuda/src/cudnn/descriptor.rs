//! A descriptor of cuDNN's backend API: an object with typed attributes, frozen by `finalize`.

use std::ffi::c_void;
use std::ptr;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptor_t, cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t,
    cudnnConvolutionMode_t, cudnnDataType_t, cudnnHandle_t, cudnnPointwiseMode_t,
    cudnnReduceTensorOp_t, cudnnRngDistribution_t,
};

use super::library::{Functions, functions};
use super::{CudnnError, check};

/// A Rust type that has the layout of one of cuDNN's attribute types.
///
/// # Safety
///
/// `TYPE` must be the attribute type whose elements have exactly this layout.
pub(super) unsafe trait Attribute: Copy {
    const TYPE: Type;
}

/// Declares Rust types that have the layouts of attribute types.
macro_rules! attributes {
    ($($rust:ty = $kind:ident;)*) => {$(
        // SAFETY: each row says why its elements have this layout.
        unsafe impl Attribute for $rust {
            const TYPE: Type = Type::$kind;
        }
    )*};
}

attributes! {
    // The elements are `int64_t`, `float`, `double`, and `char` of one byte.
    i64 = CUDNN_TYPE_INT64;
    f32 = CUDNN_TYPE_FLOAT;
    f64 = CUDNN_TYPE_DOUBLE;
    u8 = CUDNN_TYPE_CHAR;
    // C++'s `bool` is one byte of zero or one, as Rust's.
    bool = CUDNN_TYPE_BOOLEAN;
    // Handles are pointers.
    cudnnHandle_t = CUDNN_TYPE_HANDLE;
    // The elements are `void *`, and the wrapper is transparent.
    Address = CUDNN_TYPE_VOID_PTR;
    // The elements are these C enums, whose bindings have their size.
    cudnnDataType_t = CUDNN_TYPE_DATA_TYPE;
    cudnnConvolutionMode_t = CUDNN_TYPE_CONVOLUTION_MODE;
    cudnnBackendHeurMode_t = CUDNN_TYPE_HEUR_MODE;
    cudnnPointwiseMode_t = CUDNN_TYPE_POINTWISE_MODE;
    cudnnReduceTensorOp_t = CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
    cudnnRngDistribution_t = CUDNN_TYPE_RNG_DISTRIBUTION;
    // The elements are C enums of 32 bits, and any value is a valid `u32`.
    NumericalNote = CUDNN_TYPE_NUMERICAL_NOTE;
    BehaviorNote = CUDNN_TYPE_BEHAVIOR_NOTE;
    KnobType = CUDNN_TYPE_KNOB_TYPE;
}

/// A device address as an attribute.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Address(pub(super) *mut c_void);

/// A numerical note, read as a plain number: a newer library may have notes the binding lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct NumericalNote(pub(super) u32);

/// A behaviour note, read as a plain number for the same reason as [`NumericalNote`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct BehaviorNote(pub(super) u32);

/// A knob type, read as a plain number for the same reason as [`NumericalNote`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct KnobType(pub(super) u32);

/// One backend descriptor, destroyed on drop.
pub(super) struct Descriptor {
    raw: cudnnBackendDescriptor_t,
    functions: &'static Functions,
}

impl Descriptor {
    /// Makes an empty descriptor.
    pub(super) fn create(kind: Kind) -> Result<Self, CudnnError> {
        let mut raw: cudnnBackendDescriptor_t = ptr::null_mut();
        let functions = functions()?;
        // SAFETY: `raw` is a valid place for the new descriptor.
        check("cudnnBackendCreateDescriptor", unsafe {
            (functions.create_descriptor)(kind, &raw mut raw)
        })?;
        Ok(Descriptor { raw, functions })
    }

    /// The raw descriptor, valid while `self` lives.
    pub(super) fn raw(&self) -> cudnnBackendDescriptor_t {
        self.raw
    }

    /// Sets an attribute to a list of values.
    pub(super) fn set<T: Attribute>(&mut self, name: Name, values: &[T]) -> Result<(), CudnnError> {
        let count = i64::try_from(values.len()).expect("attribute lists are short");
        // SAFETY: `values` holds `count` elements of the layout that `T::TYPE` names, and cuDNN
        // copies them during the call.
        check("cudnnBackendSetAttribute", unsafe {
            (self.functions.set_attribute)(self.raw, name, T::TYPE, count, values.as_ptr().cast())
        })
    }

    /// Sets an attribute to other descriptors.
    pub(super) fn set_descriptors(
        &mut self,
        name: Name,
        others: &[&Descriptor],
    ) -> Result<(), CudnnError> {
        let raws: Vec<_> = others.iter().map(|other| other.raw).collect();
        let count = i64::try_from(raws.len()).expect("attribute lists are short");
        // SAFETY: `raws` holds `count` live, finalized descriptors; cuDNN takes what it needs
        // from them during the call.
        check("cudnnBackendSetAttribute", unsafe {
            (self.functions.set_attribute)(
                self.raw,
                name,
                Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
                count,
                raws.as_ptr().cast(),
            )
        })
    }

    /// Freezes the attributes; this is where cuDNN does its work and its validation.
    pub(super) fn finalize(self) -> Result<Self, CudnnError> {
        // SAFETY: `self.raw` is a live descriptor that was not finalized before: `finalize`
        // consumes the value, and only finalized ones are returned.
        check("cudnnBackendFinalize", unsafe {
            (self.functions.finalize)(self.raw)
        })?;
        Ok(self)
    }

    /// How many elements an attribute has.
    pub(super) fn count(&self, name: Name, kind: Type) -> Result<usize, CudnnError> {
        let mut count = 0;
        // SAFETY: asking for zero elements writes the count alone.
        check("cudnnBackendGetAttribute", unsafe {
            (self.functions.get_attribute)(self.raw, name, kind, 0, &raw mut count, ptr::null_mut())
        })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Reads up to `room.len()` elements; the number written, which is at most the room.
    pub(super) fn read<T: Attribute>(
        &self,
        name: Name,
        room: &mut [T],
    ) -> Result<usize, CudnnError> {
        let mut count = 0;
        let wanted = i64::try_from(room.len()).expect("attribute lists are short");
        // SAFETY: `room` has space for `wanted` elements of the layout that `T::TYPE` names.
        check("cudnnBackendGetAttribute", unsafe {
            (self.functions.get_attribute)(
                self.raw,
                name,
                T::TYPE,
                wanted,
                &raw mut count,
                room.as_mut_ptr().cast(),
            )
        })?;
        Ok(usize::try_from(count).unwrap_or(0).min(room.len()))
    }

    /// Reads one value.
    pub(super) fn read_one<T: Attribute>(&self, name: Name, initial: T) -> Result<T, CudnnError> {
        let mut value = [initial];
        self.read(name, &mut value)?;
        Ok(value[0])
    }

    /// Reads up to `most` descriptors of one kind.
    ///
    /// cuDNN fills in descriptors that the caller made, so the room is made first; those left
    /// over are destroyed again.
    pub(super) fn read_descriptors(
        &self,
        name: Name,
        kind: Kind,
        most: usize,
    ) -> Result<Vec<Descriptor>, CudnnError> {
        let mut room = Vec::with_capacity(most);
        for _ in 0..most {
            room.push(Descriptor::create(kind)?);
        }
        let mut raws: Vec<_> = room.iter().map(Descriptor::raw).collect();
        let mut count = 0;
        let wanted = i64::try_from(most).expect("attribute lists are short");
        // SAFETY: `raws` holds `wanted` live descriptors of the kind that the attribute has;
        // cuDNN fills them in place and does not replace the pointers.
        check("cudnnBackendGetAttribute", unsafe {
            (self.functions.get_attribute)(
                self.raw,
                name,
                Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
                wanted,
                &raw mut count,
                raws.as_mut_ptr().cast(),
            )
        })?;
        room.truncate(usize::try_from(count).unwrap_or(0));
        Ok(room)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: `self.raw` was created by `create`, is owned by this value alone, and is not
        // used after this. A failure to destroy leaves nothing to do.
        unsafe { (self.functions.destroy_descriptor)(self.raw) };
    }
}

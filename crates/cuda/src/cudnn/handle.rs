//! The library handle, bound to a stream.

use std::ptr;
use std::rc::Rc;

use cudarc::cudnn::sys::cudnnHandle_t;
use cudarc::driver::sys::CUstream;

use super::library::{Functions, functions};
use super::{CudnnError, check};

/// Whether the cuDNN library can be loaded. Ask once, before anything else here.
pub fn is_present() -> bool {
    functions().is_ok()
}

/// The library's version as one number: 91900 is 9.19.0.
pub fn version() -> Result<usize, CudnnError> {
    // SAFETY: the call takes nothing.
    Ok(unsafe { (functions()?.get_version)() })
}

/// The major release of CUDA that the library was built for.
pub fn cuda_release() -> Option<u32> {
    let functions = functions().ok()?;
    // SAFETY: the call takes nothing.
    let version = unsafe { (functions.get_cudart_version)() };
    u32::try_from(version / 1000).ok()
}

/// A cuDNN handle. Clones share it; the last one destroys it.
#[derive(Clone)]
pub struct Handle(Rc<Owned>);

struct Owned {
    raw: cudnnHandle_t,
    functions: &'static Functions,
}

impl Handle {
    /// Opens cuDNN on the current context and puts its work on `stream`.
    ///
    /// # Safety
    ///
    /// A CUDA context is current on this thread and stays so while the handle lives, and `stream`
    /// is null (the default stream) or a stream of that context that outlives the handle.
    pub unsafe fn create(stream: CUstream) -> Result<Self, CudnnError> {
        let functions = functions()?;
        let mut raw: cudnnHandle_t = ptr::null_mut();
        // SAFETY: the caller vouches for the context, and `raw` is a valid place for the handle.
        check("cudnnCreate", unsafe { (functions.create)(&raw mut raw) })?;
        let handle = Handle(Rc::new(Owned { raw, functions }));
        // SAFETY: the handle was just created, and the caller vouches for the stream. The cast is
        // between two names of the same opaque C type.
        check("cudnnSetStream", unsafe {
            (functions.set_stream)(raw, stream.cast())
        })?;
        Ok(handle)
    }

    /// The raw handle, valid while `self` lives.
    pub(super) fn raw(&self) -> cudnnHandle_t {
        self.0.raw
    }

    /// The library that the handle came from.
    pub(super) fn functions(&self) -> &'static Functions {
        self.0.functions
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: created by `cudnnCreate` and not used after this.
        unsafe { (self.functions.destroy)(self.raw) };
    }
}

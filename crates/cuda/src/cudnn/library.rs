//! The functions of the cuDNN library, looked up once.
//!
//! cudarc's own loader asks for `libcudnn.so` before `libcudnn.so.9`. PyTorch's wheels bring only
//! the latter, so that on a machine with both cudarc would pick the system's copy, which may be
//! another version than the one PyTorch runs. This asks for the versioned name first, as
//! PyTorch does; the types are cudarc's. See Note [Which library].

use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;

use cudarc::cudnn::sys::{
    cudaStream_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
    cudnnBackendDescriptor_t, cudnnBackendDescriptorType_t, cudnnCallback_t, cudnnHandle_t,
    cudnnStatus_t,
};
use libloading::Library;

use super::CudnnError;

/// File names to try, best first. The graph API used here is that of cuDNN 9.
const NAMES: [&str; 3] = ["libcudnn.so.9", "libcudnn.so", "cudnn64_9.dll"];

/// What is used of cuDNN, by the C names without their prefix.
pub(super) struct Functions {
    pub(super) get_version: unsafe extern "C" fn() -> usize,
    pub(super) get_cudart_version: unsafe extern "C" fn() -> usize,
    pub(super) create: unsafe extern "C" fn(*mut cudnnHandle_t) -> cudnnStatus_t,
    pub(super) destroy: unsafe extern "C" fn(cudnnHandle_t) -> cudnnStatus_t,
    pub(super) set_stream: unsafe extern "C" fn(cudnnHandle_t, cudaStream_t) -> cudnnStatus_t,
    pub(super) create_descriptor: unsafe extern "C" fn(
        cudnnBackendDescriptorType_t,
        *mut cudnnBackendDescriptor_t,
    ) -> cudnnStatus_t,
    pub(super) destroy_descriptor: unsafe extern "C" fn(cudnnBackendDescriptor_t) -> cudnnStatus_t,
    pub(super) finalize: unsafe extern "C" fn(cudnnBackendDescriptor_t) -> cudnnStatus_t,
    pub(super) set_attribute: unsafe extern "C" fn(
        cudnnBackendDescriptor_t,
        cudnnBackendAttributeName_t,
        cudnnBackendAttributeType_t,
        i64,
        *const c_void,
    ) -> cudnnStatus_t,
    pub(super) get_attribute: unsafe extern "C" fn(
        cudnnBackendDescriptor_t,
        cudnnBackendAttributeName_t,
        cudnnBackendAttributeType_t,
        i64,
        *mut i64,
        *mut c_void,
    ) -> cudnnStatus_t,
    pub(super) execute: unsafe extern "C" fn(
        cudnnHandle_t,
        cudnnBackendDescriptor_t,
        cudnnBackendDescriptor_t,
    ) -> cudnnStatus_t,
    pub(super) set_callback:
        unsafe extern "C" fn(c_uint, *mut c_void, cudnnCallback_t) -> cudnnStatus_t,
}

/// The loaded library, or why there is none.
pub(super) fn functions() -> Result<&'static Functions, CudnnError> {
    static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
    LOADED
        .get_or_init(load)
        .as_ref()
        .ok_or(CudnnError::LibraryMissing)
}

fn load() -> Option<Functions> {
    NAMES.iter().find_map(|name| {
        // SAFETY: loading cuDNN runs its initialisers, which have no preconditions.
        let library = unsafe { Library::new(*name) }.ok()?;
        let functions = look_up(&library);
        // The functions are kept for good, so the library must stay loaded.
        std::mem::forget(library);
        functions
    })
}

fn look_up(library: &Library) -> Option<Functions> {
    /// One function, by its C name.
    fn get<F: Copy>(library: &Library, name: &[u8]) -> Option<F> {
        // SAFETY: `F` is the type of the field that the result goes into, and each field below
        // has the signature that the C header gives the function of that name.
        unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)
    }
    Some(Functions {
        get_version: get(library, b"cudnnGetVersion")?,
        get_cudart_version: get(library, b"cudnnGetCudartVersion")?,
        create: get(library, b"cudnnCreate")?,
        destroy: get(library, b"cudnnDestroy")?,
        set_stream: get(library, b"cudnnSetStream")?,
        create_descriptor: get(library, b"cudnnBackendCreateDescriptor")?,
        destroy_descriptor: get(library, b"cudnnBackendDestroyDescriptor")?,
        finalize: get(library, b"cudnnBackendFinalize")?,
        set_attribute: get(library, b"cudnnBackendSetAttribute")?,
        get_attribute: get(library, b"cudnnBackendGetAttribute")?,
        execute: get(library, b"cudnnBackendExecute")?,
        set_callback: get(library, b"cudnnSetCallback")?,
    })
}

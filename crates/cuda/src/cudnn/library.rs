//! The functions of the cuDNN library, looked up once.
//!
//! cudarc's own loader asks for `libcudnn.so` before `libcudnn.so.9`. PyTorch's wheels bring only
//! the latter, so that on a machine with both cudarc would pick the system's copy, which may be
//! another version than the one PyTorch runs. This asks for the versioned name first, as
//! PyTorch does; the types are cudarc's. See Note [Which library].

use std::ffi::{c_uint, c_void};

use cudarc::cudnn::sys::{
    cudaStream_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
    cudnnBackendDescriptor_t, cudnnBackendDescriptorType_t, cudnnCallback_t, cudnnHandle_t,
    cudnnStatus_t,
};

use super::CudnnError;

/// File names to try, best first. The graph API used here is that of cuDNN 9.
const NAMES: [&str; 3] = ["libcudnn.so.9", "libcudnn.so", "cudnn64_9.dll"];

c_library! {
    /// What is used of cuDNN, by the C names without their prefix.
    pub(super) Functions from NAMES;
    get_version = b"cudnnGetVersion" fn() -> usize;
    get_cudart_version = b"cudnnGetCudartVersion" fn() -> usize;
    create = b"cudnnCreate" fn(*mut cudnnHandle_t) -> cudnnStatus_t;
    destroy = b"cudnnDestroy" fn(cudnnHandle_t) -> cudnnStatus_t;
    set_stream = b"cudnnSetStream" fn(cudnnHandle_t, cudaStream_t) -> cudnnStatus_t;
    create_descriptor = b"cudnnBackendCreateDescriptor" fn(cudnnBackendDescriptorType_t, *mut cudnnBackendDescriptor_t) -> cudnnStatus_t;
    destroy_descriptor = b"cudnnBackendDestroyDescriptor" fn(cudnnBackendDescriptor_t) -> cudnnStatus_t;
    finalize = b"cudnnBackendFinalize" fn(cudnnBackendDescriptor_t) -> cudnnStatus_t;
    set_attribute = b"cudnnBackendSetAttribute" fn(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
        cudnnBackendAttributeType_t, i64, *const c_void) -> cudnnStatus_t;
    get_attribute = b"cudnnBackendGetAttribute" fn(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
        cudnnBackendAttributeType_t, i64, *mut i64, *mut c_void) -> cudnnStatus_t;
    execute = b"cudnnBackendExecute" fn(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) -> cudnnStatus_t;
    set_callback = b"cudnnSetCallback" fn(c_uint, *mut c_void, cudnnCallback_t) -> cudnnStatus_t;
}

/// The loaded library, or why there is none.
pub(super) fn functions() -> Result<&'static Functions, CudnnError> {
    Functions::loaded().ok_or(CudnnError::LibraryMissing)
}

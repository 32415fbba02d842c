//! Streams, events, capture and graphs: the runtime's, which has them under other names with the same arguments.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::ffi::{c_int, c_uint, c_void};

use crate::names::{done, same};
use crate::status::{INVALID_VALUE, SUCCESS, Status};

unsafe extern "C" {
    fn cudaStreamGetCaptureInfo_v2(
        stream: u64,
        status: *mut c_int,
        id: *mut u64,
        graph: *mut u64,
        nodes: *mut *const c_void,
        count: *mut usize,
    ) -> Status;
}

/// The first form, which knows no graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo(stream: u64, status: *mut c_int, id: *mut u64) -> Status {
    let null = std::ptr::null_mut::<u64>;
    cudaStreamGetCaptureInfo_v2(stream, status, id, null(), std::ptr::null_mut(), std::ptr::null_mut())
}

same! {
    cuStreamCreate = cudaStreamCreateWithFlags, cuStreamCreateWithPriority = cudaStreamCreateWithPriority,
    cuStreamGetPriority = cudaStreamGetPriority, cuStreamGetFlags = cudaStreamGetFlags, cuStreamGetId = cudaStreamGetId, cuStreamGetDevice = cudaStreamGetDevice,
    cuStreamDestroy_v2 = cudaStreamDestroy, cuStreamDestroy = cudaStreamDestroy,
    cuStreamSynchronize = cudaStreamSynchronize, cuStreamQuery = cudaStreamQuery, cuStreamWaitEvent = cudaStreamWaitEvent,
    cuStreamAddCallback = cudaStreamAddCallback, cuLaunchHostFunc = cudaLaunchHostFunc, cuStreamAttachMemAsync = cudaStreamAttachMemAsync,
    cuStreamGetAttribute = cudaStreamGetAttribute, cuStreamSetAttribute = cudaStreamSetAttribute, cuStreamCopyAttributes = cudaStreamCopyAttributes,
    cuEventCreate = cudaEventCreateWithFlags, cuEventDestroy_v2 = cudaEventDestroy, cuEventDestroy = cudaEventDestroy,
    cuEventRecord = cudaEventRecord, cuEventRecordWithFlags = cudaEventRecordWithFlags, cuEventQuery = cudaEventQuery,
    cuEventSynchronize = cudaEventSynchronize, cuEventElapsedTime = cudaEventElapsedTime, cuEventElapsedTime_v2 = cudaEventElapsedTime,
    cuStreamBeginCapture_v2 = cudaStreamBeginCapture, cuStreamBeginCapture = cudaStreamBeginCapture, cuStreamEndCapture = cudaStreamEndCapture,
    cuStreamBeginCaptureToGraph = cudaStreamBeginCaptureToGraph, cuStreamIsCapturing = cudaStreamIsCapturing,
    cuStreamGetCaptureInfo_v2 = cudaStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v3 = cudaStreamGetCaptureInfo_v3,
    cuThreadExchangeStreamCaptureMode = cudaThreadExchangeStreamCaptureMode,
    cuStreamUpdateCaptureDependencies = cudaStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2 = cudaStreamUpdateCaptureDependencies,
    cuGraphCreate = cudaGraphCreate, cuGraphDestroy = cudaGraphDestroy, cuGraphClone = cudaGraphClone,
    cuGraphInstantiate = cudaGraphInstantiate, cuGraphInstantiate_v2 = cudaGraphInstantiate, cuGraphInstantiateWithFlags = cudaGraphInstantiateWithFlags,
    cuGraphLaunch = cudaGraphLaunch, cuGraphUpload = cudaGraphUpload, cuGraphExecDestroy = cudaGraphExecDestroy,
    cuGraphGetNodes = cudaGraphGetNodes, cuGraphGetEdges = cudaGraphGetEdges, cuGraphGetRootNodes = cudaGraphGetRootNodes,
    cuGraphNodeGetType = cudaGraphNodeGetType, cuGraphNodeGetDependencies = cudaGraphNodeGetDependencies, cuGraphNodeGetDependentNodes = cudaGraphNodeGetDependentNodes,
    cuGraphDebugDotPrint = cudaGraphDebugDotPrint, cuGraphKernelNodeGetParams = cudaGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2 = cudaGraphKernelNodeGetParams,
}

/// Writes a number on a device when a stream comes to it: now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue32_v2(_stream: u64, address: u64, value: u32, _flags: c_uint) -> Status {
    if !address.is_multiple_of(4) {
        return INVALID_VALUE;
    }
    crate::memory::bytes::fill(address, &value.to_le_bytes(), 4)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue64_v2(_stream: u64, address: u64, value: u64, _flags: c_uint) -> Status {
    if !address.is_multiple_of(8) {
        return INVALID_VALUE;
    }
    let status = crate::memory::bytes::fill(address, &(value as u32).to_le_bytes(), 4);
    if status == SUCCESS { crate::memory::bytes::fill(address + 4, &((value >> 32) as u32).to_le_bytes(), 4) } else { status }
}

same! {
    cuStreamWriteValue32 = cuStreamWriteValue32_v2, cuStreamWriteValue64 = cuStreamWriteValue64_v2,
}

// What another device or process would write has been written.
done! { cuStreamWaitValue32 cuStreamWaitValue32_v2 cuStreamWaitValue64 cuStreamWaitValue64_v2 cuCtxRecordEvent cuCtxWaitEvent }

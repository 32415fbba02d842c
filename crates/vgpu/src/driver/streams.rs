//! Streams, events, capture and graphs: the runtime's, which has them under other names with the same arguments.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

use crate::memory::bytes;
use crate::names::{done, functions, same};
use crate::runtime::capture::info;
use crate::runtime::runtime;
use crate::status::{INVALID_VALUE, check};

runtime! {
    // The first form, which knows no graph.
    cuStreamGetCaptureInfo(stream: u64, status: *mut c_int, id: *mut u64) { info(stream, status, id, null_mut(), null_mut(), null_mut()) }
}

functions! {
    /// Writes a number on a device when a stream comes to it: now.
    cuStreamWriteValue32_v2(_stream: u64, address: u64, value: u32, _flags: c_uint) {
        check(address.is_multiple_of(4), INVALID_VALUE)?;
        bytes::fill(address, &value.to_le_bytes(), 4)
    }
    cuStreamWriteValue64_v2(_stream: u64, address: u64, value: u64, _flags: c_uint) {
        check(address.is_multiple_of(8), INVALID_VALUE)?;
        bytes::fill(address, &value.to_le_bytes(), 8)
    }
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
    cuStreamWriteValue32 = cuStreamWriteValue32_v2, cuStreamWriteValue64 = cuStreamWriteValue64_v2,
}

// What another device or process would write has been written.
done! { cuStreamWaitValue32 cuStreamWaitValue32_v2 cuStreamWaitValue64 cuStreamWaitValue64_v2 cuCtxRecordEvent cuCtxWaitEvent }

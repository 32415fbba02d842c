//! Allocations, copies, sets and what is known of a pointer.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::ffi::{c_int, c_uint, c_void};

use crate::config::devices;
use crate::memory::{self, bytes, device_of, host};
use crate::names::same;
use crate::runtime::memory::copy;
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, SUCCESS, Status, give};

use super::context::cuDevicePrimaryCtxRetain;

same! {
    cuMemGetInfo_v2 = cudaMemGetInfo, cuMemGetInfo = cudaMemGetInfo,
    cuMemAlloc_v2 = cudaMalloc, cuMemAlloc = cudaMalloc,
    cuMemAllocPitch_v2 = cudaMallocPitch, cuMemAllocPitch = cudaMallocPitch,
    cuMemFree_v2 = cudaFree, cuMemFree = cudaFree,
    cuMemAllocHost_v2 = cudaMallocHost, cuMemAllocHost = cudaMallocHost,
    cuMemHostAlloc = cudaHostAlloc, cuMemFreeHost = cudaFreeHost,
    cuMemHostGetDevicePointer_v2 = cudaHostGetDevicePointer, cuMemHostGetDevicePointer = cudaHostGetDevicePointer,
    cuMemHostGetFlags = cudaHostGetFlags,
    cuMemHostRegister_v2 = cudaHostRegister, cuMemHostRegister = cudaHostRegister, cuMemHostUnregister = cudaHostUnregister,
    cuMemAllocManaged = cudaMallocManaged,
    cuMemAllocAsync = cudaMallocAsync, cuMemAllocFromPoolAsync = cudaMallocFromPoolAsync, cuMemFreeAsync = cudaFreeAsync,
    cuDeviceGetDefaultMemPool = cudaDeviceGetDefaultMemPool, cuDeviceGetMemPool = cudaDeviceGetMemPool, cuDeviceSetMemPool = cudaDeviceSetMemPool,
    cuMemPoolCreate = cudaMemPoolCreate, cuMemPoolDestroy = cudaMemPoolDestroy, cuMemPoolTrimTo = cudaMemPoolTrimTo,
    cuMemPoolSetAttribute = cudaMemPoolSetAttribute, cuMemPoolGetAttribute = cudaMemPoolGetAttribute, cuMemPoolSetAccess = cudaMemPoolSetAccess,
    cuIpcGetMemHandle = cudaIpcGetMemHandle, cuIpcCloseMemHandle = cudaIpcCloseMemHandle,
    cuIpcOpenMemHandle = cudaIpcOpenMemHandle, cuIpcOpenMemHandle_v2 = cudaIpcOpenMemHandle,
    cuIpcGetEventHandle = cudaIpcGetEventHandle, cuIpcOpenEventHandle = cudaIpcOpenEventHandle,
    cuMemAdvise = cudaMemAdvise, cuMemAdvise_v2 = cudaMemAdvise, cuMemPrefetchAsync = cudaMemPrefetchAsync, cuMemPrefetchAsync_v2 = cudaMemPrefetchAsync,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(start: *mut u64, size: *mut usize, address: u64) -> Status {
    let Some((first, all)) = memory::block_of(address) else {
        return INVALID_VALUE;
    };
    if !start.is_null() {
        give(start, first);
    }
    if !size.is_null() {
        give(size, all as usize);
    }
    SUCCESS
}

/// Copies between two addresses, each a device's or the host's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> Status {
    bytes::copy(to, from, bytes as u64)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeer(to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize) -> Status {
    bytes::copy(to, from, bytes as u64)
}

/// `CUDA_MEMCPY2D`, of which arrays (textures) are refused.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Rows {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Side {
    x: usize,
    y: usize,
    /// `CUmemorytype`: host 1, device 2, array 3, unified 4.
    kind: c_int,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

impl Side {
    fn start(&self) -> Result<u64, Status> {
        let base = match self.kind {
            1 => self.host,
            2 | 4 => self.device,
            3 => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        };
        let offset = self.y.checked_mul(self.pitch).and_then(|rows| rows.checked_add(self.x)).ok_or(INVALID_VALUE)? as u64;
        // What begins on a device stays there.
        if bytes::is_memory(base, offset.saturating_add(1)) { Ok(base + offset) } else { Err(INVALID_VALUE) }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2D_v2(rows: *const Rows) -> Status {
    if rows.is_null() {
        return INVALID_VALUE;
    }
    let rows = rows.read_unaligned();
    match (rows.to.start(), rows.from.start()) {
        (Ok(to), Ok(from)) => bytes::copy_rows(to, rows.to.pitch as u64, from, rows.from.pitch as u64, rows.width as u64, rows.height as u64),
        (Err(status), _) | (_, Err(status)) => status,
    }
}

unsafe fn fill(to: u64, pattern: &[u8], count: usize) -> Status {
    let Some(bytes) = count.checked_mul(pattern.len()) else {
        return INVALID_VALUE;
    };
    if to.is_multiple_of(pattern.len() as u64) { bytes::fill(to, pattern, bytes as u64) } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> Status {
    fill(to, &[value], count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD16_v2(to: u64, value: u16, count: usize) -> Status {
    fill(to, &value.to_le_bytes(), count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32_v2(to: u64, value: u32, count: usize) -> Status {
    fill(to, &value.to_le_bytes(), count)
}

unsafe fn fill_rows(to: u64, pitch: usize, pattern: &[u8], width: usize, height: usize) -> Status {
    let Some(width) = width.checked_mul(pattern.len()) else {
        return INVALID_VALUE;
    };
    if width > pitch || !to.is_multiple_of(pattern.len() as u64) {
        INVALID_VALUE
    } else {
        bytes::fill_rows(to, pitch as u64, pattern, width as u64, height as u64)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) -> Status {
    fill_rows(to, pitch, &[value], width, height)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize) -> Status {
    fill_rows(to, pitch, &value.to_le_bytes(), width, height)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: u32, width: usize, height: usize) -> Status {
    fill_rows(to, pitch, &value.to_le_bytes(), width, height)
}

/// Copies when a stream comes to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) -> Status {
    /// `cudaMemcpyDefault`: by the addresses.
    const DEFAULT: c_int = 4;
    copy(to, from, bytes, DEFAULT, stream).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize, stream: u64) -> Status {
    cuMemcpyAsync(to, from, bytes, stream)
}

// The stream that a set is given is not looked at: it is done at once.
same! {
    cuMemGetAddressRange = cuMemGetAddressRange_v2,
    cuMemcpyHtoD = cuMemcpy, cuMemcpyHtoD_v2 = cuMemcpy, cuMemcpyHtoDAsync = cuMemcpyAsync, cuMemcpyHtoDAsync_v2 = cuMemcpyAsync,
    cuMemcpyDtoH = cuMemcpy, cuMemcpyDtoH_v2 = cuMemcpy, cuMemcpyDtoHAsync = cuMemcpyAsync, cuMemcpyDtoHAsync_v2 = cuMemcpyAsync,
    cuMemcpyDtoD = cuMemcpy, cuMemcpyDtoD_v2 = cuMemcpy, cuMemcpyDtoDAsync = cuMemcpyAsync, cuMemcpyDtoDAsync_v2 = cuMemcpyAsync,
    cuMemcpy2D = cuMemcpy2D_v2, cuMemcpy2DAsync = cuMemcpy2D_v2, cuMemcpy2DAsync_v2 = cuMemcpy2D_v2,
    cuMemcpy2DUnaligned = cuMemcpy2D_v2, cuMemcpy2DUnaligned_v2 = cuMemcpy2D_v2,
    cuMemsetD8 = cuMemsetD8_v2, cuMemsetD8Async = cuMemsetD8_v2,
    cuMemsetD16 = cuMemsetD16_v2, cuMemsetD16Async = cuMemsetD16_v2,
    cuMemsetD32 = cuMemsetD32_v2, cuMemsetD32Async = cuMemsetD32_v2,
    cuMemsetD2D8 = cuMemsetD2D8_v2, cuMemsetD2D8Async = cuMemsetD2D8_v2,
    cuMemsetD2D16 = cuMemsetD2D16_v2, cuMemsetD2D16Async = cuMemsetD2D16_v2,
    cuMemsetD2D32 = cuMemsetD2D32_v2, cuMemsetD2D32Async = cuMemsetD2D32_v2,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(to: *mut c_void, attribute: c_int, address: u64) -> Status {
    /// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`.
    const HOST: c_uint = 1;
    const DEVICE: c_uint = 2;
    let block = memory::block_of(address);
    let kind = host::kind_of(address);
    let device = match (block, kind) {
        (Some(_), _) => device_of(address).unwrap_or(0) as c_int,
        (None, Some(_)) => 0,
        // Memory that CUDA does not know.
        (None, None) => return INVALID_VALUE,
    };
    if device >= devices() {
        return INVALID_VALUE;
    }
    let is_managed = kind == Some(host::Kind::Managed);
    let (start, size) = block.unwrap_or((address, 0));
    match attribute {
        1 => cuDevicePrimaryCtxRetain(to.cast(), device),
        2 => give(to.cast(), if block.is_some() || is_managed { DEVICE } else { HOST }),
        3 => give(to.cast(), address),
        4 if block.is_none() => give(to.cast(), address),
        6 | 8 => give(to.cast(), u8::from(attribute == 8 && is_managed)),
        7 | 20 => give(to.cast(), start),
        9 => give(to.cast(), device),
        10 | 13 => give(to.cast(), u8::from(block.is_some())),
        11 | 19 => give(to.cast(), start),
        12 | 18 => give(to.cast(), size),
        14 | 17 => give(to.cast(), 0_u64),
        15 => give(to.cast(), 0_u8),
        // `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`.
        16 => give(to.cast(), 3_u32),
        _ => INVALID_VALUE,
    }
}

/// Several at once; what has no answer for this address reads as zero, and none of it is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(count: c_uint, attributes: *const c_int, to: *const *mut c_void, address: u64) -> Status {
    /// More attributes than there are.
    const MOST: c_uint = 64;
    if attributes.is_null() || to.is_null() || count > MOST {
        return INVALID_VALUE;
    }
    for index in 0..count as usize {
        let (attribute, place) = (attributes.add(index).read_unaligned(), to.add(index).read_unaligned());
        if !place.is_null() && cuPointerGetAttribute(place, attribute, address) != SUCCESS {
            let is_wide = matches!(attribute, 1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20);
            let bytes = if is_wide {
                8
            } else if matches!(attribute, 2 | 9 | 16) {
                4
            } else {
                1
            };
            place.cast::<u8>().write_bytes(0, bytes);
        }
    }
    SUCCESS
}

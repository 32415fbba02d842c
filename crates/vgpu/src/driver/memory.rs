//! Allocations, copies, sets and what is known of a pointer.

use std::ffi::{c_int, c_uint, c_void};

use crate::memory::{self, bytes};
use crate::names::{functions, same};
use crate::runtime::devices::{count, kind_of};
use crate::runtime::memory::copy;
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Status, check, out, out_if};

use super::context::primary;

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

unsafe fn fill(to: u64, pattern: &[u8], count: usize) -> Result<(), Status> {
    let bytes = count.checked_mul(pattern.len()).ok_or(INVALID_VALUE)?;
    check(to.is_multiple_of(pattern.len() as u64), INVALID_VALUE)?;
    bytes::fill(to, pattern, bytes as u64)
}

unsafe fn fill_rows(to: u64, pitch: usize, pattern: &[u8], width: usize, height: usize) -> Result<(), Status> {
    let width = width.checked_mul(pattern.len()).ok_or(INVALID_VALUE)?;
    check(width <= pitch && to.is_multiple_of(pattern.len() as u64), INVALID_VALUE)?;
    bytes::fill_rows(to, pitch as u64, pattern, width as u64, height as u64)
}

/// `cudaMemcpyDefault`: by the addresses.
const DEFAULT: c_int = 4;

unsafe fn out_attribute(to: *mut c_void, attribute: c_int, address: u64) -> Result<(), Status> {
    let (kind, device) = kind_of(address);
    let (is_device, is_managed) = (kind == 2, kind == 3);
    // Memory that CUDA does not know has no attributes.
    check(kind != 0 && device < count(), INVALID_VALUE)?;
    let (start, size) = memory::block_of(address).unwrap_or((address, 0));
    match attribute {
        1 => out(to.cast(), primary(device as usize)),
        // `CU_MEMORYTYPE_DEVICE` or `CU_MEMORYTYPE_HOST`
        2 => out(to.cast(), if is_device || is_managed { 2_u32 } else { 1 }),
        3 => out(to.cast(), address),
        4 if !is_device => out(to.cast(), address),
        6 | 8 => out(to.cast(), u8::from(attribute == 8 && is_managed)),
        7 | 11 | 19 | 20 => out(to.cast(), start),
        9 => out(to.cast(), device),
        10 | 13 => out(to.cast(), u8::from(is_device)),
        12 | 18 => out(to.cast(), size),
        14 | 17 => out(to.cast(), 0_u64),
        15 => out(to.cast(), 0_u8),
        // `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`.
        16 => out(to.cast(), 3_u32),
        _ => Err(INVALID_VALUE),
    }
}

functions! {
    cuMemGetAddressRange_v2(start: *mut u64, size: *mut usize, address: u64) {
        let (first, all) = memory::block_of(address).ok_or(INVALID_VALUE)?;
        out_if(start, first);
        out_if(size, all as usize);
        Ok(())
    }
    /// Copies between two addresses, each a device's or the host's.
    cuMemcpy(to: u64, from: u64, bytes: usize) { bytes::copy(to, from, bytes as u64) }
    cuMemcpyPeer(to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize) { bytes::copy(to, from, bytes as u64) }
    /// Copies when a stream comes to it.
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) { copy(to, from, bytes, DEFAULT, stream) }
    cuMemcpyPeerAsync(to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize, stream: u64) { copy(to, from, bytes, DEFAULT, stream) }
    cuMemcpy2D_v2(rows: *const Rows) {
        check(!rows.is_null(), INVALID_VALUE)?;
        let Rows { to, from, width, height } = rows.read_unaligned();
        bytes::copy_rows(to.start()?, to.pitch as u64, from.start()?, from.pitch as u64, width as u64, height as u64)
    }
    cuMemsetD8_v2(to: u64, value: u8, count: usize) { fill(to, &[value], count) }
    cuMemsetD16_v2(to: u64, value: u16, count: usize) { fill(to, &value.to_le_bytes(), count) }
    cuMemsetD32_v2(to: u64, value: u32, count: usize) { fill(to, &value.to_le_bytes(), count) }
    cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) { fill_rows(to, pitch, &[value], width, height) }
    cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize) { fill_rows(to, pitch, &value.to_le_bytes(), width, height) }
    cuMemsetD2D32_v2(to: u64, pitch: usize, value: u32, width: usize, height: usize) { fill_rows(to, pitch, &value.to_le_bytes(), width, height) }
    cuPointerGetAttribute(to: *mut c_void, attribute: c_int, address: u64) { out_attribute(to, attribute, address) }
    /// Several at once; what has no answer for this address reads as zero, and none of it is an error.
    cuPointerGetAttributes(count: c_uint, attributes: *const c_int, to: *const *mut c_void, address: u64) {
        // There are fewer attributes.
        check(!attributes.is_null() && !to.is_null() && count <= 64, INVALID_VALUE)?;
        for index in 0..count as usize {
            let (attribute, place) = (attributes.add(index).read_unaligned(), to.add(index).read_unaligned());
            if !place.is_null() && out_attribute(place, attribute, address).is_err() {
                let bytes = match attribute {
                    1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => 8,
                    2 | 9 | 16 => 4,
                    _ => 1,
                };
                place.cast::<u8>().write_bytes(0, bytes);
            }
        }
        Ok(())
    }
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

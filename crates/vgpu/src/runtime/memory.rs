//! Allocations, copies, sets, and sharing between processes.
//!
//! A copy in a capture is not made: it would be, each time that the graph is launched, and by then nobody computed its source.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use super::devices::{current_device, device};
use super::errors::{ALREADY_REGISTERED, INVALID_DIRECTION, INVALID_PITCH, NOT_REGISTERED};
use super::{capture, pool, streams};
use crate::memory::host::{self, Kind};
use crate::memory::{self, block_of, bytes, device_of, is_device, known};
use crate::names::same;
use crate::status::{INVALID_CONTEXT, INVALID_VALUE, Status, check, out};

/// Rows of pitched memory are so long on the cards that were looked at (`texturePitchAlignment` is smaller).
const PITCH: usize = 512;

/// A wish for memory whose result goes to `to`: nothing is taken without a place to say where.
unsafe fn give(to: *mut u64, allocate: impl FnOnce() -> Result<u64, Status>) -> Result<(), Status> {
    check(!to.is_null(), INVALID_VALUE)?;
    capture::forbid()?;
    let address = allocate();
    out(to, *address.as_ref().unwrap_or(&0))?;
    address.map(drop)
}

fn allocate(bytes: usize) -> Result<u64, Status> {
    // CUDA gives null for nothing.
    if bytes == 0 { device(0).map(|_| 0) } else { memory::allocate(current_device(), bytes as u64) }
}

fn free(address: u64) -> Result<(), Status> {
    if address == 0 {
        return Ok(());
    }
    capture::forbid()?;
    if host::kind_of(address) == Some(Kind::Managed) {
        return host::free(address);
    }
    if pool::free(address) { Ok(()) } else { memory::free(address) }
}

/// Height, width and depth of a wish as bytes, with rows of a pitch.
fn pitched(width: usize, height: usize, depth: usize) -> Result<(usize, usize), Status> {
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(INVALID_VALUE)?;
    let bytes = pitch.checked_mul(height).and_then(|bytes| bytes.checked_mul(depth)).ok_or(INVALID_VALUE)?;
    Ok((pitch, bytes))
}

/// `cudaMemcpyKind` ends with the kind that finds out by itself.
fn check_kind(kind: c_int) -> Result<(), Status> {
    check((0..=4).contains(&kind), INVALID_DIRECTION)
}

/// Carries out a copy or set to `to`, unless it becomes part of a capture: what it would write is unknown then.
fn unless_captured(to: u64, bytes: u64, stream: u64, act: impl FnOnce() -> Result<(), Status>) -> Result<(), Status> {
    streams::check(stream)?;
    if !capture::add(stream, None)? {
        return act();
    }
    known::mark(to, bytes, false);
    Ok(())
}

/// `cudaMemcpyAsync`
pub unsafe fn copy(to: u64, from: u64, bytes: usize, kind: c_int, stream: u64) -> Result<(), Status> {
    check_kind(kind)?;
    unless_captured(to, bytes as u64, stream, || {
        bytes::copy(to, from, bytes as u64)?;
        let host = if is_device(from) { to } else { from };
        if is_device(to) != is_device(from) {
            let is_pinned = matches!(host::kind_of(host), Some(Kind::Pinned | Kind::Registered));
            streams::copies(stream, bytes as u64, is_device(from), is_pinned);
        }
        Ok(())
    })
}

/// `cudaMemcpy`
pub unsafe fn copy_waiting(to: u64, from: u64, bytes: usize, kind: c_int) -> Result<(), Status> {
    capture::forbid()?;
    copy(to, from, bytes, kind, 0)
}

/// Memory in rows: where they start, and how far one is from the next.
type Rows = (u64, usize);

unsafe fn copy_rows(to: Rows, from: Rows, width: usize, height: usize, kind: c_int, stream: u64) -> Result<(), Status> {
    check_kind(kind)?;
    check(width <= to.1 && width <= from.1, INVALID_PITCH)?;
    let act = || bytes::copy_rows(to.0, to.1 as u64, from.0, from.1 as u64, width as u64, height as u64);
    unless_captured(to.0, (to.1 as u64).saturating_mul(height as u64), stream, act)
}

unsafe fn fill_rows(to: Rows, value: c_int, width: usize, height: usize, stream: u64) -> Result<(), Status> {
    check(width <= to.1, INVALID_PITCH)?;
    let act = || bytes::fill_rows(to.0, to.1 as u64, &[value as u8], width as u64, height as u64);
    unless_captured(to.0, (to.1 as u64).saturating_mul(height as u64), stream, act)
}

/// `cudaPitchedPtr`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Pitched {
    start: u64,
    pitch: usize,
    width: usize,
    height: usize,
}

/// `cudaExtent` and `cudaPos`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

/// `cudaMemcpy3DParms`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Copy3D {
    from_array: u64,
    from_position: Extent,
    from: Pitched,
    to_array: u64,
    to_position: Extent,
    to: Pitched,
    extent: Extent,
    kind: c_int,
}

const ORIGIN: Extent = Extent { width: 0, height: 0, depth: 0 };

impl Extent {
    const fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// Carries out a copy or set to `to` for each layer: its number, width and height. What is large on a device is only marked.
    fn each_layer(
        &self,
        to: u64,
        all: u64,
        is_on_device: bool,
        stream: u64,
        act: impl Fn(u64, u64, u64) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let size = self.width.checked_mul(self.height).and_then(|layer| layer.checked_mul(self.depth));
        unless_captured(to, all, stream, || {
            if is_on_device && size.is_none_or(|size| size as u64 > bytes::CARRIED) {
                known::mark(to, all, false);
                return Ok(());
            }
            (0..self.depth as u64).try_for_each(|layer| act(layer, self.width as u64, self.height as u64))
        })
    }
}

/// Layers of pitched memory: where the first starts, how far the next one is, and how far all of them reach. None overlap, and all lie in memory.
fn layers(of: &Pitched, position: &Extent, extent: &Extent) -> Option<(u64, u64, u64)> {
    let layer = of.height.checked_mul(of.pitch)?;
    let rows = position.depth.checked_mul(of.height)?.checked_add(position.height)?;
    let before = rows.checked_mul(of.pitch)?.checked_add(position.width)?;
    let above = (extent.depth - 1).checked_mul(layer)?.checked_add((extent.height - 1).checked_mul(of.pitch)?)?;
    let all = above.checked_add(extent.width)? as u64;
    let is_sound = extent.width <= of.pitch && (extent.depth == 1 || extent.height <= of.height);
    // From where it is said to start, which may be on a device when what it is offset to is not.
    let is_sound = is_sound && bytes::is_memory(of.start, (before as u64).checked_add(all)?);
    is_sound.then(|| (of.start + before as u64, layer as u64, all))
}

unsafe fn copy_3d(copy: *const Copy3D, stream: u64) -> Result<(), Status> {
    check(!copy.is_null(), INVALID_VALUE)?;
    let copy = copy.read_unaligned();
    check_kind(copy.kind)?;
    // Arrays cannot be made here, so that there is none to copy.
    check(copy.from_array == 0 && copy.to_array == 0, INVALID_VALUE)?;
    if copy.extent.is_empty() {
        return streams::check(stream);
    }
    let (to, to_next, all) = layers(&copy.to, &copy.to_position, &copy.extent).ok_or(INVALID_VALUE)?;
    let (from, from_next, _) = layers(&copy.from, &copy.from_position, &copy.extent).ok_or(INVALID_VALUE)?;
    let (to_pitch, from_pitch) = (copy.to.pitch as u64, copy.from.pitch as u64);
    copy.extent.each_layer(to, all, is_device(to) || is_device(from), stream, |layer, width, height| {
        bytes::copy_rows(to + to_next * layer, to_pitch, from + from_next * layer, from_pitch, width, height)
    })
}

unsafe fn fill_3d(to: Pitched, value: c_int, extent: Extent, stream: u64) -> Result<(), Status> {
    if extent.is_empty() {
        return streams::check(stream);
    }
    let (start, next, all) = layers(&to, &ORIGIN, &extent).ok_or(INVALID_VALUE)?;
    extent.each_layer(start, all, is_device(start), stream, |layer, width, height| {
        bytes::fill_rows(start + next * layer, to.pitch as u64, &[value as u8], width, height)
    })
}

/// Whether memory may be advised or fetched ahead: a device's or managed.
fn check_advised(address: u64) -> Result<(), Status> {
    let is_there = block_of(address).is_some() || host::kind_of(address) == Some(Kind::Managed);
    check(is_there, INVALID_VALUE)
}

/// A handle that goes to another process (`cudaIpcMemHandle_t`, `cudaIpcEventHandle_t`): 64 bytes, passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct IpcHandle(pub [u64; 8]);
const IPC_MEMORY: u64 = u64::from_le_bytes(*b"bf-mem\0\0");

runtime! {
    cudaMalloc(to: *mut u64, bytes: usize) { give(to, || allocate(bytes)) }
    cudaMallocPitch(to: *mut u64, pitch: *mut usize, width: usize, height: usize) {
        let (each, bytes) = pitched(width, height, 1)?;
        out(pitch, each)?;
        give(to, || allocate(bytes))
    }
    cudaMalloc3D(to: *mut Pitched, extent: Extent) {
        let (pitch, bytes) = pitched(extent.width, extent.height, extent.depth)?;
        let mut start = 0;
        give(if to.is_null() { std::ptr::null_mut() } else { &raw mut start }, || allocate(bytes))?;
        out(to, Pitched { start, pitch, width: extent.width, height: extent.height })
    }
    cudaFree(address: u64) { free(address) }
    cudaMemGetInfo(to_free: *mut usize, to_total: *mut usize) {
        device(0)?;
        let (free, total) = memory::info(current_device())?;
        memory::REFUSALS.fetch_add(1, Ordering::Relaxed);
        out(to_free, free as usize)?;
        out(to_total, total as usize)
    }
    cudaHostAlloc(to: *mut u64, bytes: usize, flags: c_uint) {
        // `cudaHostAllocPortable`, `cudaHostAllocMapped`, `cudaHostAllocWriteCombined`
        check(flags <= 7, INVALID_VALUE)?;
        give(to, || host::allocate(Kind::Pinned, bytes as u64))
    }
    cudaMallocHost(to: *mut u64, bytes: usize) { give(to, || host::allocate(Kind::Pinned, bytes as u64)) }
    cudaFreeHost(address: u64) {
        match host::kind_of(address) {
            _ if address == 0 => Ok(()),
            Some(Kind::Pinned) => capture::forbid().and_then(|()| host::free(address)),
            _ => Err(INVALID_VALUE),
        }
    }
    cudaHostRegister(address: u64, bytes: usize, _flags: c_uint) {
        check(address != 0 && bytes > 0, INVALID_VALUE)?;
        capture::forbid()?;
        host::register(address, bytes as u64).map_err(|_| ALREADY_REGISTERED)
    }
    cudaHostUnregister(address: u64) {
        match host::kind_of(address) {
            Some(Kind::Registered) => host::free(address).map_err(|_| NOT_REGISTERED),
            _ => Err(if address == 0 { INVALID_VALUE } else { NOT_REGISTERED }),
        }
    }
    cudaHostGetDevicePointer(to: *mut u64, address: u64, flags: c_uint) {
        check(flags == 0 && host::kind_of(address).is_some(), INVALID_VALUE)?;
        out(to, address)
    }
    // `cudaHostAllocMapped`: where addresses are unified, all are.
    cudaHostGetFlags(to: *mut c_uint, address: u64) {
        check(host::kind_of(address).is_some(), INVALID_VALUE)?;
        out(to, 2)
    }
    cudaMallocManaged(to: *mut u64, bytes: usize, flags: c_uint) {
        // `cudaMemAttachGlobal` or `cudaMemAttachHost`
        check(bytes > 0 && (1..=2).contains(&flags), INVALID_VALUE)?;
        give(to, || host::allocate(Kind::Managed, bytes as u64))
    }
    cudaMemAdvise(address: u64, _bytes: usize, _advice: c_int) { check_advised(address) }
    // 13's has a place and flags instead of a device's number; neither moves anything.
    cudaMemPrefetchAsync(address: u64, _bytes: usize) { check_advised(address) }

    cudaMemcpy(to: u64, from: u64, bytes: usize, kind: c_int) { copy_waiting(to, from, bytes, kind) }
    cudaMemcpyAsync(to: u64, from: u64, bytes: usize, kind: c_int, stream: u64) { copy(to, from, bytes, kind, stream) }
    cudaMemcpyPeer(to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize) {
        device(to_device).and(device(from_device))?;
        copy_waiting(to, from, bytes, 4)
    }
    cudaMemcpyPeerAsync(to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize, stream: u64) {
        device(to_device).and(device(from_device))?;
        copy(to, from, bytes, 4, stream)
    }
    cudaMemcpy2D(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: c_int) {
        capture::forbid().and_then(|()| copy_rows((to, to_pitch), (from, from_pitch), width, height, kind, 0))
    }
    cudaMemcpy2DAsync(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: c_int, stream: u64) {
        copy_rows((to, to_pitch), (from, from_pitch), width, height, kind, stream)
    }
    cudaMemcpy3D(parameters: *const Copy3D) { capture::forbid().and_then(|()| copy_3d(parameters, 0)) }
    cudaMemcpy3DAsync(parameters: *const Copy3D, stream: u64) { copy_3d(parameters, stream) }
    // 12.8's has a place for the index of what failed before the stream.
    cudaMemcpyBatchAsync(
        to: *const u64, from: *const u64, sizes: *const usize, count: usize, _attributes: *const c_void, _of: *const usize, _attribute_count: usize, eighth: u64, ninth: u64,
    ) {
        check(!to.is_null() && !from.is_null() && !sizes.is_null(), INVALID_VALUE)?;
        let stream = if super::is_13() { eighth } else { ninth };
        (0..count).try_for_each(|index| copy(to.add(index).read_unaligned(), from.add(index).read_unaligned(), sizes.add(index).read_unaligned(), 4, stream))
    }
    cudaMemset(to: u64, value: c_int, bytes: usize) { capture::forbid().and_then(|()| fill_rows((to, bytes), value, bytes, 1, 0)) }
    cudaMemsetAsync(to: u64, value: c_int, bytes: usize, stream: u64) { fill_rows((to, bytes), value, bytes, 1, stream) }
    cudaMemset2D(to: u64, pitch: usize, value: c_int, width: usize, height: usize) {
        capture::forbid().and_then(|()| fill_rows((to, pitch), value, width, height, 0))
    }
    cudaMemset2DAsync(to: u64, pitch: usize, value: c_int, width: usize, height: usize, stream: u64) {
        fill_rows((to, pitch), value, width, height, stream)
    }
    cudaMemset3D(to: Pitched, value: c_int, extent: Extent) { capture::forbid().and_then(|()| fill_3d(to, value, extent, 0)) }
    cudaMemset3DAsync(to: Pitched, value: c_int, extent: Extent, stream: u64) { fill_3d(to, value, extent, stream) }

    cudaIpcGetMemHandle(to: *mut IpcHandle, address: u64) {
        let (start, bytes) = block_of(address).ok_or(INVALID_VALUE)?;
        let device = device_of(address).ok_or(INVALID_VALUE)?;
        out(to, IpcHandle([IPC_MEMORY, u64::from(std::process::id()), device as u64, start, bytes, 0, 0, 0]))
    }
    // Memory of another process takes addresses here and nothing of the card.
    cudaIpcOpenMemHandle(to: *mut u64, handle: IpcHandle, _flags: c_uint) {
        let IpcHandle([head, process, device, _, bytes, ..]) = handle;
        check(!to.is_null() && head == IPC_MEMORY, INVALID_VALUE)?;
        // As CUDA: not in the process that it is from.
        check(process != u64::from(std::process::id()), INVALID_CONTEXT)?;
        out(to, memory::reserve(usize::try_from(device).map_err(|_| INVALID_VALUE)?, bytes)?)
    }
    cudaIpcCloseMemHandle(address: u64) { memory::unreserve(address) }
}

same! {
    cudaMemAdvise_v2 = cudaMemAdvise, cudaMemPrefetchAsync_v2 = cudaMemPrefetchAsync,
    cudaMemPrefetchAsync_ptsz = cudaMemPrefetchAsync, cudaMemPrefetchAsync_v2_ptsz = cudaMemPrefetchAsync,
    cudaMemcpy_ptds = cudaMemcpy, cudaMemcpyAsync_ptsz = cudaMemcpyAsync, cudaMemcpy2D_ptds = cudaMemcpy2D,
    cudaMemcpy2DAsync_ptsz = cudaMemcpy2DAsync, cudaMemcpy3D_ptds = cudaMemcpy3D, cudaMemcpy3DAsync_ptsz = cudaMemcpy3DAsync,
    cudaMemcpyBatchAsync_ptsz = cudaMemcpyBatchAsync,
    cudaMemset_ptds = cudaMemset, cudaMemsetAsync_ptsz = cudaMemsetAsync, cudaMemset2D_ptds = cudaMemset2D,
    cudaMemset2DAsync_ptsz = cudaMemset2DAsync, cudaMemset3D_ptds = cudaMemset3D, cudaMemset3DAsync_ptsz = cudaMemset3DAsync,
}

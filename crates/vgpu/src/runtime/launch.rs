//! Kernels: registered, launched, never run.
//!
//! Inside an operator of PyTorch the values' object says what is known afterwards. Kernels that others launch (Triton's, bitsandbytes', custom
//! extensions') leave numbers that nobody computed: what their arguments point to is forgotten.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock};

use super::errors::{COOPERATIVE_TOO_LARGE, INVALID_CONFIGURATION, INVALID_FUNCTION, MISSING_CONFIGURATION, SYMBOL_NOT_FOUND};
use super::{arguments, capture, devices, images, streams, trace};
use crate::config::card;
use crate::handle::{Handles, fresh};
use crate::memory::{self, block_of, is_device, known};
use crate::names::same;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Status, check, out};

/// `dim3`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Dim3 {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
}

impl Dim3 {
    const fn volume(self) -> u64 {
        (self.x as u64).saturating_mul(self.y as u64).saturating_mul(self.z as u64)
    }
}

/// How a kernel is launched; begins as `cudaLaunchConfig_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Shape {
    pub grid: Dim3,
    pub block: Dim3,
    /// Bytes of shared memory.
    pub shared: usize,
    pub stream: u64,
}

/// `cudaLaunchConfig_t`
#[repr(C)]
pub struct LaunchConfiguration {
    shape: Shape,
    attributes: *const [u32; 18],
    count: c_uint,
}

struct Kernel {
    /// Kept where launches are written down.
    name: Box<str>,
    /// Of [`memory::need`].
    needs: u8,
    /// What it was compiled for.
    images: &'static [images::Image],
}

/// Kernels by what programs launch them with: a function of the host, or a handle.
static KERNELS: LazyLock<RwLock<HashMap<u64, Kernel>>> = LazyLock::new(RwLock::default);

/// Kernels of PyTorch whose threads keep arrays in local memory, by a part of their names: on an H100 a context grows its local memory at the
/// first of these. Not at others that most programs launch: random numbers, products, convolutions, `arange`, `cat`, softmax, `_foreach`.
const LOCAL: [&str; 4] = ["elementwise_kernelI", "reduce_kernelI", "layer_norm_kernelI", "fused_dropout_kernel"];

/// Kernels that were loaded while the program ran.
static LIBRARIES: Handles<()> = Handles::new();

/// Nanoseconds of the host, as far as its calls tell.
static CLOCK: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds from one launch, copy, product, event or wait to the next: 23 to 40 us on average in
/// seven phases of four programs of PyTorch beside an H200; most of their peaks come nearest with the least of it.
pub const CALL: u64 = 25_000;

thread_local! {
    static IN_OPERATOR: Cell<c_int> = const { Cell::new(0) };
    /// Launches that `<<<>>>` has begun. The arguments of one may launch others.
    static PENDING: RefCell<([Shape; 8], usize)> = const { RefCell::new(([EMPTY; 8], 0)) };
}
/// `maxGridSize`, in its first direction.
const LONGEST_GRID: c_uint = (1 << 31) - 1;
const EMPTY: Shape = Shape { grid: Dim3 { x: 0, y: 0, z: 0 }, block: Dim3 { x: 0, y: 0, z: 0 }, shared: 0, stream: 0 };

/// Says that an operator of PyTorch begins (1) or ends (-1) which marks what it wrote.
#[unsafe(no_mangle)]
pub extern "C" fn batchfit_vgpu_in_operator(change: c_int) {
    IN_OPERATOR.set(IN_OPERATOR.get().saturating_add(change));
}

/// What time it is.
pub fn now() -> u64 {
    CLOCK.load(Ordering::Relaxed)
}

/// The host waits.
pub fn pass(until: u64) {
    CLOCK.fetch_max(until, Ordering::Relaxed);
}

/// The host is busy.
pub fn spend(nanoseconds: u64) {
    CLOCK.fetch_add(nanoseconds, Ordering::Relaxed);
}

/// Something that a stream does for a time, and captures where it captures. Says whether it does.
pub fn enqueue(stream: u64, nanoseconds: u64) -> Result<bool, Status> {
    spend(CALL);
    streams::work(stream, nanoseconds);
    capture::add(stream, None)
}

/// Notes a kernel, so that it may be launched.
fn register(kernel: u64, name: &CStr, images: &'static [images::Image]) {
    let name = name.to_string_lossy();
    let local = if LOCAL.iter().any(|part| name.contains(part)) { memory::need::LOCAL } else { 0 };
    let assertions = if name.contains("reduce_kernelI") { memory::need::ASSERTIONS } else { 0 };
    let name = if trace::is_on() { name.into() } else { Box::default() };
    KERNELS.write().unwrap_or_else(PoisonError::into_inner).insert(kernel, Kernel { name, needs: memory::need::CODE | local | assertions, images });
}

/// Whether there is such a kernel.
pub fn is_kernel(kernel: u64) -> bool {
    KERNELS.read().unwrap_or_else(PoisonError::into_inner).contains_key(&kernel)
}

fn check_kernel(kernel: u64) -> Result<(), Status> {
    check(is_kernel(kernel), INVALID_FUNCTION)
}

/// Says a kernel's name, which is made only where launches are written down.
pub type Name<'a> = dyn Fn(&mut dyn FnMut(&str)) + 'a;

/// Launches a kernel. The driver's launches come here too, with what they call it.
/// Safety: `arguments` is null or as a kernel's: an address of each of its arguments.
pub unsafe fn launch(name: &Name, shape: &Shape, arguments: *const u64) -> Result<(), Status> {
    let (grid, block) = (shape.grid, shape.block);
    let is_small = grid.y <= 65535 && grid.z <= 65535 && grid.x <= LONGEST_GRID && block.z <= 64 && block.volume() <= 1024;
    check(is_small && grid.volume() > 0 && block.volume() > 0, INVALID_CONFIGURATION)?;
    check(shape.shared <= usize::try_from(card().shared_per_block_optin).unwrap_or(0), INVALID_VALUE)?;
    streams::check(shape.stream)?;
    // What an H200 took: most threads read and write some 56 bytes.
    enqueue(shape.stream, 2_000 + card().moves(grid.volume().saturating_mul(block.volume() * 56)))?;
    if IN_OPERATOR.get() <= 0 {
        forget_arguments(arguments);
    }
    if trace::is_on() {
        name(&mut |name| trace::write(name, shape));
    }
    Ok(())
}

unsafe fn launch_registered(kernel: u64, shape: &Shape, arguments: *const u64) -> Result<(), Status> {
    let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
    let kernel = kernels.get(&kernel).ok_or(INVALID_FUNCTION)?;
    memory::prepare(streams::device_of(shape.stream)?, kernel.needs);
    launch(&|write| write(&kernel.name), shape, arguments)
}

/// What is forgotten from where an argument points to: as much as is known of one tensor (`SMALL_DECIDING` in values/values.h).
const FORGOTTEN: u64 = 32 << 20;

/// Forgets what lies behind a kernel's arguments.
fn forget_arguments(arguments: *const u64) {
    if !arguments.is_null() {
        arguments::values(arguments as u64, |value| {
            if is_device(value) {
                forget(value);
            }
        });
    }
}

/// Forgets a run of known grains.
fn forget(address: u64) {
    let Some((start, bytes)) = block_of(address) else {
        return;
    };
    let end = (start + bytes).min(address + FORGOTTEN);
    known::mark(address, known::known_start(address, end - address), false);
}

/// Blocks of a kernel that a multiprocessor holds, by its threads and shared memory; its registers are not known and taken to suffice.
pub fn occupancy(threads: u64, shared: u64) -> u64 {
    let card = card();
    let of = |all: c_int, each: u64| u64::try_from(all).unwrap_or(0) / each.max(1);
    let reserved = if card.major >= 8 { 1024 } else { 0 };
    let by_threads = of(card.threads_per_multiprocessor, threads.min(1 << 32).next_multiple_of(32));
    let by_shared = of(card.shared_per_multiprocessor, shared.saturating_add(reserved));
    by_threads.min(by_shared).min(of(card.blocks_per_multiprocessor, 1))
}

/// Threads and shared memory of a cluster's blocks, and how many it has (`cudaLaunchAttributeClusterDimension`).
unsafe fn cluster(configuration: *const LaunchConfiguration) -> Result<(u64, u64, u64), Status> {
    check(!configuration.is_null(), INVALID_VALUE)?;
    let LaunchConfiguration { shape, attributes, count } = configuration.read_unaligned();
    let attributes = (0..if attributes.is_null() { 0 } else { count.min(64) as usize }).map(|index| attributes.add(index).read_unaligned());
    let blocks = attributes.into_iter().find(|attribute| attribute[0] == 4).map_or(1, |size| Dim3 { x: size[2], y: size[3], z: size[4] }.volume());
    Ok((shape.block.volume(), shape.shared as u64, blocks.max(1)))
}

/// `cudaFuncAttributes`
#[derive(Debug)]
#[repr(C)]
pub struct FunctionAttributes {
    /// Shared, constant and local memory.
    bytes: [usize; 3],
    threads: c_int,
    registers: c_int,
    ptx: c_int,
    binary: c_int,
    cache: c_int,
    dynamic_shared: c_int,
    carveout: c_int,
    rest: [c_int; 23],
}
const _: () = assert!(size_of::<FunctionAttributes>() == 144, "as `driver_types.h` of CUDA 12.8 and 13.0");

/// `cudaFuncAttributeMaxDynamicSharedMemorySize`
const DYNAMIC_SHARED: c_int = 8;

static BINARIES: Handles<&'static [images::Image]> = Handles::new();

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterFatBinary(binary: *const c_void) -> u64 {
    BINARIES.insert(Vec::leak(images::of_wrapper(binary)))
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_binary: *const c_void) {}

/// Called when a process ends: the last that is heard of it.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(_binary: *const c_void) {
    trace::flush();
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(_binary: *const c_void) -> c_char {
    1
}

/// Further arguments say where sizes of a launch are written, for emulation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterFunction(binary: u64, host: u64, _device: *const c_char, name: *const c_char) {
    if host != 0 {
        let images = BINARIES.with(binary, |images| *images).unwrap_or_default();
        register(host, if name.is_null() { c"" } else { CStr::from_ptr(name) }, images);
    }
}

runtime! {
    __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared: usize, stream: u64) {
        PENDING.with_borrow_mut(|(shapes, count)| {
            *shapes.get_mut(*count).ok_or(INVALID_VALUE)? = Shape { grid, block, shared, stream };
            *count += 1;
            Ok(())
        })
    }
    __cudaPopCallConfiguration(grid: *mut Dim3, block: *mut Dim3, shared: *mut usize, stream: *mut u64) {
        let shape = PENDING.with_borrow_mut(|(shapes, count)| {
            *count = count.checked_sub(1)?;
            Some(shapes[*count])
        });
        let shape = shape.ok_or(MISSING_CONFIGURATION)?;
        out(grid, shape.grid)?;
        out(block, shape.block)?;
        out(shared, shape.shared)?;
        out(stream, shape.stream)
    }
    __cudaGetKernel(to: *mut u64, kernel: u64) { check_kernel(kernel).and_then(|()| out(to, kernel)) }
    cudaLaunchKernel(kernel: u64, grid: Dim3, block: Dim3, arguments: *const u64, shared: usize, stream: u64) {
        launch_registered(kernel, &Shape { grid, block, shared, stream }, arguments)
    }
    cudaLaunchKernelExC(configuration: *const Shape, kernel: u64, arguments: *const u64) {
        check(!configuration.is_null(), INVALID_VALUE)?;
        launch_registered(kernel, &configuration.read_unaligned(), arguments)
    }
    cudaLaunchCooperativeKernel(kernel: u64, grid: Dim3, block: Dim3, arguments: *const u64, shared: usize, stream: u64) {
        // All blocks run at the same time.
        let most = occupancy(block.volume(), shared as u64) * u64::try_from(card().multiprocessors).unwrap_or(0);
        check(grid.volume() <= most, COOPERATIVE_TOO_LARGE)?;
        launch_registered(kernel, &Shape { grid, block, shared, stream }, arguments)
    }
    cudaFuncGetAttributes(to: *mut FunctionAttributes, kernel: u64) {
        let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
        let images = kernels.get(&kernel).ok_or(INVALID_FUNCTION)?.images;
        let (ptx, binary) = images::versions(images, card().major * 10 + card().minor);
        // A kernel that keeps within its registers: no memory of its own. By default a block gets 48 KiB of shared memory.
        out(to, FunctionAttributes {
            bytes: [0; 3], threads: 1024, registers: 32, ptx, binary, cache: 0, dynamic_shared: 48 << 10, carveout: -1, rest: [0; 23],
        })
    }
    cudaFuncSetAttribute(kernel: u64, attribute: c_int, value: c_int) {
        check_kernel(kernel)?;
        let is_too_large = attribute == DYNAMIC_SHARED && !(0..=card().shared_per_block_optin).contains(&value);
        check((8..=15).contains(&attribute) && !is_too_large, INVALID_VALUE)
    }
    cudaKernelSetAttributeForDevice(kernel: u64, attribute: c_int, value: c_int, device: c_int) {
        devices::device(device)?;
        super::passed(cudaFuncSetAttribute(kernel, attribute, value))
    }
    cudaFuncSetCacheConfig(kernel: u64, _preference: c_int) { check_kernel(kernel) }
    // Which arguments a kernel has is in its code, which is not read: programs ask until they get an error.
    cudaFuncGetParamInfo(kernel: u64, _index: usize, _offset: *mut usize, _bytes: *mut usize) {
        check_kernel(kernel)?;
        Err(NOT_SUPPORTED)
    }
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(to: *mut c_int, kernel: u64, threads: c_int, shared: usize) {
        check_kernel(kernel)?;
        let threads = u64::try_from(threads).ok().filter(|&threads| threads > 0).ok_or(INVALID_VALUE)?;
        out(to, if threads > 1024 { 0 } else { occupancy(threads, shared as u64) as c_int })
    }
    cudaOccupancyAvailableDynamicSMemPerBlock(to: *mut usize, kernel: u64, blocks: c_int, _threads: c_int) {
        check_kernel(kernel)?;
        check(blocks > 0, INVALID_VALUE)?;
        let each = (card().shared_per_multiprocessor / blocks - 1024).clamp(0, card().shared_per_block_optin);
        out(to, each as usize)
    }
    // 8 blocks are in every card's reach that has clusters.
    cudaOccupancyMaxPotentialClusterSize(to: *mut c_int, kernel: u64, configuration: *const LaunchConfiguration) {
        check_kernel(kernel)?;
        cluster(configuration)?;
        out(to, if card().major >= 9 { 8 } else { 1 })
    }
    cudaOccupancyMaxActiveClusters(to: *mut c_int, kernel: u64, configuration: *const LaunchConfiguration) {
        check_kernel(kernel)?;
        let (threads, shared, blocks) = cluster(configuration)?;
        let all = occupancy(threads, shared).saturating_mul(u64::try_from(card().multiprocessors).unwrap_or(0));
        out(to, (all / blocks) as c_int)
    }
    cudaLibraryLoadData(to: *mut u64, code: *const c_void) {
        check(!to.is_null() && !code.is_null(), INVALID_VALUE)?;
        out(to, LIBRARIES.insert(()))
    }
    cudaLibraryUnload(library: u64) { LIBRARIES.remove(library).ok_or(INVALID_HANDLE) }
    cudaLibraryGetKernel(to: *mut u64, library: u64, name: *const c_char) {
        LIBRARIES.with(library, |()| ()).ok_or(INVALID_HANDLE)?;
        check(!to.is_null() && !name.is_null(), INVALID_VALUE)?;
        let kernel = fresh();
        register(kernel, CStr::from_ptr(name), &[]);
        out(to, kernel)
    }
    // What variables and functions there are is in the code, which is not read.
    cudaLibraryGetGlobal(_to: *mut u64) { Err(SYMBOL_NOT_FOUND) }
    cudaLibraryGetKernelCount(_to: *mut c_uint, _library: u64) { Err(NOT_SUPPORTED) }
}

same! {
    __cudaLaunchKernel = cudaLaunchKernel, __cudaLaunchKernel_ptsz = cudaLaunchKernel, cudaLaunchKernel_ptsz = cudaLaunchKernel,
    cudaFuncSetSharedMemConfig = cudaFuncSetCacheConfig, cudaLaunchKernelExC_ptsz = cudaLaunchKernelExC, cudaLaunchCooperativeKernel_ptsz = cudaLaunchCooperativeKernel,
    cudaGetKernel = __cudaGetKernel, cudaGetFuncBySymbol = __cudaGetKernel, cudaLibraryLoadFromFile = cudaLibraryLoadData,
    cudaLibraryGetManaged = cudaLibraryGetGlobal, cudaLibraryGetUnifiedFunction = cudaLibraryGetGlobal,
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = cudaOccupancyMaxActiveBlocksPerMultiprocessor,
}

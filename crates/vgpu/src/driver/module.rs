//! Modules, libraries, kernels and their launches. Nothing is launched; what a kernel is told to be (shared memory, registers) is remembered.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

use crate::config::card;
use crate::handle::Handles;
use crate::names::{done, same, say_unanswered};
use crate::runtime::launch::{self, Dim3, Shape};
use crate::status::{FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, SUCCESS, Status, give};

use super::cubin;

/// A module, which a library is too.
#[derive(Debug)]
struct Module {
    /// What its image says; `None` where that is PTX or a bundle, which are not looked into: any name is found there.
    kernels: Option<Vec<cubin::Kernel>>,
    /// Functions that were asked for.
    found: BTreeMap<CString, u64>,
}

#[derive(Debug)]
struct Function {
    kernel: cubin::Kernel,
    module: u64,
    /// `CU_FUNC_ATTRIBUTE_*` that were set.
    set: BTreeMap<c_int, c_int>,
}

static MODULES: Handles<Module> = Handles::new();
static FUNCTIONS: Handles<Function> = Handles::new();

/// Threads of a block, of every card since compute capability 2.0.
const MOST_THREADS: u32 = 1024;

/// What a kernel is taken to need where its image does not say: enough for a full multiprocessor.
const REGISTERS: u32 = 32;

unsafe fn load(module: *mut u64, image: Option<&[u8]>) -> Status {
    if module.is_null() {
        return INVALID_VALUE;
    }
    let kernels = image.and_then(cubin::kernels);
    give(module, MODULES.insert(Module { kernels, found: BTreeMap::new() }))
}

unsafe fn load_file(module: *mut u64, path: *const c_char) -> Status {
    if module.is_null() || path.is_null() {
        return INVALID_VALUE;
    }
    match std::fs::read(OsStr::from_bytes(CStr::from_ptr(path).to_bytes())) {
        Ok(image) => load(module, image.starts_with(b"\x7fELF").then_some(&image)),
        Err(_) => FILE_NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoad(module: *mut u64, path: *const c_char) -> Status {
    load_file(module, path)
}

/// As `cuModuleLoadDataEx` and `cuLibraryLoadData`, whose options change nothing here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut u64, image: *const u8) -> Status {
    if image.is_null() {
        return INVALID_VALUE;
    }
    load(module, cubin::image(image))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: u64) -> Status {
    let Some(module) = MODULES.remove(module) else {
        return INVALID_HANDLE;
    };
    for function in module.found.into_values() {
        FUNCTIONS.remove(function);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) -> Status {
    if function.is_null() || name.is_null() {
        return INVALID_VALUE;
    }
    let name = CStr::from_ptr(name).to_owned();
    let found = MODULES.with(module, |one| {
        if let Some(&known) = one.found.get(&name) {
            return Some(known);
        }
        let kernel = match &one.kernels {
            Some(kernels) => kernels.iter().find(|kernel| kernel.name == name)?.clone(),
            None => cubin::Kernel { name: name.clone(), registers: REGISTERS, ..cubin::Kernel::default() },
        };
        let made = FUNCTIONS.insert(Function { kernel, module, set: BTreeMap::new() });
        one.found.insert(name, made);
        Some(made)
    });
    match found {
        None => INVALID_HANDLE,
        Some(None) => NOT_FOUND,
        Some(Some(made)) => give(function, made),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunctionCount(count: *mut c_uint, module: u64) -> Status {
    let known = MODULES.with(module, |module| module.kernels.as_ref().map_or(0, Vec::len));
    known.map_or(INVALID_HANDLE, |known| give(count, known as c_uint))
}

/// Variables of a module have no place here.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetGlobal_v2(_address: *mut u64, _bytes: *mut usize, _module: u64, _name: *const c_char) -> Status {
    say_unanswered!("cuModuleGetGlobal");
    NOT_FOUND
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut c_int) -> Status {
    /// `CU_MODULE_LAZY_LOADING`.
    const LAZY: c_int = 2;
    give(mode, LAZY)
}

/// A library is a module, a kernel a function.
unsafe fn give_same(to: *mut u64, from: u64, is_known: bool) -> Status {
    if is_known { give(to, from) } else { INVALID_HANDLE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryGetModule(module: *mut u64, library: u64) -> Status {
    give_same(module, library, MODULES.with(library, |_| ()).is_some())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuKernelGetFunction(function: *mut u64, kernel: u64) -> Status {
    give_same(function, kernel, FUNCTIONS.with(kernel, |_| ()).is_some())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetModule(module: *mut u64, function: u64) -> Status {
    FUNCTIONS.with(function, |function| function.module).map_or(INVALID_HANDLE, |known| give(module, known))
}

/// The name lives as long as the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetName(name: *mut *const c_char, function: u64) -> Status {
    let known = FUNCTIONS.with(function, |function| function.kernel.name.as_ptr() as usize);
    known.map_or(INVALID_HANDLE, |known| give(name, known as *const c_char))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetParamInfo(function: u64, index: usize, offset: *mut usize, size: *mut usize) -> Status {
    let known = FUNCTIONS.with(function, |function| function.kernel.parameters.get(index).copied());
    match known {
        None => INVALID_HANDLE,
        Some(None) => INVALID_VALUE,
        Some(Some((at, bytes))) => {
            if !size.is_null() {
                give(size, usize::from(bytes));
            }
            give(offset, usize::from(at))
        }
    }
}

fn attribute(function: &Function, number: c_int) -> Option<c_int> {
    let kernel = &function.kernel;
    let most = if kernel.most_threads == 0 { MOST_THREADS } else { kernel.most_threads };
    let value = match number {
        0 => most as c_int,
        1 => kernel.shared as c_int,
        3 => kernel.local as c_int,
        4 => kernel.registers as c_int,
        // The versions it was compiled for, of PTX and of the binary.
        5 | 6 => card().major * 10 + card().minor,
        8 => card().shared_per_block_optin - kernel.shared as c_int,
        9 => -1,
        2 | 7 | 10..=15 => 0,
        _ => return None,
    };
    Some(function.set.get(&number).copied().unwrap_or(value))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, number: c_int, function: u64) -> Status {
    match FUNCTIONS.with(function, |function| attribute(function, number)) {
        None => INVALID_HANDLE,
        Some(None) => INVALID_VALUE,
        Some(Some(known)) => give(value, known),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: u64, number: c_int, value: c_int) -> Status {
    let set = FUNCTIONS.with(function, |function| {
        // Dynamic shared memory, what of it is preferred, and clusters can be set.
        let is_settable = matches!(number, 8..=15);
        let is_too_much = number == 8 && value.saturating_add(function.kernel.shared as c_int) > card().shared_per_block_optin;
        if !is_settable || is_too_much {
            return INVALID_VALUE;
        }
        function.set.insert(number, value);
        SUCCESS
    });
    set.unwrap_or(INVALID_HANDLE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuKernelSetAttribute(number: c_int, value: c_int, kernel: u64, _device: c_int) -> Status {
    cuFuncSetAttribute(kernel, number, value)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncIsLoaded(state: *mut c_int, function: u64) -> Status {
    /// `CU_FUNCTION_LOADING_STATE_LOADED`.
    const LOADED: c_int = 1;
    FUNCTIONS.with(function, |_| ()).map_or(INVALID_HANDLE, |()| give(state, LOADED))
}

/// Blocks of a kernel that a multiprocessor holds: as its threads, registers and shared memory allow.
fn blocks(function: &Function, threads: u32, dynamic_shared: usize) -> u32 {
    /// Registers of a multiprocessor, and what a warp's are rounded to; the same since compute capability 5.0.
    const ALL_REGISTERS: u32 = 64 << 10;
    const WARP: u32 = 32;
    const REGISTER_UNIT: u32 = 256;
    /// Registers that a thread may have; what an image says beyond is not one's.
    const MOST_REGISTERS: u32 = 255;
    /// What the system keeps of each block's shared memory since compute capability 8.0.
    const RESERVED_SHARED: u64 = 1024;
    let warps = threads.div_ceil(WARP);
    let by_threads = card().threads_per_multiprocessor as u32 / (warps * WARP);
    let registers = (function.kernel.registers.clamp(1, MOST_REGISTERS) * WARP).next_multiple_of(REGISTER_UNIT) * warps;
    let shared =
        u64::from(function.kernel.shared).saturating_add(dynamic_shared as u64).saturating_add(if card().major >= 8 { RESERVED_SHARED } else { 0 });
    let by_shared = card().shared_per_multiprocessor as u64 / shared.max(1);
    by_threads.min(ALL_REGISTERS / registers).min(by_shared as u32).min(card().blocks_per_multiprocessor as u32)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count: *mut c_int,
    function: u64,
    threads: c_int,
    dynamic_shared: usize,
) -> Status {
    let threads = u32::try_from(threads).unwrap_or(0);
    if !(1..=MOST_THREADS).contains(&threads) {
        return INVALID_VALUE;
    }
    let known = FUNCTIONS.with(function, |function| blocks(function, threads, dynamic_shared));
    known.map_or(INVALID_HANDLE, |known| give(count, known as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveClusters(count: *mut c_int, function: u64, config: *const Launch) -> Status {
    if config.is_null() {
        return INVALID_VALUE;
    }
    FUNCTIONS.with(function, |_| ()).map_or(INVALID_HANDLE, |()| give(count, card().multiprocessors))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxPotentialClusterSize(size: *mut c_int, function: u64, config: *const Launch) -> Status {
    /// The portable size: all cards that have clusters allow it.
    const PORTABLE: c_int = 8;
    if config.is_null() {
        return INVALID_VALUE;
    }
    FUNCTIONS.with(function, |_| ()).map_or(INVALID_HANDLE, |()| give(size, PORTABLE))
}

/// `CUlaunchConfig`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Launch {
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    stream: u64,
    attributes: *const c_void,
    attribute_count: c_uint,
}

/// Launches, of its own kernels or of those that the runtime knows (`cudaGetFuncBySymbol`).
unsafe fn launch(function: u64, shape: &Shape, parameters: *const u64) -> Status {
    /// The runtime's number for what the driver calls an invalid value.
    const INVALID_CONFIGURATION: Status = 9;
    let name = FUNCTIONS.with(function, |function| function.kernel.name.clone());
    if name.is_none() && !launch::is_kernel(function) {
        return INVALID_HANDLE;
    }
    let say = |write: &mut dyn FnMut(&str)| write(&name.as_deref().unwrap_or_default().to_string_lossy());
    match launch::launch(&say, shape, parameters) {
        Ok(()) => SUCCESS,
        Err(INVALID_CONFIGURATION) => INVALID_VALUE,
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(config: *const Launch, function: u64, parameters: *const u64, _extra: *const *const c_void) -> Status {
    if config.is_null() {
        return INVALID_VALUE;
    }
    let Launch { grid, block, shared, stream, .. } = config.read_unaligned();
    launch(function, &Shape { grid, block, shared: shared as usize, stream }, parameters)
}

#[unsafe(no_mangle)]
#[expect(clippy::too_many_arguments, reason = "CUDA's")]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: u64,
    parameters: *const u64,
    _extra: *const *const c_void,
) -> Status {
    let (grid, block) = (Dim3 { x: grid_x, y: grid_y, z: grid_z }, Dim3 { x: block_x, y: block_y, z: block_z });
    launch(function, &Shape { grid, block, shared: shared as usize, stream }, parameters)
}

same! {
    cuModuleLoadDataEx = cuModuleLoadData, cuModuleLoadFatBinary = cuModuleLoadData, cuLibraryLoadData = cuModuleLoadData,
    cuLibraryLoadFromFile = cuModuleLoad, cuLibraryUnload = cuModuleUnload, cuLibraryGetKernel = cuModuleGetFunction,
    cuLibraryGetKernelCount = cuModuleGetFunctionCount, cuModuleGetGlobal = cuModuleGetGlobal_v2, cuLibraryGetGlobal = cuModuleGetGlobal_v2,
    cuLibraryGetManaged = cuModuleGetGlobal_v2, cuKernelGetLibrary = cuFuncGetModule, cuKernelGetName = cuFuncGetName, cuKernelGetParamInfo = cuFuncGetParamInfo,
    // The device that follows is not looked at: all are alike.
    cuKernelGetAttribute = cuFuncGetAttribute,
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = cuOccupancyMaxActiveBlocksPerMultiprocessor,
    cuLaunchCooperativeKernel = cuLaunchKernel,
}

done! { cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuFuncLoad cuKernelSetCacheConfig }

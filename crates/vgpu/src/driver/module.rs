//! Modules, libraries, kernels and their launches. Nothing is launched; what a kernel is told to be (shared memory, registers) is remembered.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

use crate::config::card;
use crate::handle::Handles;
use crate::names::{done, functions, same, say_unanswered};
use crate::runtime::errors::INVALID_CONFIGURATION;
use crate::runtime::launch::{self, Dim3, Shape};
use crate::status::{FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, Status, check, out, out_if};

use super::cubin;

/// A module, which a library is too.
struct Module {
    /// What its image says; `None` where that is PTX or a bundle, which are not looked into: any name is found there.
    kernels: Option<Vec<cubin::Kernel>>,
    /// Functions that were asked for.
    found: BTreeMap<CString, u64>,
}

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

unsafe fn load(module: *mut u64, image: Option<&[u8]>) -> Result<(), Status> {
    check(!module.is_null(), INVALID_VALUE)?;
    let kernels = image.and_then(cubin::kernels);
    out(module, MODULES.insert(Module { kernels, found: BTreeMap::new() }))
}

/// What is known of a function, or a kernel: they are the same.
fn with<T>(function: u64, act: impl FnOnce(&mut Function) -> T) -> Result<T, Status> {
    FUNCTIONS.with(function, act).ok_or(INVALID_HANDLE)
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

fn set(function: u64, number: c_int, value: c_int) -> Result<(), Status> {
    with(function, |function| {
        // Dynamic shared memory, what of it is preferred, and clusters can be set.
        let is_too_much = number == 8 && value.saturating_add(function.kernel.shared as c_int) > card().shared_per_block_optin;
        check(matches!(number, 8..=15) && !is_too_much, INVALID_VALUE)?;
        function.set.insert(number, value);
        Ok(())
    })?
}

/// Blocks of a kernel that a multiprocessor holds: as its threads, registers and shared memory allow.
fn blocks(function: &Function, threads: u32, dynamic_shared: usize) -> u64 {
    /// Registers of a multiprocessor, and what a warp's are rounded to; the same since compute capability 5.0.
    const ALL_REGISTERS: u32 = 64 << 10;
    const WARP: u32 = 32;
    const REGISTER_UNIT: u32 = 256;
    /// Registers that a thread may have; what an image says beyond is not one's.
    const MOST_REGISTERS: u32 = 255;
    let registers = (function.kernel.registers.clamp(1, MOST_REGISTERS) * WARP).next_multiple_of(REGISTER_UNIT) * threads.div_ceil(WARP);
    let shared = u64::from(function.kernel.shared).saturating_add(dynamic_shared as u64);
    launch::occupancy(threads.into(), shared).min((ALL_REGISTERS / registers).into())
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
unsafe fn launch(function: u64, shape: &Shape, parameters: *const u64) -> Result<(), Status> {
    let name = FUNCTIONS.with(function, |function| function.kernel.name.clone());
    check(name.is_some() || launch::is_kernel(function), INVALID_HANDLE)?;
    let say = |write: &mut dyn FnMut(&str)| write(&name.as_deref().unwrap_or_default().to_string_lossy());
    launch::launch(&say, shape, parameters).map_err(|status| if status == INVALID_CONFIGURATION { INVALID_VALUE } else { status })
}

functions! {
    cuModuleLoad(module: *mut u64, path: *const c_char) {
        check(!module.is_null() && !path.is_null(), INVALID_VALUE)?;
        let image = std::fs::read(OsStr::from_bytes(CStr::from_ptr(path).to_bytes())).map_err(|_| FILE_NOT_FOUND)?;
        load(module, image.starts_with(b"\x7fELF").then_some(&image))
    }
    /// As `cuModuleLoadDataEx` and `cuLibraryLoadData`, whose options change nothing here.
    cuModuleLoadData(module: *mut u64, image: *const u8) {
        check(!image.is_null(), INVALID_VALUE)?;
        load(module, cubin::image(image))
    }
    cuModuleUnload(module: u64) {
        for function in MODULES.remove(module).ok_or(INVALID_HANDLE)?.found.into_values() {
            FUNCTIONS.remove(function);
        }
        Ok(())
    }
    cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) {
        check(!function.is_null() && !name.is_null(), INVALID_VALUE)?;
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
        out(function, found.ok_or(INVALID_HANDLE)?.ok_or(NOT_FOUND)?)
    }
    cuModuleGetFunctionCount(count: *mut c_uint, module: u64) {
        let known = MODULES.with(module, |module| module.kernels.as_ref().map_or(0, Vec::len)).ok_or(INVALID_HANDLE)?;
        out(count, known as c_uint)
    }
    /// Variables of a module have no place here.
    cuModuleGetGlobal_v2(_address: *mut u64, _bytes: *mut usize, _module: u64, _name: *const c_char) {
        say_unanswered!("cuModuleGetGlobal");
        Err(NOT_FOUND)
    }
    cuModuleGetLoadingMode(mode: *mut c_int) {
        // `CU_MODULE_LAZY_LOADING`
        out(mode, 2)
    }
    // A library is a module, a kernel a function.
    cuLibraryGetModule(module: *mut u64, library: u64) {
        MODULES.with(library, |_| ()).ok_or(INVALID_HANDLE)?;
        out(module, library)
    }
    cuKernelGetFunction(function: *mut u64, kernel: u64) { with(kernel, |_| ()).and_then(|()| out(function, kernel)) }
    cuFuncGetModule(module: *mut u64, function: u64) { out(module, with(function, |function| function.module)?) }
    /// The name lives as long as the module.
    cuFuncGetName(name: *mut *const c_char, function: u64) {
        let known = with(function, |function| function.kernel.name.as_ptr() as usize)?;
        out(name, known as *const c_char)
    }
    cuFuncGetParamInfo(function: u64, index: usize, offset: *mut usize, size: *mut usize) {
        let (at, bytes) = with(function, |function| function.kernel.parameters.get(index).copied())?.ok_or(INVALID_VALUE)?;
        out_if(size, usize::from(bytes));
        out(offset, usize::from(at))
    }
    cuFuncGetAttribute(value: *mut c_int, number: c_int, function: u64) {
        out(value, with(function, |function| attribute(function, number))?.ok_or(INVALID_VALUE)?)
    }
    cuFuncSetAttribute(function: u64, number: c_int, value: c_int) { set(function, number, value) }
    cuKernelSetAttribute(number: c_int, value: c_int, kernel: u64, _device: c_int) { set(kernel, number, value) }
    cuFuncIsLoaded(state: *mut c_int, function: u64) {
        with(function, |_| ())?;
        // `CU_FUNCTION_LOADING_STATE_LOADED`
        out(state, 1)
    }
    cuOccupancyMaxActiveBlocksPerMultiprocessor(count: *mut c_int, function: u64, threads: c_int, dynamic_shared: usize) {
        let threads = u32::try_from(threads).unwrap_or(0);
        check((1..=MOST_THREADS).contains(&threads), INVALID_VALUE)?;
        out(count, with(function, |function| blocks(function, threads, dynamic_shared))? as c_int)
    }
    cuOccupancyMaxActiveClusters(count: *mut c_int, function: u64, config: *const Launch) {
        check(!config.is_null(), INVALID_VALUE)?;
        with(function, |_| ())?;
        out(count, card().multiprocessors)
    }
    cuOccupancyMaxPotentialClusterSize(size: *mut c_int, function: u64, config: *const Launch) {
        check(!config.is_null(), INVALID_VALUE)?;
        with(function, |_| ())?;
        // The portable size: all cards that have clusters allow it.
        out(size, 8)
    }
    cuLaunchKernelEx(config: *const Launch, function: u64, parameters: *const u64, _extra: *const *const c_void) {
        check(!config.is_null(), INVALID_VALUE)?;
        let Launch { grid, block, shared, stream, .. } = config.read_unaligned();
        launch(function, &Shape { grid, block, shared: shared as usize, stream }, parameters)
    }
    cuLaunchKernel(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: u64, parameters: *const u64,
        _extra: *const *const c_void,
    ) {
        let (grid, block) = (Dim3 { x: grid_x, y: grid_y, z: grid_z }, Dim3 { x: block_x, y: block_y, z: block_z });
        launch(function, &Shape { grid, block, shared: shared as usize, stream }, parameters)
    }
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

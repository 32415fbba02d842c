//! The CUDA runtime that PyTorch has loaded.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LAZY, Symbol};

use crate::die;
use batchfit_card::alloc::{Address, Full, Reserved, SegmentSource};
use batchfit_step::units::Bytes;

/// `cudaErrorMemoryAllocation`.
const NO_MEMORY: c_int = 2;

/// Finds what is loaded, and loads nothing. `RTLD_NOLOAD` of glibc.
const LOADED: c_int = 4;

/// The runtime's functions. The library stays loaded as long as the process lives.
pub(crate) struct Runtime {
    malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    free: unsafe extern "C" fn(*mut c_void) -> c_int,
    last_error: unsafe extern "C" fn() -> c_int,
    memory: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    query: unsafe extern "C" fn(*mut c_void) -> c_int,
}

impl Runtime {
    pub(crate) fn get() -> &'static Runtime {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        RUNTIME.get_or_init(|| {
            let names = ["libcudart.so.13", "libcudart.so.12"];
            // SAFETY: the types are those of CUDA's cuda_runtime_api.h.
            unsafe {
                Runtime {
                    malloc: find("cudaMalloc", &names),
                    free: find("cudaFree", &names),
                    last_error: find("cudaGetLastError", &names),
                    memory: find("cudaMemGetInfo", &names),
                    query: find("cudaStreamQuery", &names),
                }
            }
        })
    }

    /// Whether a stream has done all that it was given.
    pub(crate) fn is_done(&self, stream: u64) -> bool {
        // SAFETY: PyTorch gave this stream, and its streams live as long as the process.
        unsafe { (self.query)(stream as *mut c_void) == 0 }
    }

    /// The memory of the device.
    pub(crate) fn total(&self) -> Bytes {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to numbers that live until the call is over.
        let error = unsafe { (self.memory)(&raw mut free, &raw mut total) };
        if error != 0 {
            die(&format!("cudaMemGetInfo: error {error}"));
        }
        Bytes(total as u64)
    }
}

/// A function of what is loaded: of the whole process's first, which a preloaded library comes first in, then of these libraries.
///
/// # Safety
///
/// `T` must be the type of that function.
pub(crate) unsafe fn find<T: Copy>(name: &str, libraries: &[&str]) -> T {
    let loaded = libraries.iter().filter_map(|library| {
        // SAFETY: nothing is loaded, so no code of the library runs.
        unsafe { Library::open(Some(*library), RTLD_LAZY | LOADED) }.ok()
    });
    for library in std::iter::once(Library::this()).chain(loaded) {
        // SAFETY: the caller knows the type.
        let found: Result<Symbol<T>, _> = unsafe { library.get(name.as_bytes()) };
        if let Ok(symbol) = found {
            let function = *symbol;
            // What it is from must stay.
            std::mem::forget(library);
            return function;
        }
    }
    die(&format!(
        "{name} is in none of the libraries that are loaded"
    ));
}

/// Segments from `cudaMalloc`.
pub(crate) struct CudaMalloc(pub(crate) &'static Runtime);

impl SegmentSource for CudaMalloc {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        let mut address = std::ptr::null_mut();
        let Ok(bytes) = usize::try_from(size.0) else {
            return Err(Full { asked: size });
        };
        // SAFETY: the pointer is to one that lives until the call is over.
        match unsafe { (self.0.malloc)(&raw mut address, bytes) } {
            0 => Ok(Address(address as u64)),
            NO_MEMORY => {
                // Or PyTorch finds this error after the next kernel.
                // SAFETY: it takes nothing.
                unsafe { (self.0.last_error)() };
                Err(Full { asked: size })
            }
            error => die(&format!("cudaMalloc: error {error}")),
        }
    }

    fn give_back(&mut self, segment: Address, _: Bytes) {
        // SAFETY: `take` gave it, and the allocator gives each back once.
        let error = unsafe { (self.0.free)(segment.0 as *mut c_void) };
        if error != 0 {
            die(&format!("cudaFree: error {error}"));
        }
    }

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        Err(Full { asked: unit })
    }

    fn map(&mut self, _: Address, size: Bytes) -> Result<(), Full> {
        Err(Full { asked: size })
    }

    fn unmap(&mut self, at: Address, _: Bytes) {
        die(&format!("{at} was never mapped"));
    }

    fn release(&mut self, reserved: Reserved) {
        die(&format!("{} was never reserved", reserved.address));
    }
}

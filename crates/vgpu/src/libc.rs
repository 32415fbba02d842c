//! What is used of the C library, which `std` links anyway.

use std::ffi::{CStr, c_char, c_int, c_void};

pub const PROT_NONE: c_int = 0;
/// `PROT_READ | PROT_WRITE`
pub const READ_WRITE: c_int = 3;
pub const MAP_FIXED_NOREPLACE: c_int = 0x10_0000;
pub const MADV_DONTNEED: c_int = 4;
pub const MADV_NOHUGEPAGE: c_int = 15;
pub const MADV_DONTDUMP: c_int = 16;
pub const RTLD_DEFAULT: *mut c_void = std::ptr::null_mut();
pub const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

/// `Dl_info`.
#[derive(Debug)]
#[repr(C)]
pub struct DlInfo {
    pub file: *const c_char,
    pub base: *mut c_void,
    pub name: *const c_char,
    pub address: *mut c_void,
}

/// `struct iovec`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Piece {
    pub address: u64,
    pub bytes: usize,
}

unsafe extern "C" {
    pub fn process_vm_readv(process: c_int, to: *const Piece, to_count: u64, from: *const Piece, from_count: u64, flags: u64) -> isize;
    pub fn pthread_self() -> usize;
    pub fn pthread_atfork(
        before: Option<unsafe extern "C" fn()>,
        in_parent: Option<unsafe extern "C" fn()>,
        in_child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
    pub fn pthread_getattr_np(thread: usize, attributes: *mut [u64; 8]) -> c_int;
    pub fn pthread_attr_getstack(attributes: *const [u64; 8], start: *mut usize, bytes: *mut usize) -> c_int;
    pub fn pthread_attr_destroy(attributes: *mut [u64; 8]) -> c_int;
    fn mmap(at: *mut c_void, bytes: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
    pub fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    pub fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// Maps fresh memory that takes nothing before it is written, at or near `wanted`; `None` where the kernel refuses.
pub fn map(wanted: u64, bytes: u64, protection: c_int, flags: c_int) -> Option<u64> {
    /// `MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE`, and `MAP_FAILED`.
    const FRESH: c_int = 0x4022;
    const FAILED: u64 = u64::MAX;
    // SAFETY: none of these flags replaces a mapping that is there.
    let at = unsafe { mmap(wanted as *mut c_void, bytes as usize, protection, flags | FRESH, -1, 0) } as u64;
    (at != FAILED).then_some(at)
}

/// A library that is loaded already.
pub fn loaded(file: &CStr) -> Option<*mut c_void> {
    /// `RTLD_NOW | RTLD_NOLOAD`
    const LOADED: c_int = 6;
    // SAFETY: a name that ends; nothing is loaded by this.
    let library = unsafe { dlopen(file.as_ptr(), LOADED) };
    (!library.is_null()).then_some(library)
}

/// What a library has by a name. It is one of [`loaded`], or of the two above.
pub fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a library that stays loaded, and a name that ends.
    let found = unsafe { dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

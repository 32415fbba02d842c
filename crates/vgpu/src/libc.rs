//! What is used of the C library, which `std` links anyway.

use std::ffi::{c_char, c_int, c_void};

pub const PROT_NONE: c_int = 0;
pub const PROT_READ: c_int = 1;
pub const PROT_WRITE: c_int = 2;
pub const MAP_PRIVATE: c_int = 0x2;
pub const MAP_ANONYMOUS: c_int = 0x20;
pub const MAP_NORESERVE: c_int = 0x4000;
pub const MAP_FIXED_NOREPLACE: c_int = 0x10_0000;
pub const MAP_FAILED: *mut c_void = usize::MAX as *mut c_void;
pub const MADV_DONTNEED: c_int = 4;
pub const MADV_NOHUGEPAGE: c_int = 15;
pub const MADV_DONTDUMP: c_int = 16;
pub const RTLD_NOW: c_int = 2;
pub const RTLD_NOLOAD: c_int = 4;
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
    pub fn mmap(at: *mut c_void, bytes: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
    pub fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    pub fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    pub fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    pub fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

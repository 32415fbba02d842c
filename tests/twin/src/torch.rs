//! `torch.OutOfMemoryError`, raised from here.
//!
//! PyTorch 2.11 does not look at what a pluggable allocator gives it (`CUDAPluggableAllocator::malloc` in
//! torch/csrc/cuda/CUDAPluggableAllocator.cpp): null becomes a tensor's memory, and the next kernel fails with an illegal access or the
//! tensor with "its data is not allocated yet". Its own allocator throws `c10::OutOfMemoryError`, which Python knows as
//! `torch.OutOfMemoryError`; so this does the same, by the C++ runtime's own functions (Itanium C++ ABI, 2.4 Throwing an
//! Exception). The class is header-only (c10/util/Exception.h): it adds nothing to `c10::Error`, whose constructor libc10 has.

use std::ffi::{c_char, c_void};

use crate::cuda::find;

/// `c10::SourceLocation`.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string` of libstdc++.
#[repr(C)]
struct CppString {
    data: *mut c_char,
    length: usize,
    /// In place of the text where that is short.
    capacity: usize,
    rest: usize,
}

/// More than a `c10::Error` takes: two strings, a vector and some pointers.
const ROOM: usize = 1024;

/// What lies in front of a class's virtual functions: the offset to the top, and its type.
const BEFORE_FUNCTIONS: usize = 2;

/// Throws `c10::OutOfMemoryError`.
pub(crate) fn raise_out_of_memory(message: &str) -> ! {
    type Take = unsafe extern "C" fn(usize) -> *mut c_void;
    type Construct = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut CppString);
    type Destroy = unsafe extern "C-unwind" fn(*mut c_void);
    type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Destroy) -> !;

    const STANDARD: [&str; 1] = ["libstdc++.so.6"];
    const C10: [&str; 3] = ["libc10.so", "libc10_cuda.so", "libtorch_python.so"];
    // SAFETY: the types are the Itanium C++ ABI's and, of the constructor, c10/util/Exception.h's, with a string that is passed
    // by its address. `address` gives those of tables, which are not read but for the destructor, the first function there.
    unsafe {
        let room: Take = find("_Znwm", &STANDARD);
        let exception: Take = find("__cxa_allocate_exception", &STANDARD);
        let throw: Throw = find("__cxa_throw", &STANDARD);
        let construct: Construct = find(
            "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            &C10,
        );
        let table: *const *const c_void = find("_ZTVN3c1016OutOfMemoryErrorE", &C10);
        let kind: *const c_void = find("_ZTIN3c1016OutOfMemoryErrorE", &C10);

        // The constructor takes the text over, as C++ moves strings.
        let data: *mut c_char = room(message.len() + 1).cast();
        std::ptr::copy_nonoverlapping(message.as_ptr(), data.cast(), message.len());
        *data.add(message.len()) = 0;
        let mut text = CppString {
            data,
            length: message.len(),
            capacity: message.len(),
            rest: 0,
        };
        let location = SourceLocation {
            function: c"batchfit_twin_malloc".as_ptr(),
            file: c"tests/twin".as_ptr(),
            line: 0,
        };
        let error = exception(ROOM);
        std::ptr::write_bytes(error.cast::<u8>(), 0, ROOM);
        construct(error, location, &raw mut text);
        let functions = table.add(BEFORE_FUNCTIONS);
        *error.cast::<*const *const c_void>() = functions;
        let destroy: Destroy = std::mem::transmute(*functions);
        throw(error, kind, destroy)
    }
}

//! What CUDA's functions return, and writing through their pointers.

/// `cudaError_t` and `CUresult`, which agree on these.
pub type Status = i32;

/// Done.
pub const SUCCESS: Status = 0;
/// An argument is out of its range.
pub const INVALID_VALUE: Status = 1;
/// The card's memory, or the bound on the host's, is used up.
pub const OUT_OF_MEMORY: Status = 2;
/// No such device.
pub const INVALID_DEVICE: Status = 101;
/// No context of that handle.
pub const INVALID_CONTEXT: Status = 201;
/// No file of that name.
pub const FILE_NOT_FOUND: Status = 301;
/// A handle that was never given out.
pub const INVALID_HANDLE: Status = 400;
/// No function or mapping of that name or address.
pub const NOT_FOUND: Status = 500;
/// The card cannot.
pub const NOT_SUPPORTED: Status = 801;

/// What a function returns that answers so.
pub fn status(answer: impl FnOnce() -> Result<(), Status>) -> Status {
    answer().err().unwrap_or(SUCCESS)
}

/// An error where something is not as it should be.
pub fn check(is_right: bool, status: Status) -> Result<(), Status> {
    if is_right { Ok(()) } else { Err(status) }
}

/// Writes `value` to where a caller wants it.
/// Safety: `to` is null or what a caller of C passes for a result of this type.
pub unsafe fn out<T>(to: *mut T, value: T) -> Result<(), Status> {
    check(!to.is_null(), INVALID_VALUE)?;
    // Unaligned: a caller may pack its structures.
    to.write_unaligned(value);
    Ok(())
}

/// The same for a library that calls a null pointer `$status`.
macro_rules! refuses_null {
    ($status:expr) => {
        unsafe fn out<T>(to: *mut T, value: T) -> Result<(), crate::status::Status> {
            crate::status::out(to, value).map_err(|_| $status)
        }
    };
}
pub(crate) use refuses_null;

/// The same where a caller may not want it.
/// Safety: as of [`out`].
pub unsafe fn out_if<T>(to: *mut T, value: T) {
    let _ = out(to, value);
}

/// Writes text with its end into at most `room` bytes.
/// Safety: `to` is null or has `room` bytes.
pub unsafe fn out_text(to: *mut u8, room: usize, text: &str) -> Result<(), Status> {
    check(!to.is_null() && room > 0, INVALID_VALUE)?;
    let length = text.len().min(room - 1);
    std::ptr::copy_nonoverlapping(text.as_ptr(), to, length);
    *to.add(length) = 0;
    Ok(())
}

//! The `batchfit` command.

use std::process::ExitCode;

use batchfit::limits::Counted;
use mimalloc::MiMalloc;

#[global_allocator]
static HEAP: Counted<MiMalloc> = Counted(MiMalloc);

fn main() -> ExitCode {
    batchfit::cli::run(give_back_at_once)
}

/// Looks at stdout before the standard library does, which opens `/dev/null` in the place of one that is closed.
#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "a place in the program's file has no other words"
)]
// SAFETY: the loader calls what is in this section before `main`, on the one thread that there is; it asks the system and sets a flag.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = batchfit::cli::look_at_stdout;

/// Has the heap give pages back as soon as nothing is in them, rather than after 10 ms; and that of C, which SQLite uses, have one arena: one
/// for each thread kept 8 MiB of a service under load (`tests/service/load.py`).
fn give_back_at_once() {
    /// `mi_option_purge_delay` of `mi_option_t` in mimalloc.h, version 2; in milliseconds.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    #[expect(unsafe_code, reason = "the heap's settings are C")]
    // SAFETY: a store to one word of a table of options, for which every value is valid.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the heap's settings are C")]
    {
        unsafe extern "C" {
            safe fn mallopt(option: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        /// `M_ARENA_MAX` of malloc.h.
        const ARENA_MAX: std::ffi::c_int = -8;
        mallopt(ARENA_MAX, 1);
    }
}

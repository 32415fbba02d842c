//! Every other name that programs link to or look up, by what calling it does.
//!
//! The list is written by `names.py` from installed wheels. A name must exist, else PyTorch does not load, or cuDNN finds no driver; most are
//! never called. What needs an answer and has none is said to `batchfit run`, once for each name.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::channel;
use crate::status::{SUCCESS, Status};

/// Says, once, that a function was called that has no real answer.
pub fn unanswered(said: &AtomicBool, name: &str) -> Status {
    if !said.swap(true, Ordering::Relaxed) {
        channel::say(&format!("unanswered\t{name}"));
    }
    SUCCESS
}

/// Says, once for each place, that what `name` answers is not what a card answers.
macro_rules! say_unanswered {
    ($name:expr) => {{
        static SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        crate::names::unanswered(&SAID, $name)
    }};
}
pub(crate) use say_unanswered;

/// Functions that are another by a further name.
macro_rules! same {
    ($($name:ident = $other:ident,)*) => { $(
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(concat!("jmp ", stringify!($other), "@PLT"));
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("b ", stringify!($other)));
        }
    )* };
}
pub(crate) use same;

/// Functions that have nothing to do without a card.
macro_rules! done {
    ($($name:ident)*) => { $(
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> crate::status::Status {
            crate::status::SUCCESS
        }
    )* };
}
pub(crate) use done;

/// Functions that make something, whose handle goes to their first argument.
macro_rules! creates {
    ($($name:ident)*) => { $(
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: *mut u64) -> crate::status::Status {
            crate::status::give(to, crate::handle::fresh())
        }
    )* };
}

/// `NVML_ERROR_NOT_SUPPORTED`, as many a card answers.
macro_rules! not_supported {
    ($($name:ident)*) => { $(
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> crate::status::Status {
            3
        }
    )* };
}

macro_rules! unanswered {
    ($($name:ident)*) => { $(
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Status {
            say_unanswered!(stringify!($name))
        }
    )* };
}

#[cfg(not(batchfit_without_names))]
mod list {
    #![allow(non_snake_case)]
    use super::Status;
    include!("list.rs");
}

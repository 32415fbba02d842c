//! Every other name that programs link to or look up, by what calling it does.
//!
//! The list is written by `names.py` from installed wheels. A name must exist, else PyTorch does not load, or cuDNN finds no driver; most are
//! never called. What needs an answer and has none is said to `batchfit run`, once for each name.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::channel;

/// Says, once, that a function was called that has no real answer.
pub fn unanswered(said: &AtomicBool, name: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        channel::say(&format!("unanswered\t{name}"));
    }
}

/// Says, once for each place, that what `name` answers is not what a card answers.
macro_rules! say_unanswered {
    ($name:expr) => {{
        static SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        crate::names::unanswered(&SAID, $name)
    }};
}
pub(crate) use say_unanswered;

/// Functions that programs call by these names: the body answers, and `$finish` makes of the answer what is returned.
macro_rules! functions {
    (@$finish:path; $($(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        $(#[$meta])*
        #[allow(missing_docs, clippy::too_many_arguments, reason = "as CUDA documents them")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::status::Status {
            $finish(|| -> Result<(), $crate::status::Status> { $body })
        }
    )* };
    ($($functions:tt)*) => { $crate::names::functions! { @$crate::status::status; $($functions)* } };
}
pub(crate) use functions;

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
    ($($name:ident)*) => { crate::names::functions! { $($name() { Ok(()) })* } };
}
pub(crate) use done;

/// Functions that make something, whose handle goes to their first argument.
macro_rules! creates {
    ($($name:ident)*) => { crate::names::functions! { $($name(to: *mut u64) { crate::status::out(to, crate::handle::fresh()) })* } };
}

/// `NVML_ERROR_NOT_SUPPORTED`, as many a card answers.
macro_rules! not_supported {
    ($($name:ident)*) => { crate::names::functions! { $($name() { Err(3) })* } };
}

macro_rules! unanswered {
    ($($name:ident)*) => { crate::names::functions! { $($name() {
        say_unanswered!(stringify!($name));
        Ok(())
    })* } };
}

/// Functions that are refused, as a card or a library without them refuses, so that programs take another way; that is said.
macro_rules! refuses {
    ($status:expr; $($name:ident)*) => { crate::names::functions! { $($name() {
        crate::names::say_unanswered!(stringify!($name));
        Err($status)
    })* } };
}
pub(crate) use refuses;

#[cfg(not(batchfit_without_names))]
mod list {
    #![allow(non_snake_case)]
    include!("list.rs");
}

//! Descriptors in place of those of a cuDNN that cannot be asked without a device (before 9.8): one engine for each size that `batchfit run`
//! names, without knobs or notes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::backend::{Descriptor, give, keep};
use super::convolution::Answer;
use super::engine::name;
use super::{BAD_PARAM, NOT_SUPPORTED, Opaque, Status, check, unanswered};
use crate::status::out_if;

/// A descriptor that nothing lies behind.
pub(super) fn next() -> Opaque {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    NEXT.fetch_add(16, Ordering::Relaxed) as Opaque
}

/// What plans take, as far as anybody knows.
pub(super) fn sizes(answer: Option<&Answer>) -> Vec<u64> {
    if let Some(answer) = answer.filter(|answer| !answer.sizes.is_empty()) {
        return answer.sizes.clone();
    }
    unanswered(if answer.is_some() { "workspace of a convolution" } else { "workspace of an operation of cuDNN" });
    vec![0]
}

/// `cudnnBackendGetAttribute`.
pub(super) unsafe fn get(kept: &Descriptor, attribute: i32, room: i64, count: *mut i64, to: *mut c_void) -> Result<(), Status> {
    match (kept, attribute) {
        (Descriptor::Heuristics(Some(tried)), name::HEURISTICS_RESULTS) => {
            let mut listed = tried.lock().sizes.len();
            if room > 0 && !to.is_null() {
                listed = listed.min(room as usize);
                for place in 0..listed {
                    let configuration = to.cast::<usize>().add(place).read_unaligned();
                    check(keep(configuration, Descriptor::Configuration(Some((std::sync::Arc::clone(tried), place)))), BAD_PARAM)?;
                }
            }
            out_if(count, listed as i64);
            Ok(())
        }
        (Descriptor::Configuration(Some((_, place))), name::CONFIGURATION_ENGINE) => {
            if room < 1 || to.is_null() {
                return give::<usize>(&[0], 0, count, to);
            }
            let engine = to.cast::<usize>().read_unaligned();
            check(keep(engine, Descriptor::Engine(*place)), BAD_PARAM)?;
            give(&[engine], room, count, to)
        }
        (Descriptor::Configuration(Some((tried, place))), name::CONFIGURATION_WORKSPACE) => {
            give(&[tried.lock().sizes.get(*place).copied().unwrap_or(0) as i64], room, count, to)
        }
        (Descriptor::Engine(place), name::ENGINE_INDEX) => give(&[*place as i64], room, count, to),
        // Knobs, notes and intermediate tensors.
        (Descriptor::Configuration(_) | Descriptor::Engine(_), _) => give::<i64>(&[], room, count, to),
        // How many engines a graph has.
        (Descriptor::Graph(_), 802) => give(&[1_i64], room, count, to),
        _ => Err(NOT_SUPPORTED),
    }
}

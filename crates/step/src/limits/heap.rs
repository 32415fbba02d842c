//! What each thread holds of the heap, where the program's allocator counts it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// An allocator that counts what each thread takes of it and gives back, whichever thread took that.
#[derive(Debug)]
pub struct Counted<A>(pub A);

#[expect(
    unsafe_code,
    reason = "the contract of an allocator has no other words"
)]
// SAFETY: every call goes to the allocator inside as it is; counting changes a number of the thread, and allocates nothing.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller keeps to the same contract, here and below.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: see above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: see above.
        unsafe { self.0.dealloc(pointer, layout) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        give(layout.size());
        take(size);
        // SAFETY: see above.
        unsafe { self.0.realloc(pointer, layout, size) }
    }
}

fn take(bytes: usize) {
    HELD.set(HELD.get().wrapping_add_unsigned(bytes));
}

fn give(bytes: usize) {
    HELD.set(HELD.get().wrapping_sub_unsigned(bytes));
}

/// What this thread took, less what it gave back, in bytes: negative where it gave back what others took; 0 where nothing is counted.
pub(super) fn held() -> isize {
    HELD.get()
}

/// Also says how many bytes more than before this thread holds once it is made: those of what was made, and of what is kept for later.
pub fn measured<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = held();
    let result = make();
    (result, usize::try_from(held() - before).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::{begin_graph, graphs_within, grow};
    use super::*;

    #[global_allocator]
    static HEAP: Counted<std::alloc::System> = Counted(std::alloc::System);

    #[test]
    fn what_is_given_back_is_not_held() {
        let before = held();
        let (bytes, with) = measured(|| {
            let mut bytes = vec![0_u8; 1000];
            bytes.reserve_exact(2000);
            bytes
        });
        assert_eq!(with, 3000);

        assert_eq!(measured(|| drop(bytes)).1, 0);
        assert_eq!(held(), before);
    }

    #[test]
    fn no_graph_grows_once_it_held_more_than_it_may() {
        let make = || {
            let small = vec![0_u8; 1000];
            let within = grow(1).is_ok();
            let large = vec![0_u8; 2000];
            let beyond = grow(1).is_ok();
            drop((small, large));
            (within, beyond, grow(1).is_ok())
        };

        assert_eq!(graphs_within(8, 2000, make), ((true, false, false), true));
        assert_eq!(graphs_within(8, 2000, || grow(1)), (Ok(()), false));

        let one_by_one = || {
            let graphs = [(); 4].map(|()| {
                begin_graph();
                let graph = vec![0_u8; 1000];
                (graph, grow(1))
            });
            graphs.map(|(_, grown)| grown.is_ok())
        };
        assert_eq!(graphs_within(8, 2000, one_by_one), ([true; 4], false));
    }
}

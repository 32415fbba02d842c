//! Arguments of kernels.
//!
//! A launch passes a list of the arguments' addresses and does not say how long it is, nor how large each argument is. The list is followed up
//! to the first address that cannot be one of an argument.

use std::cell::Cell;
use std::ffi::c_int;

use crate::libc;

/// Few kernels have more.
const MOST: usize = 32;

thread_local! {
    /// Where the thread's stack ends; 0 until it is asked for.
    static STACK_END: Cell<u64> = const { Cell::new(0) };
}

fn stack_end() -> u64 {
    let known = STACK_END.get();
    if known != 0 {
        return known;
    }
    // Larger than glibc's and musl's `pthread_attr_t`.
    let (mut attributes, mut start, mut bytes) = ([0; 8], 0, 0);
    // SAFETY: places of the right sizes, of this thread.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) == 0 {
            libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut bytes);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
    }
    // A stack that is not known ends where nothing is.
    let end = (start as u64 + bytes as u64).max(1);
    STACK_END.set(end);
    end
}

/// Gives the first 8 bytes of each argument.
pub fn values(list: u64, mut give: impl FnMut(u64)) {
    let here = 0;
    let stack = std::ptr::from_ref(&here) as u64..stack_end();
    let is_on_stack = |address: u64| stack.contains(&address) && stack.end - address >= 8;
    // What compilers write: list and arguments lie in frames of the caller, which may be read; what lies elsewhere is no argument.
    // SAFETY: between this frame and the end of the stack.
    let number = |address: u64| unsafe { (address as *const u64).read_unaligned() };
    if !is_on_stack(list) || !is_on_stack(number(list)) {
        return foreign_values(list, give);
    }
    let slots = (list..).step_by(8).take(MOST).take_while(|&slot| is_on_stack(slot));
    slots.map(number).take_while(|&argument| is_on_stack(argument)).for_each(|argument| give(number(argument)));
}

/// The same for a list that lies anywhere, or nowhere.
fn foreign_values(list: u64, give: impl FnMut(u64)) {
    let (mut places, mut values) = ([0; MOST], [0; MOST]);
    let at = |address| libc::Piece { address, bytes: size_of::<u64>() };
    let found = read(&std::array::from_fn::<_, MOST, _>(|index| at(list.wrapping_add(8 * index as u64))), &mut places);
    let found = read(&places.map(at)[..found], &mut values);
    values[..found].iter().copied().for_each(give);
}

/// Reads numbers of this process from addresses that may be wild, up to the first that cannot be read; says how many.
fn read(from: &[libc::Piece], to: &mut [u64; MOST]) -> usize {
    let room = libc::Piece { address: to.as_mut_ptr() as u64, bytes: size_of_val(to) };
    // SAFETY: the kernel checks the addresses; there is room for all of `from`.
    let bytes = unsafe { libc::process_vm_readv(std::process::id() as c_int, &raw const room, 1, from.as_ptr(), from.len() as u64, 0) };
    usize::try_from(bytes).unwrap_or(0) / size_of::<u64>()
}

#[cfg(test)]
mod tests {
    use super::values;

    fn readable_prefix(list: &[u64]) -> Vec<u64> {
        let mut found = Vec::new();
        values(list.as_ptr() as u64, |value| found.push(value));
        found
    }

    #[test]
    fn values_end_at_the_first_address_that_is_none() {
        let numbers = [7_u64, 8];
        let at = |number: &u64| std::ptr::from_ref(number) as u64;
        let (first, second) = (at(&numbers[0]), at(&numbers[1]));
        assert_eq!(readable_prefix(&[first, second, 0, first]), [7, 8]);
        assert_eq!(readable_prefix(&[0x10, first]), []);
        // List and arguments on the heap.
        let boxed = Box::new(9);
        let list = Box::new([at(&boxed), second, 1 << 60]);
        assert_eq!(readable_prefix(&*list), [9, 8]);
        assert_eq!(readable_prefix(&[at(&boxed), second, 0]), [9, 8]);
        assert_eq!(readable_prefix(&[first, at(&boxed), second]), [7]);
        values(8, |_| panic!("nothing is there"));
    }
}

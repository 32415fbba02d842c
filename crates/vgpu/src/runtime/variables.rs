//! Variables of devices (`__device__`, `__constant__`): no kernel reads them, programs copy to and from them.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};

use super::errors::INVALID_SYMBOL;
use super::memory;
use crate::handle::Lock;
use crate::names::same;
use crate::status::{INVALID_VALUE, Status, check, out, out_if};

#[derive(Debug, Clone, Copy)]
struct Variable {
    bytes: usize,
    /// Memory of the host; 0 until it is asked for.
    address: u64,
}

/// By the address of their shadows on the host.
static VARIABLES: Lock<BTreeMap<u64, Variable>> = Lock::new(BTreeMap::new());

fn variable_of(symbol: u64) -> Result<Variable, Status> {
    let mut variables = VARIABLES.lock();
    let variable = variables.get_mut(&symbol).ok_or(INVALID_SYMBOL)?;
    if variable.address == 0 {
        // As aligned as device memory.
        let layout = Layout::from_size_align(variable.bytes.max(1), 512).map_err(|_| INVALID_VALUE)?;
        // SAFETY: not of size 0. It stays for as long as the process.
        variable.address = unsafe { alloc_zeroed(layout) } as u64;
    }
    check(variable.address != 0, INVALID_SYMBOL)?;
    Ok(*variable)
}

/// A piece of a variable.
fn piece(symbol: u64, offset: usize, bytes: usize) -> Result<u64, Status> {
    let variable = variable_of(symbol)?;
    let end = offset.checked_add(bytes).ok_or(INVALID_VALUE)?;
    check(end <= variable.bytes, INVALID_VALUE)?;
    Ok(variable.address + offset as u64)
}

/// More arguments say of what kind it is.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterVar(_binary: u64, symbol: u64, _device: *const c_char, _name: *const c_char, _external: c_int, bytes: usize) {
    VARIABLES.lock().insert(symbol, Variable { bytes, address: 0 });
}

/// A managed variable: the program's own pointer is set to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterManagedVar(
    _binary: u64,
    symbol: *mut u64,
    _device: *const c_char,
    _name: *const c_char,
    _external: c_int,
    bytes: usize,
) {
    VARIABLES.lock().insert(symbol as u64, Variable { bytes, address: 0 });
    if let Ok(variable) = variable_of(symbol as u64) {
        out_if(symbol, variable.address);
    }
}

runtime! {
    cudaGetSymbolAddress(to: *mut u64, symbol: u64) { out(to, variable_of(symbol)?.address) }
    cudaGetSymbolSize(to: *mut usize, symbol: u64) { out(to, variable_of(symbol)?.bytes) }
    cudaMemcpyToSymbol(symbol: u64, from: u64, bytes: usize, offset: usize, kind: c_int) {
        memory::copy_waiting(piece(symbol, offset, bytes)?, from, bytes, kind)
    }
    cudaMemcpyToSymbolAsync(symbol: u64, from: u64, bytes: usize, offset: usize, kind: c_int, stream: u64) {
        memory::copy(piece(symbol, offset, bytes)?, from, bytes, kind, stream)
    }
    cudaMemcpyFromSymbol(to: u64, symbol: u64, bytes: usize, offset: usize, kind: c_int) {
        memory::copy_waiting(to, piece(symbol, offset, bytes)?, bytes, kind)
    }
    cudaMemcpyFromSymbolAsync(to: u64, symbol: u64, bytes: usize, offset: usize, kind: c_int, stream: u64) {
        memory::copy(to, piece(symbol, offset, bytes)?, bytes, kind, stream)
    }
}

same! {
    cudaMemcpyToSymbol_ptds = cudaMemcpyToSymbol, cudaMemcpyFromSymbol_ptds = cudaMemcpyFromSymbol,
    cudaMemcpyToSymbolAsync_ptsz = cudaMemcpyToSymbolAsync, cudaMemcpyFromSymbolAsync_ptsz = cudaMemcpyFromSymbolAsync,
}

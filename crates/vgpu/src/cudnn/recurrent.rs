//! Recurrent networks: how their weights lie, and what the library keeps.

use std::collections::BTreeMap;
use std::ffi::{c_float, c_int, c_ulonglong, c_void};

use self::sizes::{Cell, Network, Sequence};
use super::handle::check_handle;
use super::{BAD_PARAM, NULL_POINTER, Opaque, Status, check, real};
use crate::handle::Lock;
use crate::names::{functions, same};
use crate::status::out_if;

// How large things are: the rule of the simulator, in its own format.
#[rustfmt::skip]
#[path = "../../../torch/src/ops/recurrent/sizes.rs"]
mod sizes;

/// What is known of descriptors by their addresses.
struct Known {
    /// With their `cudnnDataType_t`.
    networks: BTreeMap<usize, (Network, c_int)>,
    sequences: BTreeMap<usize, Sequence>,
    /// Those of dropout that drop something.
    dropping: BTreeMap<usize, bool>,
}

static KNOWN: Lock<Known> = Lock::new(Known { networks: BTreeMap::new(), sequences: BTreeMap::new(), dropping: BTreeMap::new() });

/// Bytes of an element of a `cudnnDataType_t`.
fn width(dtype: c_int) -> i128 {
    match dtype {
        1 => 8,
        2 | 9 => 2,
        _ => 4,
    }
}

/// Writes a size where one is wanted.
unsafe fn give_size(to: *mut usize, bytes: i128) {
    out_if(to, usize::try_from(bytes).unwrap_or(usize::MAX));
}

fn network(descriptor: usize) -> Result<(Network, c_int), Status> {
    KNOWN.lock().networks.get(&descriptor).copied().ok_or(BAD_PARAM)
}

/// Describes a matrix, where the caller has a descriptor for it.
unsafe fn describe(descriptor: Opaque, dtype: c_int, [rows, columns]: [i128; 2]) -> Result<(), Status> {
    if descriptor.is_null() {
        return Ok(());
    }
    let extent = |of: i128| c_int::try_from(of).unwrap_or(c_int::MAX);
    let (extents, strides) = ([1, extent(rows), extent(columns)], [extent(rows * columns), extent(columns), 1]);
    real!(cudnnSetTensorNdDescriptor(descriptor => Opaque, dtype => c_int, 3 => c_int, extents.as_ptr() => *const c_int, strides.as_ptr() => *const c_int))
}

functions! {
    cudnnSetRNNDescriptor_v8(
        descriptor: usize, algorithm: c_int, cell: c_int, biases: c_int, direction: c_int, _input_mode: c_int, dtype: c_int, _precision: c_int, _math: c_int, input: c_int, hidden: c_int,
        projection: c_int, layers: c_int, dropout: usize, _flags: u32,
    ) {
        let cell = match cell {
            0 | 1 => Cell::Plain,
            2 => Cell::Lstm,
            3 => Cell::Gru,
            _ => return Err(BAD_PARAM),
        };
        let is_sound = input > 0 && hidden > 0 && layers > 0 && projection >= 0 && projection <= hidden;
        check(descriptor != 0 && is_sound && (0..=3).contains(&biases) && (0..=1).contains(&direction), BAD_PARAM)?;
        let mut known = KNOWN.lock();
        let network = Network {
            cell,
            // None, of the input, both, of the hidden state.
            biases: [0, 1, 2, 1][biases as usize],
            directions: i128::from(direction) + 1,
            input: i128::from(input),
            hidden: i128::from(hidden),
            outputs: i128::from(if cell == Cell::Lstm && projection > 0 { projection } else { hidden }),
            layers: i128::from(layers),
            element: width(dtype),
            drops: known.dropping.get(&dropout).copied().unwrap_or(false),
            is_persistent: algorithm != 0,
        };
        known.networks.insert(descriptor, (network, dtype));
        Ok(())
    }
    cudnnSetRNNDataDescriptor(
        descriptor: usize, dtype: c_int, layout: c_int, steps: c_int, batch: c_int, features: c_int, lengths: *const c_int, fill: *mut c_void,
    ) {
        check(descriptor != 0 && !lengths.is_null(), NULL_POINTER)?;
        check(steps > 0 && batch > 0 && features > 0, BAD_PARAM)?;
        let rows = (0..batch as usize).map(|at| i128::from(lengths.add(at).read_unaligned().clamp(0, steps))).sum();
        let sequence = Sequence { steps: i128::from(steps), batch: i128::from(batch), rows, is_packed: layout == 1 };
        KNOWN.lock().sequences.insert(descriptor, sequence);
        real!(cudnnSetRNNDataDescriptor(descriptor => usize, dtype => c_int, layout => c_int, steps => c_int, batch => c_int, features => c_int, lengths => *const c_int, fill => *mut c_void))
    }
    /// What is remembered of dropout: whether it drops anything.
    cudnnSetDropoutDescriptor(descriptor: usize, handle: u64, share: c_float, _states: Opaque, _bytes: usize, _seed: c_ulonglong) {
        check(descriptor != 0, NULL_POINTER)?;
        KNOWN.lock().dropping.insert(descriptor, share > 0.0);
        check_handle(handle)
    }
    cudnnGetRNNWeightSpaceSize(handle: u64, descriptor: usize, bytes: *mut usize) {
        let (network, _) = network(descriptor)?;
        check(!bytes.is_null(), NULL_POINTER)?;
        give_size(bytes, network.weights() * network.element);
        check_handle(handle)
    }
    /// Cells one after the other, each the gates' weights of the input, of the hidden state, and the projection; then the biases of all. `base` may
    /// be null: then what is given are offsets. PyTorch asks for one of the two, and leaves the other's pointers null.
    cudnnGetRNNWeightParams(
        handle: u64, descriptor: usize, cell: c_int, _bytes: usize, base: usize, gate: c_int, matrix: Opaque, matrix_at: *mut usize, bias: Opaque, bias_at: *mut usize,
    ) {
        let (network, dtype) = network(descriptor)?;
        let (cell, gate, gates) = (i128::from(cell), i128::from(gate), network.gates());
        let gates_and_projection = 2 * gates + i128::from(network.is_projected());
        check((0..network.cells()).contains(&cell) && (0..gates_and_projection).contains(&gate), BAD_PARAM)?;
        let (hidden, outputs, reads) = (network.hidden, network.outputs, network.reads(cell / network.directions));
        let of_input = gates * hidden * reads;
        let (rows, columns, at) = match gate {
            projection if projection == 2 * gates => (outputs, hidden, of_input + gates * hidden * outputs),
            recurrent if recurrent >= gates => (hidden, outputs, of_input + (recurrent - gates) * hidden * outputs),
            _ => (hidden, reads, gate * hidden * reads),
        };
        describe(matrix, dtype, [rows, columns])?;
        give_size(matrix_at, base as i128 + (network.weights_before(cell) + at) * network.element);
        if gate < network.biases * gates {
            let biases = network.weights_before(network.cells()) + cell * network.biases_of() + gate * hidden;
            give_size(bias_at, base as i128 + biases * network.element);
            describe(bias, dtype, [hidden, 1])?;
        } else {
            give_size(bias_at, 0);
        }
        check_handle(handle)
    }
    cudnnGetRNNTempSpaceSizes(handle: u64, descriptor: usize, mode: c_int, data: usize, workspace: *mut usize, reserve: *mut usize) {
        let (network, _) = network(descriptor)?;
        let sequence = KNOWN.lock().sequences.get(&data).copied().ok_or(BAD_PARAM)?;
        let is_training = mode != 0;
        give_size(workspace, network.workspace(sequence, is_training));
        give_size(reserve, if is_training { network.reserve(sequence) } else { 0 });
        check_handle(handle)
    }
}

same! { cudnnRestoreDropoutDescriptor = cudnnSetDropoutDescriptor, }

#[cfg(test)]
mod tests;

//! Recurrent networks: how their weights lie, and what the library keeps. See Note [Sizes of recurrent networks] of
//! `crates/torch/src/ops/recurrent/NOTES.md`, from where the formulas are.

use std::collections::BTreeMap;
use std::ffi::{c_float, c_int, c_ulonglong, c_void};
use std::sync::Mutex;

use super::handle::check;
use super::{BAD_PARAM, NULL_POINTER, Opaque, SUCCESS, Status, lock, real};

/// `cudnnRNNMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Plain,
    Lstm,
    Gru,
}

/// What descriptors say of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    cell: Cell,
    /// Biases of each gate: none, one or two.
    biases: i128,
    directions: i128,
    input: i128,
    hidden: i128,
    /// What an LSTM's hidden state is projected to; else as many as `hidden`.
    outputs: i128,
    layers: i128,
    /// Bytes of an element.
    element: i128,
    dtype: c_int,
    /// Whether elements between layers are dropped in training.
    drops: bool,
    /// Whether the algorithm stays on the card for the whole sequence: the caller's choice.
    is_persistent: bool,
}

/// A sequence: steps and samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sequence {
    steps: i128,
    batch: i128,
}

/// What is known of descriptors by their addresses.
struct Known {
    networks: BTreeMap<usize, Network>,
    sequences: BTreeMap<usize, Sequence>,
    /// Those of dropout that drop something.
    dropping: BTreeMap<usize, bool>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { networks: BTreeMap::new(), sequences: BTreeMap::new(), dropping: BTreeMap::new() });

/// Bytes that each layer and direction adds to a workspace whatever its sizes.
const FOR_EACH_CELL: i128 = 8 << 20;
/// Bytes in front of a reserve space, and of a workspace.
const HEADER: i128 = 256;
/// Steps after which gates of one direction are computed in place of earlier ones.
const LONGEST: i128 = 256;

impl Network {
    fn gates(&self) -> i128 {
        match self.cell {
            Cell::Plain => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    fn is_projected(&self) -> bool {
        self.outputs != self.hidden
    }

    /// Features that a layer reads.
    fn reads(&self, layer: i128) -> i128 {
        if layer == 0 { self.input } else { self.outputs * self.directions }
    }

    /// Elements of the weights of one layer in one direction, without biases.
    fn weights_of(&self, layer: i128) -> i128 {
        let projection = if self.is_projected() { self.outputs * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.reads(layer) + self.outputs) + projection
    }

    /// Elements of the weights of so many cells, the first layer's first.
    fn weights_before(&self, cell: i128) -> i128 {
        let first = cell.min(self.directions);
        first * self.weights_of(0) + (cell - first) * self.weights_of(1)
    }

    fn cells(&self) -> i128 {
        self.layers * self.directions
    }

    fn biases_of(&self) -> i128 {
        self.biases * self.gates() * self.hidden
    }

    /// Bytes of the buffer of all weights.
    fn weights(&self) -> i128 {
        (self.weights_before(self.cells()) + self.cells() * self.biases_of()) * self.element
    }

    /// Bytes that the forward pass leaves for the backward pass: what the gates were, outputs between layers, which of those were dropped.
    fn reserve(&self, of: Sequence) -> i128 {
        let gates = match self.cell {
            Cell::Lstm => 5 * self.hidden + if self.is_projected() { self.hidden + self.outputs } else { 0 },
            Cell::Gru => 6 * self.hidden,
            Cell::Plain => self.hidden,
        };
        let between = (self.layers - 1) * self.directions;
        let elements = self.cells() * gates + between * self.hidden;
        let dropped = if self.drops { between * self.directions * self.outputs } else { 0 };
        let steps = of.steps * of.batch;
        steps * elements * self.element + steps * dropped / 8 + HEADER
    }

    /// Bytes of scratch memory.
    fn workspace(&self, of: Sequence, is_training: bool) -> i128 {
        let forward = self.forward_elements(of.steps, is_training);
        let elements = if is_training { forward.max(self.backward_elements(of)) } else { forward };
        let cells = self.cells() * FOR_EACH_CELL + self.weights_before(self.cells()) * self.element;
        elements * of.batch * self.element + 8 * of.batch + cells + HEADER
    }

    /// What the forward pass wants for each sample.
    fn forward_elements(&self, steps: i128, is_training: bool) -> i128 {
        // Hidden states of all steps, hidden states of one step; the two that persistent kernels add.
        let (all, one, more, less) = match (self.cell, self.directions) {
            (Cell::Lstm, 1) => (5, 10, 16, 8),
            (Cell::Lstm, _) => (14, 24, 16, 18),
            (Cell::Gru, 1) => (4, 5, 12, 4),
            (Cell::Gru, _) => (12, 14, 12, 10),
            (Cell::Plain, 1) => (2, 3, 4, 4),
            (Cell::Plain, _) => (8, 10, 4, 10),
        };
        let (all, one) = if self.is_persistent { (all + more, less) } else { (all, one) };
        let mut elements = (all * self.hidden + self.input) * steps;
        if self.directions == 1 {
            if !self.is_persistent {
                elements -= self.gates() * self.hidden * (steps - LONGEST).max(0);
            }
            if self.drops && is_training {
                elements += steps * self.hidden;
            }
        }
        if self.is_projected() {
            elements += self.directions * steps * self.outputs;
            elements -= 2 * self.directions * (self.hidden - self.outputs).max(0) * self.layers;
        }
        elements + one * self.hidden * self.layers
    }

    /// What the backward pass wants for each sample.
    fn backward_elements(&self, of: Sequence) -> i128 {
        let (one, more) = match (self.cell, self.directions) {
            (Cell::Lstm, 1) => (11, 12),
            (Cell::Lstm, _) => (26, 12),
            (Cell::Gru, 1) => (5, 14),
            (Cell::Gru, _) => (14, 14),
            (Cell::Plain, 1) => (5, 9),
            (Cell::Plain, _) => (14, 9),
        };
        let (all, one) = match (self.is_persistent, self.directions) {
            (false, _) => (3 * self.directions, one),
            (true, 1) => (3 + more, one + 1),
            (true, _) => (3 * self.directions + more, one),
        };
        let wide = self.directions * self.directions * self.input.max(self.hidden);
        let elements = (all * self.hidden + 2 * self.input + wide) * of.steps + one * self.hidden * self.layers;
        if self.layers == 1 {
            return elements;
        }
        if self.directions > 1 || self.is_persistent {
            return elements + self.directions * of.steps * self.hidden;
        }
        // Layers run side by side, a few steps apart.
        let apart = match of.batch {
            0 | 1 => 32,
            2..=8 => 16,
            _ => 8,
        };
        elements - (of.steps - (self.layers + 1) * apart).max(0) * self.hidden
    }
}

/// Bytes of an element of a `cudnnDataType_t`.
fn width(dtype: c_int) -> i128 {
    match dtype {
        1 => 8,
        2 | 9 => 2,
        _ => 4,
    }
}

unsafe fn give_size(to: *mut usize, bytes: i128) {
    if !to.is_null() {
        to.write_unaligned(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

/// `cudnnSetRNNDescriptor_v8`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetRNNDescriptor_v8(
    descriptor: usize,
    algorithm: c_int,
    cell: c_int,
    biases: c_int,
    direction: c_int,
    _input_mode: c_int,
    dtype: c_int,
    _precision: c_int,
    _math: c_int,
    input: c_int,
    hidden: c_int,
    projection: c_int,
    layers: c_int,
    dropout: usize,
    _flags: u32,
) -> Status {
    let cell = match cell {
        0 | 1 => Cell::Plain,
        2 => Cell::Lstm,
        3 => Cell::Gru,
        _ => return BAD_PARAM,
    };
    let is_sound = input > 0 && hidden > 0 && layers > 0 && projection >= 0 && projection <= hidden;
    if descriptor == 0 || !is_sound || !(0..=3).contains(&biases) || !(0..=1).contains(&direction) {
        return BAD_PARAM;
    }
    let mut known = lock(&KNOWN);
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
        dtype,
        drops: known.dropping.get(&dropout).copied().unwrap_or(false),
        is_persistent: algorithm != 0,
    };
    known.networks.insert(descriptor, network);
    SUCCESS
}

/// `cudnnSetRNNDataDescriptor`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetRNNDataDescriptor(
    descriptor: usize,
    dtype: c_int,
    layout: c_int,
    steps: c_int,
    batch: c_int,
    features: c_int,
    lengths: *const c_int,
    fill: *mut c_void,
) -> Status {
    if descriptor == 0 || lengths.is_null() {
        return NULL_POINTER;
    }
    if steps <= 0 || batch <= 0 || features <= 0 {
        return BAD_PARAM;
    }
    let sequence = Sequence { steps: i128::from(steps), batch: i128::from(batch) };
    lock(&KNOWN).sequences.insert(descriptor, sequence);
    real!(cudnnSetRNNDataDescriptor(descriptor => usize, dtype => c_int, layout => c_int, steps => c_int, batch => c_int, features => c_int, lengths => *const c_int, fill => *mut c_void))
}

/// What is remembered of dropout: whether it drops anything.
fn set_dropout(descriptor: usize, handle: u64, share: c_float) -> Status {
    if descriptor == 0 {
        return NULL_POINTER;
    }
    lock(&KNOWN).dropping.insert(descriptor, share > 0.0);
    check(handle)
}

/// `cudnnSetDropoutDescriptor`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetDropoutDescriptor(descriptor: usize, handle: u64, share: c_float, _states: Opaque, _bytes: usize, _seed: c_ulonglong) -> Status {
    set_dropout(descriptor, handle, share)
}

/// `cudnnRestoreDropoutDescriptor`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnRestoreDropoutDescriptor(descriptor: usize, handle: u64, share: c_float, _states: Opaque, _bytes: usize, _seed: c_ulonglong) -> Status {
    set_dropout(descriptor, handle, share)
}

/// `cudnnGetRNNWeightSpaceSize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNWeightSpaceSize(handle: u64, descriptor: usize, bytes: *mut usize) -> Status {
    let Some(network) = lock(&KNOWN).networks.get(&descriptor).copied() else {
        return BAD_PARAM;
    };
    if bytes.is_null() {
        return NULL_POINTER;
    }
    give_size(bytes, network.weights());
    check(handle)
}

/// `cudnnGetRNNWeightParams`: cells one after the other, each the gates' weights of the input, of the hidden state, and the projection; then the
/// biases of all. `base` may be null: then what is given are offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNWeightParams(
    handle: u64,
    descriptor: usize,
    cell: c_int,
    _bytes: usize,
    base: usize,
    gate: c_int,
    matrix: Opaque,
    matrix_at: *mut usize,
    bias: Opaque,
    bias_at: *mut usize,
) -> Status {
    let Some(network) = lock(&KNOWN).networks.get(&descriptor).copied() else {
        return BAD_PARAM;
    };
    if matrix_at.is_null() || bias_at.is_null() {
        return NULL_POINTER;
    }
    let (cell, gate, gates) = (i128::from(cell), i128::from(gate), network.gates());
    let gates_and_projection = 2 * gates + i128::from(network.is_projected());
    if !(0..network.cells()).contains(&cell) || !(0..gates_and_projection).contains(&gate) {
        return BAD_PARAM;
    }
    let (hidden, outputs, reads) = (network.hidden, network.outputs, network.reads(cell / network.directions));
    let of_input = gates * hidden * reads;
    let (rows, columns, at) = match gate {
        projection if projection == 2 * gates => (outputs, hidden, of_input + gates * hidden * outputs),
        recurrent if recurrent >= gates => (hidden, outputs, of_input + (recurrent - gates) * hidden * outputs),
        _ => (hidden, reads, gate * hidden * reads),
    };
    let at = base as i128 + (network.weights_before(cell) + at) * network.element;
    let status = describe(matrix, network.dtype, [rows, columns]);
    if status != SUCCESS {
        return status;
    }
    give_size(matrix_at, at);
    let has_bias = gate < network.biases * gates;
    if !has_bias {
        bias_at.write_unaligned(0);
        return check(handle);
    }
    let biases = network.weights_before(network.cells()) + cell * network.biases_of() + gate * hidden;
    give_size(bias_at, base as i128 + biases * network.element);
    let status = describe(bias, network.dtype, [hidden, 1]);
    if status == SUCCESS { check(handle) } else { status }
}

/// Describes a matrix, where the caller has a descriptor for it.
unsafe fn describe(descriptor: Opaque, dtype: c_int, [rows, columns]: [i128; 2]) -> Status {
    if descriptor.is_null() {
        return SUCCESS;
    }
    let extent = |of: i128| c_int::try_from(of).unwrap_or(c_int::MAX);
    let (extents, strides) = ([1, extent(rows), extent(columns)], [extent(rows * columns), extent(columns), 1]);
    real!(cudnnSetTensorNdDescriptor(descriptor => Opaque, dtype => c_int, 3 => c_int, extents.as_ptr() => *const c_int, strides.as_ptr() => *const c_int))
}

/// `cudnnGetRNNTempSpaceSizes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNTempSpaceSizes(
    handle: u64,
    descriptor: usize,
    mode: c_int,
    data: usize,
    workspace: *mut usize,
    reserve: *mut usize,
) -> Status {
    let (network, sequence) = {
        let known = lock(&KNOWN);
        (known.networks.get(&descriptor).copied(), known.sequences.get(&data).copied())
    };
    let (Some(network), Some(sequence)) = (network, sequence) else {
        return BAD_PARAM;
    };
    let is_training = mode != 0;
    give_size(workspace, network.workspace(sequence, is_training));
    give_size(reserve, if is_training { network.reserve(sequence) } else { 0 });
    check(handle)
}

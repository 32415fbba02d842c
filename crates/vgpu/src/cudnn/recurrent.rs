//! Recurrent networks: how their weights lie, and what the library keeps.
//!
//! The formulas are linear in what the kernels work on, with whole coefficients, fitted to what `cudnnGetRNNTempSpaceSizes` of cuDNN 9.19 said on an
//! H100 (2026-11-28) of 84,000 descriptors: all cells, 1 to 6 layers, both directions, dropout, projections, full and packed sequences, the algorithms
//! where PyTorch chooses them. 54,000 of those were networks that PyTorch would run: all are within 512 bytes (`recurrent/h100.txt` has some).

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

/// A batch of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sequence {
    /// Of the longest.
    steps: i128,
    batch: i128,
    /// Steps of all together.
    rows: i128,
    /// Whether they lie without gaps (`CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED`).
    is_packed: bool,
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

    /// Bytes of so many elements; every buffer begins at a multiple of 32.
    fn bytes(&self, elements: i128) -> i128 {
        align(elements * self.element)
    }

    /// Bytes that the forward pass leaves for the backward pass: what the gates were, an LSTM's cell states and what it projects, outputs between
    /// layers, and a bit for each of those that may be dropped.
    fn reserve(&self, of: Sequence) -> i128 {
        let gates: &[i128] = match self.cell {
            Cell::Lstm if self.is_projected() => &[4 * self.hidden, self.hidden, self.hidden, self.outputs],
            Cell::Lstm => &[4 * self.hidden, self.hidden],
            Cell::Gru => &[6 * self.hidden],
            Cell::Plain => &[self.hidden],
        };
        let gates: i128 = gates.iter().map(|gates| self.bytes(of.rows * self.cells() * gates)).sum();
        let between = (self.layers - 1) * self.directions;
        let dropped = of.steps * of.batch * self.directions * self.outputs;
        let dropped = if self.drops { between * align((dropped + 7) / 8) } else { 0 };
        gates + self.bytes(of.rows * between * self.hidden) + dropped + HEADER
    }

    /// Bytes of scratch memory: a copy of the weights of each cell, and the larger of what the passes work on.
    fn workspace(&self, of: Sequence, is_training: bool) -> i128 {
        let weights = self.directions * (self.bytes(self.weights_of(0)) + (self.layers - 1) * self.bytes(self.weights_of(1)));
        let fixed = weights + self.cells() * FOR_EACH_CELL + HEADER;
        fixed + if is_training { self.forward(of).max(self.backward(of)) } else { self.forward(of) }
    }

    /// States of so many kinds, of all layers.
    fn states(&self, kinds: i128, of: Sequence) -> i128 {
        self.bytes(kinds * self.hidden * self.layers * of.batch)
    }

    /// Sequences that are not packed are, and what comes out is unpacked: input, output, and two of each state, `times` over.
    fn packing(&self, times: i128, of: Sequence) -> i128 {
        if of.is_packed {
            return 0;
        }
        let state = |features: i128| 2 * self.bytes(self.directions * features * self.layers * of.batch);
        let states = state(self.outputs) + if self.cell == Cell::Lstm { state(self.hidden) } else { 0 };
        let sequences = self.bytes(self.input * of.rows) + self.bytes(self.directions * self.outputs * of.rows);
        times * (sequences + states) + align(8 * of.batch)
    }

    /// What the forward pass works on.
    fn forward(&self, of: Sequence) -> i128 {
        // Hidden features of all steps in two directions; states of one step; the two that persistent kernels add.
        let (both, states, more, fewer) = match (self.cell, self.directions) {
            (Cell::Lstm, 1) => (0, 6, 16, -2),
            (Cell::Lstm, _) => (12, 16, 16, -6),
            (Cell::Gru, 1) => (0, 3, 12, -1),
            (Cell::Gru, _) => (10, 10, 12, -4),
            (Cell::Plain, 1) => (0, 1, 4, 1),
            (Cell::Plain, _) => (6, 6, 4, 0),
        };
        let (more, states) = if self.is_persistent { (more, states + fewer) } else { (0, states) };
        // In one direction, gates of later steps take the place of earlier ones.
        let gates = match (self.directions, self.is_persistent) {
            (1, false) => self.gates() * of.rows.min(LONGEST * of.batch),
            (1, true) => self.gates() * of.rows,
            _ => both * of.rows,
        };
        let projected = if self.is_projected() { self.directions * of.rows } else { 0 };
        let dropped = if self.drops && self.directions == 1 { of.rows } else { 0 };
        let features = [gates, more * of.rows, projected, dropped].map(|rows| self.bytes(rows * self.hidden));
        features.iter().sum::<i128>() + self.states(states, of) + self.packing(1, of)
    }

    /// What the backward pass works on.
    fn backward(&self, of: Sequence) -> i128 {
        let (states, more) = match (self.cell, self.directions) {
            (Cell::Lstm, 1) => (3, 12),
            (Cell::Lstm, _) => (10, 12),
            (Cell::Gru, 1) => (1, 14),
            (Cell::Gru, _) => (6, 14),
            (Cell::Plain, 1) => (1, 9),
            (Cell::Plain, _) => (6, 9),
        };
        let (more, states) = match (self.is_persistent, self.directions) {
            (false, _) => (0, states),
            (true, 1) => (more, states + 1),
            (true, _) => (more, states),
        };
        let (all, is_stack) = (self.directions * of.rows, self.layers > 1);
        let runs_side_by_side = is_stack && self.directions == 1 && !self.is_persistent;
        let gradients = if runs_side_by_side { of.rows.min(self.window(of) * of.batch) } else { all };
        let projected = if self.is_projected() { all } else { 0 };
        let between = if is_stack && !runs_side_by_side { all } else { 0 };
        let features = [gradients, projected, between, more * of.rows].map(|rows| self.bytes(rows * self.hidden));
        let wide = self.bytes(self.directions * self.directions * self.input.max(self.hidden) * of.rows);
        features.iter().sum::<i128>() + wide + self.states(states, of) + self.packing(2, of)
    }

    /// Steps that are kept where the layers of one direction run side by side, each a few steps behind the other.
    fn window(&self, of: Sequence) -> i128 {
        let apart = match (of.batch, of.steps) {
            (..=1, _) => 32,
            (..=8, _) => 16,
            (..=16, _) | (_, 128..) => 8,
            (..=96, _) => 4,
            _ => 2,
        };
        apart * self.layers + apart.max(8)
    }
}

/// The next multiple of what buffers begin at.
fn align(bytes: i128) -> i128 {
    (bytes + 31) / 32 * 32
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
    let rows = (0..batch as usize).map(|at| i128::from(lengths.add(at).read_unaligned().clamp(0, steps))).sum();
    let sequence = Sequence { steps: i128::from(steps), batch: i128::from(batch), rows, is_packed: layout == 1 };
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
pub extern "C" fn cudnnSetDropoutDescriptor(
    descriptor: usize,
    handle: u64,
    share: c_float,
    _states: Opaque,
    _bytes: usize,
    _seed: c_ulonglong,
) -> Status {
    set_dropout(descriptor, handle, share)
}

/// `cudnnRestoreDropoutDescriptor`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnRestoreDropoutDescriptor(
    descriptor: usize,
    handle: u64,
    share: c_float,
    _states: Opaque,
    _bytes: usize,
    _seed: c_ulonglong,
) -> Status {
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
/// biases of all. `base` may be null: then what is given are offsets. PyTorch asks for one of the two, and leaves the other's pointers null.
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
        give_size(bias_at, 0);
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

#[cfg(test)]
mod tests;

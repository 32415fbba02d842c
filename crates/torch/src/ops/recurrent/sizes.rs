//! How large cuDNN's buffers for recurrent networks are. See Note [Sizes of recurrent networks].
//!
//! The virtual GPU (`crates/vgpu`) compiles this file too, so it needs nothing but `std`.

/// `cudnnRNNMode_t`; plain ones are of two functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Plain,
    Lstm,
    Gru,
}

/// What descriptors say of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    pub(super) cell: Cell,
    /// Biases of each gate: none, one or two.
    pub(super) biases: i128,
    pub(super) directions: i128,
    pub(super) input: i128,
    pub(super) hidden: i128,
    /// What an LSTM's hidden state is projected to; else as many as `hidden`.
    pub(super) outputs: i128,
    pub(super) layers: i128,
    /// Bytes of an element.
    pub(super) element: i128,
    /// Whether elements between layers are dropped in training.
    pub(super) drops: bool,
    /// Whether the algorithm stays on the card for the whole sequence: the caller's choice.
    pub(super) is_persistent: bool,
}

/// A batch of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sequence {
    /// Of the longest.
    pub(super) steps: i128,
    pub(super) batch: i128,
    /// Steps of all together.
    pub(super) rows: i128,
    /// Whether they lie without gaps (`CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED`).
    pub(super) is_packed: bool,
}

/// Bytes that each layer and direction adds to a workspace whatever its sizes.
const FOR_EACH_CELL: i128 = 8 << 20;
/// Bytes in front of a reserve space, and of a workspace.
const HEADER: i128 = 256;
/// Steps after which gates of one direction are computed in place of earlier ones.
const LONGEST: i128 = 256;

impl Network {
    pub(super) fn gates(&self) -> i128 {
        match self.cell {
            Cell::Plain => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    pub(super) fn is_projected(&self) -> bool {
        self.outputs != self.hidden
    }

    /// Features that a layer reads.
    pub(super) fn reads(&self, layer: i128) -> i128 {
        if layer == 0 {
            self.input
        } else {
            self.outputs * self.directions
        }
    }

    /// Elements of the weights of one layer in one direction, without biases.
    fn weights_of(&self, layer: i128) -> i128 {
        let projection = if self.is_projected() {
            self.outputs * self.hidden
        } else {
            0
        };
        self.gates() * self.hidden * (self.reads(layer) + self.outputs) + projection
    }

    /// Elements of the weights of so many cells, the first layer's first.
    pub(super) fn weights_before(&self, cell: i128) -> i128 {
        let first = cell.min(self.directions);
        first * self.weights_of(0) + (cell - first) * self.weights_of(1)
    }

    pub(super) fn cells(&self) -> i128 {
        self.layers * self.directions
    }

    pub(super) fn biases_of(&self) -> i128 {
        self.biases * self.gates() * self.hidden
    }

    /// Elements of the buffer of all weights.
    pub(super) fn weights(&self) -> i128 {
        self.weights_before(self.cells()) + self.cells() * self.biases_of()
    }

    /// Bytes of so many elements; every buffer begins at a multiple of 32.
    fn bytes(&self, elements: i128) -> i128 {
        align(elements * self.element)
    }

    /// Bytes that the forward pass leaves for the backward pass: what the gates were, an LSTM's cell states and what it projects, outputs between
    /// layers, and a bit for each of those that may be dropped.
    pub(super) fn reserve(&self, of: Sequence) -> i128 {
        let gates: &[i128] = match self.cell {
            Cell::Lstm if self.is_projected() => {
                &[4 * self.hidden, self.hidden, self.hidden, self.outputs]
            }
            Cell::Lstm => &[4 * self.hidden, self.hidden],
            Cell::Gru => &[6 * self.hidden],
            Cell::Plain => &[self.hidden],
        };
        let gates: i128 = gates
            .iter()
            .map(|gates| self.bytes(of.rows * self.cells() * gates))
            .sum();
        let between = (self.layers - 1) * self.directions;
        let dropped = of.steps * of.batch * self.directions * self.outputs;
        let dropped = if self.drops {
            between * align((dropped + 7) / 8)
        } else {
            0
        };
        gates + self.bytes(of.rows * between * self.hidden) + dropped + HEADER
    }

    /// Bytes of scratch memory: a copy of the weights of each cell, and the larger of what the passes work on.
    pub(super) fn workspace(&self, of: Sequence, is_training: bool) -> i128 {
        let weights = self.directions
            * (self.bytes(self.weights_of(0)) + (self.layers - 1) * self.bytes(self.weights_of(1)));
        let fixed = weights + self.cells() * FOR_EACH_CELL + HEADER;
        fixed
            + if is_training {
                self.forward(of).max(self.backward(of))
            } else {
                self.forward(of)
            }
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
        let state =
            |features: i128| 2 * self.bytes(self.directions * features * self.layers * of.batch);
        let states = state(self.outputs)
            + if self.cell == Cell::Lstm {
                state(self.hidden)
            } else {
                0
            };
        let sequences =
            self.bytes(self.input * of.rows) + self.bytes(self.directions * self.outputs * of.rows);
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
        let (more, states) = if self.is_persistent {
            (more, states + fewer)
        } else {
            (0, states)
        };
        // In one direction, gates of later steps take the place of earlier ones.
        let gates = match (self.directions, self.is_persistent) {
            (1, false) => self.gates() * of.rows.min(LONGEST * of.batch),
            (1, true) => self.gates() * of.rows,
            _ => both * of.rows,
        };
        let projected = if self.is_projected() {
            self.directions * of.rows
        } else {
            0
        };
        let dropped = if self.drops && self.directions == 1 {
            of.rows
        } else {
            0
        };
        let features =
            [gates, more * of.rows, projected, dropped].map(|rows| self.bytes(rows * self.hidden));
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
        let gradients = if runs_side_by_side {
            of.rows.min(self.window(of) * of.batch)
        } else {
            all
        };
        let projected = if self.is_projected() { all } else { 0 };
        let between = if is_stack && !runs_side_by_side {
            all
        } else {
            0
        };
        let features = [gradients, projected, between, more * of.rows]
            .map(|rows| self.bytes(rows * self.hidden));
        let wide =
            self.bytes(self.directions * self.directions * self.input.max(self.hidden) * of.rows);
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

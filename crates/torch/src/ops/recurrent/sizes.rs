//! How large cuDNN's buffers for recurrent networks are.

use super::CellKind;
use crate::program::Capability;
use crate::shape::{DType, Extent};

/// What cuDNN's descriptors say of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Network {
    pub(super) cell: CellKind,
    /// Features of the input.
    pub(super) input: u64,
    /// Elements of the hidden (an LSTM's cell) state.
    pub(super) hidden: u64,
    /// What an LSTM's hidden state is projected to.
    pub(super) projection: Option<u64>,
    pub(super) layers: u64,
    /// 2 for a bidirectional one.
    pub(super) directions: u64,
    /// Whether elements between layers are dropped in training.
    pub(super) dropout: bool,
}

/// For which pass a workspace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    /// Without a backward pass to come.
    Inference,
    /// With one.
    Forward,
    /// The backward pass itself.
    Backward,
}

/// Bytes that each layer and direction adds to a workspace whatever its sizes.
const FOR_EACH_CELL: u64 = 8 << 20;

/// Steps after which gates of one direction are computed in place of earlier ones.
const LONGEST: u64 = 256;

impl Network {
    /// Features of a layer's output in one direction.
    pub(super) fn outputs(&self) -> u64 {
        self.projection.unwrap_or(self.hidden)
    }

    /// Features that a layer reads.
    fn reads(&self, layer: u64) -> u64 {
        if layer == 0 {
            self.input
        } else {
            self.outputs() * self.directions
        }
    }

    /// The shapes of the module's parameters, in its order: for each layer and direction the weights of input and
    /// hidden state, their biases, the projection.
    pub(super) fn parameters(&self, biases: bool) -> Vec<Vec<Extent>> {
        let rows = self.cell.gates() * self.hidden;
        let mut shapes: Vec<Vec<u64>> = Vec::new();
        for layer in 0..self.layers {
            for _ in 0..self.directions {
                shapes.push(vec![rows, self.reads(layer)]);
                shapes.push(vec![rows, self.outputs()]);
                if biases {
                    shapes.extend([vec![rows], vec![rows]]);
                }
                shapes.extend(self.projection.map(|outputs| vec![outputs, self.hidden]));
            }
        }
        let extents = |shape: Vec<u64>| shape.into_iter().map(Extent::fixed).collect();
        shapes.into_iter().map(extents).collect()
    }

    /// Elements of the buffer that all weights share; cuDNN's has biases always.
    pub(super) fn weights(&self) -> u64 {
        let all = self.parameters(true);
        all.iter()
            .map(|shape| crate::shape::numel(shape).at(1))
            .sum()
    }

    /// Bytes that the forward pass leaves for the backward pass: what the gates were, outputs between layers,
    /// which of those were dropped. See Note [Sizes of recurrent networks].
    pub(super) fn reserve(&self, dtype: DType, time: u64, batch: u64) -> u64 {
        let (steps, directions) = (time.saturating_mul(batch), self.directions);
        let gates = match self.cell {
            CellKind::Lstm => 5 * self.hidden + self.projection.map_or(0, |p| self.hidden + p),
            CellKind::Gru => 6 * self.hidden,
            CellKind::Tanh | CellKind::Relu => self.hidden,
        };
        let between = (self.layers - 1) * directions;
        let elements = self.layers * directions * gates + between * self.hidden;
        let dropped = if self.dropout {
            between * directions * self.outputs()
        } else {
            0
        };
        let of_elements = steps.saturating_mul(elements).saturating_mul(dtype.size());
        of_elements
            .saturating_add(steps.saturating_mul(dropped) / 8)
            .saturating_add(256)
    }

    /// Bytes of scratch memory. See Note [Sizes of recurrent networks].
    pub(super) fn workspace(
        &self,
        dtype: DType,
        [time, batch]: [u64; 2],
        pass: Pass,
        capability: Capability,
    ) -> u64 {
        let gates = self.cell.gates();
        let cells = (0..self.layers).map(|layer| {
            let projection = self.projection.map_or(0, |outputs| outputs * self.hidden);
            let weights = gates * self.hidden * (self.reads(layer) + self.outputs()) + projection;
            self.directions * (FOR_EACH_CELL + weights * dtype.size())
        });
        let persistent = self.is_persistent(dtype, batch, pass, capability);
        let forward = self.forward_elements(time, persistent, pass);
        let elements = match pass {
            Pass::Inference => forward,
            Pass::Forward | Pass::Backward => {
                forward.max(self.backward_elements([time, batch], persistent))
            }
        };
        let of_steps = elements.saturating_mul(batch).saturating_mul(dtype.size());
        let fixed: u64 = cells.sum::<u64>() + 256;
        of_steps.saturating_add(8 * batch).saturating_add(fixed)
    }

    /// What the forward pass wants for each sample.
    fn forward_elements(&self, time: u64, persistent: bool, pass: Pass) -> u64 {
        let (hidden, gates) = (self.hidden, self.cell.gates());
        // Hidden states of all steps, hidden states of one step; the two that persistent kernels add.
        let (all, one, more, less) = match (self.cell, self.directions) {
            (CellKind::Lstm, 1) => (5, 10, 16, 8),
            (CellKind::Lstm, _) => (14, 24, 16, 18),
            (CellKind::Gru, 1) => (4, 5, 12, 4),
            (CellKind::Gru, _) => (12, 14, 12, 10),
            (CellKind::Tanh | CellKind::Relu, 1) => (2, 3, 4, 4),
            (CellKind::Tanh | CellKind::Relu, _) => (8, 10, 4, 10),
        };
        let (all, one) = if persistent {
            (all + more, less)
        } else {
            (all, one)
        };
        let mut elements = (all * hidden + self.input).saturating_mul(time);
        if self.directions == 1 {
            if !persistent {
                elements = elements.saturating_sub(gates * hidden * time.saturating_sub(LONGEST));
            }
            if self.dropout && pass != Pass::Inference {
                elements = elements.saturating_add(time * hidden);
            }
        }
        if let Some(outputs) = self.projection {
            elements = elements.saturating_add(self.directions * time * outputs);
            let narrower = 2 * self.directions * hidden.saturating_sub(outputs) * self.layers;
            return (elements + one * hidden * self.layers).saturating_sub(narrower);
        }
        elements.saturating_add(one * hidden * self.layers)
    }

    /// What the backward pass wants for each sample.
    fn backward_elements(&self, [time, batch]: [u64; 2], persistent: bool) -> u64 {
        let (hidden, directions) = (self.hidden, self.directions);
        let (one, more) = match (self.cell, directions) {
            (CellKind::Lstm, 1) => (11, 12),
            (CellKind::Lstm, _) => (26, 12),
            (CellKind::Gru, 1) => (5, 14),
            (CellKind::Gru, _) => (14, 14),
            (CellKind::Tanh | CellKind::Relu, 1) => (5, 9),
            (CellKind::Tanh | CellKind::Relu, _) => (14, 9),
        };
        let (all, one) = match (persistent, directions) {
            (false, _) => (3 * directions, one),
            (true, 1) => (3 + more, one + 1),
            (true, _) => (3 * directions + more, one),
        };
        let wide = directions * directions * self.input.max(hidden);
        let steps = (all * hidden + 2 * self.input + wide).saturating_mul(time);
        let elements = steps.saturating_add(one * hidden * self.layers);
        if self.layers == 1 {
            return elements;
        }
        if directions > 1 || persistent {
            return elements.saturating_add(directions * time * hidden);
        }
        // Layers run side by side, a few steps apart.
        let apart = match batch {
            0 | 1 => 32,
            2..=8 => 16,
            _ => 8,
        };
        elements.saturating_sub(time.saturating_sub((self.layers + 1) * apart) * hidden)
    }

    /// `get_algo` in PyTorch's cudnn/RNN.cpp: whether kernels run that stay on the card for the whole sequence.
    fn is_persistent(&self, dtype: DType, batch: u64, pass: Pass, capability: Capability) -> bool {
        if self.projection.is_some() || !matches!(dtype, DType::Float16 | DType::Float32) {
            return false;
        }
        let plain = matches!(self.cell, CellKind::Tanh | CellKind::Relu);
        let small = match (plain, pass) {
            (true, Pass::Inference | Pass::Forward) => 384,
            (true, Pass::Backward) => 256,
            (false, Pass::Inference | Pass::Forward) => 192,
            (false, Pass::Backward) => 128,
        };
        if self.hidden <= small && capability.compute.0 >= 6 {
            return true;
        }
        let common = dtype == DType::Float16
            && self.layers == 1
            && self.hidden <= 1024
            && self.directions == 1
            && self.hidden.is_multiple_of(128)
            && self.input.is_multiple_of(128);
        let (major, minor) = capability.compute;
        common
            && major >= 8
            && minor != 6
            && capability.multiprocessors >= 98
            && self.cell != CellKind::Gru
            && batch.is_multiple_of(8)
            && batch <= 128
            && (self.cell == CellKind::Lstm || batch < 96 || self.hidden < 896)
    }
}

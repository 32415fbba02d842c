//! A recurrent network as PyTorch describes it to cuDNN.

use super::CellKind;
use super::sizes::{self, Cell, Sequence};
use crate::ops::prelude::*;
use crate::program::Capability;

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
pub(super) enum WorkspaceUse {
    /// Without a backward pass to come.
    Inference,
    /// With one.
    Forward,
    /// The backward pass itself.
    Backward,
}

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
        to_u64(self.described(DType::Float32).weights())
    }

    /// Bytes that the forward pass leaves for the backward pass.
    pub(super) fn reserve(&self, dtype: DType, time: u64, batch: u64) -> u64 {
        to_u64(self.described(dtype).reserve(padded(time, batch)))
    }

    /// Bytes of scratch memory.
    pub(super) fn workspace(
        &self,
        dtype: DType,
        [time, batch]: [u64; 2],
        pass: WorkspaceUse,
        capability: Capability,
    ) -> u64 {
        let is_persistent = self.is_persistent(dtype, batch, pass, capability);
        // PyTorch says nothing of dropout outside of training.
        let network = sizes::Network {
            drops: self.dropout && pass != WorkspaceUse::Inference,
            is_persistent,
            ..self.described(dtype)
        };
        to_u64(network.workspace(padded(time, batch), pass != WorkspaceUse::Inference))
    }

    /// In training, with an algorithm that does not stay on the card.
    fn described(&self, dtype: DType) -> sizes::Network {
        let length = i128::from;
        sizes::Network {
            cell: match self.cell {
                CellKind::Lstm => Cell::Lstm,
                CellKind::Gru => Cell::Gru,
                CellKind::Tanh | CellKind::Relu => Cell::Plain,
            },
            biases: 2,
            directions: length(self.directions),
            input: length(self.input),
            hidden: length(self.hidden),
            outputs: length(self.outputs()),
            layers: length(self.layers),
            element: length(dtype.size()),
            drops: self.dropout,
            is_persistent: false,
        }
    }

    /// `get_algo` in PyTorch's cudnn/RNN.cpp: whether kernels run that stay on the card for the whole sequence.
    fn is_persistent(
        &self,
        dtype: DType,
        batch: u64,
        pass: WorkspaceUse,
        capability: Capability,
    ) -> bool {
        if self.projection.is_some() || !matches!(dtype, DType::Float16 | DType::Float32) {
            return false;
        }
        let plain = matches!(self.cell, CellKind::Tanh | CellKind::Relu);
        let small = match (plain, pass) {
            (true, WorkspaceUse::Inference | WorkspaceUse::Forward) => 384,
            (true, WorkspaceUse::Backward) => 256,
            (false, WorkspaceUse::Inference | WorkspaceUse::Forward) => 192,
            (false, WorkspaceUse::Backward) => 128,
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

/// Sequences that are equally long. Lengths beyond what cuDNN takes are as good as its largest.
fn padded(time: u64, batch: u64) -> Sequence {
    let [steps, batch] = [time, batch].map(|length| i128::from(length.min(u32::MAX.into())));
    Sequence {
        steps,
        batch,
        rows: steps * batch,
        is_packed: false,
    }
}

fn to_u64(of: i128) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}

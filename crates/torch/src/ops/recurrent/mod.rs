//! Recurrent networks: LSTM, GRU and plain ones, as cuDNN runs them.
#![doc = include_str!("NOTES.md")]

pub(in crate::ops) mod cell;
mod formulas;
mod gates;
mod launches;
mod network;
mod run;
mod sizes;
mod space;

use self::network::Network;
use crate::ops::prelude::*;

/// What a cell computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum CellKind {
    /// Four gates and a cell state beside the hidden one.
    Lstm,
    /// Three gates.
    Gru,
    /// `tanh` of a sum.
    Tanh,
    /// `relu` of a sum.
    Relu,
}

impl CellKind {
    /// Rows of a weight for each element of the hidden state.
    pub(super) fn gates(self) -> u64 {
        match self {
            CellKind::Lstm => 4,
            CellKind::Gru => 3,
            CellKind::Tanh | CellKind::Relu => 1,
        }
    }

    /// Tensors of state.
    pub(super) fn states(self) -> usize {
        match self {
            CellKind::Lstm => 2,
            CellKind::Gru | CellKind::Tanh | CellKind::Relu => 1,
        }
    }
}

/// `lstm`, `gru`, `rnn_tanh` or `rnn_relu` on padded sequences. Operands are the input, the initial hidden
/// state, an LSTM's cell state, and the weights of each layer and direction as the module lists them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are PyTorch's arguments"
)]
pub struct Recurrent {
    /// What its cells compute.
    pub cell: CellKind,
    /// Whether there are biases.
    pub biases: bool,
    /// Layers, each of which reads the one before.
    pub layers: u64,
    /// Share of elements dropped between layers.
    pub dropout: f64,
    /// Whether it drops them, and prepares for a backward pass.
    pub train: bool,
    /// Whether each layer also runs from the end.
    pub bidirectional: bool,
    /// Whether the input is `[batch, time, features]`, not `[time, batch, features]`.
    pub batch_first: bool,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.lstm.input", |args| read(args, CellKind::Lstm)),
    ("aten.gru.input", |args| read(args, CellKind::Gru)),
    ("aten.rnn_tanh.input", |args| read(args, CellKind::Tanh)),
    ("aten.rnn_relu.input", |args| read(args, CellKind::Relu)),
    (
        "aten.lstm.data aten.gru.data aten.rnn_tanh.data aten.rnn_relu.data aten._pack_padded_sequence.default \
         aten._pad_packed_sequence.default",
        packed,
    ),
];

fn packed(_: &Arguments<'_>) -> Result<Read, String> {
    Err(
        "it packs sequences, so its sizes depend on their lengths; `batchfit run --on CARD -- python train.py` takes \
         them as they are, or give the recurrent module padded tensors, without pack_padded_sequence"
            .into(),
    )
}

fn read(args: &Arguments<'_>, cell: CellKind) -> Result<Read, String> {
    let layers = args.count("num_layers", None)?;
    if !(1..=1024).contains(&layers) {
        return Err(format!("it has {layers} layers"));
    }
    let recurrent = Recurrent {
        cell,
        biases: args.flag("has_biases", true)?,
        layers,
        dropout: args.number_or("dropout", 0.0)?,
        train: args.flag("train", false)?,
        bidirectional: args.flag("bidirectional", false)?,
        batch_first: args.flag("batch_first", false)?,
    };
    let mut operands = vec![args.tensor("input")?];
    match cell {
        CellKind::Lstm => operands.extend(args.tensors("hx")?),
        CellKind::Gru | CellKind::Tanh | CellKind::Relu => operands.push(args.tensor("hx")?),
    }
    operands.extend(args.tensors("params")?);
    Ok((recurrent.into(), operands))
}

impl Recurrent {
    fn directions(&self) -> u64 {
        if self.bidirectional { 2 } else { 1 }
    }

    /// The network that cuDNN is asked for, and the lengths of time and batch. The operands' shapes are checked.
    fn network(&self, operands: &[Type]) -> Result<(Network, [Extent; 2]), Mismatch> {
        let states = self.cell.states();
        let (Some((_, input)), Some((_, hidden))) = (operands.first(), operands.get(1)) else {
            return Err("it has no input or no initial state".into());
        };
        let [first, second, features] = input.as_slice() else {
            return Err(format!(
                "the input {input:?} is not batch, time and features"
            ));
        };
        let (time, batch) = if self.batch_first {
            (*second, *first)
        } else {
            (*first, *second)
        };
        let fixed = |length: &Extent| {
            let fixed = length
                .as_fixed()
                .filter(|length| (1..1 << 24).contains(length));
            fixed.ok_or_else(|| format!("a length of {length} is not supported"))
        };
        let (Some(outputs), Some((_, state))) = (hidden.last(), operands.get(states)) else {
            return Err(format!("the state {hidden:?} has no dimensions"));
        };
        let cells = state.last().ok_or("the cell state has no dimensions")?;
        let (outputs, hidden_size) = (fixed(outputs)?, fixed(cells)?);
        let network = Network {
            cell: self.cell,
            input: fixed(features)?,
            hidden: hidden_size,
            projection: (outputs != hidden_size).then_some(outputs),
            layers: self.layers,
            directions: self.directions(),
            dropout: self.dropout > 0.0,
        };
        let rows = Extent::fixed(self.layers * self.directions());
        for (name, (_, shape), length) in [
            ("hidden", &operands[1], outputs),
            ("cell", &operands[states], hidden_size),
        ] {
            if *shape != [rows, batch, length.into()] {
                return Err(format!(
                    "the {name} state is {shape:?}, not [{rows}, {batch}, {length}]"
                ));
            }
        }
        let shapes = operands[1 + states..]
            .iter()
            .map(|(_, shape)| shape.clone());
        let expected = network.parameters(self.biases);
        if !shapes.eq(expected.iter().cloned()) {
            return Err(format!("its weights should be {expected:?}"));
        }
        Ok((network, [time, batch]))
    }
}

impl Operator for Recurrent {
    fn name(&self) -> &'static str {
        match self.cell {
            CellKind::Lstm => "lstm",
            CellKind::Gru => "gru",
            CellKind::Tanh => "rnn_tanh",
            CellKind::Relu => "rnn_relu",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (network, [time, batch]) = self.network(operands)?;
        let dtype = operands[0].0;
        let features = Extent::fixed(network.outputs() * self.directions());
        let output = if self.batch_first {
            vec![batch, time, features]
        } else {
            vec![time, batch, features]
        };
        let states = &operands[1..=self.cell.states()];
        let states = states.iter().map(|(_, shape)| (dtype, shape.clone()));
        Ok(std::iter::once((dtype, output)).chain(states).collect())
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let recurrent = Recurrent {
            train: self.train && !context.inference,
            ..*self
        };
        eager.recurrent(recurrent, operands)
    }

    /// `flatten_parameters`, which a recurrent module calls when it is moved to the card. It does nothing for
    /// types other than these (`CUDNN_TENSOR_DTYPES` in torch/backends/cudnn).
    fn flattened(
        &self,
        operands: &dyn Fn() -> Vec<Type>,
        stored: &dyn Fn(DType) -> DType,
    ) -> Option<(usize, u64)> {
        let operands = operands();
        let dtype = stored(operands.last()?.0);
        let flattens = matches!(dtype, DType::Float16 | DType::Float32 | DType::Float64);
        let (network, _) = self.network(&operands).ok().filter(|_| flattens)?;
        Some((1 + self.cell.states(), network.weights()))
    }
}

#[cfg(test)]
mod tests;

//! The memory of a recurrent network: how its spaces are divided, and parts of its tensors.

use std::rc::Rc;

use super::CellKind;
use super::formulas::Layer;
use super::run::Job;
use crate::eager::Storage;
use crate::ops::prelude::*;

/// Bytes in front of the reserve space's elements, where the key of dropout lies.
const HEADER: u64 = 256;

/// A buffer that is cut into tensors from its start.
#[derive(Clone)]
pub(super) struct Space {
    storage: Rc<Storage>,
    dtype: DType,
    next: Extent,
}

impl Space {
    pub(super) fn of(storage: &Rc<Storage>, dtype: DType) -> Space {
        Space {
            storage: Rc::clone(storage),
            dtype,
            next: Extent::ZERO,
        }
    }

    pub(super) fn take(&mut self, shape: &[Extent]) -> TensorBody {
        let mut taken = TensorBody::over(&self.storage, shape, self.dtype);
        taken.offset = self.next;
        self.next = self.next + taken.numel();
        taken
    }
}

/// What the forward pass leaves of a layer in one direction, by time and sample.
pub(super) struct CellReserve {
    /// Activated gates; the backward pass puts their gradients here.
    pub(super) gates: TensorBody,
    /// An LSTM's cell states; a GRU's products with the hidden state, then their gradients.
    pub(super) beside: Option<TensorBody>,
    /// Hidden states before their projection, and gradients of what they were projected to.
    pub(super) projected: Option<[TensorBody; 2]>,
}

/// The reserve space.
pub(super) struct Reserve {
    /// The key of dropout.
    pub(super) key: TensorBody,
    /// By layer and direction.
    pub(super) cells: Vec<CellReserve>,
    /// Outputs of all layers but the last.
    pub(super) between: Vec<TensorBody>,
}

/// The parameters of a layer in one direction, or their gradients.
pub(super) struct Parameters<'a> {
    pub(super) w_ih: &'a TensorBody,
    pub(super) w_hh: &'a TensorBody,
    pub(super) biases: Option<[&'a TensorBody; 2]>,
    pub(super) w_hr: Option<&'a TensorBody>,
}

impl Job {
    pub(super) fn length(length: u64) -> Extent {
        Extent::fixed(length)
    }

    /// Elements of a layer's output in one direction, and of all its gates.
    pub(super) fn lengths(&self) -> (Extent, Extent) {
        let gates = self.network.cell.gates() * self.network.hidden;
        (Job::length(self.network.outputs()), Job::length(gates))
    }

    /// By time and sample.
    pub(super) fn over_time(&self, features: Extent) -> [Extent; 3] {
        [self.time, self.batch, features]
    }

    /// Elements of a layer's output.
    pub(super) fn width(&self) -> Extent {
        self.lengths().0 * Job::length(self.network.directions)
    }

    pub(super) fn layer(&self) -> Layer {
        Layer {
            cell: self.network.cell,
            has_biases: self.recurrent.biases,
            is_projected: self.network.projection.is_some(),
        }
    }

    pub(super) fn drops(&self) -> bool {
        self.recurrent.train && self.network.dropout
    }

    /// How the reserve space is divided.
    pub(super) fn reserve(&self, storage: &Rc<Storage>, dtype: DType) -> Reserve {
        let mut key = Space::of(storage, DType::Int64);
        let key = key.take(&[Extent::ONE]);
        let mut space = Space::of(storage, dtype);
        space.next = Extent::fixed(HEADER / dtype.size());
        let (outputs, gates) = self.lengths();
        let units = Job::length(self.network.hidden);
        let cells = (0..self.network.layers * self.network.directions)
            .map(|_| CellReserve {
                gates: space.take(&self.over_time(gates)),
                beside: match self.network.cell {
                    CellKind::Lstm => Some(space.take(&self.over_time(units))),
                    CellKind::Gru => Some(space.take(&self.over_time(gates))),
                    CellKind::Tanh | CellKind::Relu => None,
                },
                projected: self.network.projection.map(|_| {
                    let hidden = space.take(&self.over_time(units));
                    [hidden, space.take(&self.over_time(outputs))]
                }),
            })
            .collect();
        let between = (1..self.network.layers)
            .map(|_| space.take(&self.over_time(self.width())))
            .collect();
        Reserve {
            key,
            cells,
            between,
        }
    }

    /// The parameters of a layer in one direction, of those of all.
    pub(super) fn parameters<'a>(&self, all: &[&'a TensorBody], cell: usize) -> Parameters<'a> {
        let (biases, projected) = (self.recurrent.biases, self.network.projection.is_some());
        let each = 2 + 2 * usize::from(biases) + usize::from(projected);
        let own = &all[cell * each..(cell + 1) * each];
        Parameters {
            w_ih: own[0],
            w_hh: own[1],
            biases: biases.then(|| [own[2], own[3]]),
            w_hr: projected.then(|| own[each - 1]),
        }
    }

    /// The part of a layer's output that one direction makes.
    pub(super) fn direction(&self, output: &TensorBody, direction: u64) -> TensorBody {
        let (outputs, _) = self.lengths();
        let mut part = output.alias(self.over_time(outputs).as_slice(), output.strides.clone());
        part.offset = part.offset + outputs * Job::length(direction);
        part
    }

    /// The layers with their numbers, and in each the directions, with the number of the layer and direction.
    pub(super) fn cells(&self, layer: u64) -> impl Iterator<Item = (u64, usize)> + use<> {
        let directions = self.network.directions;
        let number = |at: u64| usize::try_from(at).expect("there are that many weights");
        (0..directions).map(move |direction| (direction, number(layer * directions + direction)))
    }
}

/// A tensor with these dimensions in the same memory; it is dense.
pub(super) fn seen<const N: usize>(x: &TensorBody, shape: [Extent; N]) -> TensorBody {
    x.alias(&shape, contiguous_strides(&shape))
}

/// A dense tensor over time as a matrix with a row for each step and sample.
pub(super) fn matrix(x: &TensorBody) -> TensorBody {
    seen(x, [x.shape[0] * x.shape[1], x.shape[2]])
}

/// A matrix, transposed.
pub(super) fn transposed(x: &TensorBody) -> TensorBody {
    let turned = |of: &Sizes| vec![of[1], of[0]];
    x.alias(turned(&x.shape), turned(&x.strides))
}

/// Part of the first dimension.
pub(super) fn part(x: &TensorBody, start: Extent, length: Extent) -> TensorBody {
    let mut shape = x.shape.clone();
    shape[0] = length;
    let mut part = x.alias(shape, x.strides.clone());
    part.offset = part.offset + start * x.strides[0];
    part
}

/// The same elements at each of so many steps.
pub(super) fn at_each_step(x: &TensorBody, steps: Extent) -> TensorBody {
    let (mut shape, mut strides) = (vec![steps], vec![Extent::ZERO]);
    shape.extend(x.shape.iter().copied());
    strides.extend(x.strides.iter().copied());
    x.alias(shape, strides)
}

//! One step of a recurrent network: `LSTMCell`, `GRUCell`, `RNNCell`. PyTorch's own kernels run them.

use super::{CellKind, gates};
use crate::ops::prelude::*;
use crate::program::Unary;

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.lstm_cell.default", |args| {
        read(args, "lstm_cell", CellKind::Lstm)
    }),
    ("aten.gru_cell.default", |args| {
        read(args, "gru_cell", CellKind::Gru)
    }),
    ("aten.rnn_tanh_cell.default", |args| {
        read(args, "rnn_tanh_cell", CellKind::Tanh)
    }),
    ("aten.rnn_relu_cell.default", |args| {
        read(args, "rnn_relu_cell", CellKind::Relu)
    }),
];

/// `lstm_cell(input, hx, cx, w_ih, w_hh[, b_ih, b_hh])`; the others have no `cx`.
fn read(args: &Arguments<'_>, name: &'static str, kind: CellKind) -> Result<Read, String> {
    let mut operands = vec![args.tensor("input")?];
    match kind {
        CellKind::Lstm => operands.extend(args.tensors("hx")?),
        CellKind::Gru | CellKind::Tanh | CellKind::Relu => operands.push(args.tensor("hx")?),
    }
    operands.extend(args.all_and(&["w_ih", "w_hh"], &["b_ih", "b_hh"])?);
    let bare = 3 + kind.states();
    if ![bare, bare + 2].contains(&operands.len()) {
        return Err("it has one state or one bias too few".into());
    }
    let cell = Function {
        name,
        arguments: kind,
        infer: |kind, operands| infer(*kind, operands),
        run: |kind, eager, operands, _| run(*kind, eager, operands),
    };
    Ok(cell.on(operands))
}

fn has_biases(kind: CellKind, operands: usize) -> bool {
    operands == 5 + kind.states()
}

fn infer(kind: CellKind, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    let states = kind.states();
    let (dtype, x) = &operands[0];
    let state = &operands[1].1;
    let ([batch, features], [samples, hidden]) = (x.as_slice(), state.as_slice()) else {
        return Err(format!(
            "input {x:?} and state {state:?} are not batch and features"
        ));
    };
    let rows = *hidden * Extent::fixed(kind.gates());
    let mut expected = vec![vec![*samples, *hidden]; states];
    expected.extend([vec![rows, *features], vec![rows, *hidden]]);
    if has_biases(kind, operands.len()) {
        expected.extend([vec![rows], vec![rows]]);
    }
    let given = operands[1..].iter().map(|(_, shape)| shape.clone());
    if batch != samples || !given.eq(expected.iter().cloned()) {
        return Err(format!("state and weights should be {expected:?}"));
    }
    Ok(vec![(*dtype, vec![*batch, *hidden]); states])
}

fn run(kind: CellKind, eager: &mut Eager, operands: &[Tensor]) -> Outputs {
    // Autocast casts the last argument first.
    let mut operands = operands.to_vec();
    for operand in operands.iter_mut().rev() {
        *operand = eager.low(operand);
    }
    let states = kind.states();
    let (x, hidden) = (&operands[0], &operands[1]);
    let weights = &operands[1 + states..];
    let biases = has_biases(kind, operands.len()).then(|| [&weights[2], &weights[3]]);
    Ok(match kind {
        CellKind::Lstm | CellKind::Gru => {
            let input = eager.linear(x, &weights[0], None)?;
            let recurrent = eager.linear(hidden, &weights[1], None)?;
            eager.fused_cell(kind, [&input, &recurrent], &operands[states], biases)?
        }
        CellKind::Tanh | CellKind::Relu => {
            let bias = |at: usize| biases.map(|biases| biases[at]);
            let recurrent = eager.linear(hidden, &weights[1], bias(1))?;
            let input = eager.linear(x, &weights[0], bias(0))?;
            let sum = eager.add_in_place(&recurrent, &input);
            let function = match kind {
                CellKind::Relu => Unary::Relu,
                CellKind::Tanh | CellKind::Lstm | CellKind::Gru => Unary::Tanh,
            };
            let y = eager.saturated(&sum, function)?;
            vec![y]
        }
    })
}

impl Eager {
    /// `_thnn_fused_lstm_cell` and `_thnn_fused_gru_cell`: save both products, the biases for gradients of gradients, and what
    /// the gates became (`derivatives.yaml`). `state` is the cell state of an LSTM, the hidden one of a GRU.
    fn fused_cell(
        &mut self,
        kind: CellKind,
        [input, recurrent]: [&Tensor; 2],
        state: &Tensor,
        biases: Option<[&Tensor; 2]>,
    ) -> Outputs {
        let is_lstm = kind == CellKind::Lstm;
        let inputs = [
            Some(input),
            Some(recurrent),
            Some(state),
            biases.map(|[first, _]| first),
            biases.map(|[_, second]| second),
        ];
        let mut draft = OpRecord::new(self, &inputs);
        if let Some([first, second]) = biases {
            draft.save(self, "hidden_bias", second)?;
            draft.save(self, "input_bias", first)?;
        }
        draft.save(self, "hidden_gates", recurrent)?;
        draft.save(self, "input_gates", input)?;
        draft.save(self, "state", state)?;
        let dtype = input.dtype;
        let gates = if is_lstm { 4 } else { 5 };
        let shape = [state.shape[0], state.shape[1] * Extent::fixed(gates)];
        let workspace = Tensor::new(self.empty(&shape, dtype));
        let hidden = self.empty(&state.shape, dtype);
        let cell = is_lstm.then(|| self.empty(&state.shape, dtype));
        {
            let mut operands: Vec<&TensorBody> = vec![input, recurrent, state];
            operands.extend(biases.iter().flatten().map(|bias| &***bias));
            let mut results = vec![&hidden, &*workspace];
            results.extend(&cell);
            let kernel = gates::forward(is_lstm, biases.is_some());
            self.launch(kernel, &operands, &results);
        }
        if let Some(cell) = &cell {
            draft.save(self, "result1", &cell.detached())?;
        }
        draft.save(self, "workspace", &workspace)?;
        drop(workspace);
        let with_biases = biases.is_some();
        // An initial state of zeros wants no gradient; it gets one that goes at once.
        let wants_state = state.requires_grad();
        let outputs = std::iter::once(hidden).chain(cell).collect();
        Ok(
            draft.finish_many(self, outputs, move |eager, gradients, saved| {
                if gradients.iter().all(Option::is_none) {
                    return vec![None; 5];
                }
                let (of, state) = (saved.get("input_gates"), saved.get("state"));
                let rows = [of.shape[1]];
                let made =
                    |eager: &mut Eager, shape: &[Extent]| Tensor::new(eager.empty(shape, dtype));
                let of_input = made(eager, &of.shape);
                // An LSTM's products have one gradient, and so have its biases.
                let of_recurrent = if is_lstm {
                    Tensor::clone(&of_input)
                } else {
                    made(eager, &of.shape)
                };
                let of_state = made(eager, &state.shape);
                let of_biases = with_biases.then(|| {
                    let first = made(eager, &rows);
                    let second = if is_lstm {
                        Tensor::clone(&first)
                    } else {
                        made(eager, &rows)
                    };
                    [first, second]
                });
                let mut operands: Vec<&TensorBody> = vec![saved.get("workspace")];
                operands.extend(gradients.iter().flatten().map(|gradient| &**gradient));
                let there = [0, 1].map(|at: usize| gradients.get(at).is_some_and(Option::is_some));
                let kernel = if is_lstm {
                    operands.extend([&**state, saved.get("result1")]);
                    gates::lstm_gradient(there)
                } else {
                    gates::gru_gradient()
                };
                let results = [&*of_state, &of_input, &of_recurrent];
                let results = &results[..if is_lstm { 2 } else { 3 }];
                eager.launch(kernel, &operands, results);
                if let Some([first, second]) = &of_biases {
                    let sum = Kernel::Sum { scale: 1.0 };
                    eager.launch(sum.clone(), &[&of_input], &[first]);
                    if !is_lstm {
                        eager.launch(sum, &[&of_recurrent], &[second]);
                    }
                }
                let of_state = Some(of_state).filter(|_| wants_state);
                let [first, second] = of_biases.map_or([None, None], |biases| biases.map(Some));
                vec![Some(of_input), Some(of_recurrent), of_state, first, second]
            }),
        )
    }

    /// `tanh` or `relu`, which save their result.
    fn saturated(&mut self, x: &Tensor, function: Unary) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        let y = self.empty(&x.shape, x.dtype);
        self.launch(Kernel::Unary(function), &[x], &[&y]);
        draft.save(self, "result", &y.detached())?;
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            let inputs = [&**gradient, saved.get("result")];
            eager.computed(grad_x, Kernel::UnaryGrad(function), &inputs)
        }))
    }
}

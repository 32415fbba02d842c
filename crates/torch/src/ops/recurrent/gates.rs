//! What the fused kernels of recurrent cells compute (`RNN.cu`), once their matrix products are made. A thread makes one
//! hidden value.

use crate::ops::prelude::*;

fn gate(number: usize, with_biases: bool) -> String {
    let at = format!("H * {number} + h");
    let biases = if with_biases {
        format!(" + (T)bias1({at}) + (T)bias2({at})")
    } else {
        String::new()
    };
    format!("(T)input(n, {at}) + (T)recurrent(n, {at}){biases}")
}

/// `input, recurrent, state (, bias, bias) -> hidden, workspace (, cell)`: the workspace keeps what the gates became.
pub(super) fn forward(is_lstm: bool, with_biases: bool) -> Generated {
    let mut inputs = vec!["input", "recurrent", "state"];
    if with_biases {
        inputs.extend(["bias1", "bias2"]);
    }
    let gates = [0, 1, 2, 3].map(|number| gate(number, with_biases));
    let over = inputs.len();
    let (body, outputs) = if is_lstm {
        let [input, forget, cell, output] = gates;
        let body = filled!("gates/lstm.cu", input, forget, cell, output);
        (body, vec!["hidden", "workspace", "cell"])
    } else {
        let (of_input, of_recurrent) = if with_biases {
            (" + (T)bias1(H * 2 + h)", " + (T)bias2(H * 2 + h)")
        } else {
            ("", "")
        };
        let [reset, update, ..] = gates;
        let body = filled!("gates/gru.cu", reset, update, of_input, of_recurrent);
        (body, vec!["hidden", "workspace"])
    };
    let name = if is_lstm { "lstm_cell" } else { "gru_cell" };
    Generated::each(name, inputs, outputs, over, body)
}

/// `workspace (, grad of hidden) (, grad of cell), state, cell -> grad_state, grad_gates`, of the gradients that there are.
pub(super) fn lstm_gradient([of_hidden, of_cell]: [bool; 2]) -> Generated {
    let mut inputs = vec!["workspace"];
    inputs.extend(of_hidden.then_some("grad_hidden"));
    inputs.extend(of_cell.then_some("grad_cell"));
    inputs.extend(["state", "cell"]);
    let hidden = if of_hidden {
        "(T)grad_hidden(n, h)"
    } else {
        "(T)0"
    };
    let cell = if of_cell {
        "(T)grad_cell(n, h)"
    } else {
        "(T)0"
    };
    let body = filled!("gates/lstm_gradient.cu", hidden, cell);
    let over = inputs.len();
    let outputs = ["grad_state", "grad_gates"];
    Generated::each("lstm_cell", inputs, outputs, over, body)
}

/// `workspace, grad -> grad_state, grad_input, grad_recurrent`.
pub(super) fn gru_gradient() -> Generated {
    let body = include_str!("gates/gru_gradient.cu");
    let outputs = ["grad_state", "grad_input", "grad_recurrent"];
    Generated::each("gru_cell", ["workspace", "grad"], outputs, 1, body)
}

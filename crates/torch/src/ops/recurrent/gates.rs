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
    let gates: Vec<String> = (0..4).map(|number| gate(number, with_biases)).collect();
    let over = inputs.len();
    let start =
        "const I n = i[0], h = i[1], H = (I)hidden.size(1); const T before = (T)state(n, h);";
    let (body, outputs) = if is_lstm {
        let body = format!(
            "{start}
    const T in = sigmoid({}), forget = sigmoid({}), candidate = tanh({}), out = sigmoid({});
    const T now = forget * before + in * candidate;
    cell.set(now, n, h);
    hidden.set(out * tanh(now), n, h);
    workspace.set(in, n, h);
    workspace.set(forget, n, H + h);
    workspace.set(candidate, n, H * 2 + h);
    workspace.set(out, n, H * 3 + h);",
            gates[0], gates[1], gates[2], gates[3]
        );
        (body, vec!["hidden", "workspace", "cell"])
    } else {
        let (of_input, of_recurrent) = if with_biases {
            (" + (T)bias1(H * 2 + h)", " + (T)bias2(H * 2 + h)")
        } else {
            ("", "")
        };
        let body = format!(
            "{start}
    const T reset = sigmoid({}), update = sigmoid({});
    const T old = (T)recurrent(n, H * 2 + h){of_recurrent};
    const T candidate = tanh((T)input(n, H * 2 + h){of_input} + reset * old);
    hidden.set(candidate + update * (before - candidate), n, h);
    workspace.set(reset, n, h);
    workspace.set(update, n, H + h);
    workspace.set(candidate, n, H * 2 + h);
    workspace.set(before, n, H * 3 + h);
    workspace.set(old, n, H * 4 + h);",
            gates[0], gates[1]
        );
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

//! What a layer computes in one direction, over all time steps in one kernel.
//!
//! A group of threads takes one sample, or a few where the batch is larger than the card: each weight is then read once
//! for all of them. In a step a warp takes a hidden unit: it multiplies the unit's rows of weights with the hidden state
//! before, and computes the unit's gates and states. See Note [Kernels of recurrent networks].

use super::CellKind;

/// What differs between the kernels of networks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer {
    pub(super) cell: CellKind,
    pub(super) has_biases: bool,
    pub(super) is_projected: bool,
}

/// Which samples are a row's, and which part of the work is a thread's.
const SHARES: &str = "
    const int S = 4;
    const i64 share = (batch + blocks - 1) / blocks, most = share < S ? share : S, start = row * most;
    if (start >= batch) return;
    const I first = (I)start, at = lane % WARP, warp = lane / WARP, warps = LANES / WARP;
    const int count = (int)(batch - start < most ? batch - start : most);
";

/// `out[t, b] = w_hr hidden[t, b]`.
const PROJECTION: &str = include_str!("formulas/projection.cu");

/// The products of the unit's rows of `w_ih` with the layer's input, where no product of matrices made them.
const INPUT: &str = include_str!("formulas/input.cu");

/// The same from `products`.
const PRODUCTS: &str = "
#pragma unroll
    for (int s = 0; s < S; ++s) if (s < count)
#pragma unroll
        for (int g = 0; g < GATES; ++g) in[s][g] = products(t, first + s, g * units + u);
";

impl Layer {
    /// The forward pass. In training the products of the input and `w_ih` are there, and gates take their place.
    ///
    /// Inputs: `products` (in inference `rows`, which is as large, `x` and `w_ih`), `w_hh`, `hx`, then an LSTM's
    /// `cx`, the biases `b_ih` and `b_hh`, `w_hr`. Outputs: `out`, `hn`, then an LSTM's `cells` and `cn`, in training
    /// an LSTM's or a GRU's `gates` and a GRU's `beside`, and `hidden` where that is projected.
    pub(super) fn forward(self, is_training: bool) -> String {
        let gates = self.cell.gates();
        let (input, inputs_length) = if is_training {
            (PRODUCTS, "")
        } else {
            (INPUT, ", inputs = (I)x.size(2)")
        };
        let biases = if self.has_biases {
            "in[s][g] += b_ih(g * units + u); re[s][g] += b_hh(g * units + u);"
        } else {
            ""
        };
        let (update, keep) = self.update();
        let keep = if is_training { keep } else { "" };
        let (store, projection) = if self.is_projected {
            ("hidden.set(h, t, b, u);", PROJECTION)
        } else {
            ("out.set(h, t, b, u); if (is_last) hn.set(h, 0, b, u);", "")
        };
        filled!(
            "formulas/forward.cu",
            gates,
            inputs_length,
            SHARES,
            input,
            biases,
            update,
            keep,
            store,
            projection
        )
    }

    /// A unit's hidden state `h` from the parts `in` and `re` of its gates that come from the input and from the
    /// state before, and what of it the backward pass reads.
    fn update(self) -> (&'static str, &'static str) {
        match self.cell {
            CellKind::Lstm => (
                "const T i = sigmoid(in[s][0] + re[s][0]), f = sigmoid(in[s][1] + re[s][1]);
                    const T g = tanh(in[s][2] + re[s][2]), o = sigmoid(in[s][3] + re[s][3]);
                    const T c = f * (step == 0 ? cx(0, b, u) : cells(before, b, u)) + i * g, h = o * tanh(c);
                    cells.set(c, t, b, u);
                    if (is_last) cn.set(c, 0, b, u);",
                "gates.set(i, t, b, u); gates.set(f, t, b, units + u);
                    gates.set(g, t, b, 2 * units + u); gates.set(o, t, b, 3 * units + u);",
            ),
            CellKind::Gru => (
                "const T r = sigmoid(in[s][0] + re[s][0]), z = sigmoid(in[s][1] + re[s][1]);
                    const T fresh = tanh(in[s][2] + r * re[s][2]);
                    const T h = (1 - z) * fresh + z * states(before, b, u);",
                "gates.set(r, t, b, u); gates.set(z, t, b, units + u);
                    gates.set(fresh, t, b, 2 * units + u); beside.set(re[s][2], t, b, 2 * units + u);",
            ),
            CellKind::Tanh => ("const T h = tanh(in[s][0] + re[s][0]);", ""),
            CellKind::Relu => ("const T h = maximum(in[s][0] + re[s][0], (T)0);", ""),
        }
    }

    /// The backward pass, from the last step to the first: gradients of gates take their place, and a GRU's of the
    /// products with the hidden state that of `beside`.
    ///
    /// Inputs: `rows` (as large as the gates), `grad`, `grad_hn`, `w_t` (the transposed `w_hh`), `hx`, `out`, then an
    /// LSTM's `grad_cn`, `cx` and `cells`, `w_hr_t` of a projected one. Outputs: `gates`, `grad_hx`, then an LSTM's
    /// `grad_cx`, a GRU's `beside`, `grad_projected`, the gradients of what was projected to.
    pub(super) fn backward(self) -> String {
        let gates = self.cell.gates();
        // What was multiplied with the hidden state, and what of a hidden state's gradient did not go through gates.
        let (multiplied, around) = match self.cell {
            CellKind::Gru => ("beside", "grad_hx(0, b, u)"),
            CellKind::Lstm | CellKind::Tanh | CellKind::Relu => ("gates", "(T)0"),
        };
        let through_gates = |to: &str| sums("w_t", multiplied, "after", to);
        let arrived = format!("+ grad(t, b, u) + (is_last ? grad_hn(0, b, u) : {around})");
        let own = self.gradient();
        let (projected, of_hidden) = if self.is_projected {
            let recurrent =
                through_gates(&format!("grad_projected.set(total {arrived}, t, b, u);"));
            let text = format!(
                "for (I u = warp; u < outputs; u += warps) {{
            const I length = is_last ? 0 : GATES * units;
            {recurrent}
        }}
        row_sync();"
            );
            let of_hidden = format!("const T dh = total;\n{own}");
            (text, sums("w_hr_t", "grad_projected", "t", &of_hidden))
        } else {
            let of_hidden = format!("const T dh = total {arrived};\n{own}");
            (String::new(), through_gates(&of_hidden))
        };
        let length = if self.is_projected {
            "outputs"
        } else {
            "is_last ? 0 : GATES * units"
        };
        let of_first = sums(
            "w_t",
            multiplied,
            "after",
            &format!("grad_hx.set(total + {around}, 0, b, u);"),
        );
        filled!(
            "formulas/backward.cu",
            gates,
            SHARES,
            projected,
            length,
            of_hidden,
            of_first
        )
    }

    /// The gradients of a unit's gates from that of its hidden state, `dh`.
    fn gradient(self) -> &'static str {
        match self.cell {
            CellKind::Lstm => {
                "const T i = gates(t, b, u), f = gates(t, b, units + u);
                    const T g = gates(t, b, 2 * units + u), o = gates(t, b, 3 * units + u);
                    const T tanh_c = tanh((T)cells(t, b, u)), c = step == 0 ? cx(0, b, u) : cells(before, b, u);
                    const T dc = (is_last ? grad_cn(0, b, u) : grad_cx(0, b, u)) + dh * o * (1 - tanh_c * tanh_c);
                    gates.set(dc * g * i * (1 - i), t, b, u);
                    gates.set(dc * c * f * (1 - f), t, b, units + u);
                    gates.set(dc * i * (1 - g * g), t, b, 2 * units + u);
                    gates.set(dh * tanh_c * o * (1 - o), t, b, 3 * units + u);
                    grad_cx.set(dc * f, 0, b, u);"
            }
            CellKind::Gru => {
                "const T r = gates(t, b, u), z = gates(t, b, units + u), fresh = gates(t, b, 2 * units + u);
                    const T product = beside(t, b, 2 * units + u), of_fresh = dh * (1 - z) * (1 - fresh * fresh);
                    const T of_r = of_fresh * product * r * (1 - r);
                    const T of_z = dh * (states(before, b, u) - fresh) * z * (1 - z);
                    gates.set(of_r, t, b, u); gates.set(of_z, t, b, units + u);
                    gates.set(of_fresh, t, b, 2 * units + u);
                    beside.set(of_r, t, b, u); beside.set(of_z, t, b, units + u);
                    beside.set(of_fresh * r, t, b, 2 * units + u);
                    grad_hx.set(dh * z, 0, b, u);"
            }
            CellKind::Tanh => {
                "const T h = out(t, b, u);
                    gates.set(dh * (1 - h * h), t, b, u);"
            }
            CellKind::Relu => "gates.set(out(t, b, u) > 0 ? dh : (T)0, t, b, u);",
        }
    }
}

/// A warp's product of row `u` of a matrix with each sample's vector at a time, both `length` long: `then` takes the
/// `total` of sample `b`.
fn sums(matrix: &str, vectors: &str, time: &str, then: &str) -> String {
    filled!("formulas/sums.cu", matrix, vectors, time, then)
}

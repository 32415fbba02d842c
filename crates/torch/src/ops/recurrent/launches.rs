//! The launches of a recurrent network, on memory that its passes hold anyway ([`super::space`]).
//!
//! See Note [Kernels of recurrent networks].

use std::rc::Rc;

use super::CellKind;
use super::run::Job;
use super::space::{
    CellReserve, Parameters, Reserve, Space, at_each_step, matrix, part, seen, transposed,
};
use crate::eager::Storage;
use crate::ops::prelude::*;
use crate::program::Binary;

/// Operands by their names in a formula.
type Named<'a> = Vec<(&'static str, &'a TensorBody)>;

/// What a network reads and writes in its forward pass. Tensors over time have steps before samples and are dense.
pub(super) struct Forward<'a> {
    pub(super) x: &'a TensorBody,
    pub(super) hidden: &'a [Tensor],
    pub(super) weights: &'a [Tensor],
    pub(super) y: &'a TensorBody,
    pub(super) last: &'a [TensorBody],
    pub(super) workspace: &'a Rc<Storage>,
    pub(super) reserve: Option<&'a Rc<Storage>>,
}

/// What its backward pass reads.
pub(super) struct BackwardInputs<'a> {
    pub(super) x: &'a TensorBody,
    pub(super) y: &'a TensorBody,
    pub(super) hidden: &'a [&'a Tensor],
    pub(super) weights: &'a [&'a Tensor],
    pub(super) workspace: &'a Rc<Storage>,
    /// There is none after a forward pass that was not in training, for which cuDNN has no backward pass.
    pub(super) reserve: Option<&'a Rc<Storage>>,
}

/// Gradients of a network's results, and where those of its input and states go.
pub(super) struct Gradients<'a> {
    pub(super) of_y: &'a TensorBody,
    pub(super) of_last: &'a [Tensor],
    pub(super) grad_x: &'a TensorBody,
    pub(super) grad_states: &'a [&'a Tensor],
}

impl Eager {
    /// Launches a layer's formula over all time steps in one direction.
    fn launch_layer(
        &mut self,
        job: &Job,
        (body, direction): (String, u64),
        inputs: &Named<'_>,
        outputs: &Named<'_>,
    ) {
        let (read, inputs): (Vec<&'static str>, Vec<_>) = inputs.iter().copied().unzip();
        let (written, outputs): (Vec<&'static str>, Vec<_>) = outputs.iter().copied().unzip();
        let form = Form::RowsAndTables {
            dims: vec![0, 2],
            tables: [&read[..], &written].concat(),
            body: body.into(),
        };
        let blocks = i64::try_from(self.capability.multiprocessors).unwrap_or(i64::MAX);
        let kernel = Generated::of(Operator::name(&job.recurrent), read, written, form)
            .with("backwards", direction == 1)
            .with("blocks", blocks.max(1));
        self.launch(kernel, &inputs, &outputs);
    }

    fn launch_product(&mut self, a: &TensorBody, b: &TensorBody, out: &TensorBody) {
        self.launch(Kernel::MatMul, &[a, b], &[out]);
    }

    /// Drops elements of what a layer reads, or of its gradient: the same ones for the same layer and key.
    fn launch_dropout(
        &mut self,
        job: &Job,
        key: &TensorBody,
        layer: u64,
        x: &TensorBody,
        out: &TensorBody,
    ) {
        let body = "result = uniform((u64)key, index + start) < p ? (T)0 : (T)(x * scale);";
        let p = job.recurrent.dropout;
        let start = x.numel() * Extent::fixed(layer);
        let kernel = Generated::map("dropout between layers", ["x", "key"], body)
            .with("p", p)
            .with("scale", 1.0 / (1.0 - p))
            .with("start", start);
        self.launch(kernel, &[x, key], &[out]);
    }

    /// What a layer reads, from the layer before.
    fn launch_layer_input(
        &mut self,
        job: &Job,
        reserve: &Reserve,
        layer: u64,
        space: &mut Space,
    ) -> TensorBody {
        let before = &reserve.between[usize::try_from(layer - 1).unwrap_or(usize::MAX)];
        if !job.drops() {
            return seen(before, job.over_time(job.width()));
        }
        let dropped = space.take(&before.shape);
        self.launch_dropout(job, &reserve.key, layer, before, &dropped);
        dropped
    }

    /// The forward pass.
    pub(super) fn launch_recurrent(&mut self, job: &Job, pass: &Forward<'_>) {
        let dtype = pass.x.dtype;
        let weights: Vec<&TensorBody> = pass.weights.iter().map(|weight| &**weight).collect();
        let reserve = pass.reserve.map(|storage| job.reserve(storage, dtype));
        if let Some(reserve) = reserve.as_ref().filter(|_| job.drops()) {
            let kernel = Generated::map("a key of dropout", [], "result = (i64)seed;");
            let kernel = kernel.with("seed", Number::Seed);
            self.launch(kernel, &[], &[&reserve.key]);
        }
        let mut space = Space::of(pass.workspace, dtype);
        let layers = job.network.layers;
        // In inference layers write to `y` and to a buffer by turns, the last one to `y`.
        let turn =
            (reserve.is_none() && layers > 1).then(|| space.take(&job.over_time(job.width())));
        let mut x = seen(pass.x, job.over_time(pass.x.shape[2]));
        for layer in 0..layers {
            let y = match (&reserve, &turn) {
                (Some(reserve), _) if layer + 1 < layers => {
                    &reserve.between[usize::try_from(layer).unwrap_or(usize::MAX)]
                }
                (None, Some(turn)) if (layers - layer).is_multiple_of(2) => turn,
                _ => pass.y,
            };
            for (direction, cell) in job.cells(layer) {
                let own = job.parameters(&weights, cell);
                let kept = reserve.as_ref().map(|reserve| &reserve.cells[cell]);
                let out = job.direction(y, direction);
                self.launch_cell(job, pass, &own, kept, [&x, &out], (direction, cell), &space);
            }
            if layer + 1 < layers {
                x = match &reserve {
                    Some(reserve) => {
                        self.launch_layer_input(job, reserve, layer + 1, &mut space.clone())
                    }
                    None => seen(y, job.over_time(job.width())),
                };
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the parts of a pass")]
    fn launch_cell(
        &mut self,
        job: &Job,
        pass: &Forward<'_>,
        own: &Parameters<'_>,
        kept: Option<&CellReserve>,
        [x, out]: [&TensorBody; 2],
        (direction, cell): (u64, usize),
        space: &Space,
    ) {
        let at = Extent::fixed(cell as u64);
        let state = |of: &TensorBody| part(of, at, Extent::ONE);
        let (_, gates) = job.lengths();
        let mut inputs: Named<'_> = Vec::new();
        // As large as the gates: one element of each sample at a step, seen again and again.
        let rows = {
            let mut strides = x.strides.clone();
            strides[2] = Extent::ZERO;
            x.alias(job.over_time(gates).as_slice(), strides)
        };
        match kept {
            Some(kept) => {
                self.launch_product(&matrix(x), &transposed(own.w_ih), &matrix(&kept.gates));
                inputs.push(("products", &kept.gates));
            }
            None => inputs.extend([("rows", &rows), ("x", x), ("w_ih", own.w_ih)]),
        }
        let (hx, hn) = (state(&pass.hidden[0]), state(&pass.last[0]));
        inputs.extend([("w_hh", own.w_hh), ("hx", &hx)]);
        let mut outputs: Named<'_> = vec![("out", out), ("hn", &hn)];
        let of_cells = pass.hidden.get(1).zip(pass.last.get(1));
        let of_cells = of_cells.map(|(cx, cn)| {
            let cn = state(cn);
            // In inference only the last cell states are kept.
            let over_time = at_each_step(&seen(&cn, [cn.shape[1], cn.shape[2]]), job.time);
            (state(cx), cn, over_time)
        });
        if let Some((cx, cn, running)) = &of_cells {
            inputs.push(("cx", cx));
            let cells = kept.and_then(|kept| kept.beside.as_ref());
            outputs.extend([("cells", cells.unwrap_or(running)), ("cn", cn)]);
        }
        if let Some([b_ih, b_hh]) = own.biases {
            inputs.extend([("b_ih", b_ih), ("b_hh", b_hh)]);
        }
        let is_plain = job.network.cell.gates() == 1;
        if let Some(kept) = kept.filter(|_| !is_plain) {
            outputs.push(("gates", &kept.gates));
            if let (None, Some(beside)) = (&of_cells, &kept.beside) {
                outputs.push(("beside", beside));
            }
        }
        let units = Job::length(job.network.hidden);
        let running = at_each_step(&space.clone().take(&[job.batch, units]), job.time);
        if let Some(w_hr) = own.w_hr {
            inputs.push(("w_hr", w_hr));
            let hidden = kept.and_then(|kept| kept.projected.as_ref());
            outputs.push(("hidden", hidden.map_or(&running, |[hidden, _]| hidden)));
        }
        let body = job.layer().forward(kept.is_some());
        self.launch_layer(job, (body, direction), &inputs, &outputs);
    }

    /// The gradients of a network's input and initial states; those of its gates stay in the reserve space.
    pub(super) fn launch_recurrent_grads(
        &mut self,
        job: &Job,
        past: &BackwardInputs<'_>,
        gradients: &Gradients<'_>,
    ) {
        let Some(reserve) = past.reserve else {
            let kernel =
                Kernel::MemoryOnly("the backward pass of a recurrent network in evaluation");
            return self.launch(kernel, &[past.x, gradients.of_y], &[gradients.grad_x]);
        };
        let dtype = past.x.dtype;
        let weights: Vec<&TensorBody> = past.weights.iter().map(|weight| &***weight).collect();
        let reserve = job.reserve(reserve, dtype);
        let mut space = Space::of(past.workspace, dtype);
        let (outputs, gates) = job.lengths();
        let w_t = space.take(&[outputs, gates]);
        let w_hr_t = space.take(&[Job::length(job.network.hidden), outputs]);
        let layers = job.network.layers;
        let between = (layers > 1).then(|| space.take(&job.over_time(job.width())));
        for layer in (0..layers).rev() {
            let inner = usize::try_from(layer).unwrap_or(usize::MAX);
            let (y, grad) = match (reserve.between.get(inner), &between) {
                (Some(y), Some(grad)) => (y, grad),
                _ => (past.y, gradients.of_y),
            };
            for (direction, cell) in job.cells(layer) {
                let own = job.parameters(&weights, cell);
                self.launch(Kernel::Copy, &[&transposed(own.w_hh)], &[&w_t]);
                if let Some(w_hr) = own.w_hr {
                    self.launch(Kernel::Copy, &[&transposed(w_hr)], &[&w_hr_t]);
                }
                let (out, grad) = (job.direction(y, direction), job.direction(grad, direction));
                let kept = &reserve.cells[cell];
                let parts = [&out, &grad, &w_t, &w_hr_t];
                self.launch_cell_grads(job, past, gradients, kept, parts, (direction, cell));
            }
            let grad_x = match &between {
                Some(grad) if layer > 0 => grad,
                _ => gradients.grad_x,
            };
            for (direction, cell) in job.cells(layer) {
                let own = job.parameters(&weights, cell);
                let of_gates = matrix(&reserve.cells[cell].gates);
                if direction == 0 {
                    self.launch_product(&of_gates, own.w_ih, &matrix(grad_x));
                } else {
                    let more = space.clone().take(&grad_x.shape);
                    self.launch_product(&of_gates, own.w_ih, &matrix(&more));
                    self.launch(Kernel::Binary(Binary::Add), &[grad_x, &more], &[grad_x]);
                }
            }
            if layer > 0 && job.drops() {
                self.launch_dropout(job, &reserve.key, layer, grad_x, grad_x);
            }
        }
    }

    #[expect(clippy::similar_names, reason = "they are PyTorch's names")]
    fn launch_cell_grads(
        &mut self,
        job: &Job,
        past: &BackwardInputs<'_>,
        gradients: &Gradients<'_>,
        kept: &CellReserve,
        [out, grad, w_t, w_hr_t]: [&TensorBody; 4],
        (direction, cell): (u64, usize),
    ) {
        let at = Extent::fixed(cell as u64);
        let state = |of: &TensorBody| part(of, at, Extent::ONE);
        let grad_hn = state(&gradients.of_last[0]);
        let (hx, grad_hx) = (state(past.hidden[0]), state(gradients.grad_states[0]));
        let mut inputs: Named<'_> = vec![
            ("rows", &kept.gates),
            ("grad", grad),
            ("grad_hn", &grad_hn),
            ("w_t", w_t),
            ("hx", &hx),
            ("out", out),
        ];
        let mut outputs: Named<'_> = vec![("gates", &kept.gates), ("grad_hx", &grad_hx)];
        let of_cells = past.hidden.get(1).map(|cx| {
            let grad_cx = state(gradients.grad_states[1]);
            (state(cx), state(&gradients.of_last[1]), grad_cx)
        });
        match (&of_cells, &kept.beside) {
            (Some((cx, grad_cn, grad_cx)), Some(cells)) => {
                inputs.extend([("grad_cn", grad_cn), ("cx", cx), ("cells", cells)]);
                outputs.push(("grad_cx", grad_cx));
            }
            (None, Some(products)) => outputs.push(("beside", products)),
            (_, None) => {}
        }
        if let Some([_, grad_projected]) = &kept.projected {
            inputs.push(("w_hr_t", w_hr_t));
            outputs.push(("grad_projected", grad_projected));
        }
        let body = job.layer().backward();
        self.launch_layer(job, (body, direction), &inputs, &outputs);
    }

    /// The gradients of the parameters, from those of the gates.
    pub(super) fn launch_recurrent_weight_grads(
        &mut self,
        job: &Job,
        past: &BackwardInputs<'_>,
        grad_weights: &[TensorBody],
    ) {
        let Some(reserve) = past.reserve else {
            return;
        };
        let dtype = past.x.dtype;
        let grad_weights: Vec<&TensorBody> = grad_weights.iter().collect();
        let reserve = job.reserve(reserve, dtype);
        let (outputs, _) = job.lengths();
        for layer in 0..job.network.layers {
            let mut space = Space::of(past.workspace, dtype);
            let x = match layer {
                0 => seen(past.x, job.over_time(past.x.shape[2])),
                _ => self.launch_layer_input(job, &reserve, layer, &mut space),
            };
            let inner = usize::try_from(layer).unwrap_or(usize::MAX);
            let y = reserve.between.get(inner).unwrap_or(past.y);
            let before = space.take(&job.over_time(outputs));
            for (direction, cell) in job.cells(layer) {
                let (kept, own) = (&reserve.cells[cell], job.parameters(&grad_weights, cell));
                let hx = part(past.hidden[0], Extent::fixed(cell as u64), Extent::ONE);
                self.launch_states_before(
                    job,
                    &job.direction(y, direction),
                    &hx,
                    &before,
                    direction,
                );
                // A GRU's gates have a gradient for each of their two parts.
                let is_gru = job.network.cell == CellKind::Gru;
                let of_products = kept.beside.as_ref().filter(|_| is_gru);
                let (of_gates, of_products) = (
                    matrix(&kept.gates),
                    matrix(of_products.unwrap_or(&kept.gates)),
                );
                self.launch_product(&transposed(&of_gates), &matrix(&x), own.w_ih);
                self.launch_product(&transposed(&of_products), &matrix(&before), own.w_hh);
                for (bias, from) in own
                    .biases
                    .into_iter()
                    .flatten()
                    .zip([&of_gates, &of_products])
                {
                    self.launch(Kernel::Sum { scale: 1.0 }, &[from], &[bias]);
                }
                if let (Some(w_hr), Some([hidden, grad])) = (own.w_hr, &kept.projected) {
                    self.launch_product(&transposed(&matrix(grad)), &matrix(hidden), w_hr);
                }
            }
        }
    }

    /// The hidden state before each step.
    fn launch_states_before(
        &mut self,
        job: &Job,
        out: &TensorBody,
        hx: &TensorBody,
        before: &TensorBody,
        direction: u64,
    ) {
        let most = job.time.checked_sub(Extent::ONE).unwrap_or(Extent::ZERO);
        // Where the first state goes, and from where to where the others.
        let (first, from, to) = match direction {
            0 => (Extent::ZERO, Extent::ZERO, Extent::ONE),
            _ => (most, Extent::ONE, Extent::ZERO),
        };
        self.launch(Kernel::Copy, &[hx], &[&part(before, first, Extent::ONE)]);
        if most != Extent::ZERO {
            let (from, to) = (part(out, from, most), part(before, to, most));
            self.launch(Kernel::Copy, &[&from], &[&to]);
        }
    }
}

//! Kernels of look-ups and of what writes to looked-up places.

use std::fmt::Write as _;

use crate::ops::elementwise::expanded;
use crate::ops::placing::{self, Combine, Places, Written};
use crate::ops::prelude::*;

/// How formulas call positions.
const POSITIONS: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];

/// More positions than formulas have names for: no model has been seen that looks up in nine dimensions at once.
const TOO_MANY: Kernel = Kernel::MemoryOnly("index by more than eight tensors");

/// Fewer lines than this do not keep a card busy with a thread for each.
const FEW_LINES: u64 = 4096;

/// The coordinates of a looked-up element: for each dimension of the tensor that is looked up in, from where it follows
/// in a result of common dimensions and those kept.
struct Layout {
    /// Dimensions that are looked up in, in order.
    marked: Vec<usize>,
    /// The others.
    kept: Vec<usize>,
    /// Where in the result the common dimensions begin.
    at: usize,
    /// How many common dimensions there are.
    common: usize,
}

impl Layout {
    fn of(marked: &[bool], rank: usize, common: usize) -> Layout {
        let is_marked = |d: &usize| marked.get(*d).copied().unwrap_or(false);
        let (marked, kept): (Vec<usize>, Vec<usize>) = (0..rank).partition(is_marked);
        let at = match (marked.first(), marked.last()) {
            (Some(first), Some(last)) if last - first + 1 == marked.len() => *first,
            _ => 0,
        };
        Layout {
            marked,
            kept,
            at,
            common,
        }
    }

    /// The dimension of the result in which a kept one is.
    fn place(&self, kept: usize) -> usize {
        if kept < self.at {
            kept
        } else {
            kept + self.common
        }
    }

    /// Assigns to `at`, the coordinates in `tensor`, those that follow from coordinates `i` of the result. `inside` is what
    /// an index is turned into.
    fn coordinates(&self, tensor: &str, inside: &str) -> String {
        let rank = (self.marked.len() + self.kept.len()).max(1);
        let places: Vec<String> = (self.at..self.at + self.common)
            .map(|d| format!("i[{d}]"))
            .collect();
        let mut text = format!("I at[{rank}] = {{}}; ");
        for (number, d) in self.marked.iter().enumerate() {
            let (position, common) = (POSITIONS[number], places.join(", "));
            let _ = write!(
                text,
                "at[{d}] = (I){inside}({position}({common}), {tensor}.size({d})); "
            );
        }
        for (number, d) in self.kept.iter().enumerate() {
            let _ = write!(text, "at[{d}] = i[{}]; ", self.place(number));
        }
        text
    }

    /// What is false where an index is outside.
    fn is_inside(&self) -> String {
        let inside = self.marked.iter().map(|d| format!("at[{d}] >= 0"));
        let all: Vec<String> = inside.collect();
        if all.is_empty() {
            "true".into()
        } else {
            all.join(" && ")
        }
    }
}

impl Eager {
    /// `result = x[positions]`; every index is wrapped, or what is outside is zero: the gradient of what was written nowhere.
    pub fn look_up(
        &mut self,
        or_zero: bool,
        x: &TensorBody,
        (marked, positions): (&[bool], &[Tensor]),
        result: &TensorBody,
    ) {
        if positions.len() > POSITIONS.len() {
            return self.launch(TOO_MANY, &[x], &[result]);
        }
        let (layout, seen) = seen(marked, x, positions);
        let body = if or_zero {
            format!(
                "{}if ({}) result.set_at(x.at(at), i); else result.set_at(0, i);",
                layout.coordinates("x", "inside"),
                layout.is_inside()
            )
        } else {
            let coordinates = layout.coordinates("x", "wrapped");
            format!("{coordinates}result.set_at(x.at(at), i);")
        };
        let (inputs, names) = operands(x, "x", &seen);
        let form = Form::each(names.len(), body);
        let generated = Generated::of("index", names, ["result"], form);
        self.launch(generated, &inputs, &[result]);
    }

    /// `into[positions] = values`, or a number. Indices outside are left out. Of equal ones any may stay, as in PyTorch.
    pub fn overwrite_at(
        &mut self,
        into: &TensorBody,
        marked: &[bool],
        positions: &[Tensor],
        values: Result<&TensorBody, f64>,
    ) {
        if positions.len() > POSITIONS.len() {
            return self.launch(TOO_MANY, &[], &[into]);
        }
        let (layout, seen) = seen(marked, into, positions);
        let common = seen.first().map(|p| p.shape.to_vec()).unwrap_or_default();
        let place: Vec<Extent> = {
            let kept = |d: &usize| into.shape[*d];
            let before = layout.kept[..layout.at].iter().map(kept);
            let behind = layout.kept[layout.at..].iter().map(kept);
            before.chain(common).chain(behind).collect()
        };
        let spread = match values {
            Ok(values) => expanded(values, &place),
            // Its elements are not read: it says which places there are.
            Err(_) => into.alias(place.clone(), vec![Extent::ZERO; place.len()]),
        };
        let value = if values.is_ok() {
            "values.at(i)"
        } else {
            "value"
        };
        let body = format!(
            "{}if ({}) into.set_at({value}, at);",
            layout.coordinates("into", "inside"),
            layout.is_inside()
        );
        let (inputs, names) = operands(&spread, "values", &seen);
        let form = Form::each(0, body);
        let mut generated = Generated::of("index_put_", names, ["into"], form);
        if let Err(number) = values {
            generated = generated.with("value", number);
        }
        self.launch(generated, &inputs, &[into]);
    }

    /// Writes which row each index means, counted through the marked dimensions of `into`, to `linear`.
    pub(super) fn linear_positions(
        &mut self,
        into: &TensorBody,
        marked: &[bool],
        positions: &[Tensor],
        linear: &TensorBody,
    ) {
        if positions.len() > POSITIONS.len() {
            return self.launch(TOO_MANY, &[into], &[linear]);
        }
        let (layout, seen) = seen(marked, into, positions);
        let mut body = String::from("i64 key = 0; bool is_inside = true;\n");
        for (number, d) in layout.marked.iter().enumerate() {
            let position = POSITIONS[number];
            let _ = writeln!(
                body,
                "    {{ const i64 at = inside({position}.at(i), into.size({d})); is_inside = is_inside && at >= 0; key = key * into.size({d}) + at; }}"
            );
        }
        body.push_str("    linear.set_at(is_inside ? key : NOWHERE, i);");
        let common = seen.first().map(|p| p.shape.to_vec()).unwrap_or_default();
        let strides = contiguous_strides(&common);
        let linear = linear.alias(common, strides);
        let (inputs, names) = operands(into, "into", &seen);
        let form = Form::each(names.len(), body);
        let generated = Generated::of("index_put_", names, ["linear"], form);
        self.launch(generated, &inputs, &[&linear]);
    }

    /// Adds `values`, in row-major order, to the rows that [`Eager::linear_positions`] found.
    pub(super) fn add_to_rows(
        &mut self,
        into: &TensorBody,
        marked: &[bool],
        linear: &TensorBody,
        values: &TensorBody,
    ) {
        let layout = Layout::of(marked, into.shape.len(), 1);
        let count = linear.numel();
        let mut shape: Vec<Extent> = layout.kept.iter().map(|d| into.shape[*d]).collect();
        shape.insert(layout.at, count);
        let strides = contiguous_strides(&shape);
        let values = values.alias(shape, strides);
        let linear = linear.alias(vec![count], vec![Extent::ONE]);
        let kept = layout.kept.iter().enumerate();
        let places = Places {
            along: 0,
            values_along: layout.at,
            rows: layout.marked.clone(),
            own: Vec::new(),
            shared: kept
                .map(|(number, d)| (*d, layout.place(number), format!("into.size({d})")))
                .collect(),
            ranks: [1, into.shape.len(), values.shape.len()],
            flat: false,
        };
        let written = Written::Values;
        let generated = placing::by_owners("index_put_", &places, Combine::Add, written, NONE);
        self.launch(generated, &[&values, &linear], &[into]);
    }

    /// `into[index] = combine(into[index], values)` along a dimension of tensors with as many dimensions.
    pub fn scatter_along(
        &mut self,
        into: &TensorBody,
        dim: usize,
        index: &TensorBody,
        (combine, values): (Combine, Result<&TensorBody, f64>),
    ) {
        let line = |tensor: &TensorBody| match tensor.shape.len() {
            0 => tensor.alias(vec![Extent::ONE], vec![Extent::ONE]),
            _ => tensor.same(),
        };
        let (into, index) = (line(into), line(index));
        let shared: Vec<bool> = index
            .shape
            .iter()
            .zip(index.strides.iter())
            .map(|(length, stride)| *length == Extent::ONE || *stride == Extent::ZERO)
            .collect();
        let others = (0..shared.len()).filter(|d| *d != dim);
        let is_spread = others
            .clone()
            .any(|d| shared[d] && index.shape[d] != Extent::ONE);
        let lines: Vec<Extent> = others
            .filter(|d| !shared[*d])
            .map(|d| index.shape[d])
            .collect();
        let are_few = numel(&lines).as_fixed().is_some_and(|n| n < FEW_LINES);
        let of = (&shared[..], is_spread || are_few);
        let kernel = placing::scatter("scatter", dim, of, (combine, Written::of(values)), NONE);
        let values = values.map(line);
        let inputs: Vec<&TensorBody> = values.iter().chain([&index]).collect();
        self.launch(kernel, &inputs, &[&into]);
    }

    /// `x[.., index, ..]` along a dimension.
    pub fn select_along(
        &mut self,
        x: &TensorBody,
        dim: usize,
        index: &TensorBody,
        result: &TensorBody,
    ) {
        if x.shape.is_empty() {
            return self.launch(Kernel::Copy, &[x], &[result]);
        }
        let index = across(index, &result.shape, dim);
        let generated = placing::gather(x.shape.len(), dim);
        self.launch(generated, &[x, &index], &[result]);
    }

    /// `into[.., index, ..] = combine(into[.., index, ..], values)` along a dimension.
    pub fn write_along(
        &mut self,
        into: &TensorBody,
        dim: usize,
        index: &TensorBody,
        (combine, values): (Combine, Result<&TensorBody, f64>),
    ) {
        let mut shape = into.shape.to_vec();
        if let Some(length) = shape.get_mut(dim) {
            *length = index.shape.first().copied().unwrap_or(Extent::ONE);
        }
        let index = across(index, &shape, dim);
        self.scatter_along(into, dim, &index, (combine, values));
    }
}

/// No index is left out.
const NONE: i64 = i64::MIN;

/// A vector of indices, seen as one of a tensor of this shape along a dimension.
fn across(index: &TensorBody, shape: &[Extent], dim: usize) -> TensorBody {
    let mut strides = vec![Extent::ZERO; shape.len()];
    if let Some(stride) = strides.get_mut(dim) {
        *stride = index.strides.first().copied().unwrap_or(Extent::ZERO);
    }
    index.alias(shape.to_vec(), strides)
}

/// Positions as they broadcast together.
fn seen(marked: &[bool], x: &TensorBody, positions: &[Tensor]) -> (Layout, Vec<TensorBody>) {
    let common = super::run::common_shape(positions);
    let layout = Layout::of(marked, x.shape.len(), common.len());
    let seen = positions
        .iter()
        .take(POSITIONS.len())
        .map(|position| expanded(position, &common));
    (layout, seen.collect())
}

/// A tensor and positions, with their names.
fn operands<'a>(
    first: &'a TensorBody,
    name: &'static str,
    positions: &'a [TensorBody],
) -> (Vec<&'a TensorBody>, Vec<&'static str>) {
    let inputs = [first].into_iter().chain(positions).collect();
    let names = [name]
        .into_iter()
        .chain(POSITIONS.into_iter().take(positions.len()))
        .collect();
    (inputs, names)
}

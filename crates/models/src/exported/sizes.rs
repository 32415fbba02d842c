//! Sizes that depend on the batch, and those that depend on the values of tensors.
//!
//! The latter have a symbol of their own, and are known to be at most so many: `nonzero` of 100 elements finds
//! 100 at most. They are taken to be as large as that, which a note in the answer says.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::error::ExportedError;
use super::lower::{Walk, escape, refused, tensor_names};
use super::recorded::types;
use super::symbol::{SymbolError, symbol_of_values};
use super::unknown::tensors_of;
use crate::aten::schema::{
    Arg, Document, ExportedNode, ExportedSize, Expression, Fraction, GraphText, Hint, SymInt,
    TensorMeta,
};
use crate::aten::{Scope, chosen_of};
use crate::graph::ValueId;
use crate::limits::shorten;
use crate::shape::{Extent, numel};

/// So many sizes that depend on values are listed in the note.
const MOST_LISTED: usize = 8;

/// A limit that is as good as none: PyTorch writes the largest number, or that of a batch of a million samples.
const NO_LIMIT: i64 = 1 << 40;

/// So many operations are looked through from a mask back to what it compares.
const MOST_STEPS: usize = 8;

/// PyTorch's number for truth values (`torch._export.serde.schema.ScalarType`).
const BOOL: u32 = 12;

/// Masks that exclude each other: whether elements are equal to one of several numbers, as experts pick tokens.
#[derive(Debug, Clone, Copy)]
struct MaskPartition {
    /// How many elements all of them choose together, at most.
    all: Extent,
    /// How many masks there are.
    masks: u64,
}

/// The nodes of the outer graph by their results, and what tensors are compared with. Read where it is first asked
/// for.
#[derive(Debug)]
pub(super) struct Producers<'a> {
    unread: &'a [ExportedNode<'a>],
    nodes: HashMap<&'a str, &'a ExportedNode<'a>>,
    /// The numbers that each tensor is compared with.
    numbers: HashMap<&'a str, HashSet<i64>>,
}

impl<'a> Producers<'a> {
    pub(super) fn of(graph: &'a GraphText<'a>) -> Producers<'a> {
        Producers {
            unread: &graph.nodes,
            nodes: HashMap::new(),
            numbers: HashMap::new(),
        }
    }

    fn read(&mut self) {
        for node in std::mem::take(&mut self.unread) {
            for name in node.outputs.iter().flat_map(tensor_names) {
                self.nodes.insert(name, node);
            }
            if let (true, Some(Arg::Tensor(of)), Some(Arg::Int(number))) = (
                node.target.ends_with("aten.eq.Scalar"),
                argument(node, "self"),
                argument(node, "other"),
            ) {
                self.numbers.entry(of).or_default().insert(*number);
            }
        }
    }
}

fn argument<'a>(node: &'a ExportedNode<'a>, name: &str) -> Option<&'a Arg<'a>> {
    let found = node.inputs.iter().find(|input| &*input.name == name);
    found.map(|input| &input.arg)
}

/// What stands for a size that depends on values.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Among how many masks that exclude each other elements are taken to be spread evenly.
    evenly: Option<u64>,
    /// The operator that makes it, as people know it.
    operator: String,
    /// The path of the module that runs it.
    module: String,
    extent: Extent,
}

/// The most that sizes which depend on values may be: what the model's code checked.
pub(super) fn limits<'a>(document: &'a Document<'a>) -> HashMap<&'a str, u64> {
    let ranges = document.range_constraints.iter();
    let limit = |most: i64| u64::try_from(most).ok().filter(|_| most < NO_LIMIT);
    ranges
        .filter_map(|(symbol, range)| Some((symbol.as_ref(), limit(range.max_val?.0)?)))
        .collect()
}

/// A sentence for the answer about sizes that depend on values.
pub(super) fn assumption(chosen: &[Chosen], percent: Option<u64>) -> Option<String> {
    if chosen.is_empty() {
        return None;
    }
    let mut text = String::new();
    for (index, size) in chosen.iter().take(MOST_LISTED).enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        let place = match size.module.as_str() {
            "" => String::new(),
            path => format!(" in `{path}`"),
        };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{}{place}: {}", size.operator, size.extent);
        if let Some(masks) = size.evenly {
            let _ = write!(text, ", one of {masks} even parts");
        }
    }
    if let Some(more) = chosen.len().checked_sub(MOST_LISTED + 1) {
        let _ = write!(text, "; and {} more", more + 1);
    }
    let how = match percent {
        None => "as large as they can be for a batch of b, or as even parts".to_owned(),
        Some(percent) => format!("{percent} percent of the most that they can be for a batch of b"),
    };
    Some(format!(
        "some sizes depend on the values in a batch and were assumed to be {how} \
         ({text}); set `chosen_percent` in the request to the percentage that is usual for your data"
    ))
}

impl<'a> Walk<'a> {
    /// The symbolic sizes that a graph defines; its tensors are added as its nodes make them.
    pub(super) fn scope(
        &mut self,
        graph: &'a GraphText<'a>,
        at: &str,
    ) -> Result<Scope<'a>, ExportedError> {
        let mut sizes = HashMap::new();
        let mut pending = HashMap::new();
        let mut numbers = HashMap::new();
        let hint = |expression: &Expression<'_>| expression.hint.and_then(Hint::number);
        for (name, size) in graph.sym_int_values.iter() {
            let read = self.read_size(size);
            match read {
                Ok(extent) => {
                    sizes.insert(name.as_ref(), extent);
                }
                Err(SymbolError::OfValues(_)) => {
                    pending.insert(name.as_ref(), size);
                }
                Err(SymbolError::Refused(problem)) => {
                    let at = format!("{at}/sym_int_values/{}", escape(name));
                    return Err(refused(&at)(problem));
                }
            }
            if let ExportedSize::AsExpr(expression) = size {
                numbers.extend(hint(expression).map(|number| (name.as_ref(), number)));
            }
        }
        for (name, number) in graph.sym_float_values.iter() {
            let number = match number {
                Fraction::AsFloat(number) => Some(*number),
                Fraction::AsExpr(expression) => hint(expression),
            };
            numbers.extend(number.map(|number| (name.as_ref(), number)));
        }
        Ok(Scope {
            tensors: HashMap::new(),
            sizes,
            pending,
            numbers,
            types: types(graph),
        })
    }

    fn read_size(&mut self, size: &ExportedSize<'_>) -> Result<Extent, SymbolError> {
        match size {
            ExportedSize::AsInt(length) => Ok(Extent::signed(*length)),
            ExportedSize::AsExpr(expression) => self.symbols.extent(&expression.expr_str),
        }
    }

    /// A recorded length.
    pub(super) fn extent(&mut self, size: &ExportedSize<'_>) -> Result<Extent, String> {
        self.read_size(size).map_err(|unread| match unread {
            SymbolError::OfValues(symbol) => format!(
                "the size {} depends on the values of a tensor, and nothing says how large it may be; let the \
                 model's code check it, as in torch._check(n <= 512)",
                shorten(&symbol)
            ),
            SymbolError::Refused(problem) => problem,
        })
    }

    /// Makes the sizes known that a node takes and that values decide on.
    pub(super) fn size_arguments(
        &mut self,
        target: &str,
        node: &'a ExportedNode<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<(), String> {
        if scope.pending.is_empty() {
            return Ok(());
        }
        let mut names: Vec<&'a str> = Vec::new();
        for input in &node.inputs {
            match &input.arg {
                Arg::SymInt(SymInt::AsName(name)) => names.push(name),
                Arg::SymInts(list) => names.extend(list.iter().filter_map(|item| match item {
                    SymInt::AsName(name) => Some(name.as_ref()),
                    SymInt::AsInt(_) => None,
                })),
                _ => {}
            }
        }
        names.retain(|name| scope.pending.contains_key(name));
        if target.contains("split") {
            self.share_out(node, &names, scope);
        }
        for name in names {
            let Some(size) = scope.pending.get(name).copied() else {
                continue;
            };
            // A product of several such sizes needs each of them.
            let extent = loop {
                match self.read_size(size) {
                    Err(SymbolError::OfValues(symbol)) if self.limits.contains_key(&*symbol) => {
                        let most = Extent::fixed(self.limits[&*symbol]);
                        let most = chosen_of(most, self.chosen_percent);
                        self.choose(&symbol, "a number read from a tensor", node, most);
                    }
                    _ => break self.extent(size)?,
                }
            };
            scope.pending.remove(name);
            scope.sizes.insert(name, extent);
        }
        Ok(())
    }

    /// Lengths that values decide on and that a tensor is split into: all alike, because how they differ changes
    /// nothing about all of them together.
    fn share_out(&mut self, node: &'a ExportedNode<'a>, names: &[&'a str], scope: &Scope<'a>) {
        let symbols = names
            .iter()
            .filter_map(|name| match scope.pending.get(name)? {
                ExportedSize::AsExpr(expression) => symbol_of_values(&expression.expr_str),
                ExportedSize::AsInt(_) => None,
            });
        let symbols: Vec<&str> = symbols.collect();
        let find = |name: &str| node.inputs.iter().find(|input| &*input.name == name);
        let (Some(tensor), Some(count)) = (find("self"), u64::try_from(symbols.len()).ok()) else {
            return;
        };
        let dim = match find("dim").map(|dim| &dim.arg) {
            Some(Arg::Int(dim)) => *dim,
            _ => 0,
        };
        let Arg::Tensor(tensor) = &tensor.arg else {
            return;
        };
        let Some(id) = scope.tensors.get(tensor.as_ref()) else {
            return;
        };
        let shape = self.builder.value(*id).shape.clone();
        let rank = i64::try_from(shape.len()).unwrap_or(i64::MAX);
        let dim = usize::try_from(if dim < 0 { dim + rank } else { dim });
        let Some(length) = dim.ok().and_then(|dim| shape.get(dim)).copied() else {
            return;
        };
        // What is left for the last of them.
        let mut rest = length;
        for (index, symbol) in symbols.into_iter().enumerate() {
            let each = if index as u64 + 1 == count {
                Some(rest)
            } else {
                length.floor_div(count)
            };
            let Some(each) = each else { return };
            let Some(left) = rest.checked_sub(each) else {
                return;
            };
            rest = left;
            self.choose(symbol, "a part of a split", node, each);
        }
    }

    /// How many rows a node makes whose number depends on values, where an earlier node made as many.
    pub(super) fn known_rows(
        &mut self,
        node: &'a ExportedNode<'a>,
        scope: &Scope<'a>,
    ) -> Option<Extent> {
        let name = node.outputs.iter().flat_map(tensor_names).next()?;
        let recorded = scope.types.get(name)?;
        let size = recorded
            .sizes
            .iter()
            .find(|size| of_values(size).is_some())?;
        let symbol = of_values(size)?;
        if let Ok(known) = self.read_size(size) {
            return Some(known);
        }
        self.producers.read();
        if let (None, Some(MaskPartition { all, masks })) =
            (self.chosen_percent, self.parted(node, scope))
        {
            let each = all.checked_add(Extent::fixed(masks - 1));
            if let Some(each) = each.and_then(|all| all.floor_div(masks)) {
                self.choose(symbol, operator_name(&node.target), node, each);
                if let Some(chosen) = self.chosen.last_mut() {
                    chosen.evenly = Some(masks);
                }
                return Some(each);
            }
        }
        // Only operators that bound their results themselves go on without a limit, which may be lower than it.
        self.limits
            .get(symbol)
            .filter(|_| {
                node.target.contains("repeat_interleave") || node.target.contains("bincount")
            })
            .map(|most| chosen_of(Extent::fixed(*most), self.chosen_percent))
    }

    /// The masks that what a node looks for excludes the others of: `chosen == 3` beside `chosen == 2`, or a class
    /// of a `one_hot`.
    fn parted(&mut self, node: &'a ExportedNode<'a>, scope: &Scope<'a>) -> Option<MaskPartition> {
        let read = tensors_of(&node.inputs);
        let is_mask = |name: &&str| {
            let recorded = scope.types.get(name);
            recorded.is_some_and(|tensor| tensor.dtype == BOOL)
        };
        let mut name = match read.as_slice() {
            [only] => *only,
            several => *several.iter().find(|name| is_mask(name))?,
        };
        let mut selected = false;
        for _ in 0..MOST_STEPS {
            let maker = *self.producers.nodes.get(name)?;
            let Some(Arg::Tensor(from)) = argument(maker, "self") else {
                return None;
            };
            let elements = |walk: &Walk<'_>| {
                let id = scope.tensors.get(from.as_ref())?;
                Some(numel(&walk.builder.value(*id).shape))
            };
            match operator_name(&maker.target) {
                "eq" => {
                    let numbers = self.producers.numbers.get(from.as_ref())?;
                    let masks = u64::try_from(numbers.len())
                        .ok()
                        .filter(|masks| *masks > 1)?;
                    return Some(MaskPartition {
                        all: elements(self)?,
                        masks,
                    });
                }
                "one_hot" if selected => {
                    let Some(Arg::Int(classes)) = argument(maker, "num_classes") else {
                        return None;
                    };
                    let masks = u64::try_from(*classes).ok().filter(|masks| *masks > 1)?;
                    return Some(MaskPartition {
                        all: elements(self)?,
                        masks,
                    });
                }
                "select" => selected = true,
                "any" | "view" | "reshape" | "flatten" | "squeeze" | "unsqueeze" | "permute"
                | "transpose" | "to" | "gt" | "bool" => {}
                _ => return None,
            }
            name = from;
        }
        None
    }

    /// Binds the symbols of lengths that a node decides on to what they were inferred to be.
    pub(super) fn bind_rows(
        &mut self,
        target: &str,
        node: &'a ExportedNode<'a>,
        made: ValueId,
        recorded: &'a TensorMeta<'a>,
    ) {
        let shape = self.builder.value(made).shape.clone();
        for (size, length) in recorded.sizes.iter().zip(shape) {
            let Some(symbol) = of_values(size) else {
                continue;
            };
            if self.read_size(size).is_err() {
                self.choose(symbol, operator_name(target), node, length);
            }
        }
    }

    /// Takes a size that depends on values to be this large.
    fn choose(&mut self, symbol: &str, operator: &str, node: &'a ExportedNode<'a>, extent: Extent) {
        if !self.symbols.bind(symbol, extent) {
            return;
        }
        let module = self.path_of(node);
        self.chosen.push(Chosen {
            evenly: None,
            operator: shorten(operator),
            module,
            extent,
        });
    }
}

/// `index` of `torch.ops.aten.index.Tensor`.
fn operator_name(target: &str) -> &str {
    let target = target.strip_prefix("torch.ops.").unwrap_or(target);
    target.split('.').nth(1).unwrap_or(target)
}

/// The symbol of a length that depends on values.
fn of_values<'a>(size: &'a ExportedSize<'a>) -> Option<&'a str> {
    match size {
        ExportedSize::AsExpr(expression) => symbol_of_values(&expression.expr_str),
        ExportedSize::AsInt(_) => None,
    }
}

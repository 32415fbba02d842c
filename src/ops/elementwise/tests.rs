//! Every row through reading, shapes, simulation, autocast and gradients, and against recorded calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use flate2::read::GzDecoder;

use super::row::{Computes, Gradient, ResultType, Row, Temporary::Like};
use super::table::TABLES;
use super::{ATEN, Elementwise, Operand, row};
use crate::aten::schema::NamedArg;
use crate::aten::{Arguments, Constant, Scope, ValueId};
use crate::bounded::List;
use crate::eager::{Eager, History, Leaf, Tensor, backward};
use crate::ops::{self, Op};
use crate::program::{Capability, Instruction, Kernel, Placement, Size};
use crate::shape::{DType, Extent, Type, contiguous_strides, numel};

/// A row that only tests have: all that holds for the others holds for it, and nothing else knows of it.
pub(super) const ROWS: &[Row] = &[Row::unary(&["aten.test_only.default", "aten.test_only_.default"])
    .attributes(&["strength"])
    .real()
    .high()
    .saves_operand(&[Like, Like])];

const H200: Capability = Capability {
    compute: (9, 0),
    multiprocessors: 132,
    threads_per_multiprocessor: 2048,
};

/// One call: its operator, whether it runs under autocast, and its arguments.
struct Call {
    target: String,
    autocast: bool,
    arguments: Vec<(String, Argument)>,
}

enum Argument {
    Tensor { of: Type, trained: bool },
    Other(String),
}

/// What a call did.
struct Done {
    op: Elementwise,
    inferred: Type,
    result: Type,
    /// Whether a gradient flows through it.
    is_recorded: bool,
    /// The gradients of what is trained, by names.
    gradients: BTreeMap<String, Option<Type>>,
    /// Allocations and frees.
    events: String,
    /// Kernels of launches.
    kernels: Vec<Kernel>,
}

impl Call {
    fn json(&self) -> String {
        let argument = |(name, argument): &(String, Argument)| match argument {
            Argument::Tensor { .. } => {
                format!(r#"{{"name":"{name}","arg":{{"as_tensor":{{"name":"{name}"}}}}}}"#)
            }
            Argument::Other(json) => format!(r#"{{"name":"{name}","arg":{json}}}"#),
        };
        let arguments: Vec<String> = self.arguments.iter().map(argument).collect();
        format!("[{}]", arguments.join(","))
    }

    fn run(&self) -> Done {
        let json = self.json();
        let inputs: List<NamedArg<'_>> = serde_json::from_str(&json).unwrap();
        let tensors = self.arguments.iter().filter_map(|(name, argument)| match argument {
            Argument::Tensor { of, trained } => Some((name.as_str(), of, *trained)),
            Argument::Other(_) => None,
        });
        let tensors: Vec<_> = tensors.collect();
        let ids = (0..).map(ValueId);
        let scope = Scope {
            tensors: tensors.iter().zip(ids).map(|((name, ..), id)| (*name, id)).collect(),
            sizes: HashMap::new(),
            types: HashMap::new(),
        };
        let types = |id: ValueId| tensors[id.0 as usize].1.clone();
        let arguments = Arguments {
            target: &self.target,
            types: &types,
            inputs: &inputs,
            scope: &scope,
        };
        let (op, operands) = ops::read(&arguments).unwrap().unwrap();
        let operand_types: Vec<Type> = operands.iter().map(|id| types(*id)).collect();
        let inferred = ops::infer(&op, &operand_types).unwrap().remove(0);
        let Op::Elementwise(op) = op else {
            panic!("{} is elementwise", self.target)
        };

        let mut eager = Eager::new(H200, &Arc::new(AtomicBool::new(false)));
        let mut leaves = Vec::new();
        let mut given: Vec<Tensor> = Vec::new();
        for id in &operands {
            let (name, (dtype, shape), trained) = &tensors[id.0 as usize];
            let mut tensor = eager.empty(shape, *dtype);
            if *trained {
                let leaf = Rc::new(Leaf {
                    index: leaves.len(),
                    path: Arc::from(*name),
                    strides: contiguous_strides(shape),
                    grad: None.into(),
                });
                tensor.history = Some(History::Leaf(Rc::clone(&leaf)));
                leaves.push(leaf);
            }
            given.push(Tensor::new(tensor));
        }
        let recorder = eager.recorder().clone();
        recorder.take_section();
        eager.autocast = self.autocast.then_some(DType::BFloat16);
        let mut operands = given.clone();
        if op.placement() == Placement::InPlace && operands[0].dtype.is_float() {
            operands[0] = eager.mul_scalar(&operands[0], 1.0);
        }
        let y = eager.elementwise(&op, &operands).unwrap();
        drop(operands);
        eager.autocast = None;
        eager.casts.clear();
        let mut instructions = recorder.take_section();
        let is_recorded = y.requires_grad();
        if is_recorded {
            let seed = Tensor::new(eager.empty_like(&y, y.dtype));
            recorder.take_section();
            backward(&mut eager, &y, Tensor::clone(&seed)).unwrap();
            instructions.extend(recorder.take_section());
        }
        let gradient = |leaf: &Rc<Leaf>| {
            let kept = leaf.grad.borrow();
            let kept = kept.as_ref().map(|kept| (kept.dtype, kept.shape.clone()));
            (leaf.path.to_string(), kept)
        };
        let sizes: Vec<u64> = recorder.take_tensors().iter().map(|made| bytes(&made.size)).collect();
        Done {
            op,
            inferred,
            result: (y.dtype, y.shape.clone()),
            is_recorded,
            gradients: leaves.iter().map(gradient).collect(),
            events: events(&instructions, &sizes),
            kernels: instructions.into_iter().filter_map(kernel).collect(),
        }
    }
}

fn bytes(size: &Size) -> u64 {
    match size {
        Size::Elements(count, dtype) => count.at(1) * dtype.size(),
        Size::Fixed(bytes) => bytes.0,
        Size::Function(function) => (function.bytes)(1),
        Size::Workspace(_) => panic!("no operator here has a workspace"),
    }
}

fn events(instructions: &[Instruction], sizes: &[u64]) -> String {
    let event = |instruction: &Instruction| {
        let (sign, id) = match instruction {
            Instruction::Allocate(id) => ('+', id),
            Instruction::Free(id) => ('-', id),
            Instruction::Launch(_) => return None,
        };
        let size = sizes[id.0 as usize];
        (size > 0).then(|| format!("{sign}{size}"))
    };
    let events: Vec<String> = instructions.iter().filter_map(event).collect();
    events.join(" ")
}

fn kernel(instruction: Instruction) -> Option<Kernel> {
    match instruction {
        Instruction::Launch(call) => Some(call.kernel),
        Instruction::Allocate(_) | Instruction::Free(_) => None,
    }
}

fn dtype(name: &str) -> DType {
    match name {
        "f32" => DType::Float32,
        "bf16" => DType::BFloat16,
        "i64" => DType::Int64,
        "bool" => DType::Bool,
        other => panic!("no type is called {other}"),
    }
}

/// `self=f32[8,512]!`, `alpha=2`, `rounding_mode=floor`.
fn argument(word: &str) -> (String, Argument) {
    let (name, value) = word.split_once('=').unwrap();
    let argument = match value.split_once('[') {
        Some((of, shape)) => {
            let lengths = shape.trim_end_matches(['!', ']']).split(',');
            let lengths = lengths.filter(|length| !length.is_empty());
            let shape = lengths.map(|length| Extent::fixed(length.parse().unwrap()));
            Argument::Tensor {
                of: (dtype(of), shape.collect()),
                trained: value.ends_with('!'),
            }
        }
        None if value == "None" => Argument::Other(r#"{"as_none":true}"#.into()),
        None if value.parse::<i64>().is_ok() => Argument::Other(format!(r#"{{"as_int":{value}}}"#)),
        None if value.parse::<f64>().is_ok() => {
            Argument::Other(format!(r#"{{"as_float":{value}}}"#))
        }
        None => Argument::Other(format!(r#"{{"as_string":"{value}"}}"#)),
    };
    (name.to_owned(), argument)
}

fn recordings() -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let file = std::fs::File::open(format!("{root}/tests/golden/elementwise/calls.txt.gz"));
    let mut text = String::new();
    GzDecoder::new(file.unwrap()).read_to_string(&mut text).unwrap();
    text
}

/// In `tests/record/elementwise.py`, why these are not recorded.
fn unrecorded(target: &str) -> bool {
    let looks_at_values = ["aten.normal.Tensor_Tensor", "aten.normal.float_Tensor"];
    let is_never_called = ["aten.copy.default", "aten.normal_functional.default"];
    let has_no_derivative_in_place =
        ["acosh_", "asinh_", "atanh_", "arccosh_", "arcsinh_", "arctanh_"];
    looks_at_values.contains(&target)
        || is_never_called.contains(&target)
        || has_no_derivative_in_place.iter().any(|name| target.contains(name))
        || target.starts_with("aten.test_only")
}

#[test]
fn recorded_calls_allocate_and_free_what_pytorch_does() {
    let mut different = Vec::new();
    let mut seen = BTreeSet::new();
    for line in recordings().lines() {
        let (call, theirs) = line.split_once('|').unwrap();
        let mut words = call.split_whitespace();
        let target = words.next().unwrap().to_owned();
        let autocast = words.next() == Some("amp");
        let call = Call {
            target,
            autocast,
            arguments: words.map(argument).collect(),
        };

        let ours = call.run().events;

        if ours != theirs.trim() {
            different.push(format!("{line}\n  ours {ours}"));
        }
        seen.insert(call.target);
    }

    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
    let missing = ATEN.iter().map(|(name, _)| *name);
    let missing: Vec<&str> = missing.filter(|name| !seen.contains(*name) && !unrecorded(name)).collect();
    assert!(missing.is_empty(), "no recording of {missing:?}");
}

/// A call of a row's operator on tensors alone, all of whose fractions are trained.
fn plain_call(row: &Row, target: &str, autocast: bool) -> Call {
    let fraction = if autocast { DType::BFloat16 } else { DType::Float32 };
    let shape = vec![Extent::BATCH, Extent::fixed(6)];
    let mut arguments: Vec<(String, Argument)> = Vec::new();
    for name in row.operands {
        let is_truth = ["condition", "mask"].contains(name);
        let of = match *name {
            _ if is_truth => (DType::Bool, shape.clone()),
            "weight" if target.contains("prelu") => (fraction, vec![Extent::fixed(6)]),
            _ => (fraction, shape.clone()),
        };
        let trained = !is_truth;
        arguments.push(((*name).to_owned(), Argument::Tensor { of, trained }));
    }
    for name in row.attributes {
        arguments.push(((*name).to_owned(), Argument::Other(r#"{"as_float":0.75}"#.into())));
    }
    Call {
        target: target.to_owned(),
        autocast,
        arguments,
    }
}

#[test]
fn every_row_is_read_shaped_simulated_and_differentiated() {
    for row in TABLES.iter().copied().flatten() {
        for target in row.aten {
            for autocast in [false, true] {
                let call = plain_call(row, target, autocast);
                let Done {
                    op,
                    inferred,
                    result,
                    is_recorded,
                    gradients,
                    kernels,
                    ..
                } = call.run();

                let about = format!("{target}, autocast {autocast}");
                assert_eq!(op.target(), *target, "{about}");
                for name in row.attributes {
                    assert_eq!(op.attribute(name), Some(&Constant::Real(0.75)), "{about}: {name}");
                }
                assert_eq!(inferred.1, result.1, "{about}: shape");
                if !autocast {
                    assert_eq!(inferred.0, result.0, "{about}: type");
                }
                if row.result == ResultType::Truth && op.placement() == Placement::New {
                    assert_eq!(result.0, DType::Bool, "{about}");
                }
                let in_place = op.placement() == Placement::InPlace;
                let has_formula = |position: usize| match row.in_place {
                    Some(gradients) if in_place && position < 2 => {
                        !matches!(gradients[position], Gradient::None)
                    }
                    _ => {
                        row.together.is_some() || !matches!(row.gradients[position], Gradient::None)
                    }
                };
                let differentiated = (0..row.operands.len()).any(has_formula);
                // What is overwritten keeps the history it had.
                assert_eq!(is_recorded, differentiated || in_place, "{about}: a derivative");
                for (position, name) in row.operands.iter().enumerate() {
                    let Some(gradient) = gradients.get(*name) else {
                        continue;
                    };
                    let keeps_history = in_place && !differentiated && position == 0;
                    let has_gradient = has_formula(position) || keeps_history;
                    assert_eq!(gradient.is_some(), has_gradient, "{about}: {name}");
                    if let (Some((dtype, shape)), Argument::Tensor { of, .. }) =
                        (gradient, &call.arguments[position].1)
                    {
                        assert_eq!((*dtype, numel(shape)), (of.0, numel(&of.1)), "{about}: {name}");
                    }
                }
                assert!(!kernels.is_empty(), "{about}: no launch");
            }
        }
    }
}

#[test]
fn fractions_are_what_autocast_makes_float32() {
    let of = |target: &str| {
        let (_, row) = super::read::find(target).unwrap();
        plain_call(row, target, true).run().result.0
    };

    assert_eq!(of("aten.exp.default"), DType::Float32);
    assert_eq!(of("aten.exp_.default"), DType::BFloat16);
    assert_eq!(of("aten.test_only.default"), DType::Float32);
    assert_eq!(of("aten.sin.default"), DType::BFloat16);
}

#[test]
fn numbers_are_kept_with_their_kind_and_value() {
    let call = |words: &str| {
        let mut words = words.split(' ');
        let target = words.next().unwrap().to_owned();
        let arguments = words.map(argument).collect();
        let autocast = false;
        Call { target, autocast, arguments }.run().op
    };

    let clamp = call("aten.clamp.default self=f32[4] min=-3 max=0.5");
    let less = call("aten.lt.Scalar self=f32[4] other=2");
    let slope = call("aten.leaky_relu.default self=f32[4]");

    let number = |value| Operand::Number(value);
    assert_eq!(
        clamp.operands,
        [Operand::Tensor, number(Constant::Whole(-3)), number(Constant::Real(0.5))]
    );
    assert_eq!(less.operands, [Operand::Tensor, number(Constant::Whole(2))]);
    assert_eq!(slope.attribute("negative_slope"), Some(&Constant::Real(0.01)));
    let written = serde_json::to_string(&clamp).unwrap();
    assert_eq!(
        written,
        r#"{"target":"aten.clamp.default","operands":["tensor",{"Whole":-3},{"Real":0.5}],"attributes":[]}"#
    );
}

/// Functions that kernels exist for are launched by their names, so that a GPU computes them.
#[test]
fn what_has_a_kernel_is_launched_with_it() {
    for row in TABLES.iter().copied().flatten() {
        if matches!(row.computes, Computes::Unknown) {
            continue;
        }
        let target = row.aten[0];
        let call = Call {
            target: target.to_owned(),
            autocast: false,
            arguments: vec![
                argument("self=f32[4]!"),
                argument("other=2.0"),
                argument("exponent=2.0"),
                argument("min_val=0.0"),
                argument("max_val=6.0"),
            ],
        };

        let kernels = call.run().kernels;

        let unknown = kernels.iter().find(|kernel| matches!(kernel, Kernel::MemoryOnly(_)));
        assert_eq!(unknown, None, "{target}");
    }
    assert_eq!(row::default("gelu", "approximate"), Some(Constant::Text("none".into())));
}

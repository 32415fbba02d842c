//! Single calls of operators against recorded ones: what PyTorch allocates and frees, forward and backward.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::rc::Rc;
use std::sync::Arc;

use flate2::read::GzDecoder;

use super::{Context, Op};
use crate::aten::schema::NamedArg;
use crate::aten::{Arguments, Scope, ValueId};
use crate::eager::{Eager, History, Leaf, Tensor, backward};
use crate::limits::{Cancel, List};
use crate::ops;
use crate::program::{Capability, Instruction, Kernel, Placement, Size};
use crate::shape::{DType, Extent, Type, contiguous_strides};

pub(in crate::ops) const H200: Capability = Capability::of((9, 0), 132);

/// One call: its operator, whether it runs under autocast, and its arguments.
pub(in crate::ops) struct Call {
    pub(super) target: String,
    pub(super) autocast: bool,
    pub(super) arguments: Vec<(String, Argument)>,
}

pub(in crate::ops) enum Argument {
    Tensor { of: Type, trained: bool },
    Other(String),
}

/// What a call did.
pub(in crate::ops) struct Done {
    pub(super) op: Op,
    pub(super) inferred: Type,
    pub(super) result: Type,
    /// Whether a gradient flows through it.
    pub(super) is_recorded: bool,
    /// The gradients of what is trained, by names.
    pub(super) gradients: BTreeMap<String, Option<Type>>,
    /// Allocations and frees.
    pub(super) events: String,
    /// Kernels of launches.
    pub(super) kernels: Vec<Kernel>,
}

impl Call {
    /// `aten.add.Tensor amp self=f32[8,512]! alpha=2`, without autocast where it does not say so.
    pub(in crate::ops) fn of(line: &str) -> Call {
        let mut words = line.split_whitespace().peekable();
        let target = words.next().unwrap().to_owned();
        let autocast = words.next_if(|word| !word.contains('=')) == Some("amp");
        Call {
            target,
            autocast,
            arguments: words.map(argument).collect(),
        }
    }

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

    #[expect(
        clippy::too_many_lines,
        reason = "reading, forward and backward in order"
    )]
    pub(in crate::ops) fn run(&self) -> Done {
        let json = self.json();
        let inputs: List<NamedArg<'_>> = serde_json::from_str(&json).unwrap();
        let tensors = self
            .arguments
            .iter()
            .filter_map(|(name, argument)| match argument {
                Argument::Tensor { of, trained } => Some((name.as_str(), of, *trained)),
                Argument::Other(_) => None,
            });
        let tensors: Vec<_> = tensors.collect();
        let ids = (0..).map(ValueId);
        let scope = Scope {
            tensors: tensors
                .iter()
                .zip(ids)
                .map(|((name, ..), id)| (*name, id))
                .collect(),
            ..Scope::default()
        };
        let types = |id: ValueId| tensors[id.0 as usize].1.clone();
        let arguments = Arguments {
            target: &self.target,
            types: &types,
            inputs: &inputs,
            scope: &scope,
            rows: None,
            chosen_percent: None,
            most_results: crate::aten::MOST_PARTS,
        };
        let (op, operands) = ops::read(&arguments).unwrap().unwrap();
        let operand_types: Vec<Type> = operands.iter().map(|id| types(*id)).collect();
        let inferred = ops::infer(&op, &operand_types).unwrap();

        let mut eager = Eager::new(H200, &Cancel::NEVER);
        let mut leaves = Vec::new();
        let mut given: Vec<Tensor> = Vec::new();
        for id in &operands {
            let (name, (dtype, shape), trained) = &tensors[id.0 as usize];
            let mut tensor = eager.empty(shape, *dtype);
            if *trained {
                let leaf = Rc::new(Leaf {
                    index: leaves.len(),
                    path: Arc::from(*name),
                    strides: contiguous_strides(shape).into(),
                    grad: None.into(),
                });
                tensor.history = Some(History::Leaf(Rc::clone(&leaf))).into();
                leaves.push(leaf);
            }
            given.push(Tensor::new(tensor));
        }
        eager.use_blas_lt();
        let recorder = eager.recorder().clone();
        recorder.take_section();
        eager.autocast = self.autocast.then_some(DType::BFloat16);
        let mut operands = given.clone();
        let in_place = matches!(&op, Op::Elementwise(op) if op.placement() == Placement::InPlace);
        if in_place && operands[0].dtype.is_float() {
            operands[0] = eager.mul_scalar(&operands[0], 1.0);
        }
        let lengths: Vec<_> = inferred.iter().map(|(_, shape)| shape.clone()).collect();
        let context = Context {
            results: &lengths,
            inference: false,
            parameters: DType::Float32,
            noise: None,
            goes_back_to: None,
            asks_for: None,
            of_buffer: false,
        };
        let results = op.run(&mut eager, &operands, &context).unwrap();
        let y = &results[0];
        drop(operands);
        eager.autocast = None;
        eager.casts.clear();
        let mut instructions = recorder.take_section();
        let is_recorded = y.requires_grad();
        if is_recorded {
            let seed = Tensor::new(eager.empty_like(y, y.dtype));
            recorder.take_section();
            backward(&mut eager, y, Tensor::clone(&seed)).unwrap();
            instructions.extend(recorder.take_section());
        }
        let gradient = |leaf: &Rc<Leaf>| {
            let kept = leaf.grad.borrow();
            let kept = kept.as_ref().map(|kept| (kept.dtype, kept.shape.to_vec()));
            (leaf.path.to_string(), kept)
        };
        let known = recorder.take_sizes();
        let sizes: Vec<u64> = recorder
            .take_tensors()
            .iter()
            .map(|made| bytes(&known[made.size.0 as usize]))
            .collect();
        Done {
            op,
            inferred: inferred[0].clone(),
            result: (y.dtype, y.shape.to_vec()),
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
        "f64" => DType::Float64,
        "bf16" => DType::BFloat16,
        "i32" => DType::Int32,
        "i64" => DType::Int64,
        "bool" => DType::Bool,
        other => panic!("no type is called {other}"),
    }
}

/// `self=f32[8,512]!`, `alpha=2`, `rounding_mode=floor`.
pub(in crate::ops) fn argument(word: &str) -> (String, Argument) {
    let (name, value) = word.split_once('=').unwrap();
    let argument = match value.split_once('[') {
        Some(("", _)) => Argument::Other(format!(r#"{{"as_ints":{value}}}"#)),
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
        None if name == "dtype" => Argument::Other(format!(r#"{{"as_scalar_type":{value}}}"#)),
        None if value == "inf" => Argument::Other(r#"{"as_float":"Infinity"}"#.into()),
        None if value == "True" || value == "False" => {
            Argument::Other(format!(r#"{{"as_bool":{}}}"#, value.to_lowercase()))
        }
        None if value.parse::<i64>().is_ok() => Argument::Other(format!(r#"{{"as_int":{value}}}"#)),
        None if value.parse::<f64>().is_ok() => {
            Argument::Other(format!(r#"{{"as_float":{value}}}"#))
        }
        None => Argument::Other(format!(r#"{{"as_string":"{value}"}}"#)),
    };
    (name.to_owned(), argument)
}

/// Compares the recorded calls of a golden file, and returns the operators of all.
pub(in crate::ops) fn compare(folder: &str) -> BTreeSet<String> {
    let mut different = Vec::new();
    let mut seen = BTreeSet::new();
    for line in recordings(folder).lines() {
        let (call, theirs) = line.split_once('|').unwrap();
        let call = Call::of(call);

        let done = call.run();
        let ours = done.events;
        assert_eq!(done.result.1, done.inferred.1, "{line}");

        if ours != theirs.trim() {
            different.push(format!("{line}\n  ours {ours}"));
        }
        seen.insert(call.target);
    }
    let count = different.len();
    assert!(
        different.is_empty(),
        "{count} differ:\n{}",
        different.join("\n")
    );
    seen
}

#[test]
fn recorded_calls_allocate_and_free_what_pytorch_does() {
    let seen = compare("calls");

    assert!(seen.len() > 50, "{} operators were compared", seen.len());
}

fn recordings(folder: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let file = std::fs::File::open(format!("{root}/tests/golden/{folder}/calls.txt.gz"));
    let mut text = String::new();
    GzDecoder::new(file.unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

use std::rc::Rc;
use std::sync::Arc;

use super::*;
use crate::eager::{History, Leaf, backward};
use crate::limits::Cancel;
use crate::program::{Capability, Instruction};

const RECORDED: &str = include_str!("../../../../../tests/golden/recurrent/sequences.txt");

const H200: Capability = Capability::of((9, 0), 132);

/// One recorded network.
#[expect(clippy::struct_excessive_bools, reason = "the words of a recording")]
struct Case<'a> {
    recurrent: Recurrent,
    dtype: DType,
    autocast: bool,
    network: Network,
    time: u64,
    batch: u64,
    has_state: bool,
    input_wants_gradient: bool,
    has_backward: bool,
    grad_enabled: bool,
    events: [Vec<i64>; 2],
    line: &'a str,
}

fn case(line: &str) -> Case<'_> {
    let mut parts = line.split('|');
    let words: Vec<&str> = parts.next().unwrap().split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let mut events = || -> Vec<i64> {
        let listed = parts.next().unwrap().split_whitespace();
        listed.map(|event| event.parse().unwrap()).collect()
    };
    let events = [events(), events()];
    let cell = match words[0] {
        "LSTM" => CellKind::Lstm,
        "GRU" => CellKind::Gru,
        "RNN_TANH" => CellKind::Tanh,
        _ => CellKind::Relu,
    };
    let dropout: f64 = words[9].parse().unwrap();
    Case {
        recurrent: Recurrent {
            cell,
            biases: true,
            layers: number(7),
            dropout,
            train: words[14] != "eval",
            bidirectional: number(8) == 2,
            batch_first: number(11) == 1,
        },
        dtype: match words[1] {
            "float32" => DType::Float32,
            "float16" => DType::Float16,
            "bfloat16" => DType::BFloat16,
            _ => DType::Float64,
        },
        autocast: words[2] != "-",
        network: Network {
            cell,
            input: number(3),
            hidden: number(4),
            projection: Some(number(10)).filter(|projection| *projection > 0),
            layers: number(7),
            directions: number(8),
            dropout: dropout > 0.0,
        },
        time: number(5),
        batch: number(6),
        has_state: number(12) == 1,
        input_wants_gradient: number(13) == 1 && words[14] == "train",
        has_backward: words[14] == "train",
        grad_enabled: words[14] == "train",
        events,
        line,
    }
}

/// A tensor that is trained.
fn trained(mut body: TensorBody, index: usize) -> Tensor {
    let leaf = Rc::new(Leaf {
        index,
        path: Arc::from("weight"),
        strides: contiguous_strides(&body.shape).into(),
        grad: None.into(),
    });
    body.history = Some(History::Leaf(leaf)).into();
    Rc::new(body)
}

/// What the passes allocate and free, in the format of the recording.
fn compiled(case: &Case<'_>) -> [Vec<i64>; 2] {
    let mut eager = Eager::new(H200, &Cancel::NEVER);
    let recorder = eager.recorder().clone();
    // The recording is of a warm process.
    eager.keep_scratch("cuDNN's dropout state", 1);
    eager.grad_enabled = case.grad_enabled;
    let network = &case.network;
    let (time, batch) = (Extent::fixed(case.time), Extent::BATCH);
    let features = Extent::fixed(network.input);
    let shape = if case.recurrent.batch_first {
        [batch, time, features]
    } else {
        [time, batch, features]
    };
    let flat = eager.empty(&[Extent::fixed(network.weights())], case.dtype);
    let weights: Vec<Tensor> = network
        .parameters(true)
        .iter()
        .enumerate()
        .map(|(index, shape)| {
            // Those of bfloat16 lie apart.
            let body = match case.dtype {
                DType::BFloat16 => eager.empty(shape, case.dtype),
                _ => flat.alias(shape.clone(), contiguous_strides(shape)),
            };
            trained(body, index)
        })
        .collect();
    let x = eager.empty(&shape, case.dtype);
    let x = if case.input_wants_gradient {
        trained(x, weights.len())
    } else {
        Rc::new(x)
    };
    let cells = Extent::fixed(network.layers * network.directions);
    let states = |eager: &mut Eager| -> Vec<Tensor> {
        let lengths = [network.outputs(), network.hidden];
        let lengths = lengths.into_iter().take(case.recurrent.cell.states());
        let state = |length: u64| eager.empty(&[cells, batch, length.into()], case.dtype);
        lengths.map(state).map(Rc::new).collect()
    };
    let mut given = case.has_state.then(|| states(&mut eager));
    drop(recorder.take_section());
    if case.autocast {
        eager.autocast = Some(DType::Float16);
    }
    let mut operands = vec![Rc::clone(&x)];
    operands.extend(given.clone().unwrap_or_else(|| states(&mut eager)));
    operands.extend(weights.iter().cloned());
    let mut results = eager.recurrent(case.recurrent, &operands).unwrap();
    let made: Vec<Tensor> = operands.drain(1..=case.recurrent.cell.states()).collect();
    // Python lets go of the zeros that it made, then of the last states.
    drop(made);
    while results.len() > 1 {
        drop(results.pop());
    }
    eager.autocast = None;
    let forward = recorder.take_section();
    let y = results.pop().unwrap();
    let mut back = Vec::new();
    if case.has_backward {
        let seed = Rc::new(eager.empty_strided(&y.shape, y.strides.clone(), y.dtype));
        drop(recorder.take_section());
        backward(&mut eager, &y, Rc::clone(&seed)).unwrap();
        back = recorder.take_section();
        drop(seed);
    }
    drop(given.take());
    let (tensors, sizes) = (recorder.take_tensors(), recorder.take_sizes());
    [forward, back].map(|section| {
        let event = |instruction: &Instruction| {
            let size = |id: &crate::program::TensorId| {
                let size = tensors[id.0 as usize].size;
                let bytes = sizes[size.0 as usize].at(case.batch).unwrap();
                i64::try_from(bytes.0).unwrap()
            };
            match instruction {
                Instruction::Allocate(id) => Some(size(id)),
                Instruction::Free(id) => Some(-size(id)),
                Instruction::Launch(_) => None,
            }
        };
        let events = section.iter().filter_map(event);
        events.filter(|event| *event != 0).collect()
    })
}

/// Every 89th recorded network: the same requests in the same order, each within 512 bytes.
#[test]
fn passes_request_what_pytorch_was_recorded_to() {
    // A batch of one in front of the steps is as contiguous as one behind them, which is not followed.
    let followed = |case: &Case<'_>| case.batch > 1 || !case.recurrent.batch_first;
    for case in RECORDED.lines().map(case).filter(followed) {
        for (compiled, recorded) in compiled(&case).iter().zip(&case.events) {
            let is_close = |(a, b): (&i64, &i64)| a.signum() == b.signum() && a.abs_diff(*b) < 512;
            assert!(
                compiled.len() == recorded.len() && compiled.iter().zip(recorded).all(is_close),
                "{}\n{compiled:?}\n{recorded:?}",
                case.line
            );
        }
    }
}

//! Compilations that are cancelled, and long ones.

use super::*;
use crate::compile::{CompileError, Launches, Process, compile_process};
use crate::graph::{Builder, ParameterKind};
use crate::limits::Cancel;
use crate::ops::{Elementwise, Op, View};
use crate::program::Capability;
use crate::shape::Extent;

const H200: Capability = Capability::of((9, 0), 132);

fn begun(graph: &Graph, variant: &Variant, cancel: &Cancel) -> Training {
    let eager = Eager::new(H200, cancel);
    Training::construct(eager, Arc::new(graph.clone()), variant).unwrap()
}

fn tanh() -> Op {
    Elementwise::of("aten.tanh.default").into()
}

/// A chain of this many of an operation.
fn chain(op: &Op, length: usize) -> Graph {
    let mut builder = Builder::new("Chain");
    let eight = Extent::fixed(8);
    let trained = ParameterKind::Trained;
    let weight = builder.parameter("weight", trained, DType::Float32, vec![eight]);
    let shape = vec![Extent::BATCH, eight];
    let input = builder.input("x", DType::Float32, shape, Content::Normal);
    let product = builder.apply(
        Builder::ROOT,
        "product",
        Op::Elementwise(Elementwise::of("aten.mul.Tensor")),
        &[input, weight],
    );
    let mut value = product.unwrap();
    for _ in 0..length {
        let next = builder.apply(Builder::ROOT, "next", op.clone(), &[value]);
        value = next.unwrap();
    }
    builder.finish(value, value)
}

#[test]
fn a_cancelled_compilation_stops_before_the_next_operation() {
    let cancel = Cancel::default();
    cancel.cancel();
    let graph = Arc::new(chain(&tanh(), 100));
    let rank = (H200, Process::default());
    let cancelled = compile_process(&graph, &Variant::default(), rank, Launches::Kept, &cancel);
    assert_eq!(cancelled, Err(CompileError::Cancelled));

    let cancel = Cancel::default();
    let mut training = begun(&graph, &Variant::default(), &cancel);
    let batch = training.make_batch();
    let mut environment: Environment = batch.into_iter().collect();
    let forward = Rc::clone(&training.forward);
    forward
        .run(&mut training.eager, &mut environment, 0..50)
        .unwrap();
    let done = training.eager.recorder().take_section().len();
    cancel.cancel();
    let stopped = forward.run(&mut training.eager, &mut environment, 50..100);
    assert_eq!(stopped, Err(Stop::Cancelled));
    assert!(done > 50);
    assert_eq!(training.eager.recorder().take_section(), []);

    // The backward pass too.
    let last = environment.into_values().next_back().unwrap();
    let stopped = backward(&mut training.eager, &last, Rc::clone(&last));
    assert_eq!(stopped, Err(Stop::Cancelled));
    assert_eq!(training.eager.recorder().take_section(), []);
}

/// What never ran backward owns all that came before it, and of a chain of views each gradient is a view of the one before.
#[test]
fn long_chains_need_no_deep_stack() {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let work = || {
        let turned = Op::View(View::Permute(vec![1, 0]));
        for (op, is_given_up) in [(tanh(), true), (tanh(), false), (turned, false)] {
            let graph = chain(&op, 20_000);
            let mut training = begun(&graph, &Variant::default(), &Cancel::NEVER);
            let batch = training.make_batch();
            let mut environment: Environment = batch.into_iter().collect();
            let forward = Rc::clone(&training.forward);
            forward
                .run(&mut training.eager, &mut environment, 0..20_000)
                .unwrap();
            if !is_given_up {
                let last = environment.values().next_back().unwrap();
                backward(&mut training.eager, last, Rc::clone(last)).unwrap();
            }
            drop(environment);
        }
    };
    thread.spawn(work).unwrap().join().unwrap();
}

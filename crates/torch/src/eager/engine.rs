//! The autograd engine: which backward operation runs next, and what is alive meanwhile.
//!
//! See Note [Order of the backward pass].

use std::collections::HashMap;
use std::rc::Rc;

use super::autograd::{GradFn, Saved, Slot};
use super::checkpoint::Frame;
use super::process::{Eager, Stop};
use super::tensor::{History, Leaf, Tensor};
use crate::program::{Binary, Category, Host, Kernel};
use crate::shape::{contiguous_strides, is_dense, strides_match};

/// What is ready to run.
#[derive(Clone)]
enum Ready {
    GradFn(Rc<GradFn>),
    Leaf(Rc<Leaf>),
}

impl Ready {
    fn sequence(&self) -> u64 {
        match self {
            Ready::GradFn(node) => node.sequence,
            // AccumulateGrad has the highest number: it runs as soon as its gradient exists.
            Ready::Leaf(_) => u64::MAX,
        }
    }

    fn key(&self) -> u64 {
        match self {
            Ready::GradFn(node) => node.sequence,
            Ready::Leaf(leaf) => u64::MAX - leaf.index as u64,
        }
    }

    fn of(history: &History) -> (Ready, usize) {
        match history {
            History::Made(node, index) => (Ready::GradFn(Rc::clone(node)), *index),
            History::Leaf(leaf) => (Ready::Leaf(Rc::clone(leaf)), 0),
        }
    }
}

/// The engine's queue: a binary heap as `std::priority_queue` keeps it, ties included.
#[derive(Default)]
struct Heap(Vec<Ready>);

impl Heap {
    fn push(&mut self, ready: Ready) {
        self.0.push(ready);
        self.sift_up(self.0.len() - 1);
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.0[parent].sequence() >= self.0[at].sequence() {
                break;
            }
            self.0.swap(parent, at);
            at = parent;
        }
    }

    /// `pop_heap`: the hole at the top sinks to the bottom along the larger children, and the last
    /// element rises from there. This, not a textbook sift-down, decides among equals.
    fn pop(&mut self) -> Option<Ready> {
        let last = self.0.pop()?;
        if self.0.is_empty() {
            return Some(last);
        }
        let top = self.0[0].clone();
        let length = self.0.len();
        let (mut hole, mut child) = (0, 0);
        while child < (length - 1) / 2 {
            child = 2 * (child + 1);
            if self.0[child].sequence() < self.0[child - 1].sequence() {
                child -= 1;
            }
            self.0.swap(hole, child);
            hole = child;
        }
        if length.is_multiple_of(2) && child == (length - 2) / 2 {
            child = 2 * child + 1;
            self.0.swap(hole, child);
            hole = child;
        }
        self.0[hole] = last;
        self.sift_up(hole);
        Some(top)
    }
}

/// Leaves from this number on are no parameters, but what a reentrant checkpoint reads.
pub const INPUTS: usize = 1 << 40;

/// Runs the backward pass from `root`, whose gradient is `seed`.
pub fn backward(eager: &mut Eager, root: &Tensor, seed: Tensor) -> Result<(), Stop> {
    backward_of(eager, vec![(Tensor::clone(root), seed)])
}

/// The same from several roots, each with its gradient.
pub fn backward_of(eager: &mut Eager, roots: Vec<(Tensor, Tensor)>) -> Result<(), Stop> {
    let mut gradients: HashMap<u64, Vec<Option<Tensor>>> = HashMap::new();
    let mut starts: Vec<Rc<GradFn>> = Vec::new();
    for (root, seed) in roots {
        match eager.history_of(&root) {
            Some(History::Made(start, index)) => {
                let width = start.outputs;
                let buffer = gradients.entry(start.sequence);
                let buffer = buffer.or_insert_with(|| vec![None; width]);
                add_up(eager, &mut buffer[index], seed);
                if !starts.iter().any(|other| Rc::ptr_eq(other, &start)) {
                    starts.push(start);
                }
            }
            Some(History::Leaf(leaf)) => accumulate(eager, &leaf, seed),
            None => {}
        }
    }
    let mut waiting = dependencies(&starts);
    let mut heap = Heap::default();
    for start in starts {
        if !waiting.contains_key(&start.sequence) {
            heap.push(Ready::GradFn(start));
        }
    }
    while let Some(ready) = heap.pop() {
        eager.go_on()?;
        let incoming = gradients.remove(&ready.key()).unwrap_or_default();
        match ready {
            Ready::Leaf(leaf) => {
                if let Some(gradient) = incoming.into_iter().next().flatten() {
                    accumulate(eager, &leaf, gradient);
                }
            }
            Ready::GradFn(node) => {
                for hook in node.hooks.take() {
                    hook(eager);
                }
                let outgoing = run(eager, &node, incoming)?;
                let edges = std::mem::take(&mut *node.edges.borrow_mut());
                drop(node);
                for (edge, gradient) in edges.into_iter().zip(outgoing) {
                    let Some(to) = edge.to else { continue };
                    let (next, index) = Ready::of(&to);
                    drop(to);
                    let width = match &next {
                        Ready::GradFn(node) => node.outputs,
                        Ready::Leaf(_) => 1,
                    };
                    let buffer = gradients
                        .entry(next.key())
                        .or_insert_with(|| vec![None; width]);
                    if let Some(gradient) = gradient {
                        add_up(eager, &mut buffer[index], gradient);
                    }
                    let left = waiting
                        .get_mut(&next.key())
                        .expect("counted before the pass began");
                    *left -= 1;
                    if *left == 0 {
                        heap.push(next);
                    }
                }
            }
        }
    }
    Ok(())
}

/// How many gradients each operation waits for.
fn dependencies(starts: &[Rc<GradFn>]) -> HashMap<u64, usize> {
    let mut waiting = HashMap::new();
    let mut stack = starts.to_vec();
    while let Some(node) = stack.pop() {
        for edge in node.edges.borrow().iter() {
            let Some(to) = &edge.to else { continue };
            let (next, _) = Ready::of(to);
            let count = waiting.entry(next.key()).or_insert(0);
            *count += 1;
            if let (1, Ready::GradFn(next)) = (*count, next)
                && !starts.iter().any(|start| Rc::ptr_eq(start, &next))
            {
                stack.push(next);
            }
        }
    }
    waiting
}

/// Runs one operation: formula, fitting of results to inputs, release of what it held.
fn run(
    eager: &mut Eager,
    node: &Rc<GradFn>,
    incoming: Vec<Option<Tensor>>,
) -> Result<Vec<Option<Tensor>>, Stop> {
    eager.set_label(&node.label);
    let (formula, slots) = node
        .body
        .borrow_mut()
        .take()
        .expect("each operation runs once");
    let mut recomputed = Vec::new();
    let mut frames = Vec::new();
    let mut saved = Vec::new();
    for (name, slot) in slots {
        match slot {
            Slot::Held(tensor) => saved.push((name, tensor)),
            Slot::Recomputed(frame, index) => {
                recomputed.push(name);
                saved.push((name, Frame::unpack(&frame, eager, index)?));
                frames.push(frame);
            }
            Slot::Frame(frame) => frames.push(frame),
        }
    }
    let mut saved = Saved(saved);
    eager.set_label(&node.label);
    let mut outgoing = formula(eager, &incoming, &saved);
    // What a checkpoint unpacked belongs to the formula's own variables, which go in reverse.
    while let Some(name) = recomputed.pop() {
        saved.0.retain(|(saved, _)| *saved != name);
    }
    for (gradient, edge) in outgoing.iter_mut().zip(node.edges.borrow().iter()) {
        let Some(current) = gradient.take() else {
            continue;
        };
        let current = if current.shape == edge.shape {
            current
        } else {
            let sum = eager.sum_to(&current, &edge.shape);
            // What was summed goes before the sum is cast.
            drop(current);
            sum
        };
        *gradient = Some(if current.dtype == edge.dtype {
            current
        } else if current.dtype.is_complex() && edge.dtype == current.dtype.real() {
            // `handle_r_to_c`: only the real part goes on, as a view.
            let view = current.real_part();
            Rc::new(view.based_on(current))
        } else {
            eager.copy_as(&current, edge.dtype)
        });
    }
    drop(incoming);
    // In order: inputs by name, then outputs.
    for entry in saved.0 {
        drop(entry);
    }
    drop(frames);
    Ok(outgoing)
}

/// Adds a gradient to those that arrived before.
///
/// In place iff the kept one has no other owner, is no view and is dense; otherwise into a new tensor.
fn add_up(eager: &mut Eager, kept: &mut Option<Tensor>, gradient: Tensor) {
    let Some(old) = kept.take() else {
        *kept = Some(gradient);
        return;
    };
    let alone = Rc::strong_count(&old) == 1
        && Rc::strong_count(&old.storage) == 1
        && old.base.is_none()
        && is_dense(&old.shape, &old.strides);
    if alone {
        eager.launch(Kernel::Binary(Binary::Add), &[&old, &gradient], &[&old]);
        *kept = Some(old);
    } else {
        let sum = eager.empty_like(&old, old.dtype);
        *kept = Some(eager.computed(sum, Kernel::Binary(Binary::Add), &[&old, &gradient]));
    }
}

/// `AccumulateGrad`: keeps the first gradient, adds later ones to it. Owners of the tensor count, not of its
/// memory: a view without other owners is kept as it is.
fn accumulate(eager: &mut Eager, leaf: &Rc<Leaf>, gradient: Tensor) {
    eager.recorder().note(Host::Leaf, 1);
    let kept = leaf.grad.borrow().clone();
    let Some(kept) = kept else {
        keep(eager, leaf, gradient);
        return tell(eager, leaf);
    };
    eager.launch(Kernel::Binary(Binary::Add), &[&kept, &gradient], &[&kept]);
    drop(kept);
    tell(eager, leaf);
    drop(gradient);
}

/// Tells watchers that a gradient is complete.
fn tell(eager: &mut Eager, leaf: &Leaf) {
    let Some(watcher) = eager.watcher.clone() else {
        return;
    };
    let (category, label) = (eager.category(), eager.label());
    watcher.gradient_is_ready(eager, leaf);
    eager.set_category(category);
    eager.set_label(&label);
}

/// Keeps a parameter's first gradient.
fn keep(eager: &mut Eager, leaf: &Rc<Leaf>, gradient: Tensor) {
    let stolen = Rc::strong_count(&gradient) == 1
        && (strides_match(&gradient.shape, &gradient.strides, &leaf.strides)
            || strides_match(
                &gradient.shape,
                &gradient.strides,
                &contiguous_strides(&gradient.shape),
            ));
    let mine = if stolen {
        gradient
    } else {
        let copy = eager.empty_strided(&gradient.shape, leaf.strides.clone(), gradient.dtype);
        eager.launch(Kernel::Copy, &[&gradient], &[&copy]);
        drop(gradient);
        Rc::new(copy)
    };
    if leaf.index < INPUTS {
        eager.relabel(&mine, Category::Gradients, &leaf.path);
    }
    *leaf.grad.borrow_mut() = Some(mine);
}

//! The autograd engine: which backward operation runs next, and what is alive meanwhile.
//!
//! See Note [Order of the backward pass].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::checkpoint::Frame;
use super::process::{Eager, Stop};
use super::tensor::{History, Leaf, Tensor, TensorBody};
use crate::program::{Binary, Category, Kernel};
use crate::shape::{DType, Sizes, contiguous_strides, is_dense, strides_like, strides_match};

/// Gradients of an operation's inputs from those of its outputs.
pub(crate) type Backward =
    Box<dyn FnOnce(&mut Eager, &[Option<Tensor>], &Saved) -> Vec<Option<Tensor>>>;

/// A backward formula with what it reads.
type Formula = (Backward, Vec<(&'static str, Slot)>);

/// One recorded operation.
pub(crate) struct GradFn {
    /// Later operations run first.
    sequence: u64,
    label: Arc<str>,
    outputs: usize,
    /// Where each input's gradient goes, and what it must look like there.
    edges: RefCell<Vec<Edge>>,
    body: RefCell<Option<Formula>>,
}

/// A part of an operation that never ran backward.
enum Part {
    Edge { _edge: Edge },
    Formula { _formula: Backward },
    Saved { _slot: Slot },
}

thread_local! {
    /// What is left of operations that are going, the next part last; and whether somebody lets it go already.
    static GOING: RefCell<Vec<Part>> = const { RefCell::new(Vec::new()) };
    static IS_LETTING_GO: Cell<bool> = const { Cell::new(false) };
}

/// Operations that never ran backward (their results were not used, or compilation was cancelled) own those before
/// them: a chain of any length. It goes part by part, in the order in which the fields would go by themselves,
/// because a call for each link would overflow the stack. PyTorch's `deleteNode` does the same.
impl Drop for GradFn {
    fn drop(&mut self) {
        let edges = self.edges.take();
        let body = self.body.take();
        if edges.is_empty() && body.is_none() {
            return;
        }
        GOING.with_borrow_mut(|going| {
            if let Some((formula, saved)) = body {
                let slots = saved.into_iter().rev();
                going.extend(slots.map(|(_, slot)| Part::Saved { _slot: slot }));
                going.push(Part::Formula { _formula: formula });
            }
            going.extend(
                edges
                    .into_iter()
                    .rev()
                    .map(|edge| Part::Edge { _edge: edge }),
            );
        });
        if IS_LETTING_GO.replace(true) {
            return;
        }
        while let Some(part) = GOING.with_borrow_mut(Vec::pop) {
            drop(part);
        }
        IS_LETTING_GO.set(false);
    }
}

/// An input of a recorded operation.
pub(crate) struct Edge {
    to: Option<History>,
    shape: Sizes,
    dtype: DType,
}

impl Edge {
    /// To where a tensor's gradient goes now.
    pub(super) fn of(eager: &Eager, tensor: &TensorBody) -> Edge {
        Edge {
            to: eager.history_of(tensor),
            shape: tensor.shape.clone(),
            dtype: tensor.dtype,
        }
    }

    /// Whether a gradient is wanted there.
    pub(super) fn is_wanted(&self) -> bool {
        self.to.is_some()
    }
}

impl GradFn {
    /// The latest operation so far.
    pub(super) fn record(
        eager: &Eager,
        outputs: usize,
        edges: Vec<Edge>,
        formula: Backward,
        saved: Vec<(&'static str, Slot)>,
    ) -> Rc<GradFn> {
        Rc::new(GradFn {
            sequence: eager.next_sequence(),
            label: eager.label(),
            outputs,
            edges: edges.into(),
            body: Some((formula, saved)).into(),
        })
    }
}

/// A saved tensor: held, or to be computed again.
pub(crate) enum Slot {
    /// Kept since the forward pass.
    Held(Tensor),
    /// Dropped under a checkpoint.
    Recomputed(Rc<Frame>, usize),
    /// Nothing but the checkpoint, whose inputs live as long as anything that was saved under it.
    Frame(Rc<Frame>),
}

/// The saved tensors of an operation, by the names that derivative formulas give them.
pub(crate) struct Saved(Vec<(&'static str, Tensor)>);

impl Saved {
    /// The tensor saved under this name.
    pub(crate) fn get(&self, name: &str) -> &Tensor {
        self.find(name)
            .expect("a backward formula asks only for what its forward saved")
    }

    /// All of them, in the order in which they were saved.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.0.iter().map(|(_, tensor)| tensor)
    }

    /// The tensor saved under this name, if there is one.
    pub(crate) fn find(&self, name: &str) -> Option<&Tensor> {
        let found = self.0.iter().find(|(saved, _)| *saved == name);
        found.map(|(_, tensor)| tensor)
    }
}

impl fmt::Debug for GradFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.label, self.sequence)
    }
}

/// An operation being recorded: made before its results, so that inputs are saved before they exist.
pub(crate) struct Draft {
    edges: Option<Vec<Edge>>,
    saved: Vec<(&'static str, Slot)>,
}

impl Draft {
    /// Starts recording an operation on these inputs; records nothing when no gradient is needed.
    pub(crate) fn new(eager: &Eager, inputs: &[Option<&Tensor>]) -> Draft {
        let needed =
            eager.grad_enabled && inputs.iter().flatten().any(|input| input.requires_grad());
        let edge = |input: Option<&Tensor>| match input {
            Some(tensor) => Edge::of(eager, tensor),
            None => Edge {
                to: None,
                shape: Sizes::default(),
                dtype: DType::Float32,
            },
        };
        Draft {
            edges: needed.then(|| inputs.iter().copied().map(edge).collect()),
            saved: Vec::new(),
        }
    }

    /// Whether a gradient will flow through this operation.
    pub(crate) fn is_recorded(&self) -> bool {
        self.edges.is_some()
    }

    /// Saves a tensor for the backward pass, or leaves a note of it under a checkpoint.
    ///
    /// Called in the order in which the node lets go of them: inputs by argument name, then outputs.
    pub(crate) fn save(
        &mut self,
        eager: &mut Eager,
        name: &'static str,
        tensor: &Tensor,
    ) -> Result<(), Stop> {
        if self.is_recorded() {
            let slot = eager.pack(tensor)?;
            self.saved.push((name, slot));
        }
        Ok(())
    }

    /// Keeps a tensor that is saved already.
    pub(crate) fn keep(&mut self, name: &'static str, tensor: Tensor) {
        self.saved.push((name, Slot::Held(tensor)));
    }

    /// Keeps a checkpoint alive until the operation has run backward.
    pub(crate) fn hold_frame(&mut self, frame: Rc<Frame>) {
        self.saved.push(("checkpoint", Slot::Frame(frame)));
    }

    /// Ends recording: these bodies become the operation's results.
    pub(crate) fn finish<const N: usize>(
        self,
        eager: &mut Eager,
        outputs: [TensorBody; N],
        backward: impl FnOnce(&mut Eager, &[Option<Tensor>], &Saved) -> Vec<Option<Tensor>> + 'static,
    ) -> [Tensor; N] {
        let outputs = self.finish_many(eager, outputs.into(), backward);
        outputs.try_into().expect("as many tensors as bodies")
    }

    /// [`Draft::finish`] for a number of results known at run time.
    pub(crate) fn finish_many(
        self,
        eager: &mut Eager,
        mut outputs: Vec<TensorBody>,
        backward: impl FnOnce(&mut Eager, &[Option<Tensor>], &Saved) -> Vec<Option<Tensor>> + 'static,
    ) -> Vec<Tensor> {
        if let Some(edges) = self.edges {
            let node = GradFn::record(eager, outputs.len(), edges, Box::new(backward), self.saved);
            for (index, output) in outputs.iter_mut().enumerate() {
                output.history = Some(History::Made(Rc::clone(&node), index)).into();
            }
        }
        outputs.into_iter().map(Rc::new).collect()
    }

    /// Ends the recording of an operation that wrote into its first operand, or made `output` instead.
    pub(crate) fn finish_into(
        self,
        eager: &mut Eager,
        written: Option<&Tensor>,
        output: TensorBody,
        backward: impl FnOnce(&mut Eager, &[Option<Tensor>], &Saved) -> Vec<Option<Tensor>> + 'static,
    ) -> Tensor {
        let Some(written) = written else {
            let [output] = self.finish(eager, [output], backward);
            return output;
        };
        drop(output);
        match self.edges {
            Some(edges) => eager.rewrite_history(written, edges, Box::new(backward), self.saved),
            None => written.count_write(),
        }
        Tensor::clone(written)
    }
}

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

/// Runs the backward pass from `root`, whose gradient is `seed`.
pub(crate) fn backward(eager: &mut Eager, root: &Tensor, seed: Tensor) -> Result<(), Stop> {
    let Some(History::Made(start, _)) = &eager.history_of(root) else {
        return Ok(());
    };
    let mut waiting = dependencies(start);
    let mut gradients: HashMap<u64, Vec<Option<Tensor>>> = HashMap::new();
    let start = Ready::GradFn(Rc::clone(start));
    gradients.insert(start.key(), vec![Some(seed)]);
    let mut heap = Heap::default();
    heap.push(start);
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
fn dependencies(start: &Rc<GradFn>) -> HashMap<u64, usize> {
    let mut waiting = HashMap::new();
    let mut stack = vec![Rc::clone(start)];
    while let Some(node) = stack.pop() {
        for edge in node.edges.borrow().iter() {
            let Some(to) = &edge.to else { continue };
            let (next, _) = Ready::of(to);
            let count = waiting.entry(next.key()).or_insert(0);
            *count += 1;
            if let (1, Ready::GradFn(next)) = (*count, next) {
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
        let strides = strides_like(&old.shape, &old.strides);
        let sum = eager.empty_strided(&old.shape, strides, old.dtype);
        eager.launch(Kernel::Binary(Binary::Add), &[&old, &gradient], &[&sum]);
        *kept = Some(Rc::new(sum));
    }
}

/// `AccumulateGrad`: keeps the first gradient, adds later ones to it. Owners of the tensor count, not of its
/// memory: a view that nobody else has is kept as it is.
fn accumulate(eager: &mut Eager, leaf: &Rc<Leaf>, gradient: Tensor) {
    let mut kept = leaf.grad.borrow_mut();
    if let Some(kept) = kept.as_ref() {
        eager.launch(Kernel::Binary(Binary::Add), &[kept, &gradient], &[kept]);
        return;
    }
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
    eager.relabel(&mine, Category::Gradients, &leaf.path);
    *kept = Some(mine);
}

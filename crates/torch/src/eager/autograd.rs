//! What autograd records: operations with their backward formulas, and what they save for them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::checkpoint::Frame;
use super::process::{Eager, Output, Stop};
use super::tensor::{History, Tensor, TensorBody};
use crate::shape::{DType, Sizes};

/// Gradients of an operation's inputs from those of its outputs.
pub type Backward = Box<dyn FnOnce(&mut Eager, &[Option<Tensor>], &Saved) -> Vec<Option<Tensor>>>;

/// A backward formula with what it reads.
pub(super) type Formula = (Backward, Vec<(&'static str, Slot)>);

/// One recorded operation.
pub struct GradFn {
    /// Later operations run first.
    pub(super) sequence: u64,
    pub(super) label: Arc<str>,
    pub(super) outputs: usize,
    /// Where each input's gradient goes, and what it must look like there.
    pub(super) edges: RefCell<Vec<Edge>>,
    pub(super) body: RefCell<Option<Formula>>,
    /// What runs when the gradients of its results are known, before it does.
    pub(super) hooks: RefCell<Vec<Hook>>,
}

/// `register_hook` of a tensor.
pub type Hook = Rc<dyn Fn(&mut Eager)>;

/// A part of an operation that never ran backward.
enum Part {
    Edge { _edge: Edge },
    Formula { _formula: Backward },
    Saved { _slot: Slot },
}

thread_local! {
    /// What is left of operations that are going, the next part last; and whether it is let go already.
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
pub struct Edge {
    pub(super) to: Option<History>,
    pub(super) shape: Sizes,
    pub(super) dtype: DType,
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
            hooks: RefCell::default(),
        })
    }
}

/// A saved tensor: held, or to be computed again.
pub enum Slot {
    /// Kept since the forward pass.
    Held(Tensor),
    /// Dropped under a checkpoint.
    Recomputed(Rc<Frame>, usize),
    /// Nothing but the checkpoint, whose inputs live as long as anything that was saved under it.
    Frame(Rc<Frame>),
}

/// The saved tensors of an operation, by the names that derivative formulas give them.
pub struct Saved(pub(super) Vec<(&'static str, Tensor)>);

impl Saved {
    /// The tensor saved under this name.
    pub fn get(&self, name: &str) -> &Tensor {
        self.find(name)
            .expect("a backward formula asks only for what its forward saved")
    }

    /// All of them, in the order in which they were saved.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.0.iter().map(|(_, tensor)| tensor)
    }

    /// The tensor saved under this name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
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
pub struct OpRecord {
    edges: Option<Vec<Edge>>,
    saved: Vec<(&'static str, Slot)>,
}

impl OpRecord {
    /// Starts recording an operation on these inputs; records nothing when no gradient is needed.
    pub fn new(eager: &Eager, inputs: &[Option<&Tensor>]) -> OpRecord {
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
        OpRecord {
            edges: needed.then(|| inputs.iter().copied().map(edge).collect()),
            saved: Vec::new(),
        }
    }

    /// Whether a gradient will flow through this operation.
    pub fn is_recorded(&self) -> bool {
        self.edges.is_some()
    }

    /// Saves a tensor, where there is one, for the backward pass, or leaves a note of it under a checkpoint.
    ///
    /// Called in the order in which the node lets go of them: inputs by argument name, then outputs.
    pub fn save<'a>(
        &mut self,
        eager: &mut Eager,
        name: &'static str,
        tensor: impl Into<Option<&'a Tensor>>,
    ) -> Result<(), Stop> {
        if let (true, Some(tensor)) = (self.is_recorded(), tensor.into()) {
            let slot = eager.pack(tensor)?;
            self.saved.push((name, slot));
        }
        Ok(())
    }

    /// Keeps a tensor that is saved already.
    pub fn keep(&mut self, name: &'static str, tensor: Tensor) {
        self.saved.push((name, Slot::Held(tensor)));
    }

    /// Keeps a checkpoint alive until the operation has run backward.
    pub fn hold_frame(&mut self, frame: Rc<Frame>) {
        self.saved.push(("checkpoint", Slot::Frame(frame)));
    }

    /// [`OpRecord::finish_many`] for one result: its backward formula runs where that has a gradient.
    pub fn finish_single(
        self,
        eager: &mut Eager,
        output: TensorBody,
        backward: impl FnOnce(&mut Eager, &Tensor, &Saved) -> Vec<Option<Tensor>> + 'static,
    ) -> Tensor {
        let backward = self.of_single(backward);
        self.finish_many(eager, vec![output], backward)
            .swap_remove(0)
    }

    /// [`OpRecord::finish_single`] with a gradient for the first input alone.
    pub fn finish_one(
        self,
        eager: &mut Eager,
        output: TensorBody,
        backward: impl FnOnce(&mut Eager, &Tensor, &Saved) -> Tensor + 'static,
    ) -> Tensor {
        self.finish_single(eager, output, |eager, gradient, saved| {
            vec![Some(backward(eager, gradient, saved))]
        })
    }

    fn of_single(
        &self,
        backward: impl FnOnce(&mut Eager, &Tensor, &Saved) -> Vec<Option<Tensor>> + 'static,
    ) -> impl FnOnce(&mut Eager, &[Option<Tensor>], &Saved) -> Vec<Option<Tensor>> + 'static {
        let inputs = self.edges.as_ref().map_or(0, Vec::len);
        move |eager, gradients, saved| match &gradients[0] {
            Some(gradient) => backward(eager, gradient, saved),
            None => vec![None; inputs],
        }
    }

    /// Ends recording: these bodies become the operation's results.
    pub fn finish_many(
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
    #[expect(clippy::unnecessary_wraps, reason = "operations end with it")]
    pub fn finish_into(
        self,
        eager: &mut Eager,
        written: Option<&Tensor>,
        output: TensorBody,
        backward: impl FnOnce(&mut Eager, &Tensor, &Saved) -> Vec<Option<Tensor>> + 'static,
    ) -> Output {
        let Some(written) = written else {
            return Ok(self.finish_single(eager, output, backward));
        };
        drop(output);
        let backward = self.of_single(backward);
        match self.edges {
            Some(edges) => eager.rewrite_history(written, edges, Box::new(backward), self.saved),
            None => written.count_write(),
        }
        Ok(Tensor::clone(written))
    }
}

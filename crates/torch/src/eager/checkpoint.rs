//! Activation checkpointing, as `torch.utils.checkpoint` with `use_reentrant=False` does it.
//!
//! See Note [Checkpointing] in the compiler's notes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::process::{Eager, Output, Stop};
use super::tensor::Tensor;
use crate::program::Host;
use crate::shape::DType;

/// A checkpointed call: runs it again.
pub type Region = Box<dyn Fn(&mut Eager) -> Result<(), Stop>>;

/// A checkpointed call: what it takes to run it again.
pub struct Frame {
    /// Runs the region. Owns the tensors from outside that it reads: they live as long as the frame.
    region: Region,
    autocast: Option<DType>,
    /// How many tensors the forward pass saved.
    noted: Cell<usize>,
    /// What the second run put back, each until it is used.
    restored: RefCell<Option<Vec<Option<Tensor>>>>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "checkpoint of {} saved tensors", self.noted.get())
    }
}

impl Frame {
    /// A frame for a region that has to run under this autocast.
    pub fn new(region: Region, autocast: Option<DType>) -> Rc<Frame> {
        Rc::new(Frame {
            region,
            autocast,
            noted: Cell::new(0),
            restored: RefCell::new(None),
        })
    }

    /// Notes that one more tensor was saved and dropped; gives its number.
    pub fn note(&self) -> usize {
        self.noted.replace(self.noted.get() + 1)
    }

    /// The tensor of this number, after running the region again if that has not happened.
    pub fn unpack(frame: &Rc<Frame>, eager: &mut Eager, index: usize) -> Output {
        if frame.restored.borrow().is_none() {
            frame.recompute(eager)?;
        }
        let mut restored = frame.restored.borrow_mut();
        let slot = restored.as_mut().and_then(|slots| slots.get_mut(index));
        let tensor = slot.and_then(Option::take);
        Ok(tensor.expect("the second run saves what the first one noted"))
    }

    fn recompute(self: &Rc<Frame>, eager: &mut Eager) -> Result<(), Stop> {
        *self.restored.borrow_mut() = Some(vec![None; self.noted.get()]);
        eager.recorder().note(Host::Checkpoint, 1);
        let outside = (eager.autocast, eager.grad_enabled, eager.casts.take());
        eager.autocast = self.autocast;
        eager.grad_enabled = true;
        let ended = eager.restoring(self, |eager| (self.region)(eager));
        // Early stop is how a recomputation normally ends; a region that saves nothing runs through.
        match ended {
            Err(Stop::Cancelled) => return Err(Stop::Cancelled),
            Err(Stop::Restored) => {}
            Ok(()) => debug_assert!(self.noted.get() == 0, "the second run saved less"),
        }
        eager.casts.clear();
        (eager.autocast, eager.grad_enabled, eager.casts) = outside;
        Ok(())
    }
}

/// A second run under way.
#[derive(Debug)]
pub struct Recomputation {
    frame: Rc<Frame>,
    done: usize,
}

impl Recomputation {
    pub fn of(frame: &Rc<Frame>) -> Recomputation {
        Recomputation {
            frame: Rc::clone(frame),
            done: 0,
        }
    }

    /// Puts the next saved tensor in its place; stops after the last.
    pub fn restore(&mut self, tensor: &Tensor) -> Result<(), Stop> {
        let mut restored = self.frame.restored.borrow_mut();
        let slots = restored.as_mut().expect("made before the second run");
        slots[self.done] = Some(tensor.detached());
        self.done += 1;
        if self.done == slots.len() {
            Err(Stop::Restored)
        } else {
            Ok(())
        }
    }
}

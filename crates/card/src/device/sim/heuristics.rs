//! What simulations may ask about convolutions that were never recorded.

use std::fmt::Debug;
use std::path::Path;
use std::sync::OnceLock;

use crate::program::Convolution;
use crate::units::Bytes;

use super::Card;

/// What answers what cuDNN's heuristics say of a card that is not there.
pub trait Heuristics: Debug + Send + Sync {
    /// Which cuDNN: its version.
    fn version(&self) -> &str;

    /// The folder that it is loaded from; empty where it is found without being told.
    fn folder(&self) -> &Path;

    /// What the plan that would be tried first is given; `None` where there is no answer.
    fn first_workspace(&self, card: &'static Card, call: &Convolution) -> Option<Bytes>;

    /// What all plans are given, in the order in which they are tried: a question that takes much longer.
    fn workspaces(&self, card: &'static Card, call: &Convolution) -> Option<Vec<Bytes>>;

    /// Asks about the first plans of several at a time, which is faster, so that the answers are there when they are wanted.
    fn ask_ahead(&self, _card: &'static Card, _calls: &[Convolution]) {}
}

static ASKED: OnceLock<Box<dyn Heuristics>> = OnceLock::new();

/// Says whom simulations of this process ask, before the first of them; later it changes nothing.
pub fn set_heuristics(heuristics: Box<dyn Heuristics>) {
    ASKED.get_or_init(|| heuristics);
}

/// Who is asked; `None` where convolutions that are in no table are estimated.
pub fn installed_heuristics() -> Option<&'static dyn Heuristics> {
    ASKED.get().map(Box::as_ref)
}

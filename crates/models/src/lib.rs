//! From a description of a model to a forward graph, and how the fields of a document are read and refused. It knows `batchfit-torch`, and
//! no card.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`exported`] | graphs that `torch.export` wrote |
//! | [`presets`] | torchvision's models and some of transformers', by name |
//! | [`huggingface`] | transformers' models by their `config.json` |
//! | [`layers`] | a list of layers |
//! | `tracing` | the modules and the tracer that presets, configs and layers are built with |
//! | `generation`, `lengths` | what is asked of a model's inputs |
//! | [`members`] | what a request may say: a row for each member |
//! | `fields`, `invalid`, `words` | reading fields, saying what is wrong with them, and what others call them |

pub mod exported;
mod fields;
mod generation;
pub mod huggingface;
pub mod layers;
mod lengths;
pub mod members;
pub mod presets;
mod request_error;
mod synonyms;
mod tracing;

/// The PyTorch whose behaviour is predicted.
pub const PYTORCH: &str = "2.11";

pub use fields::{Fields, LARGEST, Readable, choice, whole, wrong};
pub use generation::{Generation, KeptIn, MOST_SOAKED, Sampling};
pub use lengths::{Length, LengthCount, LengthOf, Lengths};
pub use request_error::{RequestError, nearest};
pub use synonyms::{NAMES as OTHER_NAMES, same as same_value};

use batchfit_step::{Globs, limits, shape};
use batchfit_torch::{aten, compile, graph, ops};

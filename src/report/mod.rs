//! Answers for people: text tables and drawings. JSON comes from the types themselves.
//!
//! Everything here gives a `String` that ends in a line break, as wide and colourful as a [`Style`] says.

mod agents;
mod answers;
mod cards;
mod device;
mod fit;
mod formats;
mod gaps;
mod outcomes;
mod preset;
mod probe;
mod program;
mod recordings;
mod replay;
mod search;
mod sequence;
mod soak;
mod style;
mod svg;
mod table;
mod times;
mod virtual_gpu;
mod why;
mod wrap;

pub use agents::agents;
pub use answers::{answer, answers, near};
pub use cards::{card, cards, machines};
pub use device::devices;
pub use fit::fit;
pub use formats::{Answer, Form, NOTHING_FITS, markdown, no_env, overview};
pub use gaps::gaps;
pub use outcomes::{accuracy, outcome, outcomes};
pub use preset::presets;
pub use probe::probe;
pub use program::program;
pub use recordings::recordings;
pub use replay::replay;
pub use search::{search, search_env};
pub use sequence::{Requested, sequence, unmatched};
pub use soak::soak;
pub use style::{BOLD, DIM, RESET, Style};
pub use svg::{probe_svg, replay_svg};
pub use times::times;
pub use virtual_gpu::{virtual_gpu, virtual_gpu_markdown};
pub use why::why;

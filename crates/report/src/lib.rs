//! Answers for people: text tables and drawings. JSON comes from the types themselves.
//!
//! Everything here gives a `String` that ends in a line break, as wide and colourful as a [`Style`] says.

mod device;
pub mod fit;
mod formats;
mod preset;
pub mod probe;
mod program;
mod recordings;
mod replay;
mod sequence;
pub mod soak;
pub mod style;
mod svg;
mod times;
mod virtual_gpu;
pub mod why;

pub use device::devices;
pub use fit::{ShownRequest, fit};
pub use formats::{Answer, Form, NOTHING_FITS, markdown, no_env, overview};
pub use preset::presets;
pub use probe::probe;
pub use program::program;
pub use recordings::recordings;
pub use replay::replay;
pub use sequence::{Requested, sequence, unmatched};
pub use soak::soak;
pub use style::{BOLD, DIM, RESET, Style};
pub use svg::{probe_svg, replay_svg};
pub use times::times;
pub use virtual_gpu::{virtual_gpu, virtual_gpu_markdown};
pub use why::why;

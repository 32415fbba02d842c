//! A step program on a card that is not there. It knows `batchfit-step` and nothing of graphs, requests or real GPUs.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`alloc`] | the caching allocator, a behavioural twin of PyTorch's; owns the seam to segments |
//! | [`device`] | what programs run on, and the simulated cards |
//! | [`timing`] | how long a step takes: its launches against a card's ceilings and the host's pace |
//! | [`probe`] | runs a program on a device for three steps and gives the verdict |
//! | [`replay`] | repeats what PyTorch's allocator was recorded to do, and asks what if |

pub mod alloc;
pub mod device;
pub mod probe;
pub mod replay;
pub mod timing;

use batchfit_step::{limits, order, program, shape, units};

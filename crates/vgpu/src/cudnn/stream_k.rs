//! What a kernel keeps that splits sums over multiprocessors: without a device cuDNN counts 18 multiprocessors, whatever it is told. See Note
//! [Splits of a sum] of `crates/cuda/src/cudnn/NOTES.md`.

use self::rule::{Kernel, Processor, WORKSPACE};
use super::convolution::{Convolution, Operation, Type as DType};
use super::{Opaque, engine};
use crate::config::Card;

// The rule of the simulator, in its own format.
#[rustfmt::skip]
#[path = "../../../cuda/src/cudnn/absent/stream_k.rs"]
mod rule;

/// What a plan of a configuration is given on a card of compute capability 9.0; `None` of engines that split nothing. On 8.x and 12.0 none of
/// these is ever first, and on 10.0 the number of parts is a knob.
pub(super) fn workspace(configuration: Opaque, call: &Convolution, card: &Card) -> Option<u64> {
    if (card.major, card.minor) != (9, 0) || card.multiprocessors <= 0 || card.memory_clock <= 0 {
        return None;
    }
    let processor =
        Processor { multiprocessors: u64::try_from(card.multiprocessors).ok()?, clocks: f64::from(card.clock) / f64::from(card.memory_clock) };
    let mut knobs = engine::knobs(configuration)?;
    let kernel = Kernel::of(engine::engine_number(configuration)?, &knobs, call)?;
    for (knob, value) in &mut knobs {
        if *knob == WORKSPACE {
            *value = 1;
        }
    }
    let alone = engine::workspace_with(configuration, &knobs)?;
    Some(kernel.workspace(call, &processor, alone))
}

//! What the host does for a step, and for how long.

use crate::program::Host;

/// Seconds of the host for each thing it does.
///
/// Fitted by `tests/record/times_check.py --fit` to how long steps of the calibration models of `tests/golden/times/split.json` took where the card
/// waits for the host. See Note [The host's pace].
pub fn seconds(host: Host) -> f64 {
    1e-6 * match host {
        Host::Module => 8.2,
        Host::Operator => 19.9,
        Host::BackwardLaunch => 25.9,
        Host::Leaf => 14.5,
        Host::Update => 32.0,
        Host::AdamUpdate => 36.8,
        // Some eight operators each (`_single_tensor_adamw` in torch/optim/adam.py); not fitted.
        Host::LoneUpdate => 8.0 * 19.9,
        Host::Checkpoint => 1147.0,
        // Fitted together: every model of the calibration had one micro-step for each step.
        Host::MicroStep => 591.0,
        Host::Step => 300.0,
    }
}

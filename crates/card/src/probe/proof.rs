//! What a real probe has to show before its verdict counts.

use super::report::StepMemory;

/// Why finished steps prove nothing, if so: without kernels, memory that fits was never used.
pub(super) fn lacking(steps: &[StepMemory]) -> Option<String> {
    let idle = steps.iter().position(|step| step.launches == 0);
    match idle {
        Some(index) => Some(format!(
            "step {} launched no kernels, so the probe proves nothing",
            index + 1
        )),
        None if steps.is_empty() => Some("no step ran, so the probe proves nothing".to_owned()),
        None => None,
    }
}

/// What is odd about the losses of steps that ran. Memory does not depend on them: weights and batch are
/// random, and random values may overflow in half precision.
pub(super) fn notes(steps: &[StepMemory]) -> Vec<String> {
    let infinite = steps
        .iter()
        .position(|step| step.losses.iter().any(Option::is_none));
    if let Some(index) = infinite {
        return vec![format!(
            "the loss is not a finite number in step {}: random weights and data overflow in this \
             precision; memory does not depend on it",
            index + 1
        )];
    }
    let mut losses = steps.iter().flat_map(|step| &step.losses).flatten();
    let Some(first) = losses.next() else {
        return Vec::new();
    };
    let mut others = losses.peekable();
    if others.peek().is_some() && others.all(|loss| loss.to_bits() == first.to_bits()) {
        return vec![format!(
            "the loss is {first} in every step: kernels ran, but nothing shows that they trained"
        )];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(launches: u64, loss: Option<f64>) -> StepMemory {
        StepMemory {
            launches,
            losses: vec![loss],
            ..StepMemory::default()
        }
    }

    #[test]
    fn a_step_without_launches_proves_nothing() {
        let steps = [step(40, Some(2.3)), step(0, Some(2.2))];

        assert_eq!(
            lacking(&steps).unwrap(),
            "step 2 launched no kernels, so the probe proves nothing"
        );
        assert!(lacking(&[]).is_some());
        assert_eq!(lacking(&steps[..1]), None);
    }

    #[test]
    fn an_infinite_loss_is_said() {
        let steps = [step(40, Some(2.3)), step(40, None)];

        assert!(notes(&steps)[0].starts_with("the loss is not a finite number in step 2:"));
    }

    #[test]
    fn a_loss_that_never_changes_is_said() {
        let stuck = [step(40, Some(2.5)), step(40, Some(2.5))];
        let moving = [step(40, Some(2.5)), step(40, Some(2.25))];

        assert!(notes(&stuck)[0].starts_with("the loss is 2.5 in every step"));
        assert_eq!(notes(&moving), Vec::<String>::new());
    }

    #[test]
    fn a_simulation_has_no_losses_to_remark_on() {
        assert_eq!(notes(&vec![StepMemory::default(); 3]), Vec::<String>::new());
    }
}

//! The search for elements that a launch leaves unwritten.

use batchfit::device::LaunchError;
use batchfit::device::cuda::{Outputs, Script};
use batchfit::program::{Binary, Call, Kernel, View};
use batchfit::shape::DType;

use crate::card::{Card, strided};

fn poisoning() -> Card {
    let mut card = Card::open();
    card.launcher.follow(Script {
        outputs: Outputs::Poisoned,
        ..Script::default()
    });
    card
}

fn launch(
    card: &mut Card,
    kernel: Kernel,
    inputs: &[&View],
    output: &View,
) -> Result<(), LaunchError> {
    card.launch(&Call {
        kernel,
        inputs: inputs.iter().map(|view| (*view).clone()).collect(),
        outputs: vec![output.clone()],
        workspace: None,
    })
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_element_that_looks_unwritten_is_named() {
    let mut card = poisoning();
    // A copy of the pattern cannot be told from what was there.
    let x = card.tensor(DType::Int64, &[2, 3], &[4.0, 0.0, 7.0, 8.0, -1.0, -1.0]);
    let y = card.empty(DType::Int64, &[2, 3]);

    let error = launch(&mut card, Kernel::Copy, &[&x], &y).unwrap_err();

    let text = error.to_string();
    assert!(text.starts_with("Copy failed"), "{text}");
    assert!(
        text.contains("it left 2 of the 6 elements of output 0"),
        "{text}"
    );
    assert!(text.contains("the first is number 4"), "{text}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn only_what_a_view_shows_is_poisoned() {
    let mut card = poisoning();
    for dtype in [DType::Float32, DType::BFloat16, DType::Bool, DType::Float64] {
        let whole = card.tensor(dtype, &[2, 4], &[1.0; 8]);
        let x = card.tensor(dtype, &[2, 2], &[0.0, 1.0, 1.0, 0.0]);

        launch(
            &mut card,
            Kernel::Copy,
            &[&x],
            &strided(&whole, 1, &[2, 2], &[4, 2]),
        )
        .unwrap();

        let expected = [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0];
        assert_eq!(card.read(&whole), expected, "{dtype}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_updated_in_place_keeps_its_values() {
    let mut card = poisoning();
    let sum = card.tensor(DType::Float32, &[3], &[1.0, 2.0, 3.0]);
    let x = card.tensor(DType::Float32, &[3], &[10.0, 20.0, 30.0]);

    launch(&mut card, Kernel::Binary(Binary::Add), &[&sum, &x], &sum).unwrap();

    assert_eq!(card.read(&sum), [11.0, 22.0, 33.0]);
}

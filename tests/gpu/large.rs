//! Tensors of more than 2^31 elements, where 32-bit indices end.

use batchfit::program::{Form, Generated, Kernel, Number};
use batchfit::shape::DType;

use super::card::{Card, strided};

const COUNT: u64 = (1 << 31) + 8 * 1027;

#[test]
#[ignore = "needs an NVIDIA GPU with 24 GiB of free memory"]
fn indices_have_more_than_31_bits() {
    let mut card = Card::open();
    let bytes = card.empty(DType::UInt8, &[COUNT]);
    let map = Generated::map("remainder", Vec::new(), "result = index % modulus;")
        .with("modulus", Number::Whole(251));
    card.run(map.into(), &[], &[&bytes]);

    let total = card.empty(DType::Int64, &[1]);
    let form = Form::Reduce {
        dims: vec![0],
        state: "i64".into(),
        start: "s = 0;".into(),
        step: "s += x;".into(),
        merge: "s += o;".into(),
        finish: "y = s;".into(),
    };
    card.run(
        Generated::of("sum", ["x"], ["y"], form).into(),
        &[&bytes],
        &[&total],
    );
    let (rounds, rest) = (COUNT / 251, COUNT % 251);
    let expected = rounds * (250 * 251 / 2) + rest * (rest.saturating_sub(1)) / 2;
    assert_eq!(card.read(&total), [expected as f64]);

    // By coordinates: the last of each row of a matrix whose rows are far apart.
    let rows = 8;
    let seen = strided(&bytes, 0, &[rows, COUNT / rows], &[COUNT / rows, 1]);
    let last = card.empty(DType::Int64, &[rows]);
    let form = Form::Each {
        over: 1,
        without: Vec::new(),
        body: "y.set(x(i[0], x.size(1) - 1), i[0]);".into(),
    };
    card.run(
        Generated::of("last", ["x"], ["y"], form).into(),
        &[&seen],
        &[&last],
    );
    let expected: Vec<f64> = (1..=rows)
        .map(|row| ((row * (COUNT / rows) - 1) % 251) as f64)
        .collect();
    assert_eq!(card.read(&last), expected);

    // A row longer than that, and the tuned copy.
    let half = card.empty(DType::BFloat16, &[COUNT]);
    let form = Form::Rows {
        dims: vec![0],
        body: "for_each(j) y.set(x(j) == 250 ? 1 : 0, j);".into(),
    };
    card.run(
        Generated::of("is last", ["x"], ["y"], form).into(),
        &[&bytes],
        &[&half],
    );
    let copy = card.empty(DType::BFloat16, &[COUNT]);
    card.run(Kernel::Copy, &[&half], &[&copy]);
    let sum = card.empty(DType::Float32, &[1]);
    card.run(Kernel::Sum { scale: 1.0 }, &[&copy], &[&sum]);
    let found = card.read(&sum)[0];
    assert!(
        (found - rounds as f64).abs() < 1e-3 * rounds as f64,
        "{found} is not {rounds}"
    );
}

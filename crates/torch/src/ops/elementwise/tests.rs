//! Every row through reading, shapes, simulation, autocast and gradients, and against recorded calls.

use super::row::{Formula, Gradient, ResultType, Row, Tuned};
use super::table::TABLE;
use super::{ATEN, Elementwise, Operand, row};
use crate::ops::Op;
use crate::ops::calls::{Argument, Call, Done, compare};
use crate::ops::prelude::*;

/// A row that only tests have: all that holds for the others holds for it, and nothing else knows of it.
pub(super) const ROWS: &str = r#"[{
    "aten": ["aten.test_only.default", "aten.test_only_.default"],
    "operands": ["self"],
    "attributes": ["strength"],
    "result": "real",
    "casts": "high",
    "gradients": ["0: like like"],
    "computes": "self * strength",
    "derives": ["grad * strength"]
}]"#;

#[test]
fn conditions_look_at_arguments_that_the_row_has() {
    for row in TABLE.iter() {
        let formulas = row.derivatives.iter().chain([&row.formula]);
        let of_formulas = formulas.filter_map(|formula| match formula {
            Formula::By(cases) => Some(cases.iter().flat_map(|(conditions, _)| *conditions)),
            Formula::None | Formula::Text(_) => None,
        });
        let of_gradients = row.gradients.iter().filter_map(|gradient| match gradient {
            Gradient::By(cases) => Some(cases.iter().flat_map(|(conditions, _)| *conditions)),
            _ => None,
        });
        let mut names = (of_formulas.flatten().chain(of_gradients.flatten())).map(|it| it.name);
        let is_known = |name| row.operands.contains(&name) || row.attributes.contains(&name);
        assert!(
            names.all(|name| name.is_empty() || is_known(name)),
            "{row:?}"
        );
    }
}

/// In `tests/record/elementwise.py`, why these are not recorded.
fn unrecorded(target: &str) -> bool {
    let looks_at_values = ["aten.normal.Tensor_Tensor", "aten.normal.float_Tensor"];
    let is_never_called = ["aten.copy.default", "aten.normal_functional.default"];
    let cannot_be_trained = ["aten.special_zeta.other_scalar"];
    let has_no_derivative_in_place = [
        "acosh_", "asinh_", "atanh_", "arccosh_", "arcsinh_", "arctanh_",
    ];
    looks_at_values.contains(&target)
        || cannot_be_trained.contains(&target)
        || is_never_called.contains(&target)
        || has_no_derivative_in_place
            .iter()
            .any(|name| target.contains(name))
        || target.starts_with("aten.test_only")
}

#[test]
fn recorded_calls_allocate_and_free_what_pytorch_does() {
    let seen = compare("elementwise");

    let missing = ATEN.iter().map(|(name, _)| *name);
    let missing: Vec<&str> = missing
        .filter(|name| !seen.contains(*name) && !unrecorded(name))
        .collect();
    assert!(missing.is_empty(), "no recording of {missing:?}");
}

/// The operator of a call, by what is read.
fn read(done: Op) -> Elementwise {
    match done {
        Op::Elementwise(op) => op,
        other => panic!("{} is not elementwise", other.name()),
    }
}

/// A call of a row's operator on tensors alone, all of whose fractions are trained.
fn plain_call(row: &Row, target: &str, autocast: bool) -> Call {
    let fraction = if autocast {
        DType::BFloat16
    } else {
        DType::Float32
    };
    let shape = vec![Extent::BATCH, Extent::fixed(6)];
    let mut arguments: Vec<(String, Argument)> = Vec::new();
    for name in &row.operands {
        let is_truth = ["condition", "mask"].contains(name);
        let of = match *name {
            _ if is_truth => (DType::Bool, shape.clone()),
            "weight" if target.contains("prelu") => (fraction, vec![Extent::fixed(6)]),
            _ => (fraction, shape.clone()),
        };
        let trained = !is_truth;
        arguments.push(((*name).to_owned(), Argument::Tensor { of, trained }));
    }
    for name in &row.attributes {
        arguments.push((
            (*name).to_owned(),
            Argument::Other(r#"{"as_float":0.75}"#.into()),
        ));
    }
    Call {
        target: target.to_owned(),
        autocast,
        arguments,
    }
}

#[test]
fn every_row_is_read_shaped_simulated_and_differentiated() {
    for row in TABLE.iter() {
        for target in &row.aten {
            for autocast in [false, true] {
                let call = plain_call(row, target, autocast);
                let Done {
                    op,
                    inferred,
                    result,
                    is_recorded,
                    gradients,
                    kernels,
                    ..
                } = call.run();

                let op = read(op);
                let about = format!("{target}, autocast {autocast}");
                assert_eq!(op.target(), *target, "{about}");
                for name in &row.attributes {
                    assert_eq!(
                        op.attribute(name),
                        Some(&Constant::Real(0.75)),
                        "{about}: {name}"
                    );
                }
                assert_eq!(inferred.1, result.1, "{about}: shape");
                if !autocast {
                    assert_eq!(inferred.0, result.0, "{about}: type");
                }
                if row.result == ResultType::Truth && op.placement() == Placement::New {
                    assert_eq!(result.0, DType::Bool, "{about}");
                }
                let in_place = op.placement() == Placement::InPlace;
                let has_formula = |position: usize| match row.in_place {
                    Some(gradients) if in_place && position < 2 => {
                        !matches!(gradients[position], Gradient::None)
                    }
                    _ => {
                        row.together.is_some() || !matches!(row.gradients[position], Gradient::None)
                    }
                };
                let differentiated = (0..row.operands.len()).any(has_formula);
                // What is overwritten keeps the history it had.
                assert_eq!(
                    is_recorded,
                    differentiated || in_place,
                    "{about}: a derivative"
                );
                for (position, name) in row.operands.iter().enumerate() {
                    let Some(gradient) = gradients.get(*name) else {
                        continue;
                    };
                    let keeps_history = in_place && !differentiated && position == 0;
                    let has_gradient = has_formula(position) || keeps_history;
                    assert_eq!(gradient.is_some(), has_gradient, "{about}: {name}");
                    if let (Some((dtype, shape)), Argument::Tensor { of, .. }) =
                        (gradient, &call.arguments[position].1)
                    {
                        assert_eq!(
                            (*dtype, numel(shape)),
                            (of.0, numel(&of.1)),
                            "{about}: {name}"
                        );
                    }
                }
                assert!(!kernels.is_empty(), "{about}: no launch");
            }
        }
    }
}

#[test]
fn fractions_are_what_autocast_makes_float32() {
    let of = |target: &str| {
        let (_, row) = super::read::find(target).unwrap();
        plain_call(row, target, true).run().result.0
    };

    assert_eq!(of("aten.exp.default"), DType::Float32);
    assert_eq!(of("aten.exp_.default"), DType::BFloat16);
    assert_eq!(of("aten.test_only.default"), DType::Float32);
    assert_eq!(of("aten.sin.default"), DType::BFloat16);
}

#[test]
fn numbers_are_kept_with_their_kind_and_value() {
    let call = |line: &str| read(Call::of(line).run().op);

    let clamp = call("aten.clamp.default self=f32[4] min=-3 max=0.5");
    let less = call("aten.lt.Scalar self=f32[4] other=2");
    let slope = call("aten.leaky_relu.default self=f32[4]");

    let number = |value| Operand::Number(value);
    assert_eq!(
        clamp.operands,
        [
            Operand::Tensor,
            number(Constant::Whole(-3)),
            number(Constant::Real(0.5))
        ]
    );
    assert_eq!(less.operands, [Operand::Tensor, number(Constant::Whole(2))]);
    assert_eq!(
        slope.attribute("negative_slope"),
        Some(&Constant::Real(0.01))
    );
    let written = serde_json::to_string(&clamp).unwrap();
    assert_eq!(
        written,
        r#"{"target":"aten.clamp.default","operands":["tensor",{"Whole":-3},{"Real":0.5}],"attributes":[]}"#
    );
}

/// Of these no kernel can be made.
fn has_no_kernel(target: &str) -> bool {
    // C has it for types of 32 and 64 bits.
    target.contains("nextafter")
}

/// Which operands an overload takes as numbers alone.
fn numbers_of(target: &str) -> &'static [usize] {
    let name = target.trim_start_matches("aten.");
    if ["pow.Scalar", "float_power.Scalar", "normal.float_Tensor"].contains(&name) {
        &[0]
    } else if name.starts_with("lerp") && name.contains("Scalar") {
        &[2]
    } else if name.starts_with("cl") && name.ends_with("default") && !name.contains("clamp_m") {
        &[1, 2]
    } else if name.contains("pow") && name.contains("Scalar") {
        &[1]
    } else {
        &[]
    }
}

/// Every row is computed, forward and backward, in place too, of fractions and of halves, with tensors and with a number
/// in the place of each operand.
#[test]
fn every_row_is_computed() {
    let number = || Argument::Other(r#"{"as_float":0.75}"#.into());
    let mut gaps = Vec::new();
    for row in TABLE.iter() {
        for target in &row.aten {
            for autocast in [false, true] {
                let call = |written: &[usize]| {
                    let mut call = plain_call(row, target, autocast);
                    for position in written {
                        call.arguments[*position].1 = number();
                    }
                    // Texts.
                    call.arguments
                        .retain(|(name, _)| name != "rounding_mode" && name != "approximate");
                    call
                };
                let numbers = numbers_of(target);
                let mut calls = vec![call(numbers)];
                let takes_numbers = numbers.is_empty() && !target.contains("prelu");
                for position in (1..row.operands.len()).filter(|_| takes_numbers) {
                    calls.push(call(&[position]));
                }
                for call in calls {
                    let kernels = call.run().kernels;
                    let mut kernels = kernels.iter();
                    let gap = kernels.any(|kernel| matches!(kernel, Kernel::MemoryOnly(_)));
                    if gap && !(autocast && has_no_kernel(target)) {
                        gaps.push(*target);
                    }
                }
            }
        }
    }
    gaps.dedup();
    assert!(gaps.is_empty(), "without a kernel: {gaps:?}");
    assert_eq!(
        row::default("gelu", "approximate"),
        Some(Constant::Text("none".into()))
    );
}

/// Each function with a tuned kernel is launched with it, where that takes the operands.
#[test]
fn tuned_kernels_are_launched_by_their_names() {
    for row in TABLE.iter() {
        if matches!(row.tuned, Tuned::None) {
            continue;
        }
        let run = |operand: &str| {
            let others = "other=2.0 exponent=2.0 min_val=0.0 max_val=6.0";
            Call::of(&format!("{} {operand} {others}", row.aten[0]))
                .run()
                .kernels
        };
        let is_generated = |kernel: &Kernel| matches!(kernel, Kernel::Generated(_));

        let (single, double) = (run("self=f32[4]!"), run("self=f64[4]!"));

        assert!(!single.iter().any(is_generated), "{}", row.aten[0]);
        assert!(is_generated(&double[0]), "{}", row.aten[0]);
    }
}

#[test]
fn quotients_of_whole_numbers_are_fractions_unless_rounded() {
    let quotient = |mode: &str| {
        let call = format!("aten.div.Tensor_mode self=i64[4] other=i64[4] {mode}");
        let done = Call::of(&call).run();
        assert_eq!(done.inferred.0, done.result.0);
        assert!(matches!(done.kernels[..], [Kernel::Generated(_)]));
        done.result.0
    };

    assert_eq!(quotient(""), DType::Float32);
    assert_eq!(quotient("rounding_mode=floor"), DType::Int64);
}

/// Numbers and fractions are of the type that operands promote to, and only what a formula reads is read.
#[test]
fn formulas_are_typed() {
    let kernel = |line: &str| match Call::of(line).run().kernels.remove(0) {
        Kernel::Generated(generated) => *generated,
        other => panic!("{other:?}"),
    };
    let body = |generated: &Generated| match &generated.form {
        Form::Map(body) => body.clone().into_owned(),
        other => panic!("{other:?}"),
    };

    let compared = kernel("aten.lt.Scalar self=i64[4] other=0.5");
    let counted = kernel("aten.sub.Tensor self=i32[4] other=i64[4]");
    let filled = kernel("aten.masked_fill.Scalar self=bf16[4] mask=bool[4] value=-1.0");
    let copied = kernel("aten.copy.default self=f32[4] src=i64[4]");

    assert_eq!(
        body(&compared),
        "typedef float C; result = (C)self < (C)other;"
    );
    assert_eq!(
        body(&counted),
        "typedef i64 C; result = (C)self - (C)alpha * (C)other;"
    );
    assert_eq!(
        body(&filled),
        "typedef float C; result = (C)mask ? (C)value : (C)self;"
    );
    assert_eq!(copied.inputs, ["src"]);
}

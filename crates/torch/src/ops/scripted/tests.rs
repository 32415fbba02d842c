//! Every row through reading, shapes, simulation, autocast and gradients; its recorded calls are compared with all others.

use super::text::{Command, Instruction, Lengths, Size};
use super::*;
use crate::ops::Op;
use crate::ops::calls::{Argument, Call, Done, argument};
use crate::ops::prelude::*;

/// A row that only tests have: all that holds for the others holds for it, and nothing else knows of it.
pub(super) const ROWS: &str = r#"[{
    "aten": ["aten.test_only_scripted.default"],
    "operands": [["self", "Lm"], ["other", "m"]],
    "attributes": ["strength"],
    "casts": "high",
    "forward": "+Lm y0=Lm -Lm",
    "saves": ["other=1?0", "self=0?1"],
    "backward": "0?( +Lm g0=Lm -Lm ) 1?( +Lm g1=m -Lm )"
}]"#;

#[test]
fn what_rows_name_there_is() {
    for name in TABLE.iter().filter_map(|row| row.more) {
        assert!(read::MORE.iter().any(|(known, _)| *known == name), "{name}");
    }
}

fn sizes(line: &Command, found: &mut Vec<Size>) {
    for word in &line.0 {
        match word {
            Instruction::Make(size) | Instruction::Free(size) => found.push(*size),
            Instruction::Result { source, .. } => match source {
                Source::Made(size) => found.push(*size),
                Source::Operand(_) => {}
            },
            Instruction::Gradient { size, .. } => found.extend(size),
            Instruction::UseBlas | Instruction::UseBlasLt => {}
            Instruction::If { then, .. } => sizes(then, found),
            Instruction::Repeat { what, .. } => sizes(what, found),
        }
    }
}

#[test]
fn every_line_reads_and_speaks_of_lengths_that_the_row_has() {
    for row in TABLE.iter() {
        let lines = [Some(row.forward), row.backward];
        for text in lines.into_iter().flatten() {
            let line = Command::of(text).unwrap();
            let mut found = Vec::new();
            sizes(&line, &mut found);
            let known: String = row.operands.iter().map(|(_, pattern)| *pattern).collect();
            for letter in found.iter().flat_map(|size| size.letters.chars()) {
                let from_others = letter.is_ascii_digit()
                    || (letter == 'X' && known.contains('L') && known.contains('M'))
                    || (letter == 'k' && known.contains('m') && known.contains('n'))
                    || row.more.is_some();
                assert!(
                    from_others || known.contains(letter),
                    "{letter} in {text:?} of {row:?}"
                );
            }
        }
    }
}

#[test]
fn what_is_let_go_of_was_made() {
    for row in TABLE.iter() {
        for text in [Some(row.forward), row.backward].into_iter().flatten() {
            let made: Vec<&str> = text
                .split(' ')
                .filter_map(|word| word.strip_prefix('+'))
                .collect();
            for free in text.split(' ').filter_map(|word| word.strip_prefix('-')) {
                assert!(made.contains(&free), "-{free} in {text:?} of {row:?}");
            }
        }
    }
}

#[test]
fn a_capital_stands_for_the_dimensions_that_single_letters_leave() {
    let mut lengths = Lengths::new(&[]);
    let shape: Vec<Extent> = [8, 3, 24, 16].map(Extent::fixed).into();

    lengths.bind("Lmn", &shape).unwrap();
    lengths.complete().unwrap();

    let Instruction::Make(size) = &Command::of("+Lk").unwrap().0[0] else {
        panic!("it makes something");
    };
    assert_eq!(lengths.shape(size).unwrap(), [8, 3, 16].map(Extent::fixed));
    assert!(lengths.bind("Lmn", &shape[..1]).is_err());
    assert!(Command::of("1?( +Lmn").is_err());
    assert!(Command::of("+Lmn )").is_err());
}

/// A call of a row's operator, all of whose fractions are trained. Letters stand for some lengths.
fn plain_call(row: &Row, target: &str, autocast: bool) -> Call {
    let fraction = if autocast { "bf16" } else { "f32" };
    let tensor = |(name, pattern): &(&str, &str)| {
        let lengths = pattern.chars().map(|letter| match letter {
            'B' => "2,3,4,2",
            'P' => "1",
            'A'..='Z' => "2,3",
            'm' | 'q' => "6",
            'n' | 'p' => "4",
            'b' | 't' => "3",
            _ => "5",
        });
        let lengths: Vec<&str> = lengths.collect();
        let lengths = lengths.join(",");
        let is_whole = ["indices", "pivots", "zero_point"].contains(name);
        argument(&if is_whole {
            format!("{name}=i64[{lengths}]")
        } else {
            format!("{name}={fraction}[{lengths}]!")
        })
    };
    let given = |name: &&str| {
        Some(argument(match *name {
            "dim" => "dim=1",
            "dims" => "dims=[0,1]",
            "input_sizes" => "input_sizes=[2,9]",
            "num_samples" => "num_samples=3",
            "pooled_height" => "pooled_height=2",
            "pooled_width" => "pooled_width=2",
            "size" => "size=3",
            "step" => "step=2",
            "strength" => "strength=0.75",
            _ => return None,
        }))
    };
    let mut arguments: Vec<_> = row.operands.iter().map(tensor).collect();
    arguments.extend(row.attributes.iter().filter_map(given));
    if target == "aten.unfold_backward.default" {
        arguments.push(argument("input_sizes=[2,9]"));
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

                let about = format!("{target}, autocast {autocast}");
                let Op::Scripted(op) = op else {
                    panic!("{about}: read as {}", op.name());
                };
                assert_eq!((op.target, op.row), (*target, row), "{about}");
                let named: Vec<&str> = op.attributes.iter().map(|(name, _)| *name).collect();
                let given = call.arguments.iter().map(|(name, _)| name.as_str());
                let given: Vec<&str> = given.filter(|name| row.attributes.contains(name)).collect();
                for name in given.iter().filter(|name| !name.starts_with("dims")) {
                    assert!(named.contains(name), "{about}: {name}");
                }
                assert_eq!(inferred.1, result.1, "{about}: shape");
                let first = Command::of(row.forward)
                    .unwrap()
                    .results(&op.holds)
                    .first()
                    .copied();
                let is_of_operands = match first {
                    Some(Source::Made(size)) => size.dtype.is_none(),
                    Some(Source::Operand(_)) | None => false,
                };
                let expected = if autocast && row.casts != Casts::High {
                    DType::BFloat16
                } else {
                    DType::Float32
                };
                if is_of_operands {
                    assert_eq!(result.0, expected, "{about}: type");
                }
                let backward = row.backward.unwrap_or_default();
                let has_gradient = !row.forward.contains("y0!=") && result.0.is_float();
                assert_eq!(
                    is_recorded,
                    row.backward.is_some() && has_gradient,
                    "{about}"
                );
                for (position, (name, _)) in row.operands.iter().enumerate() {
                    let Argument::Tensor { of, trained: true } = &call.arguments[position].1 else {
                        continue;
                    };
                    let is_wanted = is_recorded && backward.contains(&format!("g{position}="));
                    let gradient = &gradients[*name];
                    assert_eq!(gradient.is_some(), is_wanted, "{about}: {name}");
                    if let Some((dtype, shape)) = gradient {
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

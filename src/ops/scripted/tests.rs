use super::table::TABLES;
use super::text::{Lengths, Line, Size, Word};
use super::*;

fn sizes(line: &Line, found: &mut Vec<Size>) {
    for word in &line.0 {
        match word {
            Word::Make(size) | Word::Free(size) => found.push(*size),
            Word::Result { source, .. } => match source {
                Source::Made(size) => found.push(*size),
                Source::Operand(_) => {}
            },
            Word::Gradient { size, .. } => found.extend(size),
            Word::UseBlas | Word::UseBlasLt => {}
            Word::If { then, .. } => sizes(then, found),
            Word::Repeat { what, .. } => sizes(what, found),
        }
    }
}

#[test]
fn every_line_reads_and_speaks_of_lengths_that_the_row_has() {
    for row in TABLES.iter().copied().flatten() {
        let lines = [Some(row.forward), row.backward];
        for text in lines.into_iter().flatten() {
            let line = Line::of(text).unwrap();
            let mut found = Vec::new();
            sizes(&line, &mut found);
            let known: String = row.operands.iter().map(|(_, pattern)| *pattern).collect();
            for letter in found.iter().flat_map(|size| size.letters.chars()) {
                let from_others = letter.is_ascii_digit()
                    || (letter == 'X' && known.contains('L') && known.contains('M'))
                    || (letter == 'k' && known.contains('m') && known.contains('n'))
                    || row.more.is_some();
                assert!(from_others || known.contains(letter), "{letter} in {text:?} of {row:?}");
            }
        }
    }
}

#[test]
fn what_is_let_go_of_was_made() {
    for row in TABLES.iter().copied().flatten() {
        for text in [Some(row.forward), row.backward].into_iter().flatten() {
            let made: Vec<&str> = text.split(' ').filter_map(|word| word.strip_prefix('+')).collect();
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

    let Word::Make(size) = &Line::of("+Lk").unwrap().0[0] else {
        panic!("it makes something");
    };
    assert_eq!(lengths.shape(size).unwrap(), [8, 3, 16].map(Extent::fixed));
    assert!(lengths.bind("Lmn", &shape[..1]).is_err());
    assert!(Line::of("1?( +Lmn").is_err());
    assert!(Line::of("+Lmn )").is_err());
}

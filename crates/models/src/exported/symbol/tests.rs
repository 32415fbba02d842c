//! Sizes as they are written, and what they are read as.

use proptest::prelude::*;

use super::*;

fn read(symbols: &mut Symbols, text: &str) -> Result<String, SymbolError> {
    symbols.extent(text).map(|extent| extent.to_string())
}

fn problem(symbols: &mut Symbols, text: &str) -> String {
    match symbols.extent(text).unwrap_err() {
        SymbolError::Refused(problem) => problem,
        SymbolError::OfValues(symbol) => symbol,
    }
}

/// The rows of a table, where `S` is a symbol.
fn rows(table: &'static str) -> impl Iterator<Item = (String, String)> {
    let symbol = |text: &str| text.replace('S', "Symbol('s0', positive=True, integer=True)");
    let rows = table.lines().filter_map(|row| row.split_once(" => "));
    rows.map(move |(left, right)| (symbol(left), symbol(right)))
}

#[test]
fn products_sums_and_steps_of_one_symbol_are_extents() {
    let mut symbols = Symbols::default();
    for (text, expected) in rows(include_str!("extents.txt")) {
        let extent = read(&mut symbols, &text).unwrap();
        assert_eq!(
            extent.replace(['(', ')'], ""),
            expected.replace(['(', ')'], ""),
            "{text}"
        );
    }
}

#[test]
fn what_python_writes_is_read_like_what_sympy_does() {
    let mut symbols = Symbols::default();
    for (python, sympy) in rows(include_str!("python.txt")) {
        let expected = read(&mut symbols, &sympy).unwrap();
        assert_eq!(read(&mut symbols, &python), Ok(expected), "{python}");
    }
    assert_eq!(read(&mut symbols, "8 - 2 - 1"), Ok("5".into()));
    assert_eq!(read(&mut symbols, "6*s0/2"), Ok("3b".into()));
    assert_eq!(
        read(&mut symbols, "u3 + 1"),
        Err(SymbolError::OfValues("u3".into()))
    );
}

#[test]
fn what_is_no_such_size_is_refused() {
    let mut symbols = Symbols::default();
    symbols.extent("Symbol('s0')").unwrap();
    let mut problem = |text: &str| problem(&mut symbols, text);

    assert!(problem("Symbol('s1')").contains("two symbolic sizes, s0 and s1"));
    assert!(problem("Zeta(Symbol('s0'), Integer(2))").contains("Zeta"));
    assert!(problem("Mul(Integer(2), Symbol('s0')").contains("cannot read"));
    assert!(problem("Pow(Symbol('s0'), Integer(3))").contains("too large"));
    assert!(problem("Pow(Symbol('s0'), Integer(99999999999))").contains("too large"));
    assert!(problem("FloorDiv(Symbol('s0'), Integer(0))").contains("intricate"));
    assert!(problem(&"Mul(".repeat(1000)).contains("too deep"));
    assert!(problem("").contains("cannot read"));
    for text in [
        "(s0", "s0)", "s0 +", "s0 s0", "s0 & 1", "2.5*s0", "()", "Max()", "(s0)(2)",
    ] {
        let problem = problem(text);
        assert!(problem.contains(&format!("{text:?}")), "{problem}");
    }
    assert!(problem("s0 + 9223372036854775808").contains("below 2^63"));
    assert!(problem("s0/2 + s0/2").contains("without a remainder"));
    assert!(problem("1/0").contains("without a remainder"));
    assert!(problem("(-9223372036854775807 - 1)/-1").contains("without a remainder"));
    assert!(problem("2**64").contains("too large"));
    assert!(problem(&"(".repeat(1000)).contains("too deep"));
    assert!(problem(&"-".repeat(1000)).contains("too deep"));
    assert!(problem(&"2**".repeat(1000)).contains("too deep"));
}

#[test]
fn a_size_of_values_is_what_it_was_bound_to() {
    let mut symbols = Symbols::default();
    let text = "Mul(Integer(2), Symbol('u3', integer=True))";

    assert_eq!(
        read(&mut symbols, text),
        Err(SymbolError::OfValues("u3".into()))
    );
    assert!(symbols.bind("u3", Extent::per_sample(5)));
    assert!(!symbols.bind("u3", Extent::per_sample(5)));
    assert_eq!(read(&mut symbols, text), Ok("10b".into()));
    assert_eq!(symbol_of_values("Symbol('u3', integer=True)"), Some("u3"));
    assert_eq!(symbol_of_values("Symbol('s3')"), None);
    assert_eq!(symbol_of_values(text), None);
    let long = format!("Symbol('u{}')", "3".repeat(300));
    assert_eq!(symbol_of_values(&long), None);
}

/// An expression in Python's signs, and its value at each of some batches as far as 128 bits and division by
/// positive numbers go.
#[derive(Debug, Clone)]
struct Expected {
    text: String,
    values: Vec<Option<i128>>,
}

const BATCHES: [i128; 6] = [1, 2, 3, 7, 64, 1009];

fn leaf() -> impl Strategy<Value = Expected> {
    let numbers = [0, 1, 2, 3, 7, 64, 1 << 31, 1 << 33, i128::from(i64::MAX)];
    let number = proptest::sample::select(numbers.to_vec()).prop_map(|number| Expected {
        text: number.to_string(),
        values: vec![Some(number); BATCHES.len()],
    });
    let batch = Just(Expected {
        text: "s0".to_owned(),
        values: BATCHES.map(Some).to_vec(),
    });
    prop_oneof![number, batch]
}

fn calculated(sign: &str, a: i128, b: i128) -> Option<i128> {
    match sign {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "//" => (b > 0).then(|| a.div_euclid(b)),
        _ => (b > 0).then(|| a.rem_euclid(b)),
    }
}

fn expected() -> impl Strategy<Value = Expected> {
    leaf().prop_recursive(5, 24, 2, |inner| {
        let signs = proptest::sample::select(&["+", "-", "*", "//", "%", "/", "Max", "Min"][..]);
        (inner.clone(), signs, inner).prop_map(|(a, sign, b)| {
            let pairs = a.values.iter().zip(&b.values);
            let is_checked = ["+", "-", "*", "//", "%"].contains(&sign);
            let value = |(a, b): (&Option<i128>, &Option<i128>)| calculated(sign, (*a)?, (*b)?);
            Expected {
                text: match sign {
                    "Max" | "Min" => format!("{sign}({}, {})", a.text, b.text),
                    sign => format!("({}){sign}({})", a.text, b.text),
                },
                values: pairs
                    .map(|pair| value(pair).filter(|_| is_checked))
                    .collect(),
            }
        })
    })
}

#[test]
fn what_a_document_repeats_is_read_once_or_so_often() {
    let mut symbols = Symbols::default();
    assert!(symbols.bind("u0", Extent::ONE));
    let long = " + 0".repeat(MOST_READ / 16);

    for _ in 0..10 {
        assert_eq!(read(&mut symbols, &format!("1{long}")), Ok("1".to_owned()));
    }
    let of_values = format!("u0{long}");
    for _ in 0..2 {
        assert_eq!(read(&mut symbols, &of_values), Ok("1".to_owned()));
    }
    assert_eq!(
        problem(&mut symbols, &of_values),
        "its sizes are longer than 8 MiB in all"
    );
}

proptest! {
    #[test]
    fn what_is_read_is_what_python_calculates(expected in expected()) {
        if let Ok(read) = Symbols::default().extent(&expected.text) {
            for (batch, value) in BATCHES.into_iter().zip(&expected.values) {
                let batch = u64::try_from(batch).unwrap();
                if let Some(value) = value.filter(|value| (0..1 << 62).contains(value)) {
                    prop_assert_eq!(i128::from(read.at(batch)), value, "{} at {}", expected.text, batch);
                }
            }
        }
    }
}

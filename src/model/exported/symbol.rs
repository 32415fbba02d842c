//! Symbolic sizes: sympy's `srepr` of a length, as a function of the batch.

use std::collections::HashMap;

use crate::shape::Extent;

/// Deepest nesting read; the expressions PyTorch writes for batched shapes nest a few deep.
const DEPTH: usize = 32;

/// Why a size is not known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It depends on a symbol whose value follows from the values of a tensor.
    OfValues(String),
    /// It is not understood.
    Refused(String),
}

/// The symbols of a graph: the batch, learnt from the first expression that has one, and sizes that depend on
/// the values of tensors.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    batch: Option<String>,
    /// What stands for sizes that depend on values.
    of_values: HashMap<String, Extent>,
}

impl Symbols {
    /// The name of the batch, once an expression has had it.
    pub(super) fn batch(&self) -> Option<&str> {
        self.batch.as_deref()
    }

    /// The extent that `text` stands for, such as `Mul(Integer(1024), Symbol('s17', integer=True))`.
    pub(super) fn extent(&mut self, text: &str) -> Result<Extent, Unread> {
        let mut parser = Parser {
            rest: text,
            symbols: self,
        };
        let extent = parser.expression(DEPTH)?;
        if parser.rest.is_empty() {
            Ok(extent)
        } else {
            Err(Unread::Refused(format!("cannot read {text:?} as a size")))
        }
    }

    /// Says what stands for a size that depends on values.
    pub(super) fn bind(&mut self, symbol: &str, extent: Extent) {
        self.of_values.insert(symbol.to_owned(), extent);
    }
}

/// The symbol that an expression is, if it is nothing else and depends on values.
pub(super) fn symbol_of_values(text: &str) -> Option<&str> {
    let name = text.strip_prefix("Symbol(")?.split([',', ')']).next()?;
    let name = name.trim().trim_matches(['\'', '"']);
    is_of_values(name).then_some(name)
}

/// `torch.fx.experimental.symbolic_shapes` numbers sizes that depend on values as `u0`, `u1`; sizes of inputs are
/// `s0`, `s77`.
fn is_of_values(name: &str) -> bool {
    let digits = name.strip_prefix('u');
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()))
}

struct Parser<'t, 's> {
    rest: &'t str,
    symbols: &'s mut Symbols,
}

impl<'t> Parser<'t, '_> {
    fn expression(&mut self, depth: usize) -> Result<Extent, Unread> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Unread::Refused("a size nests too deep".into()));
        };
        let Some((function, rest)) = self.rest.split_once('(') else {
            return Err(self.unreadable());
        };
        self.rest = rest;
        let refused = |problem: String| Err(Unread::Refused(problem));
        match function.trim() {
            "Symbol" => self.symbol(),
            "Integer" => self.integer().map(Extent::signed),
            "Mul" => self.fold(depth, "times", Extent::checked_mul),
            "Add" => self.fold(depth, "plus", Extent::checked_add),
            "Max" => self.fold(depth, "or, if that is larger,", Extent::larger),
            "Min" => self.fold(depth, "or, if that is smaller,", Extent::smaller),
            "Pow" | "PowByNatural" => self.power(depth),
            "FloorDiv" | "CleanDiv" | "IntTrueDiv" => {
                self.fold(depth, "divided by", |whole, by| match by.as_fixed() {
                    Some(by) => whole.floor_div(by),
                    None => whole.checked_div(by),
                })
            }
            // The remainder of a positive divisor, in Python's sense.
            "Mod" | "PythonMod" => self.fold(depth, "modulo", |whole, by| {
                by.as_fixed().and_then(|by| whole.remainder(by))
            }),
            // Of what is whole already, once it is divided.
            "TruncToInt" | "FloorToInt" | "ToFloat" | "Identity" => {
                self.fold(depth, "and", |_, _| None)
            }
            "CeilToInt" => self.ceiling(depth),
            other => refused(format!(
                "a size uses {other:?}; only sums, products, quotients, remainders, maxima and minima of the batch \
                 size are read"
            )),
        }
    }

    fn unreadable(&self) -> Unread {
        Unread::Refused(format!("cannot read {:?} as a size", self.rest))
    }

    fn symbol(&mut self) -> Result<Extent, Unread> {
        let arguments = self.until_closed()?;
        let name = arguments
            .split(',')
            .next()
            .unwrap_or_default()
            .trim()
            .trim_matches(['\'', '"']);
        if is_of_values(name) {
            let known = self.symbols.of_values.get(name).copied();
            return known.ok_or_else(|| Unread::OfValues(name.to_owned()));
        }
        match &self.symbols.batch {
            None => self.symbols.batch = Some(name.to_owned()),
            Some(batch) if batch == name => {}
            Some(batch) => {
                return Err(Unread::Refused(format!(
                    "two symbolic sizes, {batch} and {name}; export with the batch as the only dynamic dimension"
                )));
            }
        }
        Ok(Extent::BATCH)
    }

    fn integer(&mut self) -> Result<i64, Unread> {
        let text = self.until_closed()?;
        text.trim()
            .parse()
            .map_err(|_| Unread::Refused(format!("{text:?} is not a size")))
    }

    /// Reads `CeilToInt(IntTrueDiv(EXPRESSION, EXPRESSION)))`: a quotient rounded up.
    fn ceiling(&mut self, depth: usize) -> Result<Extent, Unread> {
        let inside = self.rest.trim_start().strip_prefix("IntTrueDiv(");
        self.rest = inside.ok_or_else(|| self.unreadable())?;
        let up = self.fold(depth, "divided by", |whole, by| {
            let by = by.as_fixed()?;
            let most = Extent::fixed(by.checked_sub(1)?);
            whole.checked_add(most)?.floor_div(by)
        })?;
        let closed = self.rest.trim_start().strip_prefix(')');
        self.rest = closed.ok_or_else(|| self.unreadable())?;
        Ok(up)
    }

    /// Reads `EXPRESSION, EXPRESSION, …)` and combines them.
    fn fold(
        &mut self,
        depth: usize,
        function: &str,
        mut combine: impl FnMut(Extent, Extent) -> Option<Extent>,
    ) -> Result<Extent, Unread> {
        let mut result: Option<Extent> = None;
        loop {
            let term = self.expression(depth)?;
            let combined = match result {
                None => term,
                Some(first) => combine(first, term).ok_or_else(|| {
                    Unread::Refused(format!(
                        "a size of {first} {function} {term} is too large or too intricate"
                    ))
                })?,
            };
            result = Some(combined);
            let rest = self.rest.trim_start();
            if let Some(rest) = rest.strip_prefix(',') {
                self.rest = rest.trim_start();
            } else if let Some(rest) = rest.strip_prefix(')') {
                self.rest = rest;
                return Ok(combined);
            } else {
                return Err(self.unreadable());
            }
        }
    }

    /// Reads `EXPRESSION, Integer(2))`, which is how sympy writes a square.
    fn power(&mut self, depth: usize) -> Result<Extent, Unread> {
        self.fold(depth, "to the power of", |base, exponent| {
            let factors = std::iter::repeat_n(base, usize::try_from(exponent.as_fixed()?).ok()?);
            let mut factors = factors.take(4);
            factors.try_fold(Extent::ONE, Extent::checked_mul)
        })
    }

    fn until_closed(&mut self) -> Result<&'t str, Unread> {
        let (inside, rest) = self.rest.split_once(')').ok_or_else(|| self.unreadable())?;
        self.rest = rest;
        Ok(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(symbols: &mut Symbols, text: &str) -> Result<String, Unread> {
        symbols.extent(text).map(|extent| extent.to_string())
    }

    fn problem(symbols: &mut Symbols, text: &str) -> String {
        match symbols.extent(text).unwrap_err() {
            Unread::Refused(problem) => problem,
            Unread::OfValues(symbol) => symbol,
        }
    }

    #[test]
    fn products_sums_and_steps_of_one_symbol_are_extents() {
        let mut symbols = Symbols::default();
        let b = "Symbol('s77', positive=True, integer=True)";
        for (text, expected) in [
            (b.to_owned(), "b"),
            (format!("Mul(Integer(1024), {b})"), "1024b"),
            (format!("Add(Mul(Integer(2), {b}), Integer(3))"), "2b+3"),
            (format!("Add({b}, Integer(-1))"), "b-1"),
            (format!("Mul({b}, {b})"), "b²"),
            (format!("Mul(Integer(3), Pow({b}, Integer(2)))"), "3b²"),
            (
                format!("FloorDiv(Add({b}, Integer(1)), Integer(2))"),
                "-⌊b/2⌋+b",
            ),
            (format!("FloorDiv(Mul(Integer(6), {b}), Integer(2))"), "3b"),
            (
                format!("Mul(Integer(2), FloorDiv({b}, Integer(2)))"),
                "2⌊b/2⌋",
            ),
            (format!("Max(Integer(7), {b})"), "max(b-7,0)+7"),
            (format!("Max(Integer(1), {b})"), "b"),
            (format!("Mod({b}, Integer(3))"), "-3⌊b/3⌋+b"),
            (format!("CeilToInt(IntTrueDiv({b}, Integer(4)))"), "⌊b+3/4⌋"),
            (format!("TruncToInt(IntTrueDiv({b}, Integer(4)))"), "⌊b/4⌋"),
        ] {
            let extent = read(&mut symbols, &text).unwrap();
            assert_eq!(
                extent.replace(['(', ')'], ""),
                expected.replace(['(', ')'], ""),
                "{text}"
            );
        }
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
    }

    #[test]
    fn a_size_of_values_is_what_it_was_bound_to() {
        let mut symbols = Symbols::default();
        let text = "Mul(Integer(2), Symbol('u3', integer=True))";

        assert_eq!(read(&mut symbols, text), Err(Unread::OfValues("u3".into())));
        symbols.bind("u3", Extent::per_sample(5));
        assert_eq!(read(&mut symbols, text), Ok("10b".into()));
        assert_eq!(symbol_of_values("Symbol('u3', integer=True)"), Some("u3"));
        assert_eq!(symbol_of_values("Symbol('s3')"), None);
        assert_eq!(symbol_of_values(text), None);
    }
}

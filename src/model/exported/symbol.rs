//! Symbolic sizes: sympy's `srepr` of a length, as a polynomial of the batch.

use crate::shape::Extent;

/// Deepest nesting read; the expressions PyTorch writes for batched shapes nest three deep.
const DEPTH: usize = 32;

/// The one symbol of a graph, learnt from the first expression that has one.
#[derive(Debug, Default)]
pub(super) struct BatchSymbol {
    name: Option<String>,
}

impl BatchSymbol {
    /// Its name, once an expression has had it.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The extent that `text` stands for, such as `Mul(Integer(1024), Symbol('s17', integer=True))`.
    pub(super) fn extent(&mut self, text: &str) -> Result<Extent, String> {
        let mut parser = Parser {
            rest: text,
            symbol: self,
        };
        let extent = parser.expression(DEPTH)?;
        if parser.rest.is_empty() {
            Ok(extent)
        } else {
            Err(format!("cannot read {text:?} as a size"))
        }
    }
}

struct Parser<'t, 's> {
    rest: &'t str,
    symbol: &'s mut BatchSymbol,
}

impl<'t> Parser<'t, '_> {
    fn expression(&mut self, depth: usize) -> Result<Extent, String> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err("a size nests too deep".into());
        };
        let Some((function, rest)) = self.rest.split_once('(') else {
            return Err(format!("cannot read {:?} as a size", self.rest));
        };
        self.rest = rest;
        match function.trim() {
            "Symbol" => self.symbol(),
            "Integer" => self.integer().map(Extent::fixed),
            "Mul" => self.fold(depth, Extent::ONE, Extent::checked_mul),
            "Pow" => self.power(depth),
            "Add" => self.fold(depth, Extent::ZERO, |a, b| Some(a + b)),
            other => Err(format!(
                "a size uses {other:?}; only sums and products of the batch size are read"
            )),
        }
    }

    fn symbol(&mut self) -> Result<Extent, String> {
        let arguments = self.until_closed()?;
        let name = arguments
            .split(',')
            .next()
            .unwrap_or_default()
            .trim()
            .trim_matches(['\'', '"']);
        match &self.symbol.name {
            None => self.symbol.name = Some(name.to_owned()),
            Some(batch) if batch == name => {}
            Some(batch) => {
                return Err(format!(
                    "two symbolic sizes, {batch} and {name}; export with the batch as the only dynamic dimension"
                ));
            }
        }
        Ok(Extent::BATCH)
    }

    fn integer(&mut self) -> Result<u64, String> {
        let text = self.until_closed()?;
        text.trim()
            .parse()
            .map_err(|_| format!("{text:?} is not a size"))
    }

    /// Reads `EXPRESSION, EXPRESSION, …)` and combines them.
    fn fold(
        &mut self,
        depth: usize,
        start: Extent,
        mut combine: impl FnMut(Extent, Extent) -> Option<Extent>,
    ) -> Result<Extent, String> {
        let mut result = start;
        loop {
            let term = self.expression(depth)?;
            result = combine(result, term)
                .ok_or_else(|| format!("a size of {result} times {term} is too large"))?;
            let rest = self.rest.trim_start();
            if let Some(rest) = rest.strip_prefix(',') {
                self.rest = rest.trim_start();
            } else if let Some(rest) = rest.strip_prefix(')') {
                self.rest = rest;
                return Ok(result);
            } else {
                return Err(format!("cannot read {rest:?} as a size"));
            }
        }
    }

    /// Reads `EXPRESSION, Integer(2))`, which is how sympy writes a square.
    fn power(&mut self, depth: usize) -> Result<Extent, String> {
        let mut factors = Vec::new();
        // Both arguments are read as factors of a product, so that separators are handled once.
        self.fold(depth, Extent::ONE, |_, term| {
            factors.push(term);
            Some(term)
        })?;
        match factors.as_slice() {
            [base, exponent] if exponent.as_fixed() == Some(2) => base.checked_mul(*base),
            _ => None,
        }
        .ok_or_else(|| "a size is a power other than a square".to_owned())
    }

    fn until_closed(&mut self) -> Result<&'t str, String> {
        let (inside, rest) = self
            .rest
            .split_once(')')
            .ok_or_else(|| format!("cannot read {:?} as a size", self.rest))?;
        self.rest = rest;
        Ok(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_sums_of_one_symbol_are_extents() {
        let mut symbol = BatchSymbol::default();
        let mut read = |text: &str| symbol.extent(text).map(|extent| extent.to_string());

        assert_eq!(
            read("Symbol('s77', positive=True, integer=True)"),
            Ok("b".into())
        );
        assert_eq!(
            read("Mul(Integer(1024), Symbol('s77', positive=True, integer=True))"),
            Ok("1024b".into())
        );
        assert_eq!(
            read("Add(Mul(Integer(2), Symbol('s77')), Integer(3))"),
            Ok("2b+3".into())
        );
        assert_eq!(read("Mul(Symbol('s77'), Symbol('s77'))"), Ok("b²".into()));
        assert_eq!(
            read("Mul(Integer(3), Pow(Symbol('s77'), Integer(2)))"),
            Ok("3b²".into())
        );
    }

    #[test]
    fn what_is_no_such_polynomial_is_refused() {
        let mut symbol = BatchSymbol::default();
        symbol.extent("Symbol('s0')").unwrap();
        let mut problem = |text: &str| symbol.extent(text).unwrap_err();

        assert!(problem("Symbol('s1')").contains("two symbolic sizes, s0 and s1"));
        assert!(problem("FloorDiv(Symbol('s0'), Integer(2))").contains("FloorDiv"));
        assert!(problem("Mul(Integer(2), Symbol('s0')").contains("cannot read"));
        assert!(problem("Integer(-1)").contains("-1"));
        assert!(problem(&"Mul(".repeat(1000)).contains("too deep"));
        assert!(problem("").contains("cannot read"));
    }
}

//! Symbolic sizes: a length as a function of the batch, in sympy's `srepr`, as PyTorch 2.11 writes it
//! (`torch._export.serde.serialize._print_sympy`), or in Python's signs, as older releases and people do.

use std::collections::HashMap;

use crate::limits::{is_cancelled, shorten};
use crate::shape::Extent;

/// Deepest nesting read; the expressions PyTorch writes for batched shapes nest a few deep.
const DEPTH: usize = 32;

/// Most bytes of all expressions: 80,000 of a hundred characters. PyTorch's have 20 to 100. Each counts once, or where it depends on values as often as it is read.
const MOST_READ: usize = 8 << 20;

/// Why a size is not known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SymbolError {
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
    /// What the length of samples is, where the graph leaves it open, and the name that it has there once an expression had it.
    length: Option<u64>,
    named: Option<String>,
    /// What stands for sizes that depend on values.
    of_values: HashMap<String, Extent>,
    /// Expressions that were read: a document may repeat one without end.
    known: HashMap<String, Extent>,
    /// Bytes that were read.
    read: usize,
    /// Whether what is read now depends on values.
    is_of_values: bool,
}

impl Symbols {
    /// Symbols of a graph whose samples are of this length, if that is its second symbolic size.
    pub(super) fn with_length(length: Option<u64>) -> Symbols {
        Symbols {
            length,
            ..Symbols::default()
        }
    }

    /// The name of the length of samples, once an expression has had it.
    pub(super) fn named(&self) -> Option<&str> {
        self.named.as_deref()
    }

    /// The name of the batch, once an expression has had it.
    pub(super) fn batch(&self) -> Option<&str> {
        self.batch.as_deref()
    }

    /// The extent that `text` stands for, such as `Mul(Integer(1024), Symbol('s17', integer=True))`.
    pub(super) fn extent(&mut self, text: &str) -> Result<Extent, SymbolError> {
        if let Some(known) = self.known.get(text) {
            return Ok(*known);
        }
        self.read += text.len();
        if self.read > MOST_READ || is_cancelled() {
            let problem = format!("its sizes are longer than {} MiB in all", MOST_READ >> 20);
            return Err(SymbolError::Refused(problem));
        }
        self.is_of_values = false;
        let mut parser = Parser {
            whole: text,
            rest: text,
            symbols: self,
        };
        let extent = parser.expression(DEPTH, 0)?;
        if !parser.rest.is_empty() {
            return Err(parser.unreadable());
        }
        if !self.is_of_values {
            self.known.insert(text.to_owned(), extent);
        }
        Ok(extent)
    }

    /// Says what stands for a size that depends on values, and whether that is new.
    pub(super) fn bind(&mut self, symbol: &str, extent: Extent) -> bool {
        let is_new = self.of_values.get(symbol) != Some(&extent);
        if is_new {
            self.of_values.insert(symbol.to_owned(), extent);
        }
        is_new
    }
}

/// The symbol that an expression is, if it is nothing else and depends on values.
pub(super) fn symbol_of_values(text: &str) -> Option<&str> {
    /// Bytes of the longest that is looked at; PyTorch's have 30, and each assumption of sympy some 15 more.
    const LONGEST: usize = 256;
    if text.len() > LONGEST {
        return None;
    }
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
    whole: &'t str,
    rest: &'t str,
    symbols: &'s mut Symbols,
}

/// What combines two sizes: its names in sympy and PyTorch (`torch.utils._sympy.functions`), what it is called in an
/// error, and what it makes.
type Function = (
    &'static [&'static str],
    &'static str,
    fn(Extent, Extent) -> Option<Extent>,
);

const FUNCTIONS: [Function; 10] = [
    (&["Add", "+"], "plus", Extent::checked_add),
    (&["-"], "less", Extent::checked_sub),
    (&["Mul", "*"], "times", Extent::checked_mul),
    (&["Pow", "PowByNatural", "**"], "to the power of", power),
    (
        &["FloorDiv", "CleanDiv", "IntTrueDiv", "//"],
        "divided by",
        |whole, by| match by.as_fixed() {
            Some(by) => whole.floor_div(by),
            None => whole.checked_div(by),
        },
    ),
    // Halves of something odd may come together again: only what stays whole is read.
    (
        &["/"],
        "divided without a remainder by",
        Extent::checked_div,
    ),
    (&["CeilDiv"], "divided by", ceiling),
    // The remainder of a positive divisor, in Python's sense.
    (&["Mod", "PythonMod", "%"], "modulo", |whole, by| {
        by.as_fixed().and_then(|by| whole.remainder(by))
    }),
    (&["Max"], "or, if that is larger,", Extent::larger),
    (&["Min"], "or, if that is smaller,", Extent::smaller),
];

/// Python's operators between sizes, and how tightly each binds; `**` before `*`, which it begins with.
const OPERATORS: [(&str, u8); 7] = [
    ("**", 3),
    ("*", 2),
    ("//", 2),
    ("/", 2),
    ("%", 2),
    ("+", 1),
    ("-", 1),
];

fn function(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|(names, ..)| names.contains(&name))
}

/// More factors than this make more than 63 bits of any base above one.
const MOST_FACTORS: usize = 63;

fn power(base: Extent, exponent: Extent) -> Option<Extent> {
    let exponent = usize::try_from(exponent.as_fixed()?).ok();
    let factors = exponent.filter(|factors| *factors <= MOST_FACTORS)?;
    std::iter::repeat_n(base, factors).try_fold(Extent::ONE, Extent::checked_mul)
}

/// A quotient rounded up.
fn ceiling(whole: Extent, by: Extent) -> Option<Extent> {
    let by = by.as_fixed()?;
    let most = Extent::fixed(by.checked_sub(1)?);
    whole.checked_add(most)?.floor_div(by)
}

fn combine((_, verb, make): &Function, first: Extent, then: Extent) -> Result<Extent, SymbolError> {
    make(first, then).ok_or_else(|| {
        SymbolError::Refused(format!(
            "a size of {first} {verb} {then} is too large or too intricate"
        ))
    })
}

impl<'t> Parser<'t, '_> {
    /// Reads an expression up to the first operator that binds less tightly than `least`.
    fn expression(&mut self, depth: usize, least: u8) -> Result<Extent, SymbolError> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(SymbolError::Refused("a size nests too deep".into()));
        };
        let mut left = self.operand(depth)?;
        loop {
            self.rest = self.rest.trim_start();
            let next = OPERATORS
                .into_iter()
                .find(|(sign, _)| self.rest.starts_with(sign));
            let Some((sign, binds)) = next.filter(|(_, binds)| *binds >= least) else {
                return Ok(left);
            };
            self.rest = &self.rest[sign.len()..];
            // Powers group to the right.
            let tighter = if sign == "**" { binds } else { binds + 1 };
            let right = self.expression(depth, tighter)?;
            let function = function(sign).ok_or_else(|| self.unreadable())?;
            left = combine(function, left, right)?;
        }
    }

    /// Reads what stands between operators.
    fn operand(&mut self, depth: usize) -> Result<Extent, SymbolError> {
        self.rest = self.rest.trim_start();
        if let Some(rest) = self.rest.strip_prefix('-') {
            self.rest = rest;
            let negated = self.expression(depth, 3)?;
            let minus = function("-").ok_or_else(|| self.unreadable())?;
            return combine(minus, Extent::ZERO, negated);
        }
        if self.takes('(') {
            let inside = self.expression(depth, 0)?;
            return self.closed(inside);
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            return Err(self.unreadable());
        }
        self.rest = rest;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return self.integer(word);
        }
        if !self.takes('(') {
            return self.symbol(word);
        }
        match word {
            "Symbol" => {
                let arguments = self.until_closed()?;
                let name = arguments.split(',').next().unwrap_or_default();
                self.symbol(name.trim().trim_matches(['\'', '"']))
            }
            "Integer" => {
                let number = self.until_closed()?;
                self.integer(number.trim())
            }
            // Of what is whole already, once it is divided.
            "TruncToInt" | "FloorToInt" | "ToFloat" | "Identity" => {
                let inside = self.expression(depth, 0)?;
                self.closed(inside)
            }
            "CeilToInt" => {
                let inside = self.rest.trim_start().strip_prefix("IntTrueDiv(");
                self.rest = inside.ok_or_else(|| self.unreadable())?;
                let up = self.fold(depth, "CeilDiv")?;
                self.closed(up)
            }
            name => self.fold(depth, name),
        }
    }

    /// Whether this comes next, and passes it.
    fn takes(&mut self, expected: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(expected);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn closed(&mut self, inside: Extent) -> Result<Extent, SymbolError> {
        if self.takes(')') {
            Ok(inside)
        } else {
            Err(self.unreadable())
        }
    }

    fn unreadable(&self) -> SymbolError {
        let whole = shorten(self.whole);
        SymbolError::Refused(if self.rest.is_empty() {
            format!("cannot read {whole:?} as a size: its end is missing")
        } else {
            format!(
                "cannot read {whole:?} as a size, from {:?} on",
                shorten(self.rest)
            )
        })
    }

    fn symbol(&mut self, name: &str) -> Result<Extent, SymbolError> {
        if is_of_values(name) {
            self.symbols.is_of_values = true;
            let known = self.symbols.of_values.get(name).copied();
            return known.ok_or_else(|| SymbolError::OfValues(name.to_owned()));
        }
        let symbols = &mut *self.symbols;
        match &symbols.batch {
            None => symbols.batch = Some(name.to_owned()),
            Some(batch) if batch == name => {}
            Some(batch) => {
                let is_length = symbols.named.as_deref().is_none_or(|named| named == name);
                if let (Some(length), true) = (symbols.length, is_length) {
                    symbols.named.get_or_insert_with(|| name.to_owned());
                    return Ok(Extent::fixed(length));
                }
                let third = symbols
                    .named
                    .as_deref()
                    .map(|named| format!(" besides the length {}", shorten(named)));
                return Err(SymbolError::Refused(format!(
                    "two symbolic sizes, {} and {}{}; say how long samples are (`seq_len`), or export with the batch as the only \
                     dynamic dimension",
                    shorten(batch),
                    shorten(name),
                    third.unwrap_or_default()
                )));
            }
        }
        Ok(Extent::BATCH)
    }

    fn integer(&self, text: &str) -> Result<Extent, SymbolError> {
        let number = text.parse().map(Extent::signed);
        number.map_err(|_| {
            SymbolError::Refused(format!(
                "cannot read {:?} as a size: {:?} is no whole number below 2^63",
                shorten(self.whole),
                shorten(text)
            ))
        })
    }

    /// Reads `EXPRESSION, EXPRESSION, …)` and combines them.
    fn fold(&mut self, depth: usize, name: &str) -> Result<Extent, SymbolError> {
        let Some(function) = function(name) else {
            return Err(SymbolError::Refused(format!(
                "the size {:?} uses {:?}; only sums, products, quotients, remainders, maxima and minima of the \
                 batch size are read",
                shorten(self.whole),
                shorten(name)
            )));
        };
        let mut result = self.expression(depth, 0)?;
        while self.takes(',') {
            let term = self.expression(depth, 0)?;
            result = combine(function, result, term)?;
        }
        self.closed(result)
    }

    fn until_closed(&mut self) -> Result<&'t str, SymbolError> {
        let (inside, rest) = self.rest.split_once(')').ok_or_else(|| self.unreadable())?;
        self.rest = rest;
        Ok(inside)
    }
}

#[cfg(test)]
mod tests;

//! Computations that are written down as formulas, from which devices make kernels.

use std::borrow::Cow;

use crate::shape::Extent;

/// A text in the language of formulas: C++ expressions and statements over scalars, with the functions of C's
/// `<math.h>` (`exp`, `log1p`, ...) and those of `generate/prelude.cuh`.
pub type Text = Cow<'static, str>;

/// A computation written down: how its elements are visited, and what is computed for each.
///
/// Formulas call operands and numbers by the names given here. Half types are read as `float` and rounded once when
/// they are stored; integers are read as 64-bit ones. In a formula `T` is the type in which the first output is
/// computed (`float`, `double`, `i64` or `bool`), and `P` the type to which inputs and numbers promote.
///
/// Not every operand of a call needs a name: those beyond the names are neither read nor written.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// What a user knows it by, such as `avg_pool2d`.
    pub name: &'static str,
    /// How elements are visited, and the formulas.
    pub form: Form,
    /// Names of the operands that are read.
    pub inputs: Vec<&'static str>,
    /// Names of the operands that are written.
    pub outputs: Vec<&'static str>,
    /// Constants.
    pub numbers: Vec<(&'static str, Number)>,
}

/// A constant of a formula.
#[derive(Debug, Clone, PartialEq)]
pub enum Number {
    /// A fraction: of type `P` where that is one, else of `T` where that is one, else `double`.
    Real(f64),
    /// An `i64`.
    Whole(i64),
    /// A `bool`.
    Truth(bool),
    /// An `i64` that depends on the batch.
    Length(Extent),
    /// An array of `i64`; empty ones have one element that means nothing.
    List(Vec<i64>),
    /// A `u64` that differs from draw to draw: the key of random numbers.
    Seed,
}

macro_rules! numbers {
    ($($of:ty: $variant:ident),+) => {
        $(impl From<$of> for Number {
            fn from(value: $of) -> Number {
                Number::$variant(value)
            }
        })+
    };
}

numbers!(f64: Real, i64: Whole, bool: Truth, Extent: Length, Vec<i64>: List);

/// How elements are visited.
///
/// In all forms but [`Form::Each`] operands broadcast to the visited shape as in PyTorch: trailing dimensions
/// correspond, and those of length one stand still.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Each element of the first output. Inputs are values; the formula assigns to outputs: `y = exp(x);`. The
    /// element's row-major index is `index`, an `i64`, where the formula names it.
    Map(Text),
    /// Each element of the shape of an operand, a thread each, in no order. The element's coordinates are `i[0]`,
    /// `i[1]`, ... Operands are read as `x(i[0], k)`, by as many coordinates as they have dimensions, or as
    /// `x.flat(index)` by row-major index; outputs are written by `y.set(value, i[0], k)` and
    /// `y.set_flat(value, index)`. Lengths are `x.size(0)`, and `x.count()`; `x.at(c)` and `y.set_at(value, c)` take an array of coordinates.
    Each {
        /// Which operand: inputs are counted first, then outputs.
        over: usize,
        /// Dimensions of it that are not visited, where coordinates stay zero: the formula goes along them itself.
        without: Vec<usize>,
        /// The formula.
        body: Text,
    },
    /// As [`Form::Each`], but the formula runs in all threads of a group: this one is number `lane` of `LANES`, and they go
    /// along the dimensions that are not visited together. Beside what [`Form::Rows`] has for that there are
    /// `row_before(value, start)`, `row_vote(truth)`, `row_from(value, lane)` and `row_wait()`.
    ///
    /// A formula that names `part` shares each element's work out among `parts` warps, as many as keep a card busy.
    Groups {
        /// Which operand: inputs are counted first, then outputs.
        over: usize,
        /// Dimensions of it that are not visited.
        without: Vec<usize>,
        /// The formula.
        body: Text,
    },
    /// Each element of the first input, combined over some of its dimensions. Outputs have those with length one.
    Reduce {
        /// Dimensions that go away.
        dims: Vec<usize>,
        /// The C++ type of what is carried, `s`: `double`, or `struct { T value; i64 index; }`.
        state: Text,
        /// Makes `s` start: `s = 0;`.
        start: Text,
        /// Takes an element in: `s += x;`. `j` is its row-major index within the dimensions that go away; it lies at
        /// `x_start[x_at]`.
        step: Text,
        /// Takes another state `o` in, of later elements or earlier ones: `s += o;`.
        merge: Text,
        /// Assigns to outputs: `y = s / count;`. `count` is the number of elements.
        finish: Text,
    },
    /// Each row of the first input, by threads that work together: a row is all elements along some dimensions.
    ///
    /// The formula runs in all threads of a row. `for_each(j)` begins a loop over its `n` elements, shared out among
    /// the threads; `x(j)` reads and `y.set(value, j)` writes. `row_sum(value)`, `row_product`, `row_max` and `row_min` combine what
    /// threads have, `row_sync()` waits for what they wrote; all must call them. `x.data` points at a row's first element. `is_first` is true in one of a row's threads. `row` is the row's index.
    Rows {
        /// The dimensions along which elements belong to a row.
        dims: Vec<usize>,
        /// The formula.
        body: Text,
    },
    /// The same, with some operands that belong to no row: they keep their own dimensions and are read and written by
    /// coordinates, as in [`Form::Each`].
    ///
    /// Threads of a row wait for each other, and see what the others have written, at `row_sync()`. `lane` of `LANES`
    /// is a thread's number; a row's threads are `LANES / WARP` warps, and `warp_sum(value)` adds up within one.
    RowsAndTables {
        /// The dimensions along which elements belong to a row.
        dims: Vec<usize>,
        /// The names of the operands that belong to none.
        tables: Vec<&'static str>,
        /// The formula.
        body: Text,
    },
}

impl Form {
    /// Each element of the shape of this operand, along all of its dimensions.
    pub fn each(over: usize, body: impl Into<Text>) -> Form {
        Form::skipping(over, [], body)
    }

    /// The same along all of its dimensions but these.
    pub fn skipping(over: usize, without: impl Into<Vec<usize>>, body: impl Into<Text>) -> Form {
        let (without, body) = (without.into(), body.into());
        Form::Each {
            over,
            without,
            body,
        }
    }

    /// Each element of the shape of this operand along all of its dimensions but these, by a group of threads.
    pub fn groups(over: usize, without: impl Into<Vec<usize>>, body: impl Into<Text>) -> Form {
        let (without, body) = (without.into(), body.into());
        Form::Groups {
            over,
            without,
            body,
        }
    }
}

impl Generated {
    /// A map: each element of the result is a formula of the inputs' elements.
    pub fn map(
        name: &'static str,
        inputs: impl Into<Vec<&'static str>>,
        body: impl Into<Text>,
    ) -> Generated {
        Generated::of(name, inputs, ["result"], Form::Map(body.into()))
    }

    /// Any form.
    pub fn of(
        name: &'static str,
        inputs: impl Into<Vec<&'static str>>,
        outputs: impl Into<Vec<&'static str>>,
        form: Form,
    ) -> Generated {
        Generated {
            name,
            form,
            inputs: inputs.into(),
            outputs: outputs.into(),
            numbers: Vec::new(),
        }
    }

    /// A combination over dimensions: the texts are those of [`Form::Reduce`], in its order.
    pub fn reduce(
        name: &'static str,
        inputs: impl Into<Vec<&'static str>>,
        outputs: impl Into<Vec<&'static str>>,
        dims: impl Into<Vec<usize>>,
        texts: [&'static str; 5],
    ) -> Generated {
        let [state, start, step, merge, finish] = texts.map(Text::Borrowed);
        let form = Form::Reduce {
            dims: dims.into(),
            state,
            start,
            step,
            merge,
            finish,
        };
        Generated::of(name, inputs, outputs, form)
    }

    /// A formula over rows, which lie along these dimensions.
    pub fn rows(
        name: &'static str,
        inputs: impl Into<Vec<&'static str>>,
        outputs: impl Into<Vec<&'static str>>,
        dims: impl Into<Vec<usize>>,
        body: impl Into<Text>,
    ) -> Generated {
        let form = Form::Rows {
            dims: dims.into(),
            body: body.into(),
        };
        Generated::of(name, inputs, outputs, form)
    }

    /// A formula for each element of an operand's shape, which goes along none of its dimensions itself.
    pub fn each(
        name: &'static str,
        inputs: impl Into<Vec<&'static str>>,
        outputs: impl Into<Vec<&'static str>>,
        over: usize,
        body: impl Into<Text>,
    ) -> Generated {
        Generated::of(name, inputs, outputs, Form::each(over, body))
    }

    /// With this constant.
    #[must_use]
    pub fn with(mut self, name: &'static str, number: impl Into<Number>) -> Generated {
        self.numbers.push((name, number.into()));
        self
    }
}

impl Generated {
    /// Whether an output may keep elements that it had: a formula reads it, adds to it, or skips some of it. Told from the
    /// text, for what checks that everything else is written.
    pub fn may_keep(&self, output: usize) -> bool {
        let Some(name) = self.outputs.get(output) else {
            return true;
        };
        // What writes over an operand leaves some of it.
        if self.name.ends_with('_') {
            return true;
        }
        let body = match &self.form {
            Form::Map(_) | Form::Reduce { .. } => return false,
            Form::Each {
                over,
                without,
                body,
            } if *over == self.inputs.len() + output && without.is_empty() => body,
            Form::Rows { body, .. } => body,
            _ => return true,
        };
        let reads = ["(", ".at(", ".flat(", ".data"].map(|how| format!("{name}{how}"));
        body.contains("return") || reads.iter().any(|how| body.contains(how))
    }
}

impl From<Generated> for super::Kernel {
    fn from(generated: Generated) -> super::Kernel {
        super::Kernel::Generated(Box::new(generated))
    }
}

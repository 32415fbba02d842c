//! Formulas that write elements to places, in the same order each time.
//!
//! Nothing is added atomically. Where few indices are each for many elements (whole rows), each of some hundreds of
//! warps owns a range of the places and some of a row's elements: all of them read all indices, and each adds what
//! belongs to it in the order of the indices. The time grows with the number of indices, however many places there are.

use std::fmt::Write as _;

use crate::ops::prelude::*;

/// What becomes of an element that is written where another is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Combine {
    /// It replaces it.
    Replace,
    /// Their sum.
    Add,
    /// Their sum, the new one times a number.
    AddTimes(f64),
    /// Their product.
    Multiply,
    /// The larger one.
    Largest,
    /// The smaller one.
    Smallest,
}

impl Combine {
    fn text(self, old: &str, new: &str) -> String {
        match self {
            Combine::Replace => format!("(T)({new})"),
            Combine::Add => format!("{old} + (T)({new})"),
            Combine::AddTimes(_) => format!("{old} + (T)({new}) * (T)alpha"),
            Combine::Multiply => format!("{old} * (T)({new})"),
            Combine::Largest => format!("maximum({old}, (T)({new}))"),
            Combine::Smallest => format!("minimum({old}, (T)({new}))"),
        }
    }
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Written {
    /// Rows of bags, the first input: that of the bag that `bag_of`, the third, names, divided by as many as `sizes`, the
    /// fourth, says where the bags are means, and times `scales`, the fifth, where there is one.
    Bags {
        /// Whether they are means.
        mean: bool,
        /// Whether there are scales.
        scaled: bool,
    },
    /// Elements of the operand `values`, the first input.
    Values,
    /// A number.
    Number(f64),
}

impl Written {
    /// Elements of an operand, or a number.
    pub fn of(values: Result<&TensorBody, f64>) -> Written {
        values.map_or_else(Written::Number, |_| Written::Values)
    }

    /// How many operands that is.
    fn count(self) -> usize {
        match self {
            Written::Values | Written::Bags { .. } => 1,
            Written::Number(_) => 0,
        }
    }

    /// One element, for the `of[..]`-th.
    fn element(self, flat: bool) -> &'static str {
        match self {
            Written::Values if flat => "(T)values.flat(of[0])",
            Written::Values => "(T)values.at(of)",
            Written::Bags { mean, scaled } => match (mean, scaled) {
                (true, _) => {
                    "(T)values(wrapped(bag_of(of[0]), values.size(0)), of[1]) / (T)max_whole(sizes(wrapped(bag_of(of[0]), values.size(0))), 1)"
                }
                (false, false) => "(T)values(wrapped(bag_of(of[0]), values.size(0)), of[1])",
                (false, true) => {
                    "(T)values(wrapped(bag_of(of[0]), values.size(0)), of[1]) * (T)scales(of[0])"
                }
            },
            Written::Number(_) => "(T)value",
        }
    }
}

/// A loop that breaks a number down into coordinates: targets and lengths, the last dimension first.
fn unravel(number: &str, dims: &[(Vec<String>, String)]) -> String {
    let mut text = format!("{{ I left = {number}; ");
    for (targets, length) in dims.iter().rev() {
        let _ = write!(
            text,
            "{{ const I length = (I){length}; const I at = length > 0 ? left % length : 0; left = length > 0 ? left / length : 0; "
        );
        for target in targets {
            let _ = write!(text, "{target} = at; ");
        }
        text.push_str("} ");
    }
    text.push('}');
    text
}

fn product(lengths: impl Iterator<Item = String>) -> String {
    let factors: Vec<String> = lengths.map(|length| format!("(I){length}")).collect();
    if factors.is_empty() {
        "(I)1".into()
    } else {
        factors.join(" * ")
    }
}

/// Which dimensions correspond.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The dimension of `index` that it goes along.
    pub along: usize,
    /// The same of `values`.
    pub values_along: usize,
    /// The dimensions of `into` that an index counts through.
    pub rows: Vec<usize>,
    /// Dimensions with indices of their own: of `index`, `into`, and `values`.
    pub own: Vec<[usize; 3]>,
    /// Dimensions of a row's elements: of `into` and `values`, and how many there are.
    pub shared: Vec<(usize, usize, String)>,
    /// Dimensions of `index`, `into` and `values`.
    pub ranks: [usize; 3],
    /// Whether `index` and `values` are read in row-major order, whatever their shapes are.
    pub flat: bool,
}

/// `(values, ) index -> into`: what is written to the places that an index names. Indices outside are left out, and so is
/// the one that `skipped` says.
pub fn by_owners(
    name: &'static str,
    places: &Places,
    combine: Combine,
    written: Written,
    skipped: i64,
) -> Generated {
    let [_, into_rank, values_rank] = places.ranks.map(|rank| rank.max(1));
    let row_lengths = || places.rows.iter().map(|d| format!("into.size({d})"));
    let rows = product(row_lengths());
    let features = product(places.shared.iter().map(|(.., length)| length.clone()));
    let of_feature: Vec<(Vec<String>, String)> = places
        .shared
        .iter()
        .map(|(to, of, length)| {
            (
                vec![format!("to[{to}]"), format!("of[{of}]")],
                length.clone(),
            )
        })
        .collect();
    let of_feature = unravel("feature", &of_feature);
    let of_row: Vec<(Vec<String>, String)> = places
        .rows
        .iter()
        .zip(row_lengths())
        .map(|(d, length)| (vec![format!("to[{d}]")], length))
        .collect();
    let of_row = unravel("row", &of_row);
    let mut own = String::new();
    for [index, to, of] in &places.own {
        let _ = write!(own, "to[{to}] = of[{of}] = i[{index}]; ");
    }
    let (count, index) = if places.flat {
        ("index.count()".to_owned(), "index.flat(i[0])")
    } else {
        (format!("index.size({})", places.along), "index.at(i)")
    };
    let value = written.element(places.flat);
    let (along, values_along) = (places.along, places.values_along);
    let combined = combine.text("sum", "element[v]");
    let body = filled!(
        "placing/by_owners.cu",
        count,
        rows,
        features,
        into_rank,
        values_rank,
        own,
        of_feature,
        along,
        index,
        values_along,
        value,
        of_row,
        combined
    );
    let form = Form::groups(
        written.count(),
        (0..places.ranks[0])
            .filter(|d| !places.own.iter().any(|own| own[0] == *d))
            .collect::<Vec<_>>(),
        body,
    );
    finish(name, form, (combine, written), skipped)
}

fn finish(
    name: &'static str,
    form: Form,
    (combine, written): (Combine, Written),
    skipped: i64,
) -> Generated {
    let inputs: &[&'static str] = match written {
        Written::Values => &["values", "index"],
        Written::Bags { scaled: false, .. } => &["values", "index", "bag_of", "sizes"],
        Written::Bags { scaled: true, .. } => &["values", "index", "bag_of", "sizes", "scales"],
        Written::Number(_) => &["index"],
    };
    let generated = Generated::of(name, inputs, ["into"], form);
    let generated = match written {
        Written::Values | Written::Bags { .. } => generated,
        Written::Number(value) => generated.with("value", value),
    };
    let generated = match combine {
        Combine::AddTimes(alpha) => generated.with("alpha", alpha),
        _ => generated,
    };
    generated.with("skipped", skipped)
}

/// `(values, ) index -> into` along a dimension of tensors with as many dimensions: `scatter`. `shared` says along which
/// others an index repeats; `has_few_lines` whether too few are left to keep a card busy with a thread for each.
pub fn scatter(
    name: &'static str,
    dim: usize,
    (shared, has_few_lines): (&[bool], bool),
    (combine, written): (Combine, Written),
    skipped: i64,
) -> Generated {
    let rank = shared.len();
    let others = (0..rank).filter(|d| *d != dim);
    if has_few_lines {
        let places = Places {
            along: dim,
            values_along: dim,
            rows: vec![dim],
            own: others
                .clone()
                .filter(|d| !shared[*d])
                .map(|d| [d; 3])
                .collect(),
            shared: others
                .filter(|d| shared[*d])
                .map(|d| (d, d, format!("index.size({d})")))
                .collect(),
            ranks: [rank; 3],
            flat: false,
        };
        return by_owners(name, &places, combine, written, skipped);
    }
    let value = match written {
        Written::Values | Written::Bags { .. } => "values.at(i)",
        Written::Number(_) => "value",
    };
    let combined = combine.text("into.at(to)", value);
    let size = rank.max(1);
    let body = filled!("placing/scatter.cu", dim, size, rank, combined);
    let form = Form::skipping(written.count(), [dim], body);
    finish(name, form, (combine, written), skipped)
}

/// `x, index -> result` along a dimension of tensors with as many dimensions.
pub fn gather(rank: usize, dim: usize) -> Generated {
    let size = rank.max(1);
    let body = format!(
        "I from[{size}]; for (int d = 0; d < {rank}; ++d) from[d] = i[d];
    from[{dim}] = (I)wrapped(index.at(i), x.size({dim}));
    result.set_at(x.at(from), i);"
    );
    Generated::each("gather", ["x", "index"], ["result"], 2, body)
}

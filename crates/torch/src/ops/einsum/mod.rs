//! Sums of products over named dimensions.

mod run;

use crate::ops::prelude::*;

/// An `einsum`: one letter for each dimension. Digits stand for the dimensions of an ellipsis, the last is 9.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Einsum {
    /// The operands' dimensions.
    pub operands: Vec<Vec<char>>,
    /// The result's.
    pub result: Vec<char>,
    /// Pairs of operands to multiply next, as `opt_einsum` gives them: a product is put last. Without, the first
    /// two are multiplied again and again.
    pub path: Option<Vec<usize>>,
}

/// So many dimensions may an ellipsis stand for.
const MOST_OF_ELLIPSIS: usize = 10;

impl Einsum {
    /// Reads an equation such as `bhid,bhjd->bhij`, of operands of these numbers of dimensions.
    pub fn parse(equation: &str, ranks: &[usize]) -> Result<Einsum, String> {
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (terms, result) = match text.split_once("->") {
            Some((terms, result)) => (terms, Some(result)),
            None => (text.as_str(), None),
        };
        let terms: Vec<&str> = terms.split(',').collect();
        if terms.len() != ranks.len() {
            return Err(format!(
                "the equation {equation:?} is not of {} tensors",
                ranks.len()
            ));
        }
        let mut widest = 0;
        let mut operands = Vec::new();
        for (term, rank) in terms.iter().zip(ranks) {
            let letters = term.replacen("...", "", 1);
            let covered = rank.checked_sub(letters.len());
            let covered = covered
                .filter(|n| *n <= MOST_OF_ELLIPSIS && (*n == 0 || letters.len() < term.len()));
            let covered = covered.ok_or_else(|| {
                format!("in the equation {equation:?}, {term:?} does not name {rank} dimensions")
            })?;
            widest = covered.max(widest);
            operands.push(labels(term, covered, equation)?);
        }
        let result = match result {
            Some(result) => labels(result, widest, equation)?,
            None => implied(&operands, widest),
        };
        let known = |c: &char| operands.iter().any(|operand| operand.contains(c));
        let alone = |(at, c): (usize, &char)| !result[..at].contains(c);
        if !result.iter().all(known) || !result.iter().enumerate().all(alone) {
            return Err(format!(
                "the result of the equation {equation:?} is not of different dimensions of operands"
            ));
        }
        Ok(Einsum {
            operands,
            result,
            path: None,
        })
    }

    /// The dimensions that are aligned: those of the result, then those that are summed, which come in the order
    /// of the alphabet.
    fn aligned(&self) -> Vec<char> {
        let mut summed: Vec<char> = self.operands.concat();
        summed.retain(|c| !self.result.contains(c));
        summed.sort_unstable();
        summed.dedup();
        [&self.result[..], &summed].concat()
    }

    /// The length of each dimension of the result, or what does not fit.
    fn shape(&self, shapes: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
        let mut lengths: Vec<(char, Extent)> = Vec::new();
        for (labels, shape) in self.operands.iter().zip(shapes) {
            if labels.len() != shape.len() {
                return Err(format!("{shape:?} has other dimensions than {labels:?}"));
            }
            for (label, length) in labels.iter().zip(*shape) {
                match lengths.iter_mut().find(|(known, _)| known == label) {
                    None => lengths.push((*label, *length)),
                    Some((_, known)) if *known == Extent::ONE => *known = *length,
                    Some((_, known)) if *length == Extent::ONE || known == length => {}
                    Some(_) => return Err(format!("the operands differ in dimension {label}")),
                }
            }
        }
        let length = |c: &char| {
            lengths
                .iter()
                .find(|(label, _)| label == c)
                .map(|(_, n)| *n)
        };
        let shape: Option<Vec<Extent>> = self.result.iter().map(length).collect();
        shape.ok_or_else(|| "it has a dimension of no operand".to_owned())
    }
}

/// The letters of a term, with digits for the ellipsis.
fn labels(term: &str, covered: usize, equation: &str) -> Result<Vec<char>, String> {
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    let digits = ('0'..='9').skip(MOST_OF_ELLIPSIS - covered);
    let digits: Vec<char> = if term.contains("...") {
        digits.collect()
    } else {
        Vec::new()
    };
    if !before
        .chars()
        .chain(after.chars())
        .all(|c| c.is_ascii_alphabetic())
    {
        return Err(format!(
            "the equation {equation:?} names dimensions by other than letters"
        ));
    }
    Ok(before.chars().chain(digits).chain(after.chars()).collect())
}

/// The result of an equation without one: the ellipsis, then what is named once, in the order of the alphabet.
fn implied(operands: &[Vec<char>], covered: usize) -> Vec<char> {
    let mut all = operands.concat();
    all.sort_unstable();
    let once = all.chunk_by(char::eq).filter(|same| same.len() == 1);
    let once = once.flatten().copied().filter(char::is_ascii_alphabetic);
    ('0'..='9')
        .skip(MOST_OF_ELLIPSIS - covered)
        .chain(once)
        .collect()
}

pub(super) const ATEN: &[(&str, Reader)] = &[("aten.einsum.default", |args| {
    let operands = args.tensors("tensors")?;
    let ranks: Vec<usize> = operands.iter().map(|id| args.shape(*id).len()).collect();
    let mut einsum = Einsum::parse(args.text("equation", "")?, &ranks)?;
    einsum.path = path(args, operands.len())?;
    Ok((einsum.into(), operands))
})];

/// The order of products, if one is given: two places for each, among what is left then.
fn path(args: &Arguments<'_>, count: usize) -> Result<Option<Vec<usize>>, String> {
    if !args.has("path") {
        return Ok(None);
    }
    let path = args.whole_numbers("path")?.into_iter().map(usize::try_from);
    let path = path.collect::<Result<Vec<_>, _>>();
    let fits = |path: &Vec<usize>| {
        let pairs = path.chunks(2).zip((0..=count).rev());
        path.len() == 2 * count.saturating_sub(1)
            && pairs
                .into_iter()
                .all(|(pair, left)| pair[0] != pair[1] && pair.iter().all(|at| *at < left))
    };
    match path {
        Ok(path) if fits(&path) => Ok(Some(path)),
        _ => Err(format!("its \"path\" does not multiply {count} tensors")),
    }
}

impl Operator for Einsum {
    fn name(&self) -> &'static str {
        "einsum"
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shapes: Vec<&[Extent]> = operands.iter().map(|(_, shape)| shape.as_slice()).collect();
        Ok(vec![(operands[0].0, self.shape(&shapes)?)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        Ok(vec![eager.einsum(self, operands)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_aligned_as_the_result_names_them() {
        let einsum = Einsum::parse("b h i d, b h j d -> b h i j", &[4, 4]).unwrap();

        assert_eq!(einsum.aligned(), ['b', 'h', 'i', 'j', 'd']);
    }

    #[test]
    fn an_ellipsis_stands_for_the_last_dimensions_of_all() {
        let einsum = Einsum::parse("...ij,jk", &[4, 2]).unwrap();

        assert_eq!(einsum.operands[0], ['8', '9', 'i', 'j']);
        assert_eq!(einsum.result, ['8', '9', 'i', 'k']);
    }

    #[test]
    fn what_does_not_fit_its_operands_is_refused() {
        for (equation, ranks) in [
            ("ij->ijk", &[2_usize][..]),
            ("ij,jk->ik", &[2]),
            ("ij->ii", &[2]),
            ("i1->i", &[2]),
            ("ij->i", &[3]),
            ("...i->...i", &[20]),
        ] {
            assert!(Einsum::parse(equation, ranks).is_err(), "{equation}");
        }
    }
}

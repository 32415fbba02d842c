//! Sums of products over named dimensions.

use super::{Context, Operator, Reader};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{Extent, Mismatch, Type, numel};
use serde::Serialize;


/// An `einsum` of two tensors: one letter for each dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Einsum {
    /// The first operand's dimensions.
    pub left: Vec<char>,
    /// The second operand's.
    pub right: Vec<char>,
    /// The result's.
    pub result: Vec<char>,
}

impl Einsum {
    /// Reads an equation such as `bhid,bhjd->bhij`.
    pub fn parse(equation: &str) -> Result<Einsum, String> {
        let problem = || format!("the equation {equation:?} is not of two tensors and a result");
        let (operands, result) = equation.split_once("->").ok_or_else(problem)?;
        let (left, right) = operands.split_once(',').ok_or_else(problem)?;
        let labels = |text: &str| -> Result<Vec<char>, String> {
            let letters: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
            let alone = |(i, c): (usize, &char)| c.is_alphabetic() && !letters[..i].contains(c);
            if letters.iter().enumerate().all(alone) {
                Ok(letters)
            } else {
                Err(format!(
                    "the equation {equation:?} names other than different dimensions"
                ))
            }
        };
        let (left, right, result) = (labels(left)?, labels(right)?, labels(result)?);
        let known = |c: &char| left.contains(c) || right.contains(c);
        let shared = |c: &char| left.contains(c) && right.contains(c) || result.contains(c);
        if !result.iter().all(known) || !left.iter().chain(&right).all(shared) {
            return Err(format!(
                "the equation {equation:?} sums over a dimension of one tensor alone"
            ));
        }
        Ok(Einsum {
            left,
            right,
            result,
        })
    }

    /// The dimensions that both operands have and the result keeps, that only the first has, that only the
    /// second has, and that are summed.
    pub fn roles(&self) -> [Vec<char>; 4] {
        let kept = |both: bool, of: &[char], other: &[char]| -> Vec<char> {
            let these = self.result.iter().copied();
            these
                .filter(|c| of.contains(c) && other.contains(c) == both)
                .collect()
        };
        let mut summed: Vec<char> = self.left.clone();
        summed.retain(|c| !self.result.contains(c));
        summed.sort_unstable();
        [
            kept(true, &self.left, &self.right),
            kept(false, &self.left, &self.right),
            kept(false, &self.right, &self.left),
            summed,
        ]
    }

    /// The shape of the result, or what does not fit.
    pub fn shape(&self, left: &[Extent], right: &[Extent]) -> Result<Vec<Extent>, String> {
        if left.len() != self.left.len() || right.len() != self.right.len() {
            return Err(format!("{left:?} and {right:?} have other dimensions"));
        }
        let of = |labels: &[char], shape: &[Extent], c: char| {
            labels
                .iter()
                .position(|label| *label == c)
                .map(|i| shape[i])
        };
        for c in &self.left {
            let here = of(&self.left, left, *c);
            if of(&self.right, right, *c).is_some_and(|there| Some(there) != here) {
                return Err(format!("the operands differ in dimension {c}"));
            }
        }
        let length = |c: &char| of(&self.left, left, *c).or(of(&self.right, right, *c));
        let lengths: Option<Vec<Extent>> = self.result.iter().map(length).collect();
        lengths.ok_or_else(|| "it has a dimension of neither operand".to_owned())
    }
}

pub(super) const ATEN: &[(&str, Reader)] = &[("aten.einsum.default", |args| {
    let einsum = Einsum::parse(args.text("equation", "")?)?;
    Ok((einsum.into(), args.tensors("tensors")?))
})];

impl Operator for Einsum {
    fn name(&self) -> &'static str {
        "einsum"
    }

    fn arity(&self) -> (usize, usize) {
        (2, 2)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shape = self.shape(&operands[0].1, &operands[1].1)?;
        Ok(vec![(operands[0].0, shape)])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        Ok(vec![eager.einsum(self, [&operands[0], &operands[1]])?])
    }
}

impl Eager {
    /// `einsum` of two tensors: both are arranged for `bmm`, whose result is arranged back.
    pub(crate) fn einsum(
        &mut self,
        einsum: &Einsum,
        [left, right]: [&Tensor; 2],
    ) -> Result<Tensor, Stop> {
        let [both, first, second, summed] = einsum.roles();
        let length = |c: &char| {
            let in_left = einsum.left.iter().position(|label| label == c);
            let in_right = einsum.right.iter().position(|label| label == c);
            match (in_left, in_right) {
                (Some(i), _) => left.shape[i],
                (None, Some(i)) => right.shape[i],
                (None, None) => Extent::ONE,
            }
        };
        let lengths = |labels: &[char]| labels.iter().map(length).collect::<Vec<_>>();
        let size = |labels: &[char]| numel(&lengths(labels));
        let order = |labels: &[char], wanted: &[&[char]]| -> Vec<usize> {
            let place = |c: &char| labels.iter().position(|label| label == c);
            wanted.concat().iter().filter_map(place).collect()
        };
        let a = self.permute(left, &order(&einsum.left, &[&both, &first, &summed]));
        let a = self.reshape(&a, &[size(&both), size(&first), size(&summed)]);
        let b = self.permute(right, &order(&einsum.right, &[&both, &summed, &second]));
        let b = self.reshape(&b, &[size(&both), size(&summed), size(&second)]);
        let product = self.bmm(&a, &b)?;
        drop((a, b));
        let made = [&both[..], &first, &second].concat();
        let product = self.reshape(&product, &lengths(&made));
        Ok(self.permute(&product, &order(&made, &[&einsum.result])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_scores_share_samples_and_heads() {
        let einsum = Einsum::parse("b h i d, b h j d -> b h i j").unwrap();

        let [both, first, second, summed] = einsum.roles();

        assert_eq!(both, ['b', 'h']);
        assert_eq!((first, second, summed), (vec!['i'], vec!['j'], vec!['d']));
    }

    #[test]
    fn equations_that_need_more_than_one_product_are_refused() {
        for equation in ["ij->ji", "ii,ij->j", "ij,k->ik", "...i,ij->...j"] {
            assert!(Einsum::parse(equation).is_err(), "{equation}");
        }
    }
}

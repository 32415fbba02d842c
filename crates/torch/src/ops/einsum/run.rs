//! `at::native::einsum`: operands are aligned, then multiplied two by two.

use super::Einsum;
use crate::ops::Reduction;
use crate::ops::prelude::*;

impl Eager {
    /// `einsum`. Each operand gets all dimensions in the same order, those of the result first; each two are
    /// multiplied over the dimensions that no other has.
    pub fn einsum(&mut self, einsum: &Einsum, operands: &[Tensor]) -> Output {
        // Autocast casts all operands, the first one first, and is off inside.
        let operands: Vec<Tensor> = operands.iter().map(|operand| self.low(operand)).collect();
        self.without_autocast(|eager| eager.contract(einsum, &operands))
    }

    fn contract(&mut self, einsum: &Einsum, operands: &[Tensor]) -> Output {
        let aligned = einsum.aligned();
        let kept = einsum.result.len();
        let mut left: Vec<Tensor> = Vec::new();
        for (operand, labels) in operands.iter().zip(&einsum.operands) {
            left.push(self.align(operand, labels, &aligned));
        }
        // How many operands have a dimension that is more than one long.
        let has = |tensor: &Tensor, dim: usize| tensor.shape[dim] != Extent::ONE;
        let mut counts: Vec<usize> = (0..aligned.len())
            .map(|dim| left.iter().filter(|tensor| has(tensor, dim)).count())
            .collect();
        let several = left.len() > 1;
        let mut path = einsum.path.iter().flatten().copied();
        while left.len() > 1 {
            let pair = [path.next().unwrap_or(0), path.next().unwrap_or(1)];
            let (first, second) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
            let mut b = left.remove(second);
            let mut a = left.remove(first);
            let (mut of_both, mut of_a, mut of_b) = (Vec::new(), Vec::new(), Vec::new());
            for (dim, count) in counts.iter_mut().enumerate().skip(kept) {
                match (has(&a, dim), has(&b, dim), *count) {
                    (true, true, 2) => {
                        of_both.push(dim);
                        *count = 0;
                    }
                    (true, true, _) => *count -= 1,
                    (true, false, 1) => {
                        of_a.push(dim);
                        *count = 0;
                    }
                    (false, true, 1) => {
                        of_b.push(dim);
                        *count = 0;
                    }
                    (true | false, false, _) | (false, true, _) => {}
                }
            }
            if !of_a.is_empty() {
                a = self.reduction(Reduction::Sum, &a, &of_a, true);
            }
            if !of_b.is_empty() {
                b = self.reduction(Reduction::Sum, &b, &of_b, true);
            }
            let product = self.product_over(&a, &b, &of_both)?;
            let place = if einsum.path.is_some() { left.len() } else { 0 };
            left.insert(place, product);
        }
        let whole = left.swap_remove(0);
        if aligned.len() == kept {
            return Ok(whole);
        }
        Ok(if several {
            self.reshape(&whole, &whole.shape[..kept])
        } else {
            let summed: Vec<usize> = (kept..aligned.len()).collect();
            self.reduction(Reduction::Sum, &whole, &summed, false)
        })
    }

    /// An operand with all dimensions, of length one where it has none; of a letter named twice the diagonal.
    fn align(&mut self, operand: &Tensor, labels: &[char], aligned: &[char]) -> Tensor {
        let mut tensor = Tensor::clone(operand);
        let mut own: Vec<char> = Vec::new();
        for label in labels {
            let Some(before) = own.iter().position(|known| known == label) else {
                own.push(*label);
                continue;
            };
            // Its diagonal comes last, and is moved to where the letter stood first.
            tensor = self.diagonal(&tensor, 0, [before, own.len()]);
            let last = tensor.shape.len() - 1;
            let mut order: Vec<usize> = (0..last).collect();
            order.insert(before, last);
            tensor = self.permute(&tensor, &order);
        }
        for label in aligned {
            if !own.contains(label) {
                tensor = self.unsqueeze(&tensor, own.len());
                own.push(*label);
            }
        }
        let place = |label: &char| own.iter().position(|known| known == label);
        let order: Vec<usize> = aligned.iter().filter_map(place).collect();
        self.permute(&tensor, &order)
    }

    /// `sumproduct_pair`: both are arranged for `bmm`, whose result is arranged back; summed dimensions stay, with
    /// a length of one.
    fn product_over(&mut self, a: &Tensor, b: &Tensor, summed: &[usize]) -> Output {
        if summed.is_empty() {
            return self.mul(a, b);
        }
        let has = |tensor: &Tensor, dim: usize| tensor.shape[dim] != Extent::ONE;
        let (mut both, mut of_a, mut of_b) = (Vec::new(), Vec::new(), Vec::new());
        for dim in (0..a.shape.len()).filter(|dim| !summed.contains(dim)) {
            match (has(a, dim), has(b, dim)) {
                (true, true) => both.push(dim),
                (true, false) => of_a.push(dim),
                (false, true | false) => of_b.push(dim),
            }
        }
        // Where all dimensions of the second come before those of the first, the product is made the other way round.
        let swaps =
            matches!((of_a.first(), of_b.last()), (Some(first), Some(last)) if last < first);
        let (a, b) = if swaps { (b, a) } else { (a, b) };
        if swaps {
            std::mem::swap(&mut of_a, &mut of_b);
        }
        let lengths = |tensor: &Tensor, dims: &[usize]| -> Vec<Extent> {
            dims.iter().map(|dim| tensor.shape[*dim]).collect()
        };
        let size = |tensor: &Tensor, dims: &[usize]| numel(&lengths(tensor, dims));
        let ones = vec![Extent::ONE; summed.len()];
        let shape = [
            lengths(a, &both),
            lengths(a, &of_a),
            ones,
            lengths(b, &of_b),
        ]
        .concat();
        let made = [&both[..], &of_a, summed, &of_b].concat();

        let left = self.permute(a, &made);
        let left = self.reshape(&left, &[size(a, &both), size(a, &of_a), size(a, summed)]);
        let right = self.permute(b, &[&both[..], summed, &of_b, &of_a].concat());
        let right = self.reshape(&right, &[size(a, &both), size(b, summed), size(b, &of_b)]);
        let product = self.bmm(&left, &right)?;
        drop((left, right));
        let product = self.reshape(&product, &shape);
        let mut back = vec![0; made.len()];
        for (from, to) in made.iter().enumerate() {
            back[*to] = from;
        }
        Ok(self.permute(&product, &back))
    }
}

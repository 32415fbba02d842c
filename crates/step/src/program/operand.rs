//! How an operand of a launch lies in memory, as far as the launch's cost depends on it.

use crate::shape::{DType, Extent, numel};

use super::kernel::View;

/// An operand of a launch, as far as its cost depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the dimensions.
    pub shape: &'a [Extent],
    /// Elements between neighbours.
    pub strides: &'a [Extent],
}

impl<'a> From<&'a View> for Operand<'a> {
    fn from(view: &'a View) -> Operand<'a> {
        Operand {
            dtype: view.dtype,
            shape: &view.shape,
            strides: &view.strides,
        }
    }
}

impl Operand<'_> {
    /// Bytes of the elements that are there: one that is seen many times counts once.
    pub(super) fn bytes(&self) -> Extent {
        let dims = self.shape.iter().zip(self.strides);
        let seen = dims.filter(|(_, stride)| **stride != Extent::ZERO);
        seen.fold(Extent::fixed(self.dtype.size()), |product, (length, _)| {
            product * *length
        })
    }

    pub(super) fn elements(&self) -> Extent {
        numel(self.shape)
    }

    pub(super) fn along(&self, dim: usize) -> Extent {
        self.shape.get(dim).copied().unwrap_or(Extent::ONE)
    }

    pub(super) fn last(&self) -> Extent {
        self.along(self.shape.len().wrapping_sub(1))
    }

    /// Lengths of a stack of matrices: how many, rows, columns.
    pub(super) fn matrices(&self) -> [Extent; 3] {
        match self.shape {
            [] => [Extent::ONE; 3],
            [length] => [Extent::ONE, Extent::ONE, *length],
            [stack @ .., rows, columns] => [numel(stack), *rows, *columns],
        }
    }

    /// Lengths of a copy of this into memory that lies as another does: how often rows become columns, how many rows and columns.
    pub(super) fn turned(&self, made: &Operand<'_>) -> [Extent; 3] {
        let (mine, theirs) = (self.order(), made.order());
        // The innermost dimensions that both have in a row are one run.
        let run = |of: &[usize], other: &[usize]| {
            let mut length = Extent::ONE;
            let mut before: Option<usize> = None;
            for dim in of.iter().rev() {
                let place = other.iter().position(|one| one == dim);
                if before.is_some_and(|before| place.map(|place| place + 1) != Some(before)) {
                    break;
                }
                length = length * self.along(*dim);
                before = place;
            }
            length
        };
        let (columns, rows) = (run(&mine, &theirs), run(&theirs, &mine));
        let inside = columns * rows;
        let often = self.elements().checked_div(inside).unwrap_or(Extent::ONE);
        [often, rows, columns]
    }

    /// Whether the rows of its matrices are further apart than its columns.
    pub(super) fn is_by_columns(&self) -> bool {
        match self.strides {
            [.., _, columns] => *columns != Extent::ONE,
            _ => false,
        }
    }

    /// The dimensions from the outermost in memory to the innermost, those that do not count left out.
    pub(super) fn order(&self) -> Vec<usize> {
        let counts = |dim: &usize| self.shape[*dim] != Extent::ONE;
        let mut dims: Vec<usize> = (0..self.shape.len()).filter(counts).collect();
        // As at a batch of two: which stride is larger does not depend on it.
        dims.sort_by_key(|dim| std::cmp::Reverse(self.strides[*dim].at(2)));
        dims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(shape: &[u64], strides: &[u64], of_copy: &[u64]) -> [u64; 3] {
        let fixed = |numbers: &[u64]| -> Vec<Extent> {
            numbers
                .iter()
                .map(|number| Extent::fixed(*number))
                .collect()
        };
        let (shape, strides, of_copy) = (fixed(shape), fixed(strides), fixed(of_copy));
        let lying = |strides| Operand {
            dtype: DType::Float32,
            shape: &shape,
            strides,
        };
        lying(&strides)
            .turned(&lying(&of_copy))
            .map(|length| length.at(1))
    }

    #[test]
    fn a_transposed_matrix_has_its_columns_as_rows() {
        assert_eq!(lengths(&[8, 5, 3], &[15, 1, 5], &[15, 3, 1]), [8, 3, 5]);
    }

    #[test]
    fn dimensions_that_stay_beside_each_other_are_one() {
        // Channels go behind both sides of an image.
        let (shape, image, last) = ([2, 3, 4, 5], [60, 20, 5, 1], [60, 1, 15, 3]);
        assert_eq!(lengths(&shape, &image, &last), [2, 3, 20]);
        assert_eq!(lengths(&shape, &last, &image), [2, 20, 3]);
    }

    #[test]
    fn rows_in_another_order_stay_rows() {
        // Heads beside positions.
        assert_eq!(
            lengths(&[2, 7, 4, 16], &[448, 16, 112, 1], &[448, 64, 16, 1])[2],
            16
        );
    }
}

//! Strides: which are dense, which show the same elements under another shape, and memory formats.

use super::extent::{Extent, contiguous_strides, numel};
use super::sizes::Sizes;

/// The order in which elements of planes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFormat {
    /// Row-major.
    Contiguous,
    /// All channels of a place side by side; of four dimensions or, for volumes, five.
    ChannelsLast,
}

impl MemoryFormat {
    /// The strides of a dense tensor in this format.
    pub fn strides(self, shape: &[Extent]) -> Vec<Extent> {
        match (self, shape) {
            (MemoryFormat::ChannelsLast, [_, c, h, w]) => {
                vec![*h * *w * *c, Extent::ONE, *w * *c, *c]
            }
            (MemoryFormat::ChannelsLast, [_, c, d, h, w]) => {
                vec![*d * *h * *w * *c, Extent::ONE, *h * *w * *c, *w * *c, *c]
            }
            _ => contiguous_strides(shape),
        }
    }
}

/// `is_channels_last_strides_2d` and `_3d`: whether strides grow from channels over width and height to samples.
pub fn is_channels_last(shape: &[Extent], strides: &[Extent]) -> bool {
    let order: &[usize] = match shape.len() {
        4 => &[1, 3, 2, 0],
        5 => &[1, 4, 3, 2, 0],
        _ => return false,
    };
    if strides[1] == Extent::ZERO {
        return false;
    }
    let mut least = 0;
    for &dim in order {
        let stride = magnitude(strides[dim]);
        // With samples next to channels in memory (one pixel each) the order is ambiguous.
        if stride < least || (dim == 0 && least == magnitude(strides[1])) {
            return false;
        }
        least = stride;
        if shape[dim] != Extent::ONE {
            least = least.saturating_mul(magnitude(shape[dim]));
        }
    }
    true
}

/// Whether two stride lists place the same elements: lengths of one have no stride.
pub fn strides_match(shape: &[Extent], a: &[Extent], b: &[Extent]) -> bool {
    shape
        .iter()
        .zip(a)
        .zip(b)
        .all(|((length, a), b)| *length == Extent::ONE || a == b)
}

/// A length comparable with others, for sorting by stride. Batches are taken as large: no stride that
/// contains the batch lies inside one that does not.
fn magnitude(extent: Extent) -> u64 {
    extent.at(1 << 20)
}

/// Whether the elements fill their memory without gaps or overlaps, in any order of dimensions.
pub fn is_dense(shape: &[Extent], strides: &[Extent]) -> bool {
    let mut dims: Vec<_> = strides
        .iter()
        .zip(shape)
        .filter(|(_, length)| **length != Extent::ONE)
        .collect();
    dims.sort_by_key(|(stride, _)| magnitude(**stride));
    let mut expected = Extent::ONE;
    dims.iter().all(|(stride, length)| {
        let fits = **stride == expected;
        expected = expected * **length;
        fits
    })
}

/// Strides of `empty_like` under the preserve format: dense ones are kept; others keep their order of
/// dimensions without the gaps; expanded ones become row-major.
pub fn strides_like(shape: &[Extent], strides: &Sizes) -> Sizes {
    if is_dense(shape, strides) {
        return strides.clone();
    }
    if strides.contains(&Extent::ZERO) {
        return contiguous_strides(shape).into();
    }
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(magnitude(strides[*i])), *i));
    let mut result = vec![Extent::ONE; shape.len()];
    let mut step = Extent::ONE;
    for i in order.into_iter().rev() {
        result[i] = step;
        step = step * shape[i];
    }
    result.into()
}

/// Strides under which `to` shows the same elements without a copy, if there are any.
///
/// The rule of `at::detail::computeStride`: runs of dimensions that lie contiguously in memory may be cut
/// again, but not across a gap.
pub fn view_strides(shape: &[Extent], strides: &[Extent], to: &[Extent]) -> Option<Vec<Extent>> {
    // What has no elements is a view of all that has none.
    let is_plain = to.is_empty() || numel(shape) == Extent::ZERO;
    let (Some(last), false) = (shape.len().checked_sub(1), is_plain) else {
        return (numel(shape) == numel(to)).then(|| contiguous_strides(to));
    };
    let mut result = vec![Extent::ONE; to.len()];
    let mut at = to.len();
    let mut run_stride = strides[last];
    let (mut run, mut covered) = (Extent::ONE, Extent::ONE);
    for dim in (0..=last).rev() {
        run = run * shape[dim];
        let run_ends =
            dim == 0 || (shape[dim - 1] != Extent::ONE && strides[dim - 1] != run * run_stride);
        if !run_ends {
            continue;
        }
        while at > 0 && (magnitude(covered) < magnitude(run) || to[at - 1] == Extent::ONE) {
            at -= 1;
            result[at] = covered * run_stride;
            covered = covered * to[at];
        }
        if covered != run {
            return None;
        }
        if dim > 0 {
            run_stride = strides[dim - 1];
            (run, covered) = (Extent::ONE, Extent::ONE);
        }
    }
    (at == 0).then_some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(values: &[u64]) -> Vec<Extent> {
        values.iter().map(|n| Extent::fixed(*n)).collect()
    }

    #[test]
    fn a_transposed_matrix_is_dense_but_has_no_flat_view() {
        let (shape, strides) = (fixed(&[4, 3]), fixed(&[1, 4]));

        assert!(is_dense(&shape, &strides));
        assert_eq!(view_strides(&shape, &strides, &fixed(&[12])), None);
    }

    #[test]
    fn what_has_no_elements_is_a_view_of_all_that_has_none() {
        for (shape, to, strides) in [
            (&[2, 0, 2][..], &[2, 0][..], Some(&[1, 1][..])),
            (&[3, 0], &[0, 5, 4], Some(&[20, 4, 1])),
            (&[0], &[3], None),
            (&[3], &[0], None),
        ] {
            let shape = fixed(shape);
            let found = view_strides(&shape, &contiguous_strides(&shape), &fixed(to));
            assert_eq!(found, strides.map(fixed), "{to:?}");
        }
    }

    #[test]
    fn a_contiguous_batch_merges_with_positions() {
        let shape = vec![Extent::BATCH, Extent::fixed(1024), Extent::fixed(768)];
        let strides = contiguous_strides(&shape);
        let to = vec![Extent::per_sample(1024), Extent::fixed(768)];

        assert_eq!(view_strides(&shape, &strides, &to), Some(fixed(&[768, 1])));
    }

    #[test]
    fn a_part_of_a_row_can_be_cut_but_not_joined_to_the_next_row() {
        let (shape, strides) = (fixed(&[5, 64]), fixed(&[192, 1]));

        assert_eq!(
            view_strides(&shape, &strides, &fixed(&[5, 2, 32])),
            Some(fixed(&[192, 32, 1]))
        );
        assert_eq!(view_strides(&shape, &strides, &fixed(&[320])), None);
    }

    #[test]
    fn copies_keep_the_order_of_dimensions_and_lose_gaps() {
        let shape = fixed(&[2, 3, 4]);

        assert_eq!(
            strides_like(&shape, &fixed(&[12, 1, 3]).into()),
            fixed(&[12, 1, 3])
        );
        assert_eq!(
            strides_like(&shape, &fixed(&[24, 1, 6]).into()),
            fixed(&[12, 1, 3])
        );
        assert_eq!(
            strides_like(&shape, &fixed(&[0, 4, 1]).into()),
            fixed(&[12, 4, 1])
        );
    }
}

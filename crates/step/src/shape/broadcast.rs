//! Broadcasting.

use super::extent::Extent;

/// Why shapes do not fit together; the text completes "cannot apply conv2d: …".
pub type Mismatch = String;

/// The common shape, by PyTorch's broadcasting rule.
pub fn broadcast(a: &[Extent], b: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let rank = a.len().max(b.len());
    let length = |shape: &[Extent], i: usize| {
        (i + shape.len())
            .checked_sub(rank)
            .map_or(Extent::ONE, |at| shape[at])
    };
    (0..rank)
        .map(|i| match (length(a, i), length(b, i)) {
            (x, y) if x == y => Ok(x),
            (Extent::ONE, y) => Ok(y),
            (x, Extent::ONE) => Ok(x),
            _ => Err(format!("{a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

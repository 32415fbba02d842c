//! Where to try again when a run crashed.

use super::observations::Observations;

/// Many programs take only multiples of something: of these, the first that fits in.
const MULTIPLES: [u64; 4] = [8, 4, 2, 1];

/// A batch near `wanted` of which nothing was told yet, between `low` and `high`, both excluded. Smaller ones come first:
/// they need less memory. `None` when all of them crashed.
pub(super) fn untried_near(seen: &Observations, wanted: u64, low: u64, high: u64) -> Option<u64> {
    let is_open = |batch: &u64| (low + 1..high).contains(batch) && !seen.was_tried(*batch);
    let near = MULTIPLES.into_iter().flat_map(|multiple| {
        let below = wanted.saturating_sub(1) / multiple * multiple;
        let above = (wanted / multiple + 1).saturating_mul(multiple);
        [below, above]
    });
    // As many as were tried at most, and one more.
    let below = (low + 1..wanted).rev();
    let above = wanted..high;
    near.chain(below).chain(above).find(is_open)
}

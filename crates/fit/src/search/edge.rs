//! The largest batch that meets a goal, where asking is cheap. See Note [One tree for every limit].

use super::state::MAX_BATCH;

/// Where the rungs of each bisection lie within an octave, in thousandths of a power of two: fourth roots of two.
const RUNGS: [u64; 4] = [1000, 1189, 1414, 1682];

/// How many bisections find an edge: each costs about as many probes as the edge has binary digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bisections {
    /// One, where a probe takes tenths of a second.
    One,
    /// Four, whose second largest counts: three, where the largest two of them agree.
    Four,
}

/// Below so many samples a batch that does not meet the goal is passed over where the next one does: a sample is several percent there,
/// and skipping single holes leaves the edge as monotone as it was.
const HOLES_BELOW: u64 = 64;

/// The largest batch of at most `ceiling` that `meets` a goal, and the next one does not; 0 where none was found.
///
/// Which batches are asked about depends on earlier answers and on the ceiling alone. So where whatever meets the goal under one
/// limit meets it under a larger one too, a larger limit never ends at a smaller batch, holes or not.
///
/// # Errors
///
/// The first that `meets` returns.
pub fn edge<E>(
    ceiling: u64,
    bisections: Bisections,
    mut meets: impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    let ceiling = ceiling.min(MAX_BATCH);
    let mut meets =
        |batch| Ok(meets(batch)? || (batch < HOLES_BELOW.min(ceiling) && meets(batch + 1)?));
    if ceiling == 0 || meets(ceiling)? {
        return Ok(ceiling);
    }
    let mut largest = bisection(RUNGS[0], ceiling, &mut meets)?;
    if bisections == Bisections::One {
        return Ok(largest);
    }
    let mut second = 0;
    for (index, thousandths) in RUNGS.iter().enumerate().skip(1) {
        let found = bisection(*thousandths, ceiling, &mut meets)?;
        second = second.max(found.min(largest));
        largest = largest.max(found);
        // Whatever the last one finds, this is the second largest.
        if index + 2 == RUNGS.len() && second == largest {
            break;
        }
    }
    Ok(second)
}

/// From the highest rung below the ceiling, which does not meet the goal, down to one that does; from there by halves.
fn bisection<E>(
    thousandths: u64,
    ceiling: u64,
    meets: &mut impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    let (mut low, mut high) = (0, ceiling);
    for octave in (0..=MAX_BATCH.ilog2()).rev() {
        let rung = (thousandths << octave) / 1000;
        if rung >= high {
            continue;
        }
        if meets(rung)? {
            low = rung;
            break;
        }
        high = rung;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if meets(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

//! `roundup_power2_divisions`: larger sizes rounded more coarsely, so that fewer distinct ones occur.

use std::borrow::Cow;

use crate::alloc::size::MIN_BLOCK;
use crate::limits::shorten;
use crate::units::Bytes;

/// PyTorch's `kRoundUpPowerOfTwoIntervals`.
const INTERVALS: usize = 16;

/// Into how many steps each power of two is divided. The first interval is everything below 2 MiB, the
/// next ones double, the last is everything from 32 GiB. Zero and one turn it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::alloc) struct Divisions([u64; INTERVALS]);

impl Divisions {
    /// Reads `4` or `[256:1,512:2,>:8]`. An error says what would have been right.
    pub(in crate::alloc) fn read(text: &str) -> Result<Divisions, Cow<'static, str>> {
        let Some(list) = text.strip_prefix('[') else {
            let all = text.parse().ok().filter(|n: &u64| n.is_power_of_two());
            return all.map(|n| Divisions([n; INTERVALS])).ok_or(
                "a power of two, or a list such as `[256:1,512:2,>:8]` of sizes in MiB and divisions".into(),
            );
        };
        let list = list.strip_suffix(']').ok_or("a list that ends in `]`")?;
        let mut divisions = [0; INTERVALS];
        let mut highest = None;
        for entry in list.split_terminator(',') {
            let (bound, value) = entry
                .split_once(':')
                .ok_or("a list of `size:divisions`, the sizes in MiB or `>`")?;
            let value = value.parse().ok();
            let value = value
                .filter(|n: &u64| *n == 0 || n.is_power_of_two())
                .ok_or_else(|| {
                    let bound = shorten(bound);
                    format!("a list whose divisions are powers of two or 0, also that of `{bound}`")
                })?;
            if bound == ">" {
                divisions[highest.map_or(1, |index| index + 1)..].fill(value);
                continue;
            }
            let bound: Option<u64> = bound.parse().ok();
            let power = bound.filter(|n| n.is_power_of_two()).ok_or_else(|| {
                let entry = shorten(entry);
                format!(
                    "a list whose sizes are powers of two in MiB or `>`, also that in `{entry}`"
                )
            })?;
            let index = (power.ilog2() as usize).min(INTERVALS - 1);
            if highest.is_none() {
                divisions[..index].fill(value);
            }
            divisions[index] = value;
            highest = Some(index);
        }
        Ok(Divisions(divisions))
    }

    /// Whether nothing is rounded by this.
    pub(in crate::alloc) fn are_off(&self) -> bool {
        self.0.iter().all(|divisions| *divisions <= 1)
    }

    /// The rounded size of a request between 512 and 2^60 bytes, or `None` where the usual rule holds.
    pub(in crate::alloc) fn round(&self, requested: Bytes) -> Option<Bytes> {
        let n = requested.0;
        let interval = n.ilog2().saturating_sub(20) as usize;
        let divisions = self.0[interval.min(INTERVALS - 1)];
        // PyTorch's product wraps around too; from 2^55 divisions it is zero.
        if divisions <= 1 || n <= MIN_BLOCK.0.wrapping_mul(divisions) {
            return None;
        }
        let power = 1 << n.ilog2();
        let step = power >> divisions.ilog2();
        let rounded = match (n == power, step) {
            (true, _) => n,
            (false, 0) => power << 1,
            (false, _) => n.next_multiple_of(step),
        };
        Some(Bytes(rounded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_fills_below_its_first_and_above_its_last_entry() {
        let divisions = Divisions::read("[256:1,512:2,1024:4,>:8]").unwrap();

        let mut expected = [8; INTERVALS];
        expected[..9].fill(1);
        expected[9] = 2;
        expected[10] = 4;
        assert_eq!(divisions.0, expected);
    }

    #[test]
    fn gaps_between_entries_stay_off() {
        let divisions = Divisions::read("[2:4,16:8]").unwrap();

        assert_eq!(divisions.0[..6], [4, 4, 0, 0, 8, 0]);
    }

    #[test]
    fn sizes_round_to_a_part_of_their_power_of_two() {
        let divisions = Divisions::read("4").unwrap();

        let rounded = [2048, 2049, 5000, 1 << 20, (1 << 20) + 1, 1200 << 20]
            .map(|n| divisions.round(Bytes(n)).map(|n| n.0));

        let mib = 1 << 20;
        assert_eq!(
            rounded,
            [
                None,
                Some(2560),
                Some(5120),
                Some(mib),
                Some(mib + mib / 4),
                Some(1280 * mib)
            ]
        );
    }

    #[test]
    fn absurdly_many_divisions_round_as_pytorch_does() {
        let divisions = Divisions::read("36028797018963968").unwrap();

        assert_eq!(divisions.round(Bytes(600)), Some(Bytes(1024)));
    }
}

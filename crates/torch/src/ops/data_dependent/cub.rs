//! The buffers that CUB's device-wide algorithms ask for, by the number of elements.
//!
//! Measured with PyTorch 2.11 for 10 to 10,000,000 elements on compute capabilities 7.5, 8.0 and 9.0.

use crate::program::Capability;

/// Every buffer may be moved to the next 256 bytes.
const ALIGNMENT: u64 = 255;

/// What tiles tell each other: so many bytes for each, and for 32 more, in whole 256 bytes.
fn tile_states(count: u64, tile: u64, bytes: u64) -> u64 {
    let tiles = count.div_ceil(tile).max(1);
    ((tiles + 32) * bytes).next_multiple_of(256)
}

/// `DeviceSelect::Flagged` of int64 places.
pub fn select_bytes(card: &Capability, count: u64) -> u64 {
    let tile = match card.compute.0 {
        ..=7 => 640,
        8 => 2304,
        _ => 4224,
    };
    ALIGNMENT + 256 + tile_states(count, tile, 8)
}

/// `DeviceScan` of int64 sums.
pub fn scan_bytes(count: u64) -> u64 {
    ALIGNMENT + 256 + tile_states(count, 896, 16)
}

/// `DeviceReduce::Sum` of truth values into an int32: one tile needs no buffer, and more have one partial sum for
/// each of the blocks that the card may run, ten for each multiprocessor.
pub fn count_bytes(card: &Capability, count: u64) -> u64 {
    if count <= 4096 {
        return 1;
    }
    ALIGNMENT + (40 * card.multiprocessors).next_multiple_of(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read off the allocator's history, with PyTorch 2.11.
    #[test]
    fn buffers_are_those_that_pytorch_took() {
        let card = |major: u32| Capability {
            compute: (major, 0),
            multiprocessors: 132,
            threads_per_multiprocessor: 2048,
        };
        for (count, places, sums) in [
            (10, [1_023, 1_023, 1_023], 1_279),
            (20_000, [1_023, 1_023, 1_023], 1_535),
            (100_000, [2_047, 1_279, 1_023], 2_815),
            (400_000, [5_887, 2_303, 1_535], 8_191),
            (3_000_000, [38_399, 11_263, 6_655], 54_783),
            (10_000_000, [125_951, 35_583, 19_711], 179_711),
        ] {
            let selected = [7, 8, 9].map(|major| select_bytes(&card(major), count));
            assert_eq!(selected, places, "{count}");
            assert_eq!(scan_bytes(count), sums, "{count}");
        }
        assert_eq!(count_bytes(&card(9), 4_096), 1);
        assert_eq!(count_bytes(&card(9), 4_097), 5_631);
    }
}

//! Tables of addresses and sizes that PyTorch's copying kernels take to the device.

use crate::program::Capability;

/// Bytes that a block of threads copies at a time (`BLOCK_SIZE` 128 threads of `BYTES_PER_THREAD` 16 bytes, in
/// aten/src/ATen/native/cuda/TensorShape.cu).
const BYTES_PER_BLOCK: u64 = 2048;

/// Threads of a block there.
const THREADS_PER_BLOCK: u64 = 128;

/// Numbers in the tables are int64.
const NUMBER: u64 = 8;

/// `split_with_sizes_copy`, which takes what was gathered apart: int64[4n + 1 + blocks] for shards of these bytes.
pub(super) fn of_copy_out(shards: &[u64], ranks: u64, capability: Capability) -> u64 {
    let blocks = |bytes: u64, times: u64| bytes.div_ceil(BYTES_PER_BLOCK * times);
    let iterations: u64 = shards.iter().map(|bytes| blocks(*bytes, 1)).sum();
    let resident =
        capability.multiprocessors * capability.threads_per_multiprocessor / THREADS_PER_BLOCK;
    // Twice as many blocks as are resident at a time; where there are more, each block goes around several times.
    let factor = iterations
        .saturating_mul(ranks)
        .div_ceil((2 * resident).max(1))
        .max(1);
    let per_rank = square_root_above(factor).min(ranks).max(1);
    let times = factor.div_ceil(per_rank);
    let assigned: u64 = shards.iter().map(|bytes| blocks(*bytes, times)).sum();
    NUMBER * (4 * shards.len() as u64 + 1 + assigned)
}

/// `chunk_cat`, which puts gradients together: int64[6n + 2 + blocks] for shards of these bytes.
pub(super) fn of_copy_in(shards: &[u64]) -> u64 {
    let blocks: u64 = shards
        .iter()
        .map(|bytes| bytes.div_ceil(BYTES_PER_BLOCK))
        .sum();
    NUMBER * (6 * shards.len() as u64 + 2 + blocks)
}

/// The least whole number whose square is not below this.
fn square_root_above(value: u64) -> u64 {
    let root = value.isqrt();
    root + u64::from(root.saturating_mul(root) < value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Capability = Capability::of((9, 0), 132);

    /// Sizes that two H200s allocated for a layer of 1024 by 1024 and a head of 1000 in bfloat16, and for a block of Llama 1B.
    #[test]
    fn tables_are_as_large_as_recorded_ones() {
        assert_eq!(of_copy_out(&[1_048_576, 1024], 2, H200), 4176);
        assert_eq!(of_copy_out(&[1_024_000, 1000], 2, H200), 4080);
        assert_eq!(of_copy_in(&[2_097_152, 2048]), 8312);
        assert_eq!(of_copy_in(&[2_048_000, 2000]), 8120);
        let mut block = vec![4_194_304, 524_288, 524_288, 4_194_304];
        block.extend([11_534_336; 3]);
        block.extend([2048; 2]);
        assert_eq!(of_copy_out(&block, 2, H200), 29_008);
        let in_float: Vec<u64> = block.iter().map(|bytes| 2 * bytes).collect();
        assert_eq!(of_copy_in(&in_float), 344_544);
    }
}

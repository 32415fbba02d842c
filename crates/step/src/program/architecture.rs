//! What all cards of a compute capability have in common.

/// What depends on a card's compute capability alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Threads that one multiprocessor holds: into how many blocks a reduction is split depends on them.
    pub threads_per_multiprocessor: u64,
    /// Blocks that one multiprocessor holds.
    pub blocks_per_multiprocessor: u32,
    /// Bytes of shared memory that a block gets if it asks for them.
    pub shared_per_block: u32,
    /// Bytes of shared memory of each block that the driver keeps.
    pub reserved_per_block: u32,
    /// Bytes of the workspace that PyTorch gives a handle of cuBLAS.
    pub blas_workspace: u64,
    /// Which kernels of attention PyTorch chooses among.
    pub attention: AttentionKernels,
}

/// The kernels of attention that PyTorch 2.11 takes on an architecture, apart from plain operations, which it always can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionKernels {
    /// The widest head, in elements, that cuDNN's kernel is taken for; `None` where it never is.
    pub cudnn: Option<u64>,
    /// When `FlashAttention` 2 is.
    pub flash: Flash,
    /// Whether the memory-efficient kernel takes bfloat16.
    pub efficient_bf16: bool,
    /// Of how many elements a float32 head's width must be a multiple for the memory-efficient kernel; 8 in half precision everywhere.
    pub efficient_alignment: u64,
}

/// When PyTorch takes `FlashAttention` 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flash {
    /// Never.
    No,
    /// Heads up to 256 elements, but in training none of 193 to 224, and none above 224 with dropout: those need shared memory that
    /// these cards lack.
    Narrow,
    /// Heads up to 256 elements.
    Wide,
}

const BEFORE_AMPERE: AttentionKernels = AttentionKernels {
    cudnn: None,
    flash: Flash::No,
    efficient_bf16: false,
    efficient_alignment: 1,
};

const NARROW: AttentionKernels = AttentionKernels {
    cudnn: None,
    flash: Flash::Narrow,
    efficient_bf16: true,
    efficient_alignment: 4,
};

const WIDE: AttentionKernels = AttentionKernels {
    flash: Flash::Wide,
    ..NARROW
};

const fn cudnn(widest: u64) -> AttentionKernels {
    AttentionKernels {
        cudnn: Some(widest),
        ..WIDE
    }
}

/// What most architectures have as cuBLAS's workspace, and what 9.0 has.
const USUAL_WORKSPACE: u64 = 8_519_680;
const HOPPER_WORKSPACE: u64 = 33_554_432;

/// Every architecture that PyTorch 2.11 was asked about, oldest first.
///
/// Threads, blocks and shared memory: "Technical Specifications per Compute Capability" of NVIDIA's CUDA programming guide, as
/// `libcudacxx/include/cuda/__device/arch_traits.h` of github.com/NVIDIA/cccl has them (looked at on 2026-11-23). Attention and cuBLAS's
/// workspace were asked of PyTorch 2.11 itself (`tests/record/attention_choices.py`), as was what follows from the threads
/// (`tests/record/card_reductions.py`).
pub const ARCHITECTURES: [Architecture; 12] = [
    architecture((7, 0), (2048, 32), (96, 0), USUAL_WORKSPACE, BEFORE_AMPERE),
    architecture((7, 5), (1024, 16), (64, 0), USUAL_WORKSPACE, BEFORE_AMPERE),
    architecture((8, 0), (2048, 32), (164, 1), USUAL_WORKSPACE, WIDE),
    architecture((8, 6), (1536, 16), (100, 1), USUAL_WORKSPACE, NARROW),
    architecture((8, 7), (1536, 16), (164, 1), USUAL_WORKSPACE, NARROW),
    architecture((8, 9), (1536, 24), (100, 1), USUAL_WORKSPACE, NARROW),
    architecture((9, 0), (2048, 32), (228, 1), HOPPER_WORKSPACE, cudnn(256)),
    architecture((10, 0), (2048, 32), (228, 1), USUAL_WORKSPACE, cudnn(128)),
    architecture((10, 3), (2048, 32), (228, 1), USUAL_WORKSPACE, cudnn(128)),
    architecture((11, 0), (1536, 24), (228, 1), USUAL_WORKSPACE, WIDE),
    architecture((12, 0), (1536, 24), (100, 1), USUAL_WORKSPACE, NARROW),
    architecture((12, 1), (1536, 24), (100, 1), USUAL_WORKSPACE, NARROW),
];

/// Threads and blocks of a multiprocessor, and KiB of its shared memory and of each block's part that the driver keeps.
const fn architecture(
    compute: (u32, u32),
    (threads, blocks): (u64, u32),
    (shared, reserved): (u32, u32),
    blas_workspace: u64,
    attention: AttentionKernels,
) -> Architecture {
    Architecture {
        compute,
        threads_per_multiprocessor: threads,
        blocks_per_multiprocessor: blocks,
        shared_per_block: (shared - reserved) << 10,
        reserved_per_block: reserved << 10,
        blas_workspace,
        attention,
    }
}

impl Architecture {
    /// That of a compute capability: the newest that is not newer, as binaries for an older one of the same major run on a newer one;
    /// the oldest for those that are older than all.
    pub const fn of((major, minor): (u32, u32)) -> &'static Architecture {
        let mut newest = &ARCHITECTURES[0];
        let mut at = 1;
        while at < ARCHITECTURES.len() {
            let (its_major, its_minor) = ARCHITECTURES[at].compute;
            if its_major < major || its_major == major && its_minor <= minor {
                newest = &ARCHITECTURES[at];
            }
            at += 1;
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_in_order_and_found_by_themselves() {
        assert!(ARCHITECTURES.is_sorted_by_key(|one| one.compute));
        for one in &ARCHITECTURES {
            assert_eq!(Architecture::of(one.compute), one);
        }
    }

    #[test]
    fn one_that_is_not_listed_is_taken_to_be_as_the_one_before() {
        for (compute, as_this) in [
            ((6, 1), (7, 0)),
            ((7, 2), (7, 0)),
            ((8, 8), (8, 7)),
            ((9, 1), (9, 0)),
            ((10, 1), (10, 0)),
            ((13, 0), (12, 1)),
        ] {
            assert_eq!(Architecture::of(compute).compute, as_this);
        }
    }

    #[test]
    fn a_handle_of_cublas_gets_what_pytorch_gives_it() {
        let recorded = include_str!("../../../../tests/golden/attention/choices.txt");
        let mut compared = 0;
        for line in recorded.lines() {
            let Some(line) = line.strip_prefix("# A workspace of cuBLAS of ") else {
                continue;
            };
            let (bytes, on) = line.split_once(" bytes on ").unwrap();
            for one in on.split(' ') {
                let (major, minor) = one.split_once('.').unwrap();
                let compute = (major.parse().unwrap(), minor.parse().unwrap());
                let found = Architecture::of(compute);
                assert_eq!(found.compute, compute);
                assert_eq!(Ok(found.blas_workspace), bytes.parse(), "{one}");
                compared += 1;
            }
        }
        assert_eq!(compared, ARCHITECTURES.len());
    }
}

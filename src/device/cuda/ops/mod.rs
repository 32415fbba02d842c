//! Launches of operators, by families: kernels of our own, cuBLASLt and cuDNN.

pub(in crate::device::cuda) mod attention;
pub(in crate::device::cuda) mod convolution;
pub(in crate::device::cuda) mod cublas;
pub(in crate::device::cuda) mod elementwise;
pub(in crate::device::cuda) mod formulas;
pub(in crate::device::cuda) mod fused_attention;
pub(in crate::device::cuda) mod loss;
pub(in crate::device::cuda) mod matmul;
pub(in crate::device::cuda) mod norm;
pub(in crate::device::cuda) mod optimizer;
pub(in crate::device::cuda) mod pool;
pub(in crate::device::cuda) mod random;
pub(in crate::device::cuda) mod reduce;

use crate::device::cuda::shared::Layout;

/// All structs that kernels take.
pub(in crate::device::cuda) fn layouts() -> Vec<Layout> {
    [
        attention::LAYOUTS,
        elementwise::LAYOUTS,
        loss::LAYOUTS,
        norm::LAYOUTS,
        optimizer::LAYOUTS,
        pool::LAYOUTS,
        random::LAYOUTS,
        reduce::LAYOUTS,
    ]
    .concat()
}

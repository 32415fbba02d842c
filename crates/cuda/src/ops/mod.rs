//! Launches of operators, by families: kernels of our own, cuBLASLt and cuDNN.

pub(crate) mod attention;
pub(crate) mod convolution;
pub(crate) mod cublas;
pub(crate) mod elementwise;
pub(crate) mod formulas;
pub(crate) mod fused_attention;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod pool;
mod prelude;
pub(crate) mod random;
pub(crate) mod reduce;

use crate::shared::Layout;

/// All structs that kernels take.
pub(crate) fn layouts() -> Vec<Layout> {
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

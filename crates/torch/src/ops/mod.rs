//! What each operator is: how it is read from ATen, its shapes, and what eager PyTorch does for it.
//!
//! One module for each family, and each holds all that is known of its operators. What they have in
//! common is [`Operator`]; [`Op`] is any of them.

#[macro_use]
mod registry;

mod attention;
mod call;
mod cast;
mod complex;
mod convolution;
mod copy;
mod create;
mod data_dependent;
mod distance;
mod einsum;
mod elementwise;
mod embedding;
mod fourier;
mod indexed;
mod inplace;
mod join;
mod linear;
mod loss;
mod matmul;
mod norm;
mod opaque;
mod pool;
mod prelude;
mod products;
mod random;
mod recurrent;
mod reduce;
mod resample;
mod scan;
mod scattered;
mod scripted;
mod softmax;
mod view;

use serde::Serialize;

families! {
    Attention: attention,
    Cast: cast,
    Convolution: convolution,
    Copy: copy,
    Create: create,
    Einsum: einsum,
    Elementwise: elementwise,
    Embedding: embedding,
    Indexed: indexed,
    Join: join,
    Linear: linear,
    Loss: loss,
    Matmul: matmul,
    Norm: norm,
    Opaque: opaque,
    Pool: pool,
    Random: random,
    Recurrent: recurrent,
    Reduce: reduce,
    Resample: resample,
    Scripted: scripted,
    View: view,
    Written: inplace;
    complex,
    data_dependent,
    distance,
    embedding::bag,
    fourier,
    indexed::along,
    indexed::search,
    loss::composed,
    norm::weight,
    products,
    recurrent::cell,
    resample::sampling,
    scan,
    scattered,
    softmax,
    view::meshgrid,
}

/// Makes several results, each by an operation of its own; the walk over nodes does that.
pub const BROADCAST_TENSORS: &str = "aten.broadcast_tensors.default";

pub use call::Call;
pub use create::{CreatedOn, CreatedType};
pub use loss::kernel::Likelihood;
pub use loss::{LossFunction, Summary};
pub use norm::kernel as normalization;
pub use opaque::not_elementwise;
pub use pool::kernel as pooling;
pub use random::Dropout;
pub use reduce::scratch_of_columns;
pub use reduce::{Dims, Reduction};
pub use registry::{Context, Operator, Read, Reader, infer, known, read};
pub use resample::{Interpolation, Mode as Interpolated};
pub use scattered::placing;

use crate::shape::{DType, Type};

/// The ATen operators that have a rule of their own, in order, one a line: what the exporter leaves whole.
pub fn known_operators() -> String {
    let mut names: Vec<&str> = known().filter(|name| name.starts_with("aten.")).collect();
    names.sort_unstable();
    names.push("");
    names.join("\n")
}

/// Types of operands, and whether each has no dimensions.
fn scalars(operands: &[Type]) -> Vec<(DType, bool)> {
    let scalar = |(dtype, shape): &Type| (*dtype, shape.is_empty());
    operands.iter().map(scalar).collect()
}

#[cfg(test)]
mod calls;
#[cfg(test)]
mod tests;

//! Which function follows which operation.

use super::convolution::Direction;
use crate::eager::Tensor;
use crate::eager::{Eager, Stop};
use crate::ops::Op;
use crate::program::Placement;
use crate::shape::Extent;

impl Eager {
    /// Runs an operation that is the same in training and inference; `shapes` are its results'.
    pub(crate) fn apply(
        &mut self,
        op: &Op,
        operands: &[Tensor],
        shapes: &[Vec<Extent>],
    ) -> Result<Vec<Tensor>, Stop> {
        let one = match op {
            Op::Linear => self.linear(&operands[0], &operands[1], operands.get(2))?,
            Op::Addmm => self.addmm(&operands[0], &operands[1], &operands[2])?,
            Op::Conv2d(window) => {
                let (plain, bias) = (Direction::Plain, operands.get(2));
                self.convolution(window, plain, [&operands[0], &operands[1]], bias)?
            }
            Op::ConvTranspose2d(window) => {
                let (transposed, bias) = (Direction::Transposed, operands.get(2));
                self.convolution(window, transposed, [&operands[0], &operands[1]], bias)?
            }
            Op::Matmul => self.matmul(&operands[0], &operands[1])?,
            Op::Bmm => self.bmm(&operands[0], &operands[1])?,
            Op::Baddbmm { scaled } => {
                self.baddbmm([&operands[0], &operands[1], &operands[2]], *scaled)?
            }
            Op::Pointwise(pointwise) => self.pointwise(*pointwise, operands)?,
            Op::Indexed(indexed) => return self.indexed(indexed, operands, shapes),
            Op::Softmax { dim, log, dtype } => self.softmax(&operands[0], (*dim, *log), *dtype)?,
            Op::LayerNorm { dims, eps } => {
                let parameters = [operands.get(1), operands.get(2)];
                self.layer_norm(&operands[0], parameters, *dims, *eps)?
            }
            Op::RmsNorm { dims } => self.rms_norm(&operands[0], operands.get(1), *dims)?,
            Op::Loss(loss) => self.loss(*loss, &operands[0], &operands[1])?,
            Op::Opaque(results) => return self.opaque(operands, results),
            Op::GroupedMatmul => self.grouped_matmul([&operands[0], &operands[1], &operands[2]])?,
            Op::Unary { function, in_place } => self.unary(*function, *in_place, &operands[0])?,
            Op::Add(Placement::New) => self.add(&operands[0], &operands[1]),
            Op::Add(Placement::InPlace) => self.add_in_place(&operands[0], &operands[1]),
            Op::Mul => self.mul(&operands[0], &operands[1])?,
            Op::AddScalar(scalar, placement) => self.add_scalar(&operands[0], *scalar, *placement),
            Op::MulScalar(scalar) => self.mul_scalar(&operands[0], *scalar),
            Op::PowScalar(exponent) => self.pow_scalar(&operands[0], *exponent)?,
            Op::Resample(resample) => return self.resample(resample, &operands[0], &shapes[0]),
            Op::Addcmul => self.addcmul([&operands[0], &operands[1], &operands[2]])?,
            Op::Prelu => self.prelu(&operands[0], &operands[1])?,
            Op::Einsum(einsum) => self.einsum(einsum, [&operands[0], &operands[1]])?,
            Op::VectorNorm { dims, keep } => self.vector_norm(&operands[0], dims, *keep)?,
            Op::Normalize(normalize) => self.normalize(*normalize, operands)?,
            Op::Pool1d(pool) => self.pool1d(*pool, &operands[0], &shapes[0])?,
            Op::MaxPool2d(window) => self.max_pool2d(*window, &operands[0])?,
            Op::AdaptiveAvgPool2d { output } => self.adaptive_avg_pool2d(*output, &operands[0])?,
            Op::Embedding { padding } => self.embedding(&operands[0], &operands[1], *padding)?,
            Op::Arange(end) => self.arange(*end),
            Op::CrossEntropy => self.cross_entropy(&operands[0], &operands[1])?,
            arranged => return self.arrange(arranged, operands),
        };
        Ok(vec![one])
    }

    /// Runs an operation that arranges elements or sums them.
    fn arrange(&mut self, op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, Stop> {
        let one = match op {
            Op::Reshape(shape) => self.reshape(&operands[0], shape),
            Op::Permute(order) => self.permute(&operands[0], order),
            Op::Unsqueeze(dim) => self.unsqueeze(&operands[0], *dim),
            Op::Expand(shape) => self.expand(&operands[0], shape),
            Op::Slice {
                dim,
                start,
                end,
                step,
            } => self.slice(&operands[0], *dim, (*start, *end, *step)),
            Op::Select { dim, index } => self.select(&operands[0], *dim, *index),
            Op::Windows { dim, size, step } => self.windows(&operands[0], *dim, [*size, *step]),
            Op::Gather { dim } => self.gather(&operands[0], &operands[1], *dim)?,
            Op::Reduce {
                function,
                dims,
                keep,
            } => self.reduction(*function, &operands[0], dims, *keep),
            Op::Split { lengths, dim } => return Ok(self.split(&operands[0], lengths, *dim)),
            Op::Unbind { dim } => return Ok(self.unbind(&operands[0], *dim)),
            Op::Cat { dim } => self.cat(operands, *dim),
            Op::Stack { dim } => self.stack(operands, *dim),
            Op::Roll { dims } => self.roll(&operands[0], *dims),
            Op::Flip => self.flip(&operands[0]),
            Op::Repeat(times) => self.repeat(&operands[0], times),
            Op::Contiguous => self.contiguous(&operands[0]),
            Op::Clone => self.clone_of(&operands[0]),
            Op::Detach => operands[0].detached(),
            other => unreachable!("{} depends on the mode", other.name()),
        };
        Ok(vec![one])
    }
}

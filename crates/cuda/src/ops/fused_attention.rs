//! Attention in half precision by cuDNN's fused kernels, which PyTorch uses on Hopper and newer cards; there the
//! program's own workspace is as large as they want. On older cards, where PyTorch runs `FlashAttention`, its
//! accumulator serves as that workspace.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use crate::ops::prelude::*;
use crate::units::Bytes;

use super::attention::Attention;
use super::elementwise::single;
use crate::cudnn::{
    AttentionPlan, AttentionShape, CudnnError, GradientLayouts, Handle, Layout, Role,
};
use crate::nvrtc::kernels::Queue;
use crate::plan::Step;

/// Blocks of scratch memory start at multiples of this.
const ALIGNMENT: u64 = 256;

/// Vectors of this many bytes are read at once, so rows must start at multiples of it.
const ROW_ALIGNMENT: u64 = 16;

/// Bytes between seed and offset: each is aligned like a tensor.
const GENERATOR_STEP: u64 = 16;

/// The plans made so far; nothing for an attention that the library does not take.
pub(crate) struct FusedAttention {
    plans: HashMap<AttentionShape, Option<AttentionPlan>>,
    /// Seeds of forward passes that dropped weights in this step: only the library can draw the same again.
    drawn: HashSet<u64>,
    handle: Handle,
}

/// A launch of either pass.
#[derive(Debug, Clone)]
pub(crate) struct AttentionPass {
    shape: AttentionShape,
    tensors: Vec<(Role, u64)>,
}

/// Attention to be queued.
pub(crate) struct FusedCall {
    pub(crate) pass: AttentionPass,
    pub(crate) settings: Attention,
    /// Memory of the program's for this launch alone.
    pub(crate) workspace: (u64, Bytes),
    /// What is done where the library does not take it.
    pub(crate) otherwise: Result<Vec<Step>, LaunchError>,
}

impl FusedAttention {
    pub(crate) fn new(handle: &Handle) -> FusedAttention {
        FusedAttention {
            plans: HashMap::new(),
            drawn: HashSet::new(),
            handle: handle.clone(),
        }
    }

    /// Whether this attention's forward pass dropped weights here.
    pub(crate) fn has_drawn(&self, attention: Attention) -> bool {
        self.drawn.contains(&attention.seed)
    }

    /// Forgets what the finished step drew.
    pub(crate) fn forget_draws(&mut self) {
        self.drawn.clear();
    }

    /// Queues a pass, unless the library does not take it or there is no room for its sums; then nothing is queued and
    /// the answer is no.
    pub(crate) fn launch(
        &mut self,
        queue: &mut Queue,
        call: &FusedCall,
    ) -> Result<bool, LaunchError> {
        let FusedCall {
            ref pass,
            settings: attention,
            workspace,
            ..
        } = *call;
        let (is_backward, drops) = (pass.shape.gradients.is_some(), pass.shape.dropout > 0.0);
        if is_backward && drops && !self.has_drawn(attention) {
            // Our own kernels ran forward, and draw in another way.
            return Ok(false);
        }
        let plan = match self.plans.entry(pass.shape) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => match AttentionPlan::make(&self.handle, &pass.shape) {
                Ok(plan) => place.insert(Some(plan)),
                Err(error) if error.is_refusal() => {
                    tracing::debug!("{:?} runs without cuDNN: {error}", pass.shape);
                    place.insert(None)
                }
                Err(error) => return Err(failed(&error)),
            },
        };
        let Some(plan) = plan else {
            return Ok(false);
        };
        if workspace.1 > Bytes::ZERO {
            queue
                .gpu()
                .expect_held("the workspace of attention", workspace.0, workspace.1.0)?;
        }
        let mut room = Pieces::of([workspace, queue.scratch()]);
        let sums = if is_backward {
            [plan.query_sums, plan.row_products]
        } else {
            [Bytes::ZERO; 2]
        };
        let generator = if drops { 2 * GENERATOR_STEP } else { 0 };
        let pieces =
            [sums[0], sums[1], Bytes(generator), plan.workspace()].map(|size| room.take(size));
        let [
            Some(query_sums),
            Some(row_products),
            Some(generator),
            Some(scratch),
        ] = pieces
        else {
            return Ok(false);
        };
        let mut tensors = pass.tensors.clone();
        if is_backward {
            tensors.extend([
                (Role::QuerySums, query_sums),
                (Role::RowProducts, row_products),
            ]);
        }
        if drops {
            let offset = generator + GENERATOR_STEP;
            queue.write_number(generator, attention.seed)?;
            queue.write_number(offset, 0)?;
            tensors.extend([(Role::Seed, generator), (Role::Offset, offset)]);
            self.drawn.insert(attention.seed);
        }
        // SAFETY: addresses and layouts were taken from the same operands, and their alignment was checked.
        // Operands live until the program frees them, scratch memory until the next launch, and the allocator
        // hands their memory only to work that is queued later on the same stream.
        let outcome = unsafe { plan.execute(&tensors, scratch) };
        outcome.map_err(|error| failed(&error))?;
        queue.count_library_launch();
        Ok(true)
    }
}

impl AttentionPass {
    pub(crate) fn is_backward(&self) -> bool {
        self.shape.gradients.is_some()
    }

    /// `query, key, value -> out, log_sum_exp`, if its layout is one that the library takes.
    pub(crate) fn forward(
        operands: &Operands<'_>,
        attention: Attention,
    ) -> Result<Option<AttentionPass>, LaunchError> {
        let [query, key, value] = [0, 1, 2].map(|i| operands.input(i));
        let given = [
            (Role::Query, query?),
            (Role::Key, key?),
            (Role::Value, value?),
            (Role::Out, operands.output(0)?),
        ];
        // Without a backward pass there may be no row sums, which the graph has.
        let row_sums = operands.output(1).ok();
        let bias = operands.optional_input(3);
        // Where the bias's gradient is wanted, the backward pass is ours, which draws in another way.
        if bias.is_some() && attention.dropout > 0.0 {
            return Ok(None);
        }
        Ok(row_sums
            .and_then(|row_sums| AttentionPass::of(operands, &given, (row_sums, bias), attention)))
    }

    /// `grad, query, key, value, out, log_sum_exp -> grad_query, grad_key, grad_value`, likewise.
    pub(crate) fn backward(
        operands: &Operands<'_>,
        attention: Attention,
    ) -> Result<Option<AttentionPass>, LaunchError> {
        let given = [
            (Role::Query, operands.input(1)?),
            (Role::Key, operands.input(2)?),
            (Role::Value, operands.input(3)?),
            (Role::Out, operands.input(4)?),
            (Role::Grad, operands.input(0)?),
            (Role::GradQuery, operands.output(0)?),
            (Role::GradKey, operands.output(1)?),
            (Role::GradValue, operands.output(2)?),
        ];
        // Here the library gives no gradient of a bias.
        if operands.outputs().len() > 3 {
            return Ok(None);
        }
        let further = (operands.input(5)?, operands.optional_input(6));
        Ok(AttentionPass::of(operands, &given, further, attention))
    }

    fn of(
        operands: &Operands<'_>,
        given: &[(Role, &Operand)],
        (row_sums, bias): (&Operand, Option<&Operand>),
        attention: Attention,
    ) -> Option<AttentionPass> {
        let mut tensors: Vec<_> = given
            .iter()
            .map(|(role, operand)| (*role, operand.address))
            .collect();
        tensors.push((Role::RowSums, row_sums.address));
        tensors.extend(bias.map(|bias| (Role::Bias, bias.address)));
        let layouts = given.iter().map(|(_, operand)| layout(operand));
        let layouts = layouts.collect::<Option<Vec<_>>>()?;
        let (&[query, key, value, out], gradients) = layouts.split_first_chunk()?;
        let gradients = match *gradients {
            [out, query, key, value] => Some(GradientLayouts {
                out,
                query,
                key,
                value,
            }),
            _ => None,
        };
        let [samples, heads, positions, _] = query.dims;
        let [batch, head, position] = row_sums.strides[..] else {
            return None;
        };
        if !row_sums.address.is_multiple_of(ROW_ALIGNMENT) {
            return None;
        }
        let bias = match bias {
            Some(bias) if bias.dtype != operands.input(0).ok()?.dtype => return None,
            Some(bias) => Some(broadcast_layout(bias)?),
            None => None,
        };
        let signed = u64::cast_signed;
        let shape = AttentionShape {
            dtype: operands.input(0).ok()?.dtype,
            query,
            key,
            value,
            out,
            row_sums: Layout {
                dims: [samples, heads, positions, 1],
                strides: [signed(batch), signed(head), signed(position), 1],
            },
            bias,
            causal: attention.causal,
            dropout: attention.dropout,
            scale: single(attention.scale),
            gradients,
        };
        shape
            .dtype
            .is_half()
            .then_some(AttentionPass { shape, tensors })
    }
}

fn failed(error: &CudnnError) -> LaunchError {
    LaunchError::Failed {
        call: "attention by cuDNN".to_owned(),
        detail: error.to_string(),
    }
}

/// A tensor of rows, each aligned and without gaps.
fn layout(operand: &Operand) -> Option<Layout> {
    let dims: [u64; 4] = operand.shape[..].try_into().ok()?;
    let strides: [u64; 4] = operand.strides[..].try_into().ok()?;
    let is_whole = (dims[3] * operand.dtype.size()).is_multiple_of(ROW_ALIGNMENT);
    (is_whole && has_aligned_rows(operand, strides)).then(|| Layout {
        dims: dims.map(u64::cast_signed),
        strides: strides.map(u64::cast_signed),
    })
}

/// Whether rows of an operand, seen under these strides, begin at aligned addresses and have no gaps.
fn has_aligned_rows(operand: &Operand, [outer @ .., last]: [u64; 4]) -> bool {
    let is_aligned = |bytes: u64| bytes.is_multiple_of(ROW_ALIGNMENT);
    let step = operand.dtype.size();
    last == 1 && is_aligned(operand.address) && outer.iter().all(|stride| is_aligned(stride * step))
}

/// What is added to scores: lengths of one where it broadcasts, other rows aligned.
fn broadcast_layout(operand: &Operand) -> Option<Layout> {
    let missing = 4_usize.checked_sub(operand.shape.len())?;
    let (mut dims, mut strides) = ([1_u64; 4], [0_u64; 4]);
    for (d, (length, stride)) in operand.shape.iter().zip(&operand.strides).enumerate() {
        if *stride != 0 {
            (dims[missing + d], strides[missing + d]) = (*length, *stride);
        }
    }
    let is_taken = has_aligned_rows(operand, strides);
    // The stride of a length of one says nothing; the library wants one all the same.
    for d in (0..3).rev() {
        if dims[d] == 1 {
            strides[d] = strides[d + 1] * dims[d + 1];
        }
    }
    is_taken.then(|| Layout {
        dims: dims.map(u64::cast_signed),
        strides: strides.map(u64::cast_signed),
    })
}

/// Memory to carve pieces from.
struct Pieces {
    free: [(u64, u64); 2],
}

impl Pieces {
    fn of(blocks: [(u64, Bytes); 2]) -> Pieces {
        Pieces {
            free: blocks.map(|(address, size)| (address, size.0)),
        }
    }

    /// A piece of the first block that has it.
    fn take(&mut self, size: Bytes) -> Option<u64> {
        let size = size.0.next_multiple_of(ALIGNMENT);
        let (start, room) = self.free.iter_mut().find(|(_, room)| *room >= size)?;
        let piece = *start;
        *start += size;
        *room -= size;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_from_the_first_block_that_has_room() {
        let mut room = Pieces::of([(4096, Bytes(600)), (1 << 20, Bytes(1024))]);

        assert_eq!(room.take(Bytes(512)), Some(4096));
        assert_eq!(room.take(Bytes(1)), Some(1 << 20));
        assert_eq!(room.take(Bytes(1000)), None);
    }
}

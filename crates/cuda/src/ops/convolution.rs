//! Launches of convolutions, by the plans that cuDNN proposes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::ops::prelude::*;
use crate::units::Bytes;

use crate::cudnn::{
    ALIGNMENT, CudnnError, DeviceAddresses, ExecutionPlan, Handle, Tf32, list_plans,
};
use crate::driver::gpu::Gpu;
use crate::nvrtc::kernels::Queue;

/// cuDNN on a card's stream, with the plans made so far.
pub(crate) struct Convolutions {
    /// By the alignment of the tensors as well.
    plans: HashMap<(Convolution, u64), Vec<ExecutionPlan>>,
    tf32: Tf32,
    handle: Handle,
}

impl Convolutions {
    /// Opens cuDNN on the card's stream. The value must not outlive the card.
    pub(crate) fn open(gpu: &Gpu, tf32: Tf32) -> Result<Convolutions, LaunchError> {
        // SAFETY: the card's context is current on its thread, which this value cannot leave, and the
        // launcher that holds it holds the card as well and drops it later.
        let handle = unsafe { Handle::create(gpu.stream()) }.map_err(refused)?;
        Ok(Convolutions {
            plans: HashMap::new(),
            tf32,
            handle,
        })
    }

    /// The library, for what else runs through it.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The scratch memory that each plan wants, in the order in which PyTorch tries them.
    pub(crate) fn workspaces(
        &mut self,
        convolution: &Convolution,
    ) -> Result<Vec<Bytes>, LaunchError> {
        Ok(self
            .plans_for(convolution, ALIGNMENT)?
            .iter()
            .map(ExecutionPlan::workspace)
            .collect())
    }

    fn plans_for(
        &mut self,
        convolution: &Convolution,
        alignment: u64,
    ) -> Result<&[ExecutionPlan], LaunchError> {
        match self.plans.entry((*convolution, alignment)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let plans = list_plans(&self.handle, convolution, alignment, self.tf32);
                let plans = plans.map_err(refused)?;
                Ok(place.insert(plans))
            }
        }
    }

    /// Queues a convolution.
    pub(crate) fn launch(&mut self, queue: &mut Queue, call: &ConvolutionCall) -> Queued {
        let ConvolutionCall {
            ref convolution,
            plan,
            workspace,
            addresses: [x, y, w],
            alignment,
        } = *call;
        let failed = |detail: String| LaunchError::Failed {
            call: "Convolution".to_owned(),
            detail,
        };
        let plans = self.plans_for(convolution, ALIGNMENT)?.get(plan..);
        let plans = plans.unwrap_or_default();
        let Some(granted) = plans.first().map(ExecutionPlan::workspace) else {
            return Err(failed(format!("there is no plan {plan}")));
        };
        if workspace == 0 && granted > Bytes::ZERO {
            return Err(failed(format!(
                "the plan wants {granted} of scratch memory and got none"
            )));
        }
        if granted > Bytes::ZERO {
            queue
                .gpu()
                .expect_held("the workspace of a convolution", workspace, granted.0)?;
        }
        let addresses = DeviceAddresses { x, y, w };
        // Which plans there are was asked for tensors at the start of blocks; others have plans of their own.
        let plans = if alignment < ALIGNMENT {
            self.plans_for(convolution, alignment)?
        } else {
            self.plans_for(convolution, ALIGNMENT)?
                .get(plan..)
                .unwrap_or_default()
        };
        // A plan may turn out not to run, as PyTorch expects as well: then the next one that makes do
        // with the same scratch memory is tried.
        let mut outcome = Err(CudnnError::NoEngine);
        for plan in plans.iter().filter(|plan| plan.workspace() <= granted) {
            // SAFETY: operands and workspace were looked up to be device memory of ours. The operands were checked to be dense, their shapes are those of the call that the
            // plan was made for, and tensors start where the allocator aligns blocks. Workspace and
            // operands live until the program frees them, and the allocator hands their memory only to
            // work that is queued later on the same stream.
            outcome = unsafe { plan.execute(&addresses.by_uid(), workspace) };
            if outcome.is_ok() {
                queue.count_library_launch();
                break;
            }
        }
        outcome.map_err(refused)
    }
}

/// A convolution to be queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvolutionCall {
    convolution: Convolution,
    /// Which of its plans.
    plan: usize,
    /// An address, or 0 for a plan that wants none.
    workspace: u64,
    /// Of `x`, `y` and `w` as the library calls them.
    addresses: [u64; 3],
    /// What divides all of them, up to [`ALIGNMENT`].
    alignment: u64,
}

impl ConvolutionCall {
    pub(crate) fn of(
        operands: &Operands<'_>,
        convolution: &Convolution,
        plan: usize,
        workspace: u64,
    ) -> Result<ConvolutionCall, LaunchError> {
        let all = [operands.input(0)?, operands.input(1)?, operands.output(0)?];
        if !all
            .iter()
            .all(|operand| lies_as(operand, convolution.channels_last))
        {
            return Err(operands.unsupported("a strided operand"));
        }
        let [first, second, result] = all.map(|operand| operand.address);
        let offsets = first | second | result;
        let alignment = (1 << offsets.trailing_zeros().min(63)).min(ALIGNMENT);
        let (layer_input, layer_output, w) = match convolution.pass {
            ConvolutionPass::Forward => (first, result, second),
            ConvolutionPass::GradInput => (result, first, second),
            ConvolutionPass::GradWeight => (second, first, result),
        };
        // The library's roles: a transposed layer is an ordinary one run backwards.
        let (x, y) = if convolution.transposed {
            (layer_output, layer_input)
        } else {
            (layer_input, layer_output)
        };
        Ok(ConvolutionCall {
            convolution: *convolution,
            plan,
            workspace,
            addresses: [x, y, w],
            alignment,
        })
    }
}

/// Whether an operand lies as the library is told: row by row, or with its channels side by side.
fn lies_as(operand: &Operand, channels_last: bool) -> bool {
    if !channels_last || operand.shape.len() < 3 {
        return operand.is_contiguous();
    }
    let turn = |list: &[u64]| [&list[..1], &list[2..], &list[1..2]].concat();
    Operand {
        shape: turn(&operand.shape),
        strides: turn(&operand.strides),
        ..operand.clone()
    }
    .is_contiguous()
}

#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn refused(error: CudnnError) -> LaunchError {
    LaunchError::Failed {
        call: "cuDNN".to_owned(),
        detail: error.to_string(),
    }
}

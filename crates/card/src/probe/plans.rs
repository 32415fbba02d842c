//! Which plan each convolution runs with, and what happens when its workspace does not fit.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::alloc::{BlockId, CachingAllocator, Observer, OutOfMemory, SegmentSource};
use crate::device::{LaunchError, Launcher};
use crate::program::{ConvolutionId, Program};
use crate::units::Bytes;

/// The plans of one convolution at one batch.
#[derive(Debug, Default)]
struct Plans {
    /// What each wants, in the order PyTorch tries them.
    workspaces: Vec<Bytes>,
    /// The one that ran last, which the next call uses without asking again.
    chosen: Option<usize>,
}

/// Memory for a convolution, and the plan that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedWorkspace {
    /// Nothing, for a plan that wants none.
    pub(super) block: Option<BlockId>,
    /// Which plan.
    pub(super) plan: usize,
}

/// Plans by convolution: PyTorch's cache, which outlives a step but not a process.
#[derive(Debug)]
pub(super) struct PlanCache(Vec<Option<Plans>>);

impl PlanCache {
    /// One that knows no plans yet.
    pub(super) fn of(program: &Program) -> PlanCache {
        PlanCache(program.convolutions.iter().map(|_| None).collect())
    }

    /// A digest of the plans that ran last, on which the next calls depend.
    pub(super) fn digest(&self) -> u64 {
        let mut digest = DefaultHasher::new();
        for plans in &self.0 {
            let chosen = plans.as_ref().map(|plans| plans.chosen);
            chosen.hash(&mut digest);
        }
        digest.finish()
    }

    /// Takes the workspace of the first plan whose workspace can be had, or `None` when none can.
    ///
    /// Each refusal goes through the allocator's whole ladder, as in PyTorch: it counts as a retry and as
    /// an OOM. A plan that ran is used again; when it is refused later, the list starts again.
    pub(super) fn grant<S: SegmentSource, O: Observer>(
        &mut self,
        (program, convolution): (&Program, ConvolutionId),
        batch: u64,
        allocator: &mut CachingAllocator<S, O>,
        launcher: &mut dyn Launcher,
    ) -> Result<Option<PlannedWorkspace>, LaunchError> {
        let plans = match &mut self.0[convolution.0 as usize] {
            Some(plans) => plans,
            unknown => {
                let call = program.convolution(convolution).at(batch);
                unknown.insert(Plans {
                    workspaces: launcher.convolution_plans(&call)?,
                    chosen: None,
                })
            }
        };
        if let Some(plan) = plans.chosen
            && let Ok(block) = take(allocator, plans.workspaces[plan])
        {
            return Ok(Some(PlannedWorkspace { block, plan }));
        }
        for plan in 0.. {
            if plan == plans.workspaces.len() {
                let call = program.convolution(convolution).at(batch);
                let further = launcher.further_plans(&call, plan)?;
                plans.workspaces.extend(further);
            }
            let Some(workspace) = plans.workspaces.get(plan) else {
                break;
            };
            if let Ok(block) = take(allocator, *workspace) {
                plans.chosen = Some(plan);
                return Ok(Some(PlannedWorkspace { block, plan }));
            }
        }
        Ok(None)
    }
}

/// A block of this size; none for no bytes.
fn take<S: SegmentSource, O: Observer>(
    allocator: &mut CachingAllocator<S, O>,
    bytes: Bytes,
) -> Result<Option<BlockId>, OutOfMemory> {
    if bytes == Bytes::ZERO {
        return Ok(None);
    }
    allocator.malloc(bytes).map(Some)
}

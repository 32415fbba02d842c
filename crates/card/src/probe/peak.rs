//! The moment when most is allocated: what was being done, and which modules hold the memory.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::alloc::{BlockState, CachingAllocator, Observer, SegmentSource};
use crate::program::{Category, Program, TensorId};
use crate::units::Bytes;

/// Modules that are named at most; the rest is added up.
const MODULES: usize = 16;

/// What a step is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The model and its loss.
    Forward,
    /// Gradients.
    Backward,
    /// A part of the forward pass once more, in the backward pass: activation checkpointing.
    Recomputation,
    /// The optimizer, with what clips gradients before it.
    OptimizerStep,
}

impl Phase {
    /// What goes on once a tensor of this category was allocated.
    pub(super) const fn after(self, category: Category) -> Phase {
        match category {
            Category::Batch => Phase::Forward,
            Category::Activations => match self {
                Phase::Backward | Phase::Recomputation => Phase::Recomputation,
                Phase::Forward | Phase::OptimizerStep => Phase::Forward,
            },
            Category::ActivationGradients | Category::Gradients => Phase::Backward,
            Category::OptimizerState | Category::OptimizerScratch => Phase::OptimizerStep,
            // All phases take these.
            Category::Parameters | Category::Workspace | Category::Communication => self,
        }
    }
}

/// Bytes that belong to one module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModuleBytes {
    /// Its path, such as `layer3.0.conv2`, or the library or wrapper that asked for them; empty for what is in no module, as the
    /// loss and the batch are.
    #[schema(example = "transformer.h.11.mlp")]
    pub module: String,
    /// Parameters, gradients, optimizer state, activations and all else of it.
    pub bytes: u64,
}

/// The moment when most was allocated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Peak {
    /// In which step, from 1.
    pub step: u32,
    /// What the step was doing.
    pub phase: Phase,
    /// The module whose tensor was allocated then; empty for what is in no module.
    pub module: String,
    /// The operation, or the tensor, that it was allocated for.
    #[schema(example = "cross_entropy")]
    pub operation: String,
    /// The same in words.
    #[schema(example = "backward of transformer.h.11.mlp.act (gelu), step 2")]
    pub moment: String,
    /// Bytes allocated then: the sum of `modules` and `other_modules_bytes`, and of the report's `at_peak`.
    pub allocated_bytes: u64,
    /// Bytes reserved then.
    pub reserved_bytes: u64,
    /// Bytes that the allocator kept then without using them: `reserved_bytes` less `allocated_bytes`.
    pub cached_bytes: u64,
    /// Who holds them, those that hold most first; at most 16.
    pub modules: Vec<ModuleBytes>,
    /// How many more modules hold some.
    pub other_modules: u64,
    /// What those hold together.
    pub other_modules_bytes: u64,
}

/// What was free when a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Shortage {
    /// What was asked for, as rounded by the allocator; null for the workspace of a convolution, none of whose plans could be had.
    pub requested_bytes: Option<u64>,
    /// Bytes allocated then.
    pub allocated_bytes: u64,
    /// Bytes reserved then, with nothing more to give back.
    pub reserved_bytes: u64,
    /// Bytes that were reserved and in no use.
    pub free_bytes: u64,
    /// In how many pieces they lay.
    pub free_pieces: u64,
    /// The largest piece.
    pub largest_free_bytes: u64,
}

impl Shortage {
    /// Looks at an allocator that has refused a request.
    pub(super) fn of<S: SegmentSource, O: Observer>(
        allocator: &CachingAllocator<S, O>,
        requested: Bytes,
    ) -> Shortage {
        let stats = allocator.stats();
        let mut shortage = Shortage {
            requested_bytes: (requested > Bytes::ZERO)
                .then(|| allocator.settings().round_size(requested).0),
            allocated_bytes: stats.allocated().0,
            reserved_bytes: stats.reserved().0,
            free_bytes: 0,
            free_pieces: 0,
            largest_free_bytes: 0,
        };
        for segment in &allocator.snapshot().segments {
            for block in &segment.blocks {
                if block.state == BlockState::Inactive {
                    shortage.free_bytes += block.size.0;
                    shortage.free_pieces += 1;
                    shortage.largest_free_bytes = shortage.largest_free_bytes.max(block.size.0);
                }
            }
        }
        shortage
    }
}

/// When the peak was, and which tensors were alive then.
#[derive(Debug)]
pub(super) struct Highest {
    pub(super) step: u32,
    pub(super) phase: Phase,
    pub(super) tensor: TensorId,
    pub(super) allocated: Bytes,
    pub(super) reserved: Bytes,
}

impl Highest {
    /// Who held the memory, of tensors with the bytes that each took then.
    pub(super) fn peak(
        &self,
        program: &Program,
        alive: impl Iterator<Item = (TensorId, u64)>,
    ) -> Peak {
        let mut by_module: HashMap<&str, u64> = HashMap::new();
        for (id, bytes) in alive {
            let tensor = program.tensor(id);
            let (module, _) = owner(&tensor.label, tensor.category);
            *by_module.entry(module).or_default() += bytes;
        }
        let mut modules: Vec<ModuleBytes> = by_module
            .into_iter()
            .map(|(module, bytes)| ModuleBytes {
                module: module.to_owned(),
                bytes,
            })
            .collect();
        crate::order::by(&mut modules, |a, b| {
            b.bytes.cmp(&a.bytes).then_with(|| a.module.cmp(&b.module))
        });
        let others = modules.split_off(modules.len().min(MODULES));
        let tensor = program.tensor(self.tensor);
        let (module, operation) = owner(&tensor.label, tensor.category);
        Peak {
            step: self.step,
            phase: self.phase,
            module: module.to_owned(),
            operation: operation.to_owned(),
            moment: moment(self.phase, module, operation, self.step),
            allocated_bytes: self.allocated.0,
            reserved_bytes: self.reserved.0,
            cached_bytes: self.reserved.saturating_sub(self.allocated).0,
            modules,
            other_modules: others.len() as u64,
            other_modules_bytes: others.iter().map(|module| module.bytes).sum(),
        }
    }
}

/// The module that a tensor belongs to, and what it is there, from its label: `PATH.weight` of a parameter, `PATH.weight exp_avg` of
/// the optimizer, `PATH operation` of anything else.
pub(super) fn owner(label: &str, category: Category) -> (&str, &str) {
    let (first, rest) = label.split_once(' ').unwrap_or(("", label));
    match category {
        Category::Parameters
        | Category::Gradients
        | Category::OptimizerState
        | Category::OptimizerScratch => {
            let path = if first.is_empty() { rest } else { first };
            (path.rsplit_once('.').map_or("", |(module, _)| module), path)
        }
        Category::Batch
        | Category::Activations
        | Category::ActivationGradients
        | Category::Workspace
        | Category::Communication => (first, rest),
    }
}

fn moment(phase: Phase, module: &str, operation: &str, step: u32) -> String {
    let place = match module {
        "" => operation.to_owned(),
        module => format!("{module} ({operation})"),
    };
    match phase {
        Phase::Forward => format!("forward of {place}, step {step}"),
        Phase::Backward => format!("backward of {place}, step {step}"),
        Phase::Recomputation => {
            format!("forward of {place} once more in the backward pass, step {step}")
        }
        Phase::OptimizerStep => format!("optimizer step ({operation}), step {step}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_a_module_and_what_it_does() {
        let activation = Category::Activations;

        assert_eq!(owner("h.0.mlp.act pow", activation), ("h.0.mlp.act", "pow"));
        assert_eq!(owner("cross_entropy", activation), ("", "cross_entropy"));
        assert_eq!(
            owner("h.0.ln.weight", Category::Parameters),
            ("h.0.ln", "h.0.ln.weight")
        );
        assert_eq!(
            owner("h.0.ln.weight exp_avg", Category::OptimizerState),
            ("h.0.ln", "h.0.ln.weight")
        );
        assert_eq!(owner("weight", Category::Gradients), ("", "weight"));
    }

    #[test]
    fn activations_after_gradients_are_computed_again_until_the_next_batch() {
        use Phase::{Backward, Forward, OptimizerStep, Recomputation};

        let categories = [
            Category::Batch,
            Category::Activations,
            Category::ActivationGradients,
            Category::Activations,
            Category::Workspace,
            Category::Gradients,
            Category::Batch,
            Category::Activations,
            Category::OptimizerScratch,
        ];

        let mut phase = Forward;
        let phases = categories.map(|category| {
            phase = phase.after(category);
            phase
        });

        assert_eq!(
            phases,
            [
                Forward,
                Forward,
                Backward,
                Recomputation,
                Recomputation,
                Backward,
                Forward,
                Forward,
                OptimizerStep
            ]
        );
    }
}

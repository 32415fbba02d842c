//! What of a program a GPU cannot run, without one.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::{Launch, LaunchError};
use crate::program::{Call, Instruction, Program, TensorId};

use super::{Code, Context, Step, Target, steps};
use crate::generate::Source;
use crate::layout::Operands;

/// An operation of a program that a GPU cannot run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Gap {
    /// The operation, and what of it is missing.
    pub operation: String,
    /// How many launches of a step have it.
    pub launches: u64,
    /// The tensor that the first of them writes.
    pub tensor: String,
}

/// Addresses of a program's tensors on no card: apart from each other, and aligned as the allocator aligns blocks.
fn addresses(program: &Program) -> Vec<u64> {
    (1..=program.tensors.len() as u64)
        .map(|number| number << 20)
        .collect()
}

/// What running a program on a card takes.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Everything that keeps it from running; empty where nothing does.
    pub gaps: Vec<Gap>,
    /// The code that it needs.
    pub sources: Sources,
}

/// Plans every launch of a program at a batch.
///
/// Operands are looked at as well: what reads a tensor that no launch before it has written would compute with whatever
/// memory holds.
pub fn survey(program: &Program, batch: u64, target: Target) -> Survey {
    let mut sources = Sources::default();
    let mut found: BTreeMap<String, Gap> = BTreeMap::new();
    let mut note = |operation: String, call: &Call| {
        let tensor = call.outputs.first();
        let gap = found.entry(operation.clone()).or_insert_with(|| Gap {
            operation,
            launches: 0,
            tensor: tensor.map_or_else(String::new, |view| {
                program.tensor(view.tensor).label.to_string()
            }),
        });
        gap.launches += 1;
    };
    let mut is_written = vec![false; program.tensors.len()];
    visit(program, batch, |instruction| match instruction {
        Visited::Allocate(id) => is_written[id.0 as usize] = false,
        Visited::Launch(launch, operands) => {
            for (view, operand) in launch.call.inputs.iter().zip(operands.inputs()) {
                if !is_written[view.tensor.0 as usize] && operand.count() > 0 {
                    let label = &program.tensor(view.tensor).label;
                    note(
                        format!("{} reads `{label}`, which nothing wrote", operands.name()),
                        launch.call,
                    );
                }
            }
            for view in &launch.call.outputs {
                is_written[view.tensor.0 as usize] = true;
            }
            match steps(launch, operands, target, Context::default()) {
                Ok(steps) => steps.iter().for_each(|step| sources.add_step(step)),
                Err(error) => note(operation_of(&error), launch.call),
            }
        }
        Visited::Misfit(call, error) => note(operation_of(&error), call),
    });
    Survey {
        gaps: found.into_values().collect(),
        sources,
    }
}

/// Gaps in words.
pub fn listed(gaps: &[Gap]) -> String {
    gaps.iter()
        .map(|gap| &*gap.operation)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Code that a program needs.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub(crate) generated: BTreeSet<Source>,
    pub(crate) written: BTreeSet<&'static str>,
}

impl Sources {
    /// With this code.
    pub(crate) fn add(&mut self, code: &Code) {
        match code {
            Code::Written(name) => drop(self.written.insert(name)),
            Code::Generated(source, _) => drop(self.generated.insert(source.clone())),
        }
    }

    fn add_step(&mut self, step: &Step) {
        match step {
            Step::Kernel(kernel) => self.add(&kernel.code),
            // Kernels that the library may make unnecessary are compiled when they are needed.
            Step::FusedAttention(_)
            | Step::Product(_)
            | Step::Convolution(_)
            | Step::ObserveLoss(_)
            | Step::Collective(_) => {}
        }
    }

    /// With those of another program.
    pub fn extend(&mut self, other: Sources) {
        self.generated.extend(other.generated);
        self.written.extend(other.written);
    }

    /// How many kernels are generated.
    pub fn generated(&self) -> usize {
        self.generated.len()
    }
}

/// An instruction on the way through a program.
enum Visited<'a> {
    Allocate(TensorId),
    Launch(&'a Launch<'a>, &'a Operands<'a>),
    /// A launch whose operands are described wrongly.
    Misfit(&'a Call, LaunchError),
}

/// Visits construction and each section of each distinct step once, of two at least: what repeats is alike.
fn visit(program: &Program, batch: u64, mut with: impl FnMut(Visited<'_>)) {
    let (addresses, sizes) = (addresses(program), program.bytes_at(batch));
    let sections = program
        .steps(program.steps.len().max(2))
        .flatten()
        .flat_map(|section| &section.instructions);
    for instruction in program.construction.iter().chain(sections) {
        match instruction {
            Instruction::Allocate(id) => with(Visited::Allocate(*id)),
            Instruction::Free(_) => {}
            Instruction::Launch(call) => {
                let launch = Launch {
                    call,
                    batch,
                    addresses: &addresses,
                    sizes: &sizes,
                    plan: 0,
                };
                match Operands::of(&launch) {
                    Ok(operands) => with(Visited::Launch(&launch, &operands)),
                    Err(error) => with(Visited::Misfit(call, error)),
                }
            }
        }
    }
}

fn operation_of(error: &LaunchError) -> String {
    match error {
        LaunchError::Unsupported { operation } => operation.clone(),
        LaunchError::Failed { call, detail } => format!("{call}: {detail}"),
    }
}

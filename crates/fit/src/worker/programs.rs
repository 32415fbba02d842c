//! The compiled programs of one model.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::compile::{CompileError, Launches, Process, compile_process};
use crate::device::Capability;
use crate::graph::Graph;
use crate::limits::Cancel;
use crate::model::{Variant, Workload};
use crate::program::Program;

/// Allocations of programs that are kept for the next probe: some 25 MiB, which hundreds of small models share. A
/// larger program is kept alone.
const MOST_KEPT: usize = 1 << 18;

/// Compiles variants of a model for one kind of card, and keeps the latest.
#[derive(Debug)]
pub struct Programs {
    workload: Workload,
    capability: Capability,
    /// Which of the ranks that train together runs them.
    rank: u32,
    /// The one asked for last comes last.
    compiled: VecDeque<(Variant, Process, Program)>,
    /// Whether they are run, or simulated.
    with_launches: bool,
}

impl Programs {
    /// The programs of `graph`, none compiled yet.
    pub fn new(graph: Arc<Graph>, capability: Capability) -> Programs {
        Programs::of_workload(Workload::Graph(graph), capability)
    }

    fn of_workload(workload: Workload, capability: Capability) -> Programs {
        Programs {
            workload,
            capability,
            rank: 0,
            compiled: VecDeque::new(),
            with_launches: true,
        }
    }

    /// The same for a simulation, which launches nothing.
    pub fn simulated(workload: Workload, capability: Capability) -> Programs {
        Programs {
            with_launches: false,
            ..Programs::of_workload(workload, capability)
        }
    }

    /// The same for another rank than the first.
    #[must_use]
    pub fn of_rank(self, rank: u32) -> Programs {
        Programs { rank, ..self }
    }

    /// What they are made of.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// The step program of a variant.
    pub fn of(&mut self, variant: &Variant, cancel: &Cancel) -> Result<&Program, CompileError> {
        self.of_process(cancel, variant, Process::default())
    }

    /// The same of one of several processes that train together; of those that are simulated, any.
    pub fn of_process(
        &mut self,
        cancel: &Cancel,
        variant: &Variant,
        process: Process,
    ) -> Result<&Program, CompileError> {
        let is_it =
            |(known, of, _): &(Variant, Process, Program)| known == variant && *of == process;
        let known = self.compiled.iter().position(is_it);
        let known = known.and_then(|index| self.compiled.remove(index));
        let entry = if let Some(entry) = known {
            entry
        } else {
            // Its size is not known yet; another variant's is near it.
            let largest = self
                .compiled
                .iter()
                .map(|(_, _, program)| program.tensors.len());
            self.make_room(largest.max().unwrap_or(0));
            let program = match &self.workload {
                Workload::Graph(graph) => {
                    let (process, launches) = if self.with_launches {
                        let rank = self.rank.into();
                        (Process { rank, ..process }, Launches::Kept)
                    } else {
                        (process, Launches::LeftOut)
                    };
                    compile_process(graph, variant, (self.capability, process), launches, cancel)?
                }
                Workload::Recorded(steps) => steps.accumulating(variant.accumulation),
            };
            self.make_room(program.tensors.len());
            (variant.clone(), process, program)
        };
        self.compiled.push_back(entry);
        let (_, _, program) = self.compiled.back().expect("it was just put there");
        Ok(program)
    }

    /// Forgets those that were not asked for longest, until another of this size can be kept.
    fn make_room(&mut self, tensors: usize) {
        let kept = |programs: &VecDeque<(Variant, Process, Program)>| -> usize {
            programs
                .iter()
                .map(|(_, _, program)| program.tensors.len())
                .sum()
        };
        while !self.compiled.is_empty() && kept(&self.compiled) + tensors > MOST_KEPT {
            self.compiled.pop_front();
        }
    }
}

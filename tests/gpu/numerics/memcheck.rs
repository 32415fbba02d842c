//! Steps in which each tensor has exactly the bytes that it asks for, taken from the driver one by one. Under
//! compute-sanitizer, an access past a tensor's end is then an error; inside a segment of the caching
//! allocator it would lie in a neighbour and pass.

use std::collections::HashSet;

use batchfit::alloc::{Address, SegmentSource};
use batchfit::compile::compile;
use batchfit::device::cuda::{CudaLauncher, CudaMemory, Gpu, LauncherOptions, Tf32};
use batchfit::device::{Launch, Launcher};
use batchfit::program::{Instruction, Program, Size, TensorId};
use batchfit::units::Bytes;

use super::{graph, number, script, variant};

/// A program under way, without an allocator.
struct Run<'a> {
    program: &'a Program,
    batch: u64,
    launcher: CudaLauncher,
    memory: CudaMemory,
    addresses: Vec<u64>,
    sizes: Vec<Bytes>,
}

impl Run<'_> {
    fn execute<'a>(&mut self, instructions: impl Iterator<Item = &'a Instruction>) {
        for instruction in instructions {
            match instruction {
                Instruction::Allocate(id) => self.allocate(*id),
                Instruction::Free(id) => self.free(*id),
                Instruction::Launch(call) => {
                    let launch = Launch {
                        call,
                        batch: self.batch,
                        addresses: &self.addresses,
                        sizes: &self.sizes,
                        plan: 0,
                    };
                    self.launcher.launch(&launch).unwrap();
                }
            }
        }
        let done = self.launcher.finish_step().unwrap();
        eprintln!("{} launches, losses {:?}", done.launches, done.losses);
    }

    fn allocate(&mut self, id: TensorId) {
        let mut size = self.sizes[id.0 as usize];
        if let Size::Workspace(convolution) = *self.program.size(id) {
            let shape = self.program.convolution(convolution);
            let plans = self.launcher.convolution_plans(&shape.at(self.batch));
            size = plans.unwrap().first().copied().unwrap_or(Bytes::ZERO);
        }
        if size > Bytes::ZERO {
            self.addresses[id.0 as usize] = self.memory.take(size).unwrap().0;
        }
    }

    fn free(&mut self, id: TensorId) {
        let address = std::mem::take(&mut self.addresses[id.0 as usize]);
        self.memory.give_back(Address(address), Bytes::ZERO);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and the files that numerics.sh makes"]
fn steps_in_exact_memory() {
    let gpu = Gpu::open(0).expect("this test needs a GPU");
    let program = compile(&graph(), &variant(), gpu.facts().capability).unwrap();
    let mut script = script(&program);
    // The batch is a smaller one here, and made up.
    let held = program
        .construction
        .iter()
        .filter_map(|instruction| match instruction {
            Instruction::Allocate(id) => Some(&*program.tensor(*id).label),
            Instruction::Launch(_) | Instruction::Free(_) => None,
        });
    let held: HashSet<&str> = held.collect();
    script.feed.retain(|label, _| held.contains(label.as_str()));
    let options = LauncherOptions {
        tf32: Tf32::Off,
        ..LauncherOptions::default()
    };
    let mut launcher = CudaLauncher::open(&gpu, options).unwrap();
    launcher.follow(script);
    let batch = number("BATCH");
    let mut run = Run {
        program: &program,
        batch,
        launcher,
        memory: CudaMemory::of(&gpu),
        addresses: vec![0; program.tensors.len()],
        sizes: program.bytes_at(batch),
    };

    let mut done = 0;
    for steps in 0..3 {
        run.execute(program.unrolled(steps).skip(done));
        done = program.unrolled(steps).count();
    }

    assert!(run.memory.trouble().is_none(), "{:?}", run.memory.trouble());
}

//! Plans of convolutions that are told one after the other give what they give when they are listed at once.

use batchfit::alloc::{CachingAllocator, SimulatedMemory};
use batchfit::device::sim::SimulatedLauncher;
use batchfit::device::{Launch, LaunchError, Launcher, StepReport};
use batchfit::model::{Optimizer, Precision, Variant};
use batchfit::probe::{Detail, Evidence, Probe, ProbeReport, Resources, STEPS, Verdict};
use batchfit::program::{Convolution, Program};
use batchfit::units::Bytes;

use crate::compile::program;

/// Tells the first plan of each convolution alone, until more are asked for.
struct OneByOne {
    inner: SimulatedLauncher,
    asked_for_more: u32,
}

impl Launcher for OneByOne {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        let mut plans = self.inner.convolution_plans(convolution)?;
        plans.truncate(1);
        Ok(plans)
    }

    fn further_plans(
        &mut self,
        convolution: &Convolution,
        listed: usize,
    ) -> Result<Vec<Bytes>, LaunchError> {
        self.asked_for_more += 1;
        Ok(self.inner.convolution_plans(convolution)?.split_off(listed))
    }

    fn prepare(&mut self, program: &Program, batch: u64) -> Result<(), LaunchError> {
        self.inner.prepare(program, batch)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        self.inner.launch(launch)
    }

    fn finish_step(&mut self) -> Result<StepReport, LaunchError> {
        self.inner.finish_step()
    }
}

fn probe(program: &Program, batch: u64, launcher: &mut dyn Launcher) -> ProbeReport {
    let memory = SimulatedMemory::new(Bytes::gib(80));
    let mut allocator = CachingAllocator::new(memory, "".parse().unwrap(), Some(Bytes::gib(4)));
    let probe = Probe {
        program,
        batch,
        steps: STEPS,
        detail: Detail::Verdict,
    };
    probe.run(&mut Resources {
        allocator: &mut allocator,
        launcher,
        evidence: Evidence::Simulated,
    })
}

#[test]
fn plans_that_are_told_when_others_are_refused_are_those_of_the_whole_list() {
    let variant = Variant {
        precision: Precision::Fp32,
        optimizer: Optimizer::Sgd,
        ..Variant::default()
    };
    let program = program("vgg16", &variant);
    let mut asked_for_more = Vec::new();
    for batch in [8, 16, 24, 32, 35, 36, 37, 38, 40, 64] {
        let listed = probe(&program, batch, &mut SimulatedLauncher::default());
        let mut one_by_one = OneByOne {
            inner: SimulatedLauncher::default(),
            asked_for_more: 0,
        };

        let told = probe(&program, batch, &mut one_by_one);

        assert_eq!(told, listed, "batch {batch}");
        if one_by_one.asked_for_more > 0 {
            asked_for_more.push(listed.verdict);
        }
    }
    // Where the memory suffices nobody asks.
    assert!(!asked_for_more.contains(&Verdict::Fits));
    assert!(asked_for_more.contains(&Verdict::FitsWithRetries));
}

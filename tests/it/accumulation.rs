//! Many micro-steps in a step: what is counted instead of run is what would have run, and anything is left at once.

use batchfit::alloc::{CachingAllocator, SimulatedMemory};
use batchfit::compile::compile;
use batchfit::device::sim::SimulatedLauncher;
use batchfit::device::{Launch, LaunchError, Launcher, StepReport};
use batchfit::jobs::{Engine as _, EngineError, FitEngine, Isolation, Work};
use batchfit::limits::Cancel;
use batchfit::model::{Optimizer, Precision, Request, RequestDocument, Variant};
use batchfit::probe::{
    Cancelled, Detail, Evidence, MICRO_STEPS_ON_A_GPU, Probe, ProbeReport, Resources, STEPS,
    Verdict,
};
use batchfit::program::{Convolution, Program, Section};
use batchfit::units::Bytes;
use serde_json::{Value, json};

use crate::compile::{H200, graph};

/// Counts launches, and cancels after so many.
#[derive(Default)]
struct Counting {
    inner: SimulatedLauncher,
    launches: u64,
    cancel_after: Option<u64>,
    cancel: Cancel,
}

/// The same flag for a probe and its launcher.
struct Shared<'a>(&'a Cancel, &'a mut Counting);

impl Launcher for Shared<'_> {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        self.1.inner.convolution_plans(convolution)
    }

    fn prepare(&mut self, program: &Program, batch: u64) -> Result<(), LaunchError> {
        self.1.inner.prepare(program, batch)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        self.1.launches += 1;
        if self.1.cancel_after == Some(self.1.launches) {
            self.0.cancel();
        }
        self.1.inner.launch(launch)
    }

    fn finish_step(&mut self) -> Result<StepReport, LaunchError> {
        let done = self.1.inner.finish_step()?;
        Ok(StepReport {
            launches: 1,
            ..done
        })
    }
}

fn run(
    program: &Program,
    batch: u64,
    place: (Bytes, &str),
    evidence: Evidence,
    counting: &mut Counting,
) -> Result<ProbeReport, Cancelled> {
    run_in(Detail::Full, program, batch, place, evidence, counting)
}

fn run_in(
    detail: Detail,
    program: &Program,
    batch: u64,
    (limit, settings): (Bytes, &str),
    evidence: Evidence,
    counting: &mut Counting,
) -> Result<ProbeReport, Cancelled> {
    let memory = SimulatedMemory::new(Bytes::gib(80));
    let mut allocator = CachingAllocator::new(memory, settings.parse().unwrap(), Some(limit));
    let probe = Probe {
        program,
        batch,
        steps: STEPS,
        detail,
    };
    let cancel = std::mem::take(&mut counting.cancel);
    let mut resources = Resources {
        allocator: &mut allocator,
        launcher: &mut Shared(&cancel, counting),
        evidence,
    };
    let report = probe.run_cancellable(&mut resources, &cancel);
    assert_eq!(allocator.stats().reserved(), Bytes::ZERO);
    report
}

fn accumulating(accumulation: u32) -> Variant {
    Variant {
        precision: Precision::AmpFp16,
        optimizer: Optimizer::Adam,
        accumulation,
        ..Variant::default()
    }
}

/// The same program with every repeat written out, so that each runs.
fn written_out(program: &Program) -> Program {
    let each = |sections: &[Section]| {
        let each = sections.iter().flat_map(|section| {
            let once = Section::once(section.instructions.clone());
            std::iter::repeat_n(once, section.times as usize)
        });
        each.collect()
    };
    Program {
        steps: program.steps.iter().map(|step| each(step)).collect(),
        ..program.clone()
    }
}

#[test]
fn repeats_that_are_counted_are_those_that_would_have_run() {
    let settings = [
        "",
        "expandable_segments:True",
        "max_split_size_mb:64",
        "garbage_collection_threshold:0.6",
    ];
    let mut verdicts = Vec::new();
    for (name, batch) in [
        ("cifarnet", 512),
        ("gpt2-tiny-table", 8),
        ("mobilenetv2", 4),
    ] {
        let program = compile(&graph(name), &accumulating(20), H200).unwrap();
        let every = written_out(&program);
        let roomy = run(
            &program,
            batch,
            (Bytes::gib(70), ""),
            Evidence::Simulated,
            &mut Counting::default(),
        );
        let needed = roomy.unwrap().peak_reserved_bytes;
        for settings in settings {
            for percent in [110, 100, 97, 93, 85, 60] {
                let place = (Bytes(needed / 100 * percent), settings);
                let (mut few, mut all) = (Counting::default(), Counting::default());

                let counted = run(&program, batch, place, Evidence::Simulated, &mut few);
                let ran = run(&every, batch, place, Evidence::Simulated, &mut all);

                let counted = counted.unwrap();
                assert_eq!(counted, ran.unwrap(), "{name}, {settings}, {percent} %");
                assert!(few.launches <= all.launches);
                verdicts.push(counted.verdict);
            }
        }
    }
    for verdict in [
        Verdict::Fits,
        Verdict::FitsWithRetries,
        Verdict::OutOfMemory,
    ] {
        assert!(verdicts.contains(&verdict), "{verdict:?}");
    }
}

/// A verdict alone takes the third step from the second where that says it all; a timeline shows each step.
#[test]
fn a_third_step_that_is_taken_from_the_second_is_the_one_that_would_have_run() {
    let mut fewer = 0;
    for (name, batch) in [
        ("cifarnet", 512),
        ("gpt2-tiny-table", 8),
        ("mobilenetv2", 4),
    ] {
        for accumulation in [1, 3] {
            let program = compile(&graph(name), &accumulating(accumulation), H200).unwrap();
            assert!(program.last_step_is_closed(), "{name}");
            let roomy = (Bytes::gib(70), "");
            let every = Evidence::Simulated;
            let roomy = run(&program, batch, roomy, every, &mut Counting::default());
            let needed = roomy.unwrap().peak_reserved_bytes;
            for settings in ["", "expandable_segments:True", "max_split_size_mb:64"] {
                for percent in [110, 100, 97, 93, 85, 60] {
                    let place = (Bytes(needed / 100 * percent), settings);
                    let (mut few, mut all) = (Counting::default(), Counting::default());

                    let verdict = Detail::Verdict;
                    let taken = run_in(verdict, &program, batch, place, every, &mut few).unwrap();
                    let ran = run(&program, batch, place, every, &mut all).unwrap();

                    fewer += u32::from(few.launches < all.launches);
                    let ran = ProbeReport {
                        at_peak: Vec::new(),
                        peak: None,
                        timeline: Vec::new(),
                        events: None,
                        ..ran
                    };
                    // This launcher reports a launch for each step that it ran, and so for those taken from it.
                    assert_eq!(taken, ran, "{name}, {settings}, {percent} %");
                }
            }
        }
    }
    assert!(
        fewer > 10,
        "{fewer} probes took their third step from the second"
    );
}

#[test]
fn as_much_is_done_for_65536_micro_steps_as_for_a_few() {
    let program = |accumulation| compile(&graph("cifarnet"), &accumulating(accumulation), H200);
    let launches = |accumulation| {
        let mut counting = Counting::default();
        let place = (Bytes::gib(70), "");
        let program = program(accumulation).unwrap();
        let report = run(&program, 512, place, Evidence::Simulated, &mut counting);
        assert_eq!(report.unwrap().verdict, Verdict::Fits);
        counting.launches
    };

    assert_eq!(launches(65_536), launches(6));
}

#[test]
fn a_cancelled_probe_stops_within_a_few_hundred_instructions() {
    let program = compile(&graph("mobilenetv2"), &accumulating(65_536), H200).unwrap();
    for after in [1, 50, 400, 1000] {
        let mut counting = Counting {
            cancel_after: Some(after),
            ..Counting::default()
        };

        let place = (Bytes::gib(70), "");
        let report = run(&program, 4, place, Evidence::Simulated, &mut counting);

        assert!(report.is_err(), "it went on to the end");
        let more = counting.launches - after;
        assert!(more < 256, "{more} launches after it was cancelled");
    }
}

#[test]
fn a_gpu_runs_a_few_micro_steps_and_the_report_says_so() {
    let program = |accumulation| {
        let program = compile(&graph("cifarnet"), &accumulating(accumulation), H200).unwrap();
        let mut counting = Counting::default();
        let place = (Bytes::gib(70), "");
        let report = run(&program, 512, place, Evidence::Probed, &mut counting).unwrap();
        (report, counting.launches)
    };

    let ((all, of_eight), (some, of_many)) = (program(MICRO_STEPS_ON_A_GPU), program(65_536));

    assert_eq!(of_many, of_eight);
    assert_eq!(all.micro_steps_run, None);
    assert_eq!(some.micro_steps_run, Some(MICRO_STEPS_ON_A_GPU));
    let note = "8 of the 65536 micro-steps of each step ran: from the second on, each repeats the one before";
    assert_eq!(some.notes, [note]);
}

fn request(document: Value) -> Request {
    Request::parse(RequestDocument::from(document)).unwrap()
}

fn resnet152() -> Value {
    json!({
        "model": { "preset": "resnet152" },
        "training": { "accumulation": 65_536 },
        "device": "sim:t4",
    })
}

#[test]
fn resnet152_with_65536_micro_steps_is_answered() {
    let engine = FitEngine::new("unused".into());

    let fit = engine.fit(&request(resnet152()), Isolation::Shared, &Work::UNWATCHED);

    let found = fit.unwrap().recommendation;
    assert_eq!(found.accumulation_steps, 65_536);
    assert!(found.micro_batch > 1, "{}", found.micro_batch);
}

#[test]
fn cancelled_fits_and_probes_end() {
    let engine = FitEngine::new("unused".into());
    let cancelled = Cancel::default();
    cancelled.cancel();
    let request = request(resnet152());

    let probe = engine.probe(&request, 1, Detail::Full, &cancelled);
    let fit = engine.fit(&request, Isolation::Shared, &Work::quiet(&cancelled));

    assert_eq!(probe.unwrap_err(), EngineError::Cancelled);
    assert_eq!(fit.unwrap_err(), EngineError::Cancelled);
}

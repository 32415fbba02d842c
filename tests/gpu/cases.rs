//! One side of `cases.py`: recorded cases on a real card, in one process. For each, what the allocator did
//! beside what it does on simulated memory, and how long the steps took.
//!
//! `BATCHFIT_CASES` names a file with a line of JSON for each case: `{"request", "model", "batch", "steps"}`,
//! the first two being paths. `BATCHFIT_PROFILE=1` waits after each launch, which takes some
//! 13 us, and lists where the time of the third step went.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;
use std::{env, fs};

use batchfit::alloc::{
    Address, CachingAllocator, Full, Reserved, SegmentSource, Settings, SimulatedMemory,
};
use batchfit::compile::compile;
use batchfit::device::cuda::{CudaLauncher, CudaMemory, Gpu, LauncherOptions, cards};
use batchfit::device::sim::SimulatedLauncher;
use batchfit::device::{Launch, LaunchError, Launcher, StepReport};
use batchfit::model::{ModelFiles, Request, RequestDocument};
use batchfit::probe::{Detail, Evidence, Probe, ProbeReport, Resources};
use batchfit::program::{Convolution, Kernel, Program};
use batchfit::units::Bytes;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Case {
    request: String,
    model: String,
    batch: u64,
    steps: usize,
}

/// Passes everything on, and takes the time of each launch by its kernel.
struct Timed<'a> {
    launcher: &'a mut CudaLauncher,
    gpu: Rc<Gpu>,
    step: usize,
    /// Seconds and launches of the last step, by operation with its operands and by operation alone.
    spent: BTreeMap<String, (f64, u64)>,
    kinds: BTreeMap<String, (f64, u64)>,
}

impl Launcher for Timed<'_> {
    fn convolution_plans(&mut self, shape: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        self.launcher.convolution_plans(shape)
    }

    fn prepare(&mut self, program: &Program, batch: u64) -> Result<(), LaunchError> {
        self.launcher.prepare(program, batch)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        let began = Instant::now();
        self.launcher.launch(launch)?;
        self.gpu.synchronize().unwrap();
        let operands = launch.call.inputs.iter().chain(&launch.call.outputs);
        let shapes: Vec<String> = operands
            .map(|view| {
                let lengths = view.shape.iter().map(|length| length.at(launch.batch));
                let lengths: Vec<String> = lengths.map(|length| length.to_string()).collect();
                let order = if view.is_contiguous() { "" } else { "~" };
                format!("{}{order}[{}]", view.dtype, lengths.join(","))
            })
            .take(6)
            .collect();
        let kind = match &launch.call.kernel {
            Kernel::Generated(generated) => generated.name.to_owned(),
            Kernel::Convolution(shape) => {
                let of = shape.layer;
                format!(
                    "Convolution({:?} {:?}/{:?} groups {})",
                    shape.pass, of.kernel, of.stride, of.groups
                )
            }
            kernel => format!("{kernel:?}"),
        };
        let seconds = began.elapsed().as_secs_f64();
        let operation = format!("{kind} {}", shapes.join(" "));
        for (rows, name) in [(&mut self.spent, operation), (&mut self.kinds, kind)] {
            let spent = rows.entry(name).or_default();
            spent.0 += seconds;
            spent.1 += 1;
        }
        Ok(())
    }

    fn finish_step(&mut self) -> Result<StepReport, LaunchError> {
        self.step += 1;
        for spent in [&mut self.kinds, &mut self.spent] {
            if self.step == 3 {
                let mut rows: Vec<_> = spent.iter().collect();
                rows.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
                for (name, (seconds, count)) in rows.into_iter().take(32) {
                    eprintln!("    {:8.3} ms {count:5} x {name}", seconds * 1e3);
                }
                eprintln!();
            }
            spent.clear();
        }
        self.launcher.finish_step()
    }
}

/// Passes everything on, and notes where segments were put.
struct RecordedCase {
    memory: CudaMemory,
    answers: VecDeque<Option<Address>>,
}

impl RecordedCase {
    fn of(memory: CudaMemory) -> RecordedCase {
        RecordedCase {
            memory,
            answers: VecDeque::new(),
        }
    }
}

impl SegmentSource for RecordedCase {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        let answer = self.memory.take(size);
        self.answers.push_back(answer.ok());
        answer
    }

    fn give_back(&mut self, segment: Address, size: Bytes) {
        self.memory.give_back(segment, size);
    }

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        self.memory.reserve(unit)
    }

    fn map(&mut self, at: Address, size: Bytes) -> Result<(), Full> {
        self.memory.map(at, size)
    }

    fn unmap(&mut self, at: Address, size: Bytes) {
        self.memory.unmap(at, size);
    }

    fn release(&mut self, reserved: Reserved) {
        self.memory.release(reserved);
    }
}

/// Puts segments where they were put before. None of the cases has expandable segments.
struct Replayed {
    answers: VecDeque<Option<Address>>,
}

impl SegmentSource for Replayed {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        let full = Full { asked: size };
        self.answers.pop_front().flatten().ok_or(full)
    }

    fn give_back(&mut self, _segment: Address, _size: Bytes) {}

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        Err(Full { asked: unit })
    }

    fn map(&mut self, _at: Address, size: Bytes) -> Result<(), Full> {
        Err(Full { asked: size })
    }

    fn unmap(&mut self, _at: Address, _size: Bytes) {}

    fn release(&mut self, _reserved: Reserved) {}
}

fn run<M: SegmentSource>(
    program: &Program,
    case: &Case,
    evidence: Evidence,
    allocator: &mut CachingAllocator<M>,
    launcher: &mut dyn Launcher,
) -> ProbeReport {
    let probe = Probe {
        program,
        batch: case.batch,
        steps: case.steps,
        detail: Detail::Verdict,
    };
    probe.run(&mut Resources {
        allocator,
        launcher,
        evidence,
    })
}

fn peaks(report: &ProbeReport) -> serde_json::Value {
    let steps = report.steps.iter();
    let of =
        |peak: fn(&batchfit::probe::StepMemory) -> u64| steps.clone().map(peak).collect::<Vec<_>>();
    json!({
        "allocated": of(|step| step.peak_allocated_bytes),
        "reserved": of(|step| step.peak_reserved_bytes),
    })
}

#[test]
#[ignore = "needs an NVIDIA GPU and the list that cases.py makes"]
fn recorded_cases_run() {
    let list =
        env::var("BATCHFIT_CASES").expect("BATCHFIT_CASES is not set; run tests/gpu/cases.py");
    let profile = env::var("BATCHFIT_PROFILE").is_ok();
    let began = Instant::now();
    let gpu = Gpu::open(0).expect("this test needs a GPU");
    let opened = began.elapsed();
    let mut launcher = CudaLauncher::open(&gpu, LauncherOptions::default()).unwrap();
    println!(
        "{}",
        json!({
            "context_s": opened.as_secs_f64(),
            "libraries_s": began.elapsed().saturating_sub(opened).as_secs_f64(),
            "outside_bytes": outside(&gpu),
        })
    );
    for line in fs::read_to_string(list).unwrap().lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let document = RequestDocument::from_json(&fs::read(&case.request).unwrap()).unwrap();
        let model = fs::read(&case.model).unwrap();
        let request = Request::parse(document.with_files(ModelFiles::Graph(model))).unwrap();
        let graph = request.graph().unwrap();
        let settings: Settings = request.allocator.parse().unwrap();
        let program = compile(&graph, &request.variants[0], gpu.facts().capability).unwrap();

        let memory = SimulatedMemory::new(gpu.facts().total);
        let mut allocator = CachingAllocator::new(memory, settings.clone(), None);
        let simulated = run(
            &program,
            &case,
            Evidence::Simulated,
            &mut allocator,
            &mut SimulatedLauncher::default(),
        );
        let memory = RecordedCase::of(CudaMemory::of(&gpu));
        let mut allocator = CachingAllocator::new(memory, settings.clone(), None);
        let began = Instant::now();
        launcher.reset();
        let report = if profile {
            eprintln!("{} batch {}", case.request, case.batch);
            let mut timed = Timed {
                launcher: &mut launcher,
                gpu: Rc::clone(&gpu),
                step: 0,
                spent: BTreeMap::new(),
                kinds: BTreeMap::new(),
            };
            run(
                &program,
                &case,
                Evidence::Probed,
                &mut allocator,
                &mut timed,
            )
        } else {
            run(
                &program,
                &case,
                Evidence::Probed,
                &mut allocator,
                &mut launcher,
            )
        };
        // The same on simulated memory that puts segments where the driver put them.
        let memory = Replayed {
            answers: allocator.source().answers.clone(),
        };
        drop(allocator);
        let mut allocator = CachingAllocator::new(memory, settings, None);
        let replayed = run(
            &program,
            &case,
            Evidence::Simulated,
            &mut allocator,
            &mut SimulatedLauncher::default(),
        );
        let steps = report.steps.iter();
        println!(
            "{}",
            json!({
                "request": case.request,
                "batch": case.batch,
                "verdict": report.verdict,
                "cause": report.cause,
                "wall_s": began.elapsed().as_secs_f64(),
                "real": peaks(&report),
                "simulated": peaks(&simulated),
                "replayed": peaks(&replayed),
                "launches": steps.clone().map(|step| step.launches).collect::<Vec<_>>(),
                "losses": steps.clone().map(|step| step.losses.clone()).collect::<Vec<_>>(),
                "step_ms": steps.clone().map(|step| step.elapsed_ms).collect::<Vec<_>>(),
                "outside_bytes": outside(&gpu),
            })
        );
    }
}

/// What the process holds when its allocator holds nothing: context, modules, library handles, scratch.
fn outside(gpu: &Gpu) -> u64 {
    let cards = cards().unwrap_or_default();
    let others = cards
        .iter()
        .find(|card| card.uuid == gpu.facts().uuid)
        .map_or(Bytes::ZERO, |card| card.used_by_others);
    let (free, total) = gpu.free_and_total().unwrap();
    (total - free - others).0
}

//! One side of `numerics.sh`: steps of an exported model on given values, with the losses and the
//! gradients written down for comparison with PyTorch's.

mod memcheck;
mod poison;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::str::FromStr;
use std::{env, fs};

use batchfit::alloc::{CachingAllocator, Settings};
use batchfit::compile::compile;
use batchfit::device::cuda::{
    CudaLauncher, CudaMemory, Gpu, Gradients, HostTensor, LauncherOptions, Outputs, Script, Tf32,
    read_tensors, write_tensors,
};
use batchfit::device::sim::Card;
use batchfit::graph::Graph;
use batchfit::model::{Checkpointing, Optimizer, Precision, Variant, exported};
use batchfit::probe::{Detail, Evidence, Probe, Resources, Verdict};
use batchfit::program::{Instruction, Kernel, Program};
use batchfit::shape::DType;

fn setting(name: &str) -> String {
    let name = format!("BATCHFIT_NUMERICS_{name}");
    env::var(&name).unwrap_or_else(|_| panic!("{name} is not set; run tests/gpu/numerics.sh"))
}

fn number<T: FromStr<Err: Debug>>(name: &str) -> T {
    setting(name).parse().unwrap()
}

fn graph() -> Graph {
    exported::parse(&fs::read(setting("MODEL")).unwrap())
        .unwrap()
        .graph
}

fn variant() -> Variant {
    let (precision, optimizer) = (setting("PRECISION"), setting("OPTIMIZER"));
    Variant {
        precision: Precision::ALL
            .into_iter()
            .find(|known| known.name() == precision)
            .unwrap(),
        optimizer: Optimizer::ALL
            .into_iter()
            .find(|known| known.name() == optimizer)
            .unwrap(),
        checkpointing: match setting("CHECKPOINTING").as_str() {
            "none" => Checkpointing::None,
            "per_block" => Checkpointing::PerBlock,
            globs => Checkpointing::Modules(globs.split(',').map(str::to_owned).collect()),
        },
        accumulation: number("ACCUMULATION"),
        ..Variant::default()
    }
}

fn script(program: &Program) -> Script {
    Script {
        feed: read_tensors(&fs::read(setting("FEED")).unwrap()).unwrap(),
        gradients: Gradients::Record,
        rate: Some(number("RATE")),
        outputs: match setting("OUTPUTS").as_str() {
            "trusted" => Outputs::Trusted,
            "poisoned" => Outputs::Poisoned,
            other => panic!("OUTPUTS is {other:?}, which is neither trusted nor poisoned"),
        },
        parts: program.parts(),
        labels: program
            .tensors
            .iter()
            .map(|tensor| tensor.label.clone())
            .collect(),
    }
}

/// Where a value is made up for which none is given, or one of the wrong size: a comparison would compare
/// two different models.
fn not_given(program: &Program, feed: &HashMap<String, HostTensor>, batch: u64) -> Vec<String> {
    let calls = program
        .unrolled(1)
        .filter_map(|instruction| match instruction {
            Instruction::Launch(call) => Some(call),
            Instruction::Allocate(_) | Instruction::Free(_) => None,
        });
    let mut wrong = Vec::new();
    for call in calls {
        if !matches!(
            call.kernel,
            Kernel::Initialize(_) | Kernel::RandomNormal | Kernel::RandomBelow(_)
        ) {
            continue;
        }
        let out = &call.outputs[0];
        let label = &program.tensor(out.tensor).label;
        let wanted: Vec<u64> = out.shape.iter().map(|extent| extent.at(batch)).collect();
        match feed.get(&**label) {
            Some(given) if given.dtype == out.dtype && given.shape == wanted => {}
            given => wrong.push(format!(
                "{label} is {} {wanted:?}, given is {:?}",
                out.dtype,
                given.map(|given| (given.dtype, &given.shape))
            )),
        }
    }
    wrong
}

#[test]
#[ignore = "needs the files that numerics.sh makes"]
fn all_values_are_given() {
    let capability = Card::find("h200").unwrap().capability;

    let program = compile(&graph(), &variant(), capability).unwrap();

    let wrong = not_given(&program, &script(&program).feed, number("BATCH"));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU and the files that numerics.sh makes"]
fn steps_on_given_values() {
    let gpu = Gpu::open(0).expect("this test needs a GPU");
    let program = compile(&graph(), &variant(), gpu.facts().capability).unwrap();
    let options = LauncherOptions {
        tf32: Tf32::Off,
        ..LauncherOptions::default()
    };
    let mut launcher = CudaLauncher::open(&gpu, options).unwrap();
    let script = script(&program);
    let wrong = not_given(&program, &script.feed, number("BATCH"));
    assert!(wrong.is_empty(), "{wrong:#?}");
    launcher.follow(script);
    let mut allocator = CachingAllocator::new(CudaMemory::of(&gpu), Settings::default(), None);
    let probe = Probe {
        program: &program,
        batch: number("BATCH"),
        steps: number("STEPS"),
        detail: Detail::Verdict,
    };

    let report = probe.run(&mut Resources {
        allocator: &mut allocator,
        launcher: &mut launcher,
        evidence: Evidence::Probed,
    });

    assert_eq!(report.verdict, Verdict::Fits, "{:?}", report.cause);
    let mut dump: BTreeMap<String, HostTensor> = launcher.take_gradients();
    let losses = report.steps.iter().flat_map(|step| step.losses.clone());
    let losses: Vec<f64> = losses.map(|loss| loss.unwrap_or(f64::NAN)).collect();
    let loss = HostTensor {
        dtype: DType::Float64,
        shape: vec![losses.len() as u64],
        bytes: losses.iter().flat_map(|loss| loss.to_le_bytes()).collect(),
    };
    dump.insert("loss".to_owned(), loss);
    fs::write(setting("DUMP"), write_tensors(&dump)).unwrap();
}

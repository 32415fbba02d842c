//! One side of `numerics.sh`: a step of an exported model on given values, with the loss and the
//! gradients written down for comparison with PyTorch's.

use std::collections::BTreeMap;
use std::{env, fs};

use batchfit::alloc::{CachingAllocator, Settings};
use batchfit::compile::compile;
use batchfit::device::cuda::{
    CudaLauncher, CudaMemory, Gpu, Gradients, HostTensor, LauncherOptions, Script, Tf32,
    read_tensors, write_tensors,
};
use batchfit::graph::DType;
use batchfit::model::{Optimizer, Precision, Variant, exported};
use batchfit::probe::{Detail, Evidence, Probe, Resources, Verdict};

fn setting(name: &str) -> String {
    let name = format!("BATCHFIT_NUMERICS_{name}");
    env::var(&name).unwrap_or_else(|_| panic!("{name} is not set; run tests/gpu/numerics.sh"))
}

#[test]
#[ignore = "needs an NVIDIA GPU and the files that numerics.sh makes"]
fn a_step_on_given_values() {
    let graph = exported::parse(&fs::read(setting("MODEL")).unwrap())
        .unwrap()
        .graph;
    let precision = setting("PRECISION");
    let variant = Variant {
        precision: Precision::ALL
            .into_iter()
            .find(|known| known.name() == precision)
            .unwrap(),
        optimizer: Optimizer::SgdMomentum,
        ..Variant::default()
    };
    let gpu = Gpu::open(0).expect("this test needs a GPU");
    let program = compile(&graph, &variant, gpu.facts().capability).unwrap();
    let options = LauncherOptions { tf32: Tf32::Off };
    let mut launcher = CudaLauncher::open(&gpu, options).unwrap();
    launcher.follow(Script {
        feed: read_tensors(&fs::read(setting("FEED")).unwrap()).unwrap(),
        gradients: Gradients::Record,
        labels: program
            .tensors
            .iter()
            .map(|tensor| tensor.label.clone())
            .collect(),
    });
    let mut allocator = CachingAllocator::new(CudaMemory::of(&gpu), Settings::default(), None);
    let probe = Probe {
        program: &program,
        batch: setting("BATCH").parse().unwrap(),
        steps: 3,
        detail: Detail::Verdict,
    };

    let report = probe.run(&mut Resources {
        allocator: &mut allocator,
        launcher: &mut launcher,
        evidence: Evidence::Probed,
    });

    assert_eq!(report.verdict, Verdict::Fits, "{:?}", report.cause);
    for step in &report.steps {
        eprintln!(
            "{} launches, loss {:?}, {:?} ms",
            step.launches, step.losses, step.elapsed_ms
        );
    }
    let mut dump: BTreeMap<String, HostTensor> = launcher.take_gradients();
    let losses = report.steps.iter().flat_map(|step| &step.losses);
    let loss = HostTensor {
        dtype: DType::Float64,
        shape: vec![report.steps.len() as u64],
        bytes: losses
            .flat_map(|loss| loss.unwrap_or(f64::NAN).to_le_bytes())
            .collect(),
    };
    dump.insert("loss".to_owned(), loss);
    fs::write(setting("DUMP"), write_tensors(&dump)).unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU and an exported model"]
fn an_exported_model_trains() {
    let graph = exported::parse(&fs::read(setting("MODEL")).unwrap())
        .unwrap()
        .graph;
    let precision = setting("PRECISION");
    let optimizer = setting("OPTIMIZER");
    let variant = Variant {
        precision: Precision::ALL
            .into_iter()
            .find(|known| known.name() == precision)
            .unwrap(),
        optimizer: Optimizer::ALL
            .into_iter()
            .find(|known| known.name() == optimizer)
            .unwrap(),
        ..Variant::default()
    };
    let gpu = Gpu::open(0).expect("this test needs a GPU");
    let program = compile(&graph, &variant, gpu.facts().capability).unwrap();
    let mut launcher = CudaLauncher::open(&gpu, LauncherOptions::default()).unwrap();
    let mut allocator = CachingAllocator::new(CudaMemory::of(&gpu), Settings::default(), None);
    for batch in setting("BATCH").split(',') {
        let probe = Probe {
            program: &program,
            batch: batch.parse().unwrap(),
            steps: 6,
            detail: Detail::Verdict,
        };
        let report = probe.run(&mut Resources {
            allocator: &mut allocator,
            launcher: &mut launcher,
            evidence: Evidence::Probed,
        });
        launcher.reset();
        let steps = report.steps.iter();
        let times: Vec<f64> = steps.filter_map(|step| step.elapsed_ms).collect();
        eprintln!(
            "batch {batch}: {:?} {:?}, peaks {} {}, launches {:?}, losses {:?}, ms {times:.2?}",
            report.verdict,
            report.cause,
            report.peak_allocated_bytes,
            report.peak_reserved_bytes,
            report.steps.last().map(|step| step.launches),
            report
                .steps
                .iter()
                .map(|step| step.losses[0])
                .collect::<Vec<_>>(),
        );
    }
}

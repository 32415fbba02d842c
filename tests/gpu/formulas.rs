//! The models of `tests/golden/formulas` on a GPU: losses and gradients beside PyTorch's. The same models run on a host
//! without one; here the kernels are those of the card.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use batchfit::alloc::{CachingAllocator, Settings};
use batchfit::compile::compile;
use batchfit::device::cuda::{
    CudaLauncher, CudaMemory, Gpu, Gradients, HostTensor, LauncherOptions, Outputs, Script, Tf32,
    read_tensors,
};
use batchfit::model::{Optimizer, Precision, Variant, exported};
use batchfit::probe::{Detail, Evidence, Probe, Resources};
use batchfit::shape::DType;

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/formulas");
    let folder = if folder.exists() {
        folder
    } else {
        PathBuf::from("tests/golden/formulas")
    };
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut graphs: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "gz"))
        .collect();
    graphs.sort();
    graphs
}

fn values(tensor: &HostTensor) -> Vec<f64> {
    let size = usize::try_from(tensor.dtype.size()).unwrap();
    let number = |bytes: &[u8]| match tensor.dtype {
        DType::Float32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DType::Float16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::BFloat16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::Float64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        other => panic!("{other} is no type of a gradient"),
    };
    tensor.bytes.chunks(size).map(number).collect()
}

/// How far two tensors are apart, by the norm of the second.
fn distance(ours: &HostTensor, theirs: &HostTensor) -> f64 {
    let (ours, theirs) = (values(ours), values(theirs));
    if ours.len() != theirs.len() {
        return f64::INFINITY;
    }
    let norm = |values: Vec<f64>| values.iter().map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(ours.iter().zip(&theirs).map(|(a, b)| a - b).collect());
    off / norm(theirs).max(1e-6)
}

struct Step {
    losses: Vec<f64>,
    gradients: BTreeMap<String, HostTensor>,
}

/// One step of a model on given values.
fn step(
    gpu: &std::rc::Rc<Gpu>,
    launcher: &mut CudaLauncher,
    path: &Path,
    (batch, precision): (u64, Precision),
    feed: HashMap<String, HostTensor>,
) -> Result<Step, String> {
    let model = exported::parse(&fs::read(path).unwrap()).map_err(|error| error.to_string())?;
    let variant = Variant {
        precision,
        optimizer: Optimizer::Sgd,
        ..Variant::default()
    };
    let program = compile(&model.graph, &variant, gpu.facts().capability)
        .map_err(|error| error.to_string())?;
    launcher.reset();
    launcher.follow(Script {
        feed,
        gradients: Gradients::Record,
        outputs: Outputs::Poisoned,
        parts: program.parts(),
        labels: program
            .tensors
            .iter()
            .map(|tensor| tensor.label.clone())
            .collect(),
        ..Script::default()
    });
    let mut allocator = CachingAllocator::new(CudaMemory::of(gpu), Settings::default(), None);
    let probe = Probe {
        program: &program,
        batch,
        steps: 1,
        detail: Detail::Verdict,
    };
    let report = probe.run(&mut Resources {
        allocator: &mut allocator,
        launcher,
        evidence: Evidence::Probed,
    });
    let Some(step) = report.steps.first() else {
        return Err(report.cause.unwrap_or_default());
    };
    Ok(Step {
        losses: step
            .losses
            .iter()
            .map(|loss| loss.unwrap_or(f64::NAN))
            .collect(),
        gradients: launcher.take_gradients(),
    })
}

fn compare(gpu: &std::rc::Rc<Gpu>, launcher: &mut CudaLauncher, path: &Path) -> Vec<String> {
    let values_file = path.to_str().unwrap().replace(".json.gz", ".safetensors");
    let given = read_tensors(&fs::read(values_file).unwrap()).unwrap();
    let (expected, feed): (HashMap<_, _>, HashMap<_, _>) = given
        .into_iter()
        .partition(|(name, _)| name.starts_with("expected:"));
    let is_half = feed.values().any(|tensor| tensor.dtype.is_half());
    let (limit, precision) = if is_half {
        (2e-2, Precision::Bf16)
    } else {
        (2e-4, Precision::Fp32)
    };
    let batch = expected["expected:batch"].shape[0];
    let step = match step(gpu, launcher, path, (batch, precision), feed) {
        Ok(step) => step,
        Err(cause) => return vec![cause],
    };
    let mut wrong = Vec::new();
    let loss = values(&expected["expected:loss"])[0];
    match step.losses[..] {
        [ours] if (ours - loss).abs() <= limit * loss.abs().max(1e-3) => {}
        ref ours => wrong.push(format!("the loss is {ours:?}, not {loss}")),
    }
    for (name, theirs) in &expected {
        let Some(name) = name.strip_prefix("expected:grad:") else {
            continue;
        };
        let Some(ours) = step.gradients.get(name) else {
            wrong.push(format!("there is no gradient of {name}"));
            continue;
        };
        let off = distance(ours, theirs);
        if off.is_nan() || off > limit {
            wrong.push(format!("the gradient of {name} is off by {off:.1e}"));
        }
    }
    wrong
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn formulas_agree_with_pytorch() {
    let gpu = Gpu::open(0).expect("this test needs a GPU");
    let options = LauncherOptions {
        tf32: Tf32::Off,
        ..LauncherOptions::default()
    };
    let mut launcher = CudaLauncher::open(&gpu, options).unwrap();
    let mut wrong = Vec::new();
    for path in models() {
        let name = path.file_prefix().unwrap().display();
        let found = compare(&gpu, &mut launcher, &path);
        wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

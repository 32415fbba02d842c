//! Losses and gradients by generated kernels, run on the host, beside PyTorch's: `tests/golden/formulas`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::host::{self, number};
use crate::compile::compile;
use crate::device::cuda::script::{HostTensor, read_tensors};
use crate::device::sim::Card;
use crate::model::{Optimizer, Precision, Variant, exported};

/// The models of `tests/golden/formulas/make.py`, or those of `BATCHFIT_FORMULAS` while they are worked on.
fn models() -> Vec<PathBuf> {
    let folder = std::env::var_os("BATCHFIT_FORMULAS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/formulas"),
        PathBuf::from,
    );
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut graphs: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "gz"))
        .collect();
    graphs.sort();
    graphs
}

fn values(tensor: &HostTensor) -> Vec<f64> {
    let size = usize::try_from(tensor.dtype.size()).unwrap();
    tensor
        .bytes
        .chunks(size)
        .map(|bytes| number(tensor.dtype, bytes))
        .collect()
}

/// How far two tensors are apart, by the norm of the second.
fn distance(ours: &HostTensor, theirs: &HostTensor) -> f64 {
    if ours.shape != theirs.shape {
        return f64::INFINITY;
    }
    let (ours, theirs) = (values(ours), values(theirs));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b));
    off / norm(&mut theirs.iter().copied()).max(1e-6)
}

/// What is wrong with a model's step.
fn compare(path: &Path) -> Vec<String> {
    let graph = match exported::parse(&fs::read(path).unwrap()) {
        Ok(model) => model.graph,
        Err(error) => return vec![error.to_string()],
    };
    let given = read_tensors(
        &fs::read(path.to_str().unwrap().replace(".json.gz", ".safetensors")).unwrap(),
    )
    .unwrap();
    let (expected, feed): (HashMap<_, _>, HashMap<_, _>) = given
        .into_iter()
        .partition(|(name, _)| name.starts_with("expected:"));
    let is_half = feed.values().any(|tensor| tensor.dtype.is_half());
    let limit = if is_half { 2e-2 } else { 2e-4 };
    let variant = Variant {
        precision: if is_half {
            Precision::Bf16
        } else {
            Precision::Fp32
        },
        optimizer: Optimizer::Sgd,
        ..Variant::default()
    };
    let capability = Card::find("h200").unwrap().capability;
    let program = match compile(&graph, &variant, capability) {
        Ok(program) => program,
        Err(error) => return vec![error.to_string()],
    };
    let batch = expected["expected:batch"].shape[0];
    let outcome = host::first_step(&program, batch, &feed);
    let mut wrong: Vec<String> = outcome.gaps.clone();
    wrong.dedup();
    let loss = values(&expected["expected:loss"])[0];
    match outcome.losses[..] {
        [ours] if (ours - loss).abs() <= limit * loss.abs().max(1e-3) => {}
        ref ours => wrong.push(format!("the loss is {ours:?}, not {loss}")),
    }
    for (name, theirs) in &expected {
        let Some(name) = name.strip_prefix("expected:grad:") else {
            continue;
        };
        match outcome.gradients.get(name) {
            None => wrong.push(format!("there is no gradient of {name}")),
            Some(ours) => {
                let off = distance(ours, theirs);
                if off.is_nan() || off > limit {
                    wrong.push(format!("the gradient of {name} is off by {off:.1e}"));
                }
            }
        }
    }
    wrong
}

#[test]
fn formulas_agree_with_pytorch() {
    let mut wrong = Vec::new();
    for path in models() {
        let name = path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .replace(".json.gz", "");
        if std::env::var_os("BATCHFIT_FORMULAS_ONLY")
            .is_some_and(|only| !only.to_string_lossy().split(',').any(|only| name == only))
        {
            continue;
        }
        wrong.extend(
            compare(&path)
                .into_iter()
                .map(|what| format!("{name}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Losses and gradients by generated kernels, run on the host, beside PyTorch's: `tests/golden/formulas`.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use super::GeneratedLaunch;
use super::host::{Compiled, Outcome, first_step, number};
use crate::compile::compile;
use crate::device::sim::Card;
use crate::program::Program;
use crate::script::{HostTensor, read_tensors};
use batchfit_models::exported;
use batchfit_step::{Optimizer, Precision, Variant};

/// The models of `tests/golden/formulas/make.py`, or those of `BATCHFIT_FORMULAS` while they are worked on.
fn models() -> Vec<PathBuf> {
    let folder = std::env::var_os("BATCHFIT_FORMULAS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/formulas"),
        PathBuf::from,
    );
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut graphs: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "gz"))
        .collect();
    graphs.sort();
    graphs
}

fn values(tensor: &HostTensor) -> Vec<f64> {
    let elements = tensor
        .bytes
        .chunks(usize::try_from(tensor.dtype.size()).unwrap());
    elements.map(|bytes| number(tensor.dtype, bytes)).collect()
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

/// A model's program, values for its first step, and what PyTorch computes from them.
struct Case {
    program: Program,
    feed: HashMap<String, HostTensor>,
    expected: HashMap<String, HostTensor>,
    /// How far off a result may be.
    limit: f64,
}

impl Case {
    fn read(path: &Path) -> Result<Case, Box<dyn Error>> {
        let graph = exported::parse(&fs::read(path)?)?.graph;
        let values = path.to_str().unwrap().replace(".json.gz", ".safetensors");
        let given = read_tensors(&fs::read(values)?)?.into_iter();
        let (expected, feed): (HashMap<_, _>, HashMap<_, _>) =
            given.partition(|(name, _)| name.starts_with("expected:"));
        let is_half = feed.values().any(|tensor| tensor.dtype.is_half());
        let (limit, precision) = if is_half {
            (2e-2, Precision::Bf16)
        } else {
            (2e-4, Precision::Fp32)
        };
        let variant = Variant {
            precision,
            optimizer: Optimizer::Sgd,
            ..Variant::default()
        };
        Ok(Case {
            program: compile(&graph, &variant, Card::find("h200").unwrap().capability)?,
            feed,
            expected,
            limit,
        })
    }

    fn step(&self, run: &mut dyn FnMut(&GeneratedLaunch)) -> Outcome {
        let batch = self.expected["expected:batch"].shape[0];
        first_step(&self.program, batch, &self.feed, run)
    }

    /// What is wrong with the step.
    fn compare(&self, compiled: &Compiled) -> Vec<String> {
        let outcome = self.step(&mut |launch| compiled.run(launch));
        let mut wrong = outcome.gaps;
        wrong.dedup();
        let loss = values(&self.expected["expected:loss"])[0];
        match outcome.losses[..] {
            [ours] if (ours - loss).abs() <= self.limit * loss.abs().max(1e-3) => {}
            ref ours => wrong.push(format!("the loss is {ours:?}, not {loss}")),
        }
        for (name, theirs) in &self.expected {
            let Some(name) = name.strip_prefix("expected:grad:") else {
                continue;
            };
            let Some(ours) = outcome.gradients.get(name) else {
                wrong.push(format!("there is no gradient of {name}"));
                continue;
            };
            let off = distance(ours, theirs);
            if off.is_nan() || off > self.limit {
                wrong.push(format!("the gradient of {name} is off by {off:.1e}"));
            }
        }
        wrong
    }
}

#[test]
#[ignore = "needs a C++ compiler: cargo test -p batchfit-cuda --lib formulas -- --ignored"]
fn formulas_agree_with_pytorch() {
    let (mut cases, mut wrong) = (Vec::new(), Vec::new());
    for path in models() {
        let name = path.file_prefix().unwrap().display().to_string();
        match Case::read(&path) {
            Ok(case) => cases.push((name, case)),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    // Once without running anything, to compile all kernels together.
    let mut sources = BTreeSet::new();
    for (_, case) in &cases {
        case.step(&mut |launch| {
            sources.insert(launch.source.clone());
        });
    }
    let compiled = Compiled::of(sources);
    for (name, case) in &cases {
        let found = case.compare(&compiled).into_iter();
        wrong.extend(found.map(|what| format!("{name}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! `batchfit record-workspaces`: writes the table that a simulated card answers from.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

use super::arguments::RecordWorkspaces;
use super::trouble::Trouble;
use super::{Outcome, question};
use crate::device::Capability;
use crate::device::cuda::cudnn::{BatchGrid, Recording};
use crate::device::cuda::{self, Facts, Gpu};
use crate::device::sim::workspaces::{Provenance, condense};
use crate::graph::DType;
use crate::model::Request;
use crate::program::{ConvolutionLayer, Size};
use crate::worker::Programs;

pub(super) fn run(arguments: &RecordWorkspaces) -> Result<Outcome, Trouble> {
    let request = question::read(&arguments.question)?;
    record(arguments, &request).map_err(Trouble::Broken)?;
    Ok(Outcome::Answered)
}

fn record(arguments: &RecordWorkspaces, request: &Request) -> anyhow::Result<()> {
    let gpu = Gpu::open(arguments.gpu)?;
    let facts = gpu.facts().clone();
    let (layers, dtypes) = convolutions(request, facts.capability)?;
    anyhow::ensure!(!layers.is_empty(), "the model has no convolutions");
    let recording = Recording {
        layers: &layers,
        dtypes: &dtypes,
        grid: BatchGrid {
            first: 1,
            dense_to: arguments.dense_to,
            step_permille: 20,
            largest: arguments.largest,
        },
        most_bytes: facts.total,
        share: (0, 1),
    };
    let mut text = Vec::new();
    cuda::record_workspaces(&gpu, &recording, &mut text)?;
    let table = condense([text.as_slice()], &provenance(facts))?;
    let output = &arguments.output;
    let file = File::create_new(output)
        .with_context(|| format!("could not create {}", output.display()))?;
    let mut compressed = GzEncoder::new(file, Compression::best());
    compressed
        .write_all(table.as_bytes())
        .and_then(|()| compressed.finish())
        .with_context(|| format!("could not write {}", output.display()))?;
    Ok(())
}

/// The convolutions of a request's variants.
fn convolutions(
    request: &Request,
    capability: Capability,
) -> anyhow::Result<(Vec<ConvolutionLayer>, Vec<DType>)> {
    let mut programs = Programs::new(request.graph()?, capability);
    let (mut layers, mut dtypes) = (BTreeSet::new(), Vec::new());
    for variant in &request.variants {
        for tensor in &programs.of(variant)?.tensors {
            let Size::Workspace(shape) = &tensor.size else {
                continue;
            };
            layers.insert(shape.at(1).layer());
            if !dtypes.contains(&shape.dtype) {
                dtypes.push(shape.dtype);
            }
        }
    }
    Ok((layers.into_iter().collect(), dtypes))
}

fn provenance(facts: Facts) -> Provenance {
    let driver = cuda::cards()
        .unwrap_or_default()
        .into_iter()
        .find(|card| card.uuid == facts.uuid)
        .map_or_else(|| "unknown".to_owned(), |card| card.driver);
    Provenance {
        card: facts.name,
        driver,
        cudnn: facts.cudnn.unwrap_or_else(|| "unknown".to_owned()),
        recorded: Timestamp::now().strftime("%Y-%m-%d").to_string(),
        command: "batchfit record-workspaces".to_owned(),
    }
}

//! `batchfit record-workspaces`: writes the table that a simulated card answers from.

use std::collections::BTreeSet;
use std::env;
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use jiff::Timestamp;

use crate::cli::arguments::RecordWorkspaces;
use crate::cli::error::CliError;
use crate::cli::{Outcome, question};
use crate::device::Capability;
use crate::device::cuda::cudnn::{self, BatchGrid, CardProperties, WorkspaceRecording};
use crate::device::cuda::{self, Facts, Gpu};
use crate::device::sim::workspaces::{
    CardTraits, NO_DRIVER, Provenance, WorkspaceTable, condense, merge, pack, unpack,
};
use crate::device::sim::{CARDS, Card};
use crate::limits::Cancel;
use crate::model::Request;
use crate::program::ConvolutionLayer;
use crate::shape::DType;
use crate::units::Bytes;
use crate::worker::Programs;

pub(in crate::cli) fn run(arguments: &RecordWorkspaces) -> Result<Outcome, CliError> {
    let (request, _) = question::read(&arguments.question)?.of_one_length()?;
    if arguments.card.is_some() && env::var_os(LOGGING).is_none() {
        return again().map_err(CliError::Broken);
    }
    record(arguments, &request)?;
    Ok(Outcome::Answered)
}

fn record(arguments: &RecordWorkspaces, request: &Request) -> anyhow::Result<()> {
    let mut tables = Vec::new();
    for path in &arguments.merge {
        let table = File::open(path).and_then(unpack);
        tables.push(table.with_context(|| format!("could not read {}", path.display()))?);
    }
    if !arguments.recording.is_empty() {
        tables.push(condensed(&arguments.recording)?);
    }
    let known = WorkspaceTable::parse(&merge(&tables))?;
    let (mut layers, dtypes) = convolutions(request)?;
    anyhow::ensure!(!layers.is_empty(), "the model has no convolutions");
    layers.retain(|layer| !known.holds(layer));
    if !layers.is_empty() {
        tables.push(record_layers(arguments, &layers, &dtypes)?);
    }
    let packed = pack(&merge(&tables))?;
    let output = &arguments.output;
    File::create_new(output)
        .and_then(|mut file| file.write_all(&packed))
        .with_context(|| format!("could not write {}", output.display()))
}

/// The text of a table made of recordings; where they are from is what a table before it says.
fn condensed(paths: &[PathBuf]) -> anyhow::Result<String> {
    let mut recordings = Vec::new();
    for path in paths {
        let file =
            File::open(path).with_context(|| format!("could not read {}", path.display()))?;
        recordings.push(BufReader::new(file));
    }
    let elsewhere = || "as recorded".to_owned();
    let provenance = Provenance {
        card: elsewhere(),
        driver: elsewhere(),
        cudnn: elsewhere(),
        recorded: elsewhere(),
        command: "tests/record/cudnn.py".to_owned(),
        traits: None,
    };
    Ok(condense(recordings, &provenance)?)
}

/// The text of a table of these layers alone.
fn record_layers(
    arguments: &RecordWorkspaces,
    layers: &[ConvolutionLayer],
    dtypes: &[DType],
) -> anyhow::Result<String> {
    let grid = BatchGrid {
        first: 1,
        dense_to: arguments.dense_to,
        step_permille: 10 * arguments.step,
        largest: arguments.largest,
    };
    let batches: Vec<u64> = grid.batches().collect();
    let recording = |most_bytes| WorkspaceRecording {
        layers,
        dtypes,
        batches: &batches,
        only_first: false,
        most_bytes,
        until: None,
    };
    let mut text = Vec::new();
    let from = if let Some(name) = &arguments.card {
        let card = Card::find(name).context("the card is one of those that are simulated")?;
        let properties = CardProperties::of_card(card);
        let properties = properties.with_context(|| {
            let (major, minor) = card.capability.compute;
            format!("cuDNN 9.19 for CUDA 13 does not know compute capability {major}.{minor}")
        })?;
        cuda::record_workspaces_of_absent(&properties, &recording(card.total_memory), &mut text)?;
        provenance_of_absent(card)?
    } else {
        let gpu = Gpu::open(arguments.gpu)?;
        let facts = gpu.facts().clone();
        cuda::record_workspaces(&gpu, &recording(facts.total), &mut text)?;
        provenance(facts)
    };
    Ok(condense([text.as_slice()], &from)?)
}

/// The variable that says that this process is the one of [`again`].
const LOGGING: &str = "BATCHFIT_CUDNN_LOGS";

/// Does the same in a process of its own whose cuDNN logs: it reads how when it is loaded.
fn again() -> anyhow::Result<Outcome> {
    let folder = batchfit_platform::private_folder().tempdir();
    let folder = folder.context("could not make a folder for cuDNN's log")?;
    let log = folder.path().join("cudnn.log");
    File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
    let program = env::current_exe().context("could not find batchfit itself")?;
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1)).env(LOGGING, "1");
    command.envs(cudnn::environment(&log));
    command.envs([cudnn::NO_CARD_VISIBLE]);
    let status = command
        .status()
        .context("could not start batchfit itself")?;
    anyhow::ensure!(status.success(), "nothing was recorded");
    Ok(Outcome::Answered)
}

pub(super) fn provenance_of_absent(card: &Card) -> anyhow::Result<Provenance> {
    let version = cudnn::version()?;
    Ok(Provenance {
        card: card.product.to_owned(),
        driver: format!("{NO_DRIVER}: asked without a device"),
        cudnn: format!(
            "{}.{}.{}",
            version / 10_000,
            version / 100 % 100,
            version % 100
        ),
        recorded: today(),
        command: format!("batchfit record-workspaces --card {}", card.name),
        traits: Some(traits(&card.capability, card.total_memory)),
    })
}

fn today() -> String {
    Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// The convolutions of a request's variants, which are the same on every card.
pub(super) fn convolutions(
    request: &Request,
) -> anyhow::Result<(Vec<ConvolutionLayer>, Vec<DType>)> {
    let mut programs = Programs::new(request.graph()?, CARDS[0].capability);
    let (mut layers, mut dtypes) = (BTreeSet::new(), Vec::new());
    for variant in &request.variants {
        for shape in &programs.of(variant, &Cancel::NEVER)?.convolutions {
            layers.insert(shape.at(1).layer);
            if !dtypes.contains(&shape.dtype) {
                dtypes.push(shape.dtype);
            }
        }
    }
    Ok((layers.into_iter().collect(), dtypes))
}

fn traits(capability: &Capability, memory: Bytes) -> CardTraits {
    CardTraits {
        compute: capability.compute,
        multiprocessors: capability.multiprocessors,
        threads_per_multiprocessor: capability.threads_per_multiprocessor,
        memory: memory.0,
    }
}

pub(super) fn provenance(facts: Facts) -> Provenance {
    let traits = traits(&facts.capability, facts.total);
    let driver = cuda::cards()
        .unwrap_or_default()
        .into_iter()
        .find(|card| card.uuid == facts.uuid)
        .map_or_else(|| "unknown".to_owned(), |card| card.driver);
    Provenance {
        card: facts.name,
        driver,
        cudnn: facts.cudnn.unwrap_or_else(|| "unknown".to_owned()),
        recorded: today(),
        command: "batchfit record-workspaces".to_owned(),
        traits: Some(traits),
    }
}

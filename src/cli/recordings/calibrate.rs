//! `batchfit calibrate`: records what a card's cuDNN takes, and keeps it for simulations of that card.
//!
//! The parent decides what is lacking and keeps what its workers found; each worker is a process of its own, because cuDNN is asked on
//! one thread, and of an absent card through an environment that is read when it is loaded.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::cli::arguments::{Calibrate, Question};
use crate::cli::trouble::Trouble;
use crate::cli::{Outcome, folders, output, question};
use crate::device::cuda::cudnn::{self, CardProperties, WorkspaceRecording};
use crate::device::cuda::{self, Facts, Gpu};
use crate::device::sim::Card;
use crate::device::sim::workspaces::{
    Provenance, WorkspaceTable, condense, layer_text, merge, pack, parse_layer, unpack,
};
use crate::program::ConvolutionLayer;
use crate::shape::DType;
use crate::units::Bytes;

use super::workspaces::{convolutions, provenance, provenance_of_absent};

/// In which types layers are asked about.
const DTYPES: [DType; 3] = [DType::Float32, DType::Float16, DType::BFloat16];

/// A file of layers is at most this long.
const LONGEST_LIST: u64 = 64 << 20;

pub(in crate::cli) fn run(arguments: &Calibrate) -> Result<Outcome, Trouble> {
    let mut first = BTreeSet::new();
    if let Some(what) = &arguments.what {
        let asked = Question {
            what: Some(what.clone()),
            ..Question::default()
        };
        let (request, _) = question::read(&asked)?.of_one_length()?;
        first.extend(convolutions(&request).map_err(Trouble::Broken)?.0);
    }
    let said = match (&arguments.import, arguments.share.as_slice()) {
        (Some(file), _) => import(arguments, file),
        (None, [share, output]) => {
            let done = work(arguments, &first, share, Path::new(output));
            done.map(|()| String::new())
        }
        (None, _) => calibrate(arguments, &first),
    };
    output::text(&said.map_err(Trouble::Broken)?)?;
    Ok(Outcome::Answered)
}

/// The card that is calibrated.
struct Target {
    provenance: Provenance,
    /// A tensor larger than its memory is not asked about.
    memory: Bytes,
    absent: Option<CardProperties>,
}

impl Target {
    fn of(arguments: &Calibrate) -> anyhow::Result<Target> {
        let Some(name) = &arguments.card else {
            let facts = Gpu::open(arguments.gpu)?.facts().clone();
            let memory = facts.total;
            anyhow::ensure!(
                facts.cudnn.is_some(),
                "cuDNN is not on the library path: name the folder of PyTorch's libcudnn.so.9 in LD_LIBRARY_PATH"
            );
            return Ok(Target {
                provenance: of_gpu(facts),
                memory,
                absent: None,
            });
        };
        let card = Card::find(name).context("the card is one of those that are simulated")?;
        let properties = CardProperties::of(card.product, &card.capability, card.total_memory);
        let properties = properties.with_context(|| {
            let (major, minor) = card.capability.compute;
            format!("cuDNN 9.19 for CUDA 13 does not know compute capability {major}.{minor}")
        })?;
        Ok(Target {
            provenance: provenance_of_absent(card)?,
            memory: card.total_memory,
            absent: Some(properties),
        })
    }
}

fn of_gpu(facts: Facts) -> Provenance {
    Provenance {
        command: "batchfit calibrate".to_owned(),
        ..provenance(facts)
    }
}

/// Records what is lacking, and keeps it.
fn calibrate(arguments: &Calibrate, first: &BTreeSet<ConvolutionLayer>) -> anyhow::Result<String> {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(arguments.seconds);
    let target = Target::of(arguments)?;
    let folder = kept(arguments)?;
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let file = folder.join(target.provenance.file_name());
    let mut table = known(&file)?;
    let wanted = wanted(arguments, first)?;
    let before = WorkspaceTable::parse(&table)?.len();
    // Layers that need the log are asked about apart: it makes all others slow.
    let needs_log = |layer: &&ConvolutionLayer| target.absent.is_some() && cudnn::takes_log(layer);
    let (logged, plain): (Vec<&ConvolutionLayer>, Vec<&ConvolutionLayer>) =
        wanted.iter().partition(needs_log);
    let folder = tempfile::tempdir().context("could not make a folder for what is recorded")?;
    for (name, layers) in [("plain", plain), ("logged", logged)] {
        let known = WorkspaceTable::parse(&table)?;
        let lacking = layers.into_iter().filter(|layer| !known.holds(layer));
        let list: Vec<String> = lacking.map(layer_text).collect();
        let left = until.saturating_duration_since(Instant::now());
        if list.is_empty() || left.is_zero() {
            continue;
        }
        let path = folder.path().join(name);
        fs::write(&path, list.join("\n")).context("could not write what is to be recorded")?;
        let parts = together(arguments, &path, name == "logged", left)?;
        let parts = parts.iter().map(File::open).collect::<Result<Vec<_>, _>>();
        let parts = parts.context("could not read what was recorded")?;
        let found = condense(parts.into_iter().map(BufReader::new), &target.provenance)?;
        table = merged([table, found]);
        keep(&file, &table)?;
    }
    let now = WorkspaceTable::parse(&table)?;
    let lacking = wanted.iter().filter(|layer| !now.holds(layer)).count();
    let mut lines = vec![format!(
        "{}, cuDNN {}: {} layers are known, {} of them new ({:.0} s)",
        target.provenance.card,
        target.provenance.cudnn,
        now.len(),
        now.len() - before,
        begun.elapsed().as_secs_f64()
    )];
    if lacking > 0 {
        let why = "the time was over, or cuDNN has no plan for them; run it again to go on";
        lines.push(format!("{lacking} are lacking: {why}"));
    }
    lines.push(format!("kept in {}", file.display()));
    if let Some(export) = &arguments.export {
        let packed = pack(&table)?;
        File::create_new(export)
            .and_then(|mut file| file.write_all(&packed))
            .with_context(|| format!("could not write {}", export.display()))?;
        lines.push(format!("exported to {}", export.display()));
    }
    Ok(lines.join("\n") + "\n")
}

/// The layers that are asked about: a model's, then those that are known of models.
fn wanted(
    arguments: &Calibrate,
    first: &BTreeSet<ConvolutionLayer>,
) -> anyhow::Result<Vec<ConvolutionLayer>> {
    let mut layers: Vec<ConvolutionLayer> = first.iter().copied().collect();
    if let Some(path) = &arguments.layers {
        let size =
            fs::metadata(path).with_context(|| format!("could not read {}", path.display()))?;
        anyhow::ensure!(
            size.len() <= LONGEST_LIST,
            "{} is longer than 64 MiB",
            path.display()
        );
        let text = fs::read_to_string(path)
            .with_context(|| format!("could not read {}", path.display()))?;
        for (index, line) in text.lines().enumerate() {
            let layer = parse_layer(line);
            layers.push(layer.with_context(|| {
                format!("line {} of {} is no layer", index + 1, path.display())
            })?);
        }
    } else {
        let mut known: Vec<_> = WorkspaceTable::h200().layers().copied().collect();
        known.sort_unstable();
        layers.extend(known.into_iter().filter(|layer| !first.contains(layer)));
    }
    Ok(layers)
}

/// Runs workers until all are done; the files that they wrote.
fn together(
    arguments: &Calibrate,
    layers: &Path,
    logged: bool,
    left: Duration,
) -> anyhow::Result<Vec<PathBuf>> {
    let program = env::current_exe().context("could not find batchfit itself")?;
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    let workers = arguments.workers.map_or_else(cores, usize::from);
    let mut children: Vec<(Child, PathBuf)> = Vec::new();
    for number in 0..workers {
        let output = layers.with_extension(number.to_string());
        let mut command = Command::new(&program);
        command.arg("calibrate").arg("--layers").arg(layers);
        command.args(["--seconds", &left.as_secs().max(1).to_string()]);
        let batches: Vec<String> = arguments.batches.iter().map(u64::to_string).collect();
        command.args(["--batches", &batches.join(",")]);
        match &arguments.card {
            Some(card) => command.args(["--card", card]),
            None => command.args(["--gpu", &arguments.gpu.to_string()]),
        };
        if logged {
            let log = output.with_extension("log");
            File::create(&log).context("could not write cuDNN's log")?;
            command.envs(cudnn::environment(&log));
        }
        command
            .args(["--share", &format!("{number}/{workers}")])
            .arg(&output);
        let child = command.spawn().context("could not start batchfit itself")?;
        children.push((child, output));
    }
    let mut outputs = Vec::new();
    for (mut child, output) in children {
        let status = child.wait().context("could not wait for batchfit itself")?;
        // What one could not finish, the others have not lost.
        if status.success() {
            outputs.push(output);
        } else {
            eprintln!(
                "a process that recorded ended with {status}; its share is recorded next time"
            );
        }
    }
    anyhow::ensure!(!outputs.is_empty(), "nothing was recorded");
    Ok(outputs)
}

/// What a worker does: its share of the layers.
fn work(
    arguments: &Calibrate,
    first: &BTreeSet<ConvolutionLayer>,
    share: &str,
    output: &Path,
) -> anyhow::Result<()> {
    let (number, count) = share.split_once('/').context("a share is NUMBER/COUNT")?;
    let (number, count): (usize, usize) = (number.parse()?, count.parse()?);
    let layers: Vec<ConvolutionLayer> = wanted(arguments, first)?
        .into_iter()
        .skip(number)
        .step_by(count.max(1))
        .collect();
    let target = Target::of(arguments)?;
    let recording = WorkspaceRecording {
        layers: &layers,
        dtypes: &DTYPES,
        batches: &arguments.batches,
        only_first: true,
        most_bytes: target.memory,
        until: Some(Instant::now() + Duration::from_secs(arguments.seconds)),
    };
    let mut out = BufWriter::new(File::create(output)?);
    match &target.absent {
        Some(card) => cuda::record_workspaces_of_absent(card, &recording, &mut out)?,
        None => cuda::record_workspaces(&Gpu::open(arguments.gpu)?, &recording, &mut out)?,
    };
    out.flush()?;
    Ok(())
}

/// Takes over an exported table, after all of it was read.
fn import(arguments: &Calibrate, file: &Path) -> anyhow::Result<String> {
    let text = File::open(file).and_then(unpack);
    let text = text.with_context(|| format!("could not read {}", file.display()))?;
    let table = WorkspaceTable::parse(&text)
        .with_context(|| format!("{} is no calibration", file.display()))?;
    let provenance = Provenance::of(&table)
        .with_context(|| format!("{} does not say which card it is of", file.display()))?;
    let folder = kept(arguments)?;
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let into = folder.join(provenance.file_name());
    let all = merged([known(&into)?, text]);
    keep(&into, &all)?;
    Ok(format!(
        "{}: {} layers, kept in {}\n",
        provenance.card,
        table.len(),
        into.display()
    ))
}

/// The text of what is kept of a card already; nothing of a new one.
fn known(file: &Path) -> anyhow::Result<String> {
    if !file.exists() {
        return Ok(String::new());
    }
    let text = File::open(file).and_then(unpack);
    text.with_context(|| format!("could not read {}; delete it to begin anew", file.display()))
}

/// One table of two, of which the first may be nothing yet.
fn merged(tables: [String; 2]) -> String {
    let tables: Vec<String> = tables.into_iter().filter(|one| !one.is_empty()).collect();
    merge(&tables)
}

/// Replaces a kept table at once, so that nobody reads half of one.
fn keep(file: &Path, table: &str) -> anyhow::Result<()> {
    let packed = pack(table)?;
    let folder = file.parent().context("a kept file is in a folder")?;
    let mut whole = tempfile::NamedTempFile::new_in(folder)?;
    whole.write_all(&packed)?;
    whole
        .persist(file)
        .with_context(|| format!("could not write {}", file.display()))?;
    Ok(())
}

/// Where calibrations are kept.
fn kept(arguments: &Calibrate) -> anyhow::Result<PathBuf> {
    let named = arguments.kept.clone().or_else(folders::calibrations);
    named.context("name a folder with --kept: there is no home folder to keep calibrations in")
}

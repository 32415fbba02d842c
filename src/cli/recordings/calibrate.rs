//! `batchfit calibrate`: records what a card's cuDNN takes, and keeps it for simulations of that card.
//!
//! The parent decides what is lacking and keeps what its workers found; each worker is a process of its own, because cuDNN is asked on
//! one thread, and of an absent card through an environment that is read when it is loaded.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::cli::arguments::{BATCHES, Calibrate, RequestFlags};
use crate::cli::error::CliError;
use crate::cli::question::files::read_bytes;
use crate::cli::terminal::output;
use crate::cli::{Outcome, question, storage};
use crate::device::cuda::cudnn::{self, CardProperties, WorkspaceRecording};
use crate::device::cuda::{self, Gpu};
use crate::device::sim::workspaces::{
    Provenance, WorkspaceTable, condense, layer_text, merge, pack, parse_layer, unpack,
};
use crate::jobs::EngineError;
use crate::model::nicknames as cards;
use crate::program::ConvolutionLayer;
use crate::shape::DType;
use crate::units::Bytes;

use super::workspaces::{convolutions, provenance, provenance_of_absent};

/// In which types layers are asked about.
const DTYPES: [DType; 3] = [DType::Float32, DType::Float16, DType::BFloat16];

/// More batches than a table has, and a larger one than is trained in practice.
const MOST_BATCHES: usize = 4096;
const LARGEST_BATCH: u64 = 1 << 20;

pub(in crate::cli) fn run(arguments: &Calibrate) -> Result<Outcome, CliError> {
    check(arguments)?;
    let mut first = BTreeSet::new();
    if let Some(what) = &arguments.what {
        let mut asked = RequestFlags::default();
        asked.own.what = Some(what.clone());
        let (request, _) = question::read(&asked)?.of_one_length()?;
        first.extend(convolutions(&request)?.0);
    }
    let said = if let Some(file) = &arguments.import {
        import(arguments, file)?
    } else {
        let wanted = wanted(arguments, &first)?;
        let target = Target::of(arguments)?;
        if let [share, output] = arguments.share.as_slice() {
            let done = work(arguments, &target, &wanted, (share, Path::new(output)));
            done?;
            String::new()
        } else {
            let file = folder(arguments)?.join(target.provenance.file_name());
            is_of_these_batches(&file, &target.provenance)?;
            let said = calibrate(arguments, &target, &wanted, &file);
            said? + &export(arguments, &file)?
        }
    };
    output::text(&said)
}

/// Refuses what would be found wrong after the work.
fn check(arguments: &Calibrate) -> Result<(), CliError> {
    let batches = &arguments.batches;
    let ascend = batches.is_sorted_by(|one, next| one < next) && batches.first() > Some(&0);
    if !ascend || batches.len() > MOST_BATCHES || batches.last() > Some(&LARGEST_BATCH) {
        let problem = format!(
            "batches ascend from 1 to {LARGEST_BATCH}, and there are at most {MOST_BATCHES}, as in 1,2,4,8"
        );
        return Err(CliError::flag("--batches", problem));
    }
    match &arguments.export {
        Some(file) if file.exists() => {
            let problem = format!(
                "{} is there already; name another file, or remove it",
                file.display()
            );
            Err(CliError::flag("--export", problem))
        }
        Some(_) | None => Ok(()),
    }
}

/// The card that is calibrated.
struct Target {
    provenance: Provenance,
    /// A tensor larger than its memory is not asked about.
    memory: Bytes,
    absent: Option<CardProperties>,
}

impl Target {
    fn of(arguments: &Calibrate) -> Result<Target, CliError> {
        let Some(name) = &arguments.card else {
            let device = format!("cuda:{}", arguments.gpu);
            let gpu = Gpu::open(arguments.gpu).map_err(|error| missing(&device, &error))?;
            let facts = gpu.facts().clone();
            let memory = facts.total;
            if facts.cudnn.is_none() {
                return Err(missing(&device, &NO_CUDNN));
            }
            return Ok(Target {
                provenance: Provenance {
                    command: format!("batchfit calibrate{}", of_batches(arguments)),
                    ..provenance(facts)
                },
                memory,
                absent: None,
            });
        };
        let named = cards::parse(name).map_err(|invalid| CliError::named(&"--card", invalid))?;
        if named.count.is_some() {
            let problem = "one card is asked about, however many there are; leave out the number";
            return Err(CliError::flag("--card", problem));
        }
        let card = named.card;
        let properties = CardProperties::of_card(card);
        let properties = properties.ok_or_else(|| {
            let (major, minor) = card.capability.compute;
            let problem =
                format!("cuDNN 9.19 for CUDA 13 does not know compute capability {major}.{minor}");
            CliError::flag("--card", problem)
        })?;
        let provenance = provenance_of_absent(card);
        Ok(Target {
            provenance: Provenance {
                command: format!(
                    "batchfit calibrate --card {}{}",
                    card.name,
                    of_batches(arguments)
                ),
                ..provenance.map_err(|_| missing(&format!("sim:{name}"), &NO_CUDNN))?
            },
            memory: card.total_memory,
            absent: Some(properties),
        })
    }
}

/// What is said where cuDNN is not found.
const NO_CUDNN: &str = "cuDNN is not on the library path; name the folder of PyTorch's libcudnn.so.9 in LD_LIBRARY_PATH, as docs/how/calibration.md shows";

fn missing(device: &str, what: &dyn Display) -> CliError {
    CliError::Engine(EngineError::DeviceUnavailable {
        device: device.to_owned(),
        missing: what.to_string(),
        simulated: Vec::new(),
    })
}

/// How a command names its batches, where they are not the usual ones.
const BATCHES_FLAG: &str = " --batches ";

fn of_batches(arguments: &Calibrate) -> String {
    let batches = listed(&arguments.batches);
    if batches == BATCHES {
        String::new()
    } else {
        BATCHES_FLAG.to_owned() + &batches
    }
}

fn listed(batches: &[u64]) -> String {
    let texts: Vec<String> = batches.iter().map(u64::to_string).collect();
    texts.join(",")
}

/// Refuses to go on with a table of other batches: its layers would count as known.
fn is_of_these_batches(file: &Path, target: &Provenance) -> Result<(), CliError> {
    let table = known(file)?;
    let table = WorkspaceTable::parse(&table);
    let Some(kept) = table.ok().as_ref().and_then(Provenance::of) else {
        return Ok(());
    };
    let batches = |command: &str| {
        let named = command.split_once(BATCHES_FLAG);
        named.map_or(BATCHES, |(_, batches)| batches).to_owned()
    };
    let recorded = batches(&kept.command);
    if recorded == batches(&target.command) {
        return Ok(());
    }
    let problem = format!(
        "{} has the batches {recorded}; name the same, or remove it to start again",
        file.display()
    );
    Err(CliError::flag("--batches", problem))
}

/// Records what is lacking, and keeps it.
fn calibrate(
    arguments: &Calibrate,
    target: &Target,
    wanted: &[ConvolutionLayer],
    file: &Path,
) -> anyhow::Result<String> {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(arguments.seconds);
    let mut table = known(file)?;
    let before = WorkspaceTable::parse(&table)?.len();
    let folder = batchfit_platform::private_folder().tempdir();
    let folder = folder.context("could not make a folder for what is recorded")?;
    let known = WorkspaceTable::parse(&table)?;
    let lacking = wanted.iter().filter(|layer| !known.holds(layer));
    let list: Vec<String> = lacking.map(layer_text).collect();
    let left = until.saturating_duration_since(Instant::now());
    if !list.is_empty() && !left.is_zero() {
        let path = folder.path().join("layers");
        fs::write(&path, list.join("\n")).context("could not write what is to be recorded")?;
        let parts = together(arguments, &path, left)?;
        let parts = parts.iter().map(File::open).collect::<Result<Vec<_>, _>>();
        let parts = parts.context("could not read what was recorded")?;
        let found = condense(parts.into_iter().map(BufReader::new), &target.provenance)?;
        table = merged([table, found]);
        keep(file, &table).with_context(|| format!("could not write {}", file.display()))?;
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
    Ok(lines.join("\n") + "\n")
}

/// Copies what is kept of the card to where the command says; what to say of it.
fn export(arguments: &Calibrate, kept: &Path) -> Result<String, CliError> {
    let Some(export) = &arguments.export else {
        return Ok(String::new());
    };
    let packed = fs::read(kept).map_err(CliError::unreadable(kept))?;
    let written = File::create_new(export).and_then(|mut file| file.write_all(&packed));
    written.map_err(CliError::unwritable(export))?;
    Ok(format!("exported to {}\n", export.display()))
}

/// The layers that are asked about: a model's, then those that are known of models.
fn wanted(
    arguments: &Calibrate,
    first: &BTreeSet<ConvolutionLayer>,
) -> Result<Vec<ConvolutionLayer>, CliError> {
    let mut layers: Vec<ConvolutionLayer> = first.iter().copied().collect();
    let Some(path) = &arguments.layers else {
        let mut known = WorkspaceTable::h200().layers();
        known.sort_unstable();
        layers.extend(known.into_iter().filter(|layer| !first.contains(layer)));
        return Ok(layers);
    };
    let bytes = read_bytes(path)?;
    for (index, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
        let problem = || {
            let problem = format!(
                "line {} is no layer; one is channels in and out, groups, and the sides of input, kernel, stride, padding and \
                 dilation, with commas between: 3,64,1,224,224,7,7,2,2,3,3,1,1,0",
                index + 1
            );
            CliError::flag("--layers", problem)
        };
        layers.push(parse_layer(line).ok_or_else(problem)?);
    }
    Ok(layers)
}

/// Runs workers until all are done; the files that they wrote.
fn together(arguments: &Calibrate, layers: &Path, left: Duration) -> anyhow::Result<Vec<PathBuf>> {
    let program = env::current_exe().context("could not find batchfit itself")?;
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    let workers = arguments.workers.map_or_else(cores, usize::from);
    let mut children: Vec<(Child, PathBuf)> = Vec::new();
    for number in 0..workers {
        let output = layers.with_extension(number.to_string());
        let mut command = Command::new(&program);
        command.arg("calibrate").arg("--layers").arg(layers);
        command.args(["--seconds", &left.as_secs().max(1).to_string()]);
        command.args(["--batches", &listed(&arguments.batches)]);
        if let Some(card) = &arguments.card {
            let log = log_of(&output);
            File::create(&log).context("could not write cuDNN's log")?;
            command.args(["--card", card]);
            command.envs([cudnn::NO_CARD_VISIBLE]);
            command.envs(cudnn::environment(&log));
        } else {
            command.args(["--gpu", &arguments.gpu.to_string()]);
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

/// Where the cuDNN of the worker logs that writes this file: workers that share a log miss what it says to them.
fn log_of(output: &Path) -> PathBuf {
    output.with_added_extension("log")
}

/// What a worker does: its share of the layers.
fn work(
    arguments: &Calibrate,
    target: &Target,
    wanted: &[ConvolutionLayer],
    (share, output): (&str, &Path),
) -> anyhow::Result<()> {
    let (number, count) = share.split_once('/').context("a share is NUMBER/COUNT")?;
    let (number, count): (usize, usize) = (number.parse()?, count.parse()?);
    let layers = wanted.iter().skip(number).step_by(count.max(1));
    let layers: Vec<ConvolutionLayer> = layers.copied().collect();
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
fn import(arguments: &Calibrate, file: &Path) -> Result<String, CliError> {
    let wrong = |problem: &str| CliError::flag(&file.display(), problem);
    let text = unpack(&*read_bytes(file)?).map_err(CliError::unreadable(file))?;
    let table = WorkspaceTable::parse(&text).map_err(|error| {
        wrong(&format!(
            "this is no calibration that was exported: {error}"
        ))
    })?;
    let provenance =
        Provenance::of(&table).ok_or_else(|| wrong("this does not say which card it is of"))?;
    if provenance.traits.is_none() {
        return Err(wrong(
            "this does not say what can be true of a card: compute capability, multiprocessors and their threads, 1 GiB to 16 TiB of memory",
        ));
    }
    let folder = folder(arguments)?;
    let into = folder.join(provenance.file_name());
    let known = known(&into)?;
    keep(&into, &merged([known, text])).map_err(CliError::unwritable(&into))?;
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
    text.with_context(|| {
        format!(
            "could not read {}; delete it to start again",
            file.display()
        )
    })
}

/// One table of two, of which the first may be nothing yet.
fn merged(tables: [String; 2]) -> String {
    let tables: Vec<String> = tables.into_iter().filter(|one| !one.is_empty()).collect();
    merge(&tables)
}

/// Replaces a kept table at once, so that no process reads half of one.
fn keep(file: &Path, table: &str) -> io::Result<()> {
    let packed = pack(table)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut whole = tempfile::NamedTempFile::new_in(folder)?;
    whole.write_all(&packed)?;
    whole.persist(file)?;
    Ok(())
}

/// Where calibrations are kept; makes it.
fn folder(arguments: &Calibrate) -> Result<PathBuf, CliError> {
    let named = arguments.kept.clone().or_else(storage::calibrations);
    let folder = named.ok_or_else(|| {
        let problem = "name a folder: there is no home folder to keep calibrations in";
        CliError::flag("--kept", problem)
    })?;
    fs::create_dir_all(&folder).map_err(CliError::unwritable(&folder))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_a_log_of_its_own() {
        assert_ne!(log_of("layers.0".as_ref()), log_of("layers.1".as_ref()));
    }
}

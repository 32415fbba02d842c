//! `batchfit doctor`: what this machine has of what batchfit needs, on one screen.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

use super::arguments::Doctor;
use super::error::CliError;
use super::{Outcome, storage};
use crate::cli::terminal::output;
use crate::device::cuda::plan::{self, Target};
use crate::device::cuda::{self, Library};
use crate::device::sim::Card;
use crate::limits::Cancel;
use crate::model::{Request, RequestDocument};
use crate::store::{Db, Health, is_postgres, shown};
use crate::worker::Programs;

/// Models whose steps are looked through for what a GPU cannot run, and what else their descriptions need.
const SURVEYED: [(&str, &str); 3] = [
    ("resnet50", ""),
    ("vit_b_16", ""),
    ("gpt2", r#", "seq_len": 1024"#),
];

/// The card that plans are made for: those of others differ in sizes, not in what they can run.
const CARD: &str = "h200";

/// A finding.
#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked at.
    what: &'static str,
    /// `ok`, `missing` (simulated devices work without) or `trouble`.
    state: State,
    /// What was found.
    found: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    Missing,
    Trouble,
}

impl State {
    /// What it is where something is as it should be, and otherwise.
    fn of(is_ok: bool, otherwise: State) -> State {
        if is_ok { State::Ok } else { otherwise }
    }
}

fn finding(what: &'static str, state: State, found: impl Into<String>) -> Finding {
    let found = found.into();
    Finding { what, state, found }
}

pub(super) fn run(arguments: &Doctor) -> Result<Outcome, CliError> {
    let mut findings = Vec::new();
    libraries(&mut findings);
    cards(&mut findings);
    findings.push(python());
    findings.push(gaps());
    stored(arguments, &mut findings);
    output::list(arguments.json, &findings, || {
        let mut text = format!("batchfit {}\n", env!("CARGO_PKG_VERSION"));
        for Finding { what, state, found } in &findings {
            let sign = match state {
                State::Ok => "ok",
                State::Missing => "-",
                State::Trouble => "!!",
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{sign:>2}  {what:12}  {found}");
        }
        text
    })?;
    let is_well = findings
        .iter()
        .all(|finding| finding.state != State::Trouble);
    Ok(if is_well {
        Outcome::Answered
    } else {
        Outcome::DeviceTrouble
    })
}

fn libraries(findings: &mut Vec<Finding>) {
    for (library, what) in Library::ALL
        .into_iter()
        .zip(["CUDA", "cuBLASLt", "cuDNN", "NVRTC"])
    {
        let (state, found) = match (library.is_present(), library.version()) {
            (true, Some(version)) => (State::Ok, version),
            (true, None) => (
                State::Trouble,
                format!(
                    "{library} was found, but does not say its version: `pip install --force-reinstall torch`"
                ),
            ),
            (false, _) if library == Library::Driver => (
                State::Missing,
                format!(
                    "{library} is missing: nothing runs on a GPU here; simulated cards work (`batchfit fit resnet50 --on rtx4090`)"
                ),
            ),
            (false, _) => (
                State::Missing,
                format!(
                    "{library} is missing; `pip install torch` brings it, and only probes on a GPU need it"
                ),
            ),
        };
        findings.push(finding(what, state, found));
    }
}

fn cards(findings: &mut Vec<Finding>) {
    let cards = match cuda::cards() {
        Ok(cards) => cards,
        Err(error) => {
            let found =
                format!("{error}; the NVIDIA driver brings it (https://www.nvidia.com/drivers)");
            findings.push(finding("driver", State::Missing, found));
            return;
        }
    };
    let driver = cards.first().map(|card| card.driver.clone());
    let state = State::of(driver.is_some(), State::Missing);
    let no_gpu = || "installed, but it sees no GPU: `nvidia-smi` says why".to_owned();
    findings.push(finding("driver", state, driver.unwrap_or_else(no_gpu)));
    for card in cards {
        let mig = match card.mig {
            Some(true) => {
                "MIG is on: `export CUDA_VISIBLE_DEVICES=MIG-...` names the instance (`nvidia-smi -L` lists them)"
            }
            Some(false) => "MIG is off",
            None => "it has no MIG",
        };
        let state = State::of(card.mig != Some(true), State::Trouble);
        let found = format!(
            "{} ({}): {} of {} free, {} held by others; {mig}",
            card.index, card.name, card.free, card.total, card.used_by_others
        );
        findings.push(finding("GPU", state, found));
    }
}

/// Which Python exports models.
fn python() -> Finding {
    let found = super::python::interpreter(std::env::var_os("BATCHFIT_PYTHON").as_deref());
    let state = State::of(found.is_ok(), State::Missing);
    let found = match found {
        Ok(path) => format!(
            "{} has batchfit's package: `batchfit fit my.py:build` works",
            path.display()
        ),
        Err(error) => error.into_problem().detail.replacen("Python: ", "", 1),
    };
    finding("Python", state, found)
}

/// What of well-known models' steps a GPU cannot run.
fn gaps() -> Finding {
    let mut gaps = BTreeSet::new();
    for (preset, and) in SURVEYED {
        match surveyed(preset, and) {
            Ok(found) => gaps.extend(found),
            Err(said) => return finding("gaps", State::Trouble, format!("{preset}: {said}")),
        }
    }
    let names: Vec<String> = gaps.into_iter().collect();
    let found = match names.as_slice() {
        [] => format!(
            "none: a GPU can run every step of {}; `batchfit probe MODEL --explain` checks another model",
            SURVEYED.map(|(preset, _)| preset).join(", ")
        ),
        some => format!("a GPU cannot run {}; simulated cards can", some.join(", ")),
    };
    finding("gaps", State::of(names.is_empty(), State::Trouble), found)
}

fn surveyed(preset: &str, and: &str) -> Result<Vec<String>, String> {
    let card = Card::find(CARD).ok_or_else(|| format!("there is no card {CARD}"))?;
    let text = format!(r#"{{"model": {{"preset": "{preset}"{and}}}, "device": "sim:{CARD}"}}"#);
    let document =
        RequestDocument::from_json(text.as_bytes()).map_err(|error| error.to_string())?;
    let request = Request::parse(document).map_err(|error| error.to_string())?;
    let graph = request.graph().map_err(|error| error.to_string())?;
    let mut programs = Programs::new(graph, card.capability);
    let mut gaps = Vec::new();
    for variant in &request.variants {
        let program = programs
            .of(variant, &Cancel::NEVER)
            .map_err(|error| error.to_string())?;
        let found = plan::survey(program, 2, Target::of(&card.capability));
        gaps.extend(
            found
                .gaps
                .into_iter()
                .map(|gap| format!("{preset}: {}", gap.operation)),
        );
    }
    Ok(gaps)
}

/// What the database says, which is not made where it is missing.
fn stored(arguments: &Doctor, findings: &mut Vec<Finding>) {
    let mut tell = |state, found| findings.push(finding("database", state, found));
    let database = match storage::database(&arguments.kept) {
        Ok(database) => database,
        Err(error) => return tell(State::Missing, format!("{error:#}")),
    };
    let file = database.strip_prefix("sqlite:").unwrap_or(&database);
    if !is_postgres(&database) && !std::path::Path::new(file).exists() {
        let found = format!("{database} does not exist yet; the first `batchfit fit` makes it");
        return tell(State::Missing, found);
    }
    let looked = storage::runtime()
        .and_then(|runtime| runtime.block_on(async { Ok(Db::health(&database).await?) }));
    let Health {
        fits,
        recommendations,
        bytes,
        keys,
    } = match looked {
        Ok(health) => health,
        Err(error) => return tell(State::Trouble, format!("{error:#}")),
    };
    let found = format!(
        "{}: {fits} fits, {recommendations} recommendations, {} MiB",
        shown(&database),
        bytes >> 20
    );
    tell(State::Ok, found);
    let keys = match keys {
        None | Some(0) => {
            "none: the service answers this machine alone; `batchfit keys create --name NAME` makes one".to_owned()
        }
        Some(keys) => format!("{keys} in use"),
    };
    findings.push(finding("keys", State::Ok, keys));
}

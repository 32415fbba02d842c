//! The parent's side of a child that asks cuDNN's heuristics about cards that are not there.
//!
//! It is a process of its own because cuDNN reads from its environment, when it is loaded, where to log, and because what goes wrong in
//! it must end no service.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tracing::warn;

use crate::device::sim::{self, Card};
use crate::limits::Cancel;
use crate::program::Convolution;
use crate::units::Bytes;

use super::process::{Activity, Launch, Running, WorkerError};

/// The longest line that either side may write: a question has some 400 bytes.
pub const LONGEST: usize = 1 << 14;

/// How long a child may take to load cuDNN, from a slow disk too.
const START: Duration = Duration::from_secs(20);

/// How long cuDNN may take for an answer, which is there after a millisecond, or when it has loaded more of itself.
const ANSWER: Duration = Duration::from_secs(10);

/// How long a child that was killed may take to end.
const ENDING: Duration = Duration::from_millis(300);

/// How many children may be lost, in each place, until none is asked any more.
const LOSSES: u32 = 5;

/// How many children there are at most, one on each core: each takes 135 MB.
const MOST_CHILDREN: usize = 8;

/// So many questions at a time are worth another child. They take 0.3 ms each, and the start of a child 130 ms; but a fit asks as many again
/// at some twenty batches.
const WORTH_A_CHILD: usize = 128;

/// How many answers are kept. A large network has a few hundred convolutions, asked about at some twenty batches.
const KEPT: usize = 1 << 16;

/// What the child says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handshake {
    /// The version of cuDNN that answers, as `9.19.0`.
    Cudnn(String),
    /// Why none does.
    Missing(String),
}

/// Parent to child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeuristicsQuery {
    /// A card of the catalogue.
    pub card: String,
    /// What it runs.
    pub call: Convolution,
    /// Whether about all plans, or about the first.
    pub all: bool,
}

/// Child to parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What the plans are given, in bytes, in the order in which they are tried; none where cuDNN has none.
    pub workspaces: Vec<u64>,
}

/// How the child is started.
#[derive(Debug, Clone)]
pub struct HeuristicsCommand {
    /// The batchfit binary.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its library path, where that is not this process's.
    pub library_path: Option<OsString>,
    /// What its environment has besides, with a log of cuDNN's in this file.
    pub environment: fn(&Path) -> Vec<(OsString, OsString)>,
    /// Where PyTorch's cuDNN is; empty where it is found without being told.
    pub folder: PathBuf,
}

/// Why cuDNN cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum NoHeuristics {
    /// There is no cuDNN.
    #[error("{0}")]
    Missing(String),
    /// There is no child.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// There is no room for its log.
    #[error("could not make a folder for cuDNN's log")]
    Log(#[source] io::Error),
}

/// The children, and what they said.
#[derive(Debug)]
pub struct Heuristics {
    command: HeuristicsCommand,
    version: String,
    /// The first is there from the start, the others when there is much to ask.
    children: Vec<Mutex<HeuristicsChild>>,
    logs: TempDir,
    known: Mutex<Known>,
}

/// By the name of a card, the call, and whether it is about all plans.
type Known = HashMap<(&'static str, Convolution, bool), Vec<Bytes>>;

/// A child, or a place for one.
#[derive(Debug, Default)]
struct HeuristicsChild {
    running: Option<Running>,
    lost: u32,
}

impl Heuristics {
    /// Starts the first child, which says which cuDNN there is.
    pub fn start(command: HeuristicsCommand) -> Result<Heuristics, NoHeuristics> {
        let logs = batchfit_platform::private_folder().tempdir();
        let logs = logs.map_err(NoHeuristics::Log)?;
        let (running, hello) = start(&command, &log_of(&logs, 0))?;
        let version = match hello {
            Handshake::Cudnn(version) => version,
            Handshake::Missing(why) => return Err(NoHeuristics::Missing(why)),
        };
        let first = HeuristicsChild {
            running: Some(running),
            lost: 0,
        };
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let others = (1..cores.min(MOST_CHILDREN)).map(|_| Mutex::default());
        Ok(Heuristics {
            command,
            version,
            children: std::iter::once(Mutex::new(first)).chain(others).collect(),
            logs,
            known: Mutex::default(),
        })
    }

    /// Asks one of the children, and remembers what it says: nothing where it cannot be told.
    fn ask(&self, number: usize, card: &'static Card, call: &Convolution, all: bool) -> Vec<Bytes> {
        let mut child = self.children[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let question = (card.name, *call, all);
        // Another thread may have asked it meanwhile.
        if let Some(answer) = self.known().get(&question) {
            return answer.clone();
        }
        if child.lost >= LOSSES {
            return Vec::new();
        }
        let asked = HeuristicsQuery {
            card: card.name.to_owned(),
            call: *call,
            all,
        };
        let answer = self.answer(&mut child, number, &asked);
        drop(child);
        let answer: Vec<Bytes> = answer.into_iter().map(Bytes).collect();
        let mut known = self.known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(question, answer.clone());
        answer
    }

    fn lookup(&self, card: &'static Card, call: &Convolution, all: bool) -> Vec<Bytes> {
        let known = self.known().get(&(card.name, *call, all)).cloned();
        known.unwrap_or_else(|| self.ask(0, card, call, all))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a child says.
    fn answer(
        &self,
        child: &mut HeuristicsChild,
        number: usize,
        question: &HeuristicsQuery,
    ) -> Vec<u64> {
        let answer = self.of_child(child, number, question);
        if let Err(error) = &answer {
            child.running = None;
            child.lost += 1;
            warn!(%error, "cuDNN's heuristics gave no answer; it is estimated instead");
        }
        answer.map_or_else(|_| Vec::new(), |answer| answer.workspaces)
    }

    fn of_child(
        &self,
        child: &mut HeuristicsChild,
        number: usize,
        question: &HeuristicsQuery,
    ) -> Result<Answer, WorkerError> {
        let running = match &mut child.running {
            Some(running) => running,
            empty => {
                let (running, _) = start(&self.command, &log_of(&self.logs, number))?;
                empty.insert(running)
            }
        };
        // An answer takes a millisecond: cancelling works between two.
        let never = Cancel::default();
        running.ask(question, Activity::AskingCudnn, ANSWER, &never)
    }
}

impl sim::Heuristics for Heuristics {
    fn version(&self) -> &str {
        &self.version
    }

    fn folder(&self) -> &Path {
        &self.command.folder
    }

    fn first_workspace(&self, card: &'static Card, call: &Convolution) -> Option<Bytes> {
        self.lookup(card, call, false).first().copied()
    }

    fn workspaces(&self, card: &'static Card, call: &Convolution) -> Option<Vec<Bytes>> {
        Some(self.lookup(card, call, true)).filter(|all| !all.is_empty())
    }

    fn ask_ahead(&self, card: &'static Card, calls: &[Convolution]) {
        let known = self.known();
        let is_new = |call: &&Convolution| !known.contains_key(&(card.name, **call, false));
        let questions: Vec<&Convolution> = calls.iter().filter(is_new).collect();
        drop(known);
        let most = self.children.len();
        let count = questions.len().div_ceil(WORTH_A_CHILD).min(most);
        let asked = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..count {
                let (questions, asked) = (&questions, &asked);
                scope.spawn(move || {
                    while let Some(call) = questions.get(asked.fetch_add(1, Relaxed)) {
                        self.ask(number, card, call, false);
                    }
                });
            }
        });
    }
}

/// Where the cuDNN of a child logs.
fn log_of(logs: &TempDir, number: usize) -> PathBuf {
    logs.path().join(format!("{number}.log"))
}

/// Starts a child; what it says first.
fn start(command: &HeuristicsCommand, log: &Path) -> Result<(Running, Handshake), WorkerError> {
    let mut environment = (command.environment)(log);
    if let Some(path) = &command.library_path {
        environment.push(("LD_LIBRARY_PATH".into(), path.clone()));
    }
    let mut running = Running::start(&Launch {
        who: "process that asks cuDNN".into(),
        program: &command.program,
        arguments: &command.arguments,
        environment: &environment,
        starts_others: false,
        shares_stderr: false,
        longest_answer: LONGEST,
        ending: ENDING,
    })?;
    let never = Cancel::default();
    let hello = running.wait(Activity::Starting, START, &never)?;
    Ok((running, hello))
}

#[cfg(test)]
mod tests {
    use crate::program::ConvolutionPass;
    use crate::shape::DType;

    use super::*;

    /// A child of this version of cuDNN that goes on as a script of the shell says.
    fn answering(script: &str) -> Heuristics {
        scripted(&format!("echo '{{\"cudnn\":\"9.19.0\"}}'; {script}")).unwrap()
    }

    /// A child that says what a script of the shell says.
    fn scripted(script: &str) -> Result<Heuristics, NoHeuristics> {
        Heuristics::start(HeuristicsCommand {
            program: "/bin/sh".into(),
            arguments: ["-c", script].map(OsString::from).to_vec(),
            library_path: None,
            environment: |log| vec![("CUDNN_LOGDEST_DBG".into(), log.into())],
            folder: PathBuf::new(),
        })
    }

    /// The forward pass of a plain layer.
    fn forward(batch: u64) -> Convolution {
        let layer = sim::workspaces::parse_layer("8,8,1,4,4,3,3,1,1,1,1,1,1,0").unwrap();
        layer.call(ConvolutionPass::Forward, DType::Float32, batch)
    }

    #[test]
    fn each_query_is_sent_once_to_the_heuristics_child() {
        let asked = answering(
            "n=0; test -n \"$CUDNN_LOGDEST_DBG\" && n=100; \
             while read line; do n=$((n+1)); echo \"{\\\"workspaces\\\":[$n]}\"; done",
        );
        let card = Card::find("h200").unwrap();
        let ask = |call| sim::Heuristics::first_workspace(&asked, card, &call);

        assert_eq!(sim::Heuristics::version(&asked), "9.19.0");
        assert_eq!(ask(forward(1)), Some(Bytes(101)));
        assert_eq!(ask(forward(2)), Some(Bytes(102)));
        assert_eq!(ask(forward(1)), Some(Bytes(101)), "it is known");
    }

    #[test]
    fn many_questions_are_asked_at_a_time_and_once_each() {
        let asked = answering(
            "n=0; while read line; do n=$((n+1)); echo \"{\\\"workspaces\\\":[$n]}\"; done",
        );
        let card = Card::find("h200").unwrap();
        let calls: Vec<Convolution> = (1..=200).map(forward).collect();

        sim::Heuristics::ask_ahead(&asked, card, &calls);
        let first = asked.known().clone();
        sim::Heuristics::ask_ahead(&asked, card, &calls);

        assert_eq!(first.len(), calls.len());
        assert_eq!(*asked.known(), first, "they are known");
        // Each child counts its own questions.
        let running = |child: &&Mutex<HeuristicsChild>| child.lock().unwrap().running.is_some();
        let count = asked.children.iter().filter(running).count();
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!((1..=cores.min(7)).contains(&count));
        let of_number = |number| {
            let answers = first.values();
            answers.filter(|answer| answer[..] == [number]).count()
        };
        let asked_first = of_number(Bytes(1));
        assert!((1..=count).contains(&asked_first));
        assert!(of_number(Bytes(2)) <= asked_first);
    }

    #[test]
    fn all_plans_are_another_question() {
        let asked = answering(
            "while read line; do \
             case $line in *'\"all\":true'*) echo '{\"workspaces\":[3,2,0]}';; *) echo '{\"workspaces\":[3]}';; esac; done",
        );
        let card = Card::find("h200").unwrap();
        let call = forward(1);

        let all = [Bytes(3), Bytes(2), Bytes(0)];
        for _ in 0..2 {
            let first = sim::Heuristics::first_workspace(&asked, card, &call);
            assert_eq!(first, Some(Bytes(3)));
            let said = sim::Heuristics::workspaces(&asked, card, &call);
            assert_eq!(said.as_deref(), Some(&all[..]));
        }
    }

    #[test]
    fn children_that_are_lost_are_replaced_until_there_were_too_many() {
        // Each answers one question, and ends with the next.
        let asked = answering("read line; echo '{\"workspaces\":[7]}'; read line");
        let card = Card::find("h200").unwrap();
        let mut answers = Vec::new();
        for batch in 1..=u64::from(2 * LOSSES + 2) {
            let call = forward(batch);
            answers.push(sim::Heuristics::first_workspace(&asked, card, &call));
        }

        let mut expected = [Some(Bytes(7)), None].repeat(LOSSES as usize);
        expected.extend([None, None]);
        assert_eq!(answers, expected);
    }

    #[test]
    fn without_cudnn_it_is_said_at_once() {
        let missing = scripted("echo '{\"missing\":\"there is none\"}'").unwrap_err();
        assert_eq!(missing.to_string(), "there is none");
        assert!(matches!(
            scripted("echo nonsense").unwrap_err(),
            NoHeuristics::Worker(WorkerError::Lost { .. })
        ));
    }
}

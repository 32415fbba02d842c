//! The parent's side of a recorder: a Python process that trains an exported graph, or a module of the user's own, for a few
//! steps under PyTorch, and writes what the allocator is asked for into files.
//!
//! `clients/python/src/batchfit/recorder/protocol.py` has the messages. A recorder is not replaced when it is lost: what it
//! was asked to do is what ended it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::process::{Activity, Launch, Loss, Running, WorkerError};
use super::protocol::Refusal;
use super::supervisor::{Caller, Deadlines};
use crate::limits::Cancel;

/// Changes whenever a message does.
const VERSION: u32 = 1;

/// The longest line that a recorder may write. Its longest one has a few KiB.
const LONGEST_ANSWER: usize = 1 << 20;

/// How long a recorder that was killed may take to end: it has all of PyTorch in memory.
const ENDING: Duration = Duration::from_secs(3);

/// How a recorder is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderCommand {
    /// A Python interpreter that has batchfit's package and PyTorch.
    pub python: PathBuf,
    /// A module of the user's own, in place of graphs. Only the command line names one.
    pub module: Option<ModuleToRecord>,
}

/// A module of the user's own, as `batchfit export` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleToRecord {
    /// `my_module:build`.
    pub builder: String,
    /// Tensors of the batch, such as `x=f32[B,3,224,224]`.
    pub batch: Vec<String>,
    /// The loss.
    pub loss: String,
}

/// What a recorder is to record.
#[derive(Debug, Clone)]
pub struct RecorderOpening<'a> {
    /// A file with the graph; none where the command names a module.
    pub graph: Option<&'a Path>,
    /// Where recordings go.
    pub folder: &'a Path,
    /// Precision, optimizer, its implementation and checkpointing, as in a request.
    pub training: Value,
    /// CUDA's number of the GPU.
    pub device: u32,
    /// The text of a `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator: &'a str,
}

/// A recorder that knows what to record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecorderReady {
    /// The card's name.
    pub gpu: String,
    /// All of its memory.
    pub total_bytes: Option<u64>,
    /// What of it is free.
    pub free_bytes: Option<u64>,
    /// Version of PyTorch.
    pub torch: String,
    /// Version of cuDNN.
    pub cudnn: Option<String>,
    /// The smallest and the largest batch that the graph holds for.
    pub least_batch: u64,
    /// The largest.
    pub most_batch: u64,
    /// What was assumed of the graph.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How three steps ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchOutcome {
    /// They finished.
    Fits,
    /// They finished, but the allocator had to free cached memory and ask again.
    FitsWithRetries,
    /// They ran out of memory.
    OutOfMemory,
}

/// A batch that was tried.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedBatch {
    /// Samples per micro-step.
    pub batch: u64,
    /// How it ended.
    pub outcome: BatchOutcome,
    /// The recording, where the steps finished.
    pub path: Option<PathBuf>,
    /// Most bytes reserved.
    pub peak_reserved_bytes: Option<u64>,
    /// Seconds that it took, the start of its process included.
    pub seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "message", rename_all = "snake_case")]
enum Order<'a> {
    Open {
        graph: Option<&'a Path>,
        folder: &'a Path,
        training: &'a Value,
        device: u32,
    },
    Record {
        batch: u64,
        accumulation: u32,
        limit_bytes: Option<u64>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
enum Answer {
    Hello { version: u32 },
    Ready(RecorderReady),
    Recorded(RecordedBatch),
    Refused { refusal: Refusal, detail: String },
}

/// A recorder at work. Blocks; dropping it ends the process and all that it started.
#[derive(Debug)]
pub struct Recorder {
    running: Running,
    deadlines: Deadlines,
}

impl Recorder {
    /// Starts a recorder and tells it what to record.
    pub fn open(
        command: &RecorderCommand,
        opening: &RecorderOpening<'_>,
        deadlines: Deadlines,
        caller: Caller<'_>,
    ) -> Result<(Recorder, RecorderReady), WorkerError> {
        let mut arguments: Vec<OsString> = vec!["-m".into(), "batchfit.recorder".into()];
        if let Some(module) = &command.module {
            // As one word each, whatever the values begin with.
            arguments.push(format!("--module={}", module.builder).into());
            arguments.push(format!("--loss={}", module.loss).into());
            let tensors = module.batch.iter();
            arguments.extend(tensors.map(|tensor| format!("--batch={tensor}").into()));
        }
        // Both names, so that neither of the caller's own counts.
        let settings = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
        let environment = settings.map(|name| (name.into(), opening.allocator.into()));
        let mut running = Running::start(&Launch {
            who: "recorder".into(),
            program: &command.python,
            arguments: &arguments,
            environment: &environment,
            starts_others: true,
            shares_stderr: false,
            longest_answer: LONGEST_ANSWER,
            ending: ENDING,
        })?;
        // Importing PyTorch takes as long as opening a device.
        match running.wait(Activity::Starting, deadlines.open, caller.cancel)? {
            Answer::Hello { version: VERSION } => {}
            Answer::Hello { version } => {
                return Err(running.crashed(Activity::Starting, Loss::Version(version, VERSION)));
            }
            other => return Err(out_of_turn(&mut running, &other, Activity::Starting)),
        }
        let mut recorder = Recorder { running, deadlines };
        let order = Order::Open {
            graph: opening.graph,
            folder: opening.folder,
            training: &opening.training,
            device: opening.device,
        };
        match recorder.ask(&order, Activity::Opening, caller.cancel)? {
            Answer::Ready(ready) => Ok((recorder, ready)),
            other => Err(out_of_turn(
                &mut recorder.running,
                &other,
                Activity::Opening,
            )),
        }
    }

    /// Records three steps at a batch.
    pub fn record(
        &mut self,
        batch: u64,
        accumulation: u32,
        limit_bytes: Option<u64>,
        cancel: &Cancel,
    ) -> Result<RecordedBatch, WorkerError> {
        let order = Order::Record {
            batch,
            accumulation,
            limit_bytes,
        };
        let activity = Activity::Recording(batch);
        match self.ask(&order, activity, cancel)? {
            Answer::Recorded(recorded) if recorded.batch == batch => Ok(recorded),
            other => Err(out_of_turn(&mut self.running, &other, activity)),
        }
    }

    fn ask(
        &mut self,
        order: &Order<'_>,
        activity: Activity,
        cancel: &Cancel,
    ) -> Result<Answer, WorkerError> {
        let within = match activity {
            Activity::Recording(_) => self.deadlines.probe,
            Activity::Starting
            | Activity::Listing
            | Activity::Opening
            | Activity::Joining
            | Activity::Probing(_)
            | Activity::AskingCudnn => self.deadlines.open,
        };
        match self.running.ask(order, activity, within, cancel)? {
            Answer::Refused { refusal, detail } => Err(WorkerError::Refused { refusal, detail }),
            answer => Ok(answer),
        }
    }
}

fn out_of_turn(running: &mut Running, answer: &Answer, activity: Activity) -> WorkerError {
    running.crashed(activity, Loss::OutOfTurn(format!("{answer:?}")))
}

//! Answers from steps that a recorder runs under PyTorch, see Note [Recorded on demand].

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::alloc::{MemoryLimit, limit_of_fraction};
use crate::fitting::{NO_RECORDER, Result};
use crate::limits::Cancel;
use crate::model::{
    DeviceChoice, Mode, ModelFiles, Parallel, Request, RequestDocument, RequestError, Variant,
};
use crate::probe::{Detail, ProbeReport, Verdict};
use crate::units::Bytes;
use crate::validate::settings;
use crate::worker::{
    BatchOutcome, GpuLease, RecordedBatch, Recorder, RecorderOpening, RecorderReady, Refusal,
    Supervisor, WorkerCommand, WorkerError, WorkerStats,
};
use crate::{Engine as _, EngineError, FitResult, GpuRun, Progress, Work};

use super::devices::resolve;
use super::engine::{FitEngine, card};
use super::probing::gpu::{gpu_work, translated};
use super::probing::runner::Observer;
use crate::fitting::recommendation::recommend::TARGET_DECIDES;

/// Most batches that are recorded for one answer; two are the least.
const MOST_RECORDED: usize = 5;

/// The batch that is recorded first: of one sample, some operators take another path.
const FIRST: u64 = 2;

/// Micro-steps that are recorded where there are several: from the second on all are alike.
const MICRO_STEPS: u32 = 2;

/// What is recorded, where the command line names a module.
const NO_GRAPH: &str = "only exported graphs are recorded: export the model with `batchfit export`, or train it from the command \
     line with `batchfit fit --module my_module:build`";

/// An answer, and the question that it is one to: about recordings, which are there now.
pub struct FromRecordings {
    /// The answer.
    pub result: FitResult,
    /// The question.
    pub request: Request,
}

/// A recorder at work for one request.
struct Session<'a> {
    engine: &'a FitEngine,
    request: &'a Request,
    observer: &'a Observer<'a>,
    recorder: Recorder,
    ready: RecorderReady,
    /// What the request names as its limit, in bytes of the recorder's card.
    limit: Option<Bytes>,
    started: Duration,
    waited: Duration,
    runs: Vec<GpuRun>,
    /// The graph and the recordings; gone with this.
    folder: tempfile::TempDir,
    /// No other process of batchfit uses the GPU meanwhile. Given back last.
    _turn: Option<GpuLease>,
}

impl FitEngine {
    /// Finds the largest batch from recordings that are made for it.
    pub fn fit_recorded(&self, request: &Request, work: &Work<'_>) -> Result<FromRecordings> {
        let observer = Observer::new(work);
        let mut session = Session::open(self, request, &observer)?;
        let asked = session.variant()?.accumulation;
        let mut accumulation = asked.min(MICRO_STEPS);
        loop {
            let mut found = session.answer(accumulation)?;
            let steps = found.result.recommendation.accumulation_steps;
            if accumulation == 1 && steps > 1 {
                // Gradients live through later forward passes: what holds them was not recorded.
                accumulation = MICRO_STEPS;
                continue;
            }
            if asked == 1 {
                // The request does not name the micro-steps that are recorded.
                let notes = &mut found.result.recommendation.notes;
                notes.retain(|note| !note.starts_with(TARGET_DECIDES));
            }
            session.sign(&mut found.result)?;
            return Ok(found);
        }
    }

    /// Runs one batch under PyTorch, or predicts it where it runs out of memory there.
    pub(super) fn probe_recorded(
        &self,
        request: &Request,
        batch: u64,
        detail: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport> {
        let progress = |progress: Progress| tracing::debug!("{}", progress.note);
        let work = Work {
            cancel,
            progress: &progress,
        };
        let observer = Observer::new(&work);
        let mut session = Session::open(self, request, &observer)?;
        let accumulation = session.variant()?.accumulation.min(MICRO_STEPS);
        let mut files = BTreeMap::new();
        if !session.record(batch, accumulation, &mut files)? {
            session.record_first(accumulation, &mut files)?;
        }
        let recorded = session.about(&files)?;
        let mut report = self.probe_in(&recorded, batch, detail, cancel)?;
        report.notes.extend(session.notes(&files)?);
        Ok(report)
    }
}

impl<'a> Session<'a> {
    fn open(
        engine: &'a FitEngine,
        request: &'a Request,
        observer: &'a Observer<'a>,
    ) -> Result<Session<'a>> {
        let invalid =
            |pointer: &str, problem: &str| EngineError::Invalid(RequestError::at(pointer, problem));
        let command = engine
            .recorder
            .as_ref()
            .ok_or_else(|| invalid("/search", NO_RECORDER))?;
        settings(request)?;
        let variant = single(request)?;
        let graph = request.exported();
        if graph.is_none() && command.module.is_none() {
            return Err(invalid("/search", NO_GRAPH));
        }
        let began = Instant::now();
        let broken = |error: std::io::Error| EngineError::DeviceFailed {
            device: request.device.to_string(),
            cause: format!("no folder for recordings: {error}"),
        };
        let folder = batchfit_platform::private_folder().tempdir();
        let folder = folder.map_err(broken)?;
        let file = graph.map(|text| {
            let path = folder.path().join("graph.json");
            fs::write(&path, text).map(|()| path)
        });
        let file = file.transpose().map_err(broken)?;
        let device = match card(request) {
            // Of whatever card is here; the answer says which.
            Some(_) => 0,
            None => {
                resolve(&request.device, || engine.catalogue().inventory())?
                    .1
                    .ordinal
            }
        };
        observer.before(0, "waiting for the GPU")?;
        let turn = wait_for_gpu(engine, device, observer)?;
        let waited = began.elapsed();
        observer.tell("starting PyTorch");
        let opening = RecorderOpening {
            graph: file.as_deref(),
            folder: folder.path(),
            training: training(variant),
            device,
            allocator: &request.allocator,
        };
        let opened =
            observer.call(|caller| Recorder::open(command, &opening, engine.deadlines, caller));
        let (recorder, ready) = opened.map_err(|error| in_our_words(error, request))?;
        let limit = match request.memory_limit {
            Some(MemoryLimit::Bytes(bytes)) => Some(bytes),
            Some(MemoryLimit::Fraction(fraction)) => ready
                .total_bytes
                .and_then(|total| limit_of_fraction(fraction, Bytes(total))),
            None => None,
        };
        Ok(Session {
            engine,
            request,
            observer,
            recorder,
            ready,
            limit,
            started: began.elapsed().saturating_sub(waited),
            waited,
            runs: Vec::new(),
            folder,
            _turn: turn,
        })
    }

    fn variant(&self) -> Result<&'a Variant> {
        single(self.request)
    }

    /// Records batch after batch until the answer is near enough to what was recorded.
    fn answer(&mut self, accumulation: u32) -> Result<FromRecordings> {
        let mut files = BTreeMap::new();
        self.record_first(accumulation, &mut files)?;
        loop {
            let request = self.about(&files)?;
            let work = Work::quiet(self.observer.cancel());
            let mut result = self.engine.answer(&request, &work)?;
            let next = result.recommendation.next_batch;
            let next =
                next.filter(|next| *next <= self.ready.most_batch && !files.contains_key(next));
            let is_recorded = match next {
                Some(next) if files.len() < MOST_RECORDED => {
                    self.record(next, accumulation, &mut files)?
                }
                Some(_) | None => false,
            };
            if !is_recorded {
                let notes = self.notes(&files)?;
                result.recommendation.notes.extend(notes);
                return Ok(FromRecordings { result, request });
            }
        }
    }

    /// Records two small batches.
    fn record_first(
        &mut self,
        accumulation: u32,
        files: &mut BTreeMap<u64, Vec<u8>>,
    ) -> Result<()> {
        let (least, most) = (self.ready.least_batch.max(1), self.ready.most_batch);
        let first = FIRST.clamp(least, most.max(least));
        let near = [first, 2 * first, first + 1, first.saturating_sub(1)];
        let mut tried = Vec::new();
        for batch in near {
            let has_enough = files.len() > 1;
            if has_enough || batch < least || batch > most || tried.contains(&batch) {
                continue;
            }
            tried.push(batch);
            self.record(batch, accumulation, files)?;
        }
        if files.len() > 1 {
            return Ok(());
        }
        let problem = match files.keys().next() {
            None => format!(
                "PyTorch runs out of memory at batch {}: nothing fits",
                tried.iter().min().unwrap_or(&first)
            ),
            Some(only) => format!(
                "PyTorch trains with batch {only} and with no other that was tried ({tried:?}); two are needed to say more"
            ),
        };
        Err(RequestError::at("/memory_limit", problem).into())
    }

    /// Records a batch; says whether it fits.
    fn record(
        &mut self,
        batch: u64,
        accumulation: u32,
        files: &mut BTreeMap<u64, Vec<u8>>,
    ) -> Result<bool> {
        self.observer
            .before(batch, &format!("recording batch {batch} under PyTorch"))?;
        let limit = self.limit.map(|limit| limit.0);
        let cancel = self.observer.cancel();
        let recorded = self.recorder.record(batch, accumulation, limit, cancel);
        let recorded = recorded.map_err(|error| in_our_words(error, self.request))?;
        self.observer.after();
        self.runs.push(GpuRun {
            batch,
            accumulation,
            verdict: match recorded.outcome {
                BatchOutcome::Fits => Verdict::Fits,
                BatchOutcome::FitsWithRetries => Verdict::FitsWithRetries,
                BatchOutcome::OutOfMemory => Verdict::OutOfMemory,
            },
            wall_ms: recorded.seconds * 1000.0,
        });
        let Some(path) = self.file_of(&recorded)? else {
            return Ok(false);
        };
        let file = fs::read(&path).map_err(|error| EngineError::DeviceFailed {
            device: self.request.device.to_string(),
            cause: format!("the recording of batch {batch} cannot be read: {error}"),
        })?;
        files.insert(batch, file);
        Ok(true)
    }

    /// The recording of a batch: a file in the recorder's folder, as long as one may be.
    fn file_of(&self, recorded: &RecordedBatch) -> Result<Option<PathBuf>> {
        /// Compressed; those of the largest models have a few MiB.
        const LARGEST: u64 = 64 << 20;
        let refused = |what: String| EngineError::DeviceFailed {
            device: self.request.device.to_string(),
            cause: format!("the recorder's file of batch {} {what}", recorded.batch),
        };
        if recorded.outcome == BatchOutcome::OutOfMemory {
            return Ok(None);
        }
        let name = recorded.path.as_deref().and_then(|path| path.file_name());
        let name = name.ok_or_else(|| refused("has no name".to_owned()))?;
        let path = self.folder.path().join(name);
        let there = fs::symlink_metadata(&path).map_err(|error| refused(error.to_string()))?;
        if !there.is_file() || there.len() > LARGEST {
            return Err(refused(format!(
                "is no file of at most {} MiB",
                LARGEST >> 20
            )));
        }
        Ok(Some(path))
    }

    /// The same question about recordings.
    fn about(&self, files: &BTreeMap<u64, Vec<u8>>) -> Result<Request> {
        /// What recordings decide, or what a graph is read by.
        const DECIDED: [&str; 5] = [
            "model",
            "training",
            "search",
            "unknown_ops",
            "chosen_percent",
        ];
        let mut members: Map<String, Value> = Map::new();
        if let Value::Object(asked) = self.request.document.members() {
            let kept = asked
                .iter()
                .filter(|(name, _)| !DECIDED.contains(&name.as_str()));
            members.extend(kept.map(|(name, value)| (name.clone(), value.clone())));
        }
        members.insert(
            "training".to_owned(),
            json!({ "accumulation": self.variant()?.accumulation }),
        );
        let files = ModelFiles::Recordings(files.values().cloned().collect(), Vec::new());
        let document = RequestDocument::from(Value::Object(members)).with_files(files);
        let request = Request::parse(document)?;
        Ok(request.with_calibration(self.request.calibration().to_vec()))
    }

    /// What the reader should know of recordings that were made for the answer.
    fn notes(&self, files: &BTreeMap<u64, Vec<u8>>) -> Result<Vec<String>> {
        let batches: Vec<String> = files.keys().map(u64::to_string).collect();
        let mut notes = vec![format!(
            "recorded at batch {} under PyTorch {} on {}",
            batches.join(", "),
            self.ready.torch,
            self.ready.gpu
        )];
        let recorder = self.engine.recorder.as_ref();
        if recorder.is_some_and(|it| it.module.is_none()) {
            let lowered = self.request.lower()?;
            notes.extend(lowered.not_understood.as_ref().map(|what| {
                format!("recorded, because batchfit has no rule for all of it: {what}")
            }));
        }
        notes.extend(self.ready.notes.iter().take(8).cloned());
        Ok(notes)
    }

    /// Writes into an answer what was asked and what it was found with.
    fn sign(&self, result: &mut FitResult) -> Result<()> {
        if let [variant] = result.variants.as_mut_slice() {
            variant.training = self.variant()?.clone();
            variant.recommendation = result.recommendation.clone();
        }
        result.environment.pytorch.clone_from(&self.ready.torch);
        if !matches!(self.request.device, DeviceChoice::Sim(_)) {
            result.environment.gpu.clone_from(&self.ready.gpu);
            result.environment.cudnn.clone_from(&self.ready.cudnn);
        }
        let cost = WorkerStats {
            workers: 1,
            start: self.started,
            waited: self.waited,
        };
        result.gpu_work = Some(gpu_work(cost, &self.runs));
        Ok(())
    }
}

/// The only variant of a request, trained.
fn single(request: &Request) -> Result<&Variant> {
    let refuse = |pointer: &str, problem: String| Err(RequestError::at(pointer, problem).into());
    let [variant] = request.variants.as_slice() else {
        let problem = format!(
            "one variant is recorded at a time, and this asks for {}; give single values",
            request.variants.len()
        );
        return refuse("/training", problem);
    };
    if variant.parallel != Parallel::None {
        let problem =
            "a recorder trains in one process on one GPU: leave out `parallel` and `world_size`";
        return refuse("/training/parallel", problem.to_owned());
    }
    // Other decay takes no memory.
    let copied = (variant.weight_decay).filter(|_| variant.decay_copies_gradients());
    let asked = json!(Variant {
        weight_decay: copied,
        ..variant.clone()
    });
    let is_sent = |name: &str| SENT.contains(&name) || ["accumulation", "mode"].contains(&name);
    let mut names = asked.as_object().into_iter().flat_map(Map::keys);
    if let Some(name) = names.find(|name| !is_sent(name)) {
        let problem = format!("a recorder trains without {name}; leave it out");
        return refuse(&format!("/training/{name}"), problem);
    }
    match variant.mode {
        Mode::Train => Ok(variant),
        Mode::Inference => refuse(
            "/training/mode",
            "training steps are recorded, not inference".to_owned(),
        ),
    }
}

/// The members of `training` that a recorder is sent.
const SENT: [&str; 5] = [
    "precision",
    "optimizer",
    "optimizer_impl",
    "checkpointing",
    "clip_grad_norm",
];

/// How the recorder is to train.
fn training(variant: &Variant) -> Value {
    let all = json!(variant);
    SENT.map(|name| (name, all[name].clone()))
        .into_iter()
        .collect()
}

/// Waits until no other process of batchfit's uses the GPU. Where batchfit itself finds none, the recorder has the word.
fn wait_for_gpu(
    engine: &FitEngine,
    device: u32,
    observer: &Observer<'_>,
) -> Result<Option<GpuLease>> {
    let launch = WorkerCommand::this_binary(engine.program.clone());
    let device = format!("cuda:{device}");
    let taken =
        observer.call(|caller| Supervisor::hold(&launch, &device, engine.deadlines, caller));
    match taken {
        Ok(turn) => Ok(Some(turn)),
        Err(WorkerError::Refused {
            refusal: Refusal::DeviceUnavailable,
            ..
        }) => Ok(None),
        Err(error) => Err(translated(error, &device)),
    }
}

/// A recorder's trouble in the words of a job.
fn in_our_words(error: WorkerError, request: &Request) -> EngineError {
    match error {
        WorkerError::Refused {
            refusal: Refusal::Invalid,
            detail,
        } => EngineError::Invalid(RequestError::at("/model", detail)),
        other => translated(other, &request.device.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_is_asked_for_what_it_is_sent_alone() {
        let refused = |training: Value| {
            let model = json!({ "preset": "resnet18" });
            let document = json!({ "model": model, "training": training });
            let request = Request::parse(RequestDocument::from(document)).unwrap();
            single(&request).err().map(|error| error.to_string())
        };
        let known = json!({ "accumulation": 2, "clip_grad_norm": 1.0, "weight_decay": 0.1 });

        assert_eq!(refused(known), None);
        let told = refused(json!({ "label_smoothing": 0.1 })).unwrap();
        assert!(told.contains("trains without label_smoothing;"), "{told}");
        let told = refused(json!({ "optimizer": "sgd", "weight_decay": 0.1 })).unwrap();
        assert!(told.contains("trains without weight_decay;"), "{told}");
    }
}

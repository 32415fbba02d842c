//! The model of a request as it is run, and what names a question by everything that its answer depends on.
//!
//! A field that is added to [`Request`] later counts, unless it is marked `serde(skip)`. The other structs are taken apart without `..`: a
//! field that is added to them does not compile until it is decided here whether it counts.

use std::io::{BufWriter, Write as _};
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::source::compare;
use super::uploaded::{Digest, hexadecimal};
use super::{DeviceChoice, HeadroomCalibration, Request, SearchMode};
use crate::device::sim::{Card, calibrations_of, installed_heuristics};
use crate::graph::{FunctionCall, Graph, Node, Value};
use crate::limits::measured;
use crate::recorded::Steps;
use crate::shape::DType;
use batchfit_models::RequestError;
use batchfit_models::exported::{Assumptions, UnknownOps};
use batchfit_models::huggingface::Run;
use batchfit_step::{Checkpointing, Mode, Optimizer, Variant};

/// The graph of a request, from when it is first asked for: megabytes are read once, for the check of the request
/// and for its answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoweredCell(pub(crate) Arc<OnceLock<Lowered>>);

/// Two requests are equal whether or not their graphs were read.
impl PartialEq for LoweredCell {
    fn eq(&self, _: &LoweredCell) -> bool {
        true
    }
}

/// What is run to find out what memory a model takes.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// The forward pass with its loss, its parameters in float32 unless it was exported otherwise.
    Graph(Arc<Graph>),
    /// Whole steps, learnt from recordings.
    Recorded(Arc<Steps>),
}

impl Workload {
    /// How large it is, in nodes and operands of a graph or events of a recording.
    pub fn size(&self) -> usize {
        match self {
            Workload::Graph(graph) => graph.size(),
            Workload::Recorded(steps) => steps.size(),
        }
    }

    /// The graph, if it is one.
    pub fn graph(&self) -> Option<&Arc<Graph>> {
        match self {
            Workload::Graph(graph) => Some(graph),
            Workload::Recorded(_) => None,
        }
    }
}

/// A model as it is run, and what had to be assumed in reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct Lowered {
    /// What is run.
    pub workload: Workload,
    /// Sentences for the answer.
    pub notes: Vec<String>,
    /// What was assumed of the model, a sentence each.
    pub assumptions: Vec<String>,
    /// What is not understood of the model, so that the graph is there for its sizes alone and steps have to be recorded.
    pub not_understood: Option<String>,
    /// Bytes of the heap that it takes, where they are counted.
    pub held: usize,
}

impl Request {
    /// Whether steps have to be recorded for an answer: because that is asked for, or because the model is not understood.
    pub fn is_to_be_recorded(&self) -> Result<bool, RequestError> {
        Ok(self.search == SearchMode::Recorded || self.lower()?.not_understood.is_some())
    }

    /// The model's forward pass; recordings have none.
    pub fn graph(&self) -> Result<Arc<Graph>, RequestError> {
        let graph = self.lower()?.workload.graph().cloned();
        graph.ok_or_else(|| RequestError::at("/model", "this needs a model, not recordings of one"))
    }

    /// The model's forward pass, with what had to be assumed in reading it. Read at the first call.
    pub fn lower(&self) -> Result<&Lowered, RequestError> {
        if let Some(lowered) = self.lowered.0.get() {
            return Ok(lowered);
        }
        let (lowered, held) = measured(|| self.read_model());
        let lowered = Lowered { held, ..lowered? };
        Ok(self.lowered.0.get_or_init(|| lowered))
    }

    /// Its model as it is run, where that was read.
    pub fn read(&self) -> Option<&Lowered> {
        self.lowered.0.get()
    }

    /// How large that is, in nodes and operands of a graph or events of a recording; in KiB that the request and it take, where that is more.
    pub fn size(&self) -> Option<usize> {
        let held = |lowered: &Lowered| lowered.held + self.document.held();
        self.read()
            .map(|lowered| lowered.workload.size().max(held(lowered) >> 10))
    }

    fn read_model(&self) -> Result<Lowered, RequestError> {
        let assumptions = Assumptions {
            unknown_ops: self.unknown_ops,
            chosen_percent: self.chosen_percent,
            // What the model's description says.
            seq_len: None,
            recorded: self.search == SearchMode::Recorded
                || (self.has_recorder
                    && self.search == SearchMode::Auto
                    && self.unknown_ops == UnknownOps::Refuse),
        };
        let mut variants = self.variants.iter();
        let run = Run {
            stored: self.stored(),
            trains: variants.clone().any(|variant| variant.mode == Mode::Train),
            is_checkpointed: variants.all(|variant| variant.checkpointing != Checkpointing::None),
            soaks: self.soak.is_some(),
        };
        let lowered = self.model.lower(assumptions, run);
        let mut lowered = lowered.map_err(|invalid| match &self.lengths {
            // The model's length is the longest of them.
            Some(lengths) if invalid.pointer == format!("/model/{}", lengths.of.name()) => {
                RequestError {
                    pointer: lengths.pointer(),
                    ..invalid
                }
            }
            Some(_) | None => invalid,
        })?;
        if let (Workload::Graph(graph), true) = (&lowered.workload, self.model.has_casts()) {
            let notes = compare(graph, &self.variants, self.param_dtype())?;
            lowered.notes.extend(notes);
            let is_own = |variant: &Variant| variant.optimizer == Optimizer::Adamw8bit;
            if self.variants.iter().any(is_own) {
                let note = "adamw_8bit is bitsandbytes' AdamW8bit; transformers' Trainer makes it with float32 moments of \
                            embeddings: adamw_bnb_8bit asks about that";
                lowered.notes.push(note.to_owned());
            }
        }
        Ok(lowered)
    }

    /// What the precision stores parameters in, where all variants agree, else float32, in which the others are traced as well;
    /// `None` for autocast alone, which takes them as they are loaded.
    pub(crate) fn stored(&self) -> Option<DType> {
        let stored = |variant: &Variant| {
            let precision = variant.precision;
            precision
                .autocast()
                .is_none()
                .then(|| precision.parameters())
        };
        let mut all = self.variants.iter().map(stored);
        let first = all.next().flatten();
        if all.all(|dtype| dtype == first) {
            first
        } else {
            Some(DType::Float32)
        }
    }
}

/// Names the rules by which this program answers: a digest of its sources, made by `build.rs`. An answer that
/// other rules made has another fingerprint, so it is never served in the place of a new one.
pub const ENGINE_DIGEST: &str = env!("BATCHFIT_ENGINE_DIGEST");

/// How much of the canonical text is collected before it is hashed: values are a few bytes each.
const BLOCK: usize = 1 << 14;

/// A digest of values, one after the other.
///
/// Each is hashed as CBOR (RFC 8949), which says where it ends and writes every number in one way only, so
/// other values never make the same bytes. What a type holds is listed by its `derive(Serialize)`: a field or
/// a variant that is added later counts without being listed here.
struct Fingerprint(BufWriter<Sha256>);

impl Fingerprint {
    fn new() -> Fingerprint {
        Fingerprint(BufWriter::with_capacity(BLOCK, Sha256::new()))
    }

    /// Appends a value.
    fn add(&mut self, value: &(impl Serialize + ?Sized)) {
        ciborium::into_writer(value, &mut self.0)
            .expect("derived implementations and hashing never fail");
    }

    /// Appends a list of values.
    fn add_all<T: Serialize>(&mut self, values: impl ExactSizeIterator<Item = T>) {
        self.add(&values.len());
        for value in values {
            self.add(&value);
        }
    }

    /// SHA-256 of it all in hexadecimal.
    fn finish(mut self) -> String {
        self.0.flush().expect("hashing never fails");
        hexadecimal(&self.0.get_ref().clone().finalize())
    }
}

impl Request {
    /// A digest of everything that the answer depends on; `lowered` is this request's model, and `card` says which
    /// GPU the request's device stands for.
    ///
    /// The graph counts, not how it was described: a preset, and the same layers, are one question. Names of
    /// values do not matter, except those of the batch, which an out-of-memory error names; paths and classes
    /// of modules do, since reports speak of paths and rules look at classes.
    pub fn fingerprint(&self, lowered: &Lowered, card: Option<&str>) -> String {
        self.fingerprint_by(ENGINE_DIGEST, (lowered, &self.model_digest(lowered)), card)
    }

    /// The same where the model's [digest](Request::model_digest) is known.
    pub fn fingerprint_with(&self, lowered: (&Lowered, &str), card: Option<&str>) -> String {
        self.fingerprint_by(ENGINE_DIGEST, lowered, card)
    }

    /// The fingerprint that a program with these rules gives.
    pub(super) fn fingerprint_by(
        &self,
        rules: &str,
        (lowered, model_digest): (&Lowered, &str),
        card: Option<&str>,
    ) -> String {
        let Lowered {
            // Its digest stands for it.
            workload: _,
            notes,
            assumptions,
            not_understood,
            held: _,
        } = lowered;
        let mut fingerprint = Fingerprint::new();
        fingerprint.add("batchfit 5");
        fingerprint.add(rules);
        fingerprint.add(self);
        fingerprint.add_all(self.machines.iter().map(|machine| machine.name));
        fingerprint.add(&calibrations(&self.device, &self.cards));
        fingerprint.add_all(self.calibration.iter().map(|calibration| {
            let HeadroomCalibration {
                strategy,
                training,
                limit,
                share,
                unconfirmed,
                halved,
                of,
                // It is told with the answer, and does not change it.
                outcomes: _,
            } = calibration;
            (strategy, training, limit, (share, unconfirmed), halved, of)
        }));
        fingerprint.add(notes);
        fingerprint.add(assumptions);
        fingerprint.add(&card);
        if let Some(lengths) = &self.lengths {
            // The graph is that of the longest alone.
            fingerprint.add(&**lengths);
            match self.model.exported() {
                Some(text) => fingerprint.add(&Digest::of(text).to_string()),
                None => fingerprint.add(&self.document.model()),
            }
        }
        if self.search == SearchMode::Recorded || not_understood.is_some() {
            // What is not understood of a graph is not in the graph as it was read.
            fingerprint.add(
                &self
                    .model
                    .exported()
                    .map(|text| Digest::of(text).to_string()),
            );
        }
        fingerprint.add(model_digest);
        fingerprint.finish()
    }
}

/// Digests of the calibrations that simulate the cards of a request, and which cuDNN is asked about the rest.
fn calibrations(device: &DeviceChoice, cards: &[String]) -> Vec<String> {
    let named = match device {
        // A kind is simulated where no machine has it.
        DeviceChoice::Sim(name) | DeviceChoice::Kind(name) => Some(name),
        DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Host(..) => None,
    };
    let found = named
        .into_iter()
        .chain(cards)
        .filter_map(|name| Card::find(name));
    let mut said: Vec<String> = found
        .flat_map(|card| calibrations_of(card.product))
        .collect();
    if let Some(heuristics) = installed_heuristics() {
        said.push(format!("asked of cuDNN {}", heuristics.version()));
    }
    said
}

impl Request {
    /// A digest of what trains: the [model](Lowered::digest), with its lengths where there are several, and with the course of its soak. What is
    /// learnt of trainings that mix lengths says nothing of one length alone.
    pub fn model_digest(&self, lowered: &Lowered) -> String {
        let several = self
            .lengths
            .as_deref()
            .filter(|lengths| lengths.each.len() > 1);
        if several.is_none() && self.soak.is_none() {
            return lowered.digest();
        }
        let mut fingerprint = Fingerprint::new();
        fingerprint.add(&lowered.digest());
        fingerprint.add(&several);
        fingerprint.add(&self.soak);
        fingerprint.finish()
    }

    /// A digest of how a variant trains, all that its step's memory follows from beside model, batch and limit.
    pub fn training_digest(&self, variant: &Variant) -> String {
        // How many micro-steps there are is decided with the batch.
        let accumulation = variant.accumulation.min(2);
        let variant = Variant {
            accumulation,
            ..variant.clone()
        };
        let mut fingerprint = Fingerprint::new();
        fingerprint.add(&variant);
        fingerprint.add(&self.allocator);
        fingerprint.add(&self.world_size);
        fingerprint.finish()[..16].to_owned()
    }
}

impl Lowered {
    /// A digest of the model alone, however it was described: what trains, not how.
    pub fn digest(&self) -> String {
        let mut fingerprint = Fingerprint::new();
        match &self.workload {
            Workload::Graph(graph) => add_graph(&mut fingerprint, graph),
            Workload::Recorded(steps) => fingerprint.add(&steps.digest),
        }
        fingerprint.finish()
    }
}

fn add_graph(fingerprint: &mut Fingerprint, graph: &Graph) {
    let Graph {
        values,
        modules,
        nodes,
        parameters,
        inputs,
        prediction,
        loss,
        loss_is_model_output,
        releases,
        functions,
        untraced_functions,
        max_batch,
    } = graph;
    fingerprint.add_all(values.iter().map(|value| {
        let Value {
            name: _,
            dtype,
            shape,
        } = value;
        (dtype, shape)
    }));
    fingerprint.add_all(nodes.iter().map(|node| {
        let Node {
            op,
            inputs,
            outputs,
            module,
            grad_enabled,
            autocast_enabled,
        } = node;
        (op, inputs, outputs, module, grad_enabled, autocast_enabled)
    }));
    fingerprint.add_all(inputs.iter().map(|input| &graph.value(input.value).name));
    fingerprint.add(modules);
    fingerprint.add(parameters);
    fingerprint.add(inputs);
    fingerprint.add(prediction);
    fingerprint.add(loss);
    fingerprint.add(loss_is_model_output);
    fingerprint.add(releases);
    fingerprint.add(untraced_functions);
    fingerprint.add(max_batch);
    fingerprint.add(&functions.len());
    for call in functions {
        let FunctionCall {
            name,
            nodes,
            inputs,
            outputs,
            saved,
            held,
            cast_inputs,
            backward_autocast,
            backward,
        } = call;
        fingerprint.add(&(
            name,
            nodes,
            inputs,
            outputs,
            saved,
            held,
            cast_inputs,
            backward_autocast,
        ));
        add_graph(fingerprint, backward);
    }
}

//! The model of a request as it is run.

use std::sync::{Arc, OnceLock};

use super::super::{Request, SearchMode};
use super::dtype;
use crate::graph::Graph;
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
            let notes = dtype::compare(graph, &self.variants)?;
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

//! Requests that are made of another one.

use serde_json::{Value, json};

use super::source::{self, LoweredCell, ModelSource};
use super::{DeviceChoice, Request, Workload};
use crate::model::uploaded::Uploads;
use batchfit_models::members::REQUEST;
use batchfit_models::{Fields, Generation, Length, RequestError};

impl Request {
    /// The same request with members changed by a JSON merge patch (RFC 7396), and no changes of it asked for. Of the model only a
    /// preset or a config can be changed; a graph that was read is not read again.
    pub fn changed(&self, patch: &Value, known_sims: &[&str]) -> Result<Request, RequestError> {
        let mut document = self.document.clone();
        document.merge(patch);
        let fields = Fields::of_object(document.members(), "", &REQUEST)?;
        let is_same_model = patch.get("model").is_none();
        let model = if is_same_model {
            self.model.clone()
        } else {
            let text = document.model().ok_or_else(|| fields.missing("model"))?;
            ModelSource::parse(&document, text, &fields.at("model"), &Uploads::default())?
        };
        let changed = Request::around(model, &fields, known_sims)?;
        let changed = Request {
            suggest: None,
            model_name: self.model_name.clone(),
            uploads: self.uploads.clone(),
            has_recorder: self.has_recorder,
            ..changed
        };
        // What was learnt was learnt of this model.
        let calibration = self.calibration.iter().filter(|_| is_same_model);
        let changed = changed.with_calibration(calibration.cloned().collect());
        let known = self.lowered.0.get().filter(|_| {
            is_same_model
                && changed.stored() == self.stored()
                && changed.search == self.search
                && changed.unknown_ops == self.unknown_ops
                && changed.chosen_percent == self.chosen_percent
        });
        if let Some(known) = known {
            if let (Workload::Graph(graph), true) = (&known.workload, changed.model.has_casts()) {
                source::compare(graph, &changed.variants)?;
            }
            drop(changed.lowered.0.set(known.clone()));
        }
        Ok(Request {
            document,
            ..changed
        })
    }

    /// The same on this device, which is one that its `device` may mean. Its document says so too.
    #[must_use]
    pub fn on(&self, device: DeviceChoice) -> Request {
        let mut document = self.document.clone();
        document.merge(&json!({ "device": device.to_string() }));
        Request {
            device,
            document,
            ..self.clone()
        }
    }

    /// The same about one of its lengths alone: what a request is whose model says it.
    pub fn at(&self, length: Length) -> Result<Request, RequestError> {
        let model = match &self.lengths {
            Some(lengths) => self.model.at(lengths.of, length, &lengths.pointer())?,
            None => self.model.clone(),
        };
        Ok(Request {
            model,
            lengths: None,
            soak: None,
            // They are changes of the whole request.
            suggest: None,
            lowered: LoweredCell::default(),
            ..self.clone()
        })
    }

    /// The same model generating text.
    pub fn generating(&self, generation: &Generation) -> Result<Request, RequestError> {
        Ok(Request {
            model: self.model.generating(generation)?,
            lowered: LoweredCell::default(),
            ..self.alone()
        })
    }

    /// The same about its longest samples, without a soak, and no changes of it asked for.
    #[must_use]
    pub fn alone(&self) -> Request {
        Request {
            lengths: None,
            soak: None,
            suggest: None,
            ..self.clone()
        }
    }
}

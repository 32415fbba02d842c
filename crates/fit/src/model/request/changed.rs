//! Requests that are made of another one.

use serde_json::{Value, json};

use super::lowered::LoweredCell;
use super::source::{self, ModelSource};
use super::{DeviceChoice, Request, RequestDocument, Workload};
use crate::model::Uploads;
use crate::units::Share;
use batchfit_models::members::{Object, REQUEST, TRAINING};
use batchfit_models::{Fields, Generation, Length, RequestError};

impl Request {
    /// The same request with members changed by a JSON merge patch (RFC 7396), and no changes of it asked for. Of the model only a
    /// preset or a config can be changed; a graph that was read is not read again.
    pub fn changed(&self, patch: &Value) -> Result<Request, RequestError> {
        let mut document = self.document.clone();
        document.merge(patch);
        self.as_written(document, patch.get("model").is_none())
    }

    /// What another document asks, about the same model where it says so.
    fn as_written(
        &self,
        document: RequestDocument,
        is_same_model: bool,
    ) -> Result<Request, RequestError> {
        let fields = Fields::of_object(document.members(), "", &REQUEST)?;
        let model = if is_same_model {
            self.model.clone()
        } else {
            let text = document.model().ok_or_else(|| fields.missing("model"))?;
            ModelSource::parse(&document, text, &fields.at("model"), &Uploads::default())?
        };
        let changed = Request::around(model, &fields)?;
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
        if is_same_model && changed.reads_as(self) {
            if let (Some(Workload::Graph(graph)), true) = (
                self.read().map(|known| &known.workload),
                changed.model.has_casts(),
            ) {
                source::compare(graph, &changed.variants, changed.param_dtype())?;
            }
            changed.share(self);
        }
        Ok(Request {
            document,
            ..changed
        })
    }

    /// Whether the graph of the same model would be read as that of another request.
    fn reads_as(&self, other: &Request) -> bool {
        self.stored() == other.stored()
            && self.search == other.search
            && self.unknown_ops == other.unknown_ops
            && self.chosen_percent == other.chosen_percent
    }

    /// Takes the graph that another request about the same model has read, if it has.
    fn share(&self, other: &Request) {
        if let Some(known) = other.read() {
            drop(self.lowered.0.set(known.clone()));
        }
    }

    /// Takes the graph of the first of these requests about the same model that has read it as this one would; whether there is one.
    pub(crate) fn shares_one_of(&self, others: &[Request]) -> bool {
        let is_alike = |other: &&Request| self.reads_as(other) && self.model == other.model;
        let alike = others.iter().find(is_alike);
        alike.inspect(|other| self.share(other)).is_some()
    }

    /// Names of the members of another request about the same model that ask for something else than this one, other than those that
    /// are `known`: not what is the default there, or the same in other words.
    pub fn differing(&self, other: &RequestDocument, known: &[&str]) -> Vec<&'static str> {
        // Where both are, how soon it is answered, and what else could be asked.
        const UNRELATED: [&str; 5] = [
            "model",
            "training",
            "priority",
            "timeout_seconds",
            "suggest",
        ];
        let asked = |document: RequestDocument| {
            let request = self.as_written(document, true).ok()?;
            Some((json!(request), request.lengths))
        };
        let mine = asked(self.document.clone());
        let differs = |within: Option<&str>, name: &str| {
            let patch = |value: &Value| match within {
                Some(object) => json!({ object: { name: value } }),
                None => json!({ name: value }),
            };
            let members = other.members();
            let value = within.map_or(Some(members), |object| members.get(object));
            let mut changed = self.document.clone();
            changed.merge(&patch(&Value::Null));
            if let Some(value) = value.and_then(|object| object.get(name)) {
                changed.merge(&patch(value));
            }
            changed != self.document && asked(changed) != mine
        };
        let of = |within, object: &'static Object| {
            let names = object.members.iter().map(|member| member.name);
            let compared = names.filter(|name| !UNRELATED.contains(name) && !known.contains(name));
            compared.filter(move |name| differs(within, name))
        };
        of(None, &REQUEST)
            .chain(of(Some("training"), &TRAINING))
            .collect()
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

    /// The same without what one other key alone asks for.
    #[must_use]
    pub fn confirmed(&self) -> Request {
        let mut confirmed = self.clone();
        for it in &mut confirmed.calibration {
            it.unconfirmed = Share(0);
        }
        confirmed
    }
}

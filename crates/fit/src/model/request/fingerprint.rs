//! Names a question by everything that its answer depends on.
//!
//! Structs are taken apart without `..`: a field that is added later does not compile until somebody decides
//! here whether it counts.

use super::{DeviceChoice, Lowered, Request, SearchMode, Taught, Workload};
use crate::device::sim::{Card, asked, calibrations_of};
use crate::graph::{FunctionCall, Graph, Node, Value};
use crate::model::fingerprint::Fingerprint;
use crate::model::uploaded::Digest;

/// Names the rules by which this program answers: a digest of its sources, made by `build.rs`. An answer that
/// other rules made has another fingerprint, so it is never served in the place of a new one.
pub const RULES: &str = env!("BATCHFIT_RULES");

impl Request {
    /// A digest of everything that the answer depends on; `lowered` is this request's model, and `card` says which
    /// GPU the request's device stands for.
    ///
    /// The graph counts, not how it was described: a preset, and the same layers, are one question. Names of
    /// values do not matter, except those of the batch, which an out-of-memory error names; paths and classes
    /// of modules do, since reports speak of paths and rules look at classes.
    pub fn fingerprint(&self, lowered: &Lowered, card: Option<&str>) -> String {
        self.fingerprint_by(RULES, (lowered, &self.model_digest(lowered)), card)
    }

    /// The same where the model's [digest](Request::model_digest) is known.
    pub fn fingerprint_with(&self, lowered: (&Lowered, &str), card: Option<&str>) -> String {
        self.fingerprint_by(RULES, lowered, card)
    }

    /// The fingerprint that a program with these rules gives.
    pub(super) fn fingerprint_by(
        &self,
        rules: &str,
        (lowered, model_digest): (&Lowered, &str),
        card: Option<&str>,
    ) -> String {
        let Request {
            // The graph stands for these.
            model,
            // It is there or not for all requests to one server.
            has_recorder: _,
            lowered: _,
            model_name: _,
            uploads: _,
            document,
            // When there is an answer, not which.
            priority: _,
            timeout_seconds: _,
            lengths,
            variants,
            device,
            cards,
            machines,
            memory_limit,
            headroom,
            host_memory,
            taught,
            target_batch,
            world_size,
            // What they come to is in the variants.
            names_strategy: _,
            trainer_wraps,
            allocator,
            search,
            compare,
            objective,
            unknown_ops,
            chosen_percent,
            suggest,
            soak,
        } = self;
        let Lowered {
            // Its digest stands for it.
            workload: _,
            notes,
            assumptions,
            not_understood,
        } = lowered;
        let mut fingerprint = Fingerprint::new();
        fingerprint.add("batchfit 5");
        fingerprint.add(rules);
        fingerprint.add(variants);
        fingerprint.add(device);
        fingerprint.add(cards);
        fingerprint.add_all(machines.iter().map(|machine| machine.name));
        fingerprint.add(&calibrations(device, cards));
        fingerprint.add(memory_limit);
        fingerprint.add(headroom);
        fingerprint.add(host_memory);
        fingerprint.add_all(taught.iter().map(|taught| {
            let Taught {
                strategy,
                share,
                replaces,
                of,
                // It is told with the answer, and does not change it.
                outcomes: _,
            } = taught;
            (strategy, share, replaces, of)
        }));
        fingerprint.add(target_batch);
        fingerprint.add(trainer_wraps);
        fingerprint.add(world_size);
        fingerprint.add(allocator);
        fingerprint.add(search);
        fingerprint.add(compare);
        fingerprint.add(objective);
        fingerprint.add(unknown_ops);
        fingerprint.add(chosen_percent);
        fingerprint.add(suggest);
        fingerprint.add(soak);
        fingerprint.add(notes);
        fingerprint.add(assumptions);
        fingerprint.add(&card);
        if let Some(lengths) = lengths {
            // The graph is that of the longest alone.
            fingerprint.add(&**lengths);
            match model.exported() {
                Some(text) => fingerprint.add(&Digest::of(text).to_string()),
                None => fingerprint.add(&document.model()),
            }
        }
        if *search == SearchMode::Recorded || not_understood.is_some() {
            // What is not understood of a graph is not in the graph as it was read.
            fingerprint.add(&model.exported().map(|text| Digest::of(text).to_string()));
        }
        fingerprint.add(model_digest);
        fingerprint.finish()
    }
}

/// Digests of the calibrations that simulate the cards of a request, and which cuDNN is asked about the rest.
fn calibrations(device: &DeviceChoice, cards: &[String]) -> Vec<String> {
    let named = match device {
        // A kind is simulated where nobody has it.
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
    if let Some(heuristics) = asked() {
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

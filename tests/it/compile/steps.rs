//! Training steps of small models, family by family: their programs agree with recorded ones in every event.

use std::collections::HashMap;
use std::io::Read;

use batchfit::compile::compile;
use batchfit::graph::Graph;
use batchfit::model::exported::{Assumptions, UnknownOps};
use batchfit::model::{
    ModelFiles, Optimizer, OptimizerImpl, Precision, Request, RequestDocument, Variant, Workload,
    exported,
};
use batchfit::program::Capability;
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use super::{H200, requests};

pub(super) fn unpacked(file: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let path = format!("{root}/tests/golden/steps/{file}.gz");
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// The variant and the batch of a recording, by the words of its header.
fn variant([precision, optimizer, accumulation]: [&str; 3]) -> Variant {
    let says = |word: &str| optimizer.contains(word);
    // Nesterov's momentum makes of copies what others make of gradients.
    let implementation = [
        ("_fused", OptimizerImpl::Fused),
        ("_for_loop", OptimizerImpl::ForLoop),
        ("_foreach", OptimizerImpl::Foreach),
    ];
    let implementation = implementation.into_iter().find(|(word, _)| says(word));
    let known = Optimizer::ALL.into_iter();
    let named = known.filter(|known| optimizer.starts_with(known.name()));
    let named = named.max_by_key(|known| known.name().len()).unwrap();
    let is_named = |known: &Precision| known.name() == precision;
    Variant {
        precision: Precision::ALL.into_iter().find(is_named).unwrap(),
        optimizer: named,
        optimizer_impl: implementation.map_or(named.implementations()[0], |(_, it)| it),
        accumulation: accumulation.parse().unwrap(),
        weight_decay: says("_decay").then(|| 0.1.into()),
        label_smoothing: says("_smoothed").then(|| 0.1.into()),
        ..Variant::default()
    }
}

/// The card of a recording, by its compute capability.
fn card(compute: &str) -> Capability {
    let (major, minor) = compute.split_once('.').unwrap();
    Capability {
        compute: (major.parse().unwrap(), minor.parse().unwrap()),
        ..H200
    }
}

/// The autocast cache lets go of its casts in the order of a hash table of addresses: where it is used, what is
/// freed between two allocations counts in any order.
pub(super) fn in_any_order(mut requests: Vec<String>) -> Vec<String> {
    let is_free = |request: &String| request.starts_with('-');
    for run in requests.chunk_by_mut(|a, b| is_free(a) && is_free(b)) {
        run.sort_unstable();
    }
    requests
}

/// Sizes that depend on values are zero on a stub, which finds nothing.
const FOUND_NOTHING: Assumptions = Assumptions {
    unknown_ops: UnknownOps::Refuse,
    chosen_percent: Some(0),
    seq_len: None,
    recorded: false,
};

#[test]
fn steps_of_small_models_allocate_and_free_what_pytorch_does() {
    compare("", 100);
}

#[test]
fn steps_with_look_ups_products_and_attention_allocate_and_free_what_pytorch_does() {
    compare("indexing/", 200);
}

#[test]
fn steps_on_volumes_signals_and_cells_allocate_and_free_what_pytorch_does() {
    compare("nets/", 10);
}

#[test]
fn steps_that_write_into_views_allocate_and_free_what_pytorch_does() {
    compare("in_place/", 60);
}

#[test]
fn steps_that_checks_of_exported_graphs_found_allocate_and_free_what_pytorch_does() {
    compare("found/", 8);
}

#[test]
fn steps_of_eight_bit_and_factored_optimizers_allocate_and_free_what_pytorch_does() {
    compare("optimizers/", 66);
}

#[test]
fn steps_with_weight_decay_and_smoothed_labels_allocate_and_free_what_pytorch_does() {
    compare("decay/", 120);
}

#[test]
fn steps_whose_loss_comes_in_chunks_allocate_and_free_what_pytorch_does() {
    compare("chunks/", 48);
}

#[test]
fn steps_of_models_that_checkpoint_convert_and_switch_off_themselves_allocate_and_free_what_pytorch_does()
 {
    compare("own/", 20);
}

#[test]
fn parameters_of_several_types_stay_what_they_are_unless_half_precision_is_asked_for() {
    let graph = graphs("own/")["in-half"].to_string();
    let notes = |precision: &str| {
        let document = RequestDocument::from(json!({ "training": { "precision": precision } }));
        let request =
            Request::parse(document.with_files(ModelFiles::Graph(graph.as_bytes().to_vec())))
                .unwrap();
        request.lower().unwrap().notes.join("")
    };

    assert_eq!(
        notes("fp32"),
        "the graph's parameters are float32 and bfloat16, as exported: fp32 is training without autocast, and converts none of them"
    );
    assert!(notes("bf16").contains("bf16 makes all of them bfloat16"));
    assert_eq!(notes("amp_bf16"), "");
}

/// A graph as it was exported, or the model of a request that builds it.
fn read(document: &Value, precision: &str) -> Result<Graph, String> {
    if document.get("hf").is_none() {
        let text = document.to_string();
        let exported = exported::parse_assuming(text.as_bytes(), FOUND_NOTHING);
        return Ok(exported.map_err(|error| error.to_string())?.graph);
    }
    let request = json!({
        "model": document, "device": "sim:h200", "training": { "precision": precision }
    })
    .to_string();
    let document = RequestDocument::from_json(request.as_bytes()).unwrap();
    let request = Request::parse(document).map_err(|error| error.to_string())?;
    let lowered = request.lower().map_err(|error| error.to_string())?;
    match &lowered.workload {
        Workload::Graph(graph) => Ok(Graph::clone(graph)),
        Workload::Recorded(_) => Err("it is recorded".to_owned()),
    }
}

/// The models of a folder, by their names.
pub(super) fn graphs(folder: &str) -> HashMap<String, Value> {
    let graphs = unpacked(&format!("{folder}graphs.json"));
    serde_json::from_str(&graphs).unwrap()
}

/// Where two sequences of requests part, and what is around that place.
pub(super) fn difference(name: &str, ours: &[String], theirs: &[String]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let at = ours.iter().zip(theirs).position(|(a, b)| a != b);
    let at = at.unwrap_or(ours.len().min(theirs.len()));
    let around =
        |requests: &[String]| requests[at.saturating_sub(9)..requests.len().min(at + 12)].join(" ");
    Some(format!(
        "{name}: event {at}\n  ours   {}\n  theirs {}",
        around(ours),
        around(theirs)
    ))
}

/// Compares all recordings of a folder, at least so many.
fn compare(folder: &str, least: usize) {
    let graphs = graphs(folder);
    let recorded = unpacked(&format!("{folder}sequences.txt"));
    let mut different = Vec::new();
    let mut compared = 0;
    for case in recorded.split("# ").filter(|case| !case.is_empty()) {
        let mut lines = case.lines();
        let header = lines.next().unwrap();
        let words: Vec<&str> = header.split(' ').collect();
        let [name, precision, optimizer, accumulation, batch, compute] = words[..] else {
            panic!("{header}")
        };
        let graph = match read(&graphs[name], precision) {
            Ok(graph) => graph,
            Err(error) => {
                different.push(format!("{header}: {error}"));
                continue;
            }
        };
        let variant = variant([precision, optimizer, accumulation]);
        let batch = batch.parse().unwrap();
        let program = compile(&graph, &variant, card(compute)).unwrap();

        let mut ours = requests(&program, batch);
        let mut theirs: Vec<String> = lines.map(ToOwned::to_owned).collect();
        if variant.precision.autocast().is_some() {
            (ours, theirs) = (in_any_order(ours), in_any_order(theirs));
        }

        compared += 1;
        different.extend(difference(header, &ours, &theirs));
    }

    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(compared >= least, "{compared} recordings were compared");
}

//! What a GPU cannot run of the graphs that are kept here: a list that may not grow unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use batchfit::compile::compile;
use batchfit::device::cuda::plan::{Target, survey};
use batchfit::graph::Graph;
use batchfit::model::{Precision, Variant, exported};

use super::H200;
use super::steps::graphs;
use crate::sample::{is_whole, sample};

/// What may differ from model to model is left out: lengths, and names of tensors.
fn kind(operation: &str) -> String {
    let mut kind = String::new();
    let mut depth = 0_u32;
    let mut is_name = false;
    for c in operation.chars() {
        match c {
            '`' => is_name = !is_name,
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            c if depth == 0 && !is_name => kind.push(c),
            _ => {}
        }
    }
    kind
}

fn note(found: &mut BTreeMap<String, BTreeSet<String>>, name: &str, graph: &Graph) {
    for precision in [Precision::Fp32, Precision::AmpBf16] {
        let variant = Variant {
            precision,
            ..Variant::default()
        };
        // Graphs of halves have no autocast.
        let Ok(program) = compile(graph, &variant, H200) else {
            continue;
        };
        for gap in survey(&program, 3, Target::of(&H200)).gaps {
            let models = found.entry(kind(&gap.operation)).or_default();
            models.insert(name.to_owned());
        }
    }
}

#[test]
fn what_a_gpu_cannot_run_is_known() {
    let mut found = BTreeMap::new();
    for folder in ["", "indexing/", "nets/", "in_place/"] {
        let graphs: BTreeMap<_, _> = graphs(folder).into_iter().collect();
        for (name, text) in sample(10, graphs) {
            if let Ok(exported) = exported::parse(text.to_string().as_bytes()) {
                note(&mut found, &name, &exported.graph);
            }
        }
    }
    for name in sample(10, crate::model::golden_names()) {
        note(&mut found, &name, &super::graph(&name));
    }
    assert!(!found.is_empty());
    if !is_whole() {
        // The snapshot is of all: nothing may be found that is not in it.
        let known =
            include_str!("snapshots/it__compile__gaps__what_a_gpu_cannot_run_is_known.snap");
        for operation in found.keys() {
            assert!(known.contains(&format!("\n{operation}: ")), "{operation}");
        }
        return;
    }
    let mut list = String::new();
    for (operation, models) in found {
        let example = models.first().map_or("", |name| name);
        writeln!(
            list,
            "{operation}: {} models, such as {example}",
            models.len()
        )
        .unwrap();
    }
    insta::assert_snapshot!(list);
}

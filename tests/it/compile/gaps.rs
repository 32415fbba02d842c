//! What a GPU cannot run of the graphs that are kept here: a list that may not grow unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use batchfit::compile::compile;
use batchfit::device::cuda::plan::{Target, survey};
use batchfit::graph::Graph;
use batchfit::model::{Precision, Variant, exported};

use super::H200;
use super::steps::graphs;

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
    let mut count = 0;
    for folder in ["", "indexing/", "nets/", "in_place/"] {
        for (name, text) in graphs(folder) {
            if let Ok(exported) = exported::parse(text.to_string().as_bytes()) {
                note(&mut found, &name, &exported.graph);
                count += 1;
            }
        }
    }
    for name in crate::model::golden_names() {
        note(&mut found, &name, &super::graph(&name));
        count += 1;
    }
    assert!(count > 150, "only {count} graphs were looked at");

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

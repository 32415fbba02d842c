//! What lies beside a graph: a table of lifetimes, and an archive around both.

use super::*;

/// A graph of the corpus with a side table, as JSON.
fn with_table() -> Value {
    let mut text = Vec::new();
    let golden = golden("gpt2-tiny-table");
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*golden), &mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn a_side_table_says_when_values_die() {
    let document = with_table();
    let graph = exported::parse_value(&document).unwrap().graph;

    assert_eq!(graph.lifetimes(), Lifetimes::Recorded);
    let releases = graph.releases.as_ref().unwrap();
    let name = |id: &ValueId| graph.value(*id).name.clone();
    let dropout = graph
        .nodes
        .iter()
        .position(|node| name(&node.outputs[0]) == "dropout_1")
        .unwrap();
    // The attention's locals go when it returns, in the order in which they were bound.
    let gone: Vec<String> = releases.after[&dropout].iter().map(name).collect();
    assert_eq!(gone[..3], ["view_7", "addmm_1", "transpose_2"]);
    let checked = &releases.packed_checks[0];
    assert_eq!(name(&checked.1), "expand");
    assert_eq!(name(&graph.nodes[checked.0].outputs[0]), "expand");
}

#[test]
fn a_graph_without_a_side_table_goes_by_rules() {
    assert_eq!(read("gpt2").lifetimes(), Lifetimes::Assumed);
}

#[test]
fn side_tables_that_do_not_fit_are_refused() {
    let mut summary = String::new();
    let mut refuse = |pointer: &str, value: Value| {
        let mut document = with_table();
        document["batchfit"]["dtypes_of"] = json!([]);
        *document.pointer_mut(pointer).unwrap() = value;
        let error = exported::parse_value(&document).unwrap_err();
        writeln!(summary, "{}: {error}", error.pointer()).unwrap();
    };
    refuse("/batchfit/version", json!(3));
    refuse("/batchfit/version", json!("1"));
    refuse("/batchfit", json!([]));
    refuse("/batchfit/operators", json!(7));
    refuse("/batchfit/values", json!(7));
    refuse("/batchfit/releases", json!("none"));
    refuse("/batchfit/releases/0", json!([]));
    refuse("/batchfit/releases/0", json!([10_000, 1]));
    refuse("/batchfit/releases/0/1", json!(10_000));
    refuse("/batchfit/releases/0", json!([3, 1]));
    refuse("/batchfit/packed_checks/0", json!([3]));
    refuse("/batchfit/packed_checks/0", json!([3, 10_000]));
    refuse("/batchfit/without_autocast", json!([[3, 10_000]]));
    refuse("/batchfit/dtypes_of", json!([[3, 1, 1]]));
    refuse("/batchfit/dtypes_of", json!([[3, 1], []]));
    refuse("/batchfit/dtypes_of", json!([[10_000]]));
    refuse("/batchfit/dtypes_of", json!([[3, 10_000]]));
    insta::assert_snapshot!(summary);
}

/// What `torch.export.save` wrote; the first weight lies in bytes 64 to 184.
fn archive() -> Vec<u8> {
    let path = "/tests/golden/exported/mlp-small.pt2";
    std::fs::read(format!("{}{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn weights_in_an_archive_are_not_read() {
    let mut damaged = archive();
    damaged[64..184].fill(0xff);

    let graph = exported::parse(&damaged).unwrap().graph;

    assert_eq!(graph.nodes.len(), 4);
    assert_eq!(graph, exported::parse(&archive()).unwrap().graph);
}

#[test]
fn archives_that_hold_not_one_model_are_refused() {
    let holding = |names: &[&str]| {
        let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for name in names {
            let plain = zip::write::SimpleFileOptions::default();
            writer.start_file(*name, plain).unwrap();
            std::io::Write::write_all(&mut writer, b"{}").unwrap();
        }
        writer.finish().unwrap().into_inner()
    };
    let cut = archive()[..2000].to_vec();
    let mut summary = String::new();
    for file in [
        holding(&["net/data.pkl", "net/supermodels/model.json"]),
        holding(&["net/models/model.json", "other/models/model.json"]),
        holding(&["models/model.json"]),
        cut,
    ] {
        writeln!(summary, "{}", exported::parse(&file).unwrap_err()).unwrap();
    }
    insta::assert_snapshot!(summary);
}

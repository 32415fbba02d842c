//! Operations one at a time: the step programs of tiny models agree with recorded ones in every event.

use std::collections::HashMap;
use std::io::Read;

use batchfit::compile::compile;
use batchfit::model::{Optimizer, Precision, Variant, exported};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::{H200, requests};

fn unpacked(file: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let path = format!("{root}/tests/golden/operations/{file}.gz");
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

#[test]
fn operations_allocate_and_free_what_pytorch_does() {
    let graphs = unpacked("graphs.json");
    let graphs: HashMap<String, Value> = serde_json::from_str(&graphs).unwrap();
    let mut different = Vec::new();
    let recorded = unpacked("sequences.txt");
    let cases: Vec<&str> = recorded
        .split("# ")
        .filter(|case| !case.is_empty())
        .collect();
    for case in &cases {
        let mut lines = case.lines();
        let (name, precision) = lines.next().unwrap().split_once(' ').unwrap();
        let variant = Variant {
            precision: match precision {
                "fp32" => Precision::Fp32,
                _ => Precision::AmpFp16,
            },
            optimizer: Optimizer::Sgd,
            ..Variant::default()
        };
        let graph = exported::parse_value(&graphs[name]).unwrap().graph;

        let ours = requests(&compile(&graph, &variant, H200).unwrap(), 4);

        let theirs: Vec<&str> = lines.collect();
        if ours != theirs {
            let at = ours.iter().zip(&theirs).position(|(a, b)| a != b);
            let at = at.unwrap_or(ours.len().min(theirs.len()));
            different.push(format!(
                "{name} {precision}: event {at} is {:?}, not {:?}",
                ours.get(at),
                theirs.get(at)
            ));
        }
    }

    assert!(cases.len() > 180, "{} cases were read", cases.len());
    assert!(different.is_empty(), "{}", different.join("\n"));
}

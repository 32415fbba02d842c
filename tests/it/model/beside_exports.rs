//! Models that are built beside the exporter's graphs of the same models: their step programs are equal, instruction by
//! instruction.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use batchfit::compile::compile;
use batchfit::graph::Graph;
use batchfit::model::{Checkpointing, Precision, Request, RequestDocument, Variant, exported};
use batchfit::program::{Capability, Instruction, Program, TensorId};
use serde_json::{Value, json};

use crate::compile::H200;
use crate::sample::sample;

/// The batch at which sizes are compared.
const BATCH: u64 = 3;

/// How many instructions are shown on both sides of the first that differs.
const SHOWN: usize = 6;

/// Compares the models of a folder whose names begin so: NAME.json describes one as a request does, with the dtype of its
/// parameters if that is not float32, and NAME.graph.json.gz is the exporter's graph.
pub(super) fn assert_all_equal(folder: &str, only: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(folder);
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".json").map(str::to_owned)
        })
        .filter(|name| name.starts_with(only))
        .collect();
    names.sort();
    assert!(!names.is_empty());
    // What somebody asked for alone is compared whole.
    let step = if only.is_empty() { 16 } else { 1 };
    let failures: Vec<String> = sample(step, &names)
        .filter_map(|name| {
            let failure = compare(&folder, name, H200).err()?;
            Some(format!("{name}: {failure}"))
        })
        .collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn compare(folder: &Path, name: &str, capability: Capability) -> Result<(), String> {
    let read = |path: String| fs::read(folder.join(path)).map_err(|e| e.to_string());
    let model: Value =
        serde_json::from_slice(&read(format!("{name}.json"))?).map_err(|e| e.to_string())?;
    let precision = match model.get("param_dtype") {
        Some(Value::String(dtype)) if dtype == "fp16" => Precision::Fp16,
        Some(_) => Precision::Bf16,
        None => Precision::Fp32,
    };
    let ours = built(&model, precision)?;
    let file = read(format!("{name}.graph.json.gz"))?;
    let theirs = exported::parse(&file)
        .map_err(|error| error.to_string())?
        .graph;
    let paths = |graph: &Graph| -> Vec<String> {
        let parameters = graph.parameters.iter();
        parameters
            .map(|p| format!("{} {:?} {:?}", p.path, p.kind, graph.value(p.value).shape))
            .collect()
    };
    let (mine, exported) = (paths(&ours), paths(&theirs));
    if let Some((a, b)) = mine.iter().zip(&exported).find(|(a, b)| a != b) {
        return Err(format!("parameter {a} is {b} in the export"));
    }
    if mine.len() != exported.len() {
        return Err(format!("{} parameters, not {}", mine.len(), exported.len()));
    }
    for variant in variants(precision) {
        let ours = compile(&ours, &variant, capability);
        let theirs = compile(&theirs, &variant, capability);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                if let Some(difference) = difference(&ours, &theirs) {
                    return Err(format!("{variant}: {difference}"));
                }
            }
            (Err(ours), Err(theirs)) if ours.to_string() == theirs.to_string() => {}
            (ours, theirs) => {
                let text = |result: Result<Program, _>| {
                    result
                        .map(|_| ())
                        .map_err(|e: batchfit::compile::CompileError| e.to_string())
                };
                return Err(format!(
                    "{variant}: {:?}, exported {:?}",
                    text(ours),
                    text(theirs)
                ));
            }
        }
    }
    Ok(())
}

fn built(model: &Value, precision: Precision) -> Result<Arc<Graph>, String> {
    let document = json!({ "model": model, "training": { "precision": precision.name() } });
    let request = Request::parse(RequestDocument::from(document));
    let graph = request.and_then(|request| request.graph());
    graph.map_err(|invalid| format!("{}: {}", invalid.pointer, invalid.problem))
}

/// What a program does, a line each, with tensors numbered in the order of their allocations.
fn lines(program: &Program) -> Vec<String> {
    let bytes = program.bytes_at(BATCH);
    let mut numbers: HashMap<TensorId, usize> = HashMap::new();
    let mut lines = Vec::new();
    for instruction in program.unrolled(2) {
        lines.push(match instruction {
            Instruction::Allocate(id) => {
                let number = numbers.len();
                numbers.insert(*id, number);
                let tensor = program.tensor(*id);
                format!("{number} = {:?} {}", tensor.category, bytes[id.0 as usize])
            }
            Instruction::Free(id) => format!("free {}", numbers[id]),
            Instruction::Launch(call) => {
                let name = |id: TensorId| numbers.get(&id).copied();
                let read: Vec<_> = call.inputs.iter().map(|view| name(view.tensor)).collect();
                let made: Vec<_> = call.outputs.iter().map(|view| name(view.tensor)).collect();
                format!("{:?} {read:?} -> {made:?}", call.kernel)
            }
        });
    }
    lines
}

/// What each allocation is for, as [`lines`] numbers them.
fn labels(program: &Program) -> Vec<String> {
    let allocated = program
        .unrolled(2)
        .filter_map(|instruction| match instruction {
            Instruction::Allocate(id) => Some(program.tensor(*id).label.to_string()),
            _ => None,
        });
    allocated.collect()
}

fn difference(ours: &Program, theirs: &Program) -> Option<String> {
    let (mine, exported) = (lines(ours), lines(theirs));
    if mine == exported {
        return None;
    }
    let same = mine.iter().zip(&exported).take_while(|(a, b)| a == b);
    let first = same.count();
    let shown = |lines: &[String], program: &Program| {
        let labels = labels(program);
        let from = first.saturating_sub(SHOWN);
        let lines = lines.iter().skip(from).take(2 * SHOWN);
        let named = lines.map(|line| {
            let number = line.split(' ').next().and_then(|n| n.parse::<usize>().ok());
            let label = number
                .and_then(|n| labels.get(n))
                .filter(|_| line.contains(" = "));
            format!("    {line:.150} {}\n", label.map_or("", String::as_str))
        });
        named.collect::<String>()
    };
    Some(format!(
        "instruction {first} of {} differs\n  built:\n{}  exported ({} instructions):\n{}",
        mine.len(),
        shown(&mine, ours),
        exported.len(),
        shown(&exported, theirs)
    ))
}

fn variants(precision: Precision) -> Vec<Variant> {
    let plain = Variant {
        precision,
        ..Variant::default()
    };
    if precision != Precision::Fp32 {
        return vec![plain];
    }
    vec![
        plain.clone(),
        Variant {
            precision: Precision::AmpFp16,
            ..plain.clone()
        },
        Variant {
            precision: Precision::AmpBf16,
            accumulation: 2,
            ..plain.clone()
        },
        Variant {
            checkpointing: Checkpointing::PerBlock,
            ..plain
        },
    ]
}

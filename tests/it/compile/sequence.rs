//! Aligns a compiled program's allocations and frees with a recorded trace, event by event.

use std::io::Read;

use batchfit::compile::compile;
use batchfit::device::Capability;
use batchfit::model::{
    Checkpointing, Mode, Optimizer, OptimizerImpl, Precision, Variant, exported,
};
use batchfit::program::{Instruction, Program, Size};

const H200: Capability = Capability {
    compute: (9, 0),
    multiprocessors: 132,
    threads_per_multiprocessor: 2048,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Alloc(u64),
    Free(u64),
}

fn read_gz(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

fn recorded(path: &str) -> Vec<Event> {
    let text = String::from_utf8(read_gz(path)).unwrap();
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let action = words.next()?;
            let size = words.nth(1)?.parse().ok()?;
            match action {
                "alloc" => Some(Event::Alloc(size)),
                "free_requested" => Some(Event::Free(size)),
                _ => None,
            }
        })
        .collect()
}

fn size(program: &Program, id: batchfit::program::TensorId, batch: u64) -> Option<u64> {
    match &program.tensor(id).size {
        Size::Elements(n, dtype) => Some(n.at(batch) * dtype.size()),
        Size::Fixed(bytes) => Some(bytes.0),
        Size::Function(f) => Some((f.bytes)(batch)),
        Size::Workspace(_) => None,
    }
}

fn without_packed_check(trace: Vec<Event>, b: u64) -> Vec<Event> {
    let start = [Event::Alloc(8 * b), Event::Alloc(8 * b * 1025)];
    let mut kept = Vec::new();
    let mut i = 0;
    while i < trace.len() {
        if trace[i..].starts_with(&start) {
            i += 16;
        } else {
            kept.push(trace[i]);
            i += 1;
        }
    }
    kept
}

/// Prints the first divergence; gives the number of matched events and the recorded total.
fn diff(model: &str, trace: &str, variant: &Variant, batch: u64) -> (usize, usize) {
    let root = std::env::var("TRUTH").unwrap();
    let graph = exported::parse(&read_gz(&format!("{root}/exported/{model}.json.gz"))).unwrap();
    let program = compile(&graph.graph, variant, H200).unwrap();
    let trace = recorded(&format!("{root}/traces/{trace}.txt.gz"));
    let trace = without_packed_check(trace, batch);
    let mut at = 0;
    let mut history: Vec<String> = Vec::new();
    let sections = std::iter::once(program.construction.as_slice()).chain(program.steps(3));
    for (section, instructions) in sections.enumerate() {
        for instruction in instructions {
            let (id, alloc) = match instruction {
                Instruction::Allocate(id) => (*id, true),
                Instruction::Free(id) => (*id, false),
                Instruction::Launch(_) => continue,
            };
            let label = &program.tensor(id).label;
            let Some(bytes) = size(&program, id, batch) else {
                // A convolution's workspace: whatever was allocated and freed at once.
                if alloc
                    && model != "cifarnet"
                    && let (Some(Event::Alloc(a)), Some(Event::Free(b))) =
                        (trace.get(at), trace.get(at + 1))
                    && a == b
                {
                    at += 2;
                }
                continue;
            };
            if bytes == 0 {
                continue;
            }
            let ours = if alloc {
                Event::Alloc(bytes)
            } else {
                Event::Free(bytes)
            };
            if trace.get(at) != Some(&ours) {
                println!(
                    "--- {model}: section {section} event {at} of {}: ours {ours:?} {label}",
                    trace.len()
                );
                for line in history.iter().rev().take(12).rev() {
                    println!("    {line}");
                }
                for (i, theirs) in trace.iter().enumerate().skip(at).take(12) {
                    println!("    theirs {i} {theirs:?}");
                }
                return (at, trace.len());
            }
            history.push(format!("{at} {ours:?} {label}"));
            at += 1;
        }
    }
    println!("--- {model}: matched {at} of {}", trace.len());
    (at, trace.len())
}

#[test]
fn sequences() {
    let base = Variant {
        accumulation: 1,
        ..Variant::default()
    };
    let sgd = Variant {
        optimizer: Optimizer::SgdMomentum,
        ..base.clone()
    };
    diff("cifarnet", "trace-cifarnet-fp32-sgd-b512", &sgd, 512);
    diff("resnet50", "trace-resnet50-fp32-sgd-b64", &sgd, 64);
    let amp = Variant {
        precision: Precision::AmpFp16,
        ..sgd.clone()
    };
    diff("resnet50", "trace-resnet50-ampfp16-sgd-b250", &amp, 250);
    let bf16 = Variant {
        precision: Precision::AmpBf16,
        ..base.clone()
    };
    diff("gpt2", "trace-gpt2-ampbf16-adamw-b4", &bf16, 4);
    let _ = (Checkpointing::None, Mode::Train, OptimizerImpl::Foreach);
}

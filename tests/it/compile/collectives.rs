//! What ranks send each other: all gradients, once in each step.

use std::sync::Arc;

use batchfit::compile::{Launches, Process, compile, compile_process};
use batchfit::device::cuda::plan::{Target, survey};
use batchfit::graph::{Graph, ParameterKind};
use batchfit::limits::Cancel;
use batchfit::model::{Parallel, Variant, exported};
use batchfit::program::{Call, Collective, Instruction, Kernel, Program, Reduction, View};
use serde_json::Value;

use super::H200;
use super::parallel::variant;
use super::steps::{graphs, unpacked};

/// The recorded cases under DDP: names, graphs and variants.
fn cases() -> Vec<(String, Graph, Variant)> {
    let graphs = graphs("parallel/");
    let recorded = unpacked("parallel/sequences.txt");
    let cases = recorded.split("# ").filter(|case| !case.is_empty());
    let headers = cases.map(|case| case.lines().next().unwrap());
    headers
        .map(|header| serde_json::from_str::<Value>(header).unwrap())
        .filter(|header| header["parallel"]["kind"] == "ddp")
        .map(|header| {
            let text = graphs[header["model"].as_str().unwrap()].to_string();
            let graph = exported::parse(text.as_bytes()).unwrap().graph;
            let name = header["case"].as_str().unwrap().to_owned();
            (name, graph, variant(&header))
        })
        .collect()
}

/// Launches of the last distinct step, each as often as it runs.
fn calls(program: &Program) -> Vec<&Call> {
    let sections = program.steps.last().unwrap().iter();
    let instructions = sections
        .flat_map(|section| std::iter::repeat_n(&section.instructions, section.times as usize));
    let calls = instructions.flatten().map(|instruction| match instruction {
        Instruction::Launch(call) => Some(&**call),
        Instruction::Allocate(_) | Instruction::Free(_) => None,
    });
    calls.flatten().collect()
}

fn elements(view: &View) -> u64 {
    view.shape.iter().map(|length| length.at(1)).product()
}

fn trained(graph: &Graph) -> Vec<u64> {
    let parameters = graph.parameters.iter();
    parameters
        .filter(|parameter| parameter.kind == ParameterKind::Trained)
        .map(|parameter| {
            let shape = &graph.value(parameter.value).shape;
            shape.iter().map(|length| length.at(1)).product()
        })
        .collect()
}

#[test]
fn each_step_reduces_every_gradient_once() {
    let cases = cases();
    assert!(cases.len() >= 18, "{}", cases.len());
    for (name, graph, variant) in cases {
        let program = compile(&graph, &variant, H200).unwrap();
        let mean = Kernel::Collective(Collective::AllReduce(Reduction::Mean));
        let reduced = calls(&program).into_iter();
        let reduced = reduced.filter(|call| call.kernel == mean);

        let sent: u64 = reduced.map(|call| elements(&call.inputs[0])).sum();

        let all: u64 = trained(&graph).iter().sum();
        let times = match &variant.parallel {
            Parallel::Ddp(options) if options.sync_every_micro_step => variant.accumulation,
            _ => 1,
        };
        assert_eq!(sent, all * u64::from(times), "{name}");
    }
}

#[test]
fn a_gpu_can_run_what_ranks_do_together() {
    for (name, graph, variant) in cases() {
        let program = compile(&graph, &variant, H200).unwrap();

        let gaps = survey(&program, 3, Target::of(&H200)).gaps;

        let known = |operation: &str| operation.starts_with("ClipGradNorm");
        let unknown: Vec<_> = gaps.iter().filter(|gap| !known(&gap.operation)).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
    }
}

#[test]
fn each_rank_updates_its_part_and_sends_it_to_all_others() {
    let sharded = cases().into_iter();
    let sharded: Vec<_> = sharded
        .filter(|(_, _, variant)| matches!(variant.parallel, Parallel::Zero1(_)))
        .collect();
    assert!(sharded.len() >= 4, "{}", sharded.len());
    for (name, graph, variant) in sharded {
        let graph = Arc::new(graph);
        let of_rank = |rank| {
            let process = Process {
                rank,
                ..Process::default()
            };
            compile_process(
                &graph,
                &variant,
                (H200, process),
                Launches::Kept,
                &Cancel::NEVER,
            )
            .unwrap()
        };
        let programs = [of_rank(0), of_rank(1)];
        let changes = |program: &Program| -> Vec<String> {
            let is_update = |call: &&&Call| {
                matches!(
                    call.kernel,
                    Kernel::Adam { .. } | Kernel::Sgd | Kernel::SgdMomentum { .. }
                )
            };
            let calls = calls(program);
            let updated = calls.iter().filter(is_update);
            updated
                .map(|call| program.tensor(call.outputs[0].tensor).label.to_string())
                .collect()
        };
        let sends = |program: &Program, from: u64| -> Vec<String> {
            let broadcast = Kernel::Collective(Collective::Broadcast { root: from });
            let parameter = |call: &&Call| {
                if call.kernel != broadcast {
                    return None;
                }
                let label = &program.tensor(call.outputs[0].tensor).label;
                let is_trained = graph.parameters.iter().any(|parameter| {
                    parameter.kind == ParameterKind::Trained && *parameter.path == **label
                });
                is_trained.then(|| label.to_string())
            };
            calls(program).iter().filter_map(parameter).collect()
        };

        let updated = [changes(&programs[0]), changes(&programs[1])];
        let mut all: Vec<&String> = updated.iter().flatten().collect();
        all.sort();
        all.dedup();

        assert_eq!(all.len(), trained(&graph).len(), "{name}");
        for program in &programs {
            for (rank, updated) in (0..).zip(&updated) {
                assert!(!updated.is_empty(), "{name}");
                assert_eq!(&sends(program, rank), updated, "{name}");
            }
        }
    }
}

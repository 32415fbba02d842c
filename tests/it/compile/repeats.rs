//! Micro-steps that repeat, against micro-steps that are compiled one by one.

use std::collections::HashMap;
use std::sync::Arc;

use batchfit::compile::{compile, compile_unrolled};
use batchfit::graph::Graph;
use batchfit::model::{
    Checkpointing, Ddp, FullyShard, MixedPrecision, Optimizer, OptimizerImpl, Parallel, Precision,
    Variant,
};
use batchfit::program::{
    Call, Category, ConvolutionShape, Instruction, Kernel, Program, Size, TensorId,
};
use batchfit::shape::DType;

use super::{H200, graph};
use crate::sample::sample;

/// What happens, with tensors named by when they were allocated.
#[derive(Debug, PartialEq)]
enum MemoryEvent {
    Allocated(
        Option<ConvolutionShape>,
        [Option<u64>; 3],
        Category,
        Arc<str>,
    ),
    Launched(Call),
    Freed(u32),
}

fn happenings(program: &Program) -> impl Iterator<Item = MemoryEvent> + '_ {
    let mut names: HashMap<TensorId, TensorId> = HashMap::new();
    let mut allocated = 0;
    program
        .unrolled(2)
        .map(move |instruction| match instruction {
            Instruction::Allocate(id) => {
                names.insert(*id, TensorId(allocated));
                allocated += 1;
                let tensor = program.tensor(*id);
                let shape = match program.size(*id) {
                    Size::Workspace(id) => Some(*program.convolution(*id)),
                    Size::Elements(..) | Size::Fixed(_) | Size::Function(_) => None,
                };
                // Rules for sizes are equal when they give the same.
                let bytes =
                    [1, 7, 64].map(|batch| program.size(*id).at(batch).map(|bytes| bytes.0));
                MemoryEvent::Allocated(shape, bytes, tensor.category, Arc::clone(&tensor.label))
            }
            Instruction::Free(id) => MemoryEvent::Freed(names[id].0),
            Instruction::Launch(call) => {
                let mut call = Call::clone(call);
                for view in call.inputs.iter_mut().chain(&mut call.outputs) {
                    view.tensor = names[&view.tensor];
                }
                call.workspace = call.workspace.map(|id| names[&id]);
                MemoryEvent::Launched(call)
            }
        })
}

fn assert_repeats(graph: &Graph, variant: &Variant) {
    let repeated = compile(graph, variant, H200).unwrap();
    let one_by_one = compile_unrolled(graph, variant, H200);

    let (mut ours, mut theirs) = (happenings(&repeated), happenings(&one_by_one));
    let mut index = 0;
    loop {
        let (ours, theirs) = (ours.next(), theirs.next());
        assert_eq!(ours, theirs, "event {index} of {variant}");
        if ours.is_none() {
            return;
        }
        index += 1;
    }
}

#[test]
fn the_second_micro_step_is_every_later_one() {
    let names = [
        "cifarnet",
        "mobilenetv2",
        "unet",
        "bert-seq128",
        "gpt2-tiny-table",
        "llama-tiny-table",
        "mixtral-tiny",
        "t5-tiny",
        "family-attention",
        "family-lookup",
        "family-pointwise",
    ];
    let precisions = [Precision::Fp32, Precision::AmpFp16, Precision::AmpBf16];
    for (index, name) in names.into_iter().enumerate() {
        let graph = graph(name);
        let accumulation = 4 + u32::try_from(index % 3).unwrap();
        for precision in sample(3, precisions.into_iter().cycle().skip(index).take(3)) {
            let variant = Variant {
                precision,
                accumulation,
                ..Variant::default()
            };
            assert_repeats(&graph, &variant);
        }
    }
}

#[test]
fn checkpoints_and_other_optimizers_repeat_too() {
    let graph = graph("gpt2-tiny-table");
    for checkpointing in [Checkpointing::None, Checkpointing::PerBlock] {
        for optimizer in Optimizer::ALL {
            let variant = Variant {
                precision: Precision::AmpFp16,
                optimizer,
                optimizer_impl: OptimizerImpl::Fused,
                checkpointing: checkpointing.clone(),
                accumulation: 5,
                ..Variant::default()
            };
            assert_repeats(&graph, &variant);
        }
    }
}

#[test]
fn a_program_of_many_micro_steps_is_as_large_as_one_of_two() {
    let graph = graph("cifarnet");
    let program = |accumulation| {
        let variant = Variant {
            accumulation,
            ..Variant::default()
        };
        compile(&graph, &variant, H200).unwrap()
    };

    let (few, many) = (program(2), program(65_536));

    assert_eq!(few.tensors.len(), many.tensors.len());
    let later: Vec<u32> = many.steps[1].iter().map(|section| section.times).collect();
    assert_eq!(later, [1, 65_535, 1]);
    let length = |program: &Program| program.unrolled(1).count() as u64;
    assert_eq!(program(7).unrolled_length(1), length(&program(7)));
}

/// Buffers that are positions in a table start with positions all over it: gradients of a table all of whose rows but one
/// are never looked up are added up one after the other, which no real model's are.
#[test]
fn relative_positions_of_windows_start_all_over_their_table() {
    let graph = graph("../presets/swin_t-wide.graph");
    let program = compile(&graph, &Variant::default(), H200).unwrap();

    let launches = program
        .unrolled(1)
        .filter_map(|instruction| match instruction {
            Instruction::Launch(call) => Some(call),
            Instruction::Allocate(_) | Instruction::Free(_) => None,
        });
    let mut tables = 0;
    for call in launches {
        let Some(output) = call.outputs.first() else {
            continue;
        };
        let label = &program.tensor(output.tensor).label;
        if label.ends_with("relative_position_index") {
            // A window of 7 x 7 has 13 x 13 relative positions.
            assert_eq!(call.kernel, Kernel::RandomBelow(169));
            tables += 1;
        }
    }
    assert_eq!(tables, 12);
}

/// Where every micro-step sends gradients, buckets are made again in the second of them, once; where the last one alone does, in the
/// second step.
#[test]
fn buckets_are_rebuilt_after_the_first_messages() {
    let graph = graph("family-pointwise");
    let rebuilt_in = |sync_every_micro_step| {
        let parallel = Parallel::Ddp(Ddp {
            world_size: 2,
            sync_every_micro_step,
            ..Ddp::default()
        });
        let variant = Variant {
            accumulation: 9,
            parallel,
            ..Variant::default()
        };
        let program = compile(&graph, &variant, H200).unwrap();
        assert!(program.last_step_is_closed());
        let is_bucket = |instruction: &Instruction| {
            matches!(instruction, Instruction::Allocate(id)
                if program.tensor(*id).label.contains("bucket"))
        };
        let steps = program.steps.iter().map(|step| {
            let times: u32 = step.iter().map(|section| section.times).sum();
            assert!((9..=10).contains(&times), "{times}");
            let mut sections = step.iter();
            sections.position(|section| section.instructions.iter().any(is_bucket))
        });
        steps.collect::<Vec<_>>()
    };

    assert_eq!(rebuilt_in(true)[..3], [Some(1), None, None]);
    assert_eq!(rebuilt_in(false)[..3], [None, Some(0), None]);
}

/// Gradients that are kept whole, or reduced in each micro-step: every step ends with the tensors that it began with, and a micro-step is
/// compiled once however often it runs.
#[test]
fn sharded_steps_are_closed() {
    let graph = graph("family-pointwise");
    for sync_every_micro_step in [false, true] {
        for reduce_dtype in [None, Some(DType::Float32)] {
            let mixed_precision = MixedPrecision {
                param_dtype: Some(DType::BFloat16),
                reduce_dtype,
                output_dtype: None,
            };
            let parallel = Parallel::Fsdp2(FullyShard {
                world_size: 8,
                mixed_precision,
                sync_every_micro_step,
                ..FullyShard::default()
            });
            let variant = Variant {
                accumulation: 9,
                parallel,
                ..Variant::default()
            };
            let program = compile(&graph, &variant, H200).unwrap();

            assert!(program.last_step_is_closed());
            let times = program.steps[1].iter().map(|section| section.times);
            assert_eq!(
                times.sum::<u32>(),
                if sync_every_micro_step { 10 } else { 9 }
            );
        }
    }
}

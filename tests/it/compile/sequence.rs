//! The sequence diff: allocations and frees of a compiled program beside those that PyTorch made,
//! aligned event by event (kind and requested size).
//!
//! What a library asks for is not the compiler's to know: a convolution's workspace matches whatever was
//! allocated and freed at once. All else must be equal. The number of unmatched events is asserted, and
//! may only go down.

use std::io::Read;

use batchfit::compile::compile;
use batchfit::model::{Mode, Optimizer, OptimizerImpl, Precision, Variant};
use batchfit::program::{Capability, Program};
use batchfit::report::{Requested, unmatched};
use batchfit::units::Bytes;
use flate2::read::GzDecoder;

use super::{graph, program};

fn unpacked(path: &str) -> String {
    let path = format!("{}/tests/golden/{path}.txt.gz", env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// The requests of a recorded trace.
fn of_trace(name: &str) -> Vec<Requested> {
    let event = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["alloc", _, size, _] => Some(Requested::Alloc(Bytes(size.parse().unwrap()))),
            ["free_requested", _, size, _] => Some(Requested::Free(Bytes(size.parse().unwrap()))),
            _ => None,
        }
    };
    let text = unpacked(&format!("traces/{name}"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(event).collect()
}

/// The requests of a recorded sequence.
fn of_sequence(name: &str) -> Vec<Requested> {
    let event = |line: &str| match line.split_at(1) {
        ("+", size) => Requested::Alloc(Bytes(size.parse().unwrap())),
        (_, size) => Requested::Free(Bytes(size.parse().unwrap())),
    };
    unpacked(&format!("sequences/{name}"))
        .lines()
        .map(event)
        .collect()
}

/// What differs, a line an event, each with what our side would have allocated for.
fn differences(graph: &str, theirs: &[Requested], variant: &Variant, batch: u64) -> Vec<String> {
    differences_of(&program(graph, variant), theirs, batch)
}

fn differences_of(program: &Program, theirs: &[Requested], batch: u64) -> Vec<String> {
    unmatched(program, batch, 3, theirs)
}

fn assert_unmatched(expected: usize, differences: &[String]) {
    let first = differences
        .iter()
        .take(40)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!(
        differences.len(),
        expected,
        "unmatched events; the first are\n{first}"
    );
}

fn variant(precision: Precision, optimizer: Optimizer) -> Variant {
    Variant {
        precision,
        optimizer,
        ..Variant::default()
    }
}

#[test]
fn cifarnet_in_float32_is_exact() {
    let recorded = of_trace("trace-cifarnet-fp32-sgd-b512");
    let sgd = variant(Precision::Fp32, Optimizer::SgdMomentum);

    assert_unmatched(0, &differences("cifarnet", &recorded, &sgd, 512));
}

#[test]
fn resnet50_in_float32_is_exact() {
    let recorded = of_trace("trace-resnet50-fp32-sgd-b64");
    let sgd = variant(Precision::Fp32, Optimizer::SgdMomentum);

    assert_unmatched(0, &differences("resnet50", &recorded, &sgd, 64));
}

#[test]
fn resnet50_under_autocast_is_exact() {
    let recorded = of_sequence("resnet50-ampfp16-sgd-b64");
    let sgd = variant(Precision::AmpFp16, Optimizer::SgdMomentum);

    assert_unmatched(0, &differences("resnet50", &recorded, &sgd, 64));
}

#[test]
fn resnet50_in_half_precision_inference_is_exact() {
    let recorded = of_sequence("resnet50-fp16-inference-b64");
    let inference = Variant {
        precision: Precision::Fp16,
        mode: Mode::Inference,
        ..Variant::default()
    };

    assert_unmatched(0, &differences("resnet50-fp16", &recorded, &inference, 64));
}

#[test]
fn vgg16_is_exact() {
    let recorded = of_sequence("vgg16-fp32-sgd-b16");
    let sgd = variant(Precision::Fp32, Optimizer::SgdMomentum);

    assert_unmatched(0, &differences("vgg16", &recorded, &sgd, 16));
}

/// Three layers run PyTorch's own depthwise kernel, which makes the weight's gradient first.
#[test]
fn mobilenet_with_depthwise_layers_of_both_kinds_is_exact() {
    let recorded = of_sequence("mobilenetv2-ampfp16-sgd-b32");
    let sgd = variant(Precision::AmpFp16, Optimizer::SgdMomentum);

    assert_unmatched(0, &differences("mobilenetv2", &recorded, &sgd, 32));
}

/// What remains is the order in which the autocast cache lets go of biases: that of a hash table.
#[test]
fn an_mlp_with_a_fused_optimizer_differs_in_a_hash_tables_order() {
    let recorded = of_sequence("mlp-ampfp16-adam-fused-b64");
    let fused = Variant {
        optimizer_impl: OptimizerImpl::Fused,
        ..variant(Precision::AmpFp16, Optimizer::Adam)
    };

    assert_unmatched(12, &differences("mlp", &recorded, &fused, 64));
}

/// The graph has no names, so activations that Python locals keep past their last use go too early. (The
/// rest is the order of a hash table, as below.)
#[test]
fn gpt2_without_a_side_table_differs_in_lifetimes() {
    let recorded = of_trace("trace-gpt2-ampbf16-adamw-b4");
    let adamw = variant(Precision::AmpBf16, Optimizer::Adamw);

    assert_unmatched(312, &differences("gpt2", &recorded, &adamw, 4));
}

/// With the lifetimes that the exporter recorded, what remains is the order in which the autocast cache lets
/// go of biases: that of a hash table.
#[test]
fn gpt2_under_autocast_differs_in_a_hash_tables_order() {
    let recorded = of_trace("trace-gpt2-ampbf16-adamw-b4");
    let adamw = variant(Precision::AmpBf16, Optimizer::Adamw);

    assert_unmatched(78, &differences("gpt2-table", &recorded, &adamw, 4));
}

/// The same, and four micro-steps.
#[test]
fn gpt2_with_accumulation_differs_in_a_hash_tables_order() {
    let recorded = of_sequence("gpt2-ampfp16-adamw-accum4-b8");
    let accumulating = Variant {
        accumulation: 4,
        ..variant(Precision::AmpFp16, Optimizer::Adamw)
    };

    assert_unmatched(312, &differences("gpt2-table", &recorded, &accumulating, 8));
}

#[test]
fn bert_under_autocast_differs_in_a_hash_tables_order() {
    let recorded = of_trace("trace-bert-ampfp16-adamw-seq512-b53");
    let adamw = variant(Precision::AmpFp16, Optimizer::Adamw);

    assert_unmatched(60, &differences("bert-seq512-table", &recorded, &adamw, 53));
}

/// Two layers with tied weights; the embedding's gradient is made without sorting its indices.
#[test]
fn a_small_gpt2_in_float32_is_exact() {
    let recorded = of_sequence("gpt2-tiny-fp32-adamw-b4");
    let adamw = variant(Precision::Fp32, Optimizer::Adamw);

    assert_unmatched(0, &differences("gpt2-tiny-table", &recorded, &adamw, 4));
}

#[test]
fn llama_in_bfloat16_is_exact() {
    let recorded = of_trace("trace-llama1b-bf16-adamw-fused-b3");
    let fused = Variant {
        optimizer_impl: OptimizerImpl::Fused,
        ..variant(Precision::Bf16, Optimizer::Adamw)
    };

    assert_unmatched(0, &differences("llama1b-bf16-table", &recorded, &fused, 3));
}

/// Grouped heads, rotary tables that are made without autocast, norms that go to float32 and back.
#[test]
fn a_small_llama_under_autocast_is_exact() {
    let recorded = of_sequence("llama-tiny-ampbf16-adamw-b4-sm80");
    let adamw = variant(Precision::AmpBf16, Optimizer::Adamw);
    let a100 = Capability::of((8, 0), 108);
    let program = compile(&graph("llama-tiny-table"), &adamw, a100).unwrap();

    assert_unmatched(0, &differences_of(&program, &recorded, 4));
}

/// Models made for one family of operations each, exported with their lifetimes; recorded with PyTorch 2.11
/// over a stub of the CUDA runtime that reports compute capability 9.0 and 132 multiprocessors.
fn assert_family(name: &str, expected: usize) {
    let recorded = of_sequence(&format!("{name}-fp32-adamw-b2"));
    let adamw = variant(Precision::Fp32, Optimizer::Adamw);

    assert_unmatched(expected, &differences(name, &recorded, &adamw, 2));
}

/// Quotients, powers, choices, clamps and a softmax, with smoothed labels.
#[test]
fn elementwise_functions_are_exact() {
    assert_family("family-pointwise", 0);
}

/// Advanced indices, gathers, scatters, sorts, choices of the largest, running sums.
#[test]
fn lookups_and_sorts_are_exact() {
    assert_family("family-lookup", 0);
}

/// A mask of truth values, a trained mask, and grouped heads, which float32 computes in plain operations.
#[test]
fn masked_and_grouped_attention_is_exact() {
    assert_family("family-attention", 0);
}

/// An encoder-decoder with trained position biases and a cache.
#[test]
fn a_t5_is_exact() {
    assert_family("t5-tiny", 0);
}

/// A mixture of experts: routing, sorted tokens, grouped products. What remains is the order of two frees
/// in the packed-sequence check, whose values a stub does not compute, and in the tokens' gradient.
#[test]
fn a_mixture_of_experts_differs_in_the_order_of_frees() {
    assert_family("mixtral-tiny", 12);
}

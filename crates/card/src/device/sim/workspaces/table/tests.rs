use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::device::sim::workspaces::{Provenance, Source, condense, unpack};
use crate::device::sim::{Card, Heuristics};
use crate::units::Bytes;

/// A square layer without groups or dilation.
fn layer(
    channels: [u64; 2],
    side: u64,
    kernel: u64,
    stride: u64,
    padding: u64,
) -> ConvolutionLayer {
    let [input, output] = channels;
    let sides = [side, kernel, stride, padding, 1].map(|side| format!("{side},{side}"));
    parse_layer(&format!("{input},{output},1,{},0", sides.join(","))).unwrap()
}

fn first(call: &Convolution) -> u64 {
    WorkspaceTable::h200().plans(call).workspaces[0].0
}

/// What PyTorch 2.11 with cuDNN 9.19 allocated on an H200: single convolutions at batch 32, and the
/// first convolution of recorded ResNet-50 steps (fp32 at 64 and 130, fp16 at 250).
#[test]
fn the_first_plan_is_what_pytorch_allocated() {
    use ConvolutionPass::{Forward, GradInput, GradWeight};
    use DType::{BFloat16, Float16, Float32};
    let middle = layer([64, 64], 56, 3, 1, 1);
    let stem = layer([3, 64], 224, 7, 2, 3);
    let last = layer([512, 512], 7, 3, 1, 1);
    for (layer, pass, dtype, batch, bytes) in [
        (middle, Forward, Float32, 32, 25_837_584),
        (middle, GradInput, Float32, 32, 51_527_696),
        (middle, GradWeight, Float32, 32, 53_592_743),
        (middle, Forward, BFloat16, 32, 25_763_987),
        (middle, GradInput, BFloat16, 32, 25_763_987),
        (middle, GradWeight, BFloat16, 32, 27_681_447),
        (stem, Forward, Float32, 32, 122_065_680),
        (stem, GradWeight, Float32, 32, 134_522_000),
        (stem, Forward, Float32, 64, 244_093_712),
        (stem, GradWeight, Float32, 130, 527_901_840),
        (stem, Forward, Float16, 250, 501_785_104),
        (last, GradWeight, Float16, 250, 37_671_663),
    ] {
        let call = layer.call(pass, dtype, batch);
        assert_eq!(first(&call), bytes, "{call:?}");
        assert_eq!(WorkspaceTable::h200().plans(&call).source, Source::Recorded);
    }
}

/// Two convolutions of ResNet-50 (fp32, batch 143, 12 GiB) that were refused every workspace: after
/// the cached plan, PyTorch tried 24 plans and then ran without; then 19, and got 8,192 bytes.
#[test]
fn as_many_plans_are_refused_as_in_pytorch() {
    let widening = layer([512, 2048], 7, 1, 1, 0);
    let call = widening.call(ConvolutionPass::GradInput, DType::Float32, 143);
    let sizes = WorkspaceTable::h200().plans(&call).workspaces;
    assert_eq!(sizes.len(), 25);
    assert_eq!((sizes[0], sizes[24]), (Bytes(71_751_696), Bytes::ZERO));

    let call = widening.call(ConvolutionPass::GradWeight, DType::Float32, 143);
    let sizes = WorkspaceTable::h200().plans(&call).workspaces;
    assert_eq!(sizes.iter().position(|size| *size == Bytes(8192)), Some(19));
    assert_eq!(sizes[0], Bytes(80_140_719));
}

#[test]
fn every_recorded_list_falls_to_nothing() {
    let table = WorkspaceTable::h200();
    assert!(table.len() > 4000);
    for (layer, dtype, pass, batches) in table.recorded() {
        for batch in [
            batches[0],
            batches[batches.len() / 2],
            batches[batches.len() - 1],
        ] {
            let plans = table
                .recorded_plans(&layer.call(pass, dtype, batch))
                .unwrap();
            assert_eq!(plans.source, Source::Recorded);
            let workspaces = plans.workspaces();
            assert!(workspaces.is_sorted_by(|before, after| before >= after));
            assert_eq!(workspaces.last(), Some(&Bytes::ZERO), "{layer:?} {batch}");
        }
    }
}

#[test]
fn depthwise_layers_of_pytorchs_own_take_nothing() {
    let depthwise = ConvolutionLayer {
        groups: 96,
        ..layer([96, 96], 112, 3, 2, 1)
    };
    let call = depthwise.call(ConvolutionPass::GradWeight, DType::Float32, 32);
    let plans = WorkspaceTable::h200().plans(&call);
    assert_eq!(plans.workspaces, [Bytes::ZERO]);
    assert_eq!(plans.source, Source::NotTheLibrary);
}

/// The table that is made of a recording of one job.
fn table_of(job: &str, lines: &str) -> WorkspaceTable {
    let text = format!("# cudnn 91900\nJ {job}\n{lines}T 0 eng0\n");
    let provenance = Provenance {
        card: "a card".into(),
        driver: "580".into(),
        cudnn: "9.19".into(),
        recorded: "2026-11-20".into(),
        command: "none".into(),
        traits: None,
    };
    let table = condense([text.as_bytes()], &provenance).unwrap();
    WorkspaceTable::parse(&table).unwrap()
}

const SMALL_JOB: &str = "1,1,1,8,8,3,3,1,1,1,1,1,1,0 f16 forward";

#[test]
fn a_recording_is_answered_as_it_was_recorded_and_estimated_between_and_beyond() {
    let layer = layer([1, 1], 8, 3, 1, 1);
    // Batch 3 follows the lines of both plans; at 4 they swap, and a larger third comes between.
    let each = "1 0:110 1:60 2:0\n2 0:210 1:110 2:0\n3 0 1 2\n4 1 3:500 0 2\n";
    let apart = "1 0:100 1:0\n2 0:200 1:0\n3 0 1\n10 2:1900 1\n12 2:2100 1\n14 2 1\n";
    for (lines, batch, sizes, source) in [
        (each, 1, &[110, 60, 0][..], "Recorded"),
        (each, 3, &[310, 160, 0], "Recorded"),
        (each, 4, &[210, 210, 210, 0], "Recorded"),
        // The same plan on both sides: its own line.
        (apart, 11, &[2000, 0], "Interpolated"),
        // The larger neighbour answers: 600 along the lower line, 1,500 along the upper.
        (apart, 6, &[1500, 0], "Interpolated"),
        // In proportion.
        ("1 0:100 1:0\n2 0:200 1:0\n", 20, &[2000, 0], "Estimated"),
    ] {
        let call = layer.call(ConvolutionPass::Forward, DType::Float16, batch);
        let plans = table_of(SMALL_JOB, lines).plans(&call);
        let found: Vec<u64> = plans.workspaces.iter().map(|size| size.0).collect();
        assert_eq!(found, sizes, "{batch}");
        let from = format!("{:?}", plans.source);
        assert!(from.starts_with(source), "{batch}: {from}");
    }
}

/// The weight's gradients of two signals' layers (float32, batch 4) as PyTorch allocated them: cuDNN takes 133,120 bytes for
/// each pair of channels, 400 times the tensors.
#[test]
fn spectra_are_scaled_by_pairs_of_channels() {
    let job = "32,32,1,1,64,1,5,1,1,0,2,1,1,0 f32 grad_weight";
    let table = table_of(job, "4 0:136347648 1:0\n");
    let longer = ConvolutionLayer {
        input: [1, 1, 96],
        kernel: [1, 1, 5],
        padding: [0, 0, 2],
        ..layer([64, 64], 96, 5, 1, 2)
    };
    let call = longer.call(ConvolutionPass::GradWeight, DType::Float32, 4);

    let estimated = table.plans(&call).workspaces[0].0;

    let truth: u64 = 545_374_208;
    assert!(estimated.abs_diff(truth) < truth / 100, "{estimated}");
}

#[test]
fn a_malformed_line_is_named() {
    let text = format!("{MAGIC}\ngrid 1-4\nlayer 1,2,3\n");
    let error = WorkspaceTable::parse(&text).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 3 of the workspace table is malformed"
    );
}

#[test]
fn without_anything_alike_all_three_tensors_are_counted() {
    let table = WorkspaceTable::parse(&format!("{MAGIC}\n")).unwrap();
    let call = layer([8, 16], 4, 1, 1, 0).call(ConvolutionPass::Forward, DType::Float32, 2);
    let plans = table.plans(&call);
    assert_eq!(
        plans.workspaces,
        [Bytes(4 * (2 * 8 * 16 + 8 * 16 + 2 * 16 * 16)), Bytes::ZERO]
    );
    assert!(matches!(plans.source, Source::Estimated(_)));
}

#[test]
fn what_was_asked_before_changes_no_answer() {
    let table = WorkspaceTable::h200();
    let mut lookup = Lookup::new(table);
    // Recorded, and not recorded: each pass and batch after others of the same layer.
    for layer in [layer([64, 64], 56, 3, 1, 1), layer([67, 41], 53, 3, 1, 1)] {
        for batch in [1, 7, 512, 5000] {
            for pass in ConvolutionPass::ALL {
                let call = layer.call(pass, DType::BFloat16, batch);
                assert_eq!(lookup.plans(&call), table.plans(&call), "{call:?}");
            }
        }
    }
}

/// The bounds that Note [Similar layers] states, on every twentieth layer of the table itself.
#[test]
fn held_out_layers_are_rarely_underestimated() {
    let whole = WorkspaceTable::h200();
    let text = unpack(&include_bytes!("../h200.txt.gz")[..]).unwrap();
    let mut kept = String::new();
    let mut layers = 0;
    let mut is_held_out = false;
    for line in text.lines() {
        if line.starts_with("block") {
            continue;
        }
        if line.starts_with("layer") {
            layers += 1;
            is_held_out = layers % 20 == 0;
        }
        if !is_held_out {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let rest = WorkspaceTable::parse(&kept).unwrap();
    for (pass, least_near, most_short, most_total) in [
        (ConvolutionPass::Forward, 0.8, 0.06, 1.2),
        (ConvolutionPass::GradInput, 0.8, 0.06, 1.2),
        (ConvolutionPass::GradWeight, 0.6, 0.12, 1.3),
    ] {
        let (mut calls, mut near, mut short, mut beyond) = (0.0, 0.0, 0.0, 0.0);
        let (mut estimated, mut recorded) = (0.0, 0.0);
        for (layer, dtype, ..) in whole.recorded().filter(|(.., of, _)| *of == pass) {
            if rest.holds(layer) {
                continue;
            }
            for batch in [4, 32, 128] {
                let call = layer.call(pass, dtype, batch);
                let truth = whole.plans(&call).workspaces[0].0 as f64;
                let plans = rest.plans(&call);
                let (guess, most) = (plans.workspaces[0].0 as f64, plans.at_most.0 as f64);
                let elements: u64 = call.operands().elements().iter().sum();
                let tensors = (elements * dtype.size()) as f64;
                calls += 1.0;
                near += f64::from((truth - guess).abs() <= 0.02 * tensors);
                short += f64::from(truth - guess > 0.05 * tensors);
                beyond += f64::from(truth - most > 0.05 * tensors);
                estimated += guess;
                recorded += truth;
            }
        }
        let [near, short, beyond] = [near, short, beyond].map(|count| count / calls);
        let total = estimated / recorded;
        println!(
            "{pass:?}: {calls} calls, near {near:.3}, short {short:.3}, more than at most {beyond:.3}, in all {total:.2}"
        );
        assert!(calls > 200.0, "{pass:?}: {calls} calls");
        assert!(near > least_near, "{pass:?}: {near} near");
        assert!(short < most_short, "{pass:?}: {short} short");
        assert!(beyond < 0.03, "{pass:?}: {beyond} more than at most");
        assert!(total < most_total, "{pass:?}: {total}");
    }
}

#[test]
fn a_table_that_would_fill_memory_is_refused() {
    let head = "batchfit workspaces 1\ncard a\n";
    let layer = "layer 8,8,1,4,4,3,3,1,1,1,1,1,1,0\n";
    for body in [
        "grid 1-18446744073709551615\n".to_owned(),
        "grid 5-1\n".to_owned(),
        format!("grid 1-4\n{layer}job forward f32 0 |1+0|0*99999999999|0*4\n"),
        format!("grid 1-4\n{layer}job forward f32 0 |1+0|0|0*18446744073709551615 0*2\n"),
    ] {
        let table = WorkspaceTable::parse(&format!("{head}{body}"));
        assert!(
            matches!(table, Err(TableError::Malformed { .. })),
            "{body}: {table:?}"
        );
    }
}

#[test]
fn jobs_without_plans_and_lists_without_end_are_malformed() {
    let head = "batchfit workspaces 1\ngrid 1 2 4\nlayer 8,8,1,4,4,3,3,1,1,1,1,1,1,0\njob forward f32 0 |100+10|";
    let endless = vec!["0*1024"; 1024].join(".");
    assert!(WorkspaceTable::parse(&format!("{head}0*42|0*3\n")).is_ok());
    for job in ["0|0*0".to_owned(), format!("{endless}|0*3")] {
        let error = WorkspaceTable::parse(&format!("{head}{job}\n")).unwrap_err();

        assert!(error.to_string().starts_with("line 4"), "{error}");
    }
}

#[test]
fn tables_of_other_cards_are_whole_and_say_that_they_were_asked() {
    for compute in [(7, 5), (8, 0), (8, 6), (8, 9), (10, 0), (12, 0)] {
        let [table] = WorkspaceTable::of_architecture(compute)[..] else {
            panic!("one for each");
        };
        assert!(table.is_asked() && table.len() > 6000, "{compute:?}");
        let mut jobs = 0;
        for (layer, dtype, pass, batches) in table.recorded() {
            // cuDNN has nothing for many layers of bfloat16 before compute capability 8.0.
            if dtype != DType::BFloat16 || compute.0 >= 8 {
                jobs += 1;
            }
            let call = layer.call(pass, dtype, batches[batches.len() - 1]);
            let plans = table.plans(&call);
            if call.uses_cudnn() {
                assert_eq!(plans.source, Source::Asked);
            }
            assert_eq!(plans.workspaces.last(), Some(&Bytes::ZERO), "{layer:?}");
        }
        let dtypes = if compute.0 >= 8 { 3 } else { 2 };
        assert_eq!(jobs, 3 * dtypes * table.len(), "{compute:?}");
        assert_eq!(table.cudnn(), Some("9.19.0"));
    }
    assert!(WorkspaceTable::of_architecture((7, 0)).is_empty());
}

#[test]
fn the_best_table_that_has_a_layer_answers_and_the_first_large_one_estimates() {
    let own = table_of(SMALL_JOB, "1 0:7\n2 0:7\n");
    let h200 = WorkspaceTable::h200();
    let stem = layer([3, 64], 224, 7, 2, 3);
    let layer = layer([1, 1], 8, 3, 1, 1);
    let mut lookup = Lookup::among(vec![&own, h200]);

    let here = lookup.plans(&layer.call(ConvolutionPass::Forward, DType::Float16, 2));
    assert_eq!(
        (here.workspaces[0], here.source),
        (Bytes(7), Source::Recorded)
    );
    assert_eq!(lookup.estimated_from().card(), Some("NVIDIA H200"));
    let stem = stem.call(ConvolutionPass::Forward, DType::Float32, 32);
    assert_eq!(lookup.plans(&stem).source, Source::Recorded);
}

/// Says the number of its calls about first plans.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Heuristics for Counting {
    fn version(&self) -> &'static str {
        "9.19.0"
    }

    fn folder(&self) -> &'static std::path::Path {
        std::path::Path::new("")
    }

    fn workspaces(&self, _: &'static Card, _: &Convolution) -> Option<Vec<Bytes>> {
        Some([300, 200, 100].map(Bytes).to_vec())
    }

    fn first_workspace(&self, _: &'static Card, _: &Convolution) -> Option<Bytes> {
        let calls = self.0.fetch_add(1, Ordering::Relaxed);
        Some(Bytes(calls)).filter(|calls| calls.0 < 3)
    }
}

#[test]
fn cudnn_answers_for_unrecorded_calls_and_estimates_fill_the_rest() {
    let card = Card::find("a100-80g").unwrap();
    let asked: &'static Counting = Box::leak(Box::default());
    let mut lookup = Lookup::among(WorkspaceTable::of_architecture(card.capability.compute))
        .with_heuristics(Some((card, asked)));
    let call = |channels, batch| {
        layer(channels, 56, 3, 1, 1).call(ConvolutionPass::Forward, DType::Float32, batch)
    };
    let mut said = |call: &Convolution| {
        let plans = lookup.plans(call);
        (plans.workspaces[0].0, plans.source)
    };

    // A table that was asked earlier, at other batches, comes after.
    assert_eq!(said(&call([61, 67], 8)), (0, Source::Asked));
    assert_eq!(said(&call([64, 64], 100)), (1, Source::Asked));
    assert_eq!(said(&call([61, 67], 9)), (2, Source::Asked));
    assert!(matches!(said(&call([61, 67], 10)).1, Source::Estimated(_)));

    let mut recorded = Lookup::new(WorkspaceTable::h200()).with_heuristics(Some((card, asked)));
    let known = recorded.plans(&call([64, 64], 32));
    assert_eq!(known.source, Source::Recorded);
    assert_eq!(asked.0.load(Ordering::Relaxed), 4);
}

#[test]
fn plans_after_the_first_are_asked_for_when_they_are_wanted() {
    let card = Card::find("h200").unwrap();
    let asked: &'static Counting = Box::leak(Box::default());
    let lookup = || Lookup::new(WorkspaceTable::h200()).with_heuristics(Some((card, asked)));
    let call =
        |channels| layer(channels, 56, 3, 1, 1).call(ConvolutionPass::Forward, DType::Float32, 32);
    let unknown = call([61, 67]);

    assert_eq!(lookup().plans(&unknown).workspaces.len(), 1);
    let further = |call: &Convolution, listed, begun| {
        asked.0.store(begun, Ordering::Relaxed);
        lookup().further_plans(call, listed)
    };
    assert_eq!(further(&unknown, 1, 0), [200, 100].map(Bytes));
    assert!(further(&unknown, 3, 0).is_empty(), "they were listed");

    // What was recorded is listed to its end, and so is what cuDNN says nothing of.
    assert!(further(&call([64, 64]), 1, 0).is_empty());
    assert!(further(&unknown, 1, 3).is_empty());
    let alone = Lookup::new(WorkspaceTable::h200());
    assert!(alone.further_plans(&unknown, 1).is_empty());
}

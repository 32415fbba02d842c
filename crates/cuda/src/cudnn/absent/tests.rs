use std::collections::BTreeMap;

use super::*;
use crate::cudnn::is_present;
use crate::device::sim::Card;
use crate::device::sim::workspaces::{
    Source, WorkspaceTable, of_a_product, parse_layer, refused_engines,
};
use crate::program::{ConvolutionLayer, ConvolutionPass};

#[test]
fn a_log_says_which_engines_were_refused_for_want_of_a_device() {
    let log = "\
I! CuDNN (v91900 56) function cudnnBackendFinalize() called:
i!     engineConfig: type=json; val={\"engineId\":62,\"smVersion\":900,\"knobChoices\":{}};
i!     Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: engine_iface->getStatus()
I! CuDNN (v91900 56) function cudnnBackendGetAttribute_CUDNN_ATTR_ENGINEHEUR_RESULTS_engine_config_support_checks() called:
i!     engineConfig: type=json; val={\"engineId\":58,\"smVersion\":900,\"knobChoices\":{}};
i!     Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: engine_iface->getStatus()
i!     Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: status
i!     engineConfig: type=json; val={\"engineId\":19,\"smVersion\":900,\"knobChoices\":{}};
i!     Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: this->libcuda == nullptr
i!     engineConfig: type=json; val={\"engineId\":40,\"smVersion\":900,\"knobChoices\":{}};
i!     Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: has_odd_channels
I! CuDNN (v91900 56) function cudnnBackendGetAttribute() called:
i!     engineConfig: type=json; val={\"engineId\":63,\"smVersion\":900,\"knobChoices\":{}};
i!     Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: engine_iface->getStatus()
";
    assert_eq!(refused_engines(log), [58, 19]);
    // As a callback hears it.
    assert_eq!(refused_engines(&log.replace("i! ", "")), [58, 19]);
    assert!(refused_engines("").is_empty());
}

#[test]
fn refused_engines_are_given_what_they_were_recorded_to_take() {
    // Of an H100 with cuDNN 9.19, 2026-11-25 and 26: layer, pass, type, batch, engine and bytes; one by the peaks
    // of Tacotron 2 on an H200 (`tests/models`), and those after it as an H200 said on 2026-11-29.
    let recorded = "\
152,64,1,32,32,3,3,1,1,1,1,1,1,0 grad_weight float32 1 17 3391488
256,128,1,40,40,3,3,1,1,1,1,1,1,0 grad_weight float32 3 17 21307392
96,192,1,34,34,3,3,1,1,1,1,1,1,0 grad_weight float32 1 17 6013440
256,512,2,16,16,3,3,1,1,1,1,1,1,0 grad_weight float32 12 17 30670848
152,64,1,32,32,3,3,1,1,1,1,1,1,0 grad_weight float32 500 18 3780608000
192,48,1,24,24,3,3,1,1,1,1,1,1,0 grad_weight float32 100 18 219955200
72,72,1,50,50,3,3,1,1,1,1,1,1,0 grad_weight float32 4 18 178057728
72,72,1,16,16,3,3,1,1,1,1,1,1,0 grad_weight float32 20 18 46596096
192,192,192,16,16,3,3,1,1,1,1,1,1,0,1 grad_weight float16 8 16 442368
256,256,8,12,12,3,3,1,1,1,1,1,1,0 grad_weight bfloat16 7 17 5824512
300,300,1,15,15,5,5,1,1,2,2,1,1,0 grad_weight float32 2 17 86798400
100,100,1,57,57,5,5,1,1,2,2,1,1,0 grad_weight float32 2 17 112756800
16,16,1,24,24,3,3,2,2,1,1,1,1,0 grad_weight float16 28 19 0
16,16,1,48,48,3,3,1,1,1,1,1,1,0 forward bfloat16 57 6 42504192
400,400,1,5,5,3,3,1,1,1,1,1,1,0 grad_input float16 2 7 30412800
128,128,128,128,128,7,7,1,1,3,3,1,1,0,1 grad_weight bfloat16 12 16 2408448
192,192,192,48,48,3,3,1,1,1,1,1,1,0,1 forward float16 100 5 0
64,256,1,56,56,1,1,1,1,0,0,1,1,0 grad_weight float32 32 62 2097152
64,80,1,1,60,1,5,1,1,0,2,1,1,0 grad_weight float32 16 18 173322240
32,64,1,1,12,1,3,1,1,0,1,1,1,0 grad_weight float32 2352 18 527450112
80,48,1,8,8,7,7,1,1,3,3,1,1,0 grad_weight float32 2 18 8871936
80,8,1,8,8,1,1,1,1,0,0,1,1,0 grad_weight float32 6 18 1486848
384,128,64,16,12,1,1,1,1,0,0,1,1,0 grad_weight float32 3 18 626816
8192,1024,128,16,16,1,1,1,1,0,0,1,1,0 grad_weight float32 1 18 9502720
48,32,1,1,39,1,64,1,1,0,31,1,1,0 forward float32 2048 3 13291094016
48,1,1,1,2090,1,9,1,1,0,8,1,1,0 grad_input float32 2048 3 8360
96,8,8,112,112,1,1,1,1,0,0,1,1,0 grad_input float16 48 3 401408
72,72,72,40,40,3,3,1,1,1,1,1,1,0,1 grad_weight float16 64 16 1769472
4096,8192,64,16,16,3,3,1,1,1,1,1,1,0 grad_weight float32 1 17 12976128
8,16,8,28,37,3,3,1,1,1,1,1,1,0,1 grad_weight float32 32 17 10926976
64,128,64,80,80,3,3,1,1,1,1,1,1,0,1 grad_weight float16 128 17 216271488
16,16,1,16,20,5,5,1,1,2,2,1,1,0,1 grad_weight float32 8 17 2603024
16,512,1,14,14,3,3,1,1,1,1,1,1,0,1 grad_weight float32 4 17 7996432
128,512,8,32,32,5,5,1,1,2,2,1,1,0 grad_weight float16 1 17 116293632
128,128,4,7,7,3,3,1,1,1,1,1,1,0 forward float16 1 6 2949120
80,20,1,20,15,5,5,1,1,2,2,1,1,0 grad_input float16 2 7 7571200
256,1024,1,31,31,1,1,1,1,0,0,1,1,0 forward float32 8 3 2300575744
4096,2048,16,16,16,3,3,1,1,1,1,1,1,0 forward float32 1 3 2308964352
48,192,1,25,25,7,7,1,1,3,3,1,1,0,1 grad_weight float32 4 18 86342416
512,512,1,4,4,3,3,1,1,1,1,1,1,0 grad_input float32 128 50 1711276032
48,64,1,8,8,3,3,1,1,1,1,1,1,0,1 grad_input float32 12 50 19673104
40,40,40,13,13,5,5,1,1,2,2,1,1,0 grad_input float32 32 50 2609280
256,512,1,8,8,4,4,2,2,1,1,1,1,0 grad_input float32 64 50 2734686224
64,20,1,5,5,3,3,2,2,1,1,1,1,0 grad_input float32 48 50 85843984
192,40,4,56,42,5,5,2,2,2,2,1,1,0,1 grad_input float32 128 50 767868992";
    for line in recorded.lines() {
        let [layer, pass, dtype, batch, engine, bytes] = *line.split(' ').collect::<Vec<_>>()
        else {
            panic!("{line}")
        };
        let layer = parse_layer(layer).unwrap();
        let read = |text: &str| serde_json::Value::from(text);
        let call = layer.call(
            serde_json::from_value(read(pass)).unwrap(),
            serde_json::from_value(read(dtype)).unwrap(),
            batch.parse().unwrap(),
        );
        assert!(may_be_refused(&call), "{line}");
        let given = of_engine(engine.parse().unwrap(), &call);
        assert_eq!(given, Some(bytes.parse().unwrap()), "{line}");
    }
    // Nothing of the kind.
    let plain = parse_layer("152,64,1,32,32,3,3,2,2,1,1,1,1,0");
    let call = plain
        .unwrap()
        .call(ConvolutionPass::GradWeight, DType::Float32, 1);
    assert!(!may_be_refused(&call));
}

#[test]
fn a_product_of_matrices_needs_memory_for_the_gradient_of_its_weight() {
    let layer = parse_layer("64,256,1,56,56,1,1,1,1,0,0,1,1,0").unwrap();
    let given = |layer: ConvolutionLayer, pass| of_a_product(&layer.call(pass, DType::Float32, 32));

    assert_eq!(given(layer, ConvolutionPass::Forward), Some(0));
    let whole = 4 * 32 * 64 * 256;
    assert_eq!(given(layer, ConvolutionPass::GradWeight), Some(whole));
    let strided = ConvolutionLayer {
        stride: [1, 2, 2],
        ..layer
    };
    assert_eq!(given(strided, ConvolutionPass::Forward), None);
}

#[test]
fn each_architecture_can_be_described_or_is_refused() {
    for card in crate::device::sim::CARDS {
        let described = CardProperties::of_card(card);
        assert_eq!(
            described.is_some(),
            card.capability.compute >= (7, 5) && card.capability.compute != (10, 3),
            "{}",
            card.name
        );
        if let Some(described) = described {
            let text = serde_json::to_value(described).unwrap();
            assert_eq!(text.as_object().unwrap().len(), 23);
            assert_eq!(
                text["maxThreadsPerSM"],
                card.capability.threads_per_multiprocessor
            );
        }
    }
}

/// Compares with what was recorded on an H200: `CUDNN_LOGLEVEL_DBG=3 CUDNN_LOGDEST_DBG=FILE cargo test --lib absent -- --ignored
/// --nocapture`, with cuDNN on the library path. FILE is in memory best; it must be there.
#[test]
#[ignore = "prints a table; needs cuDNN"]
fn asked_without_a_device_beside_the_record() {
    assert!(is_present(), "cuDNN is not on the library path");
    let h200 = Card::find("h200").unwrap();
    let properties = CardProperties::of_card(h200);
    let card = AbsentCard::new(&properties.unwrap()).unwrap();
    let table = WorkspaceTable::h200();
    let mut recorded: Vec<_> = table
        .recorded()
        .flat_map(|(layer, dtype, pass, batches)| {
            let batches = batches.iter().filter(|batch| **batch <= 512);
            batches.map(move |batch| layer.call(pass, dtype, *batch))
        })
        .filter(|call| table.plans(call).source != Source::NotTheLibrary)
        .collect();
    recorded.sort();
    let asked = recorded.iter().step_by(recorded.len() / 3000);
    let mut rows: BTreeMap<String, [u64; 6]> = BTreeMap::new();
    for call in asked {
        let truth = table.plans(call).workspaces[0].0;
        let found = card.first_offer(call, Tf32::Allowed);
        let found = found.map_or(u64::MAX, |offer| offer.workspace.0);
        let elements: u64 = call.operands().elements().iter().sum();
        let tensors = elements * call.dtype.size();
        for key in [
            format!("{:?} {}", call.pass, kind(&call.layer)),
            format!("{:?} {:?}", call.pass, call.dtype),
            "all".to_owned(),
        ] {
            let row = rows.entry(key).or_default();
            row[0] += 1;
            row[1] += u64::from(found.abs_diff(truth) < 1024);
            row[2] += u64::from(found.abs_diff(truth) < (tensors / 50).max(1024));
            row[3] += u64::from(found.saturating_add(tensors / 20) < truth);
            row[4] += found.min(1 << 40);
            row[5] += truth;
        }
    }
    for (key, [calls, exact, near, short, found, truth]) in rows {
        let percent = |part: u64| 100.0 * part as f64 / calls as f64;
        println!(
            "{key:24} {calls:5} calls, exact {:5.1} %, within 2 % of the tensors {:5.1} %, short by 5 % of them {:4.1} %, sum {:.3}",
            percent(exact),
            percent(near),
            percent(short),
            found as f64 / truth.max(1) as f64
        );
    }
}

fn kind(layer: &ConvolutionLayer) -> &'static str {
    match layer {
        _ if layer.volumes => "3-D",
        _ if layer.is_flat() => "1-D",
        _ if layer.transposed => "transposed",
        _ if layer.groups > 1 => "grouped",
        _ if layer.channels_last => "channels-last",
        _ if layer.kernel == [1; 3] && layer.stride == [1; 3] => "1x1",
        _ => "others",
    }
}

use super::*;
use crate::device::sim::workspaces::{of_a_product, parse_layer, refused_engines};
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
    for line in include_str!("refused.txt").lines() {
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
    for card in crate::device::sim::CARDS.iter() {
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

//! The corpus of exported graphs is a test of shape inference for every operator: reading one compares
//! each inferred type with the one that PyTorch recorded.

use batchfit::graph::{Content, DType, Graph, ParameterKind};
use batchfit::model::exported;

use super::golden;

fn read(name: &str) -> Graph {
    match exported::parse(&golden(name)) {
        Ok(exported) => {
            assert_eq!(exported.notes, Vec::<String>::new(), "{name}");
            exported.graph
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn every_graph_of_the_corpus_is_read() {
    let mut summary = String::new();
    for name in [
        "cifarnet",
        "gpt2",
        "mlp",
        "mlp-bf16",
        "mobilenetv2",
        "resnet18",
        "resnet50",
        "resnet50-fp16",
        "resnet152",
        "vgg16",
    ] {
        let graph = read(name);
        let batch: Vec<String> = graph
            .inputs
            .iter()
            .map(|input| {
                let value = graph.value(input.value);
                format!(
                    "{} {} {:?} {:?}",
                    value.name, value.dtype, value.shape, input.content
                )
            })
            .collect();
        let prediction = graph.value(graph.prediction);
        summary.push_str(&format!(
            "{name}: {} nodes, {} modules, {} parameters, {} elements, root {}, batch {}, prediction {} {:?}, \
             loss {}\n",
            graph.nodes.len(),
            graph.modules.len(),
            graph.parameters.len(),
            graph.parameter_count(),
            graph.modules[0].class,
            batch.join(" and "),
            prediction.name,
            prediction.shape,
            graph.value(graph.loss).name,
        ));
    }
    insta::assert_snapshot!(summary);
}

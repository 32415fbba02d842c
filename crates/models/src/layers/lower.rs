//! From [`Layers`] to a graph.

use std::collections::HashMap;

use super::{INPUT, Layer, LayerKind, Layers};
use crate::graph::{Builder, Content, Graph, GraphError, ModuleId, ValueId};
use crate::limits::shorten;
use crate::nn::{At, Net, unary};
use crate::ops::{Dropout, Elementwise, Loss, Pool, Random, View};
use crate::program::Placement;
use crate::request_error::{RequestError, nearest};
use crate::shape::{DType, Extent, is_oversize};

/// The forward pass of the layers, with the loss.
pub fn lower(model: &Layers) -> Result<Graph, RequestError> {
    let mut shape = vec![Extent::BATCH];
    shape.extend(model.input.iter().copied().map(Extent::fixed));
    if is_oversize(&shape) {
        let pointer = model.pointer.replace("/layers", "/input/shape");
        return Err(RequestError::at(
            pointer,
            "a sample is too large for any device",
        ));
    }
    let content = match model.dtype {
        DType::Int64 => Content::Below(smallest_vocabulary(model)),
        _ => Content::Normal,
    };
    let mut net = Net::new("torch.nn.modules.container.Sequential");
    let mut last = net.input("x", model.dtype, shape, content);
    let mut results: HashMap<String, ValueId> = HashMap::from([(INPUT.to_owned(), last)]);

    for (index, layer) in model.stack.iter().enumerate() {
        let pointer = format!("{}/{index}", model.pointer);
        let name = layer.name.clone().unwrap_or_else(|| index.to_string());
        let inputs = operands(layer, &results, last, &pointer)?;
        agree(layer, &net, &inputs, &pointer)?;
        last = apply(layer, &name, &mut net, &inputs)
            .map_err(|error| RequestError::at(&pointer, error.to_string()))?;
        if results.insert(name.clone(), last).is_some() {
            return Err(RequestError::at(
                format!("{pointer}/name"),
                format!("there is a layer named {name:?} before this one"),
            ));
        }
    }
    let end = format!("{}/{}", model.pointer, model.stack.len() - 1);
    let loss = loss(&mut net, last).map_err(|problem| RequestError::at(end, problem))?;
    Ok(net.finish(last, loss))
}

/// Indices must be valid in every table they may be looked up in.
fn smallest_vocabulary(model: &Layers) -> u64 {
    let tables = model.stack.iter().filter_map(|layer| match layer.kind {
        LayerKind::Embedding { num_embeddings, .. } => Some(num_embeddings),
        _ => None,
    });
    tables.min().unwrap_or(1)
}

fn operands(
    layer: &Layer,
    results: &HashMap<String, ValueId>,
    last: ValueId,
    pointer: &str,
) -> Result<Vec<ValueId>, RequestError> {
    if layer.inputs.is_empty() {
        return Ok(vec![last]);
    }
    layer
        .inputs
        .iter()
        .enumerate()
        .map(|(index, name)| {
            results.get(name).copied().ok_or_else(|| {
                // Names in a stable order, so that the same request gets the same suggestion.
                let mut known: Vec<&str> = results.keys().map(String::as_str).collect();
                known.sort_unstable();
                let at = format!("{pointer}/inputs/{index}");
                let problem = format!("no layer named {:?} comes before this one", shorten(name));
                RequestError {
                    nearest: nearest(name, known).map(str::to_owned),
                    ..RequestError::at(at, problem).with_text(name)
                }
            })
        })
        .collect()
}

/// Checks what a layer says about its input, which shapes alone do not show.
fn agree(layer: &Layer, net: &Net, inputs: &[ValueId], pointer: &str) -> Result<(), RequestError> {
    let input = net.value(inputs[0]);
    let embeds = matches!(layer.kind, LayerKind::Embedding { .. });
    let any = matches!(layer.kind, LayerKind::Flatten { .. });
    if !any && embeds == input.dtype.is_float() {
        let problem = if embeds {
            "embedding takes int64 indices; set the input's dtype to \"int64\""
        } else {
            "int64 token ids must go through an embedding first"
        };
        return Err(RequestError::at(pointer, problem));
    }
    let (field, said, axis) = match &layer.kind {
        LayerKind::Conv2d {
            in_channels: Some(said),
            ..
        } => ("in_channels", *said, 1),
        LayerKind::BatchNorm2d {
            num_features: Some(said),
            ..
        } => ("num_features", *said, 1),
        LayerKind::Linear {
            in_features: Some(said),
            ..
        } => ("in_features", *said, input.shape.len() - 1),
        _ => return Ok(()),
    };
    match input.shape.get(axis) {
        Some(actual) if *actual != Extent::fixed(said) => Err(RequestError::at(
            format!("{pointer}/{field}"),
            format!(
                "{field} is {said}, but the input {:?} has {actual}",
                input.shape
            ),
        )),
        _ => Ok(()),
    }
}

fn apply(
    layer: &Layer,
    name: &str,
    net: &mut Net,
    inputs: &[ValueId],
) -> Result<ValueId, GraphError> {
    let at = At::new(name, Builder::ROOT);
    let input = inputs[0];
    // Without a name it is a function that the root calls, not a module.
    let stateless = |net: &mut Net, class: &str| -> ModuleId {
        if layer.name.is_some() {
            net.module(at, class)
        } else {
            Builder::ROOT
        }
    };
    match &layer.kind {
        LayerKind::Conv2d {
            out_channels,
            window,
            bias,
            ..
        } => net.conv2d(at, input, *out_channels, *window, *bias),
        LayerKind::BatchNorm2d { norm, .. } => net.batch_norm2d(at, input, *norm),
        LayerKind::Linear {
            out_features, bias, ..
        } => net.linear(at, input, *out_features, *bias),
        LayerKind::LayerNorm {
            normalized_shape,
            eps,
        } => {
            let last = net
                .value(input)
                .shape
                .last()
                .and_then(|length| length.as_fixed());
            let lengths = match normalized_shape {
                Some(lengths) => lengths.clone(),
                None => vec![last.unwrap_or(1)],
            };
            net.layer_norm(at, input, &lengths, *eps)
        }
        LayerKind::Embedding {
            num_embeddings,
            embedding_dim,
        } => net.embedding(at, input, *num_embeddings, *embedding_dim),
        LayerKind::Relu(placement) => {
            let module = stateless(net, "torch.nn.modules.activation.ReLU");
            net.apply(
                module,
                unary(crate::program::Unary::Relu, *placement),
                &[input],
            )
        }
        LayerKind::Gelu(function) => {
            let module = stateless(net, "torch.nn.modules.activation.GELU");
            net.apply(module, unary(*function, Placement::New), &[input])
        }
        LayerKind::MaxPool2d(window) => {
            let module = stateless(net, "torch.nn.modules.pooling.MaxPool2d");
            net.apply(module, Pool::Max(*window), &[input])
        }
        LayerKind::AdaptiveAvgPool2d(output) => {
            let module = stateless(net, "torch.nn.modules.pooling.AdaptiveAvgPool2d");
            let [height, width] = *output;
            net.apply(module, Pool::AdaptiveAverage([1, height, width]), &[input])
        }
        LayerKind::Flatten { start_dim } => {
            let module = stateless(net, "torch.nn.modules.flatten.Flatten");
            net.flatten(module, input, *start_dim)
        }
        LayerKind::Dropout { p } => {
            let module = stateless(net, "torch.nn.modules.dropout.Dropout");
            let dropout = Random {
                p: *p,
                train: true,
                dropout: Dropout::Fused,
            };
            net.apply(module, dropout, &[input])
        }
        LayerKind::Add => net.apply(Builder::ROOT, Elementwise::of("aten.add.Tensor"), inputs),
    }
}

/// Cross entropy of the last result. Of `[batch, sequence, classes]`, every position is a prediction of
/// its own, as in language models; otherwise classes are along dimension 1, as PyTorch has them.
fn loss(net: &mut Net, output: ValueId) -> Result<ValueId, String> {
    let shape = net.value(output).shape.clone();
    let classes = match shape.as_slice() {
        [_, classes] | [_, classes, _, _] | [_, _, classes] => classes.as_fixed(),
        _ => None,
    };
    let Some(classes) = classes.filter(|_| net.value(output).dtype.is_float()) else {
        return Err(format!(
            "cross_entropy takes [batch, classes], [batch, sequence, classes] or [batch, classes, height, \
             width] from the last layer, not {shape:?}"
        ));
    };
    let content = Content::Below(classes);
    let said = |error: GraphError| error.to_string();
    if let [batch, sequence, classes] = shape.as_slice() {
        let target = net.input("y", DType::Int64, vec![*batch, *sequence], content);
        let rows = *batch * *sequence;
        let flat = View::Reshape(vec![rows, *classes]);
        let output = net.apply(Builder::ROOT, flat, &[output]).map_err(said)?;
        let target = net
            .apply(Builder::ROOT, View::Reshape(vec![rows]), &[target])
            .map_err(said)?;
        return net
            .apply(Builder::ROOT, Loss::CROSS_ENTROPY, &[output, target])
            .map_err(said);
    }
    let target = shape
        .iter()
        .enumerate()
        .filter(|(axis, _)| *axis != 1)
        .map(|(_, length)| *length);
    let target = net.input("y", DType::Int64, target.collect(), content);
    net.apply(Builder::ROOT, Loss::CROSS_ENTROPY, &[output, target])
        .map_err(said)
}

//! From [`Layers`] to a graph.

use std::collections::HashMap;

use super::{INPUT, Layer, LayerKind, Layers};
use crate::graph::{Graph, GraphError};
use crate::limits::shorten;
use crate::request_error::{RequestError, nearest};
use crate::shape::{DType, Extent, Window, is_oversize};
use crate::tracing::{
    Argument, BatchNorm, Conv, Embedding, LayerNorm, Linear, ModulePath, Pointwise as _, Tensor,
    Tensors as _, Tracer, Views as _, functional,
};

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
    let tracer = Tracer::new("torch.nn.modules.container.Sequential", DType::Float32);
    let mut last = tracer.input("x", &shape, model.dtype);
    let mut results: HashMap<String, Tensor> = HashMap::from([(INPUT.to_owned(), last.clone())]);

    for (index, layer) in model.stack.iter().enumerate() {
        let pointer = format!("{}/{index}", model.pointer);
        let name = layer.name.clone().unwrap_or_else(|| index.to_string());
        let inputs = operands(layer, &results, &last, &pointer)?;
        agree(layer, &inputs[0], &pointer)?;
        last = apply(layer, &name, &inputs)
            .and_then(|made| tracer.check().map(|()| made))
            .map_err(|error| RequestError::at(&pointer, error.to_string()))?;
        if results.insert(name.clone(), last.clone()).is_some() {
            return Err(RequestError::at(
                format!("{pointer}/name"),
                format!("there is a layer named {name:?} before this one"),
            ));
        }
    }
    let end = format!("{}/{}", model.pointer, model.stack.len() - 1);
    let graph = loss(&last).and_then(|loss| {
        let graph = tracer.finish_with(Some(&last), &loss);
        graph.map_err(|error| error.to_string())
    });
    // Which results a loop over layers would let go of early is not known: they live as in any graph without lifetimes.
    Ok(Graph {
        loss_is_model_output: false,
        releases: None,
        ..graph.map_err(|problem| RequestError::at(end, problem))?
    })
}

fn operands(
    layer: &Layer,
    results: &HashMap<String, Tensor>,
    last: &Tensor,
    pointer: &str,
) -> Result<Vec<Tensor>, RequestError> {
    if layer.inputs.is_empty() {
        return Ok(vec![last.clone()]);
    }
    layer
        .inputs
        .iter()
        .enumerate()
        .map(|(index, name)| {
            results.get(name).cloned().ok_or_else(|| {
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
fn agree(layer: &Layer, input: &Tensor, pointer: &str) -> Result<(), RequestError> {
    let shape = input.shape();
    let embeds = matches!(layer.kind, LayerKind::Embedding { .. });
    let any = matches!(layer.kind, LayerKind::Flatten { .. });
    if !any && embeds == input.dtype().dtype.is_float() {
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
        } => ("in_features", *said, shape.len() - 1),
        _ => return Ok(()),
    };
    match shape.get(axis) {
        Some(actual) if *actual != Extent::fixed(said) => Err(RequestError::at(
            format!("{pointer}/{field}"),
            format!("{field} is {said}, but the input {shape:?} has {actual}"),
        )),
        _ => Ok(()),
    }
}

fn apply(layer: &Layer, name: &str, inputs: &[Tensor]) -> Result<Tensor, GraphError> {
    let input = &inputs[0];
    let (tracer, shape) = (input.tracer(), input.shape());
    let path = name.to_owned();
    // Without a name it is a function that the root calls, not a module.
    let stateless = |class: &str, forward: &dyn Fn() -> Tensor| match layer.name {
        Some(_) => {
            let class = format!("torch.nn.modules.{class}");
            tracer.in_module(&ModulePath::new(name, class), forward)
        }
        None => forward(),
    };
    let known = |op, length: Option<&Extent>, wanted: &str| {
        let problem = || GraphError {
            op,
            module: name.to_owned(),
            problem: format!("the input {shape:?} is not {wanted}"),
        };
        length.and_then(|it| it.as_fixed()).ok_or_else(problem)
    };
    let channels = |op| {
        let channels = shape.get(1).filter(|_| shape.len() == 4);
        known(op, channels, "[batch, channels, height, width]")
    };
    Ok(match &layer.kind {
        LayerKind::Conv2d {
            out_channels,
            window,
            bias,
            ..
        } => {
            let channels = [channels("conv2d")?, *out_channels];
            let kernel = &window.kernel[1..];
            let mut conv = Conv::new(&tracer, path, channels, kernel, window.groups, *bias);
            conv.stride = plane(window.stride);
            conv.padding = plane(window.padding);
            conv.dilation = plane(window.dilation);
            conv.forward(input)
        }
        LayerKind::BatchNorm2d { momentum, eps, .. } => {
            BatchNorm::new(&tracer, path, channels("batch_norm")?, *momentum, *eps).forward(input)
        }
        LayerKind::Linear {
            out_features, bias, ..
        } => {
            let last = shape.last().filter(|_| shape.len() > 1);
            let features = known("linear", last, "[batch, ..., features]")?;
            Linear::new(&tracer, path, [features, *out_features], *bias).forward(input)
        }
        LayerKind::LayerNorm {
            normalized_shape,
            eps,
        } => {
            let last = [input.length(-1)];
            let lengths = normalized_shape.as_deref().unwrap_or(&last);
            LayerNorm::over(&tracer, path, lengths, *eps).forward(input)
        }
        LayerKind::Embedding {
            num_embeddings,
            embedding_dim,
        } => Embedding::new(&tracer, path, [*num_embeddings, *embedding_dim]).forward(input),
        LayerKind::Relu { inplace } => stateless("activation.ReLU", &|| {
            if *inplace {
                input.change_in_place("aten.relu_.default", &[]);
                input.clone()
            } else {
                input.relu()
            }
        }),
        LayerKind::Gelu { approximate } => {
            stateless("activation.GELU", &|| input.gelu(approximate))
        }
        LayerKind::MaxPool2d(window) => stateless("pooling.MaxPool2d", &|| max_pool(input, window)),
        LayerKind::AdaptiveAvgPool2d([height, width]) => {
            let size = Argument::Ints(plane([1, *height, *width]));
            let how = [("output_size", size)];
            let pool = || input.apply("aten.adaptive_avg_pool2d.default", &how);
            stateless("pooling.AdaptiveAvgPool2d", &pool)
        }
        LayerKind::Flatten { start_dim } => {
            if *start_dim >= shape.len() as u64 {
                return Err(GraphError {
                    op: "flatten",
                    module: String::new(),
                    problem: format!("there is no dimension {start_dim} in {shape:?}"),
                });
            }
            let flatten = || input.flatten(start_dim.cast_signed(), -1);
            stateless("flatten.Flatten", &flatten)
        }
        LayerKind::Dropout { p } => {
            stateless("dropout.Dropout", &|| functional::dropout(input, *p))
        }
        LayerKind::Add => input.add(&inputs[1]),
    })
}

/// `F.max_pool2d(x, ...)`
fn max_pool(x: &Tensor, window: &Window) -> Tensor {
    let how = [
        ("kernel_size", Argument::Ints(plane(window.kernel))),
        ("stride", Argument::Ints(plane(window.stride))),
        ("padding", Argument::Ints(plane(window.padding))),
        ("dilation", Argument::Ints(plane(window.dilation))),
        ("ceil_mode", Argument::Bool(window.ceil_mode)),
    ];
    x.apply("aten.max_pool2d.default", &how)
}

/// What a window says of height and width.
fn plane([_, height, width]: [u64; 3]) -> Vec<i64> {
    [height, width].map(u64::cast_signed).to_vec()
}

/// Cross entropy of the last result. Of `[batch, sequence, classes]`, every position is a prediction of
/// its own, as in language models; otherwise classes are along dimension 1, as PyTorch has them.
fn loss(output: &Tensor) -> Result<Tensor, String> {
    let shape = output.shape();
    let axis = match shape.len() {
        2 | 4 => 1,
        3 => 2,
        _ => 0,
    };
    let is_known = shape
        .get(axis)
        .is_some_and(|classes| classes.as_fixed().is_some());
    if !is_known || !output.dtype().dtype.is_float() {
        return Err(format!(
            "cross_entropy takes [batch, classes], [batch, sequence, classes] or [batch, classes, height, \
             width] from the last layer, not {shape:?}"
        ));
    }
    let mut labels = shape;
    labels.remove(axis);
    let target = output.tracer().input("y", &labels, DType::Int64);
    Ok(if axis == 2 {
        functional::cross_entropy(output.flatten(0, 1), target.flatten(0, 1))
    } else {
        functional::cross_entropy(output, target)
    })
}

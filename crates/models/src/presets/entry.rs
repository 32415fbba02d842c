//! What the list of presets is made of.

use super::{Override, Preset};
use crate::graph::{Graph, GraphError};
use crate::shape::{DType, Extent, is_oversize};
use crate::tracing::functional::cross_entropy;
use crate::tracing::{Frame, Tensor, Tracer};

/// A preset and what builds it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) preset: Preset,
    pub(super) build: Build,
}

/// Builds a preset with its loss.
type Build = fn(&Sizes) -> Result<Graph, GraphError>;

/// What the overrides of a preset say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Height and width.
    pub(super) image: [u64; 2],
    pub(super) classes: u64,
    pub(super) channels: u64,
}

/// Overrides of classifiers of images as large as those that most of torchvision's weights were made with.
pub(super) const AT_224: &[Override] = &image(224, 1000);

/// What a model of images lets a request change.
pub(super) const fn image(size: u64, classes: u64) -> [Override; 3] {
    [
        Override {
            name: "image_size",
            default: Some(size),
            summary: "height and width of the images: one number, or [height, width]",
        },
        Override {
            name: "num_classes",
            default: Some(classes),
            summary: "number of classes",
        },
        Override {
            name: "in_channels",
            default: Some(3),
            summary: "number of channels",
        },
    ]
}

/// An entry of the list.
pub(super) const fn entry(
    name: &'static str,
    summary: &'static str,
    parameters: u64,
    overrides: &'static [Override],
    build: Build,
) -> Entry {
    Entry {
        preset: Preset {
            name,
            summary,
            parameters,
            overrides,
        },
        build,
    }
}

/// A model of this class that gives each image a class, with its loss.
pub(super) fn classifier(
    sizes: &Sizes,
    class: &str,
    model: impl FnOnce(&Frame, &Tensor) -> Tensor,
) -> Result<Graph, GraphError> {
    trained(sizes, class, &[Extent::BATCH], |at, x, y| {
        cross_entropy(model(at, x), y)
    })
}

/// A model of this class that gives each pixel a class, with its loss.
pub(super) fn segmenter(
    sizes: &Sizes,
    class: &str,
    model: impl FnOnce(&Frame, &Tensor) -> Tensor,
) -> Result<Graph, GraphError> {
    let [height, width] = sizes.image.map(Extent::fixed);
    let labels = [Extent::BATCH, height, width];
    trained(sizes, class, &labels, |at, x, y| {
        cross_entropy(model(at, x), y)
    })
}

/// A model of this class, trained on images and on labels of this shape by this loss.
pub(super) fn trained(
    sizes: &Sizes,
    class: &str,
    labels: &[Extent],
    loss: impl FnOnce(&Frame, &Tensor, &Tensor) -> Tensor,
) -> Result<Graph, GraphError> {
    let tracer = Tracer::new(class, DType::Float32);
    let module = class.rfind('.').map_or(0, |end| end + 1);
    let at = Frame::of_classes(&tracer, &class[..module]);
    let [height, width] = sizes.image;
    let mut image = vec![Extent::BATCH];
    image.extend([sizes.channels, height, width].map(Extent::fixed));
    if is_oversize(&image) {
        tracer.fail(
            "conv2d",
            format!("images of {image:?} are too large for any device"),
        );
    }
    let x = tracer.input("x", &image, DType::Float32);
    let y = tracer.input("y", labels, DType::Int64);
    let loss = loss(&at, &x, &y);
    let graph = tracer.finish(&loss)?;
    // These models return what they predict, and the training loop scores it.
    Ok(Graph {
        loss_is_model_output: false,
        ..graph
    })
}

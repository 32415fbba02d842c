//! Stages, which end in fewer and wider patches.

use super::layer::layer;
use super::{INNER_EPS, Swin};
use crate::huggingface::prelude::*;

/// `SwinStage`: the result, the same as an image, and how many patches there are then.
pub(super) fn stage(
    at: &Frame,
    config: &Swin,
    index: usize,
    x: &Tensor,
    dimensions: [u64; 2],
) -> (Tensor, Tensor, [u64; 2]) {
    let sizes = &config.stages[index];
    let mut hidden_states = x.clone();
    for (block, rate) in sizes.drop_paths.iter().enumerate() {
        let shift = if block.is_multiple_of(2) {
            0
        } else {
            config.window / 2
        };
        hidden_states = at.call(&format!("blocks.{block}"), "Layer", |at| {
            layer(
                at,
                config,
                sizes,
                (*rate, shift),
                &hidden_states,
                dimensions,
            )
        });
    }
    let before_downsampling = hidden_states.clone();
    let [mut height, mut width] = dimensions;
    if index + 1 < config.stages.len() {
        hidden_states = at.call("downsample", "PatchMerging", |at| {
            merged(at, sizes.width, &before_downsampling, dimensions)
        });
        [height, width] = [height.div_ceil(2), width.div_ceil(2)];
    }
    let (batch, channels) = (x.size(0), hidden_states.size(2));
    let reshaped = (&hidden_states)
        .view(&[batch.into(), height.into(), width.into(), channels.into()])
        .permute(&[0, 3, 1, 2])
        .contiguous();
    drop(before_downsampling);
    (hidden_states, reshaped, [height, width])
}

/// `SwinPatchMerging`.
fn merged(at: &Frame, width: u64, x: &Tensor, [rows, columns]: [u64; 2]) -> Tensor {
    at.made(&["reduction"]);
    let (batch, channels) = (x.size(0), x.length(2));
    let mut input_feature = x.view(&[batch.into(), rows.into(), columns.into(), channels.into()]);
    if rows % 2 == 1 || columns % 2 == 1 {
        let [below, right] = [rows % 2, columns % 2].map(u64::cast_signed);
        input_feature = (&input_feature).pad(&[0, 0, 0, right, 0, below], None);
    }
    let corners = [(0, 0), (1, 0), (0, 1), (1, 1)];
    let corners = corners.map(|(row, column)| {
        let rows = (&input_feature).slice_every(1, row, 2);
        rows.slice_every(2, column, 2)
    });
    input_feature = at.tracer().cat(corners, -1);
    let four = channels.saturating_mul(4);
    input_feature = (&input_feature).view(&[batch.into(), Size::REST, four.into()]);
    let four = width.saturating_mul(4);
    input_feature = at.layer_norm("norm", four, INNER_EPS, input_feature);
    at.linear(
        "reduction",
        [four, width.saturating_mul(2)],
        false,
        input_feature,
    )
}

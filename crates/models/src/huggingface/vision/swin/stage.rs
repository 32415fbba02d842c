//! Stages, which end in fewer and wider patches.

use super::layer::new_layer;
use super::{CODE, INNER_EPS, Swin};
use crate::huggingface::prelude::*;

/// `SwinStage`: the result, the same as an image, and how many patches there are then.
pub(super) fn new_stage(
    tracer: &Tracer,
    path: String,
    config: &Swin,
    index: usize,
) -> impl Fn(&Tensor, [u64; 2]) -> (Tensor, Tensor, [u64; 2]) + use<> {
    let place = CODE.place(path, "Stage");
    let sizes = &config.stages[index];
    let rates = sizes.drop_paths.iter().enumerate();
    let blocks = rates.map(|(block, rate)| {
        let path = place.path(&format!("blocks.{block}"));
        let shift = if block.is_multiple_of(2) {
            0
        } else {
            config.window / 2
        };
        new_layer(tracer, path, config, sizes, *rate, shift)
    });
    let blocks: Vec<_> = blocks.collect();
    let is_last = index + 1 == config.stages.len();
    let downsample = (!is_last).then(|| new_merging(tracer, place.path("downsample"), sizes.width));
    move |x: &Tensor, dimensions: [u64; 2]| {
        x.tracer().in_module(&place, || {
            let mut hidden_states = x.clone();
            for block in &blocks {
                hidden_states = block(&hidden_states, dimensions);
            }
            let before_downsampling = hidden_states.clone();
            let [mut height, mut width] = dimensions;
            if let Some(downsample) = &downsample {
                hidden_states = downsample(&before_downsampling, dimensions);
                [height, width] = [height.div_ceil(2), width.div_ceil(2)];
            }
            let (batch, channels) = (x.size(0), hidden_states.size(2));
            let reshaped = (&hidden_states)
                .view(&[batch.into(), height.into(), width.into(), channels.into()])
                .permute(&[0, 3, 1, 2])
                .contiguous();
            drop(before_downsampling);
            (hidden_states, reshaped, [height, width])
        })
    }
}

/// `SwinPatchMerging`.
fn new_merging(
    tracer: &Tracer,
    path: String,
    width: u64,
) -> impl Fn(&Tensor, [u64; 2]) -> Tensor + use<> {
    let place = CODE.place(path, "PatchMerging");
    let four = width.saturating_mul(4);
    let sizes = [four, width.saturating_mul(2)];
    let reduction = Linear::new(tracer, place.path("reduction"), sizes, false);
    let norm = LayerNorm::new(tracer, place.path("norm"), four, INNER_EPS);

    move |x: &Tensor, [height, width]: [u64; 2]| {
        let tracer = x.tracer();
        tracer.in_module(&place, || {
            let (batch, channels) = (x.size(0), x.length(2));
            let mut input_feature =
                x.view(&[batch.into(), height.into(), width.into(), channels.into()]);
            if height % 2 == 1 || width % 2 == 1 {
                let [below, right] = [height % 2, width % 2].map(u64::cast_signed);
                input_feature = (&input_feature).pad(&[0, 0, 0, right, 0, below], None);
            }
            let corners = [(0, 0), (1, 0), (0, 1), (1, 1)];
            let corners = corners.map(|(row, column)| {
                let rows = (&input_feature).slice_every(1, row, 2);
                rows.slice_every(2, column, 2)
            });
            input_feature = tracer.cat(corners, -1);
            let four = channels.saturating_mul(4);
            input_feature = (&input_feature).view(&[batch.into(), Size::REST, four.into()]);
            input_feature = norm.forward(&input_feature);
            input_feature = reduction.forward(&input_feature);
            input_feature
        })
    }
}

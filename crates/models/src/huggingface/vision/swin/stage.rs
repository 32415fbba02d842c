//! Stages, which end in fewer and wider patches.

use super::layer::Layer;
use super::{INNER_EPS, Swin};
use crate::tracing::{LayerNorm, Linear, ModulePath, Size, Tensor, Tracer, Views as _};

/// `SwinStage`.
pub(super) struct Stage {
    place: ModulePath,
    blocks: Vec<Layer>,
    downsample: Option<Merging>,
}

impl Stage {
    pub(super) fn new(tracer: &Tracer, path: String, config: &Swin, index: usize) -> Stage {
        let place = ModulePath::new(path, "transformers.models.swin.modeling_swin.SwinStage");
        let sizes = &config.stages[index];
        let rates = sizes.drop_paths.iter().enumerate();
        let blocks = rates.map(|(block, rate)| {
            let path = place.path(&format!("blocks.{block}"));
            let shift = if block.is_multiple_of(2) {
                0
            } else {
                config.window / 2
            };
            Layer::new(tracer, path, config, sizes, *rate, shift)
        });
        let blocks = blocks.collect();
        let is_last = index + 1 == config.stages.len();
        Stage {
            blocks,
            downsample: (!is_last)
                .then(|| Merging::new(tracer, place.path("downsample"), sizes.width)),
            place,
        }
    }

    pub(super) fn has_downsampling(&self) -> bool {
        self.downsample.is_some()
    }

    /// The result, and the same as an image.
    pub(super) fn forward(&self, x: &Tensor, dimensions: [u64; 2]) -> (Tensor, Tensor) {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = x.clone();
            for block in &self.blocks {
                hidden_states = block.forward(&hidden_states, dimensions);
            }
            let before_downsampling = hidden_states.clone();
            let [mut height, mut width] = dimensions;
            if let Some(downsample) = &self.downsample {
                hidden_states = downsample.forward(&before_downsampling, dimensions);
                [height, width] = [height.div_ceil(2), width.div_ceil(2)];
            }
            let (batch, channels) = (x.size(0), hidden_states.size(2));
            let reshaped = (&hidden_states)
                .view(&[batch.into(), height.into(), width.into(), channels.into()])
                .permute(&[0, 3, 1, 2])
                .contiguous();
            drop(before_downsampling);
            (hidden_states, reshaped)
        })
    }
}

/// `SwinPatchMerging`.
struct Merging {
    place: ModulePath,
    reduction: Linear,
    norm: LayerNorm,
}

impl Merging {
    fn new(tracer: &Tracer, path: String, width: u64) -> Merging {
        let place = ModulePath::new(
            path,
            "transformers.models.swin.modeling_swin.SwinPatchMerging",
        );
        let four = width.saturating_mul(4);
        let sizes = [four, width.saturating_mul(2)];
        Merging {
            reduction: Linear::new(tracer, place.path("reduction"), sizes, false),
            norm: LayerNorm::new(tracer, place.path("norm"), four, INNER_EPS),
            place,
        }
    }

    fn forward(&self, x: &Tensor, [height, width]: [u64; 2]) -> Tensor {
        let tracer = x.tracer();
        tracer.in_module(&self.place, || {
            let (batch, channels) = (x.size(0), x.length(2));
            let mut input_feature =
                x.view(&[batch.into(), height.into(), width.into(), channels.into()]);
            if height % 2 == 1 || width % 2 == 1 {
                let [below, right] = [height % 2, width % 2].map(u64::cast_signed);
                input_feature = (&input_feature).pad(&[0, 0, 0, right, 0, below], None);
            }
            let corners = [(0, 0), (1, 0), (0, 1), (1, 1)];
            let corners = corners.map(|(row, column)| {
                let rows = (&input_feature).every_other(1, row);
                rows.every_other(2, column)
            });
            input_feature = tracer.cat(corners, -1);
            let four = channels.saturating_mul(4);
            input_feature = (&input_feature).view(&[batch.into(), Size::REST, four.into()]);
            input_feature = self.norm.forward(&input_feature);
            input_feature = self.reduction.forward(&input_feature);
            input_feature
        })
    }
}

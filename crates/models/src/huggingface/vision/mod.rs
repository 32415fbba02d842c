//! Models of images.

pub(super) mod clip;
pub(super) mod convnext;
pub(super) mod dinov2;
mod mlp;
pub(super) mod swin;
pub(super) mod vit;

use crate::huggingface::prelude::*;

/// Height and width of the images that a config is for, where its class says 224.
const USUAL_SIZE: u64 = 224;

/// What the batch and the config say of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Images {
    /// Height and width of those in the batch.
    size: [u64; 2],
    channels: u64,
}

impl Images {
    /// The images of a task whose model takes any size.
    fn of_any_size(task: &Task<'_>, config: &Config<'_>) -> Result<Images, RequestError> {
        let usual = config.pair("image_size", USUAL_SIZE)?;
        Ok(Images {
            size: task.sizes.image_size.unwrap_or(usual),
            channels: config.size("num_channels", 3)?,
        })
    }

    /// The images of a task whose model takes those of its config.
    fn of_one_size(task: &Task<'_>, config: &Config<'_>) -> Result<Images, RequestError> {
        let images = Images::of_any_size(task, config)?;
        let [height, width] = config.pair("image_size", USUAL_SIZE)?;
        if images.size == [height, width] {
            return Ok(images);
        }
        Err(RequestError::at(
            format!("{}/image_size", task.pointer),
            format!(
                "the model takes images of {height} by {width} pixels, for which it has positions; leave image_size \
                 out, or change that of the config"
            ),
        ))
    }

    /// `pixel_values` of the batch.
    fn input(&self, tracer: &Tracer) -> Tensor {
        let [height, width] = self.size;
        let lengths = [self.channels, height, width].map(Extent::fixed);
        let [channels, height, width] = lengths;
        let shape = [Extent::BATCH, channels, height, width];
        tracer.input("pixel_values", &shape, tracer.dtype())
    }

    /// `...ForImageClassification`: a label for each image, from what `forward` makes of them. What else it names is held until the
    /// loss is there.
    fn classify<T>(
        &self,
        task: &Task<'_>,
        tracer: Tracer,
        (labels, width): (Labels, u64),
        forward: impl FnOnce(&Tensor) -> (Tensor, T),
    ) -> Result<Graph, RequestError> {
        let classifier = Linear::new(&tracer, "classifier", [width, labels.count], true);
        let pixel_values = self.input(&tracer);
        let targets = labels.input(&tracer);
        let (features, held) = forward(&pixel_values);
        let logits = classifier.forward(&features);
        let loss = labels.loss(&logits, &targets);
        drop((held, features));
        task.finish(tracer, &loss)
    }
}

/// How many patches of this size there are in height and width.
fn grid(config: &Config<'_>, size: [u64; 2], patch: [u64; 2]) -> Result<[u64; 2], RequestError> {
    let grid = [size[0] / patch[0], size[1] / patch[1]];
    if grid.contains(&0) {
        return Err(config.wrong(
            "patch_size",
            format!(
                "a patch of {} by {} pixels does not fit in an image of {} by {}",
                patch[0], patch[1], size[0], size[1]
            ),
        ));
    }
    Ok(grid)
}

/// `torch.linspace(0, most, count)`, which counts up from its start and down to its end, in single precision.
#[expect(
    clippy::cast_possible_truncation,
    reason = "PyTorch rounds to single precision, too"
)]
fn evenly_up_to(most: f64, count: u64) -> Vec<f64> {
    let most = most as f32;
    let step = most / count.saturating_sub(1).max(1) as f32;
    let at = |index: u64| {
        if index < count / 2 || count == 1 {
            step * index as f32
        } else {
            most - step * (count - 1 - index) as f32
        }
    };
    (0..count).map(|index| f64::from(at(index))).collect()
}

/// `drop_path`: skips the branch of a layer for some samples, if there is anything to skip by.
fn drop_path(at: &Frame, rate: f64, x: &Tensor) -> Tensor {
    if rate <= 0.0 {
        return x.clone();
    }
    at.call("drop_path", "DropPath", |at| {
        let keep = 1.0 - rate;
        let ones = x.shape().len().saturating_sub(1);
        let mut shape = vec![x.size(0).into()];
        shape.resize(ones + 1, Size::from(1));
        let mut random = at.tracer().rand(&shape, x.dtype().dtype);
        random = (&random).add_number(keep).floor();
        x.div_number(keep).mul(&random).and_drop(random)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::evenly_up_to;
    use crate::huggingface::{Run, lower, parse};

    /// What is wrong with a model, and where.
    fn problem(model: &Value) -> String {
        let built = parse(model, "/model").and_then(|model| lower(&model, Run::default()));
        let invalid = built.expect_err("something is wrong with it");
        format!("{}: {}", invalid.pointer, invalid.problem)
    }

    #[test]
    fn rates_are_those_of_linspace() {
        let from_pytorch = [
            0.0,
            0.050_000_000_745_058_06,
            0.100_000_001_490_116_12,
            0.150_000_005_960_464_48,
            0.200_000_002_980_232_24,
        ];

        let bits = |numbers: &[f64]| -> Vec<u64> { numbers.iter().map(|n| n.to_bits()).collect() };
        assert_eq!(bits(&evenly_up_to(0.2, 5)), bits(&from_pytorch));
        assert_eq!(bits(&evenly_up_to(0.2, 1)), bits(&[0.0]));
    }

    #[test]
    fn other_images_than_those_with_positions_are_refused() {
        let config = json!({ "architectures": ["ViTForImageClassification"], "image_size": 64 });

        let problem = problem(&json!({ "hf": config, "image_size": 32 }));

        assert!(problem.starts_with("/model/image_size: the model takes images of 64 by 64"));
    }

    #[test]
    fn sizes_that_do_not_fit_are_told_where_they_are() {
        let of = |class: &str, values: &Value| {
            let mut config = json!({ "architectures": [class] });
            let members = values.as_object().expect("an object").clone();
            config.as_object_mut().expect("an object").extend(members);
            problem(&json!({ "hf": config }))
        };

        let heads = of(
            "ViTForImageClassification",
            &json!({ "num_attention_heads": 7 }),
        );
        let patch = of("DeiTForImageClassification", &json!({ "patch_size": 300 }));
        let depths = of(
            "ConvNextForImageClassification",
            &json!({ "depths": [2000] }),
        );
        let labels = of("SwinForImageClassification", &json!({ "id2label": {} }));
        let window = of(
            "SwinForImageClassification",
            &json!({ "window_size": 2_147_483_648_u64 }),
        );

        assert!(
            heads.starts_with("/model/hf/num_attention_heads: "),
            "{heads}"
        );
        assert!(patch.starts_with("/model/hf/patch_size: "), "{patch}");
        assert!(depths.starts_with("/model/hf/depths: "), "{depths}");
        assert!(labels.starts_with("/model/hf/id2label: "), "{labels}");
        assert!(window.contains("too large for any device"), "{window}");
    }
}

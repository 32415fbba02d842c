//! Layers whose tokens attend to those in the same window.

use super::{Sizes, Swin};
use crate::huggingface::attention::sdpa;
use crate::huggingface::vision::DropPath;
use crate::huggingface::vision::mlp::Mlp;
use crate::shape::{DType, Extent};
use crate::tracing::functional::Attention as Settings;
use crate::tracing::{
    AsksFor, Dropout, LayerNorm, Linear, ModulePath, Pointwise as _, Size, Tensor, Tracer,
    Views as _,
};

/// What is added to scores of tokens that do not attend to each other.
const APART: f64 = -100.0;

/// `SwinRelativePositionBias`.
struct PositionBias {
    place: ModulePath,
    table: Tensor,
    index: Tensor,
    window_area: u64,
}

impl PositionBias {
    fn new(tracer: &Tracer, path: String, heads: u64, window: u64) -> PositionBias {
        let place = ModulePath::new(
            path,
            "transformers.models.swin.modeling_swin.SwinRelativePositionBias",
        );
        let distances = window.saturating_mul(2).saturating_sub(1);
        let table = [distances.saturating_mul(distances), heads];
        let window_area = window.saturating_mul(window);
        let index = [window_area.saturating_mul(window_area)];
        PositionBias {
            table: tracer.parameter(&place.path("relative_position_bias_table"), &table),
            index: tracer.buffer(&place.path("relative_position_index"), &index, DType::Int64),
            window_area,
            place,
        }
    }

    fn forward(&self) -> Tensor {
        self.table.tracer().in_module(&self.place, || {
            let mut bias = (&self.table).index(&[Some(&self.index)]);
            let area = self.window_area.into();
            bias = (&bias).view(&[area, area, Size::REST]);
            (&bias).permute(&[2, 0, 1]).contiguous().unsqueeze(0)
        })
    }
}

/// `SwinAttention`.
struct Attention {
    place: ModulePath,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    relative_position_bias: PositionBias,
    head_dim: u64,
    dropout: f64,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Swin, sizes: &Sizes) -> Attention {
        let place = ModulePath::new(path, "transformers.models.swin.modeling_swin.SwinAttention");
        let linear = |name: &str, bias| {
            Linear::new(tracer, place.path(name), [sizes.width, sizes.width], bias)
        };
        Attention {
            q_proj: linear("q_proj", config.qkv_bias),
            k_proj: linear("k_proj", config.qkv_bias),
            v_proj: linear("v_proj", config.qkv_bias),
            o_proj: linear("o_proj", true),
            relative_position_bias: PositionBias::new(
                tracer,
                place.path("relative_position_bias"),
                sizes.heads,
                config.window,
            ),
            head_dim: sizes.width / sizes.heads,
            dropout: config.attention_dropout,
            place,
        }
    }

    fn forward(&self, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let (windows, tokens) = (x.size(0), x.size(1));
            let heads = [
                windows.into(),
                tokens.into(),
                Size::REST,
                self.head_dim.into(),
            ];
            let query = self.q_proj.forward(x).view(&heads).transpose(1, 2);
            let key = self.k_proj.forward(x).view(&heads).transpose(1, 2);
            let value = self.v_proj.forward(x).view(&heads).transpose(1, 2);
            let bias = self.relative_position_bias.forward();
            let mask = mask.map(|mask| for_all_samples(mask, windows, tokens));
            let combined_mask = match &mask {
                Some(mask) => (&bias).add(mask),
                None => bias.clone(),
            };
            let settings = Settings {
                mask: Some(&combined_mask),
                dropout: self.dropout,
                scale: Some((self.head_dim as f64).powf(-0.5)),
                ..Settings::default()
            };
            let mut output = sdpa(&query, &key, &value, settings);
            output = (&output)
                .reshape(&[windows.into(), tokens.into(), Size::REST])
                .contiguous();
            output = self.o_proj.forward(&output);
            output.and_drop((mask, query, key, value, bias, combined_mask))
        })
    }
}

/// The mask of an image's windows, once for each image.
fn for_all_samples(mask: &Tensor, windows: Extent, tokens: Extent) -> Tensor {
    let of_image = mask.length(0).max(1);
    let batch = windows.floor_div(of_image).unwrap_or(Extent::ONE);
    mask.unsqueeze(1)
        .unsqueeze(0)
        .expand(&[batch.into(), Size::REST, Size::REST, Size::REST, Size::REST])
        .reshape(&[Size::REST, 1.into(), tokens.into(), tokens.into()])
}

/// `SwinLayer`.
pub(super) struct Layer {
    place: ModulePath,
    attention: Attention,
    layernorm_before: LayerNorm,
    layernorm_after: LayerNorm,
    mlp: Mlp,
    dropout: Dropout,
    drop_path: DropPath,
    window: u64,
    shift: u64,
}

impl Layer {
    pub(super) fn new(
        tracer: &Tracer,
        path: String,
        config: &Swin,
        sizes: &Sizes,
        drop_path: f64,
        shift: u64,
    ) -> Layer {
        let place = ModulePath::new(path, "transformers.models.swin.modeling_swin.SwinLayer");
        let norm = |name| LayerNorm::new(tracer, place.path(name), sizes.width, config.eps);
        let mlp = ModulePath::new(
            place.path("mlp"),
            "transformers.models.swin.modeling_swin.SwinMLP",
        );
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`int()` truncates, and what does not fit is too large for any device"
        )]
        let inner = (config.mlp_ratio * sizes.width as f64) as u64;
        Layer {
            attention: Attention::new(tracer, place.path("attention"), config, sizes),
            layernorm_before: norm("layernorm_before"),
            layernorm_after: norm("layernorm_after"),
            mlp: Mlp::new(tracer, mlp, [sizes.width, inner], &config.activation),
            dropout: Dropout::new(place.path("dropout"), config.dropout),
            drop_path: DropPath::new(
                place.path("drop_path"),
                "transformers.models.swin.modeling_swin.SwinDropPath",
                drop_path,
            ),
            window: config.window,
            shift,
            place,
        }
    }

    pub(super) fn forward(&self, x: &Tensor, [height, width]: [u64; 2]) -> Tensor {
        let tracer = x.tracer();
        tracer.in_module(&self.place, || {
            // `set_shift_and_window_size`
            let shortest = height.min(width);
            let (window, shift) = if shortest <= self.window {
                (shortest, 0)
            } else {
                (self.window, self.shift)
            };
            let (batch, channels) = (x.size(0), x.length(2));
            let mut hidden_states = self.layernorm_before.forward(x);
            hidden_states = (&hidden_states).view(&[
                batch.into(),
                height.into(),
                width.into(),
                channels.into(),
            ]);
            let [below, right] = [height, width]
                .map(|length| (window - length % window) % window)
                .map(u64::cast_signed);
            hidden_states = (&hidden_states).pad(&[0, 0, 0, right, 0, below], None);
            let padded = [hidden_states.length(1), hidden_states.length(2)];
            let area = window.saturating_mul(window);
            let mut windows = partition(shifted(&hidden_states, shift, -1), window);
            windows = (&windows).view(&[Size::REST, area.into(), channels.into()]);
            let dtype = hidden_states.dtype();
            let mask = (shift > 0).then(|| attention_mask(&tracer, padded, window, shift, dtype));
            let mut attention_output = self.attention.forward(&windows, mask.as_ref());
            attention_output = self.dropout.forward(&attention_output);
            let mut attention_windows = (&attention_output).view(&[
                Size::REST,
                window.into(),
                window.into(),
                channels.into(),
            ]);
            attention_windows = shifted(&reversed(&attention_windows, window, padded), shift, 1);
            if right > 0 || below > 0 {
                attention_windows = (&attention_windows)
                    .slice(1, 0, height.cast_signed())
                    .slice(2, 0, width.cast_signed())
                    .contiguous();
            }
            let tokens = height.saturating_mul(width);
            attention_windows =
                (&attention_windows).view(&[batch.into(), tokens.into(), channels.into()]);
            hidden_states = x.add(self.drop_path.forward(&attention_windows));
            let residual = hidden_states.clone();
            hidden_states = self.layernorm_after.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            hidden_states = self.dropout.forward(&hidden_states).add(&residual);
            hidden_states.and_drop((windows, mask, attention_output, attention_windows, residual))
        })
    }
}

/// `cyclic_shift`
fn shifted(x: &Tensor, shift: u64, direction: i64) -> Tensor {
    if shift == 0 {
        return x.clone();
    }
    let by = direction * shift.cast_signed();
    x.roll(&[by, by], &[1, 2])
}

/// `window_partition`
fn partition(x: Tensor, window: u64) -> Tensor {
    let (rows, columns) = (x.length(1) / window, x.length(2) / window);
    let channels: Size = x.size(3).into();
    let (batch, side): (Size, Size) = (x.size(0).into(), window.into());
    x.view(&[batch, rows.into(), side, columns.into(), side, channels])
        .transpose(2, 3)
        .contiguous()
        .view(&[Size::REST, side, side, channels])
}

/// `window_reverse`
fn reversed(windows: &Tensor, window: u64, [height, width]: [u64; 2]) -> Tensor {
    let channels: Size = windows.size(3).into();
    let side: Size = window.into();
    let (rows, columns) = (height / window, width / window);
    windows
        .view(&[
            Size::REST,
            rows.into(),
            columns.into(),
            side,
            side,
            channels,
        ])
        .transpose(2, 3)
        .contiguous()
        .view(&[Size::REST, height.into(), width.into(), channels])
}

/// `get_attn_mask`: tokens that only the shift has put into the same window do not attend to each other.
fn attention_mask(
    tracer: &Tracer,
    [height, width]: [u64; 2],
    window: u64,
    shift: u64,
    dtype: AsksFor,
) -> Tensor {
    let [rows, columns] = [height, width].map(|length| tracer.arange(length));
    let region = |index: &Tensor, length: u64| {
        let from = |least: u64| {
            let is_beyond = index.at_least_number(length.saturating_sub(least).cast_signed());
            is_beyond.to(DType::Int64)
        };
        from(window).add(from(shift))
    };
    let row_region = region(&rows, height);
    let column_region = region(&columns, width);
    let down = (&row_region).unsqueeze(0).unsqueeze(2).unsqueeze(3);
    let down = down.mul_number(3);
    let across = (&column_region).unsqueeze(0).unsqueeze(1).unsqueeze(3);
    let image = down.add(across).to_dtype_of(dtype);
    let mut windows = partition(image.clone(), window);
    let area = window.saturating_mul(window);
    windows = (&windows).view(&[Size::REST, area.into()]);
    let mut mask = (&windows).unsqueeze(1).sub((&windows).unsqueeze(2));
    mask = (&mask)
        .masked_fill((&mask).not_equal_to_number(0), APART)
        .masked_fill((&mask).equal_to_number(0), 0.0);
    mask.and_drop((rows, columns, row_region, column_region, image, windows))
}

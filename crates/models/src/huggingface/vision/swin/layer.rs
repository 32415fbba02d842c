//! Layers whose tokens attend to those in the same window.

use super::{CODE, Sizes, Swin};
use crate::huggingface::attention::{joined, sdpa};
use crate::huggingface::prelude::*;
use crate::huggingface::vision::DropPath;
use crate::huggingface::vision::mlp::new_mlp;
use crate::tracing::AsksFor;
use crate::tracing::functional::Attention as Settings;

/// What is added to scores of tokens that do not attend to each other.
const APART: f64 = -100.0;

/// `SwinRelativePositionBias`.
fn new_position_bias(
    tracer: &Tracer,
    path: String,
    heads: u64,
    window: u64,
) -> impl Fn() -> Tensor + use<> {
    let place = CODE.place(path, "RelativePositionBias");
    let distances = window.saturating_mul(2).saturating_sub(1);
    let table = [distances.saturating_mul(distances), heads];
    let window_area = window.saturating_mul(window);
    let index = [window_area.saturating_mul(window_area)];
    let table = tracer.parameter(&place.path("relative_position_bias_table"), &table);
    let index = tracer.buffer(&place.path("relative_position_index"), &index, DType::Int64);

    move || {
        table.tracer().in_module(&place, || {
            let mut bias = (&table).index(&[Some(&index)]);
            let area = window_area.into();
            bias = (&bias).view(&[area, area, Size::REST]);
            (&bias).permute(&[2, 0, 1]).contiguous().unsqueeze(0)
        })
    }
}

/// `SwinAttention`.
fn new_attention(
    tracer: &Tracer,
    path: String,
    config: &Swin,
    sizes: &Sizes,
) -> impl Fn(&Tensor, Option<&Tensor>) -> Tensor + use<> {
    let place = CODE.place(path, "Attention");
    let linear =
        |name: &str, bias| Linear::new(tracer, place.path(name), [sizes.width, sizes.width], bias);
    let q_proj = linear("q_proj", config.qkv_bias);
    let k_proj = linear("k_proj", config.qkv_bias);
    let v_proj = linear("v_proj", config.qkv_bias);
    let o_proj = linear("o_proj", true);
    let relative_position_bias = new_position_bias(
        tracer,
        place.path("relative_position_bias"),
        sizes.heads,
        config.window,
    );
    let head_dim = sizes.width / sizes.heads;
    let dropout = config.attention_dropout;

    move |x: &Tensor, mask: Option<&Tensor>| {
        x.tracer().in_module(&place, || {
            let (windows, tokens) = (x.size(0), x.size(1));
            let heads = [windows.into(), tokens.into(), Size::REST, head_dim.into()];
            let query = q_proj.forward(x).view(&heads).transpose(1, 2);
            let key = k_proj.forward(x).view(&heads).transpose(1, 2);
            let value = v_proj.forward(x).view(&heads).transpose(1, 2);
            let bias = relative_position_bias();
            let mask = mask.map(|mask| for_all_samples(mask, windows, tokens));
            let combined_mask = match &mask {
                Some(mask) => (&bias).add(mask),
                None => bias.clone(),
            };
            let settings = Settings {
                mask: Some(&combined_mask),
                dropout,
                scale: Some((head_dim as f64).powf(-0.5)),
                ..Settings::default()
            };
            let mut output = joined(sdpa(&query, &key, &value, settings));
            output = o_proj.forward(&output);
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
pub(super) fn new_layer(
    tracer: &Tracer,
    path: String,
    config: &Swin,
    sizes: &Sizes,
    drop_path: f64,
    shift: u64,
) -> impl Fn(&Tensor, [u64; 2]) -> Tensor + use<> {
    let place = CODE.place(path, "Layer");
    let norm = |name| LayerNorm::new(tracer, place.path(name), sizes.width, config.eps);
    let mlp = CODE.place(place.path("mlp"), "MLP");
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`int()` truncates, and what does not fit is too large for any device"
    )]
    let inner = (config.mlp_ratio * sizes.width as f64) as u64;
    let attention = new_attention(tracer, place.path("attention"), config, sizes);
    let layernorm_before = norm("layernorm_before");
    let layernorm_after = norm("layernorm_after");
    let mlp = new_mlp(tracer, mlp, [sizes.width, inner], &config.activation);
    let dropout = Dropout::new(place.path("dropout"), config.dropout);
    let drop_path = DropPath::new(CODE.place(place.path("drop_path"), "DropPath"), drop_path);
    let window = config.window;

    move |x: &Tensor, [height, width]: [u64; 2]| {
        let tracer = x.tracer();
        tracer.in_module(&place, || {
            // `set_shift_and_window_size`
            let shortest = height.min(width);
            let (window, shift) = if shortest <= window {
                (shortest, 0)
            } else {
                (window, shift)
            };
            let (batch, channels) = (x.size(0), x.length(2));
            let mut hidden_states = layernorm_before.forward(x);
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
            let mut attention_output = attention(&windows, mask.as_ref());
            attention_output = dropout.forward(&attention_output);
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
            hidden_states = x.add(drop_path.forward(&attention_windows));
            let residual = hidden_states.clone();
            hidden_states = layernorm_after.forward(&hidden_states);
            hidden_states = mlp.forward(&hidden_states);
            hidden_states = dropout.forward(&hidden_states).add(&residual);
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

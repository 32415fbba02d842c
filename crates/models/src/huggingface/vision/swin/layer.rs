//! Layers whose tokens attend to those in the same window.

use super::{Sizes, Swin};
use crate::huggingface::attention::{joined, sdpa};
use crate::huggingface::prelude::*;
use crate::huggingface::vision::drop_path;
use crate::huggingface::vision::mlp::mlp;
use crate::tracing::AsksFor;
use crate::tracing::functional::Attention as Settings;

/// What is added to scores of tokens that do not attend to each other.
const APART: f64 = -100.0;

/// `SwinRelativePositionBias`.
fn relative_position_bias(at: &Frame, heads: u64, window: u64) -> Tensor {
    let distances = window.saturating_mul(2).saturating_sub(1);
    let table = [distances.saturating_mul(distances), heads];
    let window_area = window.saturating_mul(window);
    let index = [window_area.saturating_mul(window_area)];
    let table = at.parameter("relative_position_bias_table", &table);
    let index = at.buffer("relative_position_index", &index, DType::Int64);
    let mut bias = (&table).index(&[Some(&index)]);
    let area = window_area.into();
    bias = (&bias).view(&[area, area, Size::REST]);
    (&bias).permute(&[2, 0, 1]).contiguous().unsqueeze(0)
}

/// `SwinAttention`.
fn attention(
    at: &Frame,
    config: &Swin,
    sizes: &Sizes,
    x: &Tensor,
    mask: Option<&Tensor>,
) -> Tensor {
    at.made(&["q_proj", "k_proj", "v_proj", "o_proj"]);
    let square = [sizes.width, sizes.width];
    let head_dim = sizes.width / sizes.heads;
    let (windows, tokens) = (x.size(0), x.size(1));
    let heads = [windows.into(), tokens.into(), Size::REST, head_dim.into()];
    let [query, key, value] = ["q_proj", "k_proj", "v_proj"].map(|name| {
        let states = at.linear(name, square, config.qkv_bias, x);
        states.view(&heads).transpose(1, 2)
    });
    let bias = at.call("relative_position_bias", "RelativePositionBias", |at| {
        relative_position_bias(at, sizes.heads, config.window)
    });
    let mask = mask.map(|mask| for_all_samples(mask, windows, tokens));
    let combined_mask = match &mask {
        Some(mask) => (&bias).add(mask),
        None => bias.clone(),
    };
    let settings = Settings {
        mask: Some(&combined_mask),
        dropout: config.attention_dropout,
        scale: Some((head_dim as f64).powf(-0.5)),
        ..Settings::default()
    };
    let mut output = joined(sdpa(&query, &key, &value, settings));
    output = at.linear("o_proj", square, true, output);
    output.and_drop((mask, query, key, value, bias, combined_mask))
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
pub(super) fn layer(
    at: &Frame,
    config: &Swin,
    sizes: &Sizes,
    (rate, shift): (f64, u64),
    x: &Tensor,
    [height, width]: [u64; 2],
) -> Tensor {
    at.made(&["attention"]);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`int()` truncates, and what does not fit is too large for any device"
    )]
    let inner = (config.mlp_ratio * sizes.width as f64) as u64;
    let norm = |name, x: &Tensor| at.layer_norm(name, sizes.width, config.eps, x);
    let dropout = |x: &Tensor| at.dropout("dropout", config.dropout, x);
    // `set_shift_and_window_size`
    let shortest = height.min(width);
    let (window, shift) = if shortest <= config.window {
        (shortest, 0)
    } else {
        (config.window, shift)
    };
    let (batch, channels): (Size, Size) = (x.size(0).into(), x.length(2).into());
    let mut hidden_states = norm("layernorm_before", x);
    hidden_states = (&hidden_states).view(&[batch, height.into(), width.into(), channels]);
    let [below, right] = [height, width]
        .map(|length| (window - length % window) % window)
        .map(u64::cast_signed);
    hidden_states = (&hidden_states).pad(&[0, 0, 0, right, 0, below], None);
    let padded = [hidden_states.length(1), hidden_states.length(2)];
    let area = window.saturating_mul(window);
    let mut windows = partition(shifted(&hidden_states, shift, -1), window);
    windows = (&windows).view(&[Size::REST, area.into(), channels]);
    let dtype = hidden_states.dtype();
    let mask = (shift > 0).then(|| attention_mask(at.tracer(), padded, window, shift, dtype));
    let mut attention_output = at.call("attention", "Attention", |at| {
        attention(at, config, sizes, &windows, mask.as_ref())
    });
    attention_output = dropout(&attention_output);
    let side = Size::from(window);
    let mut attention_windows = (&attention_output).view(&[Size::REST, side, side, channels]);
    attention_windows = shifted(&reversed(&attention_windows, window, padded), shift, 1);
    if right > 0 || below > 0 {
        attention_windows = (&attention_windows)
            .slice(1, 0, height.cast_signed())
            .slice(2, 0, width.cast_signed())
            .contiguous();
    }
    let tokens = height.saturating_mul(width);
    attention_windows = (&attention_windows).view(&[batch, tokens.into(), channels]);
    hidden_states = x.add(drop_path(at, rate, &attention_windows));
    let residual = hidden_states.clone();
    hidden_states = norm("layernorm_after", &hidden_states);
    let wide = [sizes.width, inner];
    hidden_states = at.call("mlp", "MLP", |at| {
        mlp(at, wide, &config.activation, &hidden_states)
    });
    hidden_states = dropout(&hidden_states).add(&residual);
    hidden_states.and_drop((windows, mask, attention_output, attention_windows, residual))
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
    let apart = [
        Size::REST,
        rows.into(),
        columns.into(),
        side,
        side,
        channels,
    ];
    windows.view(&apart).transpose(2, 3).contiguous().view(&[
        Size::REST,
        height.into(),
        width.into(),
        channels,
    ])
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

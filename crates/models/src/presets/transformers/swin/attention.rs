//! `ShiftedWindowAttention` and `ShiftedWindowAttentionV2`.

use super::{HEAD, Version, pad};
use crate::presets::prelude::*;
use crate::shape::{DType, Extent};
use crate::tracing::{Linear, Scalar, Tensors as _, functional};

/// `ShiftedWindowAttention` and `ShiftedWindowAttentionV2`, as they are called.
struct Attention<'a> {
    at: &'a Frame,
    version: Version,
    window: u64,
    is_shifted: bool,
    heads: u64,
    dim: u64,
}

/// Calls the attention of so many channels; its windows are shifted where the second number is 1.
pub(super) fn call(at: &Frame, version: Version, [dim, shifted]: [u64; 2], x: &Tensor) -> Tensor {
    let class = match version {
        Version::First => "ShiftedWindowAttention",
        Version::Second => "ShiftedWindowAttentionV2",
    };
    at.call("attn", class, |at| {
        at.made(&["qkv", "proj"]);
        let attention = Attention {
            at,
            version,
            window: version.window(),
            is_shifted: shifted == 1,
            heads: dim / HEAD,
            dim,
        };
        let relative_position_bias = attention.relative_position_bias();
        attention.shifted_window_attention(x, &relative_position_bias)
    })
}

impl Attention<'_> {
    /// `_get_relative_position_bias`.
    fn gather(&self, table: &Tensor) -> Tensor {
        let index = [self.window.pow(4)];
        let index = self
            .at
            .buffer("relative_position_index", &index, DType::Int64);
        let positions = Size::from(self.window * self.window);
        let mut bias = table.index(&[Some(&index)]);
        bias = (&bias).view(&[positions, positions, Size::REST]);
        (&bias).permute(&[2, 0, 1]).contiguous().unsqueeze(0)
    }

    /// `get_relative_position_bias`.
    fn relative_position_bias(&self) -> Tensor {
        let reach = 2 * self.window - 1;
        if self.version == Version::First {
            let sizes = [reach * reach, self.heads];
            return self.gather(&self.at.parameter("relative_position_bias_table", &sizes));
        }
        let sizes = [1, reach, reach, 2];
        let table = self
            .at
            .buffer("relative_coords_table", &sizes, DType::Float32);
        let table = sequential(self.at, "cpb_mlp", &table, |cpb_mlp| {
            cpb_mlp.linear([2, 512]);
            cpb_mlp.then(relu);
            cpb_mlp.then(|at, name, x| at.linear(name, [512, self.heads], false, x));
        });
        let table = table.view(&[Size::REST, self.heads.into()]);
        let mut bias = self.gather(&table);
        drop(table);
        bias = (&bias).sigmoid().mul_number(16);
        bias
    }

    /// The bias of the projection to queries, keys and values: keys have none in the second version, and its gradient is
    /// kept from there by a copy.
    fn qkv_bias(&self, bias: Option<&Tensor>) -> Option<Tensor> {
        let bias = bias?;
        if self.version == Version::First {
            return Some(bias.clone());
        }
        let bias = bias.copied();
        let length = (bias.length(0) / 3).cast_signed();
        let keys = (&bias).slice(0, length, 2 * length);
        keys.change_in_place("aten.zero_.default", &[]);
        drop(keys);
        Some(bias)
    }
}

/// How an image is taken apart into windows.
struct Windows {
    batch: Extent,
    /// Height and width of what is in them, without and with padding.
    size: [u64; 2],
    padded: [u64; 2],
    /// How many there are, in each direction.
    counts: [u64; 2],
    shift: [u64; 2],
}

impl Attention<'_> {
    fn windows(&self, input: &Tensor) -> Windows {
        let size = [input.length(1), input.length(2)];
        let counts = size.map(|length| length.div_ceil(self.window));
        let shift = counts.map(|count| {
            if self.is_shifted && count > 1 {
                self.window / 2
            } else {
                0
            }
        });
        Windows {
            batch: input.size(0),
            size,
            padded: counts.map(|count| count * self.window),
            counts,
            shift,
        }
    }

    /// `shifted_window_attention`.
    fn shifted_window_attention(&self, input: &Tensor, relative_position_bias: &Tensor) -> Tensor {
        let windows = self.windows(input);
        let Windows {
            batch,
            padded,
            counts: [rows, columns],
            shift,
            ..
        } = windows;
        let width = input.length(3);
        let side = Size::from(self.window);
        let positions = self.window * self.window;
        let is_rolled = shift != [0, 0];
        let [down, right] = shift.map(u64::cast_signed);

        let [bottom, end] = [0, 1].map(|dim| (padded[dim] - windows.size[dim]).cast_signed());
        let mut x = pad(input, end, bottom);
        if is_rolled {
            x = (&x).roll(&[-down, -right], &[1, 2]);
        }
        x = (&x).view(&[
            batch.into(),
            rows.into(),
            side,
            columns.into(),
            side,
            width.into(),
        ]);
        let flat = [Size::REST, positions.into(), width.into()];
        x = (&x).permute(&[0, 1, 3, 2, 4, 5]).reshape(&flat);

        let linear = |name: &str, outputs| {
            Linear::new(
                self.at.tracer(),
                self.at.path(name),
                [self.dim, outputs],
                true,
            )
        };
        let (of_qkv, proj) = (linear("qkv", 3 * self.dim), linear("proj", self.dim));
        let qkv_bias = self.qkv_bias(of_qkv.bias.as_ref());
        let mut qkv = functional::linear(&x, &of_qkv.weight, qkv_bias.as_ref());
        let head = width / self.heads;
        let by_head = [
            Size::REST,
            positions.into(),
            3.into(),
            self.heads.into(),
            head.into(),
        ];
        qkv = (&qkv).reshape(&by_head).permute(&[2, 0, 3, 1, 4]);
        let mut q = (&qkv).select(0, 0);
        let k = (&qkv).select(0, 1);
        let v = (&qkv).select(0, 2);
        let mut scale = None;
        let mut attn;
        if self.version == Version::Second {
            let logit_scale = self.at.parameter("logit_scale", &[self.heads, 1, 1]);
            attn = normalize(&q).matmul(normalize(&k).transpose(-2, -1));
            let most = Some(Scalar::Float(100_f64.ln()));
            let logit_scale = (&logit_scale).clamp(None, most).exp();
            attn = (&attn).mul(&logit_scale);
            scale = Some(logit_scale);
        } else {
            let root = (head as f64).powf(-0.5);
            q = (&q).mul_number(root);
            attn = (&q).matmul((&k).transpose(-2, -1));
        }
        attn = (&attn).add(relative_position_bias);

        let mut attn_mask = None;
        if is_rolled {
            let mask = self.mask(&x, &windows);
            let heads = Size::from(self.heads);
            let count = Size::from(rows * columns);
            let pairs = [positions.into(), positions.into()];
            attn = (&attn).view(&[batch.into(), count, heads, pairs[0], pairs[1]]);
            attn = (&attn).add((&mask).unsqueeze(1).unsqueeze(0));
            attn = (&attn).view(&[Size::REST, heads, pairs[0], pairs[1]]);
            attn_mask = Some(mask);
        }

        attn = (&attn).softmax(-1, None);
        attn = functional::dropout(&attn, 0.0);
        x = (&attn).matmul(&v).transpose(1, 2).reshape(&flat);
        x = functional::linear(&x, &proj.weight, proj.bias.as_ref());
        x = functional::dropout(&x, 0.0);

        x = (&x).view(&[
            batch.into(),
            rows.into(),
            columns.into(),
            side,
            side,
            width.into(),
        ]);
        let [height, breadth] = padded.map(Size::from);
        let image = [batch.into(), height, breadth, width.into()];
        x = (&x).permute(&[0, 1, 3, 2, 4, 5]).reshape(&image);
        if is_rolled {
            x = (&x).roll(&[down, right], &[1, 2]);
        }
        x = unpadded(&x, &windows).contiguous();
        x.and_drop((qkv_bias, scale, qkv, q, k, v, attn, attn_mask))
    }

    /// Keeps apart, in windows that were shifted around the edge, what is not side by side in the image.
    fn mask(&self, x: &Tensor, windows: &Windows) -> Tensor {
        let window = self.window.cast_signed();
        let [rows, columns] = windows.counts;
        let mut attn_mask = new_zeros(x, windows.padded);
        let slices = windows.shift.map(|shift| {
            let shift = -shift.cast_signed();
            [(0, -window), (-window, shift), (shift, i64::MAX)]
        });
        let mut count = 0;
        for row in slices[0] {
            for column in slices[1] {
                fill(&attn_mask, row, column, count);
                count += 1;
            }
        }
        let side = Size::from(self.window);
        attn_mask = (&attn_mask).view(&[rows.into(), side, columns.into(), side]);
        let flat = [(rows * columns).into(), (self.window * self.window).into()];
        attn_mask = (&attn_mask).permute(&[0, 2, 1, 3]).reshape(&flat);
        attn_mask = (&attn_mask).unsqueeze(1).sub((&attn_mask).unsqueeze(2));
        let apart = (&attn_mask).masked_fill((&attn_mask).not_equal_to_number(0), -100.0);
        attn_mask = apart.masked_fill((&attn_mask).equal_to_number(0), 0.0);
        attn_mask
    }
}

/// `x[:, :H, :W, :]`
fn unpadded(x: &Tensor, windows: &Windows) -> Tensor {
    let mut cut: Option<Tensor> = None;
    for (dim, (size, padded)) in (1..).zip(windows.size.into_iter().zip(windows.padded)) {
        if size < padded {
            cut = Some(match cut {
                Some(cut) => cut.slice(dim, 0, size.cast_signed()),
                None => x.slice(dim, 0, size.cast_signed()),
            });
        }
    }
    cut.unwrap_or_else(|| x.alias())
}

/// `x.new_zeros(sizes)`
fn new_zeros(x: &Tensor, sizes: [u64; 2]) -> Tensor {
    let sizes = Argument::Sizes(sizes.map(Size::from).to_vec());
    x.apply("aten.new_zeros.default", &[("size", sizes)])
}

/// `mask[rows, columns] = count`
fn fill(mask: &Tensor, rows: (i64, i64), columns: (i64, i64), count: i64) {
    let dtype = mask.dtype().dtype;
    let number = mask.tracer().call(
        "aten.scalar_tensor.default",
        &[
            ("s", Argument::Int(count)),
            ("dtype", Argument::DType(dtype)),
        ],
    );
    let rows = mask.slice(0, rows.0, rows.1);
    let region = (&rows).slice(1, columns.0, columns.1);
    let sizes: Vec<Size> = region.shape().into_iter().map(Size::from).collect();
    let everywhere = (&number).view(&[]).expand(&sizes);
    region.change_in_place(
        "aten.copy_.default",
        &[("src", Argument::Tensor(&everywhere))],
    );
    drop((everywhere, region, rows, number));
}

/// `F.normalize(x, dim=-1)`
fn normalize(x: &Tensor) -> Tensor {
    let how = [
        ("ord", Argument::Float(2.0)),
        ("dim", Argument::Ints(vec![-1])),
        ("keepdim", Argument::Bool(true)),
    ];
    let least = [("min", Argument::Float(1e-12))];
    let norm = x.apply("aten.linalg_vector_norm.default", &how);
    let norm = norm.apply("aten.clamp_min.default", &least);
    let denom = norm.apply_with("aten.expand_as.default", "other", x, &[]);
    x.div(&denom)
}

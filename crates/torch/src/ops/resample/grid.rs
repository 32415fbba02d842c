//! Kernels of `grid_sample` and of the grids of affine maps.

use std::fmt::Write as _;

use crate::ops::prelude::*;

/// How planes or volumes are looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookup {
    /// 0 linear, 1 nearest, 2 cubic.
    pub(super) interpolation: i64,
    /// Outside: 0 zeros, 1 the border, 2 a reflection.
    pub(super) padding: i64,
    /// Whether corners are the centres of the outermost elements.
    pub(super) align_corners: bool,
    /// How many dimensions are looked up in.
    pub(super) sides: usize,
}

impl Lookup {
    fn taps(self) -> u32 {
        match self.interpolation {
            0 => 2,
            1 => 1,
            _ => 4,
        }
    }

    /// Declares where each dimension is looked up for the place `o` of results: `place0`, ...
    fn places(self, place: impl Fn(usize) -> String) -> String {
        let own: Vec<String> = (0..self.sides).map(place).collect();
        let mode = self.mode();
        let mut text = String::new();
        for d in 0..self.sides {
            let _ = write!(
                text,
                "const Looked<T> place{d} = looked<{mode}>((T)grid(i[0], {}, {}), x.size({}), padding, aligned); ",
                own.join(", "),
                self.sides - 1 - d,
                d + 2
            );
        }
        text
    }

    fn mode(self) -> i64 {
        self.interpolation.clamp(0, 2)
    }

    /// A loop over taps around a body, which may name `at[2..]`, `tap0`, ... and `weight`.
    fn around(self, body: &str) -> String {
        let (mode, mut text, mut weight) = (self.mode(), String::new(), "1".to_owned());
        for d in 0..self.sides {
            let _ = write!(
                text,
                "for (int t{d} = 0; t{d} < {}; ++t{d}) {{ const Tap<T> tap{d} = tap_of<{mode}>(place{d}, t{d}, x.size({1}), padding, aligned); if (tap{d}.at < 0 || tap{d}.at >= x.size({1})) continue; at[{1}] = (I)tap{d}.at; ",
                self.taps(),
                d + 2
            );
            let _ = write!(weight, " * tap{d}.weight");
        }
        let _ = write!(
            text,
            "const T weight = (T){weight}; (void)weight; {body} {}",
            "} ".repeat(self.sides)
        );
        text
    }

    fn finish(self, generated: Generated) -> Generated {
        generated
            .with("padding", self.padding)
            .with("aligned", self.align_corners)
    }

    /// `x, grid -> y`.
    pub(super) fn forward(self) -> Generated {
        let rank = self.sides + 2;
        let body = format!(
            "I at[{rank}]; at[0] = i[0]; at[1] = i[1]; T sum = 0; {}
    {}
    y.set_at(sum, i);",
            self.places(|d| format!("i[{}]", d + 2)),
            self.around("sum += weight * (T)x.at(at);")
        );
        self.finish(Generated::each(
            "grid_sampler",
            ["x", "grid"],
            ["y"],
            2,
            body,
        ))
    }

    /// `grad, x, grid -> grad_grid`.
    pub(super) fn grid_backward(self) -> Generated {
        let (rank, sides) = (self.sides + 2, self.sides);
        let mut slopes = String::new();
        for k in 0..sides {
            let others: Vec<String> = (0..sides)
                .map(|d| {
                    if d == k {
                        format!("tap{d}.slope")
                    } else {
                        format!("tap{d}.weight")
                    }
                })
                .collect();
            let _ = write!(slopes, "slope[{k}] += value * {}; ", others.join(" * "));
        }
        let mut assigned = String::new();
        for d in 0..sides {
            let _ = write!(assigned, "of[{}] = i[{}]; ", d + 2, d + 1);
        }
        let mut written = String::new();
        for k in 0..sides {
            let _ = write!(
                written,
                "i[{}] = {}; grad_grid.set_at(slope[{k}] * place{k}.factor, i); ",
                sides + 1,
                sides - 1 - k
            );
        }
        let body = format!(
            "I at[{rank}], of[{rank}]; at[0] = of[0] = i[0]; {assigned}T slope[{sides}] = {{}}; {}
    for (I c = 0; c < (I)x.size(1); ++c) {{
        at[1] = of[1] = c; const T incoming = (T)grad.at(of);
        {}
    }}
    {written}",
            self.places(|d| format!("i[{}]", d + 1)),
            self.around(&format!("const T value = incoming * (T)x.at(at); {slopes}"))
        );
        let form = Form::skipping(3, [sides + 1], body);
        let inputs = ["grad", "x", "grid"];
        self.finish(Generated::of("grid_sampler", inputs, ["grad_grid"], form))
    }

    /// `grad, x, grid -> grad_x`, which starts at zero: each of some warps owns a range of the elements of each plane and
    /// reads all places in order.
    pub(super) fn input_backward(self) -> Generated {
        let (rank, sides) = (self.sides + 2, self.sides);
        let flat = (1..sides).fold("(i64)at[2]".to_owned(), |so_far, d| {
            format!("({so_far} * x.size({}) + at[{}])", d + 2, d + 2)
        });
        let elements: Vec<String> = (0..sides).map(|d| format!("x.size({})", d + 2)).collect();
        let counts: Vec<String> = (0..sides)
            .map(|d| format!("grid.size({})", d + 1))
            .collect();
        let mut of_place = String::new();
        for d in (0..sides).rev() {
            let _ = write!(
                of_place,
                "of[{}] = (I)(left % grid.size({1})); left /= grid.size({1}); ",
                d + 2,
                d + 1
            );
        }
        let places = self.places(|d| format!("of[{}]", d + 2));
        let (elements, count) = (elements.join(" * "), counts.join(" * "));
        let is_mine = self.around(&format!(
            "is_mine = is_mine || {flat} >= low && {flat} < high;"
        ));
        let adds = self.around(&format!(
                "if ({flat} >= low && {flat} < high) grad_x.set_at((T)grad_x.at(at) + weight * incoming, at);"
            ));
        let body = filled!(
            "grid/input_backward.cu",
            elements,
            count,
            rank,
            of_place,
            places,
            is_mine,
            adds
        );
        let form = Form::groups(3, (1..rank).collect::<Vec<_>>(), body);
        let inputs = ["grad", "x", "grid"];
        self.finish(Generated::of("grid_sampler", inputs, ["grad_x"], form))
    }
}

/// The coordinates of all places, the last side first, and a one: `make_base_grid_4D` and `5D`.
pub(super) fn base(sides: &[u64], align_corners: bool) -> Generated {
    let count = sides.len();
    let body = filled!("grid/base.cu", count);
    let form = Form::each(0, body);
    let sides: Vec<i64> = sides
        .iter()
        .map(|side| (*side).max(1).cast_signed())
        .collect();
    Generated::of("affine_grid_generator", [], ["base"], form)
        .with("sides", sides)
        .with("aligned", align_corners)
}

/// `base, theta -> y`: the coordinates, times the maps.
pub(super) fn affine(sides: usize) -> Generated {
    let place = (1..sides).fold("(i64)i[1]".to_owned(), |so_far, d| {
        format!("({so_far} * y.size({}) + i[{}])", d + 1, d + 1)
    });
    let body = format!(
        "T sum = 0; for (int j = 0; j <= {sides}; ++j) sum += (T)base(i[0], {place}, j) * (T)theta(i[0], i[{}], j);
    y.set_at(sum, i);",
        sides + 1
    );
    Generated::each("affine_grid_generator", ["base", "theta"], ["y"], 2, body)
}

/// `base, grad -> grad_theta`.
pub(super) fn affine_backward(sides: usize) -> Generated {
    let mut of_place = String::new();
    for d in (0..sides).rev() {
        let _ = write!(
            of_place,
            "of[{0}] = (I)(left % grad.size({0})); left /= grad.size({0}); ",
            d + 1
        );
    }
    let body = format!(
        "I of[{}]; of[0] = i[0]; of[{}] = i[1]; T sum = 0;
    for (i64 place = lane; place < base.size(1); place += LANES) {{
        i64 left = place; {of_place}
        sum += (T)base(i[0], place, i[2]) * (T)grad.at(of);
    }}
    sum = row_sum(sum);
    if (lane == 0) theta.set_at(sum, i);",
        sides + 2,
        sides + 1
    );
    let form = Form::groups(2, [], body);
    Generated::of("affine_grid_generator", ["base", "grad"], ["theta"], form)
}

//! What the elements of created tensors are.

use super::Create;
use crate::ops::elementwise::number_of;
use crate::ops::prelude::*;
use crate::program::Text;

/// As a constant of a kernel, where it is known.
fn number(constant: &Constant) -> Option<Number> {
    number_of(constant, false)
}

impl Create {
    /// A number among its arguments.
    fn argument(&self, name: &str) -> Option<&Constant> {
        let found = self.numbers.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }

    fn number_or(&self, name: &str, default: i64) -> Option<Number> {
        self.argument(name)
            .map_or(Some(Number::Whole(default)), number)
    }

    /// What writes a new tensor of this type; nothing where none does, as in `empty`, whose elements are whatever was
    /// there.
    pub(super) fn kernel(&self, dtype: DType) -> Option<Kernel> {
        // A number in the host's memory is no card's to write.
        if matches!(
            self.name,
            "empty" | "empty_like" | "new_empty" | "scalar_tensor"
        ) {
            return None;
        }
        let kernel = self.filled(dtype).or_else(|| self.formula(dtype));
        Some(kernel.unwrap_or(Kernel::MemoryOnly(self.name)))
    }

    /// The same value everywhere.
    fn filled(&self, dtype: DType) -> Option<Kernel> {
        let value = match self.name {
            "zeros" | "zeros_like" | "new_zeros" => 0.0,
            "ones" | "ones_like" | "new_ones" => 1.0,
            "full" | "full_like" | "new_full" => {
                let value = self.argument("fill_value")?;
                // Tuned kernels fill in float32.
                let exact = value.real().filter(|value| value.abs() < 16_777_216.0);
                match (dtype, exact) {
                    (DType::Float64, _) | (_, None) => {
                        let fill = Generated::map("full", [], "result = value;");
                        return Some(fill.with("value", number(value)?).into());
                    }
                    (_, Some(value)) => value,
                }
            }
            _ => return None,
        };
        (!dtype.is_complex()).then_some(Kernel::Fill(value))
    }

    /// A formula of the place.
    fn formula(&self, dtype: DType) -> Option<Kernel> {
        if dtype.is_complex() {
            return None;
        }
        let given = |name: &str, default: i64| self.number_or(name, default);
        let computed = match dtype {
            DType::Float64 => "double",
            _ if dtype.is_float() => "float",
            _ => "i64",
        };
        let map = |text: &str| {
            let body: Text = format!("typedef {computed} C; {text}").into();
            Generated::map(self.name, [], body)
        };
        let steps = self.shape.first().copied().unwrap_or(Extent::ONE);
        Some(
            match self.name {
                // From zero a range of int64 has a kernel of its own.
                "arange" if dtype == DType::Int64 && self.counts_from_zero() => return Some(Kernel::Arange),
                "arange" => map("result = (C)start + (C)step * (C)index;")
                    .with("start", given("start", 0)?)
                    .with("step", given("step", 1)?),
                // `linspace_cuda_out` in `RangeFactories.cu` counts from both ends.
                "linspace" => map(
                    "const double step = steps > 1 ? ((double)end - (double)start) / (double)(steps - 1) : 0.0;
    result = index < steps / 2 || steps == 1 ? (C)(start + step * index) : (C)(end - step * (steps - 1 - index));",
                )
                .with("start", given("start", 0)?)
                .with("end", given("end", 1)?)
                .with("steps", steps),
                "logspace" => map(
                    "const double step = steps > 1 ? ((double)end - (double)start) / (double)(steps - 1) : 0.0;
    result = (C)pow((double)base, index < steps / 2 || steps == 1 ? start + step * index : end - step * (steps - 1 - index));",
                )
                .with("start", given("start", 0)?)
                .with("end", given("end", 1)?)
                .with("base", given("base", 10)?)
                .with("steps", steps),
                "eye" => self.each("result.set(i[0] == i[1], i[0], i[1]);"),
                "tril_indices" | "triu_indices" => self.triangle()?,
                "rand" | "rand_like" => {
                    map("result = uniform(seed, index);").with("seed", Number::Seed)
                }
                "randn" | "randn_like" => {
                    map("result = normal(seed, index);").with("seed", Number::Seed)
                }
                "normal" => map("result = mean + std * normal(seed, index);")
                    .with("mean", given("mean", 0)?)
                    .with("std", given("std", 1)?)
                    .with("seed", Number::Seed),
                "randint" | "randint_like" => {
                    map("result = whole_between(seed, index, (i64)low, (i64)high);")
                        .with("low", given("low", 0)?)
                        .with("high", number(self.argument("high")?)?)
                        .with("seed", Number::Seed)
                }
                "randperm" => map("result = shuffled(seed, index, count);")
                    .with("count", steps)
                    .with("seed", Number::Seed),
                _ => return None,
            }
            .into(),
        )
    }

    /// Whether a range is 0, 1, 2, …
    fn counts_from_zero(&self) -> bool {
        let is = |name: &str, expected: i64| {
            self.argument(name)
                .is_none_or(|value| *value == Constant::Whole(expected))
        };
        is("start", 0) && is("step", 1)
    }

    fn each(&self, body: &'static str) -> Generated {
        Generated::each(self.name, [], ["result"], 0, body)
    }

    /// Rows and columns of the elements of a triangle, row by row (`tril_indices_cuda` in `TensorFactories.cu`).
    fn triangle(&self) -> Option<Generated> {
        let body = if self.name == "tril_indices" {
            include_str!("formula/tril.cu")
        } else {
            include_str!("formula/triu.cu")
        };
        let each = self.each(body);
        Some(
            each.with("row", self.number_or("row", 0)?)
                .with("col", self.number_or("col", 0)?)
                .with("offset", self.number_or("offset", 0)?),
        )
    }
}

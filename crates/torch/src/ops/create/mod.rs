//! Operations that make tensors out of nothing.

mod formula;
mod run;

use crate::aten::Length;
use crate::ops::prelude::*;
use crate::ops::registry::short_name;
use crate::shape::Number;

/// A new tensor whose elements follow from no other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Create {
    /// The name a PyTorch user knows it by.
    pub name: &'static str,
    /// Its shape.
    pub shape: Vec<Extent>,
    /// Its type.
    pub dtype: CreatedType,
    /// Where it is.
    pub place: CreatedOn,
    /// Numbers among its arguments, by their names.
    pub numbers: Vec<(&'static str, Constant)>,
}

/// The type of a created tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CreatedType {
    /// This one whatever the model's precision: PyTorch's default, or a whole type.
    Fixed(DType),
    /// Written as this one in the model's code, which in a model of another precision names that.
    OfModel(DType),
    /// That of the first operand (`zeros_like`, `new_zeros`), recorded as this.
    OfOperand(DType),
}

/// Where a created tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CreatedOn {
    /// In the card's memory.
    Card,
    /// In the host's memory: a number that is written into a slice, which an export shows as a tensor.
    Host,
}

impl Create {
    /// What all of its elements are, where that is one number.
    pub(super) fn number(&self) -> Option<f64> {
        let given = self
            .numbers
            .iter()
            .find(|(name, _)| matches!(*name, "fill_value" | "s"));
        match (self.name, given.map(|(_, number)| number)) {
            (_, Some(Constant::Whole(value))) => Some(*value as f64),
            (_, Some(Constant::Real(value))) => Some(*value),
            (_, Some(Constant::Truth(value))) => Some(f64::from(u8::from(*value))),
            ("zeros" | "new_zeros" | "zeros_like", _) => Some(0.0),
            ("ones" | "new_ones" | "ones_like", _) => Some(1.0),
            _ => None,
        }
    }

    /// The type that the export recorded.
    pub fn recorded(&self) -> DType {
        match self.dtype {
            CreatedType::Fixed(dtype)
            | CreatedType::OfModel(dtype)
            | CreatedType::OfOperand(dtype) => dtype,
        }
    }
}

pub(super) const ATEN: &[(&str, Reader)] = &[(
    "aten.arange.default aten.arange.start aten.arange.start_step aten.empty.memory_format aten.empty_like.default \
         aten.eye.default aten.eye.m aten.full.default aten.full_like.default aten.linspace.default aten.logspace.default \
         aten.new_empty.default aten.new_full.default aten.new_ones.default aten.new_zeros.default aten.normal.float_float \
         aten.ones.default aten.ones_like.default aten.rand.default aten.rand_like.default aten.randint.default aten.randint.low \
         aten.randint_like.default aten.randint_like.low_dtype aten.randn.default aten.randn_like.default aten.randperm.default \
         aten.scalar_tensor.default aten.tril_indices.default aten.triu_indices.default aten.zeros.default aten.zeros_like.default",
    create,
)];

/// New tensors; the first operand of some gives only its type and shape.
fn create(args: &Arguments<'_>) -> Result<Read, String> {
    let name = short_name(args.target).ok_or("it makes a tensor in an unknown way")?;
    if name == "arange"
        && args
            .dtype("dtype")?
            .is_none_or(|dtype| dtype == DType::Int64)
        && args.target == "aten.arange.default"
    {
        return arange(args);
    }
    let written = args.dtype("dtype")?;
    let like = name.ends_with("_like") || name.starts_with("new_");
    let (dtype, operands) = match written {
        Some(dtype) if dtype.is_float() => (CreatedType::OfModel(dtype), Vec::new()),
        Some(dtype) => (CreatedType::Fixed(dtype), Vec::new()),
        None if like => {
            let operand = args.tensor("self")?;
            (CreatedType::OfOperand(args.typed(operand).0), vec![operand])
        }
        None => (CreatedType::Fixed(default_type(name, args)), Vec::new()),
    };
    let shape = if name.ends_with("_like") {
        args.shape(args.tensor("self")?)
    } else if name == "arange" {
        vec![range(args)?]
    } else if name == "scalar_tensor" {
        Vec::new()
    } else if let Some(shape) = shape_by_numbers(name, args)? {
        shape
    } else {
        args.whole_lengths("size")?
    };
    let place = if name == "scalar_tensor" {
        CreatedOn::Host
    } else {
        CreatedOn::Card
    };
    let create = Create {
        name,
        shape,
        dtype,
        place,
        numbers: numbers(args)?,
    };
    Ok((create.into(), operands))
}

/// `arange(end)` of int64.
fn arange(args: &Arguments<'_>) -> Result<Read, String> {
    let end = match args.length("end")? {
        Some(Length::Number(end)) => u64::try_from(end)
            .map(Extent::fixed)
            .map_err(|_| format!("its argument \"end\" is {end}"))?,
        Some(Length::Batched(end)) => end,
        None => return Err("it has no argument \"end\"".into()),
    };
    let create = Create {
        name: "arange",
        shape: vec![end],
        dtype: CreatedType::Fixed(DType::Int64),
        place: CreatedOn::Card,
        numbers: numbers(args)?,
    };
    Ok((create.into(), Vec::new()))
}

/// Arguments that are numbers and no lengths of the result.
const NUMBERS: [&str; 13] = [
    "s",
    "row",
    "col",
    "start",
    "end",
    "step",
    "fill_value",
    "low",
    "high",
    "base",
    "mean",
    "std",
    "offset",
];

fn numbers(args: &Arguments<'_>) -> Result<Vec<(&'static str, Constant)>, String> {
    let mut found = Vec::new();
    for name in NUMBERS {
        found.extend(args.attribute(name)?.map(|number| (name, number)));
    }
    Ok(found)
}

/// The shape of what has its lengths in arguments of their own.
fn shape_by_numbers(name: &str, args: &Arguments<'_>) -> Result<Option<Vec<Extent>>, String> {
    let length = |name: &str| match args.length(name)? {
        Some(Length::Number(length)) => u64::try_from(length)
            .map(Extent::fixed)
            .map_err(|_| format!("its argument {name:?} is {length}")),
        Some(Length::Batched(length)) => Ok(length),
        None => Err(format!("it has no argument {name:?}")),
    };
    Ok(Some(match name {
        "eye" if args.has("m") => vec![length("n")?, length("m")?],
        "eye" => vec![length("n")?; 2],
        "randperm" => vec![length("n")?],
        "linspace" | "logspace" => vec![length("steps")?],
        "tril_indices" | "triu_indices" => {
            let [rows, columns] = ["row", "col"].map(|name| args.int(name, None));
            let below = name == "tril_indices";
            let count = triangle(rows?, columns?, args.int("offset", Some(0))?, below);
            vec![
                Extent::fixed(2),
                Extent::fixed(count.ok_or("its matrix is too large")?),
            ]
        }
        _ => return Ok(None),
    }))
}

/// How many elements of a matrix lie on and below a diagonal, or on and above it.
fn triangle(rows: i64, columns: i64, offset: i64, below: bool) -> Option<u64> {
    let limit = 1 << 20;
    if !(0..=limit).contains(&rows) || !(0..=limit).contains(&columns) || offset.abs() > limit {
        return None;
    }
    let of_row = |row: i64| {
        let until = (row + offset + 1).clamp(0, columns);
        let from = (row + offset).clamp(0, columns);
        if below { until } else { columns - from }
    };
    u64::try_from((0..rows).map(of_row).sum::<i64>()).ok()
}

/// The type where none is written: that of the numbers given for ranges and fills, else float32.
fn default_type(name: &str, args: &Arguments<'_>) -> DType {
    let real = |name: &str| args.number_kind(name) == Some(Number::Real);
    match (name, args.number_kind("fill_value")) {
        ("randint" | "randperm" | "tril_indices" | "triu_indices", _)
        | ("full", Some(Number::Whole)) => DType::Int64,
        ("arange", _) if !["start", "end", "step"].into_iter().any(real) => DType::Int64,
        ("full", Some(Number::Truth)) => DType::Bool,
        _ => DType::Float32,
    }
}

/// How many elements a range has.
fn range(args: &Arguments<'_>) -> Result<Extent, String> {
    let extent = |length: Length| match length {
        Length::Number(number) => Extent::signed(number),
        Length::Batched(extent) => extent,
    };
    // Of whole numbers, which may depend on the batch; else of fractions, which do not.
    let whole = |name: &str| args.length(name).ok().map(|length| length.map(extent));
    if let (Some(start), Some(Some(end)), Some(step)) =
        (whole("start"), whole("end"), whole("step"))
        && let Some(step) = step
            .unwrap_or(Extent::ONE)
            .as_fixed()
            .filter(|step| *step > 0)
    {
        let span = end.checked_sub(start.unwrap_or(Extent::ZERO));
        let count =
            span.and_then(|span| span.checked_add(Extent::fixed(step - 1))?.floor_div(step));
        let count = count.filter(|count| !count.is_negative());
        return count.ok_or_else(|| "its range is empty or too intricate".to_owned());
    }
    let fixed = |name: &str| {
        matches!(
            args.length(name),
            Err(_) | Ok(None | Some(Length::Number(_)))
        )
    };
    if !["start", "end", "step"].into_iter().all(fixed) || args.is_symbolic("end") {
        return Err(
            "the step of its range depends on the batch, or its end is a fraction that does".into(),
        );
    }
    let span = args.number("end")? - args.number_or("start", 0.0)?;
    let count = (span / args.number_or("step", 1.0)?).ceil();
    if !(0.0..1e15).contains(&count) {
        return Err("its range is empty or too long".into());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number in range"
    )]
    Ok(Extent::fixed(count as u64))
}

impl Operator for Create {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, _: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(vec![(self.recorded(), self.shape.clone())])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let model = context.noise.unwrap_or(context.parameters);
        Ok(vec![eager.create(self, model, operands.first())])
    }
}

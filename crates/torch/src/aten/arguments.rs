//! Typed access to the arguments of one node, by their names in the operator's schema.

use super::ValueId;
use super::constant::Constant;
use super::schema::{Arg, NamedArg, SymFloat, SymInt};
use super::scope::Scope;
use crate::program::Placement;
use crate::shape::{DType, Extent, Number, Type};

/// Largest number read for a kernel, stride, padding or index: keeps sums of them inside `u64`.
const LARGEST: i64 = 1 << 31;

/// Most tensors of a list, and most results of an operator that names none of them.
pub const MOST_PARTS: u64 = 1 << 16;

/// The arguments of one node. Every problem is a clause that names the argument.
pub struct Arguments<'a> {
    /// The operator, such as `aten.conv2d.default`.
    pub target: &'a str,
    /// The types of the values that are known so far.
    pub types: &'a dyn Fn(ValueId) -> Type,
    /// As the document has them.
    pub inputs: &'a [NamedArg<'a>],
    /// What its names mean.
    pub scope: &'a Scope<'a>,
    /// How many rows it makes, where that depends on values and is known from elsewhere.
    pub rows: Option<Extent>,
    /// How many percent of what values may choose they are taken to choose.
    pub chosen_percent: Option<u64>,
    /// Most results that it may have: as many as are named, where they are.
    pub most_results: u64,
}

impl<'a> Arguments<'a> {
    /// How many rows the operator makes where that depends on values: as many as there may be at most, unless
    /// more is known.
    pub fn rows(&self, most: Extent) -> Extent {
        self.rows
            .unwrap_or_else(|| chosen_of(most, self.chosen_percent))
    }

    /// How many rows the operator makes where nothing about its operands bounds that.
    pub fn known_rows(&self) -> Option<Extent> {
        self.rows
    }

    /// The type of a tensor.
    pub fn typed(&self, id: ValueId) -> Type {
        (self.types)(id)
    }

    /// The lengths of a tensor.
    pub fn shape(&self, id: ValueId) -> Vec<Extent> {
        self.typed(id).1
    }

    /// Tensor arguments.
    pub fn all(&self, names: &[&str]) -> Result<Vec<ValueId>, String> {
        names.iter().map(|name| self.tensor(name)).collect()
    }

    /// Tensor arguments, and those of the optional ones that are given.
    pub fn all_and(&self, names: &[&str], optional: &[&str]) -> Result<Vec<ValueId>, String> {
        let mut operands = self.all(names)?;
        for name in optional {
            operands.extend(self.optional_tensor(name)?);
        }
        Ok(operands)
    }

    /// Whether the operator writes over its first argument: PyTorch's trailing underscore.
    pub fn placement(&self) -> Placement {
        let name = self
            .target
            .rsplit_once('.')
            .map_or(self.target, |(name, _)| name);
        if name.ends_with('_') && !name.ends_with("__") {
            Placement::InPlace
        } else {
            Placement::New
        }
    }

    fn find(&self, name: &str) -> Option<&'a Arg<'a>> {
        let named = self.inputs.iter().find(|input| &*input.name == name)?;
        match &named.arg {
            Arg::None => None,
            arg => Some(arg),
        }
    }

    fn required(&self, name: &str) -> Result<&'a Arg<'a>, String> {
        self.find(name)
            .ok_or_else(|| format!("it has no argument {name:?}"))
    }

    /// The tensor that `name` stands for.
    pub fn value(&self, name: &str) -> Result<ValueId, String> {
        let id = self.scope.tensors.get(name).copied();
        id.ok_or_else(|| format!("it reads {name:?}, which nothing before it makes"))
    }

    /// A tensor argument.
    pub fn tensor(&self, name: &str) -> Result<ValueId, String> {
        match self.required(name)? {
            Arg::Tensor(value) => self.value(value),
            _ => Err(format!("its argument {name:?} is not a tensor")),
        }
    }

    /// A tensor argument that may be missing.
    pub fn optional_tensor(&self, name: &str) -> Result<Option<ValueId>, String> {
        self.find(name).map(|_| self.tensor(name)).transpose()
    }

    /// A list of tensors.
    pub fn tensors(&self, name: &str) -> Result<Vec<ValueId>, String> {
        let all: Option<Vec<_>> = self.optional_tensors(name)?.into_iter().collect();
        all.ok_or_else(|| format!("its argument {name:?} is not a list of tensors"))
    }

    /// A list of tensors some of which may be missing.
    pub fn optional_tensors(&self, name: &str) -> Result<Vec<Option<ValueId>>, String> {
        let names: Vec<Option<&str>> = match self.required(name)? {
            Arg::Tensors(names) => names.iter().map(|name| Some(&**name)).collect(),
            Arg::OptionalTensors(names) => names.iter().map(Option::as_deref).collect(),
            _ => return Err(format!("its argument {name:?} is not a list of tensors")),
        };
        if names.len() as u64 > MOST_PARTS {
            return Err(format!(
                "{} tensors in {name:?}; at most {MOST_PARTS} are read",
                names.len()
            ));
        }
        let names = names.into_iter();
        names
            .map(|name| name.map(|name| self.value(name)).transpose())
            .collect()
    }

    /// Whether an argument is a number that depends on the batch or on values.
    pub fn is_symbolic(&self, name: &str) -> bool {
        matches!(
            self.find(name),
            Some(Arg::SymInt(SymInt::AsName(_)) | Arg::SymFloat(SymFloat::AsName(_)))
        )
    }

    /// Whether an argument is given.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Which kind of number an argument is; `None` for anything else.
    pub fn number_kind(&self, name: &str) -> Option<Number> {
        match self.find(name)? {
            Arg::Bool(_) => Some(Number::Truth),
            Arg::Int(_) | Arg::SymInt(_) => Some(Number::Whole),
            Arg::Float(_) | Arg::SymFloat(_) | Arg::Symbolic => Some(Number::Real),
            Arg::Complex(..) => Some(Number::Complex),
            _ => None,
        }
    }

    /// A number, truth value or text with its kind; `None` when it is missing or anything else.
    pub fn attribute(&self, name: &str) -> Result<Option<Constant>, String> {
        Ok(match self.find(name) {
            Some(Arg::Bool(value)) => Some(Constant::Truth(*value)),
            Some(Arg::Int(value) | Arg::SymInt(SymInt::AsInt(value))) => {
                Some(Constant::Whole(*value))
            }
            Some(Arg::SymInt(SymInt::AsName(size))) => Some(Constant::Length(self.size(size)?)),
            Some(Arg::Float(value) | Arg::SymFloat(SymFloat::AsFloat(value))) => {
                Some(Constant::Real(*value))
            }
            Some(Arg::SymFloat(SymFloat::AsName(_)) | Arg::Symbolic) => Some(Constant::Symbolic),
            Some(Arg::Complex(real, imaginary)) => Some(Constant::Complex(*real, *imaginary)),
            Some(Arg::Text(text)) => Some(Constant::Text(text.to_string())),
            _ => None,
        })
    }

    /// A number. One that depends on the batch is as it was when the graph was traced: no memory depends on it.
    pub fn number(&self, name: &str) -> Result<f64, String> {
        match self.required(name)? {
            Arg::Float(value) | Arg::SymFloat(SymFloat::AsFloat(value)) => Ok(*value),
            Arg::Int(value) | Arg::SymInt(SymInt::AsInt(value)) => Ok(*value as f64),
            Arg::SymInt(SymInt::AsName(symbol)) | Arg::SymFloat(SymFloat::AsName(symbol)) => {
                // What follows from values has no number while tracing.
                Ok(self.scope.numbers.get(&**symbol).copied().unwrap_or(1.0))
            }
            // PyTorch takes the only element of a tensor (`.item()`), which follows from values too.
            Arg::Tensor(value) if self.shape(self.value(value)?).is_empty() => Ok(1.0),
            _ => Err(format!("its argument {name:?} is not a number")),
        }
    }

    /// A number with a default.
    pub fn number_or(&self, name: &str, default: f64) -> Result<f64, String> {
        self.find(name).map_or(Ok(default), |_| self.number(name))
    }

    /// A truth value with a default.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.find(name) {
            None => Ok(default),
            Some(Arg::Bool(value)) => Ok(*value),
            Some(_) => Err(format!("its argument {name:?} is not true or false")),
        }
    }

    /// A text with a default.
    pub fn text(&self, name: &str, default: &'static str) -> Result<&'a str, String> {
        match self.find(name) {
            None => Ok(default),
            Some(Arg::Text(value)) => Ok(value),
            Some(_) => Err(format!("its argument {name:?} is not a text")),
        }
    }

    /// A whole number with a default.
    pub fn int(&self, name: &str, default: Option<i64>) -> Result<i64, String> {
        match (self.find(name), default) {
            (None, Some(default)) => Ok(default),
            (Some(Arg::Int(value) | Arg::SymInt(SymInt::AsInt(value))), _) => Ok(*value),
            (None, None) => Err(format!("it has no argument {name:?}")),
            (Some(_), _) => Err(format!("its argument {name:?} is not a whole number")),
        }
    }

    /// A dimension of a tensor of this rank, counted from the front.
    pub fn dim(&self, name: &str, default: Option<i64>, rank: usize) -> Result<usize, String> {
        let dim = self.int(name, default)?;
        from_front(dim, rank)
            .ok_or_else(|| format!("its argument {name:?} is {dim}, of {rank} dimensions"))
    }

    /// Dimensions of a tensor, each counted from the front.
    pub fn dims(&self, name: &str, rank: usize) -> Result<Vec<usize>, String> {
        let Arg::Ints(values) = self.required(name)? else {
            return Err(format!("its argument {name:?} is not a list of dimensions"));
        };
        let dims = values.iter().map(|dim| from_front(*dim, rank));
        dims.collect::<Option<_>>()
            .ok_or_else(|| format!("its argument {name:?} is {values:?}, of {rank} dimensions"))
    }

    /// A list of whole numbers, each small.
    pub fn whole_numbers(&self, name: &str) -> Result<Vec<i64>, String> {
        match self.required(name)? {
            Arg::Ints(values) if values.iter().all(|n| (-LARGEST..=LARGEST).contains(n)) => {
                Ok(values.to_vec())
            }
            _ => Err(format!(
                "its argument {name:?} is not a list of small numbers"
            )),
        }
    }

    /// A list of numbers.
    pub fn floats(&self, name: &str) -> Result<Vec<f64>, String> {
        match self.required(name)? {
            Arg::Floats(values) => Ok(values.to_vec()),
            _ => Err(format!("its argument {name:?} is not a list of numbers")),
        }
    }

    /// A small number that is not negative, with a default.
    pub fn count(&self, name: &str, default: Option<i64>) -> Result<u64, String> {
        count(self.int(name, default)?)
            .ok_or_else(|| format!("its argument {name:?} is out of range"))
    }

    /// Height and width; one number stands for both.
    pub fn pair(&self, name: &str, default: Option<[u64; 2]>) -> Result<[u64; 2], String> {
        let one = |value: i64| {
            count(value).ok_or_else(|| format!("its argument {name:?} is out of range"))
        };
        match (self.find(name), default) {
            (None, Some(default)) => Ok(default),
            // PyTorch writes an empty list for "as the kernel".
            (Some(Arg::Ints(values)), default) => match (&**values, default) {
                ([], Some(default)) => Ok(default),
                ([both], _) => Ok([one(*both)?; 2]),
                ([height, width], _) => Ok([one(*height)?, one(*width)?]),
                _ => Err(format!(
                    "its argument {name:?} has {} numbers",
                    values.len()
                )),
            },
            (Some(Arg::Int(both)), _) => Ok([one(*both)?; 2]),
            (None, None) => Err(format!("it has no argument {name:?}")),
            (Some(_), _) => Err(format!("its argument {name:?} is not a pair of numbers")),
        }
    }

    /// Numbers for the last `rank` of depth, height and width; one stands for all of them. The others get
    /// `flat`, and so do all where the argument is missing, unless it must be given.
    pub fn sides(
        &self,
        name: &str,
        rank: usize,
        flat: u64,
        default: Option<[u64; 3]>,
    ) -> Result<[u64; 3], String> {
        let values = match (self.find(name), default) {
            (None, Some(default)) => return Ok(default),
            (None, None) => return Err(format!("it has no argument {name:?}")),
            (Some(Arg::Int(one)), _) => std::slice::from_ref(one),
            (Some(Arg::Ints(values)), _) => &**values,
            (Some(_), _) => return Err(format!("its argument {name:?} is not a list of numbers")),
        };
        // PyTorch writes an empty list for "as the kernel".
        if let ([], Some(default)) = (values, default) {
            return Ok(default);
        }
        let first = 3_usize
            .checked_sub(rank)
            .filter(|_| [1, rank].contains(&values.len()));
        let first = first.ok_or_else(|| {
            format!(
                "its argument {name:?} has {} numbers for {rank} sides",
                values.len()
            )
        })?;
        let mut sides = [flat; 3];
        for (side, value) in sides[first..].iter_mut().zip(values.iter().cycle()) {
            *side =
                count(*value).ok_or_else(|| format!("its argument {name:?} is out of range"))?;
        }
        Ok(sides)
    }

    /// Lengths none of which is left open by -1.
    pub fn whole_lengths(&self, name: &str) -> Result<Vec<Extent>, String> {
        let lengths = self.lengths(name)?.into_iter().collect::<Option<_>>();
        lengths.ok_or_else(|| format!("its argument {name:?} contains -1"))
    }

    /// What is read of an argument, where there is one.
    pub fn if_given<T>(
        &self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        self.has(name).then(|| read(name)).transpose()
    }

    /// Lengths, each a number (-1 is left as `None`) or an expression of the batch.
    pub fn lengths(&self, name: &str) -> Result<Vec<Option<Extent>>, String> {
        let number = |value: i64| match u64::try_from(value) {
            Ok(length) => Ok(Some(Extent::fixed(length))),
            Err(_) if value == -1 => Ok(None),
            Err(_) => Err(format!("its argument {name:?} contains {value}")),
        };
        match self.required(name)? {
            Arg::Ints(values) => values.iter().map(|value| number(*value)).collect(),
            Arg::SymInts(values) => values
                .iter()
                .map(|value| match value {
                    SymInt::AsInt(value) => number(*value),
                    SymInt::AsName(size) => self.size(size).map(Some),
                })
                .collect(),
            _ => Err(format!("its argument {name:?} is not a list of sizes")),
        }
    }

    /// A length: a number or an expression of the batch. `None` when it is missing.
    pub fn length(&self, name: &str) -> Result<Option<Length>, String> {
        Ok(match self.find(name) {
            None => None,
            Some(Arg::Int(value) | Arg::SymInt(SymInt::AsInt(value))) => {
                Some(Length::Number(*value))
            }
            Some(Arg::SymInt(SymInt::AsName(size))) => Some(Length::Batched(self.size(size)?)),
            Some(_) => return Err(format!("its argument {name:?} is not a size")),
        })
    }

    fn size(&self, name: &str) -> Result<Extent, String> {
        let size = self.scope.sizes.get(name).copied();
        size.ok_or_else(|| format!("it uses the size {name:?}, which is not defined"))
    }

    /// A dtype; `None` when it is missing.
    pub fn dtype(&self, name: &str) -> Result<Option<DType>, String> {
        match self.find(name) {
            None => Ok(None),
            Some(Arg::ScalarType(code)) => dtype(*code).map(Some),
            Some(_) => Err(format!("its argument {name:?} is not a dtype")),
        }
    }

    /// Whether it asks for a row-major memory format.
    pub fn is_row_major(&self) -> bool {
        // torch._export.serde.schema.MemoryFormat: ContiguousFormat 1.
        matches!(self.find("memory_format"), Some(Arg::MemoryFormat(1)))
    }

    /// Whether it asks for a channels-last memory format.
    pub fn is_channels_last(&self) -> bool {
        // torch._export.serde.schema.MemoryFormat: ChannelsLast 2, ChannelsLast3d 3.
        matches!(self.find("memory_format"), Some(Arg::MemoryFormat(2 | 3)))
    }

    /// Refuses an argument that changes what the operator does in a way batchfit does not follow.
    pub fn absent(&self, name: &str) -> Result<(), String> {
        match self.find(name) {
            None | Some(Arg::Bool(false)) => Ok(()),
            Some(_) => Err(format!("its argument {name:?} is not supported")),
        }
    }

    /// Refuses a number other than the one batchfit knows how to follow.
    pub fn always(&self, name: &str, expected: f64) -> Result<(), String> {
        let value = self.number_or(name, expected)?;
        if (value - expected).abs() < f64::EPSILON {
            Ok(())
        } else {
            Err(format!(
                "its argument {name:?} is {value}; only {expected} is supported"
            ))
        }
    }
}

/// How many of `most` are chosen, rounded up.
pub fn chosen_of(most: Extent, percent: Option<u64>) -> Extent {
    let Some(percent) = percent else { return most };
    let hundredfold = most.checked_mul(Extent::fixed(percent));
    let up = hundredfold.and_then(|n| n.checked_add(Extent::fixed(99))?.floor_div(100));
    // Where that cannot be written, all of them.
    up.unwrap_or(most)
}

/// A length in a slice.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// May be negative, which counts from the end.
    Number(i64),
    /// Depends on the batch.
    Batched(Extent),
}

/// A dimension that may be counted from the end.
fn from_front(dim: i64, rank: usize) -> Option<usize> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let front = if dim < 0 {
        dim.saturating_add(signed)
    } else {
        dim
    };
    usize::try_from(front).ok().filter(|dim| *dim < rank)
}

fn count(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|_| value <= LARGEST)
}

/// PyTorch's serialized scalar types (`torch._export.serde.schema.ScalarType`).
pub fn dtype(code: u32) -> Result<DType, String> {
    Ok(match code {
        // One byte each: int8 takes what uint8 takes.
        1 | 2 => DType::UInt8,
        4 => DType::Int32,
        5 => DType::Int64,
        6 => DType::Float16,
        7 => DType::Float32,
        8 => DType::Float64,
        12 => DType::Bool,
        13 => DType::BFloat16,
        3 => return Err("int16 is not supported".into()),
        9 => return Err("complex numbers of half precision are not supported".into()),
        10 => DType::Complex64,
        11 => DType::Complex128,
        _ => return Err(format!("dtype {code} is not supported")),
    })
}

//! What operators are called on.

use super::argument::Argument;
use super::tracer::Tensor;

/// Declares methods that call an operator, with its arguments by name: of one tensor, or in rows that begin with `with` of two, the other
/// one being the argument of that name.
macro_rules! methods {
    ($($(#[$doc:meta])+ $name:ident($($given:ident: $type:ty),*): $target:literal { $($key:ident: $value:expr),* })+) => {
        $(
            $(#[$doc])+
            fn $name(self, $($given: $type),*) -> Tensor {
                self.apply($target, &[$((stringify!($key), Argument::from($value))),*])
            }
        )+
    };
    ($(with $other:ident: $(#[$doc:meta])+ $name:ident($($given:ident: $type:ty),*): $target:literal { $($key:ident: $value:expr),* })+) => {
        $(
            $(#[$doc])+
            fn $name(self, $other: impl Tensors, $($given: $type),*) -> Tensor {
                let arguments = [$((stringify!($key), Argument::from($value))),*];
                self.apply_with($target, stringify!($other), $other, &arguments)
            }
        )+
    };
}
pub(super) use methods;

/// What an operator may be called on: a tensor that is named no more, which it lets go of, or one that lives on.
pub(crate) trait Tensors: Sized {
    /// The tensor.
    fn tensor(&self) -> &Tensor;

    /// Calls an operator with this as its argument `self` and lets go of it.
    fn apply(self, target: &'static str, arguments: &[(&str, Argument<'_>)]) -> Tensor {
        let mut all = vec![("self", Argument::Tensor(self.tensor()))];
        all.extend_from_slice(arguments);
        self.tensor().tracer().call(target, &all)
    }

    /// Calls an operator on this and another.
    fn apply_with(
        self,
        target: &'static str,
        name: &'static str,
        other: impl Tensors,
        arguments: &[(&str, Argument<'_>)],
    ) -> Tensor {
        let mut all = vec![
            ("self", Argument::Tensor(self.tensor())),
            (name, Argument::Tensor(other.tensor())),
        ];
        all.extend_from_slice(arguments);
        let made = self.tensor().tracer().call(target, &all);
        made.and_drop((self, other))
    }

    /// Calls an operator with several results.
    fn apply_many(self, target: &'static str, arguments: &[(&str, Argument<'_>)]) -> Vec<Tensor> {
        let mut all = vec![("self", Argument::Tensor(self.tensor()))];
        all.extend_from_slice(arguments);
        self.tensor().tracer().call_many(target, &all)
    }
}

impl Tensors for Tensor {
    fn tensor(&self) -> &Tensor {
        self
    }
}

impl Tensors for &Tensor {
    fn tensor(&self) -> &Tensor {
        self
    }
}

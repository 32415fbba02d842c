//! The sizes or strides of a tensor, as PyTorch calls them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Extent;

/// The lengths of a tensor's dimensions, or its strides: a slice that is shared until one of its owners writes to it.
///
/// Most tensors of a step look like another one: a gradient like its parameter, a result like its operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sizes(Arc<[Extent]>);

impl Default for Sizes {
    /// Those of a scalar.
    fn default() -> Sizes {
        Sizes(Arc::default())
    }
}

impl Deref for Sizes {
    type Target = [Extent];

    fn deref(&self) -> &[Extent] {
        &self.0
    }
}

impl DerefMut for Sizes {
    fn deref_mut(&mut self) -> &mut [Extent] {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Vec<Extent>> for Sizes {
    fn from(lengths: Vec<Extent>) -> Sizes {
        Sizes(Arc::from(lengths))
    }
}

impl From<&[Extent]> for Sizes {
    fn from(lengths: &[Extent]) -> Sizes {
        Sizes(Arc::from(lengths))
    }
}

impl<const N: usize> From<&[Extent; N]> for Sizes {
    fn from(lengths: &[Extent; N]) -> Sizes {
        Sizes(Arc::from(lengths.as_slice()))
    }
}

impl From<&Vec<Extent>> for Sizes {
    fn from(lengths: &Vec<Extent>) -> Sizes {
        Sizes::from(lengths.as_slice())
    }
}

impl From<&Sizes> for Sizes {
    fn from(lengths: &Sizes) -> Sizes {
        lengths.clone()
    }
}

impl FromIterator<Extent> for Sizes {
    fn from_iter<I: IntoIterator<Item = Extent>>(lengths: I) -> Sizes {
        Sizes(lengths.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Sizes {
    type Item = &'a Extent;
    type IntoIter = std::slice::Iter<'a, Extent>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl PartialEq<Vec<Extent>> for Sizes {
    fn eq(&self, other: &Vec<Extent>) -> bool {
        **self == **other
    }
}

impl PartialEq<[Extent]> for Sizes {
    fn eq(&self, other: &[Extent]) -> bool {
        **self == *other
    }
}

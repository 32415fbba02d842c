//! What PyTorch recorded of values: every type that is inferred is compared with it.

use std::collections::{HashMap, HashSet};

use super::lower::{Walk, tensor_names};
use crate::aten::schema::{ExportedNode, GraphText, TensorMeta};
use crate::aten::{Scope, dtype};
use crate::graph::{Builder, ValueId};
use crate::limits::weight_of_rank;
use crate::ops::{Op, Opaque};
use crate::shape::{DType, Extent, is_oversize};

/// Most dimensions of a tensor: `at::DimVector` and the iterators of eager PyTorch hold 64 at most.
const MOST_DIMENSIONS: usize = 64;

impl<'a> Walk<'a> {
    /// The types of a node's results as PyTorch recorded them.
    pub(super) fn recorded(
        &mut self,
        node: &ExportedNode<'_>,
        scope: &Scope<'_>,
    ) -> Result<Vec<(DType, Vec<Extent>)>, String> {
        let names = node.outputs.iter().flat_map(tensor_names);
        let mut made = 0;
        names
            .map(|name| {
                let tensor = scope
                    .types
                    .get(name)
                    .ok_or_else(|| format!("its result {name:?} is not in tensor_values"))?;
                made += weight_of_rank(tensor.sizes.len());
                self.builder.room_for(made)?;
                self.typed(tensor)
            })
            .collect()
    }

    /// Puts values of the recorded types in the place of what a node makes.
    pub(super) fn stand_in(
        &mut self,
        node: &'a ExportedNode<'a>,
        scope: &mut Scope<'a>,
        lost: &mut HashSet<&'a str>,
    ) {
        let names: Vec<&'a str> = node.outputs.iter().flat_map(tensor_names).collect();
        let recorded = self.recorded(node, scope).ok();
        let made = recorded.and_then(|results| {
            let op = Op::from(Opaque { results });
            let made = self.builder.apply_many(Builder::ROOT, &names, op, &[]);
            made.ok().filter(|made| made.len() == names.len())
        });
        match made {
            Some(made) => {
                self.in_wrapper.push(false);
                scope.tensors.extend(names.into_iter().zip(made));
            }
            None => lost.extend(names),
        }
    }

    /// Compares an inferred type with the one PyTorch recorded.
    pub(super) fn check(
        &mut self,
        name: &str,
        id: ValueId,
        recorded: &TensorMeta<'_>,
    ) -> Result<(), String> {
        let (dtype, shape) = self.typed(recorded)?;
        let value = self.builder.value(id);
        let alike = value.shape.len() == shape.len()
            && value.shape.iter().zip(&shape).all(|(a, b)| a.is_always(*b));
        if !alike || value.dtype != dtype {
            return Err(format!(
                "the value {name:?} is {} {:?} by its operands, but recorded as {dtype} {shape:?}",
                value.dtype, value.shape
            ));
        }
        Ok(())
    }

    /// A recorded dtype and shape.
    pub(super) fn typed(
        &mut self,
        tensor: &TensorMeta<'_>,
    ) -> Result<(DType, Vec<Extent>), String> {
        if tensor.sizes.len() > MOST_DIMENSIONS {
            return Err(format!(
                "{} dimensions; PyTorch's tensors have at most {MOST_DIMENSIONS}",
                tensor.sizes.len()
            ));
        }
        let sizes = tensor.sizes.iter().map(|size| self.extent(size));
        let shape = sizes.collect::<Result<Vec<_>, _>>()?;
        if let Some(length) = shape.iter().find(|length| length.is_negative()) {
            return Err(format!("a length is {length}"));
        }
        if is_oversize(&shape) {
            return Err(format!("the shape {shape:?} is too large for any device"));
        }
        Ok((dtype(tensor.dtype)?, shape))
    }
}

/// The types that a graph records of its tensors, by their names.
pub(super) fn types<'a>(graph: &'a GraphText<'a>) -> HashMap<&'a str, &'a TensorMeta<'a>> {
    let recorded = graph.tensor_values.iter();
    recorded
        .map(|(name, tensor)| (name.as_ref(), tensor))
        .collect()
}

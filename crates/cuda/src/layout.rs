//! Views at a batch size, as kernels take them.

use crate::device::{Launch, LaunchError};
use crate::program::{Kernel, View};
use crate::shape::DType;

use super::driver::gpu::Gpu;
use super::shared::{Layout, Shared as _, shared_with_kernels};

/// Dimensions that a kernel handles. Must agree with `MAX_RANK` in prelude.cu.
pub(super) const MAX_RANK: usize = 6;

shared_with_kernels! {
    /// The start of a tensor and the type of its elements.
    #[derive(Debug, Clone, Copy, Default)]
    pub(super) struct Array {
        pub(super) address: u64,
        dtype: i32,
        unused: i32,
    }
}

/// For the kernels' compiler to check.
pub(super) const LAYOUTS: &[Layout] = &[Array::LAYOUT];

/// The number of an element type. Must agree with `Type` in prelude.cu.
const fn type_number(dtype: DType) -> i32 {
    match dtype {
        DType::Float32 => 0,
        DType::Float16 => 1,
        DType::BFloat16 => 2,
        DType::Int64 => 3,
        DType::Int32 => 4,
        DType::UInt8 | DType::Bool => 5,
        DType::Float64 => 6,
        // No kernel gets any: see `Operands::of`.
        DType::Complex64 | DType::Complex128 => -1,
    }
}

/// An operand of a launch.
#[derive(Debug, Clone)]
pub(super) struct Operand {
    pub(super) address: u64,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

impl Operand {
    fn of(view: &View, launch: &Launch<'_>) -> Result<Operand, LaunchError> {
        let at = |extents: &[crate::shape::Extent]| {
            extents
                .iter()
                .map(|extent| extent.at(launch.batch))
                .collect::<Vec<_>>()
        };
        let offset = view.offset.at(launch.batch) * view.dtype.size();
        let start = launch.addresses.get(view.tensor.0 as usize).copied();
        let shape = at(&view.shape);
        // What has no elements has no memory.
        let start = match start.filter(|start| *start != 0) {
            Some(start) => start,
            None if shape.contains(&0) => 0,
            None => {
                let what = format!("{:?} is not allocated", view.tensor);
                return Err(failed(launch, what));
            }
        };
        let operand = Operand {
            address: start + offset,
            dtype: view.dtype,
            shape,
            strides: at(&view.strides),
        };
        let size = launch.sizes.get(view.tensor.0 as usize).copied();
        let (end, size) = (
            offset.saturating_add(operand.span()),
            size.unwrap_or_default().0,
        );
        if operand.count() > 0 && end > size {
            return Err(failed(
                launch,
                format!(
                    "a view ends at byte {end} of the {size} of {:?}",
                    view.tensor
                ),
            ));
        }
        Ok(operand)
    }

    /// Number of elements.
    pub(super) fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes from its first element to the end of its last.
    pub(super) fn span(&self) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        let steps = self.shape.iter().zip(&self.strides);
        let last = steps.fold(0_u64, |last, (length, stride)| {
            last.saturating_add((length - 1).saturating_mul(*stride))
        });
        last.saturating_add(1).saturating_mul(self.dtype.size())
    }

    /// As kernels take it.
    pub(super) fn array(&self) -> Array {
        Array {
            address: self.address,
            dtype: type_number(self.dtype),
            unused: 0,
        }
    }

    /// Whether the elements lie in row-major order without gaps.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (length, stride) in self.shape.iter().zip(&self.strides).rev() {
            if *length != 1 && *stride != expected {
                return false;
            }
            expected *= length;
        }
        true
    }

    /// Its strides when seen under a larger shape, as broadcasting does: zero where it has one element.
    pub(super) fn strides_under(&self, shape: &[u64]) -> Option<Vec<u64>> {
        let missing = shape.len().checked_sub(self.shape.len())?;
        let mut strides = vec![0; shape.len()];
        for (i, (length, stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            if *length == shape[missing + i] {
                strides[missing + i] = *stride;
            } else if *length != 1 {
                return None;
            }
        }
        Some(strides)
    }
}

/// All operands of a launch.
pub(super) struct Operands<'a> {
    launch: &'a Launch<'a>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
}

impl<'a> Operands<'a> {
    /// Looks up the addresses and lengths of a launch's operands.
    pub(super) fn of(launch: &'a Launch<'a>) -> Result<Operands<'a>, LaunchError> {
        let all = |views: &[View]| {
            views
                .iter()
                .map(|view| Operand::of(view, launch))
                .collect::<Result<Vec<_>, _>>()
        };
        let operands = Operands {
            launch,
            inputs: all(&launch.call.inputs)?,
            outputs: all(&launch.call.outputs)?,
        };
        let mut both = operands.inputs.iter().chain(&operands.outputs);
        if both.any(|operand| operand.dtype.is_complex()) {
            return Err(operands.unsupported("complex numbers"));
        }
        Ok(operands)
    }

    /// Fails unless all that kernels may touch of them is memory of the card that is held: see Note [Addresses] in
    /// `held`.
    pub(super) fn expect_held(&self, gpu: &Gpu) -> Result<(), LaunchError> {
        for operand in self.inputs.iter().chain(&self.outputs) {
            let span = operand.span();
            if span > 0 {
                gpu.expect_held("the launch of a kernel", operand.address, span)
                    .map_err(|error| self.failed(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// The operand that is read at this position.
    pub(super) fn input(&self, position: usize) -> Result<&Operand, LaunchError> {
        self.inputs
            .get(position)
            .ok_or_else(|| self.failed(format!("input {position} is missing")))
    }

    /// The operand that is read at this position, if there is one.
    pub(super) fn optional_input(&self, position: usize) -> Option<&Operand> {
        self.inputs.get(position)
    }

    /// The operand that is written at this position.
    pub(super) fn output(&self, position: usize) -> Result<&Operand, LaunchError> {
        self.outputs
            .get(position)
            .ok_or_else(|| self.failed(format!("output {position} is missing")))
    }

    /// All that are read.
    pub(super) fn inputs(&self) -> &[Operand] {
        &self.inputs
    }

    /// All that are written.
    pub(super) fn outputs(&self) -> &[Operand] {
        &self.outputs
    }

    /// What to call the launch in a message.
    pub(super) fn name(&self) -> String {
        name_of(self.launch)
    }

    /// What is launched.
    pub(super) fn kernel(&self) -> &Kernel {
        &self.launch.call.kernel
    }

    /// An input whose elements must lie in row-major order.
    pub(super) fn dense_input(&self, position: usize) -> Result<Array, LaunchError> {
        self.dense(self.input(position)?)
    }

    /// Likewise, or nothing where there is no such input.
    pub(super) fn optional_dense_input(&self, position: usize) -> Result<Array, LaunchError> {
        self.optional_dense(self.inputs.get(position))
    }

    /// An output whose elements must lie in row-major order.
    pub(super) fn dense_output(&self, position: usize) -> Result<Array, LaunchError> {
        self.dense(self.output(position)?)
    }

    /// Likewise, or nothing where there is no such output.
    pub(super) fn optional_dense_output(&self, position: usize) -> Result<Array, LaunchError> {
        self.optional_dense(self.outputs.get(position))
    }

    fn optional_dense(&self, operand: Option<&Operand>) -> Result<Array, LaunchError> {
        operand.map_or(Ok(Array::default()), |operand| self.dense(operand))
    }

    fn dense(&self, operand: &Operand) -> Result<Array, LaunchError> {
        if operand.is_contiguous() {
            Ok(operand.array())
        } else {
            Err(self.unsupported("a strided operand"))
        }
    }

    /// The operation does not run like this.
    pub(super) fn unsupported(&self, what: &str) -> LaunchError {
        LaunchError::Unsupported {
            operation: format!("{} of {what}", name_of(self.launch)),
        }
    }

    /// The operation has no kernel at all.
    pub(super) fn no_kernel(&self) -> LaunchError {
        LaunchError::Unsupported {
            operation: name_of(self.launch),
        }
    }

    /// The operation was described wrongly.
    pub(super) fn failed(&self, detail: String) -> LaunchError {
        failed(self.launch, detail)
    }
}

/// What to call a launch in a message.
pub(super) fn name_of(launch: &Launch<'_>) -> String {
    match launch.call.kernel {
        Kernel::MemoryOnly(name) => return name.to_owned(),
        Kernel::Generated(ref generated) => return generated.name.to_owned(),
        Kernel::Unary(function) => return function.name().to_owned(),
        _ => {}
    }
    let text = format!("{:?}", launch.call.kernel);
    let end = text.find([' ', '(', '{']).unwrap_or(text.len());
    text[..end].to_owned()
}

fn failed(launch: &Launch<'_>, detail: String) -> LaunchError {
    LaunchError::Failed {
        call: name_of(launch),
        detail,
    }
}

/// Dimensions of a loop over several operands at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loop<const N: usize> {
    /// Lengths, outermost first; at least one.
    pub(super) shape: Vec<u64>,
    /// Each operand's strides.
    pub(super) strides: [Vec<u64>; N],
}

impl<const N: usize> Loop<N> {
    /// The fewest dimensions that visit the same elements: those of length one dropped, those that lie
    /// behind one another in every operand merged. Orders them by the first operand's strides, so that
    /// neighbours in the innermost dimension are neighbours in memory.
    pub(super) fn over(shape: &[u64], strides: [&[u64]; N]) -> Loop<N> {
        let mut dims: Vec<usize> = (0..shape.len()).filter(|d| shape[*d] != 1).collect();
        dims.sort_by_key(|d| std::cmp::Reverse(strides[0][*d]));
        Loop::merged(shape, strides, &dims)
    }

    /// Likewise, in the order given.
    pub(super) fn in_order(shape: &[u64], strides: [&[u64]; N]) -> Loop<N> {
        let dims: Vec<usize> = (0..shape.len()).filter(|d| shape[*d] != 1).collect();
        Loop::merged(shape, strides, &dims)
    }

    /// Each operand's offset for every index of all dimensions but the innermost.
    pub(super) fn outer_offsets(&self) -> Vec<[u64; N]> {
        let mut offsets = vec![[0; N]];
        for d in 0..self.shape.len() - 1 {
            let steps = self.strides.each_ref().map(|strides| strides[d]);
            let along = |start: [u64; N]| {
                (0..self.shape[d]).map(move |i| std::array::from_fn(|n| start[n] + i * steps[n]))
            };
            offsets = offsets.into_iter().flat_map(along).collect();
        }
        offsets
    }

    fn merged(shape: &[u64], strides: [&[u64]; N], dims: &[usize]) -> Loop<N> {
        let mut merged = Loop {
            shape: Vec::new(),
            strides: std::array::from_fn(|_| Vec::new()),
        };
        for &d in dims {
            let extends_last = merged.shape.last().is_some()
                && (0..N).all(|n| {
                    merged.strides[n].last().copied() == strides[n][d].checked_mul(shape[d])
                });
            if extends_last {
                if let Some(length) = merged.shape.last_mut() {
                    *length *= shape[d];
                }
                for (n, of_operand) in merged.strides.iter_mut().enumerate() {
                    if let Some(stride) = of_operand.last_mut() {
                        *stride = strides[n][d];
                    }
                }
            } else {
                merged.shape.push(shape[d]);
                for (n, of_operand) in merged.strides.iter_mut().enumerate() {
                    of_operand.push(strides[n][d]);
                }
            }
        }
        if merged.shape.is_empty() {
            merged.shape.push(1);
            for of_operand in &mut merged.strides {
                of_operand.push(0);
            }
        }
        merged
    }
}

/// A list as a kernel takes it, or nothing when it is too long.
pub(super) fn fixed(list: &[u64]) -> Option<[i64; MAX_RANK]> {
    let mut fixed = [0; MAX_RANK];
    if list.len() > MAX_RANK {
        return None;
    }
    for (to, from) in fixed.iter_mut().zip(list) {
        *to = i64::try_from(*from).ok()?;
    }
    Some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_lie_behind_one_another_merge() {
        let merged = Loop::over(
            &[2, 3, 4, 5],
            [&[60, 20, 5, 1], &[0, 1, 0, 0], &[60, 20, 5, 1]],
        );

        assert_eq!(merged.shape, [2, 3, 20]);
        assert_eq!(merged.strides[0], [60, 20, 1]);
        assert_eq!(merged.strides[1], [0, 1, 0]);
    }

    #[test]
    fn a_scalar_loop_has_one_dimension() {
        let merged = Loop::over(&[1, 1], [&[1, 1]]);

        assert_eq!(merged.shape, [1]);
        assert_eq!(merged.strides[0], [0]);
    }

    #[test]
    fn the_innermost_dimension_is_the_one_neighbouring_in_the_first_operand() {
        let merged = Loop::over(&[7, 9], [&[1, 7], &[9, 1]]);

        assert_eq!(merged.shape, [9, 7]);
        assert_eq!(merged.strides[0], [7, 1]);
        assert_eq!(merged.strides[1], [1, 9]);
    }
}

//! Windows of convolutions and pools.

use serde::Serialize;

use super::extent::Extent;

/// The window of a convolution or pooling: `[depth, height, width]` each. One of planes is one deep, one
/// along a single dimension one high as well, with a stride of 1 and no padding there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Window {
    /// Kernel size. For a convolution it repeats what the weight's shape says.
    pub kernel: [u64; 3],
    /// Step between windows.
    pub stride: [u64; 3],
    /// Zeros (or minus infinity) added on each side.
    pub padding: [u64; 3],
    /// Distance between taps.
    pub dilation: [u64; 3],
    /// Groups of channels that do not mix; 1 for pooling.
    pub groups: u64,
    /// Whether the output size is rounded up (pooling only).
    pub ceil_mode: bool,
}

impl Window {
    /// A window of planes, of this height and width, with stride 1 and no padding.
    pub const fn of([height, width]: [u64; 2]) -> Window {
        Window::of_volumes([1, height, width])
    }

    /// A window of volumes with stride 1 and no padding.
    pub const fn of_volumes(kernel: [u64; 3]) -> Window {
        Window {
            kernel,
            stride: [1, 1, 1],
            padding: [0, 0, 0],
            dilation: [1, 1, 1],
            groups: 1,
            ceil_mode: false,
        }
    }

    /// The output length along one axis (0 depth, 1 height, 2 width), or `None` when the window does not fit.
    pub fn output(&self, axis: usize, input: u64) -> Option<u64> {
        let span = self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)? + 1;
        let room = (input + 2 * self.padding[axis]).checked_sub(span)?;
        let stride = self.stride[axis];
        if stride == 0 {
            return None;
        }
        if !self.ceil_mode {
            return Some(room / stride + 1);
        }
        let rounded = room.div_ceil(stride) + 1;
        // PyTorch drops a last window that would start in the right padding.
        Some(if (rounded - 1) * stride >= input + self.padding[axis] {
            rounded - 1
        } else {
            rounded
        })
    }

    /// [`Window::output`] of a side, or what does not fit.
    pub fn side(&self, axis: usize, length: Extent) -> Result<u64, String> {
        let side = ["depth", "height", "width"][axis];
        let fixed = length
            .as_fixed()
            .ok_or_else(|| format!("the {side} depends on the batch"))?;
        self.output(axis, fixed).ok_or_else(|| {
            format!(
                "a kernel of {} with padding {} does not fit a {side} of {fixed}",
                self.kernel[axis], self.padding[axis]
            )
        })
    }

    /// The output length of the transposed convolution along one axis, with so many extra elements.
    pub fn transposed_output(&self, axis: usize, input: u64, extra: u64) -> Option<u64> {
        let span = self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)? + 1;
        let stretched = input.checked_sub(1)?.checked_mul(self.stride[axis])? + span;
        stretched
            .checked_add(extra)?
            .checked_sub(2 * self.padding[axis])
            .filter(|length| *length > 0)
    }

    /// [`Window::side`] of the last dimensions of a tensor, as many as it has beside batch and channels.
    pub fn sides(&self, lengths: &[Extent]) -> Result<Vec<Extent>, String> {
        let first = 3_usize.checked_sub(lengths.len());
        let first = first.ok_or("it has more than three dimensions beside batch and channels")?;
        let side = |(i, length): (usize, &Extent)| self.side(first + i, *length).map(Extent::fixed);
        lengths.iter().enumerate().map(side).collect()
    }
}

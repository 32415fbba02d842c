//! Without a GPU these check that a missing library is an error value; with one, that every plan
//! of a few convolutions computes what the definition says.

use std::sync::Arc;

use cudarc::driver::{CudaContext, result};
use half::{bf16, f16};

use crate::device::sim::workspaces::parse_layer;
use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass, Operation};
use crate::shape::DType;
use crate::units::Bytes;

use super::*;

/// The first GPU's context, made current, or nothing on a machine without one.
fn context() -> Option<Arc<CudaContext>> {
    // SAFETY: loading the driver library has no preconditions.
    let has_driver = unsafe { cudarc::driver::sys::is_culib_present() };
    if !has_driver || !is_present() {
        return None;
    }
    let context = CudaContext::new(0).ok()?;
    context.bind_to_thread().ok()?;
    Some(context)
}

#[test]
fn a_missing_library_is_a_value() {
    if is_present() {
        assert!(version().unwrap() >= 90_000);
    } else {
        assert_eq!(version(), Err(CudnnError::LibraryMissing));
        // SAFETY: without the library nothing is called.
        let handle = unsafe { Handle::create(std::ptr::null_mut()) };
        assert_eq!(handle.err(), Some(CudnnError::LibraryMissing));
    }
}

#[test]
fn every_plan_computes_the_convolution() {
    let Some(_context) = context() else { return };
    // SAFETY: the context is current and outlives the handle; the null stream is always valid.
    let handle = unsafe { Handle::create(std::ptr::null_mut()) }.unwrap();
    let plain = parse_layer("8,16,1,12,10,3,3,1,1,1,1,1,1,0").unwrap();
    let strided = ConvolutionLayer {
        stride: [1, 2, 2],
        kernel: [1, 5, 3],
        ..plain
    };
    let grouped = ConvolutionLayer { groups: 4, ..plain };
    let up = ConvolutionLayer {
        kernel: [1, 2, 2],
        stride: [1, 2, 2],
        padding: [0, 0, 0],
        transposed: true,
        channels_last: false,
        ..plain
    };
    let mut executed = 0;
    for shape in [plain, strided, grouped, up] {
        for pass in ConvolutionPass::ALL {
            // See Note [A wrong engine].
            if shape.kernel == [1, 5, 3] && pass == ConvolutionPass::GradWeight {
                continue;
            }
            for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
                executed += check_plans(&handle, &shape.call(pass, dtype, 3));
            }
        }
    }
    assert!(executed > 50, "only {executed} plans ran");
}

#[test]
fn the_list_ends_with_a_plan_that_needs_nothing() {
    let Some(_context) = context() else { return };
    // SAFETY: the context is current and outlives the handle; the null stream is always valid.
    let handle = unsafe { Handle::create(std::ptr::null_mut()) }.unwrap();
    let layer = parse_layer("64,64,1,56,56,3,3,1,1,1,1,1,1,0").unwrap();
    for pass in ConvolutionPass::ALL {
        let call = layer.call(pass, DType::Float32, 32);
        let plans = list_plans(&handle, &call, ALIGNMENT, Tf32::Allowed).unwrap();
        let needs_none = |plan: &ExecutionPlan| plan.workspace() == Bytes::ZERO;
        assert_eq!(plans.iter().position(needs_none), Some(plans.len() - 1));
    }
}

/// Runs every plan of a call on small whole numbers, which all element types hold exactly.
fn check_plans(handle: &Handle, call: &Convolution) -> usize {
    let operands = call.operands();
    let [mut x, mut w, mut y] = operands.elements().map(|n| {
        (0..n)
            .map(|i| f64::from(u32::try_from(i * 7 % 5).unwrap()) - 2.0)
            .collect::<Vec<_>>()
    });
    let result = match operands.operation {
        Operation::Forward => &mut y,
        Operation::BackwardData => &mut x,
        Operation::BackwardFilter => &mut w,
    };
    result.fill(0.0);
    let inputs = [x.clone(), y.clone(), w.clone()];
    by_definition(call, &mut x, &mut w, &mut y);
    let (result, want) = match operands.operation {
        Operation::Forward => (1, y),
        Operation::BackwardData => (0, x),
        Operation::BackwardFilter => (2, w),
    };

    let plans = list_plans(handle, call, ALIGNMENT, Tf32::Allowed).unwrap();
    let buffers = inputs.map(|values| Buffer::holding(&encode(&values, call.dtype)));
    for plan in &plans {
        let size = usize::try_from(plan.workspace().0.max(1)).unwrap();
        let workspace = Buffer::holding(&vec![0xAB; size]);
        let [x, y, w] = [0, 1, 2].map(|i: usize| buffers[i].address);
        // SAFETY: the buffers hold the call's tensors, each from an aligned allocation, the
        // workspace is as large as the plan wants, and all live until the synchronisation below.
        unsafe { plan.execute(&DeviceAddresses { x, y, w }.by_uid(), workspace.address) }.unwrap();
        let got = decode(&buffers[result].read(), call.dtype);
        let furthest = got.iter().zip(&want).map(|(got, want)| (got - want).abs());
        let furthest = furthest.fold(0.0, f64::max);
        // Winograd and FFT engines round on the way.
        assert!(
            furthest < 0.05,
            "{} is off by {furthest} in {call:?}",
            plan.tag().unwrap()
        );
    }
    plans.len()
}

/// The definition of a convolution, its result written in place.
fn by_definition(call: &Convolution, x: &mut [f64], w: &mut [f64], y: &mut [f64]) {
    let operands = call.operands();
    // Planes, which are one deep.
    let at = |dims: [u64; 5], [a, b, c, d]: [u64; 4]| {
        usize::try_from(((a * dims[1] + b) * dims[3] + c) * dims[4] + d).unwrap()
    };
    let [batch, outs, _, height, width] = operands.y;
    let [_, ins_per_group, _, kernel_height, kernel_width] = operands.w;
    let outs_per_group = outs / call.groups;
    for n in 0..batch {
        for o in 0..outs {
            for (i, row) in (0..ins_per_group).flat_map(|i| (0..height).map(move |row| (i, row))) {
                for (column, r) in (0..width).flat_map(|c| (0..kernel_height).map(move |r| (c, r)))
                {
                    for s in 0..kernel_width {
                        let from_row = row * call.stride[1] + r * call.dilation[1];
                        let from_column = column * call.stride[2] + s * call.dilation[2];
                        let (Some(from_row), Some(from_column)) = (
                            from_row.checked_sub(call.padding[1]),
                            from_column.checked_sub(call.padding[2]),
                        ) else {
                            continue;
                        };
                        if from_row >= operands.x[3] || from_column >= operands.x[4] {
                            continue;
                        }
                        let channel = o / outs_per_group * ins_per_group + i;
                        let xi = at(operands.x, [n, channel, from_row, from_column]);
                        let wi = at(operands.w, [o, i, r, s]);
                        let yi = at(operands.y, [n, o, row, column]);
                        match operands.operation {
                            Operation::Forward => y[yi] += x[xi] * w[wi],
                            Operation::BackwardData => x[xi] += y[yi] * w[wi],
                            Operation::BackwardFilter => w[wi] += x[xi] * y[yi],
                        }
                    }
                }
            }
        }
    }
}

/// Whole numbers up to 2,048 as the bytes of an element type.
#[allow(clippy::cast_possible_truncation)] // whole numbers of a few bits
fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    let bytes = |value: &f64| match dtype {
        DType::Float32 => (*value as f32).to_le_bytes().to_vec(),
        DType::BFloat16 => bf16::from_f64(*value).to_le_bytes().to_vec(),
        _ => f16::from_f64(*value).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let number = |bytes: &[u8]| match (dtype, bytes) {
        (DType::Float32, bytes) => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        (DType::BFloat16, &[low, high]) => bf16::from_le_bytes([low, high]).to_f64(),
        (_, &[low, high]) => f16::from_le_bytes([low, high]).to_f64(),
        _ => panic!("{dtype} takes {} bytes", bytes.len()),
    };
    let size = usize::try_from(dtype.size()).unwrap();
    bytes.chunks_exact(size).map(number).collect()
}

/// Device memory from the driver.
struct Buffer {
    address: u64,
    len: usize,
}

impl Buffer {
    fn holding(bytes: &[u8]) -> Self {
        // SAFETY: a context is current, and the copy stays within the allocation.
        unsafe {
            let address = result::malloc_sync(bytes.len()).unwrap();
            result::memcpy_htod_sync(address, bytes).unwrap();
            Buffer {
                address,
                len: bytes.len(),
            }
        }
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: a context is current, and the copy is as long as the allocation. A synchronous
        // copy from the null stream waits for the work before it.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.address) }.unwrap();
        bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the address came from `malloc_sync` and is not used again.
        unsafe { result::free_sync(self.address) }.unwrap();
    }
}

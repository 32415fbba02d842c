//! A card with tensors on it, to run single calls.

use batchfit::alloc::{Address, SegmentSource};
use batchfit::device::cuda::{CudaLauncher, CudaMemory, Gpu, LauncherOptions, Tf32};
use batchfit::device::{Launch, LaunchError, Launcher, StepReport};
use batchfit::program::{Call, Kernel, TensorId, View};
use batchfit::shape::{DType, Extent, Sizes, contiguous_strides};
use batchfit::units::Bytes;

use super::numbers::{decode, encode, error};

/// The first GPU, with tensors on it.
pub struct Card {
    pub launcher: CudaLauncher,
    pub memory: CudaMemory,
    pub addresses: Vec<u64>,
    pub sizes: Vec<Bytes>,
}

impl Card {
    pub fn open() -> Card {
        Card::with(Tf32::Allowed)
    }

    pub fn with(tf32: Tf32) -> Card {
        let gpu = Gpu::open(0).expect("these tests need a GPU");
        Card {
            launcher: CudaLauncher::open(
                &gpu,
                LauncherOptions {
                    tf32,
                    ..LauncherOptions::default()
                },
            )
            .unwrap(),
            memory: CudaMemory::of(&gpu),
            addresses: vec![0],
            sizes: vec![Bytes::ZERO],
        }
    }

    /// A tensor that nothing was written to, seen whole.
    pub fn empty(&mut self, dtype: DType, shape: &[u64]) -> View {
        let size = shape.iter().product::<u64>() * dtype.size();
        let address = self.memory.take(Bytes(size.max(512))).unwrap().0;
        self.addresses.push(address);
        self.sizes.push(Bytes(size));
        view(TensorId(self.addresses.len() as u32 - 1), dtype, shape)
    }

    /// A tensor of these numbers, rounded to the type.
    pub fn tensor(&mut self, dtype: DType, shape: &[u64], values: &[f64]) -> View {
        assert_eq!(shape.iter().product::<u64>() as usize, values.len());
        let view = self.empty(dtype, shape);
        let address = self.addresses[view.tensor.0 as usize];
        self.launcher
            .upload(address, &encode(dtype, values))
            .unwrap();
        view
    }

    /// Gives a tensor's memory back.
    pub fn free(&mut self, view: &View) {
        let address = std::mem::take(&mut self.addresses[view.tensor.0 as usize]);
        self.memory.give_back(Address(address), Bytes::ZERO);
    }

    pub fn launch(&mut self, call: &Call) -> Result<(), LaunchError> {
        self.launcher.launch(&Launch {
            call,
            batch: 1,
            addresses: &self.addresses,
            sizes: &self.sizes,
            plan: 0,
        })
    }

    pub fn run(&mut self, kernel: Kernel, inputs: &[&View], outputs: &[&View]) -> StepReport {
        let call = Call {
            kernel,
            inputs: inputs.iter().map(|view| (*view).clone()).collect(),
            outputs: outputs.iter().map(|view| (*view).clone()).collect(),
            workspace: None,
        };
        self.launch(&call).unwrap();
        self.launcher.finish_step().unwrap()
    }

    /// The elements that a view shows, in row-major order.
    pub fn read(&mut self, view: &View) -> Vec<f64> {
        let places = places(view);
        let last = places.iter().max().map_or(0, |last| last + 1);
        let address = self.addresses[view.tensor.0 as usize];
        let bytes = self
            .launcher
            .download(address, Bytes(last * view.dtype.size()))
            .unwrap();
        let elements = decode(view.dtype, &bytes);
        places
            .iter()
            .map(|place| elements[*place as usize])
            .collect()
    }
}

/// A whole contiguous tensor.
pub fn view(tensor: TensorId, dtype: DType, shape: &[u64]) -> View {
    let shape: Sizes = shape.iter().map(|length| Extent::fixed(*length)).collect();
    View {
        tensor,
        dtype,
        offset: Extent::ZERO,
        strides: contiguous_strides(&shape).into(),
        shape,
    }
}

/// The same memory seen otherwise.
pub fn strided(view: &View, offset: u64, shape: &[u64], strides: &[u64]) -> View {
    let sizes = |list: &[u64]| -> Sizes { list.iter().map(|n| Extent::fixed(*n)).collect() };
    View {
        offset: Extent::fixed(offset),
        shape: sizes(shape),
        strides: sizes(strides),
        ..view.clone()
    }
}

/// Where a view's elements are, in row-major order.
pub fn places(view: &View) -> Vec<u64> {
    let mut places = vec![view.offset.at(1)];
    for (length, stride) in view.shape.iter().zip(&view.strides) {
        places = places
            .iter()
            .flat_map(|place| (0..length.at(1)).map(move |i| place + i * stride.at(1)))
            .collect();
    }
    places
}

/// Prints how far a kernel is off, and fails where that is too far.
pub fn compare(what: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    let error = error(actual, expected);
    eprintln!("{what:<44} {:>9} elements  error {error:.2e}", actual.len());
    assert!(
        error <= tolerance,
        "{what} is off by {error:.2e}, more than {tolerance:.2e}"
    );
}

//! Runs programs on a host, by the texts that a GPU runs: compiled as C++, one thread a block.
//!
//! What it is for: formulas are compared with PyTorch without a GPU. It knows no library.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::process::Command;

use libloading::{Library, Symbol};

use super::{GeneratedLaunch, Resources, Source};
use crate::device::Launch;
use crate::layout::Operands;
use crate::ops::formulas;
use crate::plan::is_source;
use crate::program::{Call, Instruction, Kernel, Program, Size};
use crate::script::HostTensor;
use crate::shape::DType;
use crate::units::Bytes;

/// A kernel on a host: its parameter, blocks and splits.
type Entry = unsafe extern "C" fn(*const u64, i64, i64);

/// Compiled texts.
pub(super) struct Compiled {
    /// In order.
    sources: Vec<Source>,
    library: Library,
}

impl Compiled {
    /// Compiles texts together: most of what one alone takes goes to what comes before it.
    pub(super) fn of(sources: BTreeSet<Source>) -> Compiled {
        let sources: Vec<Source> = sources.into_iter().collect();
        let folder = tempfile::tempdir().unwrap();
        let (text, library) = (folder.path().join("all.cpp"), folder.path().join("all.so"));
        fs::write(&text, Source::together(&sources)).unwrap();
        // Optimizing takes longer than it saves.
        let ran = Command::new("c++")
            .args("-std=c++17 -O0 -shared -fPIC -w -DON_HOST -o".split(' '))
            .args([&library, &text])
            .output()
            .expect("a C++ compiler is called `c++`");
        let complaint = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{complaint}");
        // SAFETY: made just now from texts of ours; loading it runs nothing.
        let library = unsafe { Library::new(&library) }.unwrap();
        Compiled { sources, library }
    }

    pub(super) fn run(&self, launch: &GeneratedLaunch) {
        let number = self.sources.binary_search(&launch.source).unwrap();
        let name = format!("{}_{number}", launch.entry);
        // SAFETY: the text defines a pointer of this name, to a function of this type.
        let entry: Symbol<'_, *const Entry> = unsafe { self.library.get(name) }.unwrap();
        let (work, splits) = (launch.work.cast_signed(), launch.blocks[1].cast_signed());
        // SAFETY: the addresses in the parameter are of live blocks, which are as large as the
        // program says.
        unsafe { (**entry)(launch.words.as_ptr(), work, splits) };
    }
}

/// Memory of one tensor, aligned as a GPU's is.
struct Block(Vec<u128>);

impl Block {
    fn new(size: Bytes) -> Block {
        // What is read unwritten shows: floats are no numbers.
        // Up to 512 bytes lie before the first that is aligned.
        let words = usize::try_from(size.0.div_ceil(16)).unwrap() + 32;
        Block(vec![u128::MAX; words])
    }

    fn address(&self) -> u64 {
        let start = self.0.as_ptr() as u64;
        start.next_multiple_of(512)
    }
}

/// What a run computed.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) losses: Vec<f64>,
    /// By the parameter's path.
    pub(super) gradients: BTreeMap<String, HostTensor>,
    /// Launches without a formula.
    pub(super) gaps: Vec<String>,
}

/// Goes through the first step of a program on given values; `run` gets each launch.
pub(super) fn first_step(
    program: &Program,
    batch: u64,
    feed: &HashMap<String, HostTensor>,
    run: &mut dyn FnMut(&GeneratedLaunch),
) -> Outcome {
    let mut outcome = Outcome::default();
    let (sizes, parts) = (program.bytes_at(batch), program.parts());
    let mut blocks: Vec<Option<Block>> = program.tensors.iter().map(|_| None).collect();
    let mut addresses = vec![0; program.tensors.len()];
    let scratch = Block::new(Bytes::mib(1));
    let mut seed = 0;
    for instruction in program.unrolled(1) {
        match instruction {
            Instruction::Allocate(id) => {
                let index = id.0 as usize;
                let size = match program.size(*id) {
                    Size::Workspace(_) => Bytes::ZERO,
                    _ => sizes[index],
                };
                let block = Block::new(size);
                addresses[index] = block.address();
                blocks[index] = Some(block);
            }
            Instruction::Free(id) => {
                blocks[id.0 as usize] = None;
                addresses[id.0 as usize] = 0;
            }
            Instruction::Launch(call) => {
                seed += 1;
                let label = call.outputs.first().map(|view| {
                    let part = parts.get(&(view.tensor, view.offset));
                    &**part.unwrap_or(&program.tensor(view.tensor).label)
                });
                let launch = Launch {
                    call,
                    batch,
                    addresses: &addresses,
                    sizes: &sizes,
                    plan: 0,
                };
                let resources = Resources {
                    multiprocessors: 1,
                    scratch: (scratch.address(), 1 << 20),
                    seed,
                    batch,
                };
                step(&launch, label, feed, resources, run, &mut outcome);
            }
        }
    }
    outcome
}

fn step(
    launch: &Launch<'_>,
    label: Option<&str>,
    feed: &HashMap<String, HostTensor>,
    resources: Resources,
    run: &mut dyn FnMut(&GeneratedLaunch),
    outcome: &mut Outcome,
) {
    let operands = match Operands::of(launch) {
        Ok(operands) => operands,
        Err(error) => return outcome.gaps.push(error.to_string()),
    };
    if let (true, Some(given)) = (
        is_source(&launch.call.kernel),
        label.and_then(|label| feed.get(label)),
    ) {
        let out = operands.output(0).unwrap();
        assert_eq!(
            (given.dtype, &given.shape),
            (out.dtype, &out.shape),
            "{label:?}"
        );
        // SAFETY: the operand lies in a live block of at least its size.
        unsafe {
            std::ptr::copy_nonoverlapping(
                given.bytes.as_ptr(),
                out.address as *mut u8,
                given.bytes.len(),
            );
        }
        return;
    }
    match &launch.call.kernel {
        Kernel::ObserveLoss => {
            let loss = operands.input(0).unwrap();
            let bytes = read(loss.address, loss.dtype.size());
            outcome.losses.push(number(loss.dtype, &bytes));
            return;
        }
        Kernel::Sgd | Kernel::SgdMomentum { .. } | Kernel::Adam { .. } => {
            let gradient = operands.input(0).unwrap();
            let tensor = HostTensor {
                dtype: gradient.dtype,
                shape: gradient.shape.clone(),
                bytes: read(gradient.address, gradient.count() * gradient.dtype.size()),
            };
            outcome
                .gradients
                .entry(label.unwrap_or_default().to_owned())
                .or_insert(tensor);
            return;
        }
        _ => {}
    }
    match formulas::launches(&operands, resources) {
        Ok(launches) => launches.iter().for_each(run),
        Err(error) => outcome.gaps.push(format!(
            "{error} ({})",
            shapes(launch.call, resources.batch)
        )),
    }
}

fn shapes(call: &Call, batch: u64) -> String {
    let views = call.inputs.iter().chain(&call.outputs);
    let of = |view: &crate::program::View| {
        let shape: Vec<u64> = view.shape.iter().map(|extent| extent.at(batch)).collect();
        format!("{}{shape:?}", view.dtype)
    };
    views.map(of).collect::<Vec<_>>().join(", ")
}

fn read(address: u64, size: u64) -> Vec<u8> {
    // SAFETY: the callers' operands lie in live blocks of at least this size.
    unsafe { std::slice::from_raw_parts(address as *const u8, usize::try_from(size).unwrap()) }
        .to_vec()
}

/// An element as a number.
pub(super) fn number(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::Float32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DType::Float16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::BFloat16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::Float64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        other => panic!("{other} is no type of a gradient"),
    }
}

//! An execution plan: one engine configuration for one operation graph.

use std::cell::OnceCell;
use std::fmt::Write as _;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendBehaviorNote_t,
    cudnnBackendDescriptorType_t as Kind,
};

use crate::units::Bytes;

use super::descriptor::{Address, BehaviorNote, Descriptor, KnobType};
use super::{CudnnError, Handle, check};

/// Room for the knobs of an engine. cuDNN 9 has some 45 kinds of them. Asked how many an engine
/// configuration has set, it says none.
const MOST_KNOBS: usize = 64;

/// A plan that cuDNN offers for an operation graph.
///
/// Plans of engines that compile their kernels at run time are made ready when they first run,
/// which can take a second; the others are ready from the start.
pub struct ExecutionPlan {
    config: Descriptor,
    ready: OnceCell<Descriptor>,
    handle: Handle,
    workspace: Bytes,
    /// Tensors that are single numbers, by unique id.
    numbers: Vec<(i64, f32)>,
}

impl ExecutionPlan {
    /// The plan of an engine configuration, or nothing when it cannot be built.
    pub(super) fn of(handle: &Handle, config: Descriptor) -> Result<Option<Self>, CudnnError> {
        if is_compiled_at_run_time(&config)? {
            // See Note [Workspaces without building].
            let workspace = workspace(&config)?;
            return Ok(Some(ExecutionPlan {
                config,
                ready: OnceCell::new(),
                handle: handle.clone(),
                workspace,
                numbers: Vec::new(),
            }));
        }
        match build(handle, &config) {
            Ok(plan) => ExecutionPlan::built(handle, config, plan, Vec::new()).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The plan of an engine configuration for a graph with numbers in it, made ready now.
    pub(super) fn ready_with(
        handle: &Handle,
        config: Descriptor,
        numbers: Vec<(i64, f32)>,
    ) -> Result<Self, CudnnError> {
        let plan = build(handle, &config)?;
        ExecutionPlan::built(handle, config, plan, numbers)
    }

    fn built(
        handle: &Handle,
        config: Descriptor,
        plan: Descriptor,
        numbers: Vec<(i64, f32)>,
    ) -> Result<Self, CudnnError> {
        let size = plan.read_one(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 0_i64)?;
        Ok(ExecutionPlan {
            config,
            ready: OnceCell::from(plan),
            handle: handle.clone(),
            workspace: bytes(size),
            numbers,
        })
    }

    /// The workspace that running the plan needs.
    pub fn workspace(&self) -> Bytes {
        self.workspace
    }

    /// The engine and its knobs, for example `eng28_k2=3_k3=0`: cuDNN's own way to name a plan.
    pub fn tag(&self) -> Result<String, CudnnError> {
        tag(&self.config)
    }

    /// Puts the graph's operations on the handle's stream. `tensors` are unique ids and addresses.
    ///
    /// # Safety
    ///
    /// There is an address for every tensor that the graph leaves to the caller. The addresses hold tensors of
    /// the shapes, strides and element types that the plan was made for, aligned as was said then; `workspace`
    /// is the start of at least [`workspace`](Self::workspace) bytes (0 when it needs none). All of it stays
    /// valid, and nothing else touches results or workspace, until the stream has passed this work.
    pub unsafe fn execute(&self, tensors: &[(i64, u64)], workspace: u64) -> Result<(), CudnnError> {
        let plan = self.ready()?;
        let at = |address: u64| {
            let address = usize::try_from(address).expect("the host has 64-bit addresses, too");
            Address(std::ptr::without_provenance_mut(address))
        };
        let given = tensors.iter().map(|(uid, address)| (*uid, at(*address)));
        let numbers = self.numbers.iter();
        let numbers = numbers
            .map(|(uid, number)| (*uid, Address(std::ptr::from_ref(number).cast_mut().cast())));
        let (uids, pointers): (Vec<i64>, Vec<Address>) = given.chain(numbers).unzip();
        let mut pack = Descriptor::create(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &uids)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[at(workspace)])?;
        let pack = pack.finalize()?;
        // SAFETY: handle, plan and pack are live and finalized, and the plan was built for this
        // handle; the caller vouches for the addresses in the pack. Numbers are read on the host, during
        // the call, while `self` holds them.
        check("cudnnBackendExecute", unsafe {
            (self.handle.functions().execute)(self.handle.raw(), plan.raw(), pack.raw())
        })
    }

    /// The finalized plan, built now if it was not before.
    fn ready(&self) -> Result<&Descriptor, CudnnError> {
        if let Some(plan) = self.ready.get() {
            return Ok(plan);
        }
        let plan = build(&self.handle, &self.config)?;
        Ok(self.ready.get_or_init(|| plan))
    }
}

/// Makes an engine configuration ready to run.
fn build(handle: &Handle, config: &Descriptor) -> Result<Descriptor, CudnnError> {
    let mut plan = Descriptor::create(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    plan.set_descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[config])?;
    plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[handle.raw()])?;
    plan.finalize()
}

/// Whether building the plan compiles kernels.
fn is_compiled_at_run_time(config: &Descriptor) -> Result<bool, CudnnError> {
    const COMPILED: BehaviorNote =
        BehaviorNote(cudnnBackendBehaviorNote_t::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as u32);
    // Room for more notes than any engine has.
    let mut notes = [BehaviorNote(u32::MAX); 32];
    let count = engine_of(config)?.read(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, &mut notes)?;
    Ok(notes[..count].contains(&COMPILED))
}

/// The engine of an engine configuration and its knobs.
pub(super) fn tag(config: &Descriptor) -> Result<String, CudnnError> {
    let mut tag = format!("eng{}", number(config)?);
    for (knob, value) in knobs(config)? {
        write!(tag, "_k{knob}={value}").expect("writing to a string cannot fail");
    }
    Ok(tag)
}

/// The knobs of an engine configuration: `cudnnBackendKnobType_t` and value.
pub(super) fn knobs(config: &Descriptor) -> Result<Vec<(u32, i64)>, CudnnError> {
    let choices = config.read_descriptors(
        Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
        Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
        MOST_KNOBS,
    )?;
    let read = |choice: &Descriptor| {
        let knob = choice.read_one(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, KnobType(0))?;
        let value = choice.read_one(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 0_i64)?;
        Ok((knob.0, value))
    };
    choices.iter().map(read).collect()
}

/// An engine with knobs of the caller's, on the graph and the card of another configuration.
pub(super) fn configured(
    config: &Descriptor,
    knobs: &[(u32, i64)],
) -> Result<Descriptor, CudnnError> {
    let choice = |(knob, value): &(u32, i64)| {
        let mut choice = Descriptor::create(Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)?;
        choice.set(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &[KnobType(*knob)])?;
        choice.set(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &[*value])?;
        choice.finalize()
    };
    let choices: Vec<Descriptor> = knobs.iter().map(choice).collect::<Result<_, _>>()?;
    let choices: Vec<&Descriptor> = choices.iter().collect();
    let mut made = Descriptor::create(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)?;
    made.set_descriptors(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &[&engine_of(config)?])?;
    made.set_descriptors(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, &choices)?;
    made.finalize()
}

/// The number of its engine.
pub(super) fn number(config: &Descriptor) -> Result<i64, CudnnError> {
    engine_of(config)?.read_one(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0_i64)
}

/// What a plan of an engine configuration needs; it is not built.
pub(super) fn workspace(config: &Descriptor) -> Result<Bytes, CudnnError> {
    let size = config.read_one(Name::CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, 0_i64)?;
    Ok(bytes(size))
}

/// The engine of an engine configuration.
pub(super) fn engine_of(config: &Descriptor) -> Result<Descriptor, CudnnError> {
    let mut engines = config.read_descriptors(
        Name::CUDNN_ATTR_ENGINECFG_ENGINE,
        Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR,
        1,
    )?;
    engines.pop().ok_or(CudnnError::NoEngine)
}

/// A size that cuDNN reports as a signed number.
fn bytes(size: i64) -> Bytes {
    Bytes(u64::try_from(size).unwrap_or(0))
}

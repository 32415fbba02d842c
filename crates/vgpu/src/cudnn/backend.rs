//! `cudnnBackend*`: what is kept of descriptors on their way to the real cuDNN, and what is said instead of it.
//!
//! Tensors and operations end before heuristics are asked, so what they said is copied. A caller may pass over engines before it builds plans
//! (those that lower precision), so recorded sizes are given to plans in the order in which they are built. No lock is held while the real cuDNN
//! works.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::convolution::{Convolution, ConvolutionDescriptor, Operation, Source, Tensor};
use super::engine::{self, kind, name, of};
use super::handle::check_handle;
use super::{BAD_PARAM, NULL_POINTER, Opaque, Status, check, is_deviceless, out, real, refused, stand_in, stream_k};
use crate::config;
use crate::handle::Lock;
use crate::memory;
use crate::names::{functions, same};
use crate::runtime::launch;
use crate::status::out_if;

/// What plans of a graph have been tried and what they take.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub convolution: Option<Convolution>,
    /// Whether it was found out what plans take.
    pub is_known: bool,
    /// What those take that are built first.
    pub sizes: Vec<u64>,
    /// Whether later ones take as much as the last of those; else what cuDNN says.
    pub is_whole: bool,
    /// Whether they are of other batches: what the first takes is cuDNN's to say.
    pub is_near: bool,
    /// Plans built.
    pub built: usize,
    /// How often memory was refused before the first was.
    refusals: usize,
    /// For each configuration that was listed, whether a caller as PyTorch is by default passes it over.
    pub is_passed_over: Vec<bool>,
}

/// What is kept of a descriptor.
#[derive(Debug, Clone)]
pub(super) enum Descriptor {
    Tensor(Tensor),
    /// A convolution's stride, padding and dilation.
    Geometry([Vec<i64>; 3]),
    Operation(Operation, ConvolutionDescriptor),
    Graph(Arc<Lock<Tried>>),
    Heuristics(Option<Arc<Lock<Tried>>>),
    /// The graph, and the place in the list of heuristics.
    Configuration(Option<(Arc<Lock<Tried>>, usize)>),
    /// The configuration, or [`OF_TEXT`], and what the plan takes.
    Plan(Option<usize>, u64),
    /// Of stand-ins: the place in the list.
    Engine(usize),
    Other,
}

/// Of a plan that was made of another's text.
const OF_TEXT: usize = 0;

#[derive(Debug, Clone)]
struct Entry {
    kept: Descriptor,
    /// Of what: `cudnnBackendDescriptorType_t`.
    of: i32,
    /// Whether the real cuDNN has it, too.
    is_real: bool,
}

static DESCRIPTORS: Lock<BTreeMap<usize, Entry>> = Lock::new(BTreeMap::new());

pub(super) fn kept(descriptor: usize) -> Option<Descriptor> {
    DESCRIPTORS.lock().get(&descriptor).map(|entry| entry.kept.clone())
}

pub(super) fn keep(descriptor: usize, kept: Descriptor) -> bool {
    let mut descriptors = DESCRIPTORS.lock();
    descriptors.get_mut(&descriptor).map(|entry| entry.kept = kept).is_some()
}

fn entry(descriptor: Opaque) -> Result<Entry, Status> {
    DESCRIPTORS.lock().get(&(descriptor as usize)).cloned().ok_or(BAD_PARAM)
}

/// Copies what matters later.
unsafe fn note(descriptor: usize, attribute: i32, kind: i32, count: usize, values: *const c_void) {
    /// Tensors have at most eight dimensions (`CUDNN_DIM_MAX`).
    const MOST: usize = 8;
    if count == 0 {
        return;
    }
    let numbers = || -> Vec<i64> {
        let count = if kind == kind::INT64 { count.min(MOST) } else { 0 };
        (0..count).map(|at| values.cast::<i64>().add(at).read_unaligned()).collect()
    };
    let other = if kind == kind::DESCRIPTOR { values.cast::<usize>().read_unaligned() } else { 0 };
    let mut descriptors = DESCRIPTORS.lock();
    let referred = descriptors.get(&other).map(|entry| entry.kept.clone());
    let Some(entry) = descriptors.get_mut(&descriptor) else {
        return;
    };
    match (&mut entry.kept, attribute) {
        (Descriptor::Tensor(tensor), name::TENSOR_TYPE) if kind == kind::DATA_TYPE => tensor.kind = values.cast::<i32>().read_unaligned(),
        (Descriptor::Tensor(tensor), name::TENSOR_DIMENSIONS) => tensor.dimensions = numbers(),
        (Descriptor::Tensor(tensor), name::TENSOR_STRIDES) => tensor.strides = numbers(),
        (Descriptor::Geometry([stride, ..]), name::CONVOLUTION_FILTER_STRIDES) => *stride = numbers(),
        (Descriptor::Geometry([_, padding, _]), name::CONVOLUTION_PRE_PADDINGS) => *padding = numbers(),
        (Descriptor::Geometry([.., dilation]), name::CONVOLUTION_DILATIONS) => *dilation = numbers(),
        // Each of the three has alpha, beta, then its geometry, the weight, the input and the result.
        (Descriptor::Operation(_, operation), 700..=717) => match ((attribute - 700) % 6, referred) {
            (2, Some(Descriptor::Geometry(geometry))) => [operation.stride, operation.padding, operation.dilation] = geometry,
            (3, Some(Descriptor::Tensor(tensor))) => operation.w = tensor,
            (4, Some(Descriptor::Tensor(tensor))) => operation.x = tensor,
            (5, Some(Descriptor::Tensor(tensor))) => operation.y = tensor,
            _ => {}
        },
        (Descriptor::Graph(tried), name::GRAPH_OPERATIONS) => {
            let convolution = match referred {
                Some(Descriptor::Operation(pass, operation)) if count == 1 => Convolution::of(pass, &operation),
                _ => None,
            };
            *tried = Arc::new(Lock::new(Tried { convolution, ..Tried::default() }));
        }
        (Descriptor::Heuristics(graph), name::HEURISTICS_GRAPH) => {
            if let Some(Descriptor::Graph(tried)) = referred {
                *graph = Some(tried);
            }
        }
        (Descriptor::Plan(configuration, _), name::PLAN_CONFIGURATION) => *configuration = Some(other),
        (Descriptor::Plan(configuration, size), name::PLAN_TEXT) => {
            let text = String::from_utf8_lossy(std::slice::from_raw_parts(values.cast(), count));
            (*configuration, *size) = (Some(OF_TEXT), text.trim_end_matches('\0').parse().unwrap_or(0));
        }
        _ => {}
    }
}

/// What a plan takes.
fn size_of_plan(configuration: Opaque, place: Option<(Arc<Lock<Tried>>, usize)>, is_real: bool) -> u64 {
    let (mut convolution, mut near) = (None, None);
    if let Some((tried, place)) = place {
        let mut tried = tried.lock();
        convolution = tried.convolution;
        // A caller that forbids TF32, or what is not deterministic, tries others than those that were recorded.
        if tried.built == 0 && tried.is_passed_over.iter().take(place).any(|passed| !passed) {
            tried.sizes.clear();
        }
        let at = tried.built;
        tried.built += 1;
        let refusals = memory::REFUSALS.load(Ordering::Relaxed);
        if at == 0 {
            tried.refusals = refusals;
        } else if tried.refusals == refusals {
            // Nothing was refused, and yet the caller asks on: it tries all engines (`cudnn.benchmark`), and takes the most that one of them is given.
            let most = convolution.and_then(|call| refused::most_of_all(&call));
            let own = if is_real { without_device(configuration, convolution) } else { 0 };
            return own.max(most.filter(|_| at == 1).unwrap_or(0));
        }
        // Each list that was recorded ends with one that needs nothing.
        if place > 0 && place + 1 == tried.is_passed_over.len() {
            return 0;
        }
        let last = tried.sizes.last().filter(|_| tried.is_whole);
        near = tried.sizes.get(at).or(last).copied();
        if let Some(size) = near.filter(|_| at > 0 || !tried.is_near) {
            return size;
        }
    }
    if !is_real {
        return 0;
    }
    with_counters(without_device(configuration, convolution), near)
}

/// What a plan would be given, as cuDNN says without a device.
fn without_device(configuration: Opaque, convolution: Option<Convolution>) -> u64 {
    let mended = convolution.and_then(|call| stream_k::workspace(configuration, &call, config::card()));
    mended.or_else(|| engine::workspace(configuration)).unwrap_or(0)
}

/// What cuDNN says without a device, with a kernel's counters, which it does not know then and which recordings of other batches tell.
fn with_counters(asked: u64, near: Option<u64>) -> u64 {
    /// They take fewer bytes.
    const COUNTERS: u64 = 1 << 10;
    near.filter(|near| near.abs_diff(asked) < COUNTERS).unwrap_or(asked)
}

/// Keeps which configurations were listed for a graph.
fn remember(tried: &Arc<Lock<Tried>>, configurations: &[usize]) {
    let has_sizes = !tried.lock().sizes.is_empty();
    let passed = configurations.iter().map(|at| has_sizes && engine::converts_down(*at as Opaque));
    let passed: Vec<bool> = passed.collect();
    for (place, configuration) in configurations.iter().enumerate() {
        keep(*configuration, Descriptor::Configuration(Some((Arc::clone(tried), place))));
    }
    tried.lock().is_passed_over = passed;
}

/// Finds out what a graph's plans take, once.
fn find_out(tried: &Arc<Lock<Tried>>, heuristics: Option<Opaque>) {
    let (known, convolution) = {
        let tried = tried.lock();
        (tried.is_known, tried.convolution)
    };
    if known {
        return;
    }
    let answer = convolution.map(|call| call.answer());
    if let Some(answer) = &answer {
        // The script's cuDNN is asked for what `batchfit run` would only estimate.
        let source = if heuristics.is_some() { answer.source.min(Source::Asked) } else { answer.source };
        source.say();
    }
    let (mut sizes, mut is_near) = match &answer {
        Some(answer) if answer.source <= Source::Interpolated => (answer.sizes.clone(), answer.source != Source::Recorded),
        // Without a real cuDNN that can be asked, what is said of similar layers is all there is.
        _ if heuristics.is_none() => (stand_in::sizes(answer.as_deref()), false),
        _ => (Vec::new(), false),
    };
    is_near &= heuristics.is_some();
    let is_whole = !sizes.is_empty();
    if let (Some(heuristics), Some(call), true) = (heuristics, convolution, is_near || !is_whole)
        && let Some(asked) = refused::first_of(heuristics, &call)
    {
        let first = with_counters(asked, sizes.first().copied());
        sizes.splice(..sizes.len().min(1), [first]);
        is_near = false;
    }
    let mut tried = tried.lock();
    (tried.is_known, tried.sizes, tried.is_whole, tried.is_near) = (true, sizes, is_whole, is_near);
}

/// Writes elements where there is room for them, and says how many there are.
pub(super) unsafe fn give<T: Copy>(values: &[T], room: i64, count: *mut i64, to: *mut c_void) {
    if !to.is_null() {
        for (at, value) in values.iter().enumerate().take(room.max(0) as usize) {
            to.cast::<T>().add(at).write_unaligned(*value);
        }
    }
    out_if(count, values.len() as i64);
}

functions! {
    cudnnBackendCreateDescriptor(kind: c_int, to: *mut Opaque) {
        check(!to.is_null(), NULL_POINTER)?;
        let is_real = is_deviceless();
        let mut made = std::ptr::null_mut();
        if is_real {
            real!(cudnnBackendCreateDescriptor(kind => c_int, &raw mut made => *mut Opaque))?;
        } else {
            made = stand_in::next();
        }
        let kept = match kind {
            of::TENSOR => Descriptor::Tensor(Tensor::default()),
            of::CONVOLUTION => Descriptor::Geometry([const { Vec::new() }; 3]),
            // Forward, the weight's gradient, the input's.
            10 => Descriptor::Operation(Operation::Forward, ConvolutionDescriptor::default()),
            11 => Descriptor::Operation(Operation::BackwardFilter, ConvolutionDescriptor::default()),
            12 => Descriptor::Operation(Operation::BackwardData, ConvolutionDescriptor::default()),
            of::GRAPH => Descriptor::Graph(Arc::default()),
            of::HEURISTICS => Descriptor::Heuristics(None),
            of::CONFIGURATION => Descriptor::Configuration(None),
            of::PLAN => Descriptor::Plan(None, 0),
            _ => Descriptor::Other,
        };
        DESCRIPTORS.lock().insert(made as usize, Entry { kept, of: kind, is_real });
        out(to, made)
    }
    cudnnBackendDestroyDescriptor(descriptor: Opaque) {
        // What it refers to ends after the lock.
        let entry = DESCRIPTORS.lock().remove(&(descriptor as usize));
        if entry.ok_or(BAD_PARAM)?.is_real { real!(cudnnBackendDestroyDescriptor(descriptor => Opaque)) } else { Ok(()) }
    }
    /// Clears a descriptor.
    cudnnBackendInitialize(descriptor: Opaque) {
        if entry(descriptor)?.is_real { real!(cudnnBackendInitialize(descriptor => Opaque)) } else { Ok(()) }
    }
    cudnnBackendSetAttribute(descriptor: Opaque, attribute: c_int, kind: c_int, count: i64, values: *const c_void) {
        let is_real = entry(descriptor)?.is_real;
        check(count >= 0 && (count == 0 || !values.is_null()), BAD_PARAM)?;
        if kind == kind::HANDLE {
            // The real cuDNN gets none: a handle is only a number.
            check(count == 1, BAD_PARAM)?;
            return check_handle(values.cast::<u64>().read_unaligned());
        }
        if is_real && attribute != name::PLAN_TEXT {
            engine::set(descriptor, attribute, kind, count, values)?;
        }
        note(descriptor as usize, attribute, kind, count as usize, values);
        Ok(())
    }
    cudnnBackendFinalize(descriptor: Opaque) {
        let entry = entry(descriptor)?;
        if let Descriptor::Plan(Some(OF_TEXT), _) = entry.kept {
            return Ok(());
        }
        if let Descriptor::Plan(configuration, _) = entry.kept {
            let Some((configuration, Some(Descriptor::Configuration(place)))) = configuration.map(|at| (at, kept(at))) else {
                return Err(BAD_PARAM);
            };
            let size = size_of_plan(configuration as Opaque, place, entry.is_real);
            keep(descriptor as usize, Descriptor::Plan(Some(configuration), size));
            return Ok(());
        }
        if !entry.is_real {
            return Ok(());
        }
        match entry.of {
            of::HEURISTICS => engine::tell_of_card(descriptor, name::HEURISTICS_DEVICE)?,
            of::ENGINE => engine::tell_of_card(descriptor, name::ENGINE_DEVICE)?,
            _ => {}
        }
        real!(cudnnBackendFinalize(descriptor => Opaque))
    }
    cudnnBackendGetAttribute(descriptor: Opaque, attribute: c_int, kind: c_int, room: i64, count: *mut i64, to: *mut c_void) {
        let entry = entry(descriptor)?;
        check(room >= 0, BAD_PARAM)?;
        if let (Descriptor::Plan(_, size), name::PLAN_WORKSPACE) = (&entry.kept, attribute) {
            give(&[*size as i64], room, count, to);
            return Ok(());
        }
        // PyTorch 2.15 keeps the fastest plan as text, and makes one of it later: all that matters is what it takes.
        if let (Descriptor::Plan(_, size), name::PLAN_TEXT) = (&entry.kept, attribute) {
            give(size.to_string().as_bytes(), room, count, to);
            return Ok(());
        }
        // One that only asks how many there are waits for nothing; a stand-in has to know.
        let is_read = !entry.is_real || (room > 0 && !to.is_null());
        let lists = match &entry.kept {
            Descriptor::Heuristics(Some(tried)) if attribute == name::HEURISTICS_RESULTS && is_read => Some(tried),
            _ => None,
        };
        if let Some(tried) = lists {
            find_out(tried, entry.is_real.then_some(descriptor));
        }
        if !entry.is_real {
            return stand_in::get(&entry.kept, attribute, room, count, to);
        }
        let mut listed = 0;
        let answer = engine::get(descriptor, attribute, kind, room, &raw mut listed, to);
        out_if(count, listed);
        if let (Some(tried), Ok(())) = (lists, answer) {
            let configurations = to.cast::<usize>();
            let listed = usize::try_from(listed.min(room)).unwrap_or(0);
            let configurations: Vec<usize> = (0..listed).map(|at| configurations.add(at).read_unaligned()).collect();
            remember(tried, &configurations);
        }
        answer
    }
    /// Nothing is launched: handle and plan only have to be some that were made. Of many that are timed (`cudnn.benchmark`) those take longer whose
    /// workspace is larger than four copies of all tensors.
    cudnnBackendExecute(handle: u64, plan: Opaque, _pack: Opaque) {
        let Some(Descriptor::Plan(configuration, size)) = kept(plan as usize) else {
            return Err(BAD_PARAM);
        };
        if let Some(Descriptor::Configuration(Some((tried, _)))) = configuration.and_then(kept)
            && let Some(call) = tried.lock().convolution
            && size / 4 > call.bytes()
        {
            launch::pass(launch::count() + 2);
        }
        check_handle(handle)
    }
}

same! { cudnnBackendPopulateCudaGraph = cudnnBackendExecute, cudnnBackendUpdateCudaGraph = cudnnBackendExecute, }

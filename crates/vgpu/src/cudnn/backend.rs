//! `cudnnBackend*`: what is kept of descriptors on their way to the real cuDNN, and what is said instead of it.
//!
//! Tensors and operations end before heuristics are asked, so what they said is copied. A caller may pass over engines before it builds plans
//! (those that lower precision), so recorded sizes are given to plans in the order in which they are built. No lock is held while the real cuDNN
//! works.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::convolution::{Convolution, ConvolutionDescriptor, Operation, Source, Tensor};
use super::engine::{self, kind, name, note, of};
use super::handle::{check_handle, stream_of};
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
    /// What listed configurations of it, until a plan is executed: its owner is done with it before.
    heuristics: Option<Arc<engine::Descriptor>>,
    /// The place of the first plan that was built: the caller passes over those before.
    first: usize,
    /// The least that a plan took that was built: where more are, it was refused.
    least: Option<u64>,
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
    /// What each configuration that was listed notes of itself.
    notes: Vec<u32>,
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
    /// The real cuDNN's, where it has it, too.
    real: Option<Arc<engine::Descriptor>>,
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

/// What the plan takes that is tried next, where that was not recorded and cuDNN refuses one that is ranked ahead of it and may fit.
fn refused_ahead(tried: &Lock<Tried>, place: usize) -> Option<u64> {
    let mut kept = tried.lock();
    let heuristics = Arc::clone(kept.heuristics.as_ref()?);
    let passed: Vec<u32> = kept.notes.iter().take(kept.first).copied().filter(|notes| notes & note::DOWN_CONVERT_INPUTS == 0).collect();
    // A caller that forbids TF32, or what is not deterministic, tries others than those that were recorded.
    if !passed.is_empty() {
        kept.sizes.clear();
    }
    let call = kept.convolution.filter(|_| kept.sizes.is_empty() || (kept.is_near && kept.built == 0))?;
    let below = kept.least.unwrap_or(u64::MAX);
    drop(kept);
    let is_full = passed.iter().any(|notes| notes & (note::TENSOR_CORE | note::NONDETERMINISTIC) == note::TENSOR_CORE);
    refused::first_of(&heuristics, place + 1, &call, is_full, below)
}

/// What a plan takes.
fn size_of_plan(configuration: Opaque, place: Option<(Arc<Lock<Tried>>, usize)>, is_real: bool) -> u64 {
    let Some((tried, place)) = place else {
        return if is_real { without_device(configuration, None) } else { 0 };
    };
    let size = size_of_next(configuration, &tried, place, is_real);
    let mut tried = tried.lock();
    tried.built += 1;
    tried.least = Some(tried.least.map_or(size, |least| least.min(size)));
    size
}

/// What the plan takes that is tried next, of the configuration at a place of the list.
fn size_of_next(configuration: Opaque, tried: &Lock<Tried>, place: usize, is_real: bool) -> u64 {
    let refusals = memory::REFUSALS.load(Ordering::Relaxed);
    let mut kept = tried.lock();
    let (convolution, at) = (kept.convolution, kept.built);
    let own = || if is_real { without_device(configuration, convolution) } else { 0 };
    if at == 0 {
        (kept.first, kept.refusals) = (place, refusals);
    } else if kept.refusals == refusals {
        drop(kept);
        // Nothing was refused, and yet the caller asks on: it tries all engines (`cudnn.benchmark`), and takes the most that one of them is given.
        let most = convolution.and_then(|call| refused::most_of_all(&call));
        return own().max(most.filter(|_| at == 1).unwrap_or(0));
    }
    drop(kept);
    let refused = refused_ahead(tried, place);
    let tried = tried.lock();
    let last = tried.sizes.last().filter(|_| tried.is_whole);
    let near = tried.sizes.get(at).or(last).copied();
    if let Some(asked) = refused {
        return with_counters(asked, near);
    }
    // Each list that was recorded ends with one that needs nothing.
    if at > 0 && place + 1 == tried.notes.len() {
        return 0;
    }
    near.filter(|_| at > 0 || !tried.is_near).unwrap_or_else(|| with_counters(own(), near))
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

/// Keeps which configurations heuristics listed for a graph.
fn remember(tried: &Arc<Lock<Tried>>, heuristics: Arc<engine::Descriptor>, configurations: &[usize]) {
    for (place, configuration) in configurations.iter().enumerate() {
        keep(*configuration, Descriptor::Configuration(Some((Arc::clone(tried), place))));
    }
    let notes: Vec<u32> = configurations.iter().map(|at| engine::notes(*at as Opaque)).collect();
    let mut tried = tried.lock();
    tried.notes = notes;
    if tried.built == 0 {
        tried.heuristics = Some(heuristics);
    }
}

/// Finds out what a graph's plans take, once.
fn find_out(tried: &Lock<Tried>, is_real: bool) {
    if replace(&mut tried.lock().is_known, true) {
        return;
    }
    let convolution = tried.lock().convolution;
    let answer = convolution.map(|call| call.answer());
    if let Some(answer) = &answer {
        // The script's cuDNN is asked for what `batchfit run` would only estimate.
        let source = if is_real { answer.source.min(Source::Asked) } else { answer.source };
        source.say();
    }
    let (sizes, is_near) = match &answer {
        Some(answer) if answer.source <= Source::Interpolated => (answer.sizes.clone(), is_real && answer.source != Source::Recorded),
        // Without a real cuDNN that can be asked, what is said of similar layers is all there is.
        _ if !is_real => (stand_in::sizes(answer.as_deref()), false),
        _ => (Vec::new(), false),
    };
    let mut tried = tried.lock();
    (tried.is_whole, tried.sizes, tried.is_near) = (!sizes.is_empty(), sizes, is_near);
}

/// Writes elements where there is room for them, and says how many there are.
pub(super) unsafe fn give<T: Copy>(values: &[T], room: i64, count: *mut i64, to: *mut c_void) -> Result<(), Status> {
    check(room >= 0, BAD_PARAM)?;
    if !to.is_null() {
        for (at, value) in values.iter().enumerate().take(room as usize) {
            to.cast::<T>().add(at).write_unaligned(*value);
        }
    }
    out_if(count, values.len() as i64);
    Ok(())
}

functions! {
    cudnnBackendCreateDescriptor(kind: c_int, to: *mut Opaque) {
        check(!to.is_null(), NULL_POINTER)?;
        let real = if is_deviceless() { Some(Arc::new(engine::Descriptor::new(kind)?)) } else { None };
        let made = real.as_ref().map_or_else(stand_in::next, |real| real.0);
        let kept = match kind {
            of::TENSOR => Descriptor::Tensor(Tensor::default()),
            of::CONVOLUTION => Descriptor::Geometry([const { Vec::new() }; 3]),
            10 => Descriptor::Operation(Operation::Forward, ConvolutionDescriptor::default()),
            11 => Descriptor::Operation(Operation::BackwardFilter, ConvolutionDescriptor::default()),
            12 => Descriptor::Operation(Operation::BackwardData, ConvolutionDescriptor::default()),
            of::GRAPH => Descriptor::Graph(Arc::default()),
            of::HEURISTICS => Descriptor::Heuristics(None),
            of::CONFIGURATION => Descriptor::Configuration(None),
            of::PLAN => Descriptor::Plan(None, 0),
            of::ENGINE => Descriptor::Engine(0),
            _ => Descriptor::Other,
        };
        DESCRIPTORS.lock().insert(made as usize, Entry { kept, real });
        out(to, made)
    }
    cudnnBackendDestroyDescriptor(descriptor: Opaque) {
        // What it refers to ends after the lock.
        let entry = DESCRIPTORS.lock().remove(&(descriptor as usize));
        entry.map(drop).ok_or(BAD_PARAM)
    }
    /// Clears a descriptor.
    cudnnBackendInitialize(descriptor: Opaque) {
        if entry(descriptor)?.real.is_some() { real!(cudnnBackendInitialize(descriptor => Opaque)) } else { Ok(()) }
    }
    cudnnBackendSetAttribute(descriptor: Opaque, attribute: c_int, kind: c_int, count: i64, values: *const c_void) {
        let is_real = entry(descriptor)?.real.is_some();
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
            let size = size_of_plan(configuration as Opaque, place, entry.real.is_some());
            keep(descriptor as usize, Descriptor::Plan(Some(configuration), size));
            return Ok(());
        }
        if entry.real.is_none() {
            return Ok(());
        }
        match entry.kept {
            Descriptor::Heuristics(_) => engine::tell_of_card(descriptor, name::HEURISTICS_DEVICE)?,
            Descriptor::Engine(_) => engine::tell_of_card(descriptor, name::ENGINE_DEVICE)?,
            _ => {}
        }
        real!(cudnnBackendFinalize(descriptor => Opaque))
    }
    cudnnBackendGetAttribute(descriptor: Opaque, attribute: c_int, kind: c_int, room: i64, count: *mut i64, to: *mut c_void) {
        let entry = entry(descriptor)?;
        match (&entry.kept, attribute) {
            (Descriptor::Plan(_, size), name::PLAN_WORKSPACE) => return give(&[*size as i64], room, count, to),
            // PyTorch 2.15 keeps the fastest plan as text, and makes one of it later: all that matters is what it takes.
            (Descriptor::Plan(_, size), name::PLAN_TEXT) => return give(size.to_string().as_bytes(), room, count, to),
            _ => {}
        }
        // One that only asks how many there are waits for nothing; a stand-in has to know.
        let is_read = entry.real.is_none() || (room > 0 && !to.is_null());
        let lists = match &entry.kept {
            Descriptor::Heuristics(Some(tried)) if attribute == name::HEURISTICS_RESULTS && is_read => Some(tried),
            _ => None,
        };
        if let Some(tried) = lists {
            find_out(tried, entry.real.is_some());
        }
        let Some(real) = &entry.real else {
            return stand_in::get(&entry.kept, attribute, room, count, to);
        };
        let mut listed = 0;
        let answer = engine::get(descriptor, attribute, kind, room, &raw mut listed, to);
        out_if(count, listed);
        if let (Some(tried), Ok(())) = (lists, answer) {
            let configurations = to.cast::<usize>();
            let listed = usize::try_from(listed.min(room)).unwrap_or(0);
            let configurations: Vec<usize> = (0..listed).map(|at| configurations.add(at).read_unaligned()).collect();
            remember(tried, Arc::clone(real), &configurations);
        }
        answer
    }
    /// Nothing is launched: handle and plan only have to be some that were made. Of many that are timed (`cudnn.benchmark`) those take longer whose
    /// workspace is larger than four copies of all tensors.
    cudnnBackendExecute(handle: u64, plan: Opaque, _pack: Opaque) {
        let Some(Descriptor::Plan(configuration, size)) = kept(plan as usize) else {
            return Err(BAD_PARAM);
        };
        // Of what is no convolution: attention took an H200 about so long.
        let mut time = 25_000;
        if let Some(Descriptor::Configuration(Some((tried, _)))) = configuration.and_then(kept)
        {
            let mut tried = tried.lock();
            tried.heuristics = None;
            time = tried.convolution.map_or(time, |call| call.time());
            if tried.convolution.is_some_and(|call| size / 4 > call.bytes()) {
                launch::spend(2 * launch::CALL);
            }
        }
        launch::enqueue(stream_of(handle)?, time).map(drop).map_err(|_| BAD_PARAM)
    }
}

same! { cudnnBackendPopulateCudaGraph = cudnnBackendExecute, cudnnBackendUpdateCudaGraph = cudnnBackendExecute, }

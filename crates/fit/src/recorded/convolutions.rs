//! Which convolution asked for scratch memory: found by the sizes of its result and of the scratch memory, in the table
//! of what cuDNN asks for.
//!
//! A recording does not name layers, and the size of their scratch memory follows no form: the library chooses among
//! algorithms by the batch. But the table holds it for thousands of layers, and few of them have results and scratch
//! memory of the same sizes at several batches.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::form::Point;
use super::scratch::InUse;
use crate::device::sim::workspaces::{Lookup, Source, WorkspaceTable};
use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass, ConvolutionShape, Operation};
use crate::shape::{DType, Extent};
use crate::units::Bytes;

/// The element types in which layers are recorded.
const DTYPES: [DType; 3] = [DType::Float32, DType::Float16, DType::BFloat16];

/// How far above the recordings candidates are compared: they may be alike up to there.
const FAR: [u64; 3] = [2, 4, 16];

/// Bytes of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Result {
    /// For each sample: an output, or the gradient of an input.
    PerSample(u64),
    /// At every batch: the gradient of a weight.
    Fixed(u64),
}

/// A call of the library, but for its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    layer: ConvolutionLayer,
    pass: ConvolutionPass,
    dtype: DType,
}

/// Scratch memory that is asked for after a result and freed at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Site {
    /// The event that asks for the scratch memory.
    pub(super) event: usize,
    /// The family of the scratch memory.
    pub(super) family: usize,
    /// Sizes of the result.
    pub(super) results: Vec<Point>,
    /// Sizes of the scratch memory, at the same batches.
    pub(super) scratch: Vec<Point>,
}

/// Finds out which convolutions there are, site by site.
#[derive(Default)]
pub(super) struct Convolutions {
    /// Made when there is a first site.
    library: Option<Library>,
    sites: Vec<Site>,
    candidates: Vec<Vec<Call>>,
}

impl Convolutions {
    /// Looks at the next site, at which this is in use in the recording of the largest batch.
    pub(super) fn visit(&mut self, site: Site, in_use: &InUse) {
        let library = self.library.get_or_insert_with(Library::h200);
        let mut candidates = library.candidates(&site);
        let batch = site.scratch.last().map_or(1, |point| point.batch);
        // Operands that are views of other tensors are not seen.
        let is_there = |call: &Call| {
            call.operands(batch)
                .iter()
                .all(|size| in_use.contains_key(size))
        };
        prefer(&mut candidates, is_there);
        self.sites.push(site);
        self.candidates.push(candidates);
    }

    /// The convolutions that ask for scratch memory, by its family.
    pub(super) fn finish(mut self) -> HashMap<usize, ConvolutionShape> {
        let mut found = HashMap::new();
        let Some(library) = &mut self.library else {
            return found;
        };
        let trained = agree(&self.sites, &mut self.candidates);
        let usual = usual_layout(&self.candidates);
        for (site, mut candidates) in self.sites.iter().zip(self.candidates) {
            prefer(&mut candidates, |call| trained.contains(&call.layer));
            prefer(&mut candidates, |call| Some(call.layout()) == usual);
            if let Some(call) = library.largest(site, &candidates) {
                found.insert(site.family, call.shape());
            }
        }
        found
    }
}

/// The convolutions of a table, by the size of what they compute.
struct Library {
    lookup: Lookup<'static>,
    by_result: HashMap<Result, Vec<Call>>,
    known: HashMap<(Vec<Point>, Vec<Point>), Vec<Call>>,
}

/// Leaves out those that are not, if there are any that are.
fn prefer(candidates: &mut Vec<Call>, is_better: impl Fn(&Call) -> bool) {
    if candidates.iter().any(&is_better) {
        candidates.retain(is_better);
    }
}

/// The layout of most sites whose candidates all have the same: a network of planes has no layers of volumes.
fn usual_layout(candidates: &[Vec<Call>]) -> Option<(bool, bool)> {
    let mut counts = BTreeMap::new();
    for site in candidates {
        let layouts: HashSet<_> = site.iter().map(Call::layout).collect();
        if let (1, Some(layout)) = (layouts.len(), layouts.into_iter().next()) {
            *counts.entry(layout).or_insert(0) += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(layout, _)| layout)
}

/// Keeps candidates of both gradients of a layer, which follow each other. All layers that are left so.
fn agree(sites: &[Site], candidates: &mut [Vec<Call>]) -> HashSet<ConvolutionLayer> {
    /// Events from the result of one gradient to that of the next: the scratch memory, asked for and freed, and one more.
    const APART: usize = 4;
    let mut trained = HashSet::new();
    for next in 1..sites.len() {
        if sites[next].event - sites[next - 1].event > APART {
            continue;
        }
        let of = |pass: ConvolutionPass, candidates: &[Call]| -> HashSet<ConvolutionLayer> {
            let calls = candidates.iter().filter(|call| call.pass == pass);
            calls.map(|call| call.layer).collect()
        };
        let inputs = of(ConvolutionPass::GradInput, &candidates[next - 1]);
        let weights = of(ConvolutionPass::GradWeight, &candidates[next]);
        let both: HashSet<_> = inputs.intersection(&weights).copied().collect();
        if both.is_empty() {
            continue;
        }
        for (site, pass) in [
            (next - 1, ConvolutionPass::GradInput),
            (next, ConvolutionPass::GradWeight),
        ] {
            candidates[site].retain(|call| call.pass == pass && both.contains(&call.layer));
        }
        trained.extend(both);
    }
    trained
}

impl Library {
    /// Those of an H200.
    fn h200() -> Library {
        let table = WorkspaceTable::h200();
        let mut by_result: HashMap<_, Vec<_>> = HashMap::new();
        for layer in table.layers() {
            for pass in ConvolutionPass::ALL {
                for dtype in DTYPES {
                    let result = of(&layer.call(pass, dtype, 1));
                    let call = Call { layer, pass, dtype };
                    by_result.entry(result).or_default().push(call);
                }
            }
        }
        Library {
            lookup: Lookup::new(table),
            by_result,
            known: HashMap::new(),
        }
    }

    /// The calls that have these results and this scratch memory at the same batches.
    fn candidates(&mut self, site: &Site) -> Vec<Call> {
        let key = (site.results.clone(), site.scratch.clone());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let results = [per_sample(&site.results), fixed(&site.results)];
        let results = results.iter().flatten();
        let calls = results
            .filter_map(|result| self.by_result.get(result))
            .flatten();
        let mut candidates: Vec<Call> = calls.copied().collect();
        let has = |call: &Call, point: &Point, lookup: &mut Lookup<'static>| {
            let plans = lookup.plans(&call.at(point.batch));
            matches!(plans.source, Source::Recorded | Source::Interpolated)
                && plans.workspaces.first() == Some(&Bytes(point.bytes))
        };
        candidates.retain(|call| {
            let mut scratch = site.scratch.iter();
            scratch.all(|point| has(call, point, &mut self.lookup))
        });
        self.known.insert(key, candidates.clone());
        candidates
    }

    /// Of several that could be it, the one that takes most later on.
    fn largest(&mut self, site: &Site, candidates: &[Call]) -> Option<Call> {
        let last = site.scratch.last()?.batch;
        let later = |call: &&Call| {
            FAR.map(|far| {
                let plans = self.lookup.plans(&call.at(last.saturating_mul(far)));
                plans.workspaces.first().copied()
            })
        };
        candidates.iter().max_by_key(later).copied()
    }
}

impl Call {
    fn at(&self, batch: u64) -> Convolution {
        self.layer.call(self.pass, self.dtype, batch)
    }

    /// Whether it is of volumes, and whether their channels lie side by side.
    fn layout(&self) -> (bool, bool) {
        (self.layer.volumes, self.layer.channels_last)
    }

    /// Sizes of what it reads.
    fn operands(&self, batch: u64) -> [u64; 2] {
        let call = self.at(batch);
        let operands = call.operands();
        let [x, w, y] = operands
            .elements()
            .map(|elements| elements * self.dtype.size());
        match operands.operation {
            Operation::Forward => [x, w],
            Operation::BackwardData => [y, w],
            Operation::BackwardFilter => [x, y],
        }
    }

    fn shape(&self) -> ConvolutionShape {
        ConvolutionShape {
            pass: self.pass,
            dtype: self.dtype,
            samples: Extent::BATCH,
            layer: self.layer,
        }
    }
}

/// What a call computes, of one sample.
fn of(call: &Convolution) -> Result {
    let product = |dims: [u64; 3]| dims.iter().product::<u64>();
    let size = call.dtype.size();
    match call.pass {
        ConvolutionPass::Forward => {
            Result::PerSample(call.out_channels * product(call.output()) * size)
        }
        ConvolutionPass::GradInput => {
            Result::PerSample(call.in_channels * product(call.input) * size)
        }
        ConvolutionPass::GradWeight => {
            let connections = call.in_channels * call.out_channels / call.groups.max(1);
            Result::Fixed(connections * product(call.kernel) * size)
        }
    }
}

fn per_sample(results: &[Point]) -> Option<Result> {
    let first = results.first()?;
    let each = first
        .bytes
        .is_multiple_of(first.batch)
        .then(|| first.bytes / first.batch)?;
    let is_it = |point: &Point| each.checked_mul(point.batch) == Some(point.bytes);
    results.iter().all(is_it).then_some(Result::PerSample(each))
}

fn fixed(results: &[Point]) -> Option<Result> {
    let bytes = results.first()?.bytes;
    results
        .iter()
        .all(|point| point.bytes == bytes)
        .then_some(Result::Fixed(bytes))
}

//! The step program that recordings of several batches make.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::RecordedError;
use super::convolutions::{Identification, InUse, Site};
use super::form::{Alone, Evidence, Form, Point, solve};
use super::matching::{Apart, Matching};
use super::merge::Merged;
use super::sequence::Sequence;
use crate::program::{
    Category, ConvolutionId, ConvolutionShape, Instruction, Program, Section, Size, SizeFunction,
    SizeId, Tensor, TensorId,
};
use crate::replay::Recording;
use crate::units::Bytes;

/// Memory that lives through fewer allocations was scratch memory for one operation.
const TRANSIENT: usize = 4;

/// What was learnt from recordings.
#[derive(Debug, Clone, PartialEq)]
pub struct Steps {
    /// The program: one step, which is all that was recorded, construction included where it was.
    pub program: Program,
    /// The recorded batches, ascending.
    pub batches: Vec<u64>,
    /// Whether the size of a tensor, or that there is one, is uncertain at batches that were not recorded.
    uncertain: Vec<bool>,
}

impl Steps {
    /// Learns from recordings, each with its batch, in any order.
    pub fn learn(recordings: &[(u64, &Recording)]) -> Result<Steps, RecordedError> {
        let mut recordings = recordings.to_vec();
        recordings.sort_by_key(|(batch, _)| *batch);
        if recordings.is_empty() {
            return Err(RecordedError::None);
        }
        if let Some(pair) = recordings.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(RecordedError::Twice { batch: pair[0].0 });
        }
        let sequences = recordings
            .iter()
            .map(|(batch, recording)| Sequence::of(recording, *batch));
        let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
        let mut matchings = Vec::new();
        for (pair, of) in sequences.windows(2).zip(recordings.windows(2)) {
            let matching =
                Matching::of(&pair[0], &pair[1]).map_err(|Apart(i, j)| RecordedError::Apart {
                    batches: [pair[0].batch, pair[1].batch],
                    places: [place(of[0].1, &pair[0], i), place(of[1].1, &pair[1], j)],
                })?;
            matchings.push(matching);
        }
        let merged = Merged::of(&sequences, &matchings);
        let labels = |recording: usize, block: usize| {
            let entry = sequences[recording].blocks[block].entry;
            entry.map(|entry| recordings[recording].1.place(entry))
        };
        Ok(Writer::new(&sequences, &merged).write(labels))
    }

    /// Whether nothing of a batch is extrapolated.
    pub fn is_recorded(&self, batch: u64) -> bool {
        self.batches.binary_search(&batch).is_ok()
    }

    /// What of the most memory allocated at once is of uncertain size.
    pub fn uncertain_at_peak(&self, batch: u64) -> Bytes {
        if self.is_recorded(batch) {
            return Bytes::ZERO;
        }
        let sizes = self.program.bytes_at(batch);
        let (mut allocated, mut uncertain) = (0_u64, 0_u64);
        let mut at_peak = (0, 0);
        for instruction in self.program.unrolled(1) {
            let (id, is_free) = match instruction {
                Instruction::Allocate(id) => (id.0 as usize, false),
                Instruction::Free(id) => (id.0 as usize, true),
                Instruction::Launch(_) => continue,
            };
            let bytes = sizes[id].0;
            let doubt = if self.uncertain[id] { bytes } else { 0 };
            if is_free {
                allocated = allocated.saturating_sub(bytes);
                uncertain = uncertain.saturating_sub(doubt);
            } else {
                allocated = allocated.saturating_add(bytes);
                uncertain = uncertain.saturating_add(doubt);
                at_peak = at_peak.max((allocated, uncertain));
            }
        }
        Bytes(at_peak.1)
    }
}

fn place(recording: &Recording, sequence: &Sequence, event: usize) -> String {
    let entry = sequence
        .events
        .get(event)
        .and_then(|_| sequence.block(event).entry);
    entry.map_or_else(|| "its end".to_owned(), |entry| recording.place(entry))
}

/// A size with the batches at which it is known and has to be there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Known {
    form: Form,
    /// What was asked for at each recorded batch; nothing where there was no such memory.
    recorded: Vec<(u64, Option<u64>)>,
}

impl Known {
    /// Bytes at a batch. Between recordings and beyond them, there is what the next larger one has, or the largest.
    fn at(&self, batch: u64) -> u64 {
        let next = self
            .recorded
            .partition_point(|(recorded, _)| *recorded < batch);
        match self.recorded.get(next).or(self.recorded.last()) {
            Some((recorded, bytes)) if *recorded == batch => bytes.unwrap_or(0),
            Some((_, Some(_))) => self.form.at(batch),
            Some((_, None)) | None => 0,
        }
    }
}

struct Writer<'a> {
    sequences: &'a [Sequence],
    merged: &'a Merged,
    /// The form of each family.
    forms: Vec<(Form, Evidence)>,
    sizes: Vec<Size>,
    size_ids: HashMap<Known, SizeId>,
    fixed: HashMap<u64, SizeId>,
    convolutions: Vec<ConvolutionShape>,
    convolution_sizes: HashMap<ConvolutionShape, SizeId>,
}

impl<'a> Writer<'a> {
    fn new(sequences: &'a [Sequence], merged: &'a Merged) -> Writer<'a> {
        let mut alone = vec![Alone::Grows; merged.families.len()];
        for (recording, families) in merged.family_of.iter().enumerate() {
            for (block, family) in families.iter().enumerate() {
                if sequences[recording].life(block).is_none() {
                    alone[*family] = Alone::Stays;
                }
            }
        }
        let families = merged.families.iter().zip(alone);
        Writer {
            sequences,
            merged,
            forms: families
                .map(|(points, alone)| solve(points, alone))
                .collect(),
            sizes: Vec::new(),
            size_ids: HashMap::new(),
            fixed: HashMap::new(),
            convolutions: Vec::new(),
            convolution_sizes: HashMap::new(),
        }
    }

    fn write(mut self, label: impl Fn(usize, usize) -> Option<String>) -> Steps {
        let batches: Vec<u64> = self
            .sequences
            .iter()
            .map(|sequence| sequence.batch)
            .collect();
        let by_family = self.convolutions();
        let mut tensors = Vec::new();
        let mut uncertain = Vec::new();
        for merge in &self.merged.tensors {
            let (form, evidence) = self.forms[merge.family];
            let convolution = by_family.get(&merge.family);
            let size = match convolution {
                Some(shape) => self.workspace(*shape),
                None => {
                    let bytes = |(recording, block): (usize, &Option<usize>)| {
                        let sequence = &self.sequences[recording];
                        (
                            sequence.batch,
                            block.map(|block| sequence.blocks[block].bytes),
                        )
                    };
                    let recorded = merge.blocks.iter().enumerate().map(bytes).collect();
                    self.size(Known { form, recorded })
                }
            };
            let is_everywhere = merge.blocks.iter().all(Option::is_some);
            uncertain.push(
                convolution.is_none() && (evidence == Evidence::Extrapolated || !is_everywhere),
            );
            if std::env::var("PTS").is_ok()
                && convolution.is_none()
                && evidence == Evidence::Extrapolated
            {
                eprintln!(
                    "{:?} {form:?} {:?} {:?}",
                    merge
                        .blocks
                        .iter()
                        .enumerate()
                        .rev()
                        .find_map(|(r, b)| label(r, (*b)?)),
                    self.merged.families[merge.family]
                        .iter()
                        .map(|p| (p.batch, p.bytes))
                        .collect::<Vec<_>>(),
                    merge
                        .blocks
                        .iter()
                        .enumerate()
                        .rev()
                        .find_map(|(r, b)| Some(self.sequences[r].life((*b)?)))
                );
            }
            let named = merge.blocks.iter().enumerate().rev();
            let mut named = named.filter_map(|(recording, block)| label(recording, (*block)?));
            let named = named
                .next()
                .unwrap_or_else(|| "before the recording".to_owned());
            tensors.push(Tensor {
                size,
                category: self.category(merge),
                label: Arc::from(named),
                stream: merge.stream,
            });
        }
        let id = |tensor: usize| TensorId(u32::try_from(tensor).expect("fewer than 2^32 tensors"));
        let instruction = |event: &super::merge::Event| {
            if event.is_free {
                Instruction::Free(id(event.tensor))
            } else {
                Instruction::Allocate(id(event.tensor))
            }
        };
        let instructions = self.merged.events.iter().map(instruction).collect();
        Steps {
            program: Program {
                tensors,
                sizes: self.sizes,
                convolutions: self.convolutions,
                construction: Vec::new(),
                first_step: vec![Section::once(instructions)],
                later_step: Vec::new(),
                micro_steps: 1,
            },
            batches,
            uncertain,
        }
    }

    /// The families that are scratch memory of convolutions: asked for after a result, and freed at once.
    fn convolutions(&self) -> HashMap<usize, ConvolutionShape> {
        let mut identification = Identification::default();
        let Some((last, sequence)) = self.sequences.iter().enumerate().next_back() else {
            return identification.finish();
        };
        let families = &self.merged.family_of[last];
        let mut in_use = InUse::new();
        for (index, event) in sequence.events.iter().enumerate() {
            let bytes = sequence.blocks[event.block].bytes;
            if event.is_free {
                if let Entry::Occupied(mut count) = in_use.entry(bytes) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
                continue;
            }
            let result = index.checked_sub(1).map(|before| sequence.events[before]);
            let result = result.filter(|result| {
                !result.is_free
                    && sequence.life(event.block) == Some(0)
                    && sequence.life(result.block) != Some(0)
            });
            let site = result.and_then(|result| {
                self.site(index - 1, families[result.block], families[event.block])
            });
            if let Some(site) = site {
                identification.visit(site, &in_use);
            }
            *in_use.entry(bytes).or_insert(0) += 1;
        }
        identification.finish()
    }

    /// Scratch memory beside a result, at the batches that have both.
    fn site(&self, event: usize, result: usize, family: usize) -> Option<Site> {
        let scratch = self.merged.families[family].clone();
        let is_with = |point: &&Point| scratch.iter().any(|with| with.batch == point.batch);
        let results = self.merged.families[result].iter();
        let results: Vec<Point> = results.filter(is_with).copied().collect();
        (results.len() == scratch.len()).then_some(Site {
            event,
            family,
            results,
            scratch,
        })
    }

    fn workspace(&mut self, shape: ConvolutionShape) -> SizeId {
        if let Some(known) = self.convolution_sizes.get(&shape) {
            return *known;
        }
        let number = u32::try_from(self.convolutions.len()).expect("fewer than 2^32 sizes");
        self.convolutions.push(shape);
        let id = self.push(Size::Workspace(ConvolutionId(number)));
        self.convolution_sizes.insert(shape, id);
        id
    }

    fn size(&mut self, known: Known) -> SizeId {
        let is_everywhere = known.recorded.iter().all(|(_, bytes)| bytes.is_some());
        if let (Form::Constant(bytes), true) = (known.form, is_everywhere) {
            if let Some(id) = self.fixed.get(&bytes) {
                return *id;
            }
            let id = self.push(Size::Fixed(Bytes(bytes)));
            self.fixed.insert(bytes, id);
            return id;
        }
        if let Some(id) = self.size_ids.get(&known) {
            return *id;
        }
        let rule = known.clone();
        let id = self.push(Size::Function(SizeFunction {
            name: known.form.name(),
            bytes: Arc::new(move |batch| rule.at(batch)),
        }));
        self.size_ids.insert(known, id);
        id
    }

    fn push(&mut self, size: Size) -> SizeId {
        self.sizes.push(size);
        SizeId(u32::try_from(self.sizes.len() - 1).expect("fewer than 2^32 sizes"))
    }

    /// What a tensor is for, as far as its size and life tell. See Note [Guessed categories].
    fn category(&self, merge: &super::merge::Merge) -> Category {
        let known = merge.blocks.iter().enumerate().rev();
        let mut known = known.filter_map(|(recording, block)| Some((recording, (*block)?)));
        let Some((recording, block)) = known.next() else {
            return Category::Activations;
        };
        let sequence = &self.sequences[recording];
        let is_constant = matches!(self.forms[merge.family].0, Form::Constant(_));
        match (sequence.life(block), is_constant) {
            (None, true) if block < sequence.parameters() => Category::Parameters,
            (None, true) => Category::OptimizerState,
            (Some(life), _) if life < TRANSIENT => Category::Workspace,
            (Some(_), true) => Category::Gradients,
            (None | Some(_), false) => Category::Activations,
        }
    }
}

//! The step program that recordings of several batches make.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::RecordedError;
use super::form::{Alone, Evidence, Form, solve};
use super::matching::Matching;
use super::merge::{Event, Merge, Merged};
use super::reductions::RowSum;
use super::scratch::{Operation, Recognized, recognize};
use super::sequence::Sequence;
use crate::model::hexadecimal;
use crate::program::{
    Category, ConvolutionId, ConvolutionShape, Instruction, Program, Section, Size, SizeFunction,
    SizeId, Tensor, TensorId, Timeline,
};
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
    /// Micro-steps in each recorded step.
    pub accumulation: u32,
    /// What the device had on which they were recorded, when it is known.
    pub total: Option<Bytes>,
    /// The name of the device on which the largest batch was recorded, when it is known.
    pub gpu: Option<String>,
    /// The allocator settings under which it was, when they are known and not PyTorch's defaults.
    pub allocator: Option<String>,
    /// A digest of what was recorded.
    pub digest: String,
    /// Whether the size of a tensor, or that there is one, is uncertain at batches that were not recorded.
    uncertain: Vec<bool>,
    /// By tensor.
    recorded: Vec<Recorded>,
}

/// What was asked for at each recorded batch; nothing where there was no such memory.
pub(super) type Recorded = Vec<(u64, Option<u64>)>;

impl Steps {
    /// Learns from recordings of several batches, in any order.
    pub fn learn(mut sequences: Vec<Sequence>) -> Result<Steps, RecordedError> {
        crate::order::by_key(&mut sequences, |sequence| sequence.batch);
        let Some(last) = sequences.last() else {
            return Err(RecordedError::None);
        };
        let (accumulation, total) = (last.accumulation, last.total);
        let (gpu, allocator) = (last.gpu.clone(), last.allocator.clone());
        for pair in sequences.windows(2) {
            if pair[0].batch == pair[1].batch {
                return Err(RecordedError::Twice {
                    batch: pair[0].batch,
                });
            }
            if pair[0].accumulation != pair[1].accumulation {
                return Err(RecordedError::Accumulation {
                    batches: [pair[0].batch, pair[1].batch],
                    micro_steps: [pair[0].accumulation, pair[1].accumulation],
                });
            }
            let differ = |one: &Option<String>, other: &Option<String>| {
                (one.is_some() && other.is_some() && one != other)
                    .then(|| [one, other].map(|it| it.clone().unwrap_or_default()))
            };
            let elsewhere = differ(&pair[0].gpu, &pair[1].gpu);
            if let Some(made) = elsewhere.or_else(|| differ(&pair[0].allocator, &pair[1].allocator))
            {
                return Err(RecordedError::Elsewhere {
                    batches: [pair[0].batch, pair[1].batch],
                    made,
                });
            }
        }
        let mut matchings = Vec::new();
        for pair in sequences.windows(2) {
            matchings.push(Matching::of(&pair[0], &pair[1])?);
        }
        let merged = Merged::of(&sequences, &matchings);
        let (program, uncertain, recorded) = Writer::new(&sequences, &merged).write();
        Ok(Steps {
            program,
            batches: sequences.iter().map(|sequence| sequence.batch).collect(),
            accumulation,
            total,
            gpu,
            allocator,
            digest: digest(&sequences),
            uncertain,
            recorded,
        })
    }

    /// The program of a step with so many micro-steps.
    ///
    /// What was recorded without accumulation keeps no gradients from one micro-step to the next. With it, they are
    /// there from the start: as much again as there are parameters, which is more than is needed, since the recorded
    /// step makes its own gradients too.
    pub fn accumulating(&self, micro_steps: u32) -> Program {
        let mut program = self.program.clone();
        program.micro_steps = micro_steps;
        if micro_steps < 2 || self.accumulation > 1 {
            return program;
        }
        let parameters = program.tensors.iter();
        let parameters = parameters.filter(|tensor| tensor.category == Category::Parameters);
        let gradients: Vec<Tensor> = parameters
            .map(|tensor| Tensor {
                category: Category::Gradients,
                ..tensor.clone()
            })
            .collect();
        let first = program.tensors.len();
        let ids = (first..first + gradients.len())
            .map(|id| TensorId(u32::try_from(id).expect("fewer than 2^32 tensors")));
        let allocate = ids.map(Instruction::Allocate);
        program.tensors.extend(gradients);
        if program.construction.is_empty() {
            // Where construction ends is not marked: after the last parameter.
            let Some(section) = program.steps.iter_mut().flatten().next() else {
                return program;
            };
            let is_parameter = |instruction: &Instruction| {
                matches!(instruction, Instruction::Allocate(id)
                    if self.program.tensor(*id).category == Category::Parameters)
            };
            let last = section.instructions.iter().rposition(is_parameter);
            let after = last.map_or(0, |last| last + 1);
            section.instructions.splice(after..after, allocate);
        } else {
            program.construction.extend(allocate);
        }
        program
    }

    /// What was asked for at each recorded batch, by tensor.
    pub(super) fn recorded(&self) -> impl Iterator<Item = &Recorded> {
        self.recorded.iter()
    }

    /// Whether the size of a tensor does not follow from the recordings.
    pub(super) fn is_uncertain(&self, tensor: usize) -> bool {
        self.uncertain[tensor]
    }

    /// How large it is, in events.
    pub fn size(&self) -> usize {
        let steps = self.program.steps.iter().flatten();
        let steps = steps.map(|section| section.instructions.len());
        self.program.construction.len() + steps.sum::<usize>()
    }

    /// Whether nothing of a batch is extrapolated.
    pub fn is_recorded(&self, batch: u64) -> bool {
        self.batches.binary_search(&batch).is_ok()
    }

    /// What was there when the first step began and stayed, or where steps are not marked the parameters: it does not grow
    /// with the batch.
    pub fn standing(&self) -> Bytes {
        let Some(batch) = self.batches.last() else {
            return Bytes::ZERO;
        };
        let sizes = self.program.bytes_at(*batch);
        let mut stays = vec![false; sizes.len()];
        for instruction in &self.program.construction {
            if let Instruction::Allocate(id) = instruction {
                stays[id.0 as usize] = true;
            }
        }
        if self.program.construction.is_empty() {
            let tensors = self.program.tensors.iter();
            stays = tensors
                .map(|tensor| tensor.category == Category::Parameters)
                .collect();
        }
        for instruction in self.program.unrolled(1) {
            if let Instruction::Free(id) = instruction {
                stays[id.0 as usize] = false;
            }
        }
        let sizes = sizes.into_iter().zip(stays);
        sizes
            .filter(|(_, stays)| *stays)
            .map(|(bytes, _)| bytes)
            .sum()
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

/// A size with the batches at which it is known and has to be there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Known {
    rule: Rule,
    recorded: Recorded,
}

/// A digest of everything that the program depends on: the same recordings give the same, in whatever format.
fn digest(sequences: &[Sequence]) -> String {
    let mut digest = Sha256::new();
    for sequence in sequences {
        digest.update(sequence.to_text());
    }
    hexadecimal(&digest.finalize())
}

/// What a size follows at batches that were not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Rule {
    Form(Form),
    Buffer(RowSum),
    Semaphores(RowSum),
}

impl Rule {
    const fn name(self) -> &'static str {
        match self {
            Rule::Form(form) => form.name(),
            Rule::Buffer(_) => "reduction",
            Rule::Semaphores(_) => "reduction semaphores",
        }
    }
}

impl Known {
    /// What is at no recorded batch.
    fn of_batches(sequences: &[Sequence], rule: Rule) -> Known {
        Known {
            rule,
            recorded: sequences
                .iter()
                .map(|sequence| (sequence.batch, None))
                .collect(),
        }
    }

    fn of(merge: &Merge, sequences: &[Sequence], rule: Rule) -> Known {
        let bytes = |(sequence, block): (&Sequence, &Option<usize>)| {
            let bytes = block.map(|block| sequence.blocks[block].bytes);
            (sequence.batch, bytes)
        };
        Known {
            rule,
            recorded: sequences.iter().zip(&merge.blocks).map(bytes).collect(),
        }
    }

    /// The same by another rule.
    fn by(self, rule: Rule) -> Known {
        Known { rule, ..self }
    }

    /// Bytes at a batch. Between recordings and beyond them, there is what the next larger one has, or the largest.
    fn at(&self, batch: u64) -> u64 {
        let next = self
            .recorded
            .partition_point(|(recorded, _)| *recorded < batch);
        let next = self.recorded.get(next).or(self.recorded.last());
        match (self.rule, next) {
            (_, Some((recorded, bytes))) if *recorded == batch => bytes.unwrap_or(0),
            (Rule::Buffer(sum), _) => sum.at(batch)[0],
            (Rule::Semaphores(sum), _) => sum.at(batch)[1],
            (Rule::Form(form), Some((_, Some(_)))) => form.at(batch),
            (Rule::Form(_), Some((_, None)) | None) => 0,
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

    /// The program, which of its tensors are of uncertain size, and what was recorded of each.
    fn write(mut self) -> (Program, Vec<bool>, Vec<Recorded>) {
        let Recognized { operations, later } = recognize(self.sequences, self.merged);
        let mut tensors = Vec::new();
        let mut uncertain = Vec::new();
        let mut recorded = Vec::new();
        for merge in &self.merged.tensors {
            let (form, evidence) = self.forms[merge.family];
            let operation = operations.get(&merge.family);
            let asked = Known::of(merge, self.sequences, Rule::Form(form));
            recorded.push(asked.recorded.clone());
            let size = match operation {
                Some(Operation::Convolution(shape)) => self.workspace(*shape),
                Some(Operation::Buffer(sum)) => self.size(asked.by(Rule::Buffer(*sum))),
                Some(Operation::Semaphores(sum)) => self.size(asked.by(Rule::Semaphores(*sum))),
                None => self.size(asked),
            };
            let is_everywhere = merge.blocks.iter().all(Option::is_some);
            uncertain.push(
                operation.is_none() && (evidence == Evidence::Extrapolated || !is_everywhere),
            );
            let named = merge.blocks.iter().zip(self.sequences).rev();
            let mut named = named.filter_map(|(block, sequence)| Some(sequence.label((*block)?)));
            tensors.push(Tensor {
                size,
                category: self.category(merge),
                label: named.next().expect("what is merged is in a recording"),
                stream: merge.stream,
            });
        }
        let id = |tensor: usize| TensorId(u32::try_from(tensor).expect("fewer than 2^32 tensors"));
        let instruction = |event: &Event| {
            if event.is_free {
                Instruction::Free(id(event.tensor))
            } else {
                Instruction::Allocate(id(event.tensor))
            }
        };
        let mut construction = Vec::with_capacity(self.merged.events.len());
        let mut begin = 0;
        for (index, (event, place)) in self
            .merged
            .events
            .iter()
            .zip(&self.merged.places)
            .enumerate()
        {
            if index == self.merged.first_step {
                begin = construction.len();
            }
            construction.push(instruction(event));
            let Some(sum) = later.get(place).filter(|_| !event.is_free) else {
                continue;
            };
            for rule in [Rule::Buffer(*sum), Rule::Semaphores(*sum)] {
                let size = self.size(Known::of_batches(self.sequences, rule));
                let result = &tensors[event.tensor];
                let scratch = Tensor {
                    size,
                    category: Category::Workspace,
                    ..result.clone()
                };
                construction.push(Instruction::Allocate(id(tensors.len())));
                tensors.push(scratch);
                uncertain.push(false);
                // That it is nowhere was foreseen.
                recorded.push(Vec::new());
            }
            construction.extend([1, 2].map(|back| Instruction::Free(id(tensors.len() - back))));
        }
        let first_step = construction.split_off(begin);
        let program = Program {
            tensors,
            sizes: self.sizes,
            convolutions: self.convolutions,
            construction,
            steps: vec![vec![Section::once(first_step)], Vec::new()],
            micro_steps: 1,
            timeline: Timeline::default(),
            // A recording of the GPU's memory does not say it.
            host_bytes: 0,
        };
        (program, uncertain, recorded)
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
        if let (Rule::Form(Form::Constant(bytes)), true) = (known.rule, is_everywhere) {
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
            name: known.rule.name(),
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
    fn category(&self, merge: &Merge) -> Category {
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

//! Carries out scripts.

use std::rc::Rc;

use super::text::{Command, Condition, Instruction, Lengths, Size, Source, strides};
use super::{Casts, Scripted};
use crate::eager::Storage;
use crate::ops::prelude::*;

/// Samples in a block, at most: `kMaxParallelImgs` of torchvision.
const LARGEST_BLOCK: u64 = 32;

/// What is under way while a line is carried out.
struct Run<'a> {
    lengths: &'a Lengths,
    name: &'static str,
    dtype: DType,
    /// Which operands want a gradient, and which results have one.
    wanted: &'a [bool],
    given: &'a [bool],
    holds: &'a [&'static str],
    inputs: &'a [&'a TensorBody],
    held: Vec<(Size, LiveValue)>,
    results: Vec<(usize, TensorBody, bool)>,
    gradients: Vec<Option<Tensor>>,
}

/// Something that a line has made and not let go of.
enum LiveValue {
    Tensor { _tensor: TensorBody },
    Bytes { _storage: Rc<Storage> },
}

impl Eager {
    /// An operator of the tables.
    pub(super) fn scripted(&mut self, op: &Scripted, operands: &[Tensor]) -> Outputs {
        let row = op.row;
        let mut operands = operands.to_vec();
        // Arguments of a C++ call are made from the last to the first.
        for operand in operands.iter_mut().rev() {
            *operand = match row.casts {
                Casts::None => continue,
                Casts::High => self.high(operand),
                Casts::Low => self.low(operand),
            };
        }
        let inputs: Vec<Option<&Tensor>> = operands.iter().map(Some).collect();
        let mut draft = OpRecord::new(self, if row.backward.is_some() { &inputs } else { &[] });
        let wanted: Vec<bool> = operands
            .iter()
            .map(|operand| operand.requires_grad())
            .collect();
        let shapes: Vec<_> = operands.iter().map(|operand| &*operand.shape).collect();
        let lengths = op.bind(&shapes).expect("checked when the graph was built");
        let wanted_source = |text: &'static str| -> Option<(&'static str, &'static str)> {
            let (name, source) = text.split_once('=')?;
            let (source, when) = source.split_once('?').unwrap_or((source, ""));
            let asked = when.chars().filter_map(|operand| operand.to_digit(10));
            let mut asked = asked.map(|operand| wanted.get(operand as usize) == Some(&true));
            (when.is_empty() || asked.any(|wanted| wanted)).then_some((name, source))
        };
        let saves: Vec<_> = row
            .saves
            .iter()
            .filter_map(|text| wanted_source(text))
            .collect();
        for (name, source) in &saves {
            if let Some(operand) = source.parse().ok().and_then(|at: usize| operands.get(at)) {
                draft.save(self, name, operand)?;
            }
        }
        let bodies: Vec<&TensorBody> = operands.iter().map(|operand| &**operand).collect();
        let line = Command::of(row.forward).expect("a test reads every line");
        let mut run = Run {
            lengths: &lengths,
            name: op.name(),
            dtype: operands[0].dtype,
            wanted: &wanted,
            given: &[],
            holds: &op.holds,
            inputs: &bodies,
            held: Vec::new(),
            results: Vec::new(),
            gradients: Vec::new(),
        };
        run.carry_out(self, &line, None);
        let mut results = run.results;
        crate::order::by_key(&mut results, |(index, ..)| *index);
        for (name, source) in &saves {
            let index = source
                .strip_prefix('y')
                .and_then(|at| at.parse::<usize>().ok());
            if let Some((_, body, _)) = index.and_then(|index| results.get(index)) {
                draft.save(self, name, &body.detached())?;
            }
        }
        Ok(self.with_history(op, draft, results, (wanted, lengths)))
    }

    /// Gives results the history that they have.
    fn with_history(
        &mut self,
        op: &Scripted,
        draft: OpRecord,
        results: Vec<(usize, TensorBody, bool)>,
        (wanted, lengths): (Vec<bool>, Lengths),
    ) -> Vec<Tensor> {
        let (mut bodies, mut places) = (Vec::new(), Vec::new());
        let mut tensors: Vec<Option<Tensor>> = Vec::new();
        for (_, body, has_gradient) in results {
            if has_gradient && (body.dtype.is_float() || body.dtype.is_complex()) {
                places.push(tensors.len());
                bodies.push(body);
                tensors.push(None);
            } else {
                tensors.push(Some(Tensor::new(body)));
            }
        }
        let (name, holds) = (op.name(), op.holds.clone());
        let line = op
            .row
            .backward
            .map(Command::of)
            .transpose()
            .expect("a test reads every line");
        let with_history = draft.finish_many(self, bodies, move |eager, gradients, saved| {
            let Some(line) = line else {
                return vec![None; wanted.len()];
            };
            let Some(first) = gradients.iter().flatten().next() else {
                return vec![None; wanted.len()];
            };
            let given: Vec<bool> = gradients.iter().map(Option::is_some).collect();
            let inputs: Vec<&TensorBody> = std::iter::once(first)
                .chain(saved.iter())
                .map(|x| &**x)
                .collect();
            let mut run = Run {
                lengths: &lengths,
                name,
                dtype: first.dtype,
                wanted: &wanted,
                given: &given,
                holds: &holds,
                inputs: &inputs,
                held: Vec::new(),
                results: Vec::new(),
                gradients: vec![None; wanted.len()],
            };
            run.carry_out(eager, &line, Some(first));
            run.held.drain(..).rev().for_each(drop);
            run.gradients
        });
        for (place, tensor) in places.into_iter().zip(with_history) {
            tensors[place] = Some(tensor);
        }
        tensors.into_iter().flatten().collect()
    }
}

impl Run<'_> {
    fn carry_out(&mut self, eager: &mut Eager, line: &Command, gradient: Option<&Tensor>) {
        for word in &line.0 {
            match word {
                Instruction::Make(size) => {
                    let made = match size.bytes {
                        Some(bytes) => LiveValue::Bytes {
                            _storage: eager.scratch(bytes),
                        },
                        None if size.is_in_blocks => LiveValue::Bytes {
                            _storage: self.make_block(eager, size),
                        },
                        None => LiveValue::Tensor {
                            _tensor: self.make(eager, size),
                        },
                    };
                    self.held.push((*size, made));
                }
                Instruction::Free(size) => {
                    if let Some(at) = self.held.iter().rposition(|(held, _)| held == size) {
                        drop(self.held.remove(at));
                    }
                }
                Instruction::Result {
                    index,
                    source,
                    has_gradient,
                } => {
                    let body = match source {
                        Source::Made(size) => self.make(eager, size),
                        Source::Operand(position) => {
                            let operand = self.inputs[*position];
                            let mut alias = operand.same();
                            alias.offset = operand.offset;
                            alias
                        }
                    };
                    eager.launch(Kernel::MemoryOnly(self.name), self.inputs, &[&body]);
                    self.results.push((*index, body, *has_gradient));
                }
                Instruction::Gradient { operand, size } => {
                    if self.wanted.get(*operand) != Some(&true) {
                        // Made for all, and gone at once.
                        if let Some(size) = size {
                            drop(self.make(eager, size));
                        }
                        continue;
                    }
                    let made = match (size, gradient) {
                        (Some(size), _) => {
                            let body = self.make(eager, size);
                            Some(eager.computed(body, Kernel::MemoryOnly(self.name), self.inputs))
                        }
                        (None, gradient) => gradient.map(Tensor::clone),
                    };
                    self.gradients[*operand] = made;
                }
                Instruction::UseBlas => eager.use_blas(),
                Instruction::UseBlasLt => eager.use_blas_lt(),
                Instruction::If {
                    condition,
                    holds,
                    then,
                } => {
                    let is_so = match condition {
                        Condition::Wanted(operand) => self.wanted.get(*operand) == Some(&true),
                        Condition::Given(result) => self.given.get(*result) == Some(&true),
                        Condition::Instruction("single") => self.lengths.is_single(),
                        Condition::Instruction(word) => self.holds.contains(word),
                    };
                    if is_so == *holds {
                        self.carry_out(eager, then, gradient);
                    }
                }
                Instruction::Repeat { times, what } => {
                    for _ in 0..self.lengths.times(*times) {
                        self.carry_out(eager, what, gradient);
                    }
                }
            }
        }
    }

    /// What a loop over blocks of samples needs at a time.
    fn make_block(&self, eager: &mut Eager, size: &Size) -> Rc<Storage> {
        let shape = self
            .lengths
            .shape(size)
            .expect("checked when the graph was built");
        let (samples, each) = (shape[0], numel(&shape[1..]));
        let bytes = size.dtype.unwrap_or(self.dtype).size();
        eager.scratch_by(
            self.name,
            (samples, each, bytes),
            |&(samples, each, bytes), batch| {
                let samples = samples.at(batch);
                let divides = |block: &u64| samples.is_multiple_of(*block);
                let block = (1..=LARGEST_BLOCK).rev().find(divides).unwrap_or(1);
                block * each.at(batch) * bytes
            },
        )
    }

    fn make(&self, eager: &mut Eager, size: &Size) -> TensorBody {
        let shape = self
            .lengths
            .shape(size)
            .expect("checked when the graph was built");
        let strides = strides(&shape, size.is_column_major);
        eager.empty_strided(&shape, strides, size.dtype.unwrap_or(self.dtype))
    }
}

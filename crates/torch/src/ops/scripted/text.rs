//! How a line of a script reads.
//!
//! Words are separated by blanks:
//!
//! - `+Lmn` makes something of these lengths, `-Lmn` lets go of what was made last as `+Lmn` and is still there;
//! - `y0=Lmn` makes the first result, `y0!=Lmn` one without a gradient, `y0=@1` gives the second operand again;
//! - `g0=Lmn` makes the gradient of the first operand, `g0=dy` passes on that of the first result, as it is;
//! - `blas` gets the handle of cuBLAS, `blaslt` the workspace of cuBLASLt;
//! - `1?(` begins what happens only where the second operand wants a gradient, `1!(` where it does not, `y1?(` where the
//!   second result has one, `word?(` and `word!(` where a word holds that arguments decide (`single`: there is no batch); `o*(` what happens `o` times;
//!   `)` ends each of them.
//!
//! Lengths are letters: a capital stands for any number of dimensions, `X` for those of `L` and `M` broadcast, `k` for the
//! smaller of `m` and `n`, a digit for itself. None of them, `.`, is a number. A type follows a colon (`i8`, `i4`, `f4`, `b1`, of as
//! many bytes), that of the first operand without; `~` says that the last dimension but one is the one without gaps;
//! `#512` is that many bytes; `^` before letters: of the first only as many as the largest divisor of it up to 32.

use crate::ops::prelude::*;

/// How many of something there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) letters: &'static str,
    pub(super) dtype: Option<DType>,
    pub(super) is_column_major: bool,
    pub(super) is_in_blocks: bool,
    pub(super) bytes: Option<u64>,
}

/// Where a result comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Made(Size),
    Operand(usize),
}

/// What has to hold for a part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Wanted(usize),
    Given(usize),
    Instruction(&'static str),
}

/// One word of a line, or a part in parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Instruction {
    Make(Size),
    Free(Size),
    Result {
        index: usize,
        source: Source,
        has_gradient: bool,
    },
    Gradient {
        operand: usize,
        size: Option<Size>,
    },
    UseBlas,
    UseBlasLt,
    If {
        condition: Condition,
        holds: bool,
        then: Command,
    },
    Repeat {
        times: char,
        what: Command,
    },
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command(pub(super) Vec<Instruction>);

impl Command {
    pub(super) fn of(text: &'static str) -> Result<Command, String> {
        let mut words = text.split_whitespace();
        let line = Command::part(&mut words, false)?;
        match words.next() {
            None => Ok(line),
            Some(word) => Err(format!("{word:?} follows the end of {text:?}")),
        }
    }

    fn part(
        words: &mut std::str::SplitWhitespace<'static>,
        inside: bool,
    ) -> Result<Command, String> {
        let mut line = Vec::new();
        while let Some(word) = words.next() {
            if word == ")" {
                return if inside {
                    Ok(Command(line))
                } else {
                    Err("a part ends that never began".into())
                };
            }
            let next = match word.strip_suffix('(') {
                Some(head) => Command::opened(head, words)?,
                None => single(word)?,
            };
            line.push(next);
        }
        if inside {
            Err("a part never ends".into())
        } else {
            Ok(Command(line))
        }
    }

    fn opened(
        head: &'static str,
        words: &mut std::str::SplitWhitespace<'static>,
    ) -> Result<Instruction, String> {
        if let Some(times) = head.strip_suffix('*') {
            let times = times.chars().next().ok_or("nothing says how often")?;
            let what = Command::part(words, true)?;
            return Ok(Instruction::Repeat { times, what });
        }
        let (subject, holds) = match (head.strip_suffix('?'), head.strip_suffix('!')) {
            (Some(subject), _) => (subject, true),
            (None, Some(subject)) => (subject, false),
            (None, None) => return Err(format!("{head:?} opens nothing")),
        };
        let result = subject
            .strip_prefix('y')
            .and_then(|index| index.parse().ok());
        let condition = match (subject.parse(), result) {
            (Ok(operand), _) => Condition::Wanted(operand),
            (Err(_), Some(result)) => Condition::Given(result),
            (Err(_), None) => Condition::Instruction(subject),
        };
        let then = Command::part(words, true)?;
        Ok(Instruction::If {
            condition,
            holds,
            then,
        })
    }

    /// Where results come from, the first first, where these words hold and nothing wants a gradient.
    pub(super) fn results(&self, words: &[&'static str]) -> Vec<Source> {
        let mut found = Vec::new();
        self.collect(words, &mut found);
        crate::order::by_key(&mut found, |(index, _)| *index);
        found.into_iter().map(|(_, source)| source).collect()
    }

    fn collect(&self, words: &[&'static str], found: &mut Vec<(usize, Source)>) {
        for word in &self.0 {
            match word {
                Instruction::Result { index, source, .. } => found.push((*index, *source)),
                Instruction::If {
                    condition,
                    holds,
                    then,
                } => {
                    let is_so = match condition {
                        Condition::Instruction(word) => words.contains(word),
                        Condition::Wanted(_) | Condition::Given(_) => false,
                    };
                    if is_so == *holds {
                        then.collect(words, found);
                    }
                }
                Instruction::Repeat { what, .. } => what.collect(words, found),
                Instruction::Make(_)
                | Instruction::Free(_)
                | Instruction::Gradient { .. }
                | Instruction::UseBlas
                | Instruction::UseBlasLt => {}
            }
        }
    }
}

fn single(word: &'static str) -> Result<Instruction, String> {
    match word {
        "blas" => return Ok(Instruction::UseBlas),
        "blaslt" => return Ok(Instruction::UseBlasLt),
        _ => {}
    }
    if let Some(size) = word.strip_prefix('+') {
        return Ok(Instruction::Make(Size::of(size)?));
    }
    if let Some(size) = word.strip_prefix('-') {
        return Ok(Instruction::Free(Size::of(size)?));
    }
    let (name, what) = word
        .split_once('=')
        .ok_or_else(|| format!("{word:?} is no word"))?;
    if let Some(name) = name.strip_prefix('y') {
        let (index, has_gradient) = match name.strip_suffix('!') {
            Some(index) => (index, false),
            None => (name, true),
        };
        let source = match what.strip_prefix('@') {
            Some(operand) => Source::Operand(number(operand)?),
            None => Source::Made(Size::of(what)?),
        };
        let index = number(index)?;
        return Ok(Instruction::Result {
            index,
            source,
            has_gradient,
        });
    }
    let operand = name
        .strip_prefix('g')
        .ok_or_else(|| format!("{word:?} is no word"))?;
    let size = if what == "dy" {
        None
    } else {
        Some(Size::of(what)?)
    };
    let operand = number(operand)?;
    Ok(Instruction::Gradient { operand, size })
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

impl Size {
    fn of(text: &'static str) -> Result<Size, String> {
        if let Some(bytes) = text.strip_prefix('#') {
            let bytes = bytes
                .parse()
                .map_err(|_| format!("{text:?} is no number of bytes"))?;
            return Ok(Size {
                letters: "",
                dtype: None,
                is_column_major: false,
                is_in_blocks: false,
                bytes: Some(bytes),
            });
        }
        let (text, is_in_blocks) = match text.strip_prefix('^') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (text, is_column_major) = match text.strip_suffix('~') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (letters, dtype) = match text.split_once(':') {
            None => (text, None),
            Some((letters, "i8")) => (letters, Some(DType::Int64)),
            Some((letters, "i4")) => (letters, Some(DType::Int32)),
            Some((letters, "f4")) => (letters, Some(DType::Float32)),
            Some((letters, "b1")) => (letters, Some(DType::Bool)),
            Some((_, other)) => return Err(format!("no type is called {other:?}")),
        };
        let letters = if letters == "." { "" } else { letters };
        Ok(Size {
            letters,
            dtype,
            is_column_major,
            is_in_blocks,
            bytes: None,
        })
    }
}

/// What letters stand for.
#[derive(Debug, Clone)]
pub(super) struct Lengths(Vec<(char, Vec<Extent>)>);

impl Lengths {
    pub(super) fn new(known: &[(char, Vec<Extent>)]) -> Lengths {
        Lengths(known.to_vec())
    }

    fn find(&self, letter: char) -> Option<&[Extent]> {
        let found = self.0.iter().find(|(known, _)| *known == letter);
        found.map(|(_, lengths)| lengths.as_slice())
    }

    fn put(&mut self, letter: char, lengths: &[Extent]) -> Result<(), String> {
        match self.find(letter) {
            None => {
                self.0.push((letter, lengths.to_vec()));
                Ok(())
            }
            Some(known) if known == lengths => Ok(()),
            Some(known) => Err(format!("{lengths:?} does not fit {known:?}")),
        }
    }

    /// Says what the letters of a pattern stand for: a capital is all that single letters leave.
    pub(super) fn bind(&mut self, pattern: &str, shape: &[Extent]) -> Result<(), String> {
        let singles = pattern
            .chars()
            .filter(|letter| !letter.is_ascii_uppercase())
            .count();
        let whole = singles < pattern.chars().count();
        let rest = shape
            .len()
            .checked_sub(singles)
            .filter(|rest| whole || *rest == 0)
            .ok_or_else(|| format!("it should have {singles} dimensions"))?;
        let mut at = 0;
        for letter in pattern.chars() {
            let taken = if letter.is_ascii_uppercase() { rest } else { 1 };
            let lengths = &shape[at..at + taken];
            at += taken;
            if letter != '1' {
                self.put(letter, lengths)?;
            }
        }
        Ok(())
    }

    /// Adds what follows from the others.
    pub(super) fn complete(&mut self) -> Result<(), String> {
        if let (Some(first), Some(second)) = (self.find('L'), self.find('M')) {
            let both = broadcast(first, second)?;
            self.put('X', &both)?;
        }
        if let (Some([rows]), Some([columns])) = (self.find('m'), self.find('n')) {
            let smaller = rows.smaller(*columns);
            let smaller = smaller.ok_or("which of two lengths is smaller depends on the batch")?;
            self.put('k', &[smaller])?;
        }
        Ok(())
    }

    /// The lengths of something.
    pub(super) fn shape(&self, size: &Size) -> Result<Vec<Extent>, String> {
        let mut shape = Vec::new();
        for letter in size.letters.chars() {
            if let Some(digit) = letter.to_digit(10) {
                shape.push(Extent::fixed(u64::from(digit)));
            } else {
                let lengths = self.find(letter);
                shape.extend(lengths.ok_or_else(|| format!("nothing says what {letter:?} is"))?);
            }
        }
        Ok(shape)
    }

    /// Whether operands are single ones, not batches.
    pub(super) fn is_single(&self) -> bool {
        self.find('L').is_some_and(<[Extent]>::is_empty)
    }

    /// How often something happens: a length that depends on the batch counts as one.
    pub(super) fn times(&self, letter: char) -> u64 {
        let lengths = self.find(letter).map(numel);
        lengths.and_then(Extent::as_fixed).unwrap_or(1)
    }
}

/// The strides of a dense tensor.
pub(super) fn strides(shape: &[Extent], is_column_major: bool) -> Vec<Extent> {
    if !is_column_major || shape.len() < 2 {
        return contiguous_strides(shape);
    }
    let mut swapped = shape.to_vec();
    let last = swapped.len() - 1;
    swapped.swap(last - 1, last);
    let mut strides = contiguous_strides(&swapped);
    strides.swap(last - 1, last);
    strides
}

//! Files of recordings: batchfit's own format, traces and snapshots. See Note [The format of recordings].

use std::fmt::Write as _;
use std::io::Read as _;
use std::sync::Arc;

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

use super::RecordedError;
use super::sequence::{MOST_EVENTS, Reader, Sequence};
use super::start::Start;
use crate::alloc::Settings;
use crate::limits::{clause, shorten};
use crate::replay::{self, Bounds, Format, RecordingError};
use crate::units::Bytes;

/// The first line of a recording in batchfit's own format.
const MAGIC: &[u8] = b"batchfit recording 1\n";

/// What compressed files begin with.
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Most lines of Python that are kept, and the most bytes of one.
const MOST_FRAMES: usize = 1 << 16;
const LONGEST_FRAME: usize = 512;

/// Largest batch that a recording is of.
pub const LARGEST_BATCH: u64 = 1 << 40;

/// Longest name of a GPU, in bytes; longer ones are cut.
pub const LONGEST_GPU: usize = 200;

/// Largest size of an allocation, in bytes; no machine has as much.
pub(super) const LARGEST: u64 = 1 << 60;

/// Why a file is no recording.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is no trace and no snapshot either.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A line is not what the format says.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// Neither the file nor the request says which batch was recorded.
    #[error(
        "the file does not say which batch was recorded; write \"batch\" into its header, or give --batches with a \
         number for each file"
    )]
    NoBatch,
    /// The file says another batch than the request.
    #[error("the file is of batch {recorded}, not {given}")]
    OtherBatch {
        /// In the file.
        recorded: u64,
        /// By the request.
        given: u64,
    },
    /// It makes no sequence.
    #[error(transparent)]
    Recorded(#[from] RecordedError),
}

/// The second line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    batch: u64,
    #[serde(default = "one")]
    accumulation: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    case: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allocator: Option<String>,
}

fn one() -> u32 {
    1
}

/// Reads a recording, compressed with gzip or not; `batch` is that of a file that does not say it itself.
pub fn read(file: &[u8], batch: Option<u64>, bounds: Bounds) -> Result<Sequence, ReadError> {
    let sequence = if is_own(file) {
        let text;
        let bytes = if file.starts_with(&GZIP) {
            text = replay::decompress(file, bounds.mib)?;
            &text[..]
        } else {
            file
        };
        own(bytes)?
    } else {
        let recording = replay::read(file, bounds)?;
        let recorded = recording.batch.or(batch).ok_or(ReadError::NoBatch)?;
        if !(1..=LARGEST_BATCH).contains(&recorded) {
            return Err(wrong(
                1,
                format!("the batch is {recorded}; expected 1 to 2^40"),
            ));
        }
        Sequence::of(&recording, recorded)?
    };
    match batch {
        Some(given) if given != sequence.batch => Err(ReadError::OtherBatch {
            recorded: sequence.batch,
            given,
        }),
        Some(_) | None => Ok(sequence),
    }
}

/// Whether a file begins as recordings as text do; memory snapshots begin as all pickles do.
pub fn is_recording(file: &[u8]) -> bool {
    let first = beginning(file);
    first == MAGIC || first.starts_with(b"# {")
}

/// Whether a file begins as batchfit's own recordings do.
fn is_own(file: &[u8]) -> bool {
    beginning(file) == MAGIC
}

/// As many bytes as tell what a file is, decompressed.
fn beginning(file: &[u8]) -> Vec<u8> {
    let length = MAGIC.len();
    if !file.starts_with(&GZIP) {
        return file[..file.len().min(length)].to_vec();
    }
    let mut first = Vec::new();
    let mut decoder = GzDecoder::new(file).take(length as u64);
    // What cannot be decompressed begins like nothing.
    let _ = decoder.read_to_end(&mut first);
    first
}

/// Reads batchfit's own format.
fn own(bytes: &[u8]) -> Result<Sequence, ReadError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.split(|byte| *byte == b'\n').count();
        wrong(line, "it is not UTF-8")
    })?;
    let mut lines = text.lines().zip(1..).skip(1);
    let header = lines.next().map_or("", |(line, _)| line);
    let header: Header = serde_json::from_str(header).map_err(|error| {
        let expected = "expected {\"batch\": SAMPLES, \"accumulation\": MICRO_STEPS, \"case\": TEXT, \
                        \"total_bytes\": BYTES, \"gpu\": TEXT, \"allocator\": SETTINGS}";
        wrong(2, format!("{}; {expected}", clause(&error)))
    })?;
    if header.batch == 0 || header.accumulation == 0 || header.batch > LARGEST_BATCH {
        let problem = "`batch` and `accumulation` must be at least 1, and `batch` at most 2^40";
        return Err(wrong(2, problem));
    }
    let settings = settings(header.allocator.as_deref())?;
    let mut own = Own {
        reader: Reader::of_numbered_streams(),
        start: Some(Start::new(settings.unwrap_or_default())),
        frames: Vec::new(),
        first_step: None,
        blocks: Vec::new(),
    };
    for (line, number) in lines {
        if own.len() > MOST_EVENTS {
            return Err(RecordedError::TooLong {
                batch: header.batch,
            }
            .into());
        }
        own.take(line, number)
            .map_err(|problem| wrong(number, problem))?;
    }
    let end = text.lines().count();
    own.begin().map_err(|problem| wrong(end, problem))?;
    if own.reader.len() == 0 {
        return Err(wrong(end, "there are no allocations"));
    }
    Ok(own.reader.finish(Sequence {
        batch: header.batch,
        accumulation: header.accumulation,
        case: header.case.map(|case| shorten(&case)),
        total: header.total_bytes.map(Bytes),
        gpu: header.gpu.map(cut),
        allocator: header.allocator.filter(|text| !text.is_empty()),
        events: Vec::new(),
        blocks: Vec::new(),
        first_step: own.first_step,
        frames: own.frames,
        format: Format::Trace,
    })?)
}

/// The allocator settings of a header.
fn settings(text: Option<&str>) -> Result<Option<Settings>, ReadError> {
    let read = text.map(str::parse::<Settings>).transpose();
    read.map_err(|error| wrong(2, format!("`allocator`: {error}")))
}

/// A name that is not too long.
fn cut(mut name: String) -> String {
    name.truncate(name.floor_char_boundary(LONGEST_GPU));
    name
}

fn wrong(line: usize, problem: impl Into<String>) -> ReadError {
    ReadError::Line {
        line,
        problem: problem.into(),
    }
}

/// What was read so far.
struct Own {
    reader: Reader,
    /// What was there before the first event; nothing once that is known.
    start: Option<Start>,
    frames: Vec<Arc<str>>,
    first_step: Option<usize>,
    /// By number, those that were there first: the block, and whether it is freed.
    blocks: Vec<(usize, bool)>,
}

impl Own {
    /// How much there is so far.
    fn len(&self) -> usize {
        let start = self.start.as_ref().map_or(0, Start::len);
        self.reader.len().max(start)
    }

    /// Reads a line.
    fn take(&mut self, line: &str, number: usize) -> Result<(), String> {
        match line.as_bytes() {
            [] | [b'#', ..] => Ok(()),
            [b'g', b' ', ..] => self.start()?.segment(&line[2..]),
            [b'b', b' ', ..] => self.start()?.block(&line[2..]),
            [b'a', b' ', ..] => {
                self.begin()?;
                self.allocate(&line[2..], number)
            }
            [b'f', b' ', ..] => {
                self.begin()?;
                self.free(&line[2..])
            }
            b"s" => {
                self.begin()?;
                self.first_step.get_or_insert(self.reader.len());
                Ok(())
            }
            [b'p', b' ', ..] if self.frames.len() < MOST_FRAMES => {
                let end = line.floor_char_boundary(LONGEST_FRAME);
                self.frames.push(Arc::from(&line[2..end]));
                Ok(())
            }
            _ => Err(format!(
                "`{}`; expected `g BYTES STREAM small|large [expandable]` (a segment that is there), `b OFFSET BYTES \
                 [SIZE]` (an allocation in it), `a BYTES [STREAM [FRAME]]` (an allocation), `f N` (a free), `s` (a step \
                 begins) or `p TEXT` (a line of Python), of which there are at most {MOST_FRAMES}",
                shorten(line)
            )),
        }
    }

    /// What was there, where nothing has happened yet.
    fn start(&mut self) -> Result<&mut Start, String> {
        self.start.as_mut().ok_or_else(|| {
            "segments and what is in use of them (`g` and `b`) come before all that happens (`a`, `f` and `s`)"
                .to_owned()
        })
    }

    /// Takes over what was there, before the first event.
    fn begin(&mut self) -> Result<(), String> {
        let Some(start) = self.start.take() else {
            return Ok(());
        };
        let there = start.blocks(&mut self.reader);
        let there = there.map_err(|error| error.to_string())?;
        self.blocks = there.into_iter().map(|block| (block, false)).collect();
        Ok(())
    }

    fn allocate(&mut self, words: &str, number: usize) -> Result<(), String> {
        let numbers: Result<Vec<u64>, _> = words.split(' ').map(str::parse).collect();
        let (bytes, stream, frame) = match numbers.as_deref() {
            Ok(&[bytes]) => (bytes, 0, None),
            Ok(&[bytes, stream]) => (bytes, stream, None),
            Ok(&[bytes, stream, frame]) => (bytes, stream, Some(frame)),
            Ok(_) | Err(_) => {
                return Err(format!(
                    "`a {}`; expected `a BYTES [STREAM [FRAME]]`",
                    shorten(words)
                ));
            }
        };
        let stream = u8::try_from(stream);
        let (Ok(stream), 1..LARGEST) = (stream, bytes) else {
            return Err("expected 1 to 2^60 - 1 bytes, on a stream numbered 0 to 255".to_owned());
        };
        let frame = match frame.map(u32::try_from) {
            None => None,
            Some(Ok(frame)) if self.frames.get(frame as usize).is_some() => Some(frame),
            Some(_) => {
                return Err(
                    "expected the number of a frame, which a line `p` before it has".to_owned(),
                );
            }
        };
        let place = (u32::try_from(number).ok(), frame);
        let block = self.reader.allocate(bytes, stream, place);
        self.blocks.push((block, false));
        Ok(())
    }

    fn free(&mut self, word: &str) -> Result<(), String> {
        let number = word.parse::<usize>().ok();
        match number.and_then(|number| Some((number, self.blocks.get_mut(number)?))) {
            Some((_, (block, freed @ false))) => {
                *freed = true;
                self.reader.push(*block, true);
                Ok(())
            }
            Some((number, (_, true))) => Err(format!("allocation {number} is freed twice")),
            None => Err(format!(
                "`f {}`; expected the number of an allocation before it, counted from 0",
                shorten(word)
            )),
        }
    }
}

impl Sequence {
    /// The recording in batchfit's own format; what was there when it started as allocations that lead there.
    pub fn to_text(&self) -> String {
        let header = Header {
            batch: self.batch,
            accumulation: self.accumulation,
            case: self.case.clone(),
            total_bytes: self.total.map(|total| total.0),
            gpu: self.gpu.clone(),
            allocator: self.allocator.clone(),
        };
        let mut text = String::from_utf8_lossy(MAGIC).into_owned();
        text.push_str(&serde_json::to_string(&header).expect("a header is JSON"));
        text.push('\n');
        for frame in &self.frames {
            let _ = writeln!(text, "p {frame}");
        }
        for (index, event) in self.events.iter().enumerate() {
            if self.first_step == Some(index) {
                text.push_str("s\n");
            }
            let block = &self.blocks[event.block];
            let _ = match (event.is_free, block.frame, block.stream) {
                (true, ..) => writeln!(text, "f {}", event.block),
                (false, Some(frame), stream) => {
                    writeln!(text, "a {} {stream} {frame}", block.bytes)
                }
                (false, None, 0) => writeln!(text, "a {}", block.bytes),
                (false, None, stream) => writeln!(text, "a {} {stream}", block.bytes),
            };
        }
        text
    }
}

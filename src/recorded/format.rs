//! Files of recordings: batchfit's own format, traces and snapshots. See Note [The format of recordings].

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::RecordedError;
use super::sequence::{MOST_EVENTS, Reader, Sequence};
use crate::bounded::{clause, shorten};
use crate::replay::{self, Bounds, Format, RecordingError};
use crate::units::Bytes;

/// The first line of a recording in batchfit's own format.
const MAGIC: &[u8] = b"batchfit recording 1\n";

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Most lines of Python that are kept, and the most bytes of one.
const MOST_FRAMES: usize = 1 << 16;
const LONGEST_FRAME: usize = 512;

/// Largest size of an allocation, in bytes; no machine has as much.
const LARGEST: u64 = 1 << 60;

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
    /// Nobody says which batch was recorded.
    #[error(
        "the file does not say which batch was recorded; write \"batch\" into its header, or give --batches with a \
         number for each file"
    )]
    NoBatch,
    /// The file says another batch than whoever gave it.
    #[error("the file says that it is of batch {recorded}, and --batches says {given}")]
    OtherBatch {
        /// In the file.
        recorded: u64,
        /// On the command line.
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
}

fn one() -> u32 {
    1
}

/// Reads a recording, compressed with gzip or not; `batch` is what somebody says of a file that does not say it itself.
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
        if recorded == 0 {
            return Err(ReadError::Line {
                line: 1,
                problem: "the batch is 0; expected at least 1".to_owned(),
            });
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

/// Whether a file begins as batchfit's own recordings do.
fn is_own(file: &[u8]) -> bool {
    use std::io::Read as _;
    if !file.starts_with(&GZIP) {
        return file.starts_with(MAGIC);
    }
    let mut first = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(file).take(MAGIC.len() as u64);
    decoder.read_to_end(&mut first).is_ok() && first == MAGIC
}

fn own(bytes: &[u8]) -> Result<Sequence, ReadError> {
    let wrong = |line: usize, problem: String| ReadError::Line { line, problem };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.split(|byte| *byte == b'\n').count();
        wrong(line, "it is not UTF-8".to_owned())
    })?;
    let mut lines = text.lines().zip(1..).skip(1);
    let header = lines.next().map_or("", |(line, _)| line);
    let header: Header = serde_json::from_str(header).map_err(|error| {
        let expected = "expected {\"batch\": SAMPLES, \"accumulation\": MICRO_STEPS, \"case\": TEXT, \
                        \"total_bytes\": BYTES}";
        wrong(2, format!("{}; {expected}", clause(&error)))
    })?;
    if header.batch == 0 || header.accumulation == 0 {
        return Err(wrong(
            2,
            "`batch` and `accumulation` must be at least 1".to_owned(),
        ));
    }
    let mut reader = Reader::default();
    let (mut frames, mut first_step, mut is_freed) = (Vec::new(), None, Vec::new());
    for (line, number) in lines {
        let mut words = line.split(' ');
        let mut next = || words.next().map(str::parse::<u64>);
        match line.as_bytes().first() {
            None | Some(b'#') => {}
            Some(b'a') => {
                next();
                let numbers = [next(), next().or(Some(Ok(0)))];
                let frame = next();
                let [Some(Ok(bytes)), Some(Ok(stream))] = numbers else {
                    return Err(wrong(
                        number,
                        "expected `a BYTES [STREAM [FRAME]]`".to_owned(),
                    ));
                };
                let stream = u8::try_from(stream);
                let (Ok(stream), 1..LARGEST) = (stream, bytes) else {
                    let problem = "expected 1 to 2^60 bytes, on a stream numbered 0 to 255";
                    return Err(wrong(number, problem.to_owned()));
                };
                let frame = match frame {
                    None => None,
                    Some(Ok(frame)) if (frame as usize) < frames.len() => u32::try_from(frame).ok(),
                    Some(_) => {
                        let problem =
                            "expected the number of a frame that a line `p` before it has";
                        return Err(wrong(number, problem.to_owned()));
                    }
                };
                if reader.len() == MOST_EVENTS {
                    return Err(RecordedError::TooLong {
                        batch: header.batch,
                    }
                    .into());
                }
                reader.allocate(bytes, stream, (u32::try_from(number).ok(), frame));
                is_freed.push(false);
            }
            Some(b'f') => {
                next();
                let block = next().and_then(Result::ok);
                let block = block.and_then(|block| usize::try_from(block).ok());
                match block.and_then(|block| Some((block, is_freed.get_mut(block)?))) {
                    Some((block, freed @ false)) => {
                        *freed = true;
                        reader.push(block, true);
                    }
                    Some((block, true)) => {
                        return Err(wrong(number, format!("allocation {block} is freed twice")));
                    }
                    None => {
                        let problem = format!(
                            "`{}`; expected `f N`, the number of an allocation before it, counted from 0",
                            shorten(line)
                        );
                        return Err(wrong(number, problem));
                    }
                }
            }
            Some(b's') if line == "s" => {
                first_step.get_or_insert(reader.len());
            }
            Some(b'p') if line.starts_with("p ") && frames.len() < MOST_FRAMES => {
                let end = line.floor_char_boundary(LONGEST_FRAME);
                frames.push(Arc::from(&line[2..end.max(2)]));
            }
            Some(_) => {
                let problem = format!(
                    "`{}`; expected a line `a` (an allocation), `f` (a free), `s` (a step begins) or `p` (a line of \
                     Python), of which there are at most {MOST_FRAMES}",
                    shorten(line)
                );
                return Err(wrong(number, problem));
            }
        }
    }
    if reader.len() == 0 {
        return Err(wrong(
            text.lines().count(),
            "there are no allocations".to_owned(),
        ));
    }
    Ok(reader.finish(Sequence {
        batch: header.batch,
        accumulation: header.accumulation,
        case: header.case.map(|case| shorten(&case)),
        total: header.total_bytes.map(Bytes),
        events: Vec::new(),
        blocks: Vec::new(),
        first_step,
        frames,
        format: Format::Trace,
    })?)
}

impl Sequence {
    /// The recording in batchfit's own format.
    pub fn to_text(&self) -> String {
        let header = Header {
            batch: self.batch,
            accumulation: self.accumulation,
            case: self.case.clone(),
            total_bytes: self.total.map(|total| total.0),
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

//! Traces as text: a header `# {json}`, then lines of `action addr size stream`.

use serde::Deserialize;

use super::error::RecordingError;
use super::recording::{Entry, Format, RecordedLimit, Recording};
use crate::alloc::{Address, Event, SegmentAction, Stream};
use crate::limits::{clause, shorten};
use crate::replay::layout::Layout;
use crate::units::Bytes;

/// The members of the header that are read; others describe what was recorded.
#[derive(Deserialize)]
struct Header {
    case: Option<String>,
    batch: Option<u64>,
    accumulation: Option<u32>,
    total: u64,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    alloc_conf: String,
}

/// The names of PyTorch's actions, for messages.
pub(in crate::replay) const ACTIONS: &str = "alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, \
     segment_unmap, oom or snapshot";

/// The action that only marks a moment.
pub(in crate::replay) const MOMENT: &str = "snapshot";

/// Reads a trace. What it says may still contradict itself.
pub(in crate::replay) fn read(bytes: &[u8], most: usize) -> Result<Recording, RecordingError> {
    let mut lines = bytes.split(|byte| *byte == b'\n').zip(1_u32..);
    let header = header(lines.next().map_or(&[][..], |(line, _)| line))?;
    let mut entries = Vec::new();
    for (line, number) in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if entries.len() == most {
            return Err(RecordingError::TooLong { most });
        }
        entries.extend(
            entry(line, number)
                .map_err(|problem| RecordingError::at(format!("line {number}"), problem))?,
        );
    }
    Ok(Recording {
        format: Format::Trace,
        case: header.case.map(|case| shorten(&case)),
        batch: header.batch,
        accumulation: header.accumulation,
        total: Some(Bytes(header.total)),
        // The harness that writes these traces takes zero for no limit.
        limit: match header.limit {
            None | Some(0) => RecordedLimit::None,
            Some(limit) => RecordedLimit::Bytes(Bytes(limit)),
        },
        settings: header
            .alloc_conf
            .parse()
            .map_err(|source| RecordingError::Settings {
                place: "line 1, `alloc_conf`".to_owned(),
                source,
            })?,
        initial: Layout::default(),
        frames: Vec::new(),
        knows_modules: false,
        entries,
        device_free: None,
        notes: Vec::new(),
    })
}

fn header(line: &[u8]) -> Result<Header, RecordingError> {
    let wrong = |problem: String| {
        let expected =
            "expected `# {\"total\": BYTES, \"limit\": BYTES, \"alloc_conf\": TEXT, ...}`";
        RecordingError::at("line 1", format!("{problem}; {expected}"))
    };
    let json = line
        .strip_prefix(b"#")
        .ok_or_else(|| wrong("the header is missing".to_owned()))?;
    let mut json = serde_json::Deserializer::from_slice(json);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let problem = clause(error.inner());
        let column = error.inner().column();
        match error.path().to_string().as_str() {
            "." => wrong(format!(
                "the header is not as expected: {problem} at column {column}"
            )),
            key => wrong(format!(
                "`{key}` of the header: {problem} at column {column}"
            )),
        }
    })
}

/// Reads one line; nothing for an action that only marks a moment.
fn entry(line: &[u8], number: u32) -> Result<Option<Entry>, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not text".to_owned())?;
    let columns: Vec<&str> = text.split_whitespace().collect();
    let [action, address, size, stream] = columns[..] else {
        return Err(format!(
            "{} columns; expected 4: action, address, size and stream",
            columns.len()
        ));
    };
    let address = u64::from_str_radix(address, 16).map_err(|_| {
        let address = shorten(address);
        format!("the address `{address}`; expected up to 16 hexadecimal digits")
    })?;
    let size = size
        .parse()
        .map_err(|_| format!("the size `{}`; expected a number of bytes", shorten(size)))?;
    let stream = stream
        .parse()
        .map_err(|_| format!("the stream `{}`; expected a number", shorten(stream)))?;
    if action == MOMENT {
        return Ok(None);
    }
    let event = event(action, Address(address), Bytes(size))
        .ok_or_else(|| format!("unknown action `{}`; expected {ACTIONS}", shorten(action)))?;
    Ok(Some(Entry {
        event,
        stream: Stream(stream),
        position: number,
        frame: None,
        in_module: false,
    }))
}

/// The event of one of PyTorch's actions that change something.
pub(in crate::replay) fn event(action: &str, address: Address, size: Bytes) -> Option<Event> {
    let requested = size;
    Some(match action {
        "alloc" => Event::Alloc { address, requested },
        "free_requested" => Event::FreeRequested { address, requested },
        "free_completed" => Event::FreeCompleted { address, requested },
        "oom" => Event::OutOfMemory { rounded: size },
        _ => {
            let action = SegmentAction::named(action.strip_prefix("segment_")?)?;
            Event::Segment(action, address, size)
        }
    })
}

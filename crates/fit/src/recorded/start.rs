//! What was there when a recording in batchfit's own format starts: segments, and what is in use of them.

use super::RecordedError;
use super::format::LARGEST;
use super::sequence::Reader;
use crate::alloc::{Address, MIN_BLOCK, PoolKind, Settings, Stream};
use crate::limits::shorten;
use crate::replay::{Layout, Segment, Used};
use crate::units::Bytes;

/// Where segments are put: addresses are not in the file. None is beside another.
const APART: u64 = 512;

/// Segments and their blocks, as far as they were read.
#[derive(Debug)]
pub(super) struct Start {
    layout: Layout,
    /// Blocks in use, of all segments.
    blocks: usize,
    settings: Settings,
}

impl Start {
    /// Nothing yet; `settings` say how sizes are rounded.
    pub(super) fn new(settings: Settings) -> Start {
        Start {
            layout: Layout::default(),
            blocks: 0,
            settings,
        }
    }

    /// How many lines were read.
    pub(super) fn len(&self) -> usize {
        self.layout.segments.len() + self.blocks
    }

    /// Reads what follows `g`.
    pub(super) fn segment(&mut self, words: &str) -> Result<(), String> {
        let wrong = || {
            format!(
                "`g {}`; expected `g BYTES STREAM small|large [expandable]`",
                shorten(words)
            )
        };
        let words: Vec<&str> = words.split(' ').collect();
        let (bytes, stream, pool, is_expandable) = match words.as_slice() {
            [bytes, stream, pool] => (bytes, stream, pool, false),
            [bytes, stream, pool, "expandable"] => (bytes, stream, pool, true),
            _ => return Err(wrong()),
        };
        let bytes: u64 = bytes.parse().map_err(|_| wrong())?;
        let stream: u64 = stream.parse().map_err(|_| wrong())?;
        let pool = match *pool {
            "small" => PoolKind::Small,
            "large" => PoolKind::Large,
            _ => return Err(wrong()),
        };
        if bytes == 0 || !bytes.is_multiple_of(MIN_BLOCK.0) || stream > u64::from(u8::MAX) {
            return Err(format!(
                "expected a multiple of {} bytes, on a stream numbered 0 to 255",
                MIN_BLOCK.0
            ));
        }
        let last = self.layout.segments.last();
        let address = last.map_or(APART, |last| last.address.0 + last.size.0 + APART);
        if address.checked_add(bytes).is_none_or(|end| end >= LARGEST) {
            return Err("expected fewer than 2^60 bytes in all segments together".to_owned());
        }
        self.layout.segments.push(Segment {
            address: Address(address),
            size: Bytes(bytes),
            stream: Stream(stream),
            pool,
            is_expandable,
            used: Vec::new(),
        });
        Ok(())
    }

    /// Reads what follows `b`.
    pub(super) fn block(&mut self, words: &str) -> Result<(), String> {
        let numbers: Result<Vec<u64>, _> = words.split(' ').map(str::parse).collect();
        let (offset, requested, size) = match numbers.as_deref() {
            Ok(&[offset, requested]) => (offset, requested, None),
            Ok(&[offset, requested, size]) => (offset, requested, Some(size)),
            Ok(_) | Err(_) => {
                return Err(format!(
                    "`b {}`; expected `b OFFSET BYTES [SIZE]`",
                    shorten(words)
                ));
            }
        };
        let Some(segment) = self.layout.segments.last_mut() else {
            return Err("there is no segment (`g`) above that it could be in".to_owned());
        };
        let start = segment.address.0;
        if let Some(last) = segment.used.last_mut() {
            let after = last.address.0 - start + last.requested.0;
            if offset < after {
                return Err(format!(
                    "it starts at {offset}, in or before the one above; expected {after} or more"
                ));
            }
            // Rounding may be other than it was, and nothing overlaps.
            last.size = last.size.min(Bytes(start + offset - last.address.0));
        }
        let room = segment.size.0.checked_sub(offset);
        let least = requested.max(size.unwrap_or(0));
        let Some(room) = room.filter(|room| requested > 0 && least <= *room) else {
            return Err(format!(
                "expected 1 byte or more, all of them inside of the segment of {} bytes",
                segment.size.0
            ));
        };
        let rounded = self.settings.round_size(Bytes(requested));
        let size = size.map_or(rounded, Bytes).max(Bytes(requested));
        segment.used.push(Used {
            address: Address(start + offset),
            size: size.min(Bytes(room)),
            requested: Bytes(requested),
            is_pending: false,
        });
        self.blocks += 1;
        Ok(())
    }

    /// Has `reader` ask for all of it; gives the blocks in use, in their order.
    pub(super) fn blocks(self, reader: &mut Reader) -> Result<Vec<usize>, RecordedError> {
        reader.start(&self.layout)?;
        let segments = self.layout.segments.iter();
        let used = segments.flat_map(|segment| &segment.used);
        let blocks = used.map(|used| reader.block_at(used.address));
        Ok(blocks
            .map(|block| block.expect("it was asked for"))
            .collect())
    }
}

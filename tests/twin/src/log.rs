//! Every event, as a line of `action address size stream`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::die;
use batchfit_card::alloc::{Event, Observer, SegmentAction};

/// The stream that the request is for whose events come now.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfStream(Arc<AtomicU64>);

impl OfStream {
    pub(crate) fn set(&self, stream: u64) {
        self.0.store(stream, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Log {
    file: RefCell<Option<BufWriter<File>>>,
    stream: OfStream,
    /// By address, the streams that live blocks were asked for on: one can come back while another stream is served.
    blocks: HashMap<u64, u64>,
    /// The same of segments.
    segments: HashMap<u64, u64>,
}

impl Log {
    pub(crate) fn create(path: Option<OsString>, stream: OfStream) -> Log {
        let file = path.map(|path| match File::create(&path) {
            Ok(file) => BufWriter::new(file),
            Err(error) => die(&format!("{}: {error}", path.display())),
        });
        Log {
            file: RefCell::new(file),
            stream,
            blocks: HashMap::new(),
            segments: HashMap::new(),
        }
    }

    pub(crate) fn flush(&self) {
        if let Some(file) = &mut *self.file.borrow_mut()
            && let Err(error) = file.flush()
        {
            die(&format!("the log: {error}"));
        }
    }
}

impl Observer for Log {
    fn record(&mut self, event: Event) {
        let served = self.stream.0.load(Ordering::Relaxed);
        let stream = match event {
            Event::Alloc { address, .. } => {
                self.blocks.insert(address.0, served);
                Some(served)
            }
            Event::FreeRequested { address, .. } => self.blocks.get(&address.0).copied(),
            Event::FreeCompleted { address, .. } => self.blocks.remove(&address.0),
            Event::Segment(SegmentAction::Alloc, address, _) => {
                self.segments.insert(address.0, served);
                Some(served)
            }
            Event::Segment(SegmentAction::Free, address, _) => self.segments.remove(&address.0),
            Event::OutOfMemory { .. } => Some(served),
            Event::Segment(SegmentAction::Map | SegmentAction::Unmap, ..) => None,
        };
        let Some(stream) = stream else {
            die(&format!(
                "`{event}` is of no block and no segment that is known"
            ));
        };
        if let Some(file) = self.file.get_mut()
            && let Err(error) = writeln!(file, "{event} {stream:x}")
        {
            die(&format!("the log: {error}"));
        }
    }
}

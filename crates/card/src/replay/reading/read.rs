//! From the bytes of a file to a recording.

use std::io::Read as _;

use flate2::read::MultiGzDecoder;

use super::check::check;
use super::error::RecordingError;
use super::pickle::{self, Pickle};
use super::recording::Recording;
use super::{snapshot, text};

/// What a file may make its reader use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Its size when decompressed.
    pub mib: u64,
    /// The events in it.
    pub events: usize,
    /// What a pickle in it may hold.
    pub pickle: pickle::Bounds,
}

impl Default for Bounds {
    /// For files of the person who runs the program.
    fn default() -> Bounds {
        Bounds {
            mib: 1024,
            events: 1 << 24,
            pickle: pickle::Bounds::default(),
        }
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The opcode that every pickle of protocol 2 or later starts with.
const PROTO: u8 = 0x80;

/// Reads a trace or a snapshot, compressed or not, and checks that it makes sense.
pub fn read(file: &[u8], bounds: Bounds) -> Result<Recording, RecordingError> {
    if file.starts_with(&GZIP) {
        read_bare(&decompress(file, bounds.mib)?, bounds)
    } else {
        read_bare(file, bounds)
    }
}

/// The same of one that is not compressed.
pub fn read_bare(bytes: &[u8], bounds: Bounds) -> Result<Recording, RecordingError> {
    let most = bounds.mib << 20;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > most) {
        return Err(RecordingError::TooLarge {
            most_mib: bounds.mib,
        });
    }
    let recording = match bytes {
        [PROTO, ..] => {
            let pickle = Pickle::read(bytes, bounds.pickle)?;
            snapshot::read(&pickle, bounds.events)?
        }
        [b'#', ..] => text::read(bytes, bounds.events)?,
        other => {
            return Err(RecordingError::UnknownFormat {
                found: beginning(other),
            });
        }
    };
    check(&recording)?;
    Ok(recording)
}

/// The bytes of a file that may be gzipped, `most_mib` MiB of them at most.
pub fn decompress(file: &[u8], most_mib: u64) -> Result<Vec<u8>, RecordingError> {
    let mut bytes = Vec::new();
    let most = most_mib << 20;
    // One byte more, so that what is too large shows.
    let mut stream = MultiGzDecoder::new(file).take(most + 1);
    stream
        .read_to_end(&mut bytes)
        .map_err(|error| RecordingError::Gzip {
            read: bytes.len(),
            cause: error.to_string(),
        })?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > most) {
        return Err(RecordingError::TooLarge { most_mib });
    }
    Ok(bytes)
}

fn beginning(bytes: &[u8]) -> String {
    match bytes {
        [] => "nothing: it is empty".to_owned(),
        _ => format!("`{}`", bytes[..bytes.len().min(8)].escape_ascii()),
    }
}

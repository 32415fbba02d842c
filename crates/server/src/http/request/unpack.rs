//! Files in bodies: gzip and archives are unpacked within limits.

use std::borrow::Cow;
use std::io::Cursor;

use crate::http::request::uploads::decompress;
use crate::http::response::problem::{Code, Problem};
use crate::model::Digest;
use batchfit_models::exported::{ExportedError, is_archive, model_of_archive_within};

/// How a gzip file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// How a file is announced in the list of contents of a zip archive.
const ZIP_ENTRY: [u8; 4] = *b"PK\x01\x02";

/// Most files in an archive: a model with its weights has thousands, and each takes some hundred bytes to list.
const MOST_ENTRIES: usize = 1 << 16;

/// A file whose contents are bare.
pub(in crate::http) struct Unpacked {
    /// What it holds.
    pub(in crate::http) contents: Vec<u8>,
    /// The digest of the file, as its owner has it.
    pub(in crate::http) file: Digest,
    /// That of the body, as it was sent.
    pub(in crate::http) body: Digest,
}

/// Whether there is more in these bytes than they are long.
pub(in crate::http) fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(&GZIP) || is_archive(bytes)
}

/// Takes off the encoding of a body, and then the compression or the archive of the file in it; `None` where any of it
/// is larger than `limit`.
pub(in crate::http) fn unpack(
    body: &[u8],
    is_encoded: bool,
    limit: usize,
) -> Result<Option<Unpacked>, Problem> {
    let mut file = Cow::Borrowed(body);
    if is_encoded {
        let Some(decoded) = decompress(body, limit)? else {
            return Ok(None);
        };
        file = Cow::Owned(decoded);
    }
    let named = Digest::of(&file);
    let contents = if file.starts_with(&GZIP) {
        let plain = decompress(&file, limit).map_err(|problem| invalid(problem.detail))?;
        let Some(plain) = plain else { return Ok(None) };
        plain
    } else if is_archive(&file) {
        match of_archive(&file, limit)? {
            Some(model) => model,
            None => return Ok(None),
        }
    } else {
        if file.len() > limit {
            return Ok(None);
        }
        file.into_owned()
    };
    Ok(Some(Unpacked {
        contents,
        body: if is_encoded {
            Digest::of(body)
        } else {
            named.clone()
        },
        file: named,
    }))
}

fn of_archive(file: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Problem> {
    let entries = file.windows(ZIP_ENTRY.len());
    let entries = entries.filter(|bytes| **bytes == ZIP_ENTRY).count();
    if entries > MOST_ENTRIES {
        let detail = format!("the archive lists {entries} files; at most {MOST_ENTRIES} are read");
        return Err(invalid(detail));
    }
    let most = u64::try_from(limit).unwrap_or(u64::MAX);
    match model_of_archive_within(Cursor::new(file), most) {
        Ok(model) => Ok(Some(model)),
        Err(ExportedError::TooLarge { .. }) => Ok(None),
        Err(error) => Err(invalid(error.to_string())),
    }
}

/// The file is not one that is kept.
pub(in crate::http) fn invalid(detail: impl Into<String>) -> Problem {
    Problem::of_body(Code::UploadInvalid, detail)
}

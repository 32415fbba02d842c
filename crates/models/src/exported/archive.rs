//! `.pt2` archives, as `torch.export.save` writes them: zip files whose model is JSON. Weights are beside it,
//! and are not read.

use std::io::{Read, Seek};

use zip::ZipArchive;
use zip::result::ZipError;

use super::LIMIT_BYTES;
use super::error::ExportedError;

/// Where the JSON of a model is, inside the folder named after the archive.
const MODEL: &str = "models/model.json";

/// Whether a file that starts like this is a zip archive.
pub fn is_archive(start: &[u8]) -> bool {
    start.starts_with(b"PK\x03\x04")
}

/// The JSON text of the model in an archive. Of the rest of the file, only the list of contents is read.
pub fn model_of_archive(file: impl Read + Seek) -> Result<Vec<u8>, ExportedError> {
    model_of_archive_within(file, LIMIT_BYTES)
}

/// The same, of so many bytes at most.
pub fn model_of_archive_within(
    file: impl Read + Seek,
    limit_bytes: u64,
) -> Result<Vec<u8>, ExportedError> {
    let mut archive = ZipArchive::new(file).map_err(|error| damaged(&error))?;
    let mut models = Vec::new();
    for name in archive.file_names() {
        let name = name.map_err(|error| damaged(&error))?;
        let folder = name.strip_suffix(MODEL);
        if folder.is_some_and(|folder| folder.is_empty() || folder.ends_with('/')) {
            models.push(name.into_owned());
        }
    }
    let [name] = models.as_slice() else {
        return Err(ExportedError::Archive {
            problem: match models.len() {
                0 => format!(
                    "it holds no model ({MODEL}); torch.export.save writes one, torch.save does not"
                ),
                count => format!("it holds {count} models ({MODEL}); give an archive of one"),
            },
        });
    };
    let entry = archive.by_name(name).map_err(|error| damaged(&error))?;
    let mut text = Vec::new();
    entry
        .take(limit_bytes + 1)
        .read_to_end(&mut text)
        .map_err(|error| damaged(&error.into()))?;
    if text.len() as u64 > limit_bytes {
        return Err(ExportedError::TooLarge { limit_bytes });
    }
    Ok(text)
}

fn damaged(error: &ZipError) -> ExportedError {
    ExportedError::Archive {
        problem: format!("it cannot be read: {error}"),
    }
}

//! A numerics check's part in a run: given values instead of random ones, and gradients to look at.
//!
//! Files are in the safetensors layout: the length of a header in eight bytes, the header as JSON, then
//! the data, so that Python reads and writes them with one call.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::program::TensorId;
use crate::shape::{DType, Extent};

/// A tensor on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    /// Type of the elements.
    pub dtype: DType,
    /// Lengths of the dimensions.
    pub shape: Vec<u64>,
    /// The elements, row-major and little-endian.
    pub bytes: Vec<u8>,
}

/// Whether a run keeps what it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gradients {
    /// No copies are made.
    #[default]
    Ignore,
    /// Each parameter's gradient is copied when an optimizer first uses it.
    Record,
}

/// Whether a run looks for elements that a launch leaves unwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outputs {
    /// Memory is written as it comes.
    #[default]
    Trusted,
    /// What a launch only writes is filled with a pattern before, and must hold none of it after.
    Poisoned,
}

/// What a run should use instead of random values, and what it should keep.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// First values of parameters, by path, and of the batch, by the input's name.
    pub feed: HashMap<String, HostTensor>,
    /// Whether gradients are recorded.
    pub gradients: Gradients,
    /// The learning rate, in the place of the optimizer's own.
    pub rate: Option<f32>,
    /// Whether launches are checked to write all of their results.
    pub outputs: Outputs,
    /// The names of the program's tensors, by [`crate::program::TensorId`].
    pub labels: Vec<Arc<str>>,
    /// Parameters that share a buffer: [`crate::program::Program::parts`].
    pub parts: HashMap<(TensorId, Extent), Arc<str>>,
}

/// Why a tensor file is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorFileError {
    /// The file ends before the header does.
    #[error("the file has {length} bytes, too few for its header")]
    HeaderCut {
        /// How long it is.
        length: usize,
    },
    /// The header is not as expected.
    #[error("the header is not valid: {detail}")]
    Header {
        /// What is wrong.
        detail: String,
    },
    /// A tensor's data lies outside the file.
    #[error("the data of `{name}` lies outside the file")]
    OutOfRange {
        /// Which tensor.
        name: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [usize; 2],
}

const DTYPES: [(DType, &str); 8] = [
    (DType::Float64, "F64"),
    (DType::Float32, "F32"),
    (DType::Float16, "F16"),
    (DType::BFloat16, "BF16"),
    (DType::Int64, "I64"),
    (DType::Int32, "I32"),
    (DType::UInt8, "U8"),
    (DType::Bool, "BOOL"),
];

/// Reads all tensors of a file.
pub fn read_tensors(file: &[u8]) -> Result<HashMap<String, HostTensor>, TensorFileError> {
    let cut = || TensorFileError::HeaderCut { length: file.len() };
    let (length, rest) = file.split_first_chunk::<8>().ok_or_else(cut)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
    let header = rest.get(..length).ok_or_else(cut)?;
    let data = &rest[length..];
    let entries: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|error| TensorFileError::Header {
            detail: error.to_string(),
        })?;
    let mut tensors = HashMap::new();
    for (name, entry) in entries {
        if name == "__metadata__" {
            continue;
        }
        let entry: Entry =
            serde_json::from_value(entry).map_err(|error| TensorFileError::Header {
                detail: format!("`{name}`: {error}"),
            })?;
        let dtype = DTYPES
            .iter()
            .find(|(_, text)| *text == entry.dtype)
            .ok_or_else(|| TensorFileError::Header {
                detail: format!("`{name}`: {} is no known type", entry.dtype),
            })?
            .0;
        let [from, to] = entry.data_offsets;
        let bytes = data
            .get(from..to)
            .ok_or(TensorFileError::OutOfRange { name: name.clone() })?
            .to_vec();
        let tensor = HostTensor {
            dtype,
            shape: entry.shape,
            bytes,
        };
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// The file that holds these tensors.
pub fn write_tensors(tensors: &BTreeMap<String, HostTensor>) -> Vec<u8> {
    let mut end = 0;
    let header: BTreeMap<&str, Entry> = tensors
        .iter()
        .map(|(name, tensor)| {
            let start = end;
            end += tensor.bytes.len();
            let dtype = DTYPES
                .iter()
                .find(|(dtype, _)| *dtype == tensor.dtype)
                .map_or("U8", |(_, text)| *text);
            let entry = Entry {
                dtype: dtype.to_owned(),
                shape: tensor.shape.clone(),
                data_offsets: [start, end],
            };
            (name.as_str(), entry)
        })
        .collect();
    let header = serde_json::to_vec(&header).expect("names, numbers and lists always serialize");
    let mut file = Vec::with_capacity(8 + header.len() + end);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(&header);
    for tensor in tensors.values() {
        file.extend_from_slice(&tensor.bytes);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_survive_a_file() {
        let tensor = HostTensor {
            dtype: DType::BFloat16,
            shape: vec![2, 3],
            bytes: (0..12).collect(),
        };
        let tensors = BTreeMap::from([("conv.weight".to_owned(), tensor.clone())]);

        let read = read_tensors(&write_tensors(&tensors)).unwrap();

        assert_eq!(read.len(), 1);
        assert_eq!(read["conv.weight"], tensor);
    }

    #[test]
    fn a_cut_file_is_refused() {
        assert_eq!(
            read_tensors(&[200, 0, 0, 0, 0, 0, 0, 0, b'{']),
            Err(TensorFileError::HeaderCut { length: 9 })
        );
    }
}

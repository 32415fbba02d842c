//! What a search is for.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::known;
use crate::alloc::{MemoryLimit, Settings};
use crate::limits::shorten;
use crate::model::{LARGEST_TARGET, MOST_RANKS, RequestError};
use crate::search::MAX_BATCH;

/// The members of a new search.
const FIELDS: &[&str] = &[
    "memory_limit",
    "target_batch",
    "world_size",
    "allocator",
    "start_batch",
    "max_batch",
    "avoid_out_of_memory",
    "gpu",
    "fresh",
];

/// Longest name of a GPU, in bytes.
const LONGEST_GPU: usize = 200;

/// What a search is for: the body of `POST /v1/searches`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(title = "SearchTerms")]
pub struct SearchRequest {
    /// What the program's allocator may reserve, in bytes; null where it is not given, and then reported bytes are not used.
    #[schema(minimum = 1)]
    pub memory_limit: Option<u64>,
    /// Samples for each optimizer step over all ranks; null for the largest micro-batch in one step.
    #[schema(minimum = 1)]
    pub target_batch: Option<u64>,
    /// Ranks that train together.
    #[schema(minimum = 1)]
    pub world_size: u64,
    /// The text of a `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults.
    pub allocator: String,
    /// The first batch to try.
    #[schema(minimum = 1)]
    pub start_batch: u64,
    /// The largest batch to try; null for the largest that is of any use.
    #[schema(minimum = 1)]
    pub max_batch: Option<u64>,
    /// Whether no batch is proposed that runs before it do not predict to fit.
    pub avoid_out_of_memory: bool,
    /// The card's name, as `torch.cuda.get_device_name()` has it; null where it is not given.
    pub gpu: Option<String>,
    /// Whether the work is done even where an earlier search has the answer.
    pub fresh: bool,
}

impl Default for SearchRequest {
    fn default() -> SearchRequest {
        SearchRequest {
            memory_limit: None,
            target_batch: None,
            world_size: 1,
            allocator: String::new(),
            start_batch: 1,
            max_batch: None,
            avoid_out_of_memory: false,
            gpu: None,
            fresh: false,
        }
    }
}

impl SearchRequest {
    /// Reads the members of a new search.
    pub fn parse(document: &Value) -> Result<SearchRequest, RequestError> {
        let fields = known(document, "a search", FIELDS)?;
        let terms = SearchRequest {
            memory_limit: fields
                .get("memory_limit")
                .map(|limit| bytes(limit, &fields.at("memory_limit")))
                .transpose()?,
            target_batch: fields.whole("target_batch", 1, LARGEST_TARGET)?,
            world_size: fields.whole("world_size", 1, MOST_RANKS)?.unwrap_or(1),
            allocator: fields.text("allocator")?.unwrap_or_default().to_owned(),
            start_batch: fields.whole("start_batch", 1, MAX_BATCH)?.unwrap_or(1),
            max_batch: fields.whole("max_batch", 1, MAX_BATCH)?,
            avoid_out_of_memory: fields.flag("avoid_out_of_memory")?.unwrap_or(false),
            gpu: fields.text("gpu")?.map(ToOwned::to_owned),
            fresh: fields.flag("fresh")?.unwrap_or(false),
        };
        if let Some(gpu) = terms.gpu.as_ref().filter(|gpu| gpu.len() > LONGEST_GPU) {
            let problem = format!(
                "gpu must have at most {LONGEST_GPU} bytes, not {}",
                gpu.len()
            );
            let given = Value::from(shorten(gpu));
            return Err(RequestError::at(fields.at("gpu"), problem).with_value(&given));
        }
        terms.allocator.parse::<Settings>().map_err(|error| {
            let given = Value::from(shorten(&terms.allocator));
            RequestError::at(fields.at("allocator"), error.to_string()).with_value(&given)
        })?;
        let wrong = |field: &str, value: u64, problem: String| {
            Err(RequestError::at(fields.at(field), problem).with_value(&Value::from(value)))
        };
        if let Some(target) = terms
            .target_batch
            .filter(|target| *target < terms.world_size)
        {
            let ranks = terms.world_size;
            let problem = format!(
                "{target} samples leave some of the {ranks} ranks of `world_size` without any; at least {ranks} are needed"
            );
            return wrong("target_batch", target, problem);
        }
        if let Some(most) = terms.max_batch.filter(|most| *most < terms.start_batch) {
            let start = terms.start_batch;
            let problem = format!("start_batch is {start}, and max_batch allows at most {most}");
            return wrong("start_batch", start, problem);
        }
        Ok(terms)
    }

    /// The largest batch that is of any use: more than a rank's share of the target is not.
    pub fn ceiling(&self) -> u64 {
        let share = self
            .target_batch
            .map(|target| target / self.world_size.max(1));
        let bounds = [self.max_batch, share].into_iter().flatten();
        bounds.fold(MAX_BATCH, u64::min)
    }

    /// Whether the answer to `earlier` answers this: the same is asked for, with a limit that is at most this one and nearly
    /// as much.
    pub fn is_answered_by(&self, earlier: &SearchRequest) -> bool {
        let is_near = match (earlier.memory_limit, self.memory_limit) {
            (None, None) => true,
            (Some(earlier), Some(limit)) => {
                earlier <= limit && u128::from(earlier) * 100 >= u128::from(limit) * 99
            }
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_near
            && self.gpu == earlier.gpu
            && self.allocator == earlier.allocator
            && self.target_batch == earlier.target_batch
            && self.world_size == earlier.world_size
            && self.max_batch == earlier.max_batch
    }

    /// The first batch to try.
    pub(super) fn start(&self) -> u64 {
        self.start_batch.min(self.ceiling())
    }
}

/// A limit in bytes: a share of a card is not known here, since no card is.
fn bytes(limit: &Value, pointer: &str) -> Result<u64, RequestError> {
    match crate::model::parse_memory_limit(limit, pointer)? {
        MemoryLimit::Bytes(bytes) => Ok(bytes.0),
        MemoryLimit::Fraction(_) => Err(RequestError::at(
            pointer,
            "a fraction of a card that the search does not know; write bytes, or a size such as \"12GiB\"",
        )
        .with_value(limit)),
    }
}

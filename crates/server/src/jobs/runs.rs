//! Runs on a virtual GPU: `batchfit run` stores them, the service shows them.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::document::{VERSION, json};
use super::queue::JobError;
use crate::limits::shorten_sentence;
use crate::replay::ReplayReport;
use crate::store::{Db, Ids, JsonText, VirtualRun};
use crate::virtual_gpu::Answer;

/// Stores a run, with what its allocator did where that was looked at. Says whether there was room for it.
pub async fn record_run(
    db: &Db,
    answer: &Answer,
    step: Option<&ReplayReport>,
) -> Result<bool, JobError> {
    let now = db.now();
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let document = json(answer);
    let word = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let run = VirtualRun {
        id: Ids::default().next(now),
        command: shorten_sentence(answer.command.join(" ")),
        card: answer.card.to_owned(),
        gpus: bytes(answer.gpus),
        verdict: word("verdict"),
        certainty: word("certainty"),
        limit_bytes: bytes(answer.limit_bytes),
        peak_allocated_bytes: answer.peak_allocated_bytes.map(bytes),
        peak_reserved_bytes: bytes(answer.peak_reserved_bytes),
        batchfit_version: VERSION.to_owned(),
        has_step: step.is_some(),
        created_at: now,
    };
    let step = step.map(packed);
    let answer = JsonText::of(&document);
    Ok(db.add_virtual_run(&run, &answer, step.as_deref()).await?)
}

/// A document as compressed JSON, as the table has it.
fn packed(step: &ReplayReport) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let plain = serde_json::to_vec(step).expect("documents have text keys and finite numbers");
    let packed = encoder.write_all(&plain).and_then(|()| encoder.finish());
    packed.expect("memory takes everything")
}

//! Equal questions: who comes when one is answered gets its result.

use crate::jobs::FitResult;
use crate::jobs::document::FitDocument;
use crate::jobs::queue::{Shared, had_its_limit};
use crate::model::{DeviceChoice, Request};
use crate::store::Claimed;

/// Whether nothing that the answer depends on can have changed since it was given.
fn is_reusable(request: &Request) -> bool {
    matches!(request.device, DeviceChoice::Sim(_)) || request.memory_limit.is_some()
}

/// The answer to the same question in other words, where nothing that it depends on can have changed. The client then gets
/// their own document.
pub(super) async fn answered_before(
    shared: &Shared,
    claimed: &Claimed,
    request: &Request,
) -> Option<FitResult> {
    if !is_reusable(request) {
        return None;
    }
    // What an agent answered stays that agent's word: this is the service's own.
    let found = shared.db.finished_fit(&claimed.fingerprint, false).await;
    let id = found.ok()??;
    let fit = FitDocument::of(shared.db.fit(&id).await.ok()??, None);
    let answer = fit.answer()?;
    let is_simulated = matches!(request.device, DeviceChoice::Sim(_));
    (is_simulated || had_its_limit(request, answer.recommendation.limit_bytes)).then_some(answer)
}

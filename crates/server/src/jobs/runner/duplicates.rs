//! Equal fits at the same time: one runs, the others get its result.

use crate::jobs::FitResult;
use crate::jobs::document::FitDocument;
use crate::jobs::queue::{Shared, had_its_limit};
use crate::model::{DeviceChoice, Request};
use crate::store::{Claimed, question_of};

/// The server ends.
pub(super) struct ShutDown;

/// The turn of one of those who ask the same at once, until it goes.
pub(super) struct DuplicateGuard<'a>(&'a Shared, &'a str);

impl Drop for DuplicateGuard<'_> {
    fn drop(&mut self) {
        self.0.answering.send_modify(|all| {
            all.remove(self.1);
        });
    }
}

/// Waits while another fit is worked on that asks the same in other words, whose answer will be this one's.
pub(super) async fn wait_for_duplicate<'a>(
    shared: &'a Shared,
    claimed: &'a Claimed,
    request: &Request,
) -> Result<Option<DuplicateGuard<'a>>, ShutDown> {
    if !is_reusable(request) {
        return Ok(None);
    }
    let question = question_of(&claimed.fingerprint);
    let mut others = shared.answering.subscribe();
    while !shared
        .answering
        .send_if_modified(|all| all.insert(question.to_owned()))
    {
        tokio::select! {
            _ = others.wait_for(|all| !all.contains(question)) => {}
            () = shared.shutdown.cancelled() => return Err(ShutDown),
        }
    }
    Ok(Some(DuplicateGuard(shared, question)))
}

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

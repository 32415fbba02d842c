//! Keeps answers where they can be kept.

use tracing::info;

use super::Answered;
use crate::cli::arguments::Kept;
use crate::cli::database;
use crate::jobs;
use crate::store::Db;

/// Stores answers. Whoever asked has them all the same where that cannot be done.
pub(super) fn store(kept: &Kept, answers: &[Answered]) {
    if let Err(error) = stored(kept, answers) {
        info!("the answer is not stored: {error:#}");
    }
}

fn stored(kept: &Kept, answers: &[Answered]) -> anyhow::Result<()> {
    let database = database::place(kept)?;
    let runtime = database::runtime()?;
    runtime.block_on(async {
        let db = Db::open_for_one(&database).await?;
        let mut recorded = Ok(());
        for answered in answers {
            recorded = recorded.and(
                jobs::record(
                    &db,
                    &answered.one.request,
                    &answered.result,
                    &answered.document,
                )
                .await,
            );
        }
        db.close().await;
        Ok(recorded?)
    })
}

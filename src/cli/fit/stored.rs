//! Keeps answers where they can be kept, and asks what earlier ones have taught.

use tracing::info;

use super::Answered;
use crate::cli::arguments::DatabaseFlags;
use crate::cli::database;
use crate::cli::question::ParsedRequest;
use crate::cli::terminal::output;
use crate::jobs::{self, Engine as _, FitEngine};
use crate::model::{DeviceChoice, HeadroomCalibration};
use crate::store::Db;

/// Stores answers. They are printed even where that cannot be done.
pub(super) fn store(kept: &DatabaseFlags, answers: &[Answered]) {
    if let Err(error) = stored(kept, answers) {
        output::warning(&format!("the answer is not stored: {error:#}"));
    }
}

/// The questions, each with what outcomes of earlier answers teach about it, where something is kept.
pub(super) fn learn_before(
    kept: &DatabaseFlags,
    engine: &FitEngine,
    questions: &mut [ParsedRequest],
) {
    match calibration(kept, engine, questions) {
        Ok(taught) => {
            for (one, taught) in questions.iter_mut().zip(taught) {
                one.request = one.request.clone().with_calibration(taught);
            }
        }
        Err(error) => info!("nothing is known of earlier answers: {error:#}"),
    }
}

fn calibration(
    kept: &DatabaseFlags,
    engine: &FitEngine,
    questions: &[ParsedRequest],
) -> anyhow::Result<Vec<Vec<HeadroomCalibration>>> {
    let database = database::place(kept)?;
    let runtime = database::runtime()?;
    runtime.block_on(async {
        let db = Db::open_existing(&database).await?;
        let mut all = Vec::new();
        // Where nothing was ever learnt, there is no need to look at the model or for a GPU.
        let is_known = db.learnt_count().await?.models > 0;
        for one in questions.iter().filter(|_| is_known) {
            let card = match one.request.device {
                DeviceChoice::Sim(_) => None,
                // The engine says that it is not here.
                DeviceChoice::Auto
                | DeviceChoice::Cuda(_)
                | DeviceChoice::Kind(_)
                | DeviceChoice::Host(..) => engine.check(&one.request).ok().flatten(),
            };
            let taught = jobs::learn_before(&db, &one.request, card.as_deref()).await;
            // So is what is wrong with the model.
            all.push(taught.unwrap_or_default());
        }
        db.close().await;
        Ok(all)
    })
}

fn stored(kept: &DatabaseFlags, answers: &[Answered]) -> anyhow::Result<()> {
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

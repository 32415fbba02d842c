//! `batchfit fit`: computes, prints, and stores where it can.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use tracing::info;

use super::arguments::Fit;
use super::devices::engine;
use super::trouble::Trouble;
use super::{Outcome, output, question};
use crate::jobs::{self, Engine as _, FitDocument, FitResult, Progress};
use crate::model::Request;
use crate::report::{self, Style};
use crate::store::{Db, Time};

pub(super) fn run(arguments: &Fit) -> Result<Outcome, Trouble> {
    let request = question::read(&arguments.question)?;
    let started_at = Time::from(Timestamp::now());
    let result = compute(&request, arguments)?;
    let finished_at = Time::from(Timestamp::now());
    let document = FitDocument::finished(&request, &result, started_at, finished_at, chance());
    // Before the answer is printed: whoever reads it may look it up at once.
    if let Err(error) = store(&arguments.database, &request, &result, &document) {
        info!("the answer is not stored: {error:#}");
    }
    if arguments.json {
        output::json(&document)?;
    } else {
        output::text(&report::fit(
            &jobs::model_name(&request),
            &result,
            &Style::default(),
        ))?;
    }
    Ok(if result.recommendation.micro_batch == 0 {
        Outcome::NothingFits
    } else {
        Outcome::Answered
    })
}

fn compute(request: &Request, arguments: &Fit) -> Result<FitResult, Trouble> {
    let engine = engine(arguments.patience.deadlines())?;
    let bar = progress_bar(arguments.json);
    let show = |progress: Progress| {
        bar.set_position(u64::from(progress.probes_done));
        bar.set_message(progress.note);
    };
    let result = engine.fit(request, &show, &Arc::default());
    bar.finish_and_clear();
    result.map_err(Trouble::Engine)
}

fn store(
    database: &str,
    request: &Request,
    result: &FitResult,
    document: &FitDocument,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let db = Db::open_for_one(database).await?;
        let recorded = jobs::record(&db, request, result, document).await;
        db.close().await;
        Ok(recorded?)
    })
}

/// A line on stderr, where that is a terminal; nothing beside a JSON document.
fn progress_bar(json: bool) -> ProgressBar {
    let target = if json {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let style = ProgressStyle::with_template("{spinner} probe {pos}: {wide_msg}")
        .expect("the template is well formed");
    let bar = ProgressBar::with_draw_target(None, target).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Sixty-four bits of chance: the standard library seeds each hasher from the system.
fn chance() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

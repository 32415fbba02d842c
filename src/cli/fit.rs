//! `batchfit fit`: computes, prints, and stores where it can.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::arguments::Fit;
use super::devices::engine;
use super::trouble::Trouble;
use super::{Outcome, output, question};
use crate::jobs::{Engine as _, Progress};
use crate::report;

pub(super) fn run(arguments: &Fit) -> Result<Outcome, Trouble> {
    let request = question::read(&arguments.question)?;
    let engine = engine()?;
    let bar = progress_bar(arguments.json);
    let show = |progress: Progress| {
        bar.set_position(u64::from(progress.probes_done));
        bar.set_message(progress.note);
    };
    let never = AtomicBool::new(false);
    let result = engine.fit(&request, &show, &never);
    bar.finish_and_clear();
    let result = result.map_err(Trouble::Engine)?;
    if arguments.json {
        output::json(&result)?;
    } else {
        output::text(&report::fit("the model", &result))?;
    }
    Ok(if result.recommendation.micro_batch == 0 {
        Outcome::NothingFits
    } else {
        Outcome::Answered
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

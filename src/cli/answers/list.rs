//! `batchfit answers`: the stored answers, and which of them are out of date.

use serde_json::json;

use super::{query, unknown};
use crate::cli::Outcome;
use crate::cli::arguments::ListAnswers;
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::jobs;
use crate::report;
use crate::store::{FilterColumn, RecommendationFilter, StoredRecommendation};

/// Lists answers, or shows the one that is named.
pub(in crate::cli) fn list(arguments: &ListAnswers) -> Result<Outcome, CliError> {
    let style = output::style(false);
    if let Some(id) = &arguments.id {
        let answer = query(&arguments.kept, async |db| jobs::followed(db, id).await)?;
        let answer = answer.ok_or_else(|| unknown("ID", id))?;
        return output::answer(arguments.json, &answer, || report::answer(&answer, &style));
    }
    let facets = [
        (FilterColumn::Model, &arguments.model),
        (FilterColumn::Gpu, &arguments.gpu),
    ];
    let filter = RecommendationFilter {
        facets: facets
            .into_iter()
            .filter_map(|(facet, text)| Some((facet, text.clone()?)))
            .collect(),
        before: None,
        limit: arguments.limit,
    };
    let page = query(&arguments.kept, async |db| {
        db.recommendations(&filter).await
    })?;
    let page = page.expect("every list has a first page");
    let answers: Vec<StoredRecommendation> = page.items().collect();
    output::answer(
        arguments.json,
        &json!({ "items": answers, "next": page.next }),
        || report::answers(&answers, &style),
    )
}

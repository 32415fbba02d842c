//! Answers for several lengths, as one answer for each, and what is safe at all of them.

use super::Answer;
use batchfit_fit::{FitResult, VariantResult};

/// What stands for one length, or for an answer that has one.
pub(super) struct LengthRow<'a> {
    of: Answer<'a>,
    /// The length, with what is known at it.
    at: Option<(String, FitResult)>,
}

impl LengthRow<'_> {
    pub(super) fn answer(&self) -> Answer<'_> {
        match &self.at {
            None => self.of,
            Some((length, result)) => Answer {
                length: Some(length),
                result,
                ..self.of
            },
        }
    }
}

/// The answers, those for several lengths as one for each and one for all.
pub(super) fn rows<'a>(answers: &[Answer<'a>]) -> Vec<LengthRow<'a>> {
    let mut rows = Vec::new();
    for answer in answers {
        let Some(table) = &answer.result.lengths else {
            rows.push(LengthRow {
                of: *answer,
                at: None,
            });
            continue;
        };
        rows.extend(table.rows.iter().map(|row| {
            let alone = || VariantResult {
                rank: 1,
                training: table.training.clone(),
                recommendation: row.recommendation.clone(),
                ..VariantResult::default()
            };
            let mut variants = row.variants.clone();
            if variants.is_empty() {
                variants.push(alone());
            }
            let result = FitResult {
                recommendation: row.recommendation.clone(),
                variants,
                probes: Vec::new(),
                lengths: None,
                soak: None,
                ..answer.result.clone()
            };
            LengthRow {
                of: *answer,
                at: Some((row.length.to_string(), result)),
            }
        }));
        let soaked = answer.result.soak.as_ref().map_or("", |_| ", soaked");
        let result = FitResult {
            lengths: None,
            ..answer.result.clone()
        };
        rows.push(LengthRow {
            of: *answer,
            at: Some((format!("all{soaked}"), result)),
        });
    }
    rows
}

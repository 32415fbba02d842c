//! Fits that are made of several: one for each length, and a soak of what they recommend.

use super::engine::FitEngine;
use super::{lengths, soak};
use crate::limits::with_cancel;
use crate::model::Request;
use crate::{Engine as _, EngineError, FitResult, Isolation, Work, validate};

impl FitEngine {
    /// Answers a request with several lengths, or with a soak.
    pub(super) fn fit_in_parts(
        &self,
        request: &Request,
        work: &Work<'_>,
    ) -> Result<FitResult, EngineError> {
        with_cancel(work.cancel, || validate(request))
            .ok_or(EngineError::Cancelled)?
            .map_err(EngineError::Invalid)?;
        let (mut result, each) = match &request.lengths {
            Some(lengths) => {
                let (result, each) = lengths::fit_each(self, request, lengths, work)?;
                (result, Some(each))
            }
            None => (self.fit(&request.alone(), Isolation::Shared, work)?, None),
        };
        if let Some(course) = &request.soak {
            soak::last(request, course, &mut result, work)?;
        }
        // Another variant may be the best of what lasts.
        let best = result.variants.first().map(|first| &first.training);
        if let (Some(each), Some(best), Some(table)) = (&each, best, &result.lengths)
            && table.training != *best
        {
            result.lengths = Some(each.table_of(best)?);
        }
        Ok(result)
    }
}

//! Reading the small documents of a conversation.

use serde_json::Value;

use crate::model::RequestError;
use batchfit_models::Fields;

/// The members of an object, all of which are known; `what` names it in problems, such as "a search".
pub(super) fn known<'a>(
    document: &'a Value,
    what: &str,
    known: &[&str],
) -> Result<Fields<'a>, RequestError> {
    let fields = Fields::any(document, "", what)?;
    match fields.unknown_key(known) {
        None => Ok(fields),
        Some(key) => {
            let of = format!("field of {what}");
            let known = known.iter().copied();
            Err(RequestError::unknown(fields.at(key), &of, key, known))
        }
    }
}

//! The table of requests: each text once, however often it was asked.

use super::engine::{Transaction, query};
use super::{JsonText, StoreError};
use crate::model::Digest;

/// What a request is called in the table.
pub(super) fn request_digest(request: &JsonText) -> String {
    Digest::of(request.as_str().as_bytes()).to_string()
}

/// Keeps the text of a request, unless it is there.
pub(super) async fn keep_request(
    transaction: &mut Transaction,
    digest: &str,
    request: &JsonText,
) -> Result<(), StoreError> {
    query!("keep a request": execute, transaction.on(),
        "INSERT INTO request (digest, text) VALUES ($1, $2) ON CONFLICT DO NOTHING", digest, request).map(|_| ())
}

//! The table of requests: each text once, however often it was asked.

use sqlx::SqliteConnection;

use super::{JsonText, StoreError, asking};
use crate::model::Digest;

/// What a request is called in the table.
pub(super) fn request_digest(request: &JsonText) -> String {
    Digest::of(request.as_str().as_bytes()).to_string()
}

/// Keeps the text of a request, unless it is there.
pub(super) async fn keep_request(
    connection: &mut SqliteConnection,
    digest: &str,
    request: &JsonText,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO request (digest, text) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        digest,
        request,
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(asking("keep a request"))
}

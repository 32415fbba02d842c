//! Uploads: graphs and recordings that requests name by their digests.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::http::App;
use crate::http::request::parameters::{Page, Parameters, no_cursor};
use crate::http::request::unpack::Unpacked;
use crate::http::request::uploads::BufferedBody;
use crate::http::response::problem::{Code, Problem};
use crate::http::server::keys::Client;
use crate::jobs::{UploadDocument, examine, new_upload};
use crate::limits::shorten;
use crate::model::{DIGEST_FORM, Digest, RequestError};
use crate::store::{Dropped, NewUpload, Time};

/// Upload a graph or a recording under its digest.
///
/// The body is a file: a graph that `torch.export` saved (JSON, as it is or compressed with gzip, or a `.pt2` archive), a
/// trace, or a memory snapshot, of any content type. `digest` is `sha256:` and what `sha256sum FILE` prints; that of the
/// decompressed contents will do as well. Requests then name it by either.
#[utoipa::path(put, path = "/v1/graphs/{digest}", tag = "graphs",
    params(("digest" = String, Path, description = "`sha256:` and 64 hexadecimal digits", pattern = "^sha256:[0-9a-fA-F]{64}$")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream",
        description = "The file, at most 64 MiB, also decompressed"),
    responses(
        (status = 200, body = UploadDocument, description = "It was there", headers(("Location" = String))),
        (status = 201, body = UploadDocument, description = "It is kept", headers(("Location" = String)))))]
pub(in crate::http) async fn put_graph(
    State(app): State<App>,
    Path(digest): Path<String>,
    client: Client,
    request: Request,
) -> Result<Response, Problem> {
    let digest = read(&digest)?;
    keep(&app, client, request, Some(digest)).await
}

/// Upload a graph or a recording.
///
/// As `PUT /v1/graphs/{digest}`, for those who do not know the digest: the answer says it.
#[utoipa::path(post, path = "/v1/graphs", tag = "graphs",
    request_body(content = Vec<u8>, content_type = "application/octet-stream",
        description = "The file, at most 64 MiB, also decompressed"),
    responses(
        (status = 200, body = UploadDocument, description = "It was there", headers(("Location" = String))),
        (status = 201, body = UploadDocument, description = "It is kept", headers(("Location" = String)))))]
pub(in crate::http) async fn create_graph(
    State(app): State<App>,
    client: Client,
    request: Request,
) -> Result<Response, Problem> {
    keep(&app, client, request, None).await
}

/// List uploads, newest first.
///
/// And models that came with a request, while they are kept.
#[utoipa::path(get, path = "/v1/graphs", tag = "graphs",
    params(("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, body = ref("#/components/schemas/UploadList"), description = "A page")))]
pub(in crate::http) async fn list_graphs(
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<Page<UploadDocument>>, Problem> {
    let limit = parameters.limit()?;
    let cursor = parameters.text("cursor");
    let before = cursor.as_deref().map(Digest::parse);
    if let (Some(before), Some(cursor)) = (&before, &cursor) {
        let found = match before {
            Some(digest) => app.jobs.upload(digest).await?,
            None => None,
        };
        if found.is_none_or(|found| found.contents != *cursor) {
            return Err(no_cursor(cursor));
        }
    }
    let before = before.flatten();
    let uploads = app.jobs.uploads(before.as_ref(), limit + 1).await?;
    Ok(Json(Page::of(uploads, limit, |upload| {
        upload.digest.clone()
    })))
}

/// Describe an upload.
///
/// Without its contents. Any digest of it will do: that of the file, or of its decompressed contents.
#[utoipa::path(get, path = "/v1/graphs/{digest}", tag = "graphs",
    params(("digest" = String, Path, description = "`sha256:` and 64 hexadecimal digits", pattern = "^sha256:[0-9a-fA-F]{64}$")),
    responses((status = 200, body = UploadDocument, description = "The upload")))]
pub(in crate::http) async fn get_graph(
    State(app): State<App>,
    Path(digest): Path<String>,
) -> Result<Json<UploadDocument>, Problem> {
    let digest = read(&digest)?;
    let found = app.jobs.upload(&digest).await?;
    found.map(Json).ok_or_else(|| no_such(&digest))
}

/// Delete an upload.
///
/// Under all of its digests. Answers that were found with it stay.
#[utoipa::path(delete, path = "/v1/graphs/{digest}", tag = "graphs",
    params(("digest" = String, Path, description = "`sha256:` and 64 hexadecimal digits", pattern = "^sha256:[0-9a-fA-F]{64}$")),
    responses((status = 204, description = "It is gone")))]
pub(in crate::http) async fn delete_graph(
    State(app): State<App>,
    Path(digest): Path<String>,
) -> Result<StatusCode, Problem> {
    let digest = read(&digest)?;
    match app.jobs.drop_upload(&digest).await? {
        Dropped::Yes => Ok(StatusCode::NO_CONTENT),
        Dropped::InUse => Err(Problem::new(
            Code::UploadInUse,
            format!("a fit that waits or runs needs {digest}; cancel it, or wait for its end"),
        )),
        Dropped::Unknown => Err(no_such(&digest)),
    }
}

/// The digest in a path.
fn read(text: &str) -> Result<Digest, Problem> {
    Digest::parse(text).ok_or_else(|| Problem {
        value: Some(Value::String(shorten(text))),
        ..Problem::new(
            Code::DigestInvalid,
            format!("{:?} is no digest; {DIGEST_FORM}", shorten(text)),
        )
    })
}

fn no_such(digest: &Digest) -> Problem {
    Problem::new(
        Code::NotFound,
        format!("there is no upload {digest}, or it has expired"),
    )
}

/// Keeps the file in a body, whose digest is the one that was announced, if any was.
async fn keep(
    app: &App,
    client: Client,
    request: Request,
    announced: Option<Digest>,
) -> Result<Response, Problem> {
    let received = app.uploads.arrive(request).await?;
    let now = app.jobs.db().now();
    let reading = app
        .uploads
        .unpack(received, move |file| examined(file, announced, now));
    // The permit is held until the file is stored: its contents are in memory until then.
    let BufferedBody {
        read: (mut new, digest),
        permit: _permit,
    } = reading.await?;
    new.owner = client.id;
    let (is_new, document) = app.jobs.keep_upload(&new, &digest).await?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let location = [(LOCATION, format!("/v1/graphs/{digest}"))];
    Ok((status, location, Json(document)).into_response())
}

/// Compares the digests of a file with the one announced, and then reads it.
fn examined(
    file: Unpacked,
    announced: Option<Digest>,
    now: Time,
) -> Result<(NewUpload, Digest), Problem> {
    let Unpacked {
        contents,
        file,
        body,
    } = file;
    let of_contents = Digest::of(&contents);
    let named = announced.unwrap_or_else(|| file.clone());
    if ![&file, &of_contents, &body].contains(&&named) {
        return Err(Problem {
            value: Some(Value::String(named.to_string())),
            nearest: Some(file.to_string()),
            ..Problem::new(
                Code::DigestMismatch,
                format!("the file has the digest {file}, not {named}"),
            )
        });
    }
    let (kind, about) = examine(&contents).map_err(
        |RequestError {
             pointer, problem, ..
         }| Problem {
            pointer: Some(pointer),
            ..Problem::new(Code::UploadInvalid, problem)
        },
    )?;
    let mut forms = vec![file];
    if !forms.contains(&named) {
        forms.push(named.clone());
    }
    let new = new_upload(&contents, forms, (kind, &about), now);
    Ok((new, named))
}

//! The page at `/`: a form and its answers in a browser, from the binary alone.
//!
//! The files are those below `crates/server/src/http/page`, as they are read and edited (ES modules, no build step), and `words.js`. They are compressed
//! once, when the service starts. Opening the page needs no key; its requests need one, and docs/use/page.md says
//! where it keeps it.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, REFERRER_POLICY,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use utoipa_axum::router::OpenApiRouter;

use super::App;
use crate::http::response::etag;
use crate::http::response::large::ReadsGzip;
use crate::http::response::problem::Problem;
use batchfit_models::members::{Kind, TRAINING};

/// `FILES`: each file's path below `crates/server/src/http/page`, and its contents. Written by `build.rs`.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/page.rs"));
}

/// What a browser may do with the page: run the service's own files and ask the service. No code or style in the markup, no
/// other site, no frame. Files that are dropped stay in the browser until they are sent to the service.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Below it are the files; `/` is `index.html`.
pub(super) const FOLDER: &str = "/page/";

/// A file as it is sent.
struct File {
    kind: &'static str,
    plain: Bytes,
    gzip: Bytes,
    tag: HeaderValue,
}

/// All files by their paths, compressed once.
static PACKED: LazyLock<HashMap<&'static str, File>> = LazyLock::new(|| {
    let files = embedded::FILES.iter();
    files
        .map(|(path, bytes)| (*path, pack(path, Bytes::from_static(bytes))))
        .chain([(WORDS, pack(WORDS, members_script().into()))])
        .collect()
});

/// A module with the words of each member of `training` that takes several.
const WORDS: &str = "words.js";

fn members_script() -> String {
    let words = TRAINING
        .members
        .iter()
        .filter_map(|member| match member.kind {
            Kind::Words(words) => Some(format!(" {} = {:?}", member.name, words())),
            _ => None,
        });
    format!("export const{};\n", words.collect::<Vec<_>>().join(","))
}

/// Compresses the files, so that no request has to wait for it.
pub(super) fn prepare() {
    LazyLock::force(&PACKED);
}

/// The routes of the page. They are for browsers, and no part of the API that `/openapi.yaml` describes.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .route("/", get(get_index))
        .route("/page/{*path}", get(get_file))
}

async fn get_index(headers: HeaderMap) -> Response {
    answer("index.html", &headers)
}

async fn get_file(Path(path): Path<String>, headers: HeaderMap) -> Response {
    answer(&path, &headers)
}

fn answer(path: &str, asked: &HeaderMap) -> Response {
    let Some(file) = PACKED.get(path) else {
        return Problem::no_such("file", path).into_response();
    };
    // Asked for again each time, and mostly answered with 304: after an update of the service no page is made of two versions.
    let always: [(HeaderName, HeaderValue); 6] = [
        (ETAG, file.tag.clone()),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (VARY, HeaderValue::from_static("accept-encoding")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    if etag::is_known(asked, &file.tag) {
        return (StatusCode::NOT_MODIFIED, always, Body::empty()).into_response();
    }
    let kind = [(CONTENT_TYPE, file.kind)];
    if ReadsGzip::of(asked).0 {
        let encoding = [(CONTENT_ENCODING, "gzip")];
        return (always, kind, encoding, file.gzip.clone()).into_response();
    }
    (always, kind, file.plain.clone()).into_response()
}

fn pack(path: &str, bytes: Bytes) -> File {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let gzip = encoder.write_all(&bytes).and_then(|()| encoder.finish());
    let tag = HeaderValue::from_str(&etag::tag(&bytes)).expect("digits are valid in headers");
    File {
        kind: kind(path),
        plain: bytes,
        gzip: Bytes::from(gzip.expect("memory takes everything")),
        tag,
    }
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _text => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_small() {
        let total: usize = PACKED.values().map(|file| file.gzip.len()).sum();

        assert!(total < 300 << 10, "{total} bytes");
    }
}

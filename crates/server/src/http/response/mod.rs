//! How answers are written: problems, documents of megabytes, text, `ETag`, and answers that are cached.

pub(in crate::http) mod etag;
pub(in crate::http) mod formats;
pub(in crate::http) mod large;
pub(in crate::http) mod problem;
pub(in crate::http) mod response_cache;

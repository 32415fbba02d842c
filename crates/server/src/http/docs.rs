//! `/docs`: the description of the API, for reading in a browser.
//!
//! Written once from the same document as `/openapi.yaml`: a page without scripts that loads nothing from anywhere, since
//! machines with GPUs are often offline.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Uri};
use axum::response::IntoResponse;
use serde_json::{Map, Value};

/// The page, written once.
static WRITTEN: LazyLock<String> = LazyLock::new(|| page(&super::openapi()));

/// What stands in the page for the address that it is read at.
const ORIGIN: &str = "{origin}";

/// A question in a shell.
const EXAMPLE: &str = "curl -s {origin}/v1/fits -H 'Prefer: wait=60' \\\n  -d '{\"model\": \"gpt2\", \"device\": \"rtx4090\", \"target_batch\": 512}'";

/// What a browser may do with the page: show it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
    h2{margin-top:2.5rem;border-bottom:1px solid #d0d7de}h3{margin-bottom:.3rem}code,pre{font:13px/1.45 ui-monospace,monospace}\
    pre{background:#f6f8fa;padding:.7rem;overflow:auto;border-radius:6px}table{border-collapse:collapse;width:100%;display:block;overflow-x:auto}code{overflow-wrap:anywhere}\
    td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-top:1px solid #eaeef2}\
    .m{display:inline-block;min-width:4rem;font-weight:600}\
    @media(prefers-color-scheme:dark){body{color:#d6dbe0;background:#14171a}pre{background:#1f2429}td,th,h2{border-color:#333a41}a{color:#78b0ff}}";

/// Get a page that describes the API.
#[utoipa::path(get, path = "/docs", tag = "service",
    responses((status = 200, body = String, content_type = "text/html", description = "The page")))]
pub(super) async fn get_docs(asked: HeaderMap, uri: Uri) -> impl IntoResponse {
    let text = |name: HeaderName| asked.get(name).and_then(|value| value.to_str().ok());
    // HTTP/2 has the host in the URI. A proxy that ends TLS says so.
    let host = uri
        .authority()
        .map(Authority::as_str)
        .or(text(HOST))
        .unwrap_or("127.0.0.1:8080");
    let proxied = text(HeaderName::from_static("x-forwarded-proto"));
    let scheme = proxied
        .filter(|scheme| *scheme == "https")
        .unwrap_or("http");
    let origin = escaped(&format!("{scheme}://{host}"));
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
    ];
    (headers, WRITTEN.replacen(ORIGIN, &origin, 1))
}

/// Writes the page, so that no request has to wait for it.
pub(super) fn prepare() {
    LazyLock::force(&WRITTEN);
}

fn page(document: &Value) -> String {
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>batchfit \
         API</title><style>{STYLE}</style><h1>batchfit API</h1><p>{}</p><p><a href=/>Ask in the browser</a>; \
         <a href=/openapi.yaml>openapi.yaml</a> is the same for programs. Ask, and wait for the answer:</p><pre>{}</pre>",
        prose(&document["info"]["description"]),
        escaped(EXAMPLE)
    );
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = tag["name"].as_str().unwrap_or_default();
        let _ = write!(
            out,
            "<h2 id=\"{0}\">{0}</h2><p>{1}</p>",
            escaped(name),
            prose(&tag["description"])
        );
        // Streams are what few begin with.
        let (streams, others): (Vec<_>, Vec<_>) =
            members(&document["paths"]).partition(|(path, _)| path.ends_with("/events"));
        for (path, item) in others.into_iter().chain(streams) {
            for (method, operation) in members(item) {
                if operation["tags"][0] == name {
                    self::operation(&mut out, path, method, operation);
                }
            }
        }
    }
    out += "<h2 id=schemas>Schemas</h2>";
    for (name, schema) in members(&document["components"]["schemas"]) {
        let _ = write!(out, "<h3 id=\"schema-{0}\">{0}</h3>", escaped(name));
        described(&mut out, schema);
    }
    out
}

fn operation(out: &mut String, path: &str, method: &str, operation: &Value) {
    let id = operation["operationId"].as_str().unwrap_or_default();
    let _ = write!(
        out,
        "<h3 id=\"{}\"><span class=m>{}</span> <code>{}</code></h3><p>{} {}</p>",
        escaped(id),
        escaped(&method.to_uppercase()),
        escaped(path),
        prose(&operation["summary"]),
        if operation["description"] == operation["summary"] {
            String::new()
        } else {
            prose(&operation["description"])
        }
    );
    let parameters = operation["parameters"].as_array();
    if let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) {
        *out += "<table><tr><th>Parameter<th>Type<th>";
        for parameter in parameters {
            let place = parameter["in"].as_str().unwrap_or_default();
            row(
                out,
                parameter["name"].as_str().unwrap_or_default(),
                place,
                &parameter["schema"],
                &parameter["description"],
            );
        }
        *out += "</table>";
    }
    for (kind, content) in members(&operation["requestBody"]["content"]) {
        let _ = write!(
            out,
            "<p>Body: <code>{}</code> {}</p>",
            escaped(kind),
            kind_of(&content["schema"])
        );
        example(out, &content["example"]);
    }
    *out += "<table><tr><th>Status<th>Body<th>";
    for (status, response) in members(&operation["responses"]) {
        let content = members(&response["content"]).next();
        let body = content.map_or_else(String::new, |(_, content)| kind_of(&content["schema"]));
        let said = match response["$ref"].as_str() {
            Some(reference) => escaped(last(reference)),
            None => prose(&response["description"]),
        };
        let _ = write!(out, "<tr><td>{}<td>{body}<td>{said}", escaped(status));
    }
    *out += "</table>";
}

/// A schema: its members, its values, or what it is one of.
fn described(out: &mut String, schema: &Value) {
    let _ = write!(out, "<p>{}</p>", prose(&schema["description"]));
    if members(&schema["properties"]).next().is_none() {
        let _ = write!(out, "<p>{}</p>", kind_of(schema));
        return;
    }
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    *out += "<table><tr><th>Member<th>Type<th>";
    for (name, member) in members(&schema["properties"]) {
        let place = if required.contains(&name) {
            ""
        } else {
            "optional"
        };
        row(out, name, place, member, &member["description"]);
    }
    *out += "</table>";
    example(out, &schema["example"]);
}

fn row(out: &mut String, name: &str, place: &str, schema: &Value, description: &Value) {
    let _ = write!(
        out,
        "<tr><td><code>{}</code> {}<td>{}<td>{}",
        escaped(name),
        escaped(place),
        kind_of(schema),
        prose(description)
    );
}

/// What a value is, in a few words, with links to what it is made of.
fn kind_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = escaped(last(reference));
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        if let Some(choices) = schema[choice].as_array() {
            let kinds: Vec<String> = choices.iter().map(kind_of).collect();
            return kinds.join(" or ");
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .map(|value| format!("<code>{}</code>", escaped(&value.to_string())))
            .collect();
        return values.join(" or ");
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", kind_of(&schema["items"])),
        Value::String(kind) => escaped(kind),
        Value::Array(kinds) => {
            let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
            escaped(&kinds.join(" or "))
        }
        _any => "any".to_owned(),
    }
}

fn example(out: &mut String, example: &Value) {
    if !example.is_null() {
        let text = serde_json::to_string_pretty(example).unwrap_or_default();
        let _ = write!(out, "<pre>{}</pre>", escaped(&text));
    }
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value
        .as_object()
        .into_iter()
        .flat_map(Map::iter)
        .map(|(name, value)| (name.as_str(), value))
}

fn last(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap_or(reference)
}

/// A description, with what stands between backquotes as code.
fn prose(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    let mut out = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        let part = escaped(part);
        if index % 2 == 1 {
            let _ = write!(out, "<code>{part}</code>");
        } else {
            out += &part;
        }
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

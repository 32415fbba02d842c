//! Requests as text: a line with method and path, lines of headers, an empty line, the body. `{id}` stands for the last id that an
//! answer named. Query parameters, cursors, headers and bodies of every route are read so.
#![no_main]

use std::cell::RefCell;

use axum::body::Body;
use axum::http::Request;
use libfuzzer_sys::fuzz_target;

mod service;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, body) = end.map_or((bytes, &[][..]), |end| (&bytes[..end], &bytes[end + 2..]));
    let mut lines = head.split(|byte| *byte == b'\n');
    let Some(first) = lines.next().and_then(|line| std::str::from_utf8(line).ok()) else {
        return;
    };
    let Some((method, path)) = first.split_once(' ') else {
        return;
    };
    let path = LAST.with_borrow(|last| path.replace("{id}", last));
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost");
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return;
        };
        // Whoever waits is not told apart from whoever hangs.
        if !line[..colon].eq_ignore_ascii_case(b"prefer") || line.len() < 16 {
            request = request.header(&line[..colon], line[colon + 1..].trim_ascii());
        }
    }
    let Ok(request) = request.body(Body::from(body.to_vec())) else {
        return;
    };
    let (_, answer) = service::send(request);
    if let Ok(document) = serde_json::from_slice::<serde_json::Value>(&answer)
        && let Some(id) = document["id"].as_str().or(document["digest"].as_str())
    {
        LAST.with_borrow_mut(|last| id.clone_into(last));
    }
});

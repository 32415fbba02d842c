//! Files that are sent to be kept or replayed: graphs, archives, recordings, each as it is, compressed, or compressed on the way.
//! The first byte says where it goes, and whether it says that it is compressed.
#![no_main]

use axum::body::Body;
use axum::http::Request;
use libfuzzer_sys::fuzz_target;

mod service;

fuzz_target!(|bytes: &[u8]| {
    let Some((how, file)) = bytes.split_first() else {
        return;
    };
    let path = ["/v1/graphs", "/v1/replays", "/v1/fits", "/v1/probes"][usize::from(how >> 1) % 4];
    let mut request = Request::post(path).header("host", "localhost");
    if how % 2 == 1 {
        request = request.header("content-encoding", "gzip");
    }
    service::send(
        request
            .body(Body::from(file.to_vec()))
            .expect("it is a request"),
    );
});

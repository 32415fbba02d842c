//! The log of the program. Here, and not in the command line, so that it is optimised: each request of a service writes what it is.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Writes what passes the filter to stderr from now on, as text or as one JSON object a line: stdout belongs to answers and to the worker's protocol.
pub fn log_to_stderr(filter: Targets, is_json: bool) {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(io::stderr)
        // Or it would panic where stderr cannot be written: a log on a full disk would end requests.
        .log_internal_errors(false);
    if is_json {
        let log = log.json().flatten_event(true);
        log.finish().with(filter).init();
    } else {
        let log = log.with_ansi(io::stderr().is_terminal());
        log.finish().with(filter).init();
    }
}

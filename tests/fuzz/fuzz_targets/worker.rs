//! Messages between processes: orders as a worker reads them, and what a server reads of workers, recorders and fits apart.
#![no_main]

use std::path::PathBuf;

use batchfit::jobs::{EngineError, FitResult};
use batchfit::worker::protocol::{Answer, Order};
use batchfit::worker::{FakeGpu, InjectedFailure, RecordedBatch, RecorderReady, run_misbehaving};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is read is the same when it is written and read again.
fn same<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(line: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(line) {
        let text = serde_json::to_vec(&message).expect("it has string keys only");
        let again: T = serde_json::from_slice(&text).expect("it was written just now");
        assert_eq!(again, message);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let fake = FakeGpu {
        plan: InjectedFailure::None,
        once: None,
        locks: PathBuf::from("/nowhere"),
    };
    // One that joins with another invitation than it gave is a bug of the parent, not of the text.
    if !bytes.windows(4).any(|word| word == b"join") {
        let _ = run_misbehaving(&fake, &mut &*bytes, std::io::sink());
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        same::<Order>(line);
        same::<Answer>(line);
        same::<FitResult>(line);
        same::<EngineError>(line);
        let _ = serde_json::from_slice::<RecorderReady>(line);
        let _ = serde_json::from_slice::<RecordedBatch>(line);
    }
});

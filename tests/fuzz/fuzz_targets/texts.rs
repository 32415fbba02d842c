//! Short texts: allocator settings, memory sizes, devices, digests, patterns, names of hosts, planned faults.
#![no_main]

use batchfit::alloc::{MemoryLimit, Settings};
use batchfit::device::sim;
use batchfit::http::HostName;
use batchfit::model::{DeviceChoice, Digest, Glob};
use batchfit::units::Bytes;
use batchfit::worker::{Fault, InjectedFailure};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &str| {
    if let Ok(settings) = text.parse::<Settings>() {
        let _ = settings.updated(text);
        let _ = settings.limit(Bytes::gib(80));
        for size in [1, 511, 512, 1 << 20, (10 << 20) + 1, 1 << 40] {
            let rounded = settings.round_size(Bytes(size));
            assert!(rounded.0 >= size && settings.segment_size(rounded) >= rounded);
        }
    }
    for value in [Value::from(text), text.parse().unwrap_or(Value::Null)] {
        let _ = batchfit::model::parse_memory_limit(&value, "/memory_limit");
    }
    let _ = DeviceChoice::parse(text, "/device");
    if let Some(digest) = Digest::parse(text) {
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
    }
    if let Some(glob) = Glob::new(text) {
        let _ = glob.matches(text);
        let _ = glob.matches("layers.0.attention.self.query");
    }
    let _ = (
        text.parse::<HostName>(),
        text.parse::<Fault>(),
        text.parse::<InjectedFailure>(),
    );
});

//! Files of recordings, and what is learnt of two of them: nothing panics, overflows or takes long.
//!
//! The first byte says where the second file begins, in 256ths; a file is prefixed by the first line of batchfit's own format, or
//! taken as it is, by that byte's lowest bit.
#![no_main]

use batchfit::recorded::{Check, Steps, read};
use batchfit::replay::{Bounds, pickle};
use libfuzzer_sys::fuzz_target;

const BOUNDS: Bounds = Bounds {
    mib: 1,
    events: 10_000,
    pickle: pickle::Bounds {
        bytes: 1 << 20,
        depth: 32,
    },
};

fuzz_target!(|bytes: &[u8]| {
    let Some((stage, files)) = bytes.split_first() else {
        return;
    };
    let (first, second) = files.split_at(files.len() * usize::from(*stage) / 256);
    let file = |bytes: &[u8], batch: u64| {
        let own = [format!("batchfit recording 1\n{{\"batch\": {batch}}}\n").as_bytes(), bytes].concat();
        let file = if stage % 2 == 0 { &own[..] } else { bytes };
        read(file, None, BOUNDS).or_else(|_| read(file, Some(batch), BOUNDS)).ok()
    };
    let sequences: Vec<_> = [file(first, 4), file(second, 7)].into_iter().flatten().collect();
    for sequence in &sequences {
        let again = read(sequence.to_text().as_bytes(), None, BOUNDS).unwrap();
        assert_eq!(again.to_text(), sequence.to_text());
    }
    if let Ok(steps) = Steps::learn(sequences.clone()) {
        for batch in [1, 4, 5, 1 << 40, u64::MAX] {
            let _ = (steps.program.bytes_at(batch), steps.uncertain_at_peak(batch));
        }
    }
    let _ = Check::of(sequences, None);
});

//! Recordings that nobody made in good faith.

use batchfit::recorded::Steps;
use proptest::prelude::*;

use super::{parsed, text};

#[test]
fn a_wrong_line_is_named() {
    let header = "batchfit recording 1\n{\"batch\": 2}\n";
    for (lines, line, expected) in [
        ("", 2, "no allocations"),
        ("a\n", 3, "a BYTES"),
        ("a 0\n", 3, "1 to 2^60 - 1 bytes"),
        ("a 1 256\n", 3, "stream numbered 0 to 255"),
        ("a 1 0 0\n", 3, "number of a frame"),
        ("a 1 0 0 0\n", 3, "a BYTES"),
        ("a 99999999999999999999\n", 3, "a BYTES"),
        ("a -1\n", 3, "a BYTES"),
        ("f 0\n", 3, "counted from 0"),
        ("a 1\nf 0\nf 0\n", 5, "freed twice"),
        ("a 1\nfree 0\n", 4, "`a BYTES"),
        ("a 1\n\u{7f}\n", 4, "`a BYTES"),
        ("g\n", 3, "g BYTES STREAM"),
        ("g 20971520 0\n", 3, "g BYTES STREAM"),
        ("g 20971520 0 huge\n", 3, "g BYTES STREAM"),
        ("g 20971520 0 large elastic\n", 3, "g BYTES STREAM"),
        ("g 20971520 256 large\n", 3, "numbered 0 to 255"),
        ("g 0 0 large\n", 3, "multiple of 512"),
        ("g 513 0 small\n", 3, "multiple of 512"),
        ("g 18446744073709551104 0 large\n", 3, "fewer than 2^60"),
        ("g 1152921504606846464 0 large\n", 3, "fewer than 2^60"),
        (
            "g 576460752303423488 0 large\ng 576460752303423488 0 large\n",
            4,
            "fewer than 2^60",
        ),
        ("g 1152921504606844928 0 small\n", 3, "blocks and gaps"),
        ("b 0 512\n", 3, "no segment"),
        ("g 2097152 0 small\nb 0\n", 4, "b OFFSET BYTES"),
        ("g 2097152 0 small\nb 0 0\n", 4, "inside of the segment"),
        (
            "g 2097152 0 small\nb 0 2097153\n",
            4,
            "inside of the segment",
        ),
        (
            "g 2097152 0 small\nb 0 1 2097153\n",
            4,
            "inside of the segment",
        ),
        (
            "g 2097152 0 small\nb 18446744073709551615 1\n",
            4,
            "inside of the segment",
        ),
        (
            "g 2097152 0 small\nb 0 1024\nb 512 512\n",
            5,
            "expected 1024 or more",
        ),
        ("g 2097152 0 small\na 1\nb 0 512\n", 5, "come before"),
        ("s\ng 2097152 0 small\n", 4, "come before"),
        ("g 2097152 0 small\nb 0 512\nf 0\nf 0\n", 6, "freed twice"),
        ("g 2097152 0 small\nf 0\n", 4, "counted from 0"),
    ] {
        let error = parsed(&format!("{header}{lines}")).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("line {line}: ")),
            "{lines:?}: {error}"
        );
        assert!(error.contains(expected), "{lines:?}: {error}");
    }
    for wrong in [
        "",
        "{}",
        "{\"batch\": 0}",
        "{\"batch\": 1, \"accumulation\": 0}",
        "{\"batch\": 1, \"extra\": 1}",
        "{\"batch\": 1, \"gpu\": 5}",
        "{\"batch\": 1, \"allocator\": \"expandable_segment:True\"}",
        "[[",
    ] {
        let error = parsed(&format!("batchfit recording 1\n{wrong}\na 1\n")).unwrap_err();
        assert!(
            error.to_string().starts_with("line 2: "),
            "{wrong}: {error}"
        );
    }
    assert!(parsed("batchfit recording 2\n{\"batch\": 1}\na 1\n").is_err());
}

#[test]
fn what_has_nothing_in_common_comes_to_an_end() {
    let sizes = |seed: u64| {
        let line = move |i: u64| format!("a {}", 1 + (i * seed) % 1_000_003);
        (0..12_000).map(line).collect::<Vec<_>>()
    };
    let (a, b) = (text(2, &sizes(7919)), text(4, &sizes(104_729)));

    let _ = Steps::learn(vec![parsed(&a).unwrap(), parsed(&b).unwrap()]);
}

/// Lines of allocations and frees that make sense.
fn events() -> impl Strategy<Value = Vec<String>> {
    let event = (any::<bool>(), 1_u64..=1 << 40, 0_usize..64, 0_u8..3);
    prop::collection::vec(event, 1..120).prop_map(|events| {
        let (mut lines, mut alive, mut count) = (Vec::new(), Vec::new(), 0);
        for (frees, bytes, which, stream) in events {
            if frees && !alive.is_empty() {
                let block: usize = alive.swap_remove(which % alive.len());
                lines.push(format!("f {block}"));
            } else {
                lines.push(format!("a {bytes} {stream}"));
                alive.push(count);
                count += 1;
            }
        }
        lines
    })
}

proptest! {
    #[test]
    fn anything_that_reads_is_learnt_or_refused(all in prop::collection::vec((1_u64..1 << 40, events()), 1..4), batch: u64) {
        let sequences: Result<Vec<_>, _> = all.iter().map(|(batch, lines)| parsed(&text(*batch, lines))).collect();
        if let Ok(steps) = Steps::learn(sequences.unwrap()) {
            // Sizes saturate, and what was recorded comes out as it was.
            let _ = (steps.program.bytes_at(batch), steps.uncertain_at_peak(batch), steps.accumulating(3));
        }
    }

    #[test]
    fn one_recording_is_its_own_program(lines in events()) {
        let sequence = parsed(&text(5, &lines)).unwrap();
        let steps = Steps::learn(vec![sequence.clone()]).unwrap();

        prop_assert_eq!(steps.size(), sequence.len());
        let sizes: u64 = steps.program.bytes_at(5).iter().map(|size| size.0).sum();
        let asked = lines.iter().filter_map(|line| line.strip_prefix("a ")?.split(' ').next()?.parse::<u64>().ok());
        prop_assert_eq!(sizes, asked.sum::<u64>());
    }
}

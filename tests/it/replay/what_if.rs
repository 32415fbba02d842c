//! The same requests under other limits and settings.

use batchfit::alloc::MemoryLimit;
use batchfit::probe::Verdict;
use batchfit::replay::{AddressSource, ReplayOptions};
use batchfit::report::Style;
use batchfit::units::Bytes;

use super::report;

const CIFARNET: &str = "traces/trace-cifarnet-fp32-sgd-b3900.txt.gz";
const GPT2: &str = "traces/trace-gpt2-ampbf16-adamw-b10.txt.gz";

fn limited(limit: Bytes) -> ReplayOptions {
    ReplayOptions {
        limit: Some(MemoryLimit::Bytes(limit)),
        ..ReplayOptions::default()
    }
}

fn compared() -> ReplayOptions {
    ReplayOptions {
        compare: true,
        ..ReplayOptions::default()
    }
}

#[test]
fn a_larger_limit_avoids_the_retry() {
    let report = report(CIFARNET, &limited(Bytes::gib(16)));

    assert_eq!(report.addresses, AddressSource::Simulated);
    assert_eq!(report.equals_recording, None);
    assert_eq!(report.verdict, Verdict::Fits);
    assert_eq!(report.retries, 0);
}

#[test]
fn a_smaller_limit_stops_at_a_request_that_was_granted() {
    let report = report(CIFARNET, &limited(Bytes::gib(2)));

    assert_eq!(report.verdict, Verdict::OutOfMemory);
    assert_eq!(report.ooms, 1);
    let stopped = report.stopped.unwrap();
    assert!(stopped.place.starts_with("line "), "{}", stopped.place);
    assert!(stopped.reserved_bytes + stopped.segment_bytes > 2 << 30);
}

#[test]
fn the_recorded_limit_as_a_flag_changes_nothing() {
    let report = report(CIFARNET, &limited(Bytes::gib(4)));

    assert_eq!(report.addresses, AddressSource::Recorded);
    assert_eq!(report.equals_recording, Some(true));
}

/// The run that was recorded with expandable segments had one retry under the same limit.
#[test]
fn a_granted_oom_is_up_to_where_the_recording_stopped() {
    let asked = ReplayOptions {
        settings: Some("expandable_segments:True".parse().unwrap()),
        ..ReplayOptions::default()
    };

    let report = report(GPT2, &asked);

    assert_eq!(report.verdict, Verdict::FitsWithRetries);
    assert_eq!((report.retries, report.granted_ooms), (1, 1));
    assert!(report.recording.ends_out_of_memory);
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("up to where it stopped"))
    );
}

/// The same step was recorded under several settings: the recording under the default, asked what if, gives
/// the segments of each of the others, on simulated memory.
#[test]
fn what_if_is_what_was_recorded_under_those_settings() {
    for (name, settings) in [
        ("gpt2-ampbf16-adamw-b4", "expandable"),
        ("gpt2-ampbf16-adamw-b4", "pow2div4"),
        ("resnet50-fp32-sgd-b64", "expandable"),
        ("resnet50-fp32-sgd-b64", "pow2div4"),
        ("resnet50-fp32-sgd-b64", "split128gc80"),
        ("cifarnet-fp32-sgd-b512", "split128gc80"),
        ("cifarnet-fp32-sgd-b3900", "split128gc80"),
        ("cifarnet-fp32-sgd-b4039", "split128gc80"),
    ] {
        let recorded = report(
            &format!("traces/trace-{name}.{settings}.txt.gz"),
            &ReplayOptions::default(),
        );
        let asked = ReplayOptions {
            settings: Some(recorded.allocator.parse().unwrap()),
            ..ReplayOptions::default()
        };

        let simulated = report(&format!("traces/trace-{name}.txt.gz"), &asked);

        assert_eq!(simulated.addresses, AddressSource::Simulated);
        assert_eq!(
            simulated.segment_events, recorded.segment_events,
            "{name} {settings}"
        );
        assert_eq!(simulated.retries, recorded.retries, "{name} {settings}");
    }
}

#[test]
fn a_comparison_is_best_first_and_its_smallest_limits_are_limits() {
    let comparison = report(GPT2, &compared()).comparison.unwrap();

    assert_eq!(comparison.limit_bytes, Some(16 << 30));
    let fits: Vec<bool> = comparison.rows.iter().map(|row| row.fits).collect();
    assert!(fits.is_sorted_by(|a, b| a >= b), "{fits:?}");
    let default = comparison.rows.iter().find(|row| row.allocator.is_empty());
    let default = default.unwrap();
    assert_eq!((default.verdict, default.ooms), (Verdict::OutOfMemory, 1));
    let smallest = Bytes(default.smallest_limit_bytes.unwrap());
    assert_eq!(report(GPT2, &limited(smallest)).retries, 0);
    assert!(report(GPT2, &limited(smallest - Bytes::mib(2))).retries > 0);
}

#[test]
fn a_snapshot_is_compared_under_the_limit_it_ran_into() {
    let report = report("snapshots/overrun.pickle.gz", &compared());

    let comparison = report.comparison.unwrap();
    assert_eq!(comparison.limit_bytes, Some(report.peak_reserved_bytes));
    assert!(comparison.rows.len() > 8);
}

#[test]
fn a_comparison_reads_well() {
    let report = report(CIFARNET, &compared());

    insta::assert_snapshot!(batchfit::report::replay(&report, &Style::default()));
}

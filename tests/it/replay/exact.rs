//! With the driver's recorded answers, every event comes out as PyTorch's.

use batchfit::alloc::Event;
use batchfit::probe::SegmentAction;
use batchfit::replay::{AddressSource, ReplayOptions};
use serde_json::Value;

use super::{all, decompressed, recording, replayed, report};

#[test]
fn every_trace_is_replayed_event_for_event() {
    let traces = all("traces");
    assert_eq!(traces.len(), 27);

    for name in traces {
        let (recording, replay) = replayed(&name, &ReplayOptions::default());

        assert_eq!(replay.report.equals_recording, Some(true), "{name}");
        assert_eq!(replay.report.addresses, AddressSource::Recorded, "{name}");
        let recorded: Vec<Event> = recording.entries.iter().map(|entry| entry.event).collect();
        assert!(recorded == replay.events, "{name}");
    }
}

#[test]
fn retries_refusals_and_peaks_are_those_of_the_headers() {
    for name in all("traces") {
        let text = String::from_utf8(decompressed(&name)).unwrap();
        let header = text.lines().next().unwrap().strip_prefix('#').unwrap();
        let header: Value = serde_json::from_str(header).unwrap();

        let report = report(&name, &ReplayOptions::default());

        assert_eq!(header["retries"], report.retries, "{name}");
        assert_eq!(header["ooms"], report.ooms, "{name}");
        // Peaks of headers are those of the steps, and a run that failed ended in the middle of one.
        if header["ok"] == true {
            assert_eq!(
                header["peak_reserved"], report.peak_reserved_bytes,
                "{name}"
            );
        }
    }
}

#[test]
fn segment_events_are_the_recorded_ones() {
    let name = "traces/trace-gpt2-ampbf16-adamw-b10.expandable.txt.gz";
    let text = String::from_utf8(decompressed(name)).unwrap();

    let report = report(name, &ReplayOptions::default());

    let recorded: Vec<(SegmentAction, u64)> = text
        .lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split(' ').collect();
            let action = match columns[0] {
                "segment_map" => SegmentAction::Map,
                "segment_unmap" => SegmentAction::Unmap,
                _ => return None,
            };
            Some((action, columns[2].parse().unwrap()))
        })
        .collect();
    assert_eq!(report.segment_events, recorded);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["segment_events"][0],
        serde_json::json!(["map", 167_772_160])
    );
}

/// What PyTorch's own statistics said: see tests/golden/snapshots/README.md.
#[test]
fn snapshots_are_replayed_from_their_first_event_on() {
    let facts = [
        ("complete", 1035, false, [207_280_128, 224_395_264, 0, 0]),
        ("started-late", 603, true, [245_602_304, 285_212_672, 1, 1]),
        ("overrun", 500, true, [250_701_824, 266_338_304, 2, 1]),
        (
            "overrun-expandable",
            500,
            true,
            [233_826_304, 262_144_000, 1, 1],
        ),
    ];
    for (name, events, starts_late, expected) in facts {
        let report = report(
            &format!("snapshots/{name}.pickle.gz"),
            &ReplayOptions::default(),
        );

        assert_eq!(report.equals_recording, Some(true), "{name}");
        assert_eq!(report.recording.events, events, "{name}");
        assert_eq!(report.recording.starts_late, starts_late, "{name}");
        let found = [
            report.peak_allocated_bytes,
            report.peak_reserved_bytes,
            report.retries,
            report.ooms,
        ];
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn blocks_that_another_stream_used_complete_when_they_did() {
    let (recording, replay) = replayed("snapshots/complete.pickle.gz", &ReplayOptions::default());

    let waited = recording.entries.windows(2).any(|pair| {
        matches!(pair[0].event, Event::FreeRequested { .. })
            && !matches!(pair[1].event, Event::FreeCompleted { .. })
    });
    assert!(waited);
    assert_eq!(replay.report.equals_recording, Some(true));
}

#[test]
fn the_statistics_have_the_names_of_pytorch() {
    let report = report(
        "traces/trace-cifarnet-fp32-sgd-b3900.txt.gz",
        &ReplayOptions::default(),
    );

    let stats = &report.memory_stats;
    assert_eq!(
        stats["reserved_bytes.all.peak"],
        report.peak_reserved_bytes.cast_signed()
    );
    assert_eq!(stats["num_alloc_retries"], 1);
    assert_eq!(stats["num_ooms"], 0);
}

#[test]
fn the_map_at_the_peak_is_tiled() {
    for name in [
        "traces/trace-gpt2-ampbf16-adamw-b4.expandable.txt.gz",
        "snapshots/overrun.pickle.gz",
    ] {
        let report = report(name, &ReplayOptions::default());

        let peak = &report.peak;
        let segments: u64 = peak.segments.iter().map(|segment| segment.size_bytes).sum();
        let blocks = peak.segments.iter().flat_map(|segment| &segment.blocks);
        let tiles: u64 = blocks.map(|block| block.size_bytes).sum();
        assert_eq!(peak.reserved_bytes, report.peak_reserved_bytes, "{name}");
        assert_eq!(
            (segments, tiles),
            (peak.reserved_bytes, peak.reserved_bytes),
            "{name}"
        );
    }
}

#[test]
fn a_plain_file_is_as_good_as_a_compressed_one() {
    let name = "snapshots/overrun.pickle.gz";

    let plain = recording(&decompressed(name)).unwrap();

    assert_eq!(plain, replayed(name, &ReplayOptions::default()).0);
}
